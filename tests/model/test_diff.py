"""What a review is told, and the matrix of what may overlap against a concrete engine."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import pytest

from kvsan.model.design import Design, Work
from kvsan.model.designs import load, names
from kvsan.model.proof import Difference, Proved, Refuted, Unknown, diff, overlap
from model.interpreter import Engine, simulate
from model.random_designs import random_design


@cache
def compare(a: str, b: str) -> Difference:
    return diff(load(a), load(b))


def through(found: Difference, pair: str) -> set[str]:
    (one,) = [one for one in (*found.lost, *found.gained) if str(one.pair) == pair]
    return {edge.name for edge in one.through}


def test_a_wait_that_went() -> None:
    found = compare("vllm-symmetric-barrier", "vllm-after-46278")
    assert isinstance(found.a, Proved)
    assert isinstance(found.b, Refuted)
    assert [edge.name for edge in found.removed] == ["load.after(compute_done)"]
    assert not any((found.added, found.other, found.gained, found.moved))
    assert [str(one.pair) for one in found.lost] == ["WAR forward -> load", "WAW forward -> load"]
    for one in found.lost:
        assert through(found, str(one.pair)) == {"load.after(compute_done)"}
    assert [(m.earlier, m.later, m.before, m.after) for m in found.meetings] == [
        ("forward", "load", "never", "same block")
    ]
    assert found.repairs is not None
    assert len(found.repairs.repairs) == 4


def test_a_wait_that_came() -> None:
    found = compare("vllm-after-46278", "vllm-symmetric-barrier")
    assert not found.lost
    assert through(found, "WAR forward -> load") == {"load.after(compute_done)"}
    assert [(m.before, m.after) for m in found.meetings] == [("same block", "never")]
    assert found.repairs is None


def test_nothing_changed() -> None:
    found = compare("vllm-after-46278", "vllm-after-46278")
    assert not any((found.removed, found.added, found.other, found.lost, found.gained, found.moved, found.meetings))


def test_a_weaker_wait_moves_protection_and_buys_overlap() -> None:
    found = compare("vllm-symmetric-barrier", "vllm-load-waits-previous-step")
    assert not any((found.lost, found.gained))
    assert {str(one.pair) for one in found.moved} == {"WAR forward -> load", "WAW forward -> load"}
    assert [(m.earlier, m.later, m.before, m.after) for m in found.meetings] == [
        ("forward", "load", "never", "other blocks")
    ]


def test_protection_moves_from_a_wait_to_three_deferrals() -> None:
    found = compare("vllm-symmetric-barrier", "vllm-after-47653")
    assert not any((found.lost, found.gained))
    moved = {str(one.pair): (len(one.before), len(one.after)) for one in found.moved}
    assert moved == {"WAR forward -> load": (1, 3), "WAW forward -> load": (1, 3)}
    assert "newly claimed: host-quiescent" in found.other


def test_a_deferral_that_was_forgotten() -> None:
    found = compare("vllm-after-47653", "vllm-after-45357")
    assert through(found, "WAW forward -> load") == {"window slides past: free=retired(newest)"}


def test_two_edges_that_only_together_make_the_difference() -> None:
    found = compare("vllm-belt-and-braces", "vllm-after-45357")
    assert {edge.name for edge in found.removed} == {
        "load.after(compute_done)",
        "window slides past: free=retired(newest)",
    }
    assert through(found, "WAW forward -> load") == {
        "load.after(compute_done)",
        "window slides past: free=retired(newest)",
    }
    design = load("vllm-belt-and-braces")
    both = diff(design, design.without("load.after(compute_done)", "preempt: free=retired(newest)"))
    assert all(len(one.through) == 2 for one in both.lost), "putting either back is enough"
    gained = diff(load("vllm-before-46278"), load("vllm-belt-and-braces"))
    assert through(gained, "RAW forward -> store") == {"store.after(compute_done)"}
    assert "load.after(compute_done)" in through(gained, "WAW forward -> load")


def test_several_deferrals_together() -> None:
    found = compare("vllm-after-46278", "vllm-after-47653")
    (war,) = [one for one in found.gained if str(one.pair) == "WAR forward -> load"]
    assert {edge.name for edge in war.through} == {
        f"{rule}: free=retired(newest)" for rule in ("request finished", "preempt", "window slides past")
    }, "without any one of them it could race"


def test_a_change_that_is_no_edge() -> None:
    found = compare("vllm-no-store-pin", "vllm-symmetric-barrier")
    assert not any((found.removed, found.added))
    assert "free: owner=none → owner=none & pin=none" in found.other
    assert all(not one.through and not one.together for one in found.gained)
    assert len(found.gained) == 3


def test_other_changes_are_in_words_and_in_a_fixed_order() -> None:
    found = compare("vllm-symmetric-barrier", "copier-symmetric")
    assert "queue 'load jobs' is new" in found.other
    assert "event 'prev_done' is gone" in found.other
    assert any(line.startswith("work 'load': on=load, writes=owner=want_load") for line in found.other)
    ahead = diff(load("vllm-synchronous"), replace(load("vllm-synchronous"), run_ahead="any"))
    assert ahead.other == ("run-ahead: 0 → any",)
    assert {str(one.pair) for one in ahead.lost} == {
        "RAW forward -> store",
        "WAW forward -> load",
        "WAR forward -> load",
    }


def test_a_design_without_a_verdict_takes_part() -> None:
    found = diff(load("vllm-symmetric-barrier"), load("vllm-after-46278"), cap=60)
    assert isinstance(found.a, Unknown)
    assert found.removed
    assert not found.lost


# ── the matrix ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Watching(Engine):
    """Notes which ops could have overlapped: issued with an earlier one not in their clock."""

    def __init__(self, design: Design, blocks: int, run_ahead: int) -> None:
        super().__init__(design, blocks, run_ahead)
        self.ops: list[tuple[str, int, str, frozenset[int]]] = []
        self.met: set[tuple[str, str, bool]] = set()

    def work(self, work: Work, cells: Iterable[int]) -> None:
        mine = frozenset(cells)
        super().work(work, mine)
        agent = work.on if work.on is not None else "host"
        clock = self.streams[agent] if work.on is not None else self.host
        for who, number, name, blocks in self.ops[-40:]:
            if clock.get(who, 0) < number:
                self.met.add((name, work.name, bool(blocks & mine)))
        self.ops.append((agent, self.counts[agent], work.name, mine))


def met(design: Design, dice: random.Random, plays: int) -> set[tuple[str, str, bool]]:
    out: set[tuple[str, str, bool]] = set()
    for _ in range(plays):
        engine = Watching(design, 3, dice.choice([0, 1, 2]) if design.run_ahead == "any" else design.run_ahead)
        simulate(engine, 200, dice)
        out |= engine.met
    return out


def holds(design: Design, dice: random.Random, plays: int) -> None:
    """What never may, never does."""
    may = overlap(design).may
    for earlier, later, same in met(design, dice, plays):
        assert may[earlier, later] != "never", (earlier, later)
        if same:
            assert may[earlier, later] == "same block", (earlier, later)


def simple(design: Design) -> bool:
    return not design.threads and not any(work.order == "any" for work in design.works())


@pytest.mark.parametrize("name", names())
def test_what_never_may_overlap_never_does(name: str) -> None:
    if simple(load(name)):
        holds(load(name), random.Random(name), 4)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_the_same_of_random_designs(first: int) -> None:
    for seed in range(first, first + 20):
        holds(random_design(seed), random.Random(seed), 1)


@pytest.mark.parametrize("name", ["vllm-symmetric-barrier", "vllm-load-waits-previous-step", "vllm-before-46278"])
def test_what_may_overlap_does_in_some_play(name: str) -> None:
    """The twin: the matrix is not just full."""
    design = load(name)
    seen = {(earlier, later) for earlier, later, _ in met(design, random.Random(7), 60)}
    assert seen == {pair for pair, may in overlap(design).may.items() if may != "never"}
