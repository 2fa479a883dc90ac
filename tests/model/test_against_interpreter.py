"""The proof against a concrete engine that shares no code with it: N blocks, vector clocks, random play."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from kvsan.model.design import Design, Work
from kvsan.model.designs import load, names
from kvsan.model.proof import Refuted, verify
from kvsan.model.proof.actions import Action
from kvsan.model.proof.graph import explore
from kvsan.model.proof.search import Pair, search
from kvsan.model.proof.system import System
from kvsan.model.proof.verdict import Proved
from model.interpreter import Engine, follow, simulate
from model.random_designs import random_design
from model.test_soundness import held


def plain(actions: tuple[Action, ...]) -> list[tuple[str, str, bool]]:
    return [(action.kind, action.of, action.touch is not None) for action in actions]


def agrees(design: Design, dice: random.Random, plays: int) -> bool:
    """Holds the verdict to the engine; returns whether the design is free of races."""
    verdict = verify(design)
    assert isinstance(verdict, Proved | Refuted), verdict
    for race in verdict.findings.races:
        engine = Engine(design, blocks=1, run_ahead=99 if race.run_ahead is None else race.run_ahead)
        follow(engine, plain(race.schedule.actions))
        assert (race.pair.kind.value, race.pair.earlier, race.pair.later, 0) in engine.races, race.pair
    possible = {(race.pair.kind.value, race.pair.earlier, race.pair.later) for race in verdict.findings.races}
    for _ in range(plays):
        depth = dice.choice([0, 1, 2, 4]) if design.run_ahead == "any" else design.run_ahead
        engine = Engine(design, blocks=3, run_ahead=depth)
        simulate(engine, 150, dice)
        assert {race[:3] for race in engine.races} <= possible
    return not possible


def compare(seeds: range, plays: int) -> None:
    safe = sum(agrees(random_design(seed), random.Random(seed), plays) for seed in seeds)
    assert len(seeds) / 6 < safe < len(seeds) * 5 / 6, f"{safe} of {len(seeds)} are safe: the drawing says little"


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_300_random_designs(first: int) -> None:
    compare(range(first, first + 100), plays=2)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(10_000, 12_000, 100))
def test_2000_random_designs(first: int) -> None:
    compare(range(first, first + 100), plays=20)


@pytest.mark.parametrize("hold", [True, False])
def test_a_guard_that_a_held_block_satisfies(hold: bool) -> None:
    assert not agrees(held(hold).design(), random.Random(1), plays=40)


@pytest.mark.parametrize("name", names())
def test_the_catalogue(name: str) -> None:
    design = load(name)
    if not design.threads:
        agrees(design, random.Random(name), plays=20)


def pairs(design: Design, run_ahead: int | None) -> frozenset[Pair]:
    system = System(design, run_ahead)
    return frozenset(search(system, explore(system, 400_000), 400_000).races)


def depths(design: Design) -> None:
    """More run-ahead never mends a race; from some depth on, no more are added, and unbounded is that limit."""
    found = [pairs(design, depth) for depth in (0, 1, 2, 4)]
    assert found[0] <= found[1] <= found[2] <= found[3]
    assert found[3] == pairs(design, None)


@pytest.mark.parametrize("seed", range(1000, 1040))
def test_run_ahead_0_1_2_4_against_unbounded(seed: int) -> None:
    depths(random_design(seed))


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(20_000, 21_000, 100))
def test_run_ahead_against_unbounded_in_many_designs(first: int) -> None:
    for seed in range(first, first + 100):
        depths(random_design(seed))


@pytest.mark.parametrize("name", names())
def test_run_ahead_against_unbounded_in_the_catalogue(name: str) -> None:
    design = load(name)
    if design.run_ahead == "any":
        depths(design)


# ── which pairs occur at all ──────────────────────────────────────────────────────────────────────────────────────────


class Noting(Engine):
    """Notes which works meet on a block, ordered or not."""

    def __init__(self, design: Design, blocks: int, run_ahead: int) -> None:
        super().__init__(design, blocks, run_ahead)
        self.met: set[tuple[str, str, str]] = set()
        self.past: list[set[tuple[str, bool]]] = [set() for _ in range(blocks)]

    def work(self, work: Work, cells: Iterable[int]) -> None:
        mine = list(cells)
        modes = {at: work.mode(self.cells[at].facets) for at in mine}
        super().work(work, mine)
        for at, (reads, writes) in modes.items():
            for earlier, wrote in self.past[at]:
                self.met |= {("RAW", earlier, work.name)} if reads and wrote else set()
                self.met |= {("WAW" if wrote else "WAR", earlier, work.name)} if writes else set()
            self.past[at] |= ({(work.name, False)} if reads else set()) | ({(work.name, True)} if writes else set())


def occurring(design: Design) -> set[tuple[str, str, str]]:
    verdict = verify(design)
    assert isinstance(verdict, Proved | Refuted), verdict
    listed = [*verdict.findings.kept_apart, *(race.pair for race in verdict.findings.races)]
    return {(pair.kind.value, pair.earlier, pair.later) for pair in listed}


def met(design: Design, dice: random.Random, plays: int) -> set[tuple[str, str, str]]:
    out: set[tuple[str, str, str]] = set()
    for _ in range(plays):
        engine = Noting(design, 2, dice.choice([0, 1, 2]) if design.run_ahead == "any" else design.run_ahead)
        simulate(engine, 400, dice)
        out |= engine.met
    return out


@pytest.mark.parametrize("name", [name for name in names() if not load(name).threads])
def test_the_pair_table_of_the_catalogue_is_what_meets(name: str) -> None:
    assert met(load(name), random.Random(name), 8) == occurring(load(name))


def test_a_pair_that_is_ordered_at_once_meets_and_one_that_no_rule_allows_does_not() -> None:
    assert ("WAR", "load", "fill") in occurring(load("lmcache-staging"))
    table = occurring(load("vllm-no-store-pin"))
    assert ("WAR", "store", "load") in table, "unpinned, the source of a store is handed out again"
    assert ("RAW", "store", "load") not in table, "a store writes no block"


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_what_meets_in_random_designs_is_in_the_table(first: int) -> None:
    for seed in range(first, first + 20):
        design = random_design(seed)
        assert met(design, random.Random(seed), 1) <= occurring(design)
