"""What is written in front of an incident restores what the checker knew: no hazard more, none less."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvsan.checker.online import Online
from kvsan.checker.state import State, renumbered, replay
from kvsan.checker.trace import from_objects
from kvsan.model.hazard import Hazard
from kvsan.model.ops import Get, Op, Sync
from random_traces import random_trace

Found = tuple[int, str, str, int, int | None, str | None, bool]


def split(hazards: list[Hazard], number: int) -> set[Found]:
    """Hazards a block: what must be the same, whatever the ops are numbered. (Of the op at which a `GEN` was planned
    only words are known, and words are not restored.)
    """
    return {
        (number, h.kind.value, h.pool, block, None, None if h.kind == "GEN" else h.earlier.on or h.earlier.by, h.reuse)
        for h in hazards
        for block in h.blocks
    }


def out_of_reach(header: dict[str, Any], ops: list[Op]) -> bool:
    """What the module says it does not restore: tokens taken again, and a legacy barrier that is still to be met."""
    tokens = [op.token for op in ops if isinstance(op, Get)]
    legacy = any(facts.get("kind") == "legacy" for facts in header["streams"].values())
    looked = any(isinstance(op, Sync) and op.event is None for op in ops)
    many = sum(facts.get("kind") == "legacy" for facts in header["streams"].values()) > 1
    return len(set(tokens)) < len(tokens) or many or (legacy and looked)


def compare(header: dict[str, Any], objects: list[dict[str, Any]], cut: int, shift: int = 0) -> tuple[int, int]:
    """Feeds a run to its end, and the rest of it behind a restored state; the hazards that both found, and lines."""
    trace = from_objects(header, objects)
    ops = list(trace)
    run = Online(trace.header.pools, trace.header.streams, attached=True, every=True)
    for number, op in enumerate(ops[:cut]):
        run.feed(number, op)
    state = State.of(run, cut)
    raced = {(pool, b) for pool, lives in run.lives.items() for b in range(lives.size) if not fresh(run, pool, b)}
    prefix = replay(state, run).lines
    lines = [*prefix, *enumerate(ops[cut:], cut)]
    again = Online(trace.header.pools, trace.header.streams, attached=True, every=True)
    expected: set[Found] = set()
    got: set[Found] = set()
    for number, (was, op) in enumerate(renumbered(lines)):
        hazards = again.feed(number, op)
        if number < len(prefix):
            assert not hazards, f"the prefix races at {op}: {hazards}"
        else:
            assert was is not None
            got |= split(hazards, was)
    for number, op in enumerate(ops[cut:], cut):
        expected |= split(run.feed(number, op), number)
    apart = ("BATCH", "GEN")
    got = {f for f in got if (f[2], f[3]) not in raced or f[1] in apart}
    assert got == expected, f"cut {cut}: missing {sorted(expected - got)}, too many {sorted(got - expected)}"
    return len(got), len(prefix)


def fresh(run: Online, pool: str, block: int) -> bool:
    return bool(run.findings.raced(pool).fresh(np.array([block]))[0])


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_a_restored_state_finds_the_same(start: int) -> None:
    found = 0
    for seed in range(start, start + 100):
        header, objects = random_trace(seed)
        if out_of_reach(header, list(from_objects(header, objects))):
            continue
        for cut in {len(objects) // 3, 2 * len(objects) // 3}:
            found += compare(header, objects, cut)[0]
    assert found > 10


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_an_incident_shows_its_hazard_whatever_raced_before(start: int) -> None:
    """A debug session reports a block again for each edge that it misses: its incident must show that hazard, of all
    its blocks, and nothing may race in front.
    """
    shown = old = 0
    for seed in range(start, start + 100):
        header, objects = random_trace(seed)
        trace = from_objects(header, objects)
        ops = list(trace)
        if out_of_reach(header, ops):
            continue
        cut = len(ops) // 2
        run = Online(trace.header.pools, trace.header.streams, attached=True, each_edge=True)
        for number, op in enumerate(ops[:cut]):
            run.feed(number, op)
        state = State.of(run, cut)
        for number, op in enumerate(ops[cut:], cut):
            for hazard in run.feed(number, op):
                if hazard.kind in ("BATCH", "GEN"):
                    continue
                shown += 1
                old += hazard.earlier.op < cut and not all(fresh_in(state, hazard.pool, b) for b in hazard.blocks)
                show(trace.header, state, run, hazard, ops[cut : number + 1], seed)
    assert shown > 50
    assert old > 3, "no hazard of a block that had raced before the ring was tried"


def fresh_in(state: State, pool: str, block: int) -> bool:
    return bool(state.raced[pool].fresh(np.array([block]))[0])


def show(header: Any, state: State, run: Online, hazard: Hazard, ring: list[Op], seed: int) -> None:
    prefix = replay(state, run, hazard).lines
    again = Online(header.pools, header.streams, attached=True, each_edge=True)
    lines = list(renumbered([*prefix, *enumerate(ring, state.op)]))
    found: list[Hazard] = []
    for number, (_, op) in enumerate(lines):
        found = again.feed(number, op)
        assert number >= len(prefix) or not found, f"seed {seed}: the prefix races at {op}: {found}"
    wanted = split([hazard], hazard.later.op)
    assert wanted <= split(found, hazard.later.op), f"seed {seed}: {hazard} is not in {found}"
