"""The oracle against traces whose answer is plain by hand, one rule at a time, with and without its edge.

Then the generators are held to what they promise, and the oracle to the ground truth of the recorded traces.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, find, given, settings

from oracle import Graph, Op, Pair, Truth, blocks, ids, truth
from random_traces import CAREFUL, ORDERING, random_trace, without
from trace_strategies import traces

TRACES = Path(__file__).parents[1] / "checker/kvsan/checker/data/traces"
STREAMS: Op = {
    "a": {},
    "b": {},
    "L": {"kind": "legacy"},
    "M": {"kind": "legacy"},
    "B": {"kind": "blocking"},
    "P": {"kind": "per-thread"},
    "far": {"device": 1},
    "farB": {"device": 1, "kind": "blocking"},
}


def trace(text: str, start: str = "fresh") -> tuple[Op, list[Op]]:
    """Ops from `what key=value`; `by` is h0 unless given; `W`, `R`, `C` write, read, update block 0 of p."""
    ops: list[Op] = []
    for line in filter(None, (part.strip() for part in text.replace(";", "\n").splitlines())):
        what, *words = line.split()
        op: Op = {"op": what, "by": "h0"} | dict(word.split("=", 1) for word in words)
        if what in ("W", "R", "C"):
            op |= {"op": "access", "label": what, "reads": {}, "writes": {}}
            op |= {key: {"p": "0"} for key, kinds in (("reads", "RC"), ("writes", "WC")) if what in kinds}
        if "device" in op:
            op["device"] = int(op["device"])
        if what == "poll":
            op["done"] = op["done"] == "true"
        ops.append(op)
    return {"kvsan_trace": 1, "pools": {"p": 4}, "streams": STREAMS, "start": start}, ops


def kinds(text: str, start: str = "fresh") -> list[str]:
    """The kinds of the pairs of a hand trace, sorted."""
    return sorted(pair.kind for pair in truth(*trace(text, start)).pairs)


RULES = {  # rule -> (with the edge: ordered, without it: racy)
    "stream order": ("W on=a; R on=a", "W on=a; R on=b"),
    "undeclared streams order nothing else": ("W on=new; W on=new", "W on=new; W on=newer"),
    "record and wait": (
        "W on=a; record on=a event=e; wait on=b event=e; R on=b",
        "record on=a event=e; W on=a; wait on=b event=e; R on=b",
    ),
    "wait takes the record of its call": (
        "W on=a; record on=a event=e; wait on=b event=e; record on=far event=e; R on=b",
        "W on=a; record on=a event=e; record on=far event=e; wait on=b event=e; R on=b",
    ),
    "wait on a never-recorded event": (
        "W on=b; wait on=b event=e; R on=b",
        "W on=a; wait on=b event=e; R on=b",
    ),
    "a later record does not reach back": (
        "W on=a; record on=a event=e; wait on=b event=e; R on=b",
        "W on=a; wait on=b event=e; record on=a event=e; R on=b",
    ),
    "sync of an event": (
        "W on=a; record on=a event=e; sync event=e; R",
        "W on=a; record on=a event=e; R",
    ),
    "issue gives the stream the host's past": (
        "W on=a; sync stream=a; R on=b",
        "W on=a; sync stream=a by=h1; R on=b",
    ),
    "issue of any op does": (
        "W on=a; sync stream=a by=h1; wait on=b event=never by=h1; R on=b",
        "W on=a; wait on=b event=never by=h1; sync stream=a by=h1; R on=b",
    ),
    "issue of a record does": (
        "W on=a; sync stream=a by=h1; record on=b event=e by=h1; R on=b",
        "W on=a; record on=b event=e by=h1; sync stream=a by=h1; R on=b",
    ),
    "an asynchronous op gives the host nothing": ("W on=a; sync stream=a; W", "W on=a; W"),
    "a successful poll": (
        "W on=a; record on=a event=e; poll event=e done=true; R on=b",
        "W on=a; record on=a event=e; poll event=e done=false; R on=b",
    ),
    "sync of a device": ("W on=a; sync device=0; R on=far", "W on=a; sync device=1; R on=far"),
    "sync of a device reaches undeclared streams": ("W on=x; sync device=0; R", "W on=x; sync device=1; R"),
    "put and get": (
        "W; put token=t; get token=t by=h1; R by=h1",
        "put token=t; W; get token=t by=h1; R by=h1",
    ),
    "a token is got by several": (
        "W; put token=t; get token=t by=h1; get token=t by=h2; R by=h2",
        "W; put token=t; get token=t by=h1; R by=h2",
    ),
    "host program order": ("W by=h0; W by=h0", "W by=h0; W by=h1"),
    "host access before a launch": ("W; R on=a", "W by=h1; R on=a"),
    "drop forgets, edges stay": (
        "W on=a; record on=a event=e; wait on=b event=e; drop event=e; R on=b",
        "W on=a; record on=a event=e; drop event=e; wait on=b event=e; R on=b",
    ),
    "legacy after blocking": ("W on=B; R on=L", "W on=a; R on=L"),
    "legacy after per-thread": ("W on=P; R on=L", "W on=P; R on=B"),
    "blocking after legacy": ("W on=L; R on=B", "W on=farB; R on=L"),
    "two blocking streams around a legacy one": ("W on=B; C on=L; R on=P", "R on=L; W on=B; R on=P"),
    "legacy wait is a barrier": (
        "W on=B; wait on=L event=never; R on=P",
        "W on=B; record on=L event=e; R on=P",
    ),
    "a legacy barrier stays on its device": ("W on=L; R on=B", "W on=L; R on=farB"),
    "a record on a legacy stream gathers nothing": (
        "W on=B; wait on=L event=never; record on=L event=e; wait on=a event=e; R on=a",
        "W on=B; record on=L event=e; wait on=a event=e; R on=a",
    ),
    "a record on a legacy stream gives nothing on": (
        "W on=a; sync stream=a by=h1; wait on=L event=never by=h1; R on=B",
        "W on=a; sync stream=a by=h1; record on=L event=e by=h1; R on=B",
    ),
    "a barrier reaches a record on a blocking stream": (
        "W on=L; record on=B event=e; wait on=a event=e; R on=a",
        "record on=B event=e; W on=L; wait on=a event=e; R on=a",
    ),
    "sync of a blocking stream has no pending barrier": (
        "W on=L; wait on=B event=never; sync stream=B; R",
        "W on=L; sync stream=B; R",
    ),
    "two legacy streams": ("W on=L; wait on=B event=never; R on=M", "W on=L; R on=M"),
    "source order any": (
        "W on=a; sync stream=a; R on=a order=any",
        "W on=a; R on=a order=any",
    ),
    "an any-read ends when its op ends": (
        "R on=a order=any; record on=a event=e; wait on=b event=e; W on=b",
        "R on=a order=any; W on=b",
    ),
    "source order call": (
        "W on=a; sync stream=a; R on=a order=call",
        "W on=a; R on=a order=call",
    ),
    "a call-read is over when the call returns": (
        "R on=a order=call; W on=b",
        "R on=a order=call; W on=b by=h1",
    ),
    "an any-read is not": ("R on=a order=any; W on=a", "R on=a order=any; W"),
    "a host access ignores order": ("W; R order=any", "W by=h1; R order=any"),
}


@pytest.mark.parametrize("rule", RULES)
def test_rule_with_and_without_its_edge(rule: str) -> None:
    ordered, racy = RULES[rule]
    assert kinds(ordered) == []
    assert kinds(racy) != []


def test_get_without_put_orders_nothing_when_attached() -> None:
    assert kinds("W on=a; sync stream=a; get token=old by=h1; R by=h1", "attached") == ["RAW"]


def test_kinds_of_a_pair() -> None:
    assert kinds("W on=a; R on=b") == ["RAW"]
    assert kinds("R on=a; W on=b") == ["WAR"]
    assert kinds("W on=a; W on=b") == ["WAW"]
    assert kinds("R on=a; R on=b") == []
    assert kinds("C on=a; C on=b") == ["RAW", "WAR", "WAW"]


def test_an_update_whose_source_is_read_early_races_by_its_read_only() -> None:
    assert kinds("W on=a; C on=a order=any") == ["RAW"]


def test_assume_stream_order_changes_any_and_only_any() -> None:
    for order, found in (("any", 0), ("call", 1)):
        assert len(truth(*trace(f"W on=a; R on=a order={order}"), assume_stream_order=True).pairs) == found


def test_batch() -> None:
    header, ops = trace("W on=a")
    for writes, reads, wrong in (
        ("0,0", {"p": "1"}, {0}),
        ("0-1", {"p": "1-2"}, {1}),
        ("0", {"q": "0"}, set()),
    ):
        ops[0] |= {"batch": True, "writes": {"p": writes}, "reads": reads}
        assert truth(header, ops).batch == {(0, "p", block) for block in wrong}
        assert not truth(header, [ops[0] | {"batch": False}]).batch


@pytest.mark.parametrize(
    ("life", "remade"),
    [
        ("free alloc", True),
        ("free touch", False),
        ("alloc", False),
        ("free touch alloc", False),
        ("free", False),
    ],
)
def test_reuse_and_generation(life: str, remade: bool) -> None:
    between = ";".join(f"{what} pool=p ids=0-1" for what in life.split())
    header, ops = trace(f"R on=a; {between}; W on=b")
    found = truth(header, [*ops[:-1], ops[-1] | {"planned": 0}])
    assert found.pairs == {Pair(0, len(ops) - 1, "WAR", "p", 0, remade)}
    assert found.gen == ({(len(ops) - 1, "p", 0)} if remade else set())


def test_generation_counts_from_the_plan() -> None:
    header, ops = trace("free pool=p ids=0; alloc pool=p ids=0; W on=a planned=0")
    assert not truth(header, [*ops[:2], ops[2] | {"planned": 0}]).gen


def test_first_names_the_latest_earlier_op_of_each_kind_at_the_first_racing_op() -> None:
    found = truth(*trace("W on=a; R on=a; W on=a; C on=b; W on=L"))
    assert found.first() == {("p", 0): (3, {"RAW": 2, "WAR": 1, "WAW": 2})}


def test_ids() -> None:
    assert ids("1-3,2,7") == [1, 2, 3, 2, 7]


# the generators -------------------------------------------------------------------------------------------


def assert_legal(header: Op, ops: list[Op]) -> None:
    """What TRACE.md forbids and a generator could get wrong."""
    put: set[str] = set()
    live: set[tuple[str, int]] = set()
    for index, op in enumerate(ops):
        if op["op"] == "put":
            assert op["token"] not in put
            put.add(op["token"])
        elif op["op"] == "get":
            assert op["token"] in put or header.get("start") == "attached"
        elif op["op"] in ("alloc", "touch", "free"):
            chosen = [(op["pool"], number) for number in ids(op["ids"])]
            assert chosen
            assert all((block in live) == (op["op"] == "free") for block in chosen)
            live.symmetric_difference_update(chosen)
        elif op["op"] == "access":
            assert 0 <= op.get("planned", 0) < max(index, 1)
            for key in ("reads", "writes"):
                named = blocks(op, key)
                assert op.get("batch") or len(set(named)) == len(named)
                assert all(number < header["pools"][pool] for pool, number in named)


def test_random_traces_are_legal_repeatable_and_half_of_them_clean() -> None:
    clean = 0
    for seed in range(600):
        header, ops = random_trace(seed)
        assert random_trace(seed) == (header, ops)
        assert_legal(header, ops)
        assert 8 <= len(ops) <= 60
        clean += truth(header, ops).clean
    assert 240 <= clean <= 360


def test_clean_random_traces_need_their_edges() -> None:
    conflicts: list[int] = []
    needed = Counter[str]()
    for seed in range(200):
        header, ops = random_trace(seed)
        if truth(header, ops).clean:
            touches = Graph(header)
            for op in ops:
                touches.add(op)
            conflicts.append(
                sum(
                    1
                    for block in touches.touches.values()
                    for j, late in enumerate(block)
                    for early in block[:j]
                    if early.write is not None or late.write is not None
                )
            )
            for index, op in enumerate(ops):
                if op["op"] in ORDERING and truth(header, without(header, ops, index)).pairs:
                    needed[op["op"]] += 1
    assert sum(conflicts) > 15 * len(conflicts)
    assert all(needed[what] >= 20 for what in ORDERING)


@given(traces())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_drawn_traces_are_legal(drawn: tuple[Op, list[Op]]) -> None:
    assert_legal(*drawn)


@given(traces(style=CAREFUL))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_careful_traces_are_clean(drawn: tuple[Op, list[Op]]) -> None:
    assert truth(*drawn) == Truth(frozenset(), frozenset(), frozenset())


def test_drawn_traces_shrink() -> None:
    header, ops = find(traces(), lambda drawn: any(p.kind == "WAR" for p in truth(*drawn).pairs))
    assert len(ops) == 2
    assert len(header["streams"]) == 2


# the recorded traces --------------------------------------------------------------------------------------

RECORDED: dict[str, tuple[int, dict[str, int], int, int, int | None]] = {
    # trace -> ops, pairs by kind, racy (op, kind), racy GPU blocks, first racy op
    "none": (6735, {"RAW": 2922, "WAR": 14, "WAW": 5}, 30, 1014, 36),
    "none-graphs": (6735, {"RAW": 2922, "WAR": 14, "WAW": 5}, 30, 1014, 36),
    "store": (7260, {"RAW": 2823, "WAR": 14, "WAW": 5}, 28, 1014, 39),
    "load": (6783, {"RAW": 2829}, 25, 1014, 36),
    "all": (7308, {"RAW": 2823}, 24, 1014, 39),
    "fixed": (7308, {}, 0, 0, None),
}
IN_STREAM_ORDER: dict[str, tuple[dict[str, int], int | None]] = {
    "store": ({"WAR": 14, "WAW": 5}, 2137),
    "load": ({"RAW": 2829}, 36),
    "all": ({}, None),
}
COPY_OF = {"RAW": "store", "WAR": "load", "WAW": "load"}


@pytest.mark.sweep
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_trace(name: str) -> None:
    with gzip.open(TRACES / f"vllm-0.23.0-{name}.jsonl.gz", "rt") as lines:
        header, *ops = map(json.loads, lines)
    count, by_kind, racy, gpu, first = RECORDED[name]
    found = truth(header, ops)
    assert len(ops) == count
    assert Counter(pair.kind for pair in found.pairs) == by_kind
    for pair in found.pairs:
        assert (ops[pair.earlier]["label"], ops[pair.later]["label"]) == ("forward", COPY_OF[pair.kind])
    assert len({(pair.later, pair.kind) for pair in found.pairs}) == racy
    assert len({pair.block for pair in found.pairs if pair.pool == "gpu"}) == gpu
    assert min((pair.later for pair in found.pairs), default=None) == first
    assert not found.gen
    assert not found.batch
    by_kind, first = IN_STREAM_ORDER.get(name, (by_kind, first))
    found = truth(header, ops, assume_stream_order=True)
    assert Counter(pair.kind for pair in found.pairs) == by_kind
    assert min((pair.later for pair in found.pairs), default=None) == first
