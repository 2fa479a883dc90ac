"""Every alternative of every `fix`, applied to the trace, makes its pair vanish and makes no new one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from kvsan.checker import Report, check_trace, open_trace
from kvsan.checker.demo import RUNS, recorded
from kvsan.checker.fix import apply
from kvsan.checker.trace import Header, Trace, from_objects
from kvsan.model import Fix, Hazard, Kind, Op
from random_traces import random_trace

Pair = tuple[Kind, str, int, int, int]


class Given(Trace):
    """A trace of ops that are there already."""

    def __init__(self, header: Header, ops: list[Op]) -> None:
        super().__init__("given", header, [], lambda: 0)
        self._ops = ops

    def __iter__(self) -> Iterator[Op]:
        return iter(self._ops)


def judge(header: Header, ops: list[Op]) -> Report:
    return check_trace(Given(header, ops), all_pairs=True)


def pairs(report: Report, moved: list[int] | None = None) -> set[Pair]:
    """(kind, pool, block, earlier, later); with `moved`, in the numbers of the trace before."""
    back = {new: old for old, new in enumerate(moved)} if moved else None

    def number(op: int) -> int:
        return op if back is None else back.get(op, -1)

    return {
        (hazard.kind, hazard.pool, block, number(hazard.earlier.op), number(hazard.later.op))
        for hazard in report.hazards
        for block in hazard.blocks
    }


def of(hazard: Hazard) -> set[Pair]:
    return {(hazard.kind, hazard.pool, block, hazard.earlier.op, hazard.later.op) for block in hazard.blocks}


def mends(header: Header, ops: list[Op], before: set[Pair], hazard: Hazard, fix: Fix) -> None:
    changed, moved = apply(ops, hazard, fix)
    after = pairs(judge(header, changed), moved)
    assert not of(hazard) & after, f"{fix} leaves {hazard}"
    assert {pair for pair in after if -1 not in pair[3:]} <= before, f"{fix} for {hazard} makes a new pair"


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_on_random_traces(start: int) -> None:
    for seed in range(start, start + 50):
        trace = from_objects(*random_trace(seed))
        ops = list(trace)
        report = judge(trace.header, ops)
        before = pairs(report)
        for hazard in report.hazards:
            assert hazard.fix, f"seed {seed}: {hazard} has no fix"
            for fix in hazard.fix:
                try:
                    mends(trace.header, ops, before, hazard, fix)
                except AssertionError as error:
                    raise AssertionError(f"seed {seed}: {error}") from error


def test_every_form_of_fix_is_met_by_the_random_traces() -> None:
    """Else the test above proves less than it says."""
    forms: Counter[str] = Counter()
    for seed in range(300):
        trace = from_objects(*random_trace(seed))
        for hazard in judge(trace.header, list(trace)).hazards:
            forms.update("+".join(fix.document()) for fix in hazard.fix)
    assert set(forms) == {
        "record+wait",
        "record+wait+order",
        "record+sync",
        "handoff",
        "order",
        "pin",
        "split",
    }, forms


@pytest.mark.parametrize("run", ["none", "store", "load"])
def test_on_a_recorded_trace(run: str) -> None:
    """One hazard of each sort of each recorded run that races."""
    assert run in RUNS
    with recorded(run) as path, open_trace(path) as trace:
        ops = list(trace)
        header = trace.header
    report = judge(header, ops)
    before = pairs(report)
    sorts = {(h.kind, h.earlier.label, h.later.label, len(h.fix), h.reuse): h for h in reversed(report.hazards)}
    assert sorts
    for hazard in sorts.values():
        for fix in hazard.fix:
            mends(header, ops, before, hazard, fix)


def test_the_weakest_comes_first() -> None:
    """What costs nothing, then what the device waits for, then what blocks a host thread."""
    rank = {"order": 0, "record+wait": 1, "record+wait+order": 1, "handoff": 2, "record+sync": 3}
    for seed in range(200):
        trace = from_objects(*random_trace(seed))
        for hazard in judge(trace.header, list(trace)).hazards:
            if hazard.kind in (Kind.RAW, Kind.WAR, Kind.WAW):
                ranks = [rank["+".join(fix.document())] for fix in hazard.fix]
                assert ranks == sorted(ranks), f"seed {seed}: {hazard}"
