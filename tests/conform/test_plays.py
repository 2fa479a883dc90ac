"""Runs of every design of the catalogue, played at random, conform to it; with a fault in them they do not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from conform.faults import EDITS
from conform.player import Player
from kvsan.checker import Racy, check
from kvsan.checker.conform import Conformance, conform_ops
from kvsan.checker.trace import from_objects
from kvsan.checker.trace.writer import op_document
from kvsan.model.design import Design
from kvsan.model.designs import load, names
from kvsan.model.ops import Op

OTHER_WAYS = {
    # a block whose poll is left out may have come there by a rule that needs none: the free is not early
    "copier-event-visible-early",
    "vllm-forward-waits-load-done",
    "vllm-forward-waits-own-loads",
    "vllm-runnable-before-load-done",
}
SEEDS = range(3)


def conforms(player: Player, ops: Sequence[Op], design: Design) -> Conformance:
    return conform_ops(from_objects(player.header, ()).header, ops, design)


def racy(player: Player, ops: Sequence[Op]) -> bool:
    return isinstance(check(player.header, [op_document(op) for op in ops]).verdict, Racy)


@pytest.mark.parametrize("lenient", [False, True], ids=["by the book", "as engines do"])
@pytest.mark.parametrize("name", names())
def test_a_play_conforms_to_its_own_design(name: str, lenient: bool) -> None:
    design = load(name)
    exercised: set[str] = set()
    for seed in range(6):
        player = Player(design, random.Random(seed), lenient=lenient)
        ops = player.play(120)
        found = conforms(player, ops, design)
        assert found.verdict == "conforms", (seed, found.line())
        exercised |= {*found.rules, *found.works}
        if design.expected is not None and design.expected.verdict == "proved":
            assert not racy(player, ops), seed
    guarded = {work.name for work in design.works() if work.reads is not None or work.writes is not None}
    assert exercised == guarded | {rule.name for rule in design.rules}


@pytest.mark.parametrize("name", names())
def test_a_fault_is_refused_or_is_a_race(name: str) -> None:
    """Every class that the design has a place for; each fault by one of the two, and most by `conform`."""
    design = load(name)
    caught: Counter[str] = Counter()
    for seed in SEEDS:
        dice = random.Random(seed)
        player = Player(design, dice)
        ops = player.play(100)
        for kind, edit in EDITS.items():
            faults = list(edit(ops, design))
            for words, mutant in dice.sample(faults, min(3, len(faults))):
                found = conforms(player, mutant, design)
                assert found.verdict != "conforms" or racy(player, mutant), (seed, kind, words)
                caught[kind] += 1
        for number in range(2 if name not in OTHER_WAYS else 0):
            player = Player(design, random.Random(seed), early=number)
            ops = player.play(100)
            if player.early_done:
                found = conforms(player, ops, design)
                assert found.verdict == "refused" or racy(player, ops), (seed, "free early", number)
                caught["free early"] += 1
    assert caught["move a record"]
    if name != "fence-on-next-step":  # its blocks hardly ever come back, and a store is rare
        assert bool(caught["drop a wait"]) == any(work.after for work in design.works())


@pytest.mark.sweep
@pytest.mark.parametrize("name", names())
def test_200_seeds_of_faults(name: str) -> None:
    design = load(name)
    for seed in range(200):
        dice = random.Random(seed)
        player = Player(design, dice, lenient=bool(seed % 2))
        ops = player.play(100)
        assert conforms(player, ops, design).verdict == "conforms", seed
        for kind, edit in EDITS.items():
            for words, mutant in edit(ops, design):
                assert conforms(player, mutant, design).verdict != "conforms" or racy(player, mutant), (
                    seed,
                    kind,
                    words,
                )


@pytest.mark.parametrize(
    ("played", "held", "why"),
    [
        ("vllm-symmetric-barrier", "vllm-after-46278", "load: extra wait"),
        ("vllm-after-46278", "vllm-symmetric-barrier", "load.after(compute_done): missing wait"),
        ("vllm-both-wait-previous-step", "vllm-symmetric-barrier", "after(compute_done): missing wait"),
        ("vllm-symmetric-barrier", "vllm-load-waits-previous-step", "load.after(prev_done): missing wait"),
        ("vllm-after-46278", "vllm-after-47653", "one step early"),
        ("copier-symmetric", "copier-deferral", "load: extra wait"),
        ("vllm-no-store-pin", "vllm-symmetric-barrier", "one step early: 'store finished' needs a poll"),
        ("sglang-hicache-load-back", "sglang-hicache-load-back-unfenced", "load: extra wait"),
        ("lmcache-staging-unsynced", "lmcache-staging", "one step early: 'give the slot back' needs a poll"),
        ("nic-writer-immediate-free", "nic-writer", "one step early"),
    ],
)
def test_a_play_is_refused_by_another_design(played: str, held: str, why: str) -> None:
    said = []
    for seed in range(8):
        player = Player(load(played), random.Random(seed))
        found = conforms(player, player.play(120), load(held))
        if found.refusal is not None:
            assert "\n" not in found.line()
            said.append(str(found.refusal))
    assert any(why in line for line in said), said


def test_a_deferred_run_is_also_a_run_of_the_design_that_frees_at_once() -> None:
    """It is more careful than it must be, and no wait differs: silent."""
    for seed in range(6):
        player = Player(load("vllm-after-47653"), random.Random(seed))
        found = conforms(player, player.play(120), load("vllm-after-46278"))
        assert found.verdict == "conforms", (seed, found.line())
