"""`kvsan info`: what it counts, and that it fits the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsan.checker import info, open_trace
from kvsan.checker.info import survey
from kvsan.checker.inventory import DeviceSyncs, Handoffs, PoolUse, StreamUse, ThreadUse, Waits, Watches, Way
from kvsan.checker.report.survey import render, text
from kvsan.checker.trace import from_objects
from random_traces import random_trace

TRACES = Path(__file__).parents[1] / "checker/kvsan/checker/data/traces"
Line = dict[str, Any]


def surveyed(ops: list[Line], **header: Any) -> info.Survey:
    return survey(from_objects({"kvsan_trace": 1, "pools": {"gpu": 300, "cpu": 9}} | header, ops))


def access(**keys: Any) -> Line:
    return {"op": "access", "by": "h", "label": "x"} | keys


def test_a_recorded_trace() -> None:
    with open_trace(TRACES / "vllm-0.23.0-store.jsonl.gz") as trace:
        found = survey(trace)
    assert found.ops == 7260
    assert found.kinds["access"] == 458
    assert sum(found.kinds.values()) == found.ops
    assert [use.name for use in found.threads] == ["h0", "h1"]
    assert found.streams[0] == StreamUse("compute", 0, "legacy", True, {"record": 758, "access": 267}, ("h0",))
    assert found.pools == (PoolUse("cpu", 16384, 3188, 3188, 7738, 10924), PoolUse("gpu", 1024, 1023, 5624, 669, 6291))
    assert Way("gpu", True, "load", None, "load", 16, 1450, 860) in found.ways
    assert found.waits == (Waits("s2", "compute", 267, 0), Waits("store", "compute", 175, 0))  # none of `load`: the bug
    assert found.handoffs == (Handoffs("h0", "h1", 191), Handoffs("h1", "h0", 183))
    assert (found.live_events, found.open_tokens, found.batches, found.planned) == (4, 8, 191, 191)
    assert found.orders == {"stream": 267, "any": 191}
    assert found.header["fence"] == "store"


def test_who_touches_what() -> None:
    found = surveyed(
        [
            access(on="s", reads={"gpu": "0-9"}, writes={"cpu": "1"}, t=5),
            access(on="s", reads={"gpu": "5-14"}, t=2),
            access(on="s", reads={"gpu": "0"}, label="y", order="any", batch=True),
            access(reads={"gpu": "0,2,4"}, planned=0),
        ],
        pools={"gpu": 300, "cpu": 9, "disk": 4},
    )
    assert found.ways == (
        Way("cpu", True, "s", None, "x", 1, 1, 1),
        Way("gpu", False, None, "h", "x", 1, 3, 3),
        Way("gpu", False, "s", None, "x", 2, 20, 15),
        Way("gpu", False, "s", None, "y", 1, 1, 1),
    )
    assert [(use.name, use.accessed) for use in found.pools] == [("gpu", 15), ("cpu", 1), ("disk", 0)]
    assert found.orders == {"stream": 2, "any": 1, "host": 1}
    assert (found.batches, found.planned, found.span) == (1, 1, 3)
    assert found.threads == (ThreadUse("h", {"access": 4}),)
    assert found.streams == (StreamUse("s", 0, "nonblocking", False, {"access": 3}, ("h",)),)


def test_waits_and_hand_offs() -> None:
    def op(kind: str, **keys: Any) -> Line:
        return {"op": kind, "by": "h"} | keys

    found = surveyed(
        [
            op("wait", on="t", event="e"),
            access(on="s", writes={"gpu": "0"}),
            op("record", on="s", event="e"),
            op("wait", on="t", event="e"),
            op("wait", on="t", event="e"),
            op("wait", on="s", event="e"),
            op("poll", event="e", done=False),
            op("poll", event="e", done=True),
            op("sync", event="e"),
            op("sync", stream="new"),
            op("sync", device=0),
            op("drop", event="e"),
            op("sync", event="e", by="i"),
            op("put", token="a"),
            op("put", token="b"),
            op("get", token="a", by="i"),
            op("get", token="a", by="j"),
            op("get", token="old", by="i"),
            op("alloc", pool="gpu", ids="0-4"),
            op("free", pool="gpu", ids="0-2"),
            op("touch", pool="gpu", ids="0"),
        ],
        start="attached",
    )
    assert found.waits == (Waits("s", "s", 1, 1), Waits("t", None, 1, 0), Waits("t", "s", 2, 1))
    assert found.watches == (
        Watches("h", "new", 1, 0, 0),
        Watches("h", "s", 1, 1, 1),
        Watches("i", None, 1, 0, 0),
    )
    assert found.device_syncs == (DeviceSyncs("h", 0, 1),)
    assert set(found.handoffs) == {Handoffs("h", "i", 1), Handoffs("h", "j", 1), Handoffs(None, "i", 1)}
    assert (found.live_events, found.open_tokens) == (0, 1)
    assert found.pools[0] == PoolUse("gpu", 300, 1, 5, 1, 3)
    assert found.span is None


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "WAYS", 3)
    monkeypatch.setattr(info, "MARKS", 700)
    found = surveyed([access(on="s", writes={"gpu": str(n)}, label=f"request {n}") for n in range(10)])
    assert [(way.label, way.accesses, way.blocks) for way in found.ways] == [
        ("(other labels)", 7, None),
        ("request 0", 1, 1),
        ("request 1", 1, 1),
        ("request 2", 1, None),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_document_is_json_and_the_text_fits(seed: int) -> None:
    header, ops = random_trace(seed)
    found = survey(from_objects(header, ops, "a trace"))
    document = json.loads(json.dumps(found.document()))
    assert document["ops"] == len(ops) == sum(use["ops"][kind] for use in document["threads"] for kind in use["ops"])
    assert sum(way["accesses"] for way in document["ways"]) >= document["kinds"].get("access", 0)
    for width in (40, 60, 80, 120):
        lines = text(found, width).splitlines()
        assert max(map(len, lines)) <= width
        assert all(line.isprintable() for line in lines)


def test_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[31m"
    found = surveyed([access(on=evil, by=evil, writes={"gpu": "0"}, label=evil)], note=evil * 90)
    render(found, 60)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 60
    render(found, 60, colour=True)
    assert "\x1b[31m" not in capsys.readouterr().out


def test_an_empty_trace(capsys: pytest.CaptureFixture[str]) -> None:
    render(survey(from_objects({"kvsan_trace": 1, "pools": {}}, [])), 80)
    assert "0 ops, logged from its beginning" in capsys.readouterr().out


def test_long_tables_are_cut() -> None:
    found = surveyed([access(on=f"s{n}", writes={"gpu": "0"}) for n in range(60)])
    assert text(found, 80).count("and 20 more") == 2
