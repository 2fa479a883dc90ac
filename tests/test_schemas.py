"""The JSON Schemas in the package: valid, true of real traces and reports, and in agreement with the reader."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator

from kvsan.checker import TraceError, check
from kvsan.checker.schema import Name, load
from kvsan.checker.trace import from_objects
from random_traces import random_trace

Json = dict[str, Any]
TRACES = sorted((Path(__file__).parents[1] / "checker/kvsan/checker/data/traces").glob("*.jsonl.gz"))
NAMES: tuple[Name, ...] = ("trace-header", "trace-op", "report")


def closed(schema: Any) -> Any:
    """The schema with every property that it does not name forbidden: a report must hold nothing undocumented.

    The published schema is open, so that a new property breaks nobody.
    """
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        out.setdefault("additionalProperties", False)
    return out


HEADER, OP = (Draft202012Validator(load(name)) for name in NAMES[:2])
REPORT = Draft202012Validator(closed(load("report")))


def assert_valid(validator: Draft202012Validator, document: Any) -> None:
    """As `validate`, with the innermost reason."""
    document = json.loads(json.dumps(document))
    errors = sorted(validator.iter_errors(document), key=lambda error: error.json_path)
    assert not errors, f"{errors[0].json_path}: {errors[0].message}"


def described(schema: Any, path: str = "") -> list[str]:
    """The properties that do not say what they are, neither themselves nor through what they refer to."""
    missing = []
    if isinstance(schema, dict):
        for name, value in schema.items():
            missing += described(value, f"{path}/{name}")
        if path.endswith(("/properties", "/$defs")):
            missing += [f"{path}/{name}" for name, value in schema.items() if value is not False and not value]
    elif isinstance(schema, list):
        for item in schema:
            missing += described(item, path)
    return missing


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_schemas(name: Name) -> None:
    schema = load(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:kvsan:schema:{name}:1"
    assert schema["description"]
    assert not described(schema)


def test_an_unknown_schema() -> None:
    with pytest.raises(FileNotFoundError):
        load("verdict")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
def test_recorded_traces_are_valid(path: Path) -> None:
    with gzip.open(path, "rt") as lines:
        header, *ops = lines
    assert_valid(HEADER, json.loads(header))
    for line in ops[::7]:
        assert_valid(OP, json.loads(line))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
@pytest.mark.parametrize("options", [{}, {"all_pairs": True}, {"lifetime": True}], ids=lambda o: next(iter(o), "plain"))
def test_their_reports_are_valid(path: Path, options: dict[str, bool]) -> None:
    document = check(path, None, **options).document()
    document["hazards"] = document["hazards"][::37] or document["hazards"]
    if "lifetime" in document:
        document["lifetime"] = document["lifetime"][::37]
    assert ("lifetime" in document) == ("lifetime" in options)
    assert_valid(REPORT, document)


def test_random_traces_and_their_reports_are_valid() -> None:
    kinds: set[str] = set()
    parts: set[str] = set()
    warned: set[str] = set()
    for seed in range(150):
        header, ops = random_trace(seed)
        assert_valid(HEADER, header)
        if seed % 2:
            header = header | {"unseen": {"edges": 1, "copies": seed % 3}, "expects": {"streams": ["never"]}}
        for op in ops[::5]:
            assert_valid(OP, op)
        document = check(header, ops, all_pairs=bool(seed % 4), lifetime=True).document()
        assert_valid(REPORT, document)
        kinds |= {hazard["kind"] for hazard in document["hazards"]}
        parts |= {part for hazard in document["hazards"] for fix in hazard["fix"] for part in fix}
        warned |= {warning["kind"] for warning in document["warnings"]}
    assert kinds == {"RAW", "WAR", "WAW", "BATCH", "GEN"}
    assert parts >= {"record", "wait", "sync", "order", "pin", "split"}
    assert warned == {"never-recorded", "own-stream", "redundant-wait", "host-order"}


def test_an_empty_run_is_valid_and_incomplete() -> None:
    document = check({"kvsan_trace": 1, "pools": {}}, []).document()
    assert document["verdict"] == "incomplete"
    assert_valid(REPORT, document)
    assert list(REPORT.iter_errors(document | {"verdict": "clean"}))
    assert list(REPORT.iter_errors(document | {"new": 1})), "the test's schema is closed"
    assert Draft202012Validator(load("report")).is_valid(document | {"new": 1}), "the published one is not"


# ── schema and reader say the same ────────────────────────────────────────────────────────────────────────────────────

H: Json = {"kvsan_trace": 1, "pools": {"gpu": 100}}
A: Json = {"op": "access", "by": "h", "on": "s", "label": "x", "reads": {"gpu": "1"}}
Verdict = Literal["good", "bad", "stricter"]
"""Good and bad for both; or `stricter`: the reader alone refuses it, because of what it knows besides the line."""

HEADERS: list[tuple[Json, Verdict]] = [
    (H, "good"),
    ({"kvsan_trace": 1, "pools": {}}, "good"),
    (H | {"anything": {"deep": [1]}, "seconds": 3}, "good"),
    ({}, "bad"),
    ({"pools": {}}, "bad"),
    ({"kvsan_trace": 1}, "bad"),
    (H | {"kvsan_trace": 2}, "bad"),
    (H | {"kvsan_trace": "1"}, "bad"),
    (H | {"kvsan_trace": True}, "bad"),
    (H | {"kvsan_trace": None}, "bad"),
    (H | {"pools": []}, "bad"),
    (H | {"pools": {"gpu": 0}}, "good"),
    (H | {"pools": {"gpu": -1}}, "bad"),
    (H | {"pools": {"gpu": "9"}}, "bad"),
    (H | {"pools": {"gpu": True}}, "bad"),
    (H | {"pools": {"gpu": None}}, "bad"),
    (H | {"pools": {"gpu": 1.5}}, "bad"),
    (H | {"pools": {"gpu": 1 << 28}}, "good"),
    (H | {"pools": {"gpu": (1 << 28) + 1}}, "bad"),
    (H | {"pools": {"gpu": 1 << 28, "cpu": 1}}, "stricter"),
    (H | {"streams": {}}, "good"),
    (H | {"streams": {"s": {}}}, "good"),
    (H | {"streams": {"s": {"device": "cuda:0", "kind": "legacy", "process": "p0"}}}, "good"),
    (H | {"streams": {"s": {"device": -1}}}, "good"),
    (H | {"streams": ["s"]}, "bad"),
    (H | {"streams": {"s": "legacy"}}, "bad"),
    (H | {"streams": {"s": {"device": None}}}, "bad"),
    (H | {"streams": {"s": {"device": True}}}, "bad"),
    (H | {"streams": {"s": {"device": 0.5}}}, "good"),
    (H | {"streams": {"s": {"kind": "nonBlocking"}}}, "bad"),
    (H | {"streams": {"s": {"kind": None}}}, "bad"),
    (H | {"streams": {"s": {"knd": "legacy"}}}, "stricter"),
    (H | {"start": "fresh"}, "good"),
    (H | {"start": "attached"}, "good"),
    (H | {"start": "later"}, "bad"),
    (H | {"start": None}, "bad"),
    (H | {"expects": {}}, "good"),
    (H | {"expects": {"streams": ["s"], "hooks": {"h": 1}}}, "good"),
    (H | {"expects": ["s"]}, "bad"),
    (H | {"expects": {"streams": "s"}}, "bad"),
    (H | {"expects": {"streams": [1]}}, "bad"),
    (H | {"expects": {"stream": ["s"]}}, "bad"),
    (H | {"expects": {"hooks": {"h": -1}}}, "bad"),
    (H | {"hooks": {"h": 0}}, "good"),
    (H | {"hooks": {"h": "0"}}, "bad"),
    (H | {"unseen": {"copies": 1, "edges": 0}}, "good"),
    (H | {"unseen": {"accesses": 1}}, "bad"),
    (H | {"unseen": {"copies": False}}, "bad"),
    (H | {"unseen": 1}, "bad"),
    (H | {"expect": {"streams": ["s"]}}, "stricter"),
]
OPS: list[tuple[Json, Verdict]] = [
    (A, "good"),
    (A | {"t": 5}, "good"),
    (A | {"t": 5.5, "on": None, "step": 3, "owner": "r", "site": "a.py:1", "bytes": 4096}, "good"),
    (A | {"t": None, "planned": None, "step": None, "owner": None, "site": None}, "good"),
    (A | {"t": "5"}, "bad"),
    (A | {"t": True}, "bad"),
    (A | {"by": None}, "bad"),
    (A | {"by": 1}, "bad"),
    ({key: value for key, value in A.items() if key != "by"}, "bad"),
    ({key: value for key, value in A.items() if key != "op"}, "bad"),
    ({key: value for key, value in A.items() if key != "label"}, "bad"),
    (A | {"op": "acces"}, "bad"),
    (A | {"op": None}, "bad"),
    (A | {"op": ["access"]}, "bad"),
    (A | {"on": 0}, "bad"),
    (A | {"label": None}, "bad"),
    (A | {"label": ""}, "good"),
    (A | {"order": "any"}, "good"),
    (A | {"order": "ANY"}, "bad"),
    (A | {"order": None}, "bad"),
    (A | {"batch": True}, "good"),
    (A | {"batch": 1}, "bad"),
    (A | {"step": 1.5}, "bad"),
    (A | {"step": True}, "bad"),
    (A | {"owner": ["r"]}, "bad"),
    (A | {"site": 7}, "bad"),
    (A | {"reads": {}, "writes": {}}, "bad"),
    (A | {"reads": {}}, "bad"),
    (A | {"reads": {}, "writes": {"gpu": "1"}}, "good"),
    (A | {"reads": None}, "bad"),
    (A | {"reads": "1-4"}, "bad"),
    (A | {"reads": {"gpu": 1}}, "bad"),
    (A | {"reads": {"gpu": [1]}}, "bad"),
    (A | {"reads": {"gpu": "1-4,9,12-99"}}, "good"),
    (A | {"reads": {"gpu": "0007"}}, "good"),
    (A | {"reads": {"gpu": "1-"}}, "bad"),
    (A | {"reads": {"gpu": "-1"}}, "bad"),
    (A | {"reads": {"gpu": "1,"}}, "bad"),
    (A | {"reads": {"gpu": "1, 2"}}, "bad"),
    (A | {"reads": {"gpu": "1-2-3"}}, "bad"),
    (A | {"reads": {"gpu": "0x1"}}, "bad"),
    (A | {"reads": {"gpu": "\u0661"}}, "bad"),
    (A | {"reads": {"gpu": "1" * 19}}, "bad"),
    (A | {"reads": {"gpu": "4-1"}}, "stricter"),
    (A | {"reads": {"gpu": "100"}}, "stricter"),
    (A | {"reads": {"gpu": "1,1"}}, "stricter"),
    (A | {"reads": {"gpu": "1,1"}, "batch": True}, "good"),
    (A | {"reads": {"cpu": "1"}}, "stricter"),
    (A | {"planned": 0}, "good"),
    (A | {"planned": -1}, "bad"),
    (A | {"planned": 0.5}, "bad"),
    (A | {"planned": 1}, "stricter"),
    (A | {"ordr": "any"}, "stricter"),
    ({"op": "record", "by": "h", "on": "s", "event": "e"}, "good"),
    ({"op": "record", "by": "h", "event": "e"}, "bad"),
    ({"op": "record", "by": "h", "on": None, "event": "e"}, "bad"),
    ({"op": "wait", "by": "h", "on": "s", "event": "e"}, "good"),
    ({"op": "wait", "by": "h", "on": "s"}, "bad"),
    ({"op": "wait", "by": "h", "on": "s", "event": 1}, "bad"),
    ({"op": "sync", "by": "h", "event": "e"}, "good"),
    ({"op": "sync", "by": "h", "stream": "s"}, "good"),
    ({"op": "sync", "by": "h", "device": 0}, "good"),
    ({"op": "sync", "by": "h", "device": "cuda:0", "event": None}, "good"),
    ({"op": "sync", "by": "h"}, "bad"),
    ({"op": "sync", "by": "h", "event": None}, "bad"),
    ({"op": "sync", "by": "h", "event": "e", "stream": "s"}, "bad"),
    ({"op": "sync", "by": "h", "device": 0, "stream": "s"}, "bad"),
    ({"op": "sync", "by": "h", "device": True}, "bad"),
    ({"op": "poll", "by": "h", "event": "e", "done": False}, "good"),
    ({"op": "poll", "by": "h", "event": "e"}, "bad"),
    ({"op": "poll", "by": "h", "event": "e", "done": "yes"}, "bad"),
    ({"op": "put", "by": "h", "token": "t"}, "good"),
    ({"op": "put", "by": "h", "token": None}, "bad"),
    ({"op": "put", "by": "h"}, "bad"),
    ({"op": "put", "by": "h", "token": "first"}, "stricter"),
    ({"op": "get", "by": "h", "token": "first"}, "good"),
    ({"op": "get", "by": "h", "token": "t"}, "stricter"),
    ({"op": "alloc", "by": "h", "pool": "gpu", "ids": "1-4"}, "good"),
    ({"op": "alloc", "by": "h", "pool": "gpu"}, "bad"),
    ({"op": "alloc", "by": "h", "pool": "gpu", "ids": ["1"]}, "bad"),
    ({"op": "free", "by": "h", "pool": "gpu", "ids": ""}, "good"),
    ({"op": "free", "by": "h", "pool": "gpu", "ids": "1,1"}, "stricter"),
    ({"op": "touch", "by": "h", "pool": "gpu", "ids": "9"}, "good"),
    ({"op": "touch", "by": "h", "ids": "9"}, "bad"),
    ({"op": "drop", "by": "h", "event": "e"}, "good"),
    ({"op": "drop", "by": "h"}, "bad"),
]


def accepted(header: Json, *ops: Json) -> bool:
    try:
        list(from_objects(header, ops))
    except TraceError:
        return False
    return True


@pytest.mark.parametrize(("header", "verdict"), HEADERS)
def test_schema_and_reader_agree_on_headers(header: Json, verdict: Verdict) -> None:
    assert HEADER.is_valid(header) == (verdict != "bad")
    assert accepted(header) == (verdict == "good")


@pytest.mark.parametrize(("op", "verdict"), OPS)
def test_schema_and_reader_agree_on_ops(op: Json, verdict: Verdict) -> None:
    first = {"op": "put", "by": "h", "token": "first"}
    assert accepted(H, first)
    assert OP.is_valid(op) == (verdict != "bad")
    assert accepted(H, first, op) == (verdict == "good")


@pytest.mark.parametrize("line", [None, 1, "x", [], True, [A]])
def test_a_line_that_is_no_object(line: Any) -> None:
    assert not OP.is_valid(line)
    assert not HEADER.is_valid(line)
    assert not accepted(H, line)
