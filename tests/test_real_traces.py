"""The six recorded traces of vLLM 0.23.0 on an H200, against the ground truth of TRACE.md: to the digit.

The truth came from a brute-force closure that shares no code with this project.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kvsan.checker import check, check_trace, open_trace
from kvsan.checker.demo import recorded
from kvsan.checker.live import Finding, LiveCheck, totals
from kvsan.model import Kind
from kvsan.model.hazard import Hazard

#        ops, (RAW, WAR, WAW), racy (op, kind), racy GPU blocks, first racy op
TRUTH = {
    "none": (6735, (2922, 14, 5), 30, 1014, 36),
    "none-graphs": (6735, (2922, 14, 5), 30, 1014, 36),
    "store": (7260, (2823, 14, 5), 28, 1014, 39),
    "load": (6783, (2829, 0, 0), 25, 1014, 36),
    "all": (7308, (2823, 0, 0), 24, 1014, 39),
    "fixed": (7308, (0, 0, 0), 0, 0, None),
}
ASSUMED: dict[str, tuple[tuple[int, int, int], int | None]] = {
    "none": ((2922, 14, 5), 36),
    "none-graphs": ((2922, 14, 5), 36),
    "store": ((0, 14, 5), 2137),
    "load": ((2829, 0, 0), 36),
    "all": ((0, 0, 0), None),
    "fixed": ((0, 0, 0), None),
}
LABELS = {Kind.RAW: ("forward", "store"), Kind.WAR: ("forward", "load"), Kind.WAW: ("forward", "load")}


@pytest.mark.parametrize("run", TRUTH)
def test_every_pair(run: str) -> None:
    ops, pairs, racy, blocks, first = TRUTH[run]
    with recorded(run) as path:
        report = check(path, all_pairs=True)
    assert report.ops == ops
    want = {
        (kind.value, "gpu", *LABELS[kind]): count
        for kind, count in zip((Kind.RAW, Kind.WAR, Kind.WAW), pairs, strict=True)
        if count
    }
    assert report.totals() == want
    assert len({(hazard.later.op, hazard.kind) for hazard in report.hazards}) == racy
    assert len({block for hazard in report.hazards for block in hazard.blocks}) == blocks
    assert min((hazard.later.op for hazard in report.hazards), default=None) == first
    assert report.verdict.name == ("racy" if blocks else "clean")


@pytest.mark.parametrize("run", ASSUMED)
def test_every_pair_if_the_copy_engine_is_trusted(run: str) -> None:
    pairs, first = ASSUMED[run]
    with recorded(run) as path:
        report = check(path, all_pairs=True, assume_stream_order=True)
    totals = report.totals()
    found = tuple(totals.get((kind.value, "gpu", *LABELS[kind]), 0) for kind in (Kind.RAW, Kind.WAR, Kind.WAW))
    assert found == pairs
    assert sum(totals.values()) == sum(pairs)
    assert min((hazard.later.op for hazard in report.hazards), default=None) == first


@pytest.mark.parametrize("run", TRUTH)
def test_first_racing_op_of_every_block(run: str) -> None:
    """Without --all a block appears at the first op at which --all has a pair of it, and nowhere else."""
    with recorded(run) as path:
        every, first = check(path, all_pairs=True), check(path)
    earliest: dict[tuple[str, int], int] = {}
    for hazard in every.hazards:
        for block in hazard.blocks:
            earliest.setdefault((hazard.pool, block), hazard.later.op)
    found = {(hazard.pool, block): hazard.later.op for hazard in first.hazards for block in hazard.blocks}
    assert found == earliest
    assert first.verdict.name == every.verdict.name


def split(hazards: Iterable[Hazard]) -> set[tuple[str, str, int, int, int]]:
    return {(h.kind.value, h.pool, h.earlier.op, h.later.op, block) for h in hazards for block in h.blocks}


def blocks_of(pairs: set[tuple[str, str, int, int, int]]) -> set[tuple[str, str, int]]:
    return {(kind, pool, block) for kind, pool, *_, block in pairs}


@pytest.mark.parametrize("run", TRUTH)
def test_a_debug_session_names_every_missing_fence(run: str) -> None:
    """In 0.23.0 nearly every block races first as RAW: that must not hide the WAR and WAW of the loads."""
    _, pairs, *_ = TRUTH[run]
    with recorded(run) as path:
        every = check(path, all_pairs=True)
        with open_trace(path) as trace:
            live = check_trace(trace, each_edge=True)
    kinds = [kind for kind, count in zip((Kind.RAW, Kind.WAR, Kind.WAW), pairs, strict=True) if count]
    assert {hazard.kind for hazard in live.hazards} == set(kinds)
    found, true = split(live.hazards), split(every.hazards)
    assert found <= true  # each is a pair without order
    assert blocks_of(found) == blocks_of(true)  # the edges differ by kind here: each block shows each of its own
    assert len(blocks_of(found)) == len(found)  # once


@pytest.mark.parametrize("run", TRUTH)
def test_a_live_check_says_so_as_it_goes(run: str) -> None:
    _, pairs, *_ = TRUTH[run]
    said: list[Finding] = []
    live = LiveCheck(said.extend)
    with recorded(run) as path, open_trace(path) as trace:
        for name, size in trace.header.pools.items():
            live.pool(name, size)
        for name, stream in trace.header.streams.items():
            live.stream(name, stream)
        for number, op in enumerate(trace):
            live.take(number, op)
    kinds = [kind.value for kind, count in zip((Kind.RAW, Kind.WAR, Kind.WAW), pairs, strict=True) if count]
    assert sorted(found.hazard.kind.value for found in said) == sorted(kinds)  # one report for each missing fence
    assert sorted({str(row["kind"]) for row in totals(live.findings.real())}) == sorted(kinds)
