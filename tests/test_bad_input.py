"""Bad input: one line that says file, line, what is wrong and what is accepted. No traceback, no hang, little memory.

Each bad trace has a good twin that differs from it as little as can be, and is read in silence.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvsan.checker import TraceError, open_trace
from kvsan.checker.trace import reader
from kvsan.checker.trace.header import MAX_AGENTS, MAX_BLOCKS
from kvsan.checker.trace.keys import printable

HEADER = b'{"kvsan_trace":1,"pools":{"gpu":100,"none":0}}\n'
READ = b'{"op":"access","by":"h","on":"s","label":"x","reads":{"gpu":"%s"}}\n'
PUT, GET = b'{"op":"put","by":"h","token":"%s"}\n', b'{"op":"get","by":"h","token":"%s"}\n'
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Case(NamedTuple):
    """`line` is where the fault is (0: the file); `wrong` and `accepted` are parts of the message."""

    name: str
    bad: bytes
    good: bytes
    line: int
    wrong: str
    accepted: str


def op(**keys: Any) -> bytes:
    line = {"op": "access", "by": "h", "on": "s", "label": "x", "reads": {"gpu": "1"}} | keys
    return json.dumps({key: value for key, value in line.items() if value is not ...}).encode() + b"\n"


def header(**keys: Any) -> bytes:
    line = {"kvsan_trace": 1, "pools": {"gpu": 100}} | keys
    return json.dumps({key: value for key, value in line.items() if value is not ...}).encode() + b"\n"


def zipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at:][1:]


GOOD = HEADER + READ % b"1-4,9"
ONE_MORE = b'"record" has op, by, [t], on, event'
CASES = [
    # what the issue names
    Case("empty", b"", GOOD, 0, "is empty", "a header such as"),
    Case("truncated gzip", zipped(GOOD)[:-12], zipped(GOOD), 2, "is cut off", "a whole file"),
    Case("binary", b"\x00\x01\xfe" * 50, GOOD, 1, "is not JSON", "a header such as"),
    Case("other version", header(kvsan_trace=2), header(), 1, "is of version 2", '"kvsan_trace": 1'),
    Case("no version", header(kvsan_trace=...), header(), 1, "is no header", "a first line with"),
    Case("no pools", header(pools=...), header(pools={}), 1, 'has no key "pools"', '"pools": an object'),
    Case("missing key", HEADER + op(label=...), HEADER + op(), 2, 'has no key "label"', "[on], label, [reads]"),
    Case("missing thread", HEADER + op(by=...), HEADER + op(), 2, 'has no key "by"', '"access" has op, by'),
    Case("mistyped key", HEADER + op(batch=1), HEADER + op(batch=True), 2, 'has 1 for "batch"', "true or false"),
    Case("mistyped pools", HEADER + op(reads="1"), HEADER + op(), 2, 'has "1" for "reads"', '{"gpu": "1-4,9"}'),
    Case(
        "unknown op", HEADER + op(op="acces"), HEADER + op(), 2, 'unknown op "acces" (is access meant?)', "record, wait"
    ),
    Case("unknown pool", HEADER + op(reads={"cpu": "1"}), HEADER + op(), 2, 'names pool "cpu"', "header: gpu, none"),
    Case(
        "unknown order", HEADER + op(order="ANY"), HEADER + op(order="any"), 2, 'has "ANY" for "order"', '"any", "call"'
    ),
    Case("id out of the pool", HEADER + READ % b"99-100", HEADER + READ % b"98-99", 2, "block 100", "from 0 to 99"),
    Case("reversed range", HEADER + READ % b"9-4", HEADER + READ % b"4-9", 2, "'9-4' runs backwards", '"1-4,9"'),
    Case("long range", HEADER + READ % b"1-999999999999", HEADER + READ % b"1-99", 2, "999999999999", "from 0 to 99"),
    Case("longer range", HEADER + READ % (b"1-" + b"9" * 99), HEADER + READ % b"1-99", 2, "too large", '"1-4,9"'),
    Case(
        "token never put", HEADER + GET % b"a", HEADER + PUT % b"a" + GET % b"a", 2, "never put", '"kvsan merge" first'
    ),
    Case("deep nesting", HEADER + b"[" * 99999, HEADER, 2, "is a list, not an object", "one JSON object a line"),
    Case("deep value", HEADER + op()[:-2] + b',"x":' + b"[" * 99999, GOOD, 2, "is nested too deeply", "a flat object"),
    Case("deep header", b'{"x":' * 99999, GOOD, 1, "is nested too deeply", "a header object"),
    # the file as a whole
    Case("blank", b" \n\t\n\r\n", GOOD, 0, "is empty", "a header such as"),
    Case("blank line", HEADER + b"\n" + op(), HEADER + op() + b"\n\r\n  ", 2, "is blank", "one JSON object a line"),
    Case("endlessly blank", HEADER + b"\n" * 2000, HEADER + b"\n" * 900, 2, "is blank", "one JSON object a line"),
    Case("byte order mark", b"\xef\xbb\xbf" + GOOD, GOOD, 1, "byte order mark", "UTF-8 without one"),
    Case("UTF-16", GOOD.decode().encode("utf-16"), GOOD, 1, "is not JSON", "a header such as"),
    Case(
        "Latin-1", HEADER + op(x="\xe9").replace(b"\\u00e9", b"\xe9"), HEADER + op(x="\xe9"), 2, "is not UTF-8", "UTF-8"
    ),
    Case("zip", b"PK\x03\x04" + bytes(30), GOOD, 1, "is not JSON", "a header such as"),
    Case("half a gzip magic", b"\x1f" + GOOD, GOOD, 1, "cannot be read (Not a gzipped file", "an undamaged file"),
    Case("damaged gzip", damaged(zipped(GOOD * 9), 40), zipped(GOOD), 1, "cannot be read", "an undamaged file"),
    Case("damaged check sum", damaged(zipped(GOOD), -5), zipped(GOOD), 3, "cannot be read (CRC", "an undamaged file"),
    Case(
        "gzip, then more", zipped(GOOD) + b"more", zipped(GOOD) + bytes(9), 3, "Not a gzipped file", "an undamaged file"
    ),
    Case("last line cut", GOOD[:-9], GOOD[:-1], 2, "is not JSON (Input data was truncated)", "in UTF-8"),
    Case(
        "two on one line", HEADER + op()[:-1] + op(), HEADER + op() + op(), 2, "is not JSON", "one JSON object a line"
    ),
    Case("a list", b"[" + GOOD.replace(b"\n", b",\n") + b"]", GOOD, 1, "is not JSON", "a header such as"),
    Case("header a list", b"[1]\n", GOOD, 1, "is no header", "a first line with"),
    Case("no header", op(), GOOD, 1, "is no header", "a first line with"),
    Case("a second header", HEADER + HEADER, HEADER, 2, 'has no key "op"', "op is one of access"),
    Case("a line of text", HEADER + b'"x"\n', HEADER, 2, "is a string, not an object", "one JSON object a line"),
    Case("a null", HEADER + b"null\n", HEADER, 2, "is null, not an object", "one JSON object a line"),
    Case("not a number", HEADER + op(t=float("nan")), HEADER + op(t=0.5), 2, "is not JSON", "one JSON object a line"),
    Case("lone surrogate", HEADER + op(label="\ud800"), HEADER + op(label="\U0001f600"), 2, "is not JSON", "in UTF-8"),
    # the header
    Case(
        "negative pool", header(pools={"g": -1}), header(pools={"g": 0}), 1, 'has -1 for the size of pool "g"', "from 0"
    ),
    Case(
        "pools too large",
        header(pools={"a": MAX_BLOCKS, "b": 1}),
        header(pools={"a": MAX_BLOCKS - 1, "b": 1}),
        1,
        f"has pools of {MAX_BLOCKS + 1} blocks in all",
        "over all pools",
    ),
    Case(
        "odd pool size",
        header(pools={"g": True}),
        header(pools={"g": 1}),
        1,
        "has true for the size",
        "number of blocks",
    ),
    Case(
        "odd start", header(start="mid"), header(start="attached"), 1, 'has "mid" for "start"', '"fresh" or "attached"'
    ),
    Case("odd stream", header(streams=["s"]), header(streams={"s": {}}), 1, 'has ["s"] for "streams"', "an object"),
    Case(
        "odd kind",
        header(streams={"s": {"kind": "default"}}),
        header(streams={"s": {"kind": "legacy"}}),
        1,
        'has "default" for the kind of stream "s"',
        "nonblocking, blocking, legacy, per-thread",
    ),
    Case(
        "odd device",
        header(streams={"s": {"device": None}}),
        header(streams={"s": {"device": "cuda:0"}}),
        1,
        'has null for the device of stream "s"',
        "a number or a string",
    ),
    Case(
        "too many streams",
        header(streams={f"s{n}": {} for n in range(MAX_AGENTS + 1)}),
        header(streams={f"s{n}": {} for n in range(MAX_AGENTS)}),
        1,
        f"has {MAX_AGENTS + 1} streams",
        f"up to {MAX_AGENTS}",
    ),
    Case(
        "misspelt promise",
        header(expect={"streams": ["s"]}),
        header(expects={"streams": ["s"]}, expectation="free text", started="today"),
        1,
        'has unknown key "expect": is "expects" meant?',
        "a header has kvsan_trace, pools",
    ),
    Case(
        "misspelt kind",
        header(streams={"s": {"Kind": "legacy"}}),
        header(streams={"s": {"device_id": 0, "priority": -1, "handle": "0x0"}}),
        1,
        'unknown key "Kind": is "kind" meant?',
        "a stream has device, kind",
    ),
    Case("odd hook", header(hooks={"h": -1}), header(hooks={"h": 0}), 1, 'has -1 for "hooks.h"', "a count from 0"),
    Case(
        "odd unseen",
        header(unseen={"frees": 1}),
        header(unseen={"edges": 1}),
        1,
        'unknown key "unseen.frees"',
        "unseen has copies, edges",
    ),
    # ops
    Case(
        "misspelt key", HEADER + op(ordr="any"), HEADER + op(size=9), 2, 'key "ordr": is "order" meant?', '"access" has'
    ),
    Case(
        "misspelt and missing",
        HEADER + op(label=..., lable="x"),
        GOOD,
        2,
        '"label" (is "lable" meant?)',
        '"access" has',
    ),
    Case(
        "far too many keys",
        HEADER + op(**{f"x{n}": 0 for n in range(101)}),
        HEADER + op(**{f"x{n}": 0 for n in range(100)}),
        2,
        "has 101 unknown keys",
        "up to 100",
    ),
    Case(
        "token put twice",
        HEADER + PUT % b"a" + PUT % b"a",
        HEADER + PUT % b"a" + PUT % b"b",
        3,
        '"a" a second time',
        "once",
    ),
    Case(
        "token put after its get",
        HEADER + PUT % b"a" + GET % b"a" + PUT % b"a",
        HEADER + PUT % b"a" + GET % b"a" + GET % b"a",
        4,
        'puts token "a" a second time',
        "a token is put once",
    ),
    Case(
        "sync of nothing", HEADER + b'{"op":"sync","by":"h"}', GOOD, 2, "a sync with nothing to wait for", "exactly one"
    ),
    Case(
        "sync of two",
        HEADER + b'{"op":"sync","by":"h","device":0,"event":"e"}',
        HEADER + b'{"op":"sync","by":"h","device":0,"event":null}',
        2,
        "is a sync with event and device",
        "exactly one of event, stream, device",
    ),
    Case(
        "own plan",
        HEADER + op() + op(planned=1),
        HEADER + op() + op(planned=0),
        3,
        'has 1 for "planned"',
        "this is op 1",
    ),
    Case("plan before all", HEADER + op(planned=-1), HEADER + op(), 2, 'has -1 for "planned"', "an earlier op"),
    Case(
        "id twice",
        HEADER + READ % b"1-4,4",
        HEADER + op(reads={"gpu": "4,4"}, batch=True),
        2,
        "a block twice",
        '"batch": true',
    ),
    Case(
        "id freed twice",
        HEADER + b'{"op":"free","by":"h","pool":"gpu","ids":"3,1-3"}',
        HEADER + b'{"op":"free","by":"h","pool":"gpu","ids":"4,1-3"}',
        2,
        "names a block twice",
        "each block once",
    ),
    Case(
        "touches nothing",
        HEADER + op(reads={}),
        HEADER + op(reads={}, writes={"gpu": "1"}),
        2,
        "neither reads nor",
        "[writes]",
    ),
    Case("negative id", HEADER + READ % b"-1", HEADER + READ % b"0-1", 2, "'-1' is not a block id", '"1-4,9"'),
    Case("other digits", HEADER + op(reads={"gpu": "\u0663"}), HEADER + READ % b"3", 2, "is not a block id", '"1-4,9"'),
    Case(
        "ids as list",
        HEADER + op(reads={"gpu": [1]}),
        HEADER + op(),
        2,
        'has {"gpu":[1]} for "reads"',
        '{"gpu": "1-4,9"}',
    ),
    Case(
        "id in an empty pool",
        HEADER + op(reads={"none": "0"}),
        HEADER + op(reads={"none": ""}),
        2,
        'pool "none"',
        "no id",
    ),
    Case(
        "huge number",
        HEADER + op(step="").replace(b'""', b"9" * 5000),
        GOOD,
        2,
        '"step"',
        "whole number",
    ),
    Case("event as number", HEADER + b'{"op":"drop","by":"h","event":1}', GOOD, 2, 'has 1 for "event"', "a string"),
    Case("no event", HEADER + b'{"op":"record","by":"h","on":"s"}', GOOD, 2, 'has no key "event"', ONE_MORE.decode()),
    Case(
        "too many threads",
        HEADER + b"".join(op(by=f"h{n}") for n in range(MAX_AGENTS)),
        HEADER + b"".join(op(by=f"h{n}") for n in range(MAX_AGENTS - 1)),
        MAX_AGENTS + 1,
        "one stream or host thread too many",
        f"up to {MAX_AGENTS} in one trace",
    ),
    # hostile text
    Case("escape codes", HEADER + op(op="\x1b[2J\n"), HEADER + op(x="\x1b[2J\n"), 2, "\\u001b[2J\\n", "op is one of"),
    Case(
        "newline in a pool",
        HEADER + op(reads={"a\nb\x9b\u202e": "1"}),
        GOOD,
        2,
        '"a\\nb\\x9b\\u202e"',
        "a pool of the header",
    ),
    Case(
        "newline in a key",
        HEADER + op(**{"order\n": 1}),
        HEADER + op(**{"\n": 1}),
        2,
        '"order\\n": is "order"',
        '"access" has',
    ),
    Case("endless name", HEADER + op(reads={"x" * 99999: "1"}), GOOD, 2, "xxx...", "a pool of the header"),
    Case(
        "endless choice",
        header(pools={f"pool{n}": 1 for n in range(9999)}) + op(),
        header(pools={f"pool{n}": 1 for n in range(9999)} | {"gpu": 9}) + op(),
        2,
        'names pool "gpu"',
        "pool0, pool1, pool2",
    ),
]


def read(path: Path | str) -> int:
    """How many ops there are, all looked at."""
    with open_trace(path) as trace:
        return sum(1 for _ in trace)


def refusal(path: Path | str) -> TraceError:
    """The error that a trace ends in: a line fit for a terminal."""
    with pytest.raises(TraceError) as caught:
        read(path)
    error, text = caught.value, str(caught.value)
    assert text.isprintable(), "newlines, escape codes and the like are spelt out"
    assert len(text) < 2000
    assert error.file == str(path)
    place = printable(str(path), 1200) + (f":{error.line}" if error.line else "")
    assert text == f"{place}: {error.wrong}; accepted: {error.accepted}"
    return error


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_and_its_good_twin(tmp_path: Path, case: Case) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(case.bad)
    began = time.perf_counter()
    error = refusal(path)
    assert time.perf_counter() - began < 5
    assert case.wrong in error.wrong
    assert case.accepted in error.accepted
    assert error.line == case.line
    path.write_bytes(case.good)
    read(path)


def test_gzip_by_name_only(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    for content, wrong in [(GOOD, "is not gzip, though it is named so"), (b"", "is empty")]:
        path.write_bytes(content)
        error = refusal(path)
        assert (error.line, error.wrong) == (0, wrong)
        assert "1f 8b" in error.accepted
    path.write_bytes(zipped(HEADER) + zipped(op()))
    assert read(path) == 1


def test_no_file_no_folder(tmp_path: Path) -> None:
    for path, wrong in [
        (tmp_path, "is a folder"),
        (Path("."), "is a folder"),
        (tmp_path / "none", "does not exist"),
        (tmp_path / ("x" * 300), "cannot be read (File name too long)"),
        (Path(f"{tmp_path}/\x1b[31m\nx"), "does not exist"),
        (Path("a\0b"), "cannot be read (embedded null"),
    ]:
        error = refusal(path)
        assert error.line == 0
        assert error.wrong.startswith(wrong)
    (tmp_path / "none").write_bytes(GOOD)
    assert read(tmp_path / "none") == 1


@LINUX
def test_a_file_that_fails_to_be_read() -> None:
    assert refusal("/proc/self/mem").wrong.startswith("cannot be read (")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read anything, so the refusal is the system's own error, raised here."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(GOOD)
    assert read(path) > 0

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    assert refusal(path).wrong == "cannot be read (Permission denied)"


def test_what_was_read_before_the_fault_was_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(HEADER + op() + op() + b"x")
    with open_trace(path) as trace:
        ops = iter(trace)
        next(ops)
        next(ops)
        with pytest.raises(TraceError, match=r"trace.jsonl:4: "):
            next(ops)


def test_standard_input() -> None:
    run = [sys.executable, "-c", _READ, "-"]
    good = subprocess.run(run, input=zipped(GOOD), capture_output=True, check=True, env=_env())
    assert json.loads(good.stdout)["ops"] == 1
    bad = subprocess.run(run, input=HEADER + b"x", capture_output=True, check=True, env=_env())
    assert json.loads(bad.stdout)["error"].startswith("-:2: is not JSON")
    closed = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *run], capture_output=True, check=True, env=_env())
    assert "is standard input, which is closed" in json.loads(closed.stdout)["error"]


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_READ = """
import json, sys
from pathlib import Path
from kvsan.checker.trace import TraceError, open_trace
def peak():  # of this program alone: `ru_maxrss` would count the parent's
    status = Path("/proc/self/status")
    return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024 if status.exists() else 0
