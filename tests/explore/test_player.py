"""The player and its tracker, held to the checker, to a list of every run, and to their own copies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kvsan.checker.explore import Pair, Player, Schedule, Scope, replay
from kvsan.checker.explore.key import Keys, overwritten
from kvsan.checker.explore.search import Search, run
from kvsan.model.design import Design
from kvsan.model.designs import load, names
from kvsan.model.hazard import Kind
from model.random_designs import random_design


def walk(design: Design, scope: Scope, seed: int) -> tuple[str, ...]:
    player, dice = Player(design, scope), random.Random(seed)
    out: list[str] = []
    while (moves := player.moves()) and len(out) < 80:  # some design has a rule that can be applied for ever
        word = dice.choice(moves).word
        player.do(word)
        out.append(word)
    return tuple(out)


def by_checker(design: Design, blocks: int, words: tuple[str, ...]) -> tuple[set[Pair], set[Pair]]:
    """What the tracker found, and what `kvsan check` finds in the ops."""
    played = replay(design, Schedule.of(design, blocks, words))
    checked = {
        Pair(
            hazard.kind,
            str(hazard.later.label if hazard.kind is Kind.GEN else hazard.earlier.label),
            str(hazard.later.label),
        )
        for hazard in played.report.hazards
    }
    return set(played.races), checked


@pytest.mark.parametrize("name", names())
def test_tracker_and_checker_agree_on_random_runs(name: str) -> None:
    design = load(name)
    for seed in range(6):
        tracked, checked = by_checker(design, 2, walk(design, Scope(6, 2, 6), seed))
        assert tracked == checked, seed


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(300))
def test_tracker_and_checker_agree_on_random_designs(seed: int) -> None:
    design = random_design(seed)
    for number in range(5):
        tracked, checked = by_checker(design, 3, walk(design, Scope(8, 3, 8), number))
        assert tracked == checked, (seed, number)


@pytest.mark.parametrize("name", ["kvsan-default", "copier-event-visible-early", "layer-wise", "record-stream"])
def test_going_back_is_as_if_it_had_not_been(name: str) -> None:
    design, scope = load(name), Scope(4, 2, 4, skips=True)
    player, dice = Player(design, scope), random.Random(1)
    keys = Keys(player)
    while moves := player.moves():
        here, key = player.save(), keys.key()
        for move in moves:
            player.do(move.word)
            for _ in range(2):
                if more := player.moves():
                    player.do(more[-1].word)
            player.load(here)
            assert keys.key() == key
            assert player.moves() == moves
        player.do(dice.choice(moves).word)


def every_pair(design: Design, scope: Scope) -> set[Pair]:
    """All pairs of all runs, run by run: nothing merged, nothing left out."""
    player = Player(design, scope)

    def runs() -> Iterator[Pair]:
        moves = player.moves()
        here = player.save()
        for move in moves:
            player.load(here)
            player.do(move.word)
            yield from (pair for pair, _ in player.races)
            yield from runs()

    return set(runs())


def searched(design: Design, scope: Scope) -> set[Pair]:
    search = Search.new(design, scope)
    run(design, scope, search)
    return set(search.progress.found)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_merged_loses_no_race(seed: int) -> None:
    """Run by run against state by state. One request, since every run is a great many; two in the sweep."""
    design = random_design(seed)
    assert every_pair(design, Scope(1, 1, 2, plain=True)) == searched(design, Scope(1, 1, 2)), seed


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(40))
def test_what_is_merged_loses_no_race_of_two_requests(seed: int) -> None:
    design = random_design(seed)
    assert every_pair(design, Scope(2, 1, 2, plain=True)) == searched(design, Scope(2, 1, 2)), seed


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(12))
def test_what_is_merged_loses_no_race_of_two_blocks(seed: int) -> None:
    design = random_design(seed)
    for skips in (False, True):
        assert every_pair(design, Scope(2, 2, 1, skips, plain=True)) == searched(design, Scope(2, 2, 1, skips)), seed
    assert searched(design, Scope(2, 2, 2, plain=True)) == searched(design, Scope(2, 2, 2)), seed


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name in names() if name.startswith("copier")])
def test_what_is_merged_loses_no_race_of_two_threads(name: str) -> None:
    for scope in (Scope(1, 1, 1), Scope(2, 1, 1), Scope(1, 1, 2)):
        assert every_pair(load(name), replace(scope, plain=True)) == searched(load(name), scope)
    assert searched(load(name), Scope(2, 1, 3, plain=True)) == searched(load(name), Scope(2, 1, 3))


def test_the_number_of_a_block_does_not_matter() -> None:
    design = load("vllm-symmetric-barrier")
    keys = []
    for a, b in ((0, 1), (1, 0)):
        player = Player(design, Scope(4, 2, 4, plain=True))
        for word in (
            f"allocate.{a}",
            "launch",
            f"allocate-for-a-load.{b}",
            f"store-a-full-block.{a}",
            "launch",
            "+load",
        ):
            player.do(word)
        keys.append(Keys(player).key())
    assert keys[0] == keys[1]


def test_but_who_is_who_does() -> None:
    """One store of two blocks is not two stores of one: the event is one object, or two."""
    design = load("vllm-symmetric-barrier")

    def key(*words: str) -> tuple[object, ...]:
        player = Player(design, Scope(4, 2, 8, plain=True))
        for word in words:
            player.do(word)
        return Keys(player).key()

    begin = ("allocate.0", "allocate.1", "launch")
    one = key(*begin, "store-a-full-block.0", "store-a-full-block.1", "launch", "launch")
    two = key(*begin, "store-a-full-block.0", "launch", "store-a-full-block.1", "launch")
    assert one != two


def test_choices_that_commute_lead_to_one_place() -> None:
    design = load("vllm-symmetric-barrier")
    keys = []
    for words in (["allocate.0", "allocate-for-a-load.1"], ["allocate-for-a-load.1", "allocate.0"]):
        player = Player(design, Scope())
        for word in words:
            player.do(word)
        keys.append(Keys(player).key())
    assert keys[0] == keys[1]


def test_events_that_are_recorded_anew_before_anybody_asks() -> None:
    assert overwritten(load("vllm-symmetric-barrier")) >= {"compute_done"}
    assert "layer_loaded" not in overwritten(load("layer-wise"))  # a step without a load asks for the last one's
    assert "compute_done" not in overwritten(load("copier-symmetric"))  # the copy thread asks at any time


def test_a_step_may_skip_blocks_only_if_the_scope_says_so() -> None:
    design = load("vllm-symmetric-barrier")
    for skips, words in ((False, ["launch"]), (True, ["launch", "launch-0"])):
        player = Player(design, Scope(skips=skips))
        player.do("allocate.0")
        assert [move.word for move in player.moves() if move.word.startswith("launch")] == words
    player.do("launch-0")
    assert player.cells.facets(0)["data"] == "empty"
    player.do("launch")
    assert player.cells.facets(0)["data"] == "full"
