"""`kvsan merge`: several processes' logs as one trace. See also `TRACE.md`, "Logs of several processes"."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from kvsan.checker import TraceError, check, merge_logs
from kvsan.checker.merge import Merged, merge_traces
from kvsan.checker.merge_logs import Hashes
from kvsan.checker.trace import open_trace
from random_traces import random_trace

Line = dict[str, Any]
Log = tuple[Line, list[Line]]


def write(path: Path, header: Line, ops: list[Line]) -> str:
    text = "".join(json.dumps(line) + "\n" for line in ({"kvsan_trace": 1, "pools": {"gpu": 8}} | header, *ops))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def read(path: Path | str) -> Log:
    """The JSON objects of a trace that the reader accepts."""
    with open_trace(path) as trace:
        for _ in trace:
            pass
    raw = Path(path).read_bytes()
    header, *ops = [json.loads(line) for line in (gzip.decompress(raw) if raw[0] == 0x1F else raw).splitlines()]
    return header, ops


def merge(tmp_path: Path, *logs: Log, suffix: str = ".jsonl") -> tuple[Merged, Line, list[Line]]:
    paths = [write(tmp_path / f"log{at}{suffix}", *log) for at, log in enumerate(logs)]
    out = tmp_path / f"merged{suffix}"
    merged = merge_traces(paths, str(out))
    return merged, *read(out)


def refused(tmp_path: Path, *logs: Log) -> TraceError:
    with pytest.raises(TraceError) as caught:
        merge(tmp_path, *logs)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"log{at}.jsonl" for at in range(len(logs))]
    return caught.value


# ── the example: a scheduler and a worker ─────────────────────────────────────────────────────────────────────────────

SCHEDULER = (
    {"process": "scheduler"},
    [
        {"t": 10, "op": "alloc", "by": "main", "pool": "gpu", "ids": "0-3"},
        {"t": 11, "op": "put", "by": "main", "token": "step 1"},
        {"t": 40, "op": "get", "by": "main", "token": "out 1"},
        {"t": 41, "op": "free", "by": "main", "pool": "gpu", "ids": "0-3"},
        {"t": 42, "op": "alloc", "by": "main", "pool": "gpu", "ids": "0-3"},
        {"t": 43, "op": "put", "by": "main", "token": "step 2"},
    ],
)
FORWARD, LOAD = ({"op": "access", "by": "main", "on": on, "label": on} for on in ("forward", "load"))
RECORD = {"t": 23, "op": "record", "by": "main", "on": "forward", "event": "done"}
WAIT = {"t": 52, "op": "wait", "by": "main", "on": "load", "event": "done"}


def worker(*, fence: bool) -> Log:
    """Its forward reads the blocks that its load overwrites for their next owner."""
    ops: list[Line] = [
        {"t": 21, "op": "get", "by": "main", "token": "step 1"},
        FORWARD | {"t": 22, "reads": {"gpu": "0-3"}},
        RECORD,
        {"t": 24, "op": "put", "by": "main", "token": "out 1"},
        {"t": 51, "op": "get", "by": "main", "token": "step 2"},
        WAIT,
        LOAD | {"t": 53, "writes": {"gpu": "0-3"}},
    ]
    return {"process": "worker"}, ops if fence else [op for op in ops if op is not WAIT]


def test_one_log_alone_lacks_the_other(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r'w.jsonl:2: gets token "step 1", which was never put; .*kvsan merge'):
        check(write(tmp_path / "w.jsonl", *worker(fence=True)))
    with pytest.raises(TraceError, match=r's.jsonl:4: gets token "out 1", which was never put'):
        check(write(tmp_path / "s.jsonl", *SCHEDULER))


@pytest.mark.parametrize("fence", [True, False])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_merged_they_can_be_checked(tmp_path: Path, fence: bool, suffix: str) -> None:
    merged, header, ops = merge(tmp_path, SCHEDULER, worker(fence=fence), suffix=suffix)
    report = check(str(tmp_path / f"merged{suffix}"))
    assert report.verdict.name == ("clean" if fence else "racy")
    if not fence:
        (hazard,) = report.hazards
        assert (hazard.kind, str(hazard.blocks), hazard.reuse) == ("WAR", "0-3", True)
        assert (hazard.later.by, hazard.later.on) == ("worker/main", "load")
    assert [op["t"] for op in ops] == sorted(op["t"] for op in ops)
    assert {op["by"] for op in ops} == {"scheduler/main", "worker/main"}
    assert merged.ops == len(ops) == report.ops
    assert (merged.handoffs, merged.early, merged.skew) == (3, 0, 0)
    assert [(part.process, part.ops) for part in merged.parts] == [("scheduler", 6), ("worker", 6 + fence)]
    assert header["merged"][0] == {
        "process": "scheduler",
        "file": str(tmp_path / f"log0{suffix}"),
        "ops": 6,
        "start": "fresh",
    }


def test_the_order_of_the_arguments_does_not_matter(tmp_path: Path) -> None:
    _, _, one = merge(tmp_path, SCHEDULER, worker(fence=True))
    _, _, other = merge(tmp_path, worker(fence=True), SCHEDULER)
    assert one == other


@pytest.mark.parametrize("skew", [-1000, 1000])
def test_a_get_follows_its_put_whatever_the_clocks_say(tmp_path: Path, skew: int) -> None:
    header, ops = worker(fence=False)
    merged, _, woven = merge(tmp_path, SCHEDULER, (header, [op | {"t": op["t"] + skew} for op in ops]))
    assert [hazard.kind for hazard in check(str(tmp_path / "merged.jsonl")).hazards] == ["WAR"]
    order = [(op["op"], op["token"]) for op in woven if "token" in op]
    assert order == [(op, token) for token in ("step 1", "out 1", "step 2") for op in ("put", "get")]
    assert merged.early == (2 if skew < 0 else 1)
    assert merged.skew == (43 - 51 + 1000 if skew < 0 else 24 - 40 + 1000)
    assert any("clocks disagree" in note for note in merged.notes)


def test_logs_without_times_follow_their_hand_offs(tmp_path: Path) -> None:
    logs = [
        (head, [{k: v for k, v in op.items() if k != "t"} for op in ops])
        for head, ops in (SCHEDULER, worker(fence=True))
    ]
    merged, _, ops = merge(tmp_path, *logs)
    assert [op["op"] for op in ops if op["op"] in ("put", "get")] == ["put", "get"] * 3
    assert sum("has no times" in note for note in merged.notes) == 2
    assert check(str(tmp_path / "merged.jsonl")).verdict.name == "clean"


def test_a_missing_time_is_that_of_the_line_before(tmp_path: Path) -> None:
    put = [{"op": "put", "by": "a", "token": f"a{n}"} | t for n, t in enumerate(({"t": 1}, {}, {"t": 9}))]
    other = [{"op": "put", "by": "b", "token": f"b{n}", "t": t} for n, t in enumerate((0, 2))]
    _, _, ops = merge(tmp_path, ({}, put), ({}, other))
    assert [op["token"] for op in ops] == ["b0", "a0", "a1", "b1", "a2"]


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def put(by: str, n: int = 0, t: int = 0) -> Line:
    return {"op": "put", "by": by, "token": f"{by}{n}{t}", "t": t}


def access(on: str, t: int = 0, **more: Any) -> Line:
    return {"op": "access", "by": "h", "on": on, "label": "x", "writes": {"gpu": "0"}, "t": t} | more


@pytest.mark.parametrize(
    ("headers", "names"),
    [
        ([{}, {}], ["p0", "p1"]),
        ([{"process": "b"}, {"process": 7}], ["b", "7"]),
        ([{"streams": {"s": {"process": "w"}, "r": {}}}, {}], ["w", "p1"]),
        ([{"streams": {"s": {"process": "w"}, "r": {"process": "v"}}}, {}], ["p0", "p1"]),
        ([{"process": "x", "streams": {"s": {"process": "w"}}}, {}], ["x", "p1"]),
        ([{"process": "x"}, {"process": "x"}, {"process": "x-2"}], ["x", "x-3", "x-2"]),
        ([{}, {"process": "p0"}], ["p0-2", "p0"]),
        ([{"process": ""}, {"process": ["?"]}], ["p0", "p1"]),
    ],
)
def test_process_names(tmp_path: Path, headers: list[Line], names: list[str]) -> None:
    merged, _, ops = merge(tmp_path, *((header, [put("h", n)]) for n, header in enumerate(headers)))
    assert [part.process for part in merged.parts] == names
    assert [op["by"] for op in ops] == [f"{name}/h" for name in names]
    said = [str(header["process"]) for header in headers if header.get("process")]
    assert any("two logs call their process" in note for note in merged.notes) == (len(set(said)) < len(said))


def test_only_what_is_named_alike_is_qualified(tmp_path: Path) -> None:
    log = {"streams": {"a": {"device": "x"}}}, [access("a"), access("a", by="i"), access("u", t=2)]
    merged, header, ops = merge(tmp_path, log, ({"streams": {"b": {"device": "y"}}}, [access("b", t=1)]))
    assert [(op["by"], op["on"]) for op in ops] == [("p0/h", "a"), ("i", "a"), ("p1/h", "b"), ("p0/h", "u")]
    assert header["streams"] == {
        "a": {"device": "x", "kind": "nonblocking", "process": "p0"},
        "u": {"device": 0, "kind": "nonblocking", "process": "p0"},
        "b": {"device": "y", "kind": "nonblocking", "process": "p1"},
    }
    assert len(merged.notes) == 1


def test_a_qualified_name_meets_no_other(tmp_path: Path) -> None:
    _, _, ops = merge(tmp_path, ({}, [put("h"), put("p0/h", 1)]), ({}, [put("h", 2)]))
    assert [op["by"] for op in ops] == ["p0/h'", "p0/h", "p1/h"]


def test_streams_devices_and_expectations(tmp_path: Path) -> None:
    header = {
        "streams": {"s": {"kind": "legacy"}, "only": {"device": 3}},
        "expects": {"streams": ["s", "never"]},
    }
    ops = [access("s"), {"op": "sync", "by": "h", "device": 0}, {"op": "sync", "by": "h", "stream": "s"}]
    other = [access("s", t=1), {"op": "sync", "by": "h", "device": 0, "t": 1}]
    merged, head, woven = merge(tmp_path, (header, ops), ({"expects": {"streams": ["s"]}}, other))
    assert head["expects"]["streams"] == ["p0/s", "never", "p1/s"]
    assert head["streams"]["p0/s"] == {"device": "p0:0", "kind": "legacy", "process": "p0"}
    assert head["streams"]["p1/s"] == {"device": "p1:0", "kind": "nonblocking", "process": "p1"}
    assert head["streams"]["only"]["device"] == 3
    assert [op["device"] for op in woven if "device" in op] == ["p0:0", "p1:0"]
    assert [op["stream"] for op in woven if "stream" in op] == ["p0/s"]
    assert [note.split(":")[0] for note in merged.notes] == ["host thread h", "stream s", "device 0"]


def test_a_device_sync_does_not_reach_into_another_process(tmp_path: Path) -> None:
    reader = [{"op": "get", "by": "r", "token": "go", "t": 2}, {"op": "sync", "by": "r", "device": 0, "t": 3}]
    reader.append({"op": "access", "by": "r", "label": "read", "reads": {"gpu": "0"}, "t": 4})
    logs: tuple[Log, Log] = ({}, [access("s"), put("h") | {"token": "go"}]), ({}, reader)
    merge(tmp_path, *logs)
    assert [hazard.kind for hazard in check(str(tmp_path / "merged.jsonl")).hazards] == ["RAW"]
    merge(tmp_path, ({}, [logs[0][1][0], {"op": "sync", "by": "h", "device": 0}, logs[0][1][1]]), logs[1])
    assert check(str(tmp_path / "merged.jsonl")).verdict.name == "clean"


def test_device_names_of_two_types_stay_two(tmp_path: Path) -> None:
    log: Log = {"streams": {"s": {"device": 0}, "t": {"device": "0"}}}, []
    _, head, _ = merge(tmp_path, log, log)
    assert [stream["device"] for stream in head["streams"].values()] == ["p0:0", "p0:0'", "p1:0", "p1:0'"]


def event(op: str, name: str, t: int = 0, on: str = "s", by: str = "h") -> Line:
    where = {"on": on} if op in ("record", "wait") else {}
    return {"op": op, "by": by, **where, "event": name, "t": t} | ({"done": True} if op == "poll" else {})


def test_an_event_of_one_process_that_another_waits_for(tmp_path: Path) -> None:
    mine = [event("record", "ipc"), event("record", "own"), put("h"), event("drop", "ipc", 9)]
    theirs = [event("wait", "ipc", 1), event("drop", "ipc", 2), event("poll", "ipc", 3), event("sync", "none", 4)]
    merged, _, ops = merge(tmp_path, ({}, mine), ({}, theirs))
    names = [op["event"] for op in ops if "event" in op]
    assert names == ["ipc", "own", "ipc", "p1/ipc", "ipc", "none", "ipc"]  # to close a handle does not end the event
    assert any(note.startswith("1 event recorded in one log and waited for in another (ipc)") for note in merged.notes)


def test_an_event_that_two_processes_record_is_two_events(tmp_path: Path) -> None:
    mine = [event("record", "e"), event("wait", "e", 2), event("sync", "p0/e", 3)]
    theirs, third = [event("record", "e", 1), event("drop", "e", 4)], [event("poll", "e", 5)]
    merged, _, ops = merge(tmp_path, ({}, mine), ({}, theirs), ({}, third))
    assert [op["event"] for op in ops] == ["p0/e'", "p1/e", "p0/e'", "p0/e", "p1/e", "p2/e"]
    assert any(note.startswith("1 event recorded in several logs (e)") for note in merged.notes)


def test_planned_counts_in_the_merged_trace(tmp_path: Path) -> None:
    mine = [put("h", t=0), access("s", 10, planned=0), put("h", t=12), access("s", 14, planned=2), access("s", 15)]
    _, _, ops = merge(tmp_path, ({}, mine), ({}, [put("i", t=t) for t in (-1, 5, 11, 13)]))
    assert [(at, op["planned"]) for at, op in enumerate(ops) if "planned" in op] == [(3, 1), (7, 5)]


def test_the_merged_header(tmp_path: Path) -> None:
    one = {
        "pools": {"gpu": 8, "a": 1},
        "hooks": {"h": 1, "i": 5},
        "expects": {"hooks": {"h": 2, "i": 1}},
        "unseen": {"copies": 1},
        "engine": "vllm",
    }
    two = {
        "pools": {"gpu": 8, "b": 2},
        "hooks": {"h": 9, "i": 1},
        "expects": {"hooks": {"h": 1, "i": 1}},
        "unseen": {"copies": 2, "edges": 3},
        "start": "attached",
    }
    merged, head, _ = merge(tmp_path, (one, [put("a")]), (two, [put("b")]))
    assert head["pools"] == {"gpu": 8, "a": 1, "b": 2}
    assert head["hooks"] == {"h": 10, "i": 6}
    assert head["expects"]["hooks"] == {"h": 11, "i": 2}  # `h` was short in one: the other does not make up for it
    assert head["unseen"] == {"copies": 3, "edges": 3}
    assert head["start"] == "attached"
    assert [part.get("engine") for part in head["merged"]] == ["vllm", None]
    assert any("attached" in note for note in merged.notes)


def test_unknown_keys_of_a_line_are_kept(tmp_path: Path) -> None:
    _, _, ops = merge(tmp_path, ({}, [access("s", bytes=4096, site="engine.py:7")]), ({}, []))
    assert ops == [access("s", bytes=4096, site="engine.py:7")]


def test_one_log_stays_as_it_is(tmp_path: Path) -> None:
    header, ops = random_trace(7)
    merged, head, woven = merge(tmp_path, (header, ops))
    assert (woven, merged.notes) == (ops, ())
    assert head["pools"] == header["pools"]


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def hand(op: str, token: str, t: int = 0) -> Line:
    return {"op": op, "by": "h", "token": token, "t": t}


def test_hand_offs_in_a_circle(tmp_path: Path) -> None:
    one: Log = {}, [put("h", 1), hand("get", "b"), hand("put", "a")]
    error = refused(tmp_path, one, ({}, [hand("get", "a"), hand("put", "b")]))
    assert (Path(error.file).name, error.line) == ("log0.jsonl", 3)
    assert 'gets token "b"' in error.wrong
    assert 'log1.jsonl puts only after its line 2 has got token "a"' in error.wrong
    assert "every get follows its put" in error.accepted


def test_hand_offs_in_a_wide_circle(tmp_path: Path) -> None:
    logs: list[Log] = [({}, [hand("get", f"t{n}"), hand("put", f"t{(n + 1) % 3}")]) for n in range(3)]
    error = refused(tmp_path, *logs, ({}, [hand("get", "t0")]))
    assert "in a circle of 3 logs" in error.wrong


def test_a_token_that_nobody_puts(tmp_path: Path) -> None:
    error = refused(tmp_path, ({}, [put("h")]), ({}, [put("i", 1), hand("get", "x")]))
    assert (Path(error.file).name, error.line, error.wrong) == (
        "log1.jsonl",
        3,
        'gets token "x", which no log puts before',
    )
    merge(tmp_path, ({"start": "attached"}, [put("h")]), ({}, [hand("get", "x")]))


def test_a_token_that_its_own_log_puts_too_late(tmp_path: Path) -> None:
    error = refused(tmp_path, ({}, [hand("get", "x"), hand("put", "x")]), ({}, []))
    assert (error.line, error.wrong) == (2, 'gets token "x", which no log puts before')


def test_a_token_put_by_two(tmp_path: Path) -> None:
    error = refused(tmp_path, ({}, [put("h"), hand("put", "x")]), ({}, [hand("put", "x")]))
    assert (Path(error.file).name, error.line) == ("log1.jsonl", 2)
    assert 'puts token "x", which' in error.wrong
    assert "log0.jsonl:3 puts too" in error.wrong


def test_pools_of_two_sizes(tmp_path: Path) -> None:
    error = refused(tmp_path, ({"pools": {"gpu": 8}}, []), ({"pools": {"gpu": 9}}, []))
    assert error.line == 1
    assert 'has 9 blocks in pool "gpu", and ' in error.wrong
    assert "log0.jsonl has 8" in error.wrong


def test_a_bad_line_in_a_log_keeps_its_place(tmp_path: Path) -> None:
    error = refused(tmp_path, ({}, []), ({}, [put("h"), {"op": "put", "by": "h"}]))
    assert (Path(error.file).name, error.line) == ("log1.jsonl", 3)


def test_files_that_cannot_be_merged(tmp_path: Path) -> None:
    log, other = write(tmp_path / "a.jsonl", {}, [put("a")]), write(tmp_path / "b.jsonl", {}, [put("b")])
    (tmp_path / "link.jsonl").symlink_to(log)
    for paths, out, words in [
        ([log, other], log, "is one of the logs"),
        ([log, other], str(tmp_path / "link.jsonl"), "is one of the logs"),
        ([log, str(tmp_path / "link.jsonl")], "x", "is given twice"),
        ([log, "-"], "x", "is standard input"),
        ([log, "/dev/null"], "x", "is not a regular file"),
        ([log, str(tmp_path)], "x", "is a folder"),
        ([log, str(tmp_path / "none")], "x", "does not exist"),
        ([log, other], str(tmp_path / "no" / "x"), r"cannot be written \(No such file"),
        ([log, other], str(tmp_path), r"cannot be written \(Is a directory"),
        ([log, other], "a\0b", "cannot be a file's name"),
    ]:
        with pytest.raises(TraceError, match=words) as caught:
            merge_traces(paths, out)
        assert str(caught.value).isprintable()
    assert check(log).ops == 1
    assert not list(tmp_path.glob(".*"))


def test_an_output_that_exists_is_replaced_only_by_a_whole_trace(tmp_path: Path) -> None:
    out = tmp_path / "merged.jsonl"
    out.write_text("before")
    refused_logs = [write(tmp_path / f"{n}.jsonl", {}, [hand("get", f"{n}"), hand("put", f"{1 - n}")]) for n in (0, 1)]
    with pytest.raises(TraceError):
        merge_traces(refused_logs, str(out))
    assert out.read_text() == "before"
    good = write(tmp_path / "good.jsonl", {}, [put("h")])
    merge_traces([good], str(out))
    assert len(read(out)[1]) == 1
    merge_traces([good], "/dev/null")  # written in place
    assert not list(tmp_path.glob(".*"))


def test_a_log_that_changes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write(tmp_path / "a.jsonl", {}, [put("h"), put("h", 1)])
    real = merge_logs.read_log

    def truncating(path: str) -> merge_logs.Log:
        found = real(path)
        write(tmp_path / "a.jsonl", {}, [put("h")])
        return found

    monkeypatch.setattr("kvsan.checker.merge.read_log", truncating)
    with pytest.raises(TraceError, match=r"a.jsonl:3: is not what it was"):
        merge_traces([log], str(tmp_path / "out"))


def test_a_log_that_grows_meanwhile_is_taken_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write(tmp_path / "a.jsonl", {}, [put("h")])
    real = merge_logs.read_log

    def growing(path: str) -> merge_logs.Log:
        found = real(path)
        write(tmp_path / "a.jsonl", {}, [put("h"), put("h", 1)])
        return found

    monkeypatch.setattr("kvsan.checker.merge.read_log", growing)
    assert merge_traces([log], str(tmp_path / "out")).ops == 1


def test_hashes() -> None:
    names = Hashes()
    for n in range(150_000):
        names.add(f"name{n % 100_000}")
    assert len(names) == 100_000
    assert "name0" in names
    assert "name99999" in names
    assert "name100000" not in names
    assert "x" not in Hashes()


# ── a trace split by host thread and merged again ─────────────────────────────────────────────────────────────────────


def processes(seed: int, *, ipc: bool) -> tuple[Line, list[Line], list[Log]]:
    """A random trace whose host threads are processes of their own, and the logs that each of them would write.

    Every process has the same names for its thread, its streams and its devices, as processes of one program do. `ipc`:
    events are shared, each recorded by one process; else each process has its own.
    """
    header, ops = random_trace(seed, 80)
    hosts = sorted({op["by"] for op in ops})
    names = sorted({op["on"] for op in ops if "on" in op} | set(header["streams"]))
    alike = len(hosts) > 1
    owner: dict[str, str] = {}
    local: dict[str, list[Line]] = {host: [] for host in hosts}
    number: list[int] = []  # op -> its number in its own log
    whole: list[Line] = []
    for at, op in enumerate(ops):
        by = op["by"]
        log = local[by]
        mine = {**op, "by": "main"}
        number.append(len(log))
        if op["op"] == "access":
            mine["label"] = f"op {at}"
        if "planned" in op:
            del mine["planned"]
            if ops[op["planned"]]["by"] == by:
                mine["planned"] = number[op["planned"]]
        if "event" in op:
            name = f"{op['event']} of {by}"
            if ipc and op["op"] == "record":
                name = op["event"] if owner.setdefault(op["event"], by) == by else name
            elif ipc and (op["op"] != "drop" or owner.get(op["event"]) == by):
                name = op["event"]
            mine["event"] = name
        log.append(mine)
        there = {**mine, "by": f"{by}/main" if alike else "main"}
        for key in ("on", "stream"):
            if key in mine and alike:
                there[key] = f"{by}/{mine[key]}"
        if "device" in mine and alike:
            there["device"] = f"{by}:{mine['device']}"
        if "planned" in mine:
            there["planned"] = op["planned"]
        whole.append(there)
    streams = {name: header["streams"].get(name, {}) for name in names}
    logs = [({**header, "streams": streams, "process": host}, local[host]) for host in hosts]
    qualified = {
        (f"{host}/{name}" if alike else name): {
            **declared,
            "device": f"{host}:{declared.get('device', 0)}" if alike else declared.get("device", 0),
        }
        for host in hosts
        for name, declared in streams.items()
    }
    return {**header, "streams": qualified}, whole, logs


def hazards(header: Line, ops: list[Line]) -> set[tuple[Any, ...]]:
    """Every hazard, by the labels of its accesses."""
    found = check(header, ops, all_pairs=True).hazards
    return {
        (hazard.kind, hazard.pool, block, hazard.earlier.label, hazard.later.label, hazard.reuse)
        for hazard in found
        for block in hazard.blocks
    }


@pytest.mark.parametrize("part", range(4))
def test_a_trace_split_and_merged_is_the_same_trace(tmp_path: Path, part: int) -> None:
    racy = several = 0
    for seed in range(part, 160, 4):
        header, ops, logs = processes(seed, ipc=seed % 3 != 0)
        random.Random(seed).shuffle(logs)
        _, head, woven = merge(tmp_path, *logs)
        assert woven == ops
        found = hazards(head, woven)
        assert found == hazards(header, ops)
        racy += bool(found)
        several += len(logs) > 1
    assert racy > 8
    assert several > 20


def test_a_trace_split_and_merged_by_skewed_clocks_has_the_same_races(tmp_path: Path) -> None:
    """Other orders of unrelated calls are as true: each pair stays unordered, though its other end may come first."""
    reordered = 0
    for seed in range(120):
        header, ops, logs = processes(seed, ipc=False)
        rng = random.Random(seed)
        skewed = []
        for head, log in logs:
            offset = rng.choice([-300, -50, 0, 50, 300])
            skewed.append((head, [op | {"t": op["t"] + offset} for op in log]))
        _, head, woven = merge(tmp_path, *skewed)
        reordered += [op.get("label") for op in woven] != [op.get("label") for op in ops]

        def pairs(header: Line, ops: list[Line]) -> set[Any]:
            return {
                (pool, block, frozenset((earlier, later)))
                for kind, pool, block, earlier, later, _ in hazards(header, ops)
                if kind not in ("GEN", "BATCH")
            }

        assert pairs(head, woven) == pairs(header, ops)
        for log in {op["by"] for op in ops}:
            own = [op for op in woven if op["by"] == log]
            assert [op.get("label") for op in own] == [op.get("label") for op in ops if op["by"] == log]
    assert reordered > 40