before, ops, error = peak(), 0, None
try:
    with open_trace(sys.argv[1]) as trace:
        for op in trace:
            ops += 1
except TraceError as caught:
    error = str(caught)
print(json.dumps({"ops": ops, "error": error, "mebibytes": peak() - before}))
"""


def _env() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def cost(path: Path | str, timeout: float = 60) -> dict[str, Any]:
    """What it takes a program to read a trace: `ops`, `error`, and the `mebibytes` that it grew by."""
    run = subprocess.run(
        [sys.executable, "-c", _READ, str(path)], capture_output=True, check=True, timeout=timeout, env=_env()
    )
    found: dict[str, Any] = json.loads(run.stdout)
    return found


LONGEST = 2.2 * (reader.MAX_LINE >> 20)
"""Mebibytes: the longest line in pieces and, for a moment, in one."""


@LINUX
def test_an_endless_line_from_a_device() -> None:
    found = cost("/dev/zero")
    assert "/dev/zero:1: is longer than 4 MiB" in found["error"]
    assert found["mebibytes"] < 20


@LINUX
def test_an_endless_line_from_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    written = 0

    def feed() -> None:
        nonlocal written
        with pipe.open("wb", buffering=0) as out:
            try:
                out.write(HEADER)
                while written < 200 << 20:
                    written += out.write(b"x" * (1 << 20))
            except BrokenPipeError:
                pass

    thread = threading.Thread(target=feed)
    thread.start()
    found = cost(pipe)
    thread.join(10)
    assert not thread.is_alive()
    assert "pipe:2: is longer than 64 MiB" in found["error"]
    assert found["mebibytes"] < LONGEST
    assert written < 200 << 20


@LINUX
def test_a_trace_from_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def feed() -> None:
        with pipe.open("wb", buffering=0) as out:
            for byte in zipped(GOOD):  # the first look at it finds one byte
                out.write(bytes([byte]))

    thread = threading.Thread(target=feed)
    thread.start()
    with open_trace(pipe) as trace:
        assert sum(1 for _ in trace) == 1
        assert trace.bytes_read() == 0
    thread.join(10)


@LINUX
@pytest.mark.parametrize(("start", "line", "limit"), [(b"", 1, 20), (HEADER, 2, LONGEST)])
def test_a_gzip_bomb(tmp_path: Path, start: bytes, line: int, limit: float) -> None:
    bomb = tmp_path / "bomb.jsonl.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as out:
        out.write(start)
        for _ in range(300):
            out.write(bytes(1 << 20))
    assert bomb.stat().st_size < 3 << 20
    found = cost(bomb)
    assert f"bomb.jsonl.gz:{line}: is longer than" in found["error"]
    assert found["mebibytes"] < limit


def _long(size: int, item: bytes) -> bytes:
    return item * (size // len(item))


@LINUX
@pytest.mark.parametrize(
    ("name", "line", "limit"),
    [
        ("range", lambda: READ % b"1-999999999999", 2),
        ("range within the format's bounds", lambda: READ % b"1-999999999999999999", 2),
        ("ids", lambda: READ % _long(60 << 20, b"1,"), 4 * 60),
        ("list", lambda: b"[" + _long(60 << 20, b"[],") + b"0]", LONGEST),
        ("reads", lambda: b'{"op":"access","by":"h","label":"x","reads":[' + _long(60 << 20, b"{},") + b"0]}", LONGEST),
        (
            "provenance",
            lambda: b'{"op":"access","by":"h","label":"x","x":[' + _long(60 << 20, b"[],") + b"0]}",
            LONGEST,
        ),
        ("op", lambda: b'{"op":"' + _long(60 << 20, b"a") + b'"}', LONGEST + 60),
        ("key", lambda: b'{"op":"access","' + _long(60 << 20, b"a") + b'":0}', LONGEST + 60),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hostile_line(tmp_path: Path, name: str, line: Callable[[], bytes], limit: float) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(HEADER + line() + b"\n")
    found = cost(path)
    assert "trace.jsonl:2: " in found["error"]
    assert found["mebibytes"] < limit


@LINUX
def test_long_lists_of_ids_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with path.open("wb") as out:
        out.write(header(pools={"gpu": 400_000}))
        for first in range(24):
            out.write(READ % b",".join(b"%d" % (2 * n + first % 2) for n in range(first, 80_000)))
    found = cost(path)
    assert (found["ops"], found["error"]) == (24, None)
    assert found["mebibytes"] < 60  # one of them takes 11


@LINUX
def test_a_long_trace_takes_no_more_memory(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "checker/kvsan/checker/data/traces/vllm-0.23.0-all.jsonl.gz"
    head, *ops = gzip.decompress(source.read_bytes()).splitlines()
    path = tmp_path / "trace.jsonl"
    with path.open("wb") as out:
        out.write(head + b"\n")
        for copy in range(300_000 // len(ops) + 1):
            tag = b'"token":"%d.' % copy
            out.write(b"\n".join(op.replace(b'"token":"', tag) for op in ops) + b"\n")
    assert path.stat().st_size > 20 << 20
    found = cost(path)
    assert found["error"] is None
    assert found["ops"] >= 300_000
    assert found["mebibytes"] < 20
