"""What is written is read back equal: headers with their provenance, ops of every kind, plain and gzip."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsan.checker import Trace, TraceWriter, open_trace
from kvsan.checker.trace import from_objects
from kvsan.checker.trace.header import Header, header_from
from kvsan.checker.trace.writer import op_document
from kvsan.model.ops import Access, Alloc, Blocks, Drop, Free, Get, Op, Poll, Put, Record, Stream, Sync, Touch, Wait
from oracle import Op as Line
from random_traces import random_trace
from trace_strategies import traces

TRACES = sorted((Path(__file__).parents[1] / "checker/kvsan/checker/data/traces").glob("*.jsonl.gz"))
EVERY: list[Op] = [
    Access("h", "s", {"g": Blocks(((1, 5), (9, 10)))}, {"c": Blocks(((0, 1),))}, "x", "any", False, None, 3, "r", "a"),
    Access("h", None, {}, {"gpu": Blocks(((0, 1), (0, 1)))}, "", "call", True, 0, "s", 0, None, 0.5),
    Access("h", "s", {"gpu": Blocks(())}),
    Record("h", "s", "e", 0),
    Wait("h", "s", "e"),
    Sync("h", event="e"),
    Sync("h", stream="s", t=1),
    Sync("h", device=0),
    Sync("h", device="cuda:0"),
    Poll("h", "e", False),
    Poll("h", "e", True, 2),
    Put("h", "t"),
    Get("i", "t", 3),
    Alloc("h", "gpu", Blocks(((0, 9),))),
    Free("h", "gpu", Blocks(((5, 9), (0, 5)))),
    Touch("h", "gpu", Blocks(())),
    Drop("h", 'evil "name"\n\x1b[0m', 4),
]  # fmt: skip


def written(path: Path, trace: Trace) -> list[Op]:
    """Writes a trace and returns its ops."""
    ops = list(trace)
    with TraceWriter(path, trace.header) as out:
        for op in ops:
            out.write(op)
    return ops


def assert_same(path: Path, header: Header, ops: list[Op]) -> None:
    with open_trace(path) as again:
        assert again.header == header
        assert again.header.document() == header.document()
        assert list(again) == ops


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_random_traces(tmp_path: Path, name: str) -> None:
    for seed in range(60):
        trace = from_objects(*random_trace(seed))
        ops = written(tmp_path / name, trace)
        assert len(ops) == len(random_trace(seed)[1])
        assert_same(tmp_path / name, trace.header, ops)
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


@given(traces())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_drawn_traces(drawn: tuple[Line, list[Line]]) -> None:
    """Through a file that is the caller's: it stays open."""
    header, lines = drawn
    ops = list(from_objects(header, lines))
    file = io.BytesIO()
    with TraceWriter(file, header_from(header)) as out:
        for op in ops:
            out.write(op)
    head, *again = map(json.loads, file.getvalue().splitlines())
    assert list(from_objects(head, again)) == ops
    assert header_from(head) == header_from(header)


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_every_op(tmp_path: Path, name: str) -> None:
    header = Header({"gpu": 10, "g": 10, "c": 1})
    with TraceWriter(tmp_path / name, header) as out:
        for op in EVERY:
            out.write(op)
    assert_same(tmp_path / name, header, EVERY)
    assert {type(op) for op in EVERY} == set(Op.__args__)


def test_defaults_are_left_out() -> None:
    assert op_document(Access("h", "s", {}, {"gpu": Blocks(((0, 2),))})) == {
        "op": "access",
        "by": "h",
        "on": "s",
        "writes": {"gpu": "0-1"},
        "label": "",
    }
    assert op_document(Poll("h", "e", False)) == {"op": "poll", "by": "h", "event": "e", "done": False}


def with_defaults(line: bytes) -> Line:
    op: Line = json.loads(line)
    return {"order": "stream", "batch": False} | op if op["op"] == "access" else op


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
def test_recorded_traces_keep_every_key(tmp_path: Path, path: Path) -> None:
    again = tmp_path / "again.jsonl"
    with open_trace(path) as trace:
        written(again, trace)
    before, after = gzip.decompress(path.read_bytes()).splitlines(), again.read_bytes().splitlines()
    head, head_again = json.loads(before[0]), json.loads(after[0])
    head_again["expects"].pop("hooks")
    assert head_again == head
    assert list(map(with_defaults, after[1:])) == list(map(with_defaults, before[1:]))


header_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
counts = st.dictionaries(st.text(max_size=4), st.integers(0, 2**40), max_size=3)


@st.composite
def headers(draw: st.DrawFn) -> dict[str, Any]:
    """A legal header with provenance at every place that may hold some."""
    free = {f"my {key}": value for key, value in draw(st.dictionaries(st.text(max_size=4), header_values)).items()}
    head: dict[str, Any] = {"kvsan_trace": 1, "pools": draw(st.dictionaries(st.text(max_size=4), st.integers(0, 9999)))}
    if draw(st.booleans()):
        kinds = st.sampled_from(["nonblocking", "blocking", "legacy", "per-thread"])
        streams: dict[str, Any] = {}
        for name in draw(st.sets(st.text(max_size=4), max_size=3)):
            streams[name] = {f"my {key}": value for key, value in draw(counts).items()}
            if draw(st.booleans()):
                streams[name]["device"] = draw(st.integers(-3, 3) | st.text(max_size=6))
            if draw(st.booleans()):
                streams[name]["kind"] = draw(kinds)
        head["streams"] = streams
    optional = {
        "start": st.sampled_from(["fresh", "attached"]),
        "expects": st.fixed_dictionaries({}, optional={"streams": st.lists(st.text(max_size=4)), "hooks": counts}),
        "hooks": counts,
        "unseen": st.fixed_dictionaries({}, optional={"copies": st.integers(0, 9), "edges": st.integers(0, 9)}),
    }
    return free | head | draw(st.fixed_dictionaries({}, optional=optional))


@given(headers())
@settings(max_examples=200, deadline=None)
def test_headers(head: dict[str, Any]) -> None:
    header = header_from(head)
    document = json.loads(json.dumps(header.document()))
    assert header_from(document) == header
    assert {key: value for key, value in document.items() if key.startswith("my ")} == {
        key: value for key, value in head.items() if key.startswith("my ")
    }
    for name, stream in head.get("streams", {}).items():
        assert document["streams"][name] == {"device": 0, "kind": "nonblocking"} | stream


def test_the_same_ops_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        written(tmp_path / name, from_objects(*random_trace(3)))
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_a_writer_that_fails_closes_its_file(tmp_path: Path) -> None:
    def fail() -> None:
        with TraceWriter(tmp_path / "t.jsonl.gz", Header({"gpu": 9}, {"s": Stream("d")})) as out:
            out.write(Put("h", "t"))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert_same(tmp_path / "t.jsonl.gz", Header({"gpu": 9}, {"s": Stream("d")}), [Put("h", "t")])
