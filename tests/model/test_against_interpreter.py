"""The proof against a concrete engine that shares no code with it: N blocks, vector clocks, random play."""

from __future__ import annotations

import random

import pytest

from kvsan.model.design import Design
from kvsan.model.designs import load, names
from kvsan.model.proof import Refused, Refuted, verify
from kvsan.model.proof.actions import Action, System
from kvsan.model.proof.graph import explore
from kvsan.model.proof.search import Pair, search
from kvsan.model.proof.verdict import Proved
from model.interpreter import Engine, follow, simulate
from model.random_designs import random_design


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


def compare(seeds: range, plays: int) -> int:
    safe = 0
    for seed in seeds:
        safe += agrees(random_design(seed), random.Random(seed), plays)
    assert 0 < safe < len(seeds)
    return safe


def test_300_random_designs() -> None:
    safe = compare(range(300), plays=3)
    assert 50 < safe < 250


@pytest.mark.sweep
def test_3000_random_designs() -> None:
    compare(range(3000), plays=30)


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
def test_run_ahead_against_unbounded_in_many_designs() -> None:
    for seed in range(2000, 3000):
        depths(random_design(seed))


@pytest.mark.parametrize("name", names())
def test_run_ahead_against_unbounded_in_the_catalogue(name: str) -> None:
    design = load(name)
    if design.run_ahead == "any":
        depths(design)


def test_a_design_with_a_rule_that_can_never_happen_is_refused() -> None:
    from kvsan.model.design import Protocol

    p = Protocol("dead")
    compute = p.stream("compute")
    b = p.block(owner="none | running | lost")
    p.free(b.none)
    with p.step():
        compute.forward(reads=b.running)
    with p.scheduler() as may:
        may("allocate", when=b.none, then=b.running)
        may("finish", when=b.running, then=b.none)
        may("find again", when=b.lost, then=b.running)
    verdict = verify(p.design())
    assert isinstance(verdict, Refused)
    assert verdict.dead == ("rule 'find again'",)
