"""A debug session reports a block once for each edge that it misses: true pairs only, none twice, memory bounded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kvsan.checker import check
from kvsan.checker.findings import EDGES_APART
from kvsan.checker.judge import Report, check_trace
from kvsan.checker.online import Online
from kvsan.checker.trace import from_objects
from random_traces import random_trace

APART = ("BATCH", "GEN")
Pair = tuple[str, str, int, int, int]


def split(report: Report) -> set[Pair]:
    return {
        (h.kind.value, h.pool, h.earlier.op, h.later.op, block)
        for h in report.hazards
        for block in h.blocks
        if h.kind not in APART
    }


@pytest.mark.parametrize("start", range(0, 600, 150))
def test_every_report_is_a_pair_without_order(start: int) -> None:
    more = silent = 0
    for seed in range(start, start + 150):
        header, objects = random_trace(seed)
        first, every = check(header, objects), check(header, objects, all_pairs=True)
        live = check_trace(from_objects(header, objects), each_edge=True)
        found = split(live)
        assert split(first) <= found <= split(every), f"seed {seed}"
        assert live.verdict.name == first.verdict.name, f"seed {seed}"
        agents = edges_of(live, objects)
        assert len(set(agents)) == len(agents), f"seed {seed}: an edge is named twice for a block"
        more += len(found) > len(split(first))
        silent += not found
    assert more > 5
    assert silent > 30


def edges_of(report: Report, objects: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """(kind, pool, block, who came before, who after). Reads with `order: call` are their thread's own."""

    def agent(op: int, *, reads: bool) -> str:
        what = objects[op]
        own = what.get("on") is None or (reads and what.get("order") == "call")
        return f"thread {what['by']}" if own else f"stream {what['on']}"

    return [
        (h.kind, h.pool, block, agent(h.earlier.op, reads=h.kind == "WAR"), agent(h.later.op, reads=h.kind == "RAW"))
        for h in report.hazards
        for block in h.blocks
        if h.kind not in APART
    ]


STREAMS = ("compute", "store", "load")


def access(on: str, *, reads: str = "", writes: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {"op": "access", "by": "h0", "on": on, "label": on, "reads": {}, "writes": {}}
    out["reads"] |= {"gpu": reads} if reads else {}
    out["writes"] |= {"gpu": writes} if writes else {}
    return out


def edge(source: str, target: str, event: str) -> list[dict[str, Any]]:
    made = {"by": "h0", "event": event}
    return [{"op": "record", "on": source, **made}, {"op": "wait", "on": target, **made}]


def header() -> dict[str, Any]:
    return {"kvsan_trace": 1, "pools": {"gpu": 8}, "streams": {name: {} for name in STREAMS}}


@pytest.mark.parametrize("store_fence", [True, False])
@pytest.mark.parametrize("load_fence", [True, False])
def test_one_missing_fence_does_not_hide_the_other(store_fence: bool, load_fence: bool) -> None:
    ops = [access("compute", reads="1-3", writes="1")]
    ops += edge("compute", "store", "s") if store_fence else []
    ops += [access("store", reads="1")]
    ops += edge("store", "load", "back")  # so that the load misses compute alone
    ops += edge("compute", "load", "l") if load_fence else []
    ops += [access("load", writes="1-2")]
    live = check_trace(from_objects(header(), ops), each_edge=True)
    found = {(h.kind.value, h.earlier.on, h.later.on, str(h.blocks)) for h in live.hazards}
    expected = set()
    if not store_fence:
        expected |= {("RAW", "compute", "store", "1")}
    if not load_fence and not store_fence:
        expected |= {("WAR", "compute", "load", "1-2"), ("WAW", "compute", "load", "1")}
    if not load_fence and store_fence:  # the fence of the store has told the load's stream, by way of `back`
        expected = set()
    assert found == expected
    if not load_fence and not store_fence:  # `kvsan check` keeps to its contract: block 1 has raced before
        plain = check(header(), ops)
        assert {(h.kind.value, str(h.blocks)) for h in plain.hazards} == {("RAW", "1"), ("WAR", "2")}


def test_many_streams_take_bounded_memory_and_say_nothing_wrong() -> None:
    """Beyond the bound edges of a pool are told apart by kind alone."""
    names = [f"s{n}" for n in range(3 * EDGES_APART)]
    online = Online({"gpu": 8000}, each_edge=True)
    trace = from_objects(
        {"kvsan_trace": 1, "pools": {"gpu": 8000}, "streams": {name: {} for name in names}},
        [access(name, writes="5-4000") for name in names],
    )
    bare = Online({"gpu": 8000})
    reported = [len(online.feed(number, op)) for number, op in enumerate(trace)]
    for number, op in enumerate(trace):
        bare.feed(number, op)
    assert reported[0] == 0
    assert reported.count(1) == EDGES_APART - 2  # those kept apart, and the first of the rest
    assert online.nbytes() - bare.nbytes() <= EDGES_APART * 1000


def test_many_streams_in_order_are_silent() -> None:
    names = [f"s{n}" for n in range(EDGES_APART + 8)]
    ops = [access(names[0], writes="5")]
    for before, name in pairwise(names):
        ops += [*edge(before, name, name), access(name, writes="5")]
    trace = from_objects({"kvsan_trace": 1, "pools": {"gpu": 8}, "streams": {name: {} for name in names}}, ops)
    assert check_trace(trace, each_edge=True).hazards == ()
