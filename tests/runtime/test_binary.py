"""The binary log: nothing is lost on the way to it and back, and what is damaged is said to be."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings

from kvsan.checker import TraceError, TraceWriter, check, open_trace
from kvsan.checker.cli import cli
from kvsan.checker.convert import convert
from kvsan.checker.trace import from_objects
from kvsan.checker.trace.header import Header
from kvsan.model.ops import Access, Alloc, Blocks, Drop, Free, Get, Op, Poll, Put, Record, Sync, Touch, Wait
from kvsan.runtime import binary as form
from kvsan.runtime.binary import CHUNK, LINES, MAGIC, PACKED, Log
from oracle import Op as Line
from random_traces import random_trace
from trace_strategies import traces

TRACES = sorted((Path(__file__).parents[2] / "checker/kvsan/checker/data/traces").glob("*.jsonl.gz"))
EVERY: list[Op] = [
    Access("h", "s", {"g": Blocks(((1, 5), (9, 10)))}, {"c": Blocks(((0, 1),))}, "x", "any", False, None, 3, "r", "a"),
    Access("h", None, {}, {"gpu": Blocks(((0, 1), (0, 1)))}, "", "call", True, 0, "s", 0, None, 0.5),
    Access("h", "s", {"gpu": Blocks(())}, step=1 << 70, t=-4),
    Access("h", "s", {"gpu": Blocks(((0, 1), (1, 2)))}, planned=0),
    Record("h", "s", "e", 0),
    Wait("h", "s", "e"),
    Sync("h", event="e"),
    Sync("h", stream="s", t=1),
    Sync("h", device=0),
    Sync("h", device="cuda:0", t=1 << 80),
    Poll("h", "e", False),
    Poll("h", "e", True, 2),
    Put("h", "t"),
    Get("i", "t", 3),
    Alloc("h", "gpu", Blocks(((0, 9),))),
    Free("h", "gpu", Blocks(((5, 9), (0, 5)))),
    Touch("h", "gpu", Blocks(())),
    Drop("h", 'evil "name"\n\x1b[0m é', 4),
]  # fmt: skip
HEADER = Header({"gpu": 10, "g": 10, "c": 1}, other={"engine": {"name": "x"}})


def read(path: Path, *, salvage: bool = False) -> tuple[Header, list[Op]]:
    with open_trace(path, salvage=salvage) as trace:
        return trace.header, list(trace)


def read_accesses(path: Path) -> list[Access]:
    return [op for op in read(path)[1] if isinstance(op, Access)]


def write(path: Path, header: Header, ops: list[Op], **more: Any) -> None:
    with Log(path, header=lambda whole, lost: header.document(), **more) as out:
        out.open()
        for op in ops:
            out.write(op)


@pytest.mark.parametrize("words", [4, 1 << 16])
def test_every_op(tmp_path: Path, words: int) -> None:
    write(tmp_path / "t.kvt", HEADER, EVERY, words=words)
    assert read(tmp_path / "t.kvt") == (HEADER, EVERY)
    assert {type(op) for op in EVERY} == set(Op.__args__)


@pytest.mark.parametrize("words", [4, 1 << 16])
def test_random_traces(tmp_path: Path, words: int) -> None:
    """A segment of four words: nearly each line is in a chunk of its own, and some in one that is made for it."""
    for seed in range(60):
        trace = from_objects(*random_trace(seed))
        ops = list(trace)
        write(tmp_path / "t.kvt", trace.header, ops, words=words, ring=2)
        assert read(tmp_path / "t.kvt") == (trace.header, ops), f"seed {seed}"


VERSION_1 = Path(__file__).parent / "data/version_1.kvt"
"""`write(…, HEADER, EVERY, words=6)` of a kvsan that wrote version 1."""


def test_a_log_of_version_1(tmp_path: Path) -> None:
    """It reads as ever, converts to one of today, and what is cut off of it is found."""
    data = VERSION_1.read_bytes()
    assert data[: len(MAGIC)] == form.MARK + (1).to_bytes(4, "little")
    assert read(VERSION_1) == (HEADER, EVERY)
    convert(str(VERSION_1), str(tmp_path / "t.kvt"))
    assert (tmp_path / "t.kvt").read_bytes()[: len(MAGIC)] == MAGIC
    assert read(tmp_path / "t.kvt") == (HEADER, EVERY)
    (tmp_path / "cut.kvt").write_bytes(data[:-1])
    with pytest.raises(TraceError, match="is cut off"):
        read(tmp_path / "cut.kvt")


def test_what_msgpack_has_not_got(tmp_path: Path) -> None:
    """A segment with an int past 64 bits is JSON, and only that; its few ids are a list there."""
    path = tmp_path / "t.kvt"
    with Log(path, lines=1) as out:
        out.pool("gpu", 9)
        for step in (1 << 63, 1 << 64, 1 << 70):
            out.access("x", by="h", on="s", reads={"gpu": np.array([7, 3])}, step=step)
    assert [tag for tag, _, _ in chunks(path.read_bytes()) if tag != b"HEAD"] == [PACKED, LINES, LINES]
    assert [(op.step, str(op.reads["gpu"])) for op in read_accesses(path)] == [
        (1 << 63, "3,7"),
        (1 << 64, "3,7"),
        (1 << 70, "3,7"),
    ]


def test_without_msgspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "_to_msgpack", None)
    write(tmp_path / "t.kvt", HEADER, EVERY)
    assert {tag for tag, _, _ in chunks((tmp_path / "t.kvt").read_bytes())} == {b"HEAD", LINES}
    assert read(tmp_path / "t.kvt") == (HEADER, EVERY)


def test_few_ids_and_many(tmp_path: Path) -> None:
    """On both sides of what stands in its line, in any mixture, in accesses, copies and lives."""
    path = tmp_path / "t.kvt"
    rng = np.random.default_rng(1)
    expected: list[list[int]] = []
    with Log(path, words=5000, lines=9, ring=2) as out:
        out.pool("gpu", 5000)
        out.pool("cpu", 5000)
        for _ in range(60):
            one, two = (
                rng.permutation(5000)[: rng.choice([1, form.FEW - 1, form.FEW, form.FEW + 1, 1000])] for _ in "ab"
            )
            out.access("x", "h", "s", {"gpu": one}, {"gpu": two})
            out.copy("y", "h", "s", "gpu", one, "cpu", one[::-1], "any", None, None, None)
            out.alloc("gpu", two, "h")
            out.free("gpu", two.astype(np.int32), "h")
            expected += [one.tolist(), two.tolist(), one.tolist(), one[::-1].tolist(), two.tolist(), two.tolist()]
    found: list[Any] = []
    for op in read(path)[1]:
        assert isinstance(op, Access | Alloc | Free)
        sets = [*op.reads.values(), *op.writes.values()] if isinstance(op, Access) else [op.blocks]
        found += [getattr(blocks, "ids", np.empty(0)).tolist() for blocks in sets]
    assert found == expected


@given(traces())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_drawn_traces(tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Line, list[Line]]) -> None:
    trace = from_objects(*drawn)
    ops = list(trace)
    path = tmp_path_factory.mktemp("drawn") / "t.kvt"
    write(path, trace.header, ops)
    assert read(path) == (trace.header, ops)


def test_unknown_keys_go_along(tmp_path: Path) -> None:
    lines = [
        {"kvsan_trace": 1, "pools": {"gpu": 9}, "streams": {"s": {"lane": 3}}, "who": ["me"], "start": "fresh"},
        {"op": "access", "by": "h", "on": "s", "label": "x", "reads": {"gpu": "1,2-3"}, "bytes": 12, "was": {"a": [1]}},
        {"op": "record", "by": "h", "on": "s", "event": "e", "handle": "0x1"},
        {"op": "alloc", "by": "h", "pool": "gpu", "ids": "4", "request": None},
    ]
    lines[0]["streams"]["s"] |= {"device": 0, "kind": "nonblocking"}  # type: ignore[index]
    first, log, again = tmp_path / "a.jsonl", tmp_path / "b.kvt", tmp_path / "c.jsonl"
    first.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert convert(str(first), str(log)) == convert(str(log), str(again)) == 3
    assert list(map(json.loads, again.read_text().splitlines())) == lines


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
def test_recorded_traces(tmp_path: Path, path: Path) -> None:
    """There and back; and the verdict on the log is the verdict on the lines."""
    lines, log, again = tmp_path / "a.jsonl", tmp_path / "b.kvt", tmp_path / "c.jsonl"
    convert(str(path), str(lines))
    convert(str(lines), str(log))
    convert(str(log), str(again))
    assert again.read_bytes() == lines.read_bytes()
    assert log.stat().st_size < lines.stat().st_size
    given, found = check(str(path)).document(), check(str(log)).document()
    assert {**found, "trace": ""} == {**given, "trace": ""}
    assert len(lines.read_bytes().splitlines()) == len(gzip.decompress(path.read_bytes()).splitlines())


# ── ids as they come ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_arrays(tmp_path: Path) -> None:
    """Repeats and their order are kept in a batch, and are one id elsewhere. The caller may reuse its array."""
    with Log(tmp_path / "t.kvt", words=1 << 9, ring=2) as out:
        out.pool("gpu", 5000)
        out.stream("s")
        ids = np.array([7, 3, 3, 4999])
        with out.lock:
            out.access("copy", by="h", on="s", writes={"gpu": ids}, batch=True)
            ids[:] = 0
            out.access("read", by="h", on="s", reads={"gpu": np.array([7, 3, 3, 4, 4999], np.uint16)})
            out.alloc("gpu", np.array([9, 8]), "h")
            out.access("long", by="h", on="s", reads={"gpu": np.arange(5000)[::-1]})
    header, ops = read(tmp_path / "t.kvt")
    assert header.pools == {"gpu": 5000}
    assert header.hooks == header.expects.hooks == {"kvsan stayed on": 1}
    copy, forward, alloc, long = ops
    assert isinstance(copy, Access)
    assert isinstance(forward, Access)
    assert isinstance(alloc, Alloc)
    assert isinstance(long, Access)
    assert str(copy.writes["gpu"]) == "7,3,3,4999"
    assert copy.writes["gpu"].repeats
    assert str(forward.reads["gpu"]) == "3-4,7,4999"
    assert str(alloc.blocks) == "8-9"
    assert str(long.reads["gpu"]) == "0-4999"
    times = [op.t for op in ops]
    assert None not in times
    assert times == sorted(times, key=lambda t: t or 0)


def test_a_block_that_the_pool_has_not_got(tmp_path: Path) -> None:
    for bad in (-1, 10):
        with Log(tmp_path / "t.kvt") as out:
            out.pool("gpu", 10)
            out.access("x", by="h", on="s", reads={"gpu": np.array([1, bad])})
        with pytest.raises(TraceError, match=f"block {bad}"):
            read(tmp_path / "t.kvt")


# ── blocking calls ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_call_that_fails_orders_nothing(tmp_path: Path) -> None:
    with Log(tmp_path / "t.kvt") as out:
        out.pool("gpu", 9)
        with out.blocking(event="good", by="h"):
            out.record("s", "within", "i")
        with pytest.raises(KeyError), out.blocking(event="bad", by="h"):
            raise KeyError
        for number, op in enumerate([Sync("h", stream="s"), Sync("h", device="d")]):
            out.settle(out.hold(op), done=bool(number))
    ops = read(tmp_path / "t.kvt")[1]
    assert [str(type(op).__name__) for op in ops] == ["Sync", "Record", "Poll", "Put", "Sync"]
    assert isinstance(ops[2], Poll)
    assert not ops[2].done


def test_a_call_that_outlasts_the_ring(tmp_path: Path) -> None:
    """Lines go on in the ring until it is full; then the call's line is given up, and its return is an unseen edge."""
    with Log(tmp_path / "t.kvt", lines=5, ring=3) as out:
        out.pool("gpu", 9)
        inside = out.blocking(event="slow", by="h")
        with inside:
            for number in range(100):
                out.put(f"t{number}", "i")
        with out.blocking(event="quick", by="h"):
            pass
    header, ops = read(tmp_path / "t.kvt")
    assert ops[0].by == "h"
    assert isinstance(ops[0], Poll)
    assert isinstance(ops[-1], Sync)
    assert [op.token for op in ops if isinstance(op, Put)] == [f"t{number}" for number in range(100)]
    assert header.unseen.edges == 1


def test_a_call_that_is_out_at_the_end(tmp_path: Path) -> None:
    out = Log(tmp_path / "t.kvt")
    out.hold(Sync("h", event="e"))
    out.put("t", "i")
    out.close()
    assert [type(op) for op in read(tmp_path / "t.kvt")[1]] == [Poll, Put]


def read_or_error(path: Path) -> tuple[Header, list[Op]] | None:
    """`None`: there was an error, of one line."""
    caught: list[TraceError] = []
    try:
        return read(path)
    except TraceError as error:
        caught.append(error)
    assert "\n" not in str(caught[0])
    return None


# ── files that end early, or badly ────────────────────────────────────────────────────────────────────────────────────


def log_of(path: Path, count: int = 400) -> bytes:
    with Log(path, lines=64) as out:
        out.pool("gpu", 64)
        out.stream("s")
        for number in range(count):
            out.access("read", by="h", on="s", reads={"gpu": np.array([number % 64])})
    return path.read_bytes()


def chunks(data: bytes) -> list[tuple[bytes, int, int]]:
    """(tag, where it starts, where it ends)"""
    found, at = [], len(MAGIC)
    while at < len(data):
        tag, size, _, _ = CHUNK.unpack_from(data, at)
        found.append((tag, at, at + CHUNK.size + size))
        at = found[-1][2]
    return found


def test_a_log_that_was_not_closed_is_incomplete(tmp_path: Path) -> None:
    """The process was killed: what was written reads, and is never Clean. Its twin was closed."""
    path = tmp_path / "t.kvt"
    data = log_of(path)
    assert check(str(path)).verdict.name == "clean"
    path.write_bytes(data[: chunks(data)[-2][1]])  # less the last lines and the header that says it was whole
    report = check(str(path))
    assert report.verdict.name == "incomplete"
    assert 0 < report.ops < 400


def test_a_flush_in_the_middle(tmp_path: Path) -> None:
    path, copy = tmp_path / "t.kvt", tmp_path / "copy.kvt"
    with Log(path) as out:
        out.pool("gpu", 64)
        out.put("a", "h")
        with out.blocking(event="e", by="h"):
            out.flush_now()
            copy.write_bytes(path.read_bytes())
        out.put("b", "h")
        out.flush_now()
        out.put("c", "h")
    assert [type(op) for op in read(path)[1]] == [Put, Sync, Put, Put]
    header, ops = read(copy)
    assert header.pools == {"gpu": 64}
    assert header.hooks["kvsan stayed on"] == 0
    assert [type(op) for op in ops] == [Put, Poll]


def test_cut_off_and_salvaged(tmp_path: Path) -> None:
    path = tmp_path / "t.kvt"
    data = log_of(path)
    whole = read(path)[1]
    parts = [part for part in chunks(data) if part[0] == PACKED]
    for _, start, end in (parts[1], parts[-1]):
        for at in (start + 1, start + CHUNK.size, end - 1):
            path.write_bytes(data[:at])
            with pytest.raises(TraceError, match=rf"is cut off at byte {start}, after \d+ whole ops; .*--salvage"):
                read(path)
            header, ops = read(path, salvage=True)
            assert header.hooks["kvsan stayed on"] == 0
            assert ops == whole[: len(ops)]
            assert 0 < len(ops) < len(whole)


def test_damaged_and_salvaged(tmp_path: Path) -> None:
    path, saved = tmp_path / "t.kvt", tmp_path / "saved.jsonl"
    data = log_of(path)
    whole = read(path)[1]
    _, start, end = [part for part in chunks(data) if part[0] == PACKED][2]
    for at in (start, start + 5, start + 9, start + CHUNK.size + 40, end - 1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        with pytest.raises(TraceError, match=r"is (damaged|cut off)"):
            read(path)
        with pytest.raises(TraceError):
            convert(str(path), str(saved))
        assert not saved.exists()
        count = convert(str(path), str(saved), salvage=True)
        assert read(saved)[1] == whole[:count]
        assert check(str(saved)).verdict.name == "incomplete"
        saved.unlink()


@pytest.mark.parametrize("seed", range(40))
def test_any_damage_is_one_clear_error(tmp_path: Path, seed: int) -> None:
    """Bytes changed anywhere: an error, never another exception; unless it hit the one part without a sum."""
    rng = np.random.default_rng(seed)
    path = tmp_path / "t.kvt"
    data = bytearray(log_of(path, 100))
    before = read(path)
    for at in rng.integers(0, len(data), 1 + seed % 3):
        data[at] ^= int(rng.integers(1, 256))
    path.write_bytes(data)
    assert read_or_error(path) in (before, None), f"seed {seed}"


def test_what_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "t.kvt"
    for data, wrong in [
        (MAGIC[:4], "is no kvsan log"),
        (MAGIC[:9], "is cut off in its first bytes"),
        (MAGIC[:8] + (3).to_bytes(4, "little"), "is a log of version 3; accepted: version 1 or 2"),
        (MAGIC, "has no header"),
    ]:
        path.write_bytes(data)
        with pytest.raises(TraceError, match=wrong):
            read(path)


def test_records_that_make_no_sense_under_a_good_sum(tmp_path: Path) -> None:
    path = tmp_path / "t.kvt"
    data = log_of(path, 10)
    tag, start, end = next(part for part in chunks(data) if part[0] == PACKED)
    rng = np.random.default_rng(5)
    for _ in range(200):
        body = bytearray(data[start + CHUNK.size : end])
        body[int(rng.integers(len(body)))] = int(rng.integers(256))
        head = CHUNK.pack(tag, len(body), zlib.crc32(body), 10)
        path.write_bytes(data[:start] + head + body + data[end:])
        read_or_error(path)


WRONG: list[tuple[list[Any], str]] = [
    ([form.PUT, "h", None, ["t", {"x": datetime.now(UTC)}], 1], "a value of type datetime"),
    ([form.PUT, "h", None, ["t", {"x": [b""]}], 1], "a value of type bytes"),
    ([form.PUT, "h", None, ["t", {1: 2}], 1], "a name that is no text"),
    ([form.PUT, "h", None, b"t", 1], "a name that is no text"),
    ([form.PUT, "h", None, "t", True], "a time that is no number"),
    ([form.PUT, "h", None, "t"], "not enough values"),
    ([form.ALLOC, "h", "gpu", b"", 1], "a set that is none"),
    ([form.ALLOC, "h", "gpu", b"1234567", 1], "buffer size"),
    ([form.ALLOC, "h", "gpu", [True], 1], "a set that is none"),
    ([form.ALLOC, "h", "gpu", 3, 1], "a set that is cut off"),
    ([form.ACCESS, "h", "s", "x", 1, 0, None, None, None, 1, 1, "gpu", b"12345678"], "sets that are cut off"),
    ([form.ACCESS, "h", "s", "x", 1, 0, None, None, None, 2, -1, "gpu", b"12345678"], "sets that are cut off"),
    ([99, "h", None, "t", 1], "a line of kind 99"),
]


@pytest.mark.parametrize(("line", "wrong"), WRONG, ids=[wrong for _, wrong in WRONG])
def test_what_no_log_says(tmp_path: Path, line: list[Any], wrong: str) -> None:
    """Under a good sum, and in what msgpack can say: it is data all the same, and of the wrong type."""
    path = tmp_path / "t.kvt"
    data = log_of(path, 10)
    tag, start, end = next(part for part in chunks(data) if part[0] == PACKED)
    body = form.COUNT.pack(0) + msgspec.msgpack.encode(line)
    path.write_bytes(data[:start] + CHUNK.pack(tag, len(body), zlib.crc32(body), 1) + body + data[end:])
    with pytest.raises(TraceError, match=wrong):
        read(path)


# ── errors of the file ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """The engine goes on; whoever closes the log hears of it."""
    heard: list[Exception] = []
    out = Log(tmp_path / "none" / "t.kvt", on_fault=heard.append)
    for _ in range(3):
        out.put("t", "h")
    with pytest.raises(FileNotFoundError):
        out.close()
    assert len(heard) == 1
    assert out.ops == 3


def test_a_disk_that_is_full() -> None:
    heard: list[Exception] = []
    out = Log("/dev/full", on_fault=heard.append, lines=9, ring=2)
    for number in range(500):
        out.put(f"t{number}", "h")
    with pytest.raises(OSError, match="No space"):
        out.close()
    assert len(heard) == 1


def test_a_run_without_a_line_leaves_no_file(tmp_path: Path) -> None:
    with Log(tmp_path / "t.kvt") as out:
        out.pool("gpu", 9)
    assert not (tmp_path / "t.kvt").exists()


def test_converting_says_what_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "t.kvt"
    log_of(path)
    with pytest.raises(TraceError, match=r"accepted: a name that ends in \.jsonl, \.jsonl\.gz, \.kvt"):
        convert(str(path), str(tmp_path / "t.json"))
    with pytest.raises(TraceError, match="is the trace that is read"):
        convert(str(path), str(path))
    with pytest.raises(TraceError, match="cannot be written"):
        convert(str(path), str(tmp_path / "none" / "t.jsonl"))


def test_a_writer_takes_lines_and_logs(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.jsonl", HEADER) as out:
        for op in EVERY:
            out.write(op)
    convert(str(tmp_path / "t.jsonl"), str(tmp_path / "t.kvt"))
    assert read(tmp_path / "t.kvt") == (HEADER, EVERY)


# ── processes and the command line ────────────────────────────────────────────────────────────────────────────────────

KILLED = """
import os, sys, time
from kvsan.runtime.binary import Log
out = Log(sys.argv[1])
out.pool("gpu", 9)
end = time.monotonic() + 0.5
while time.monotonic() < end:
    out.put(f"t{out.ops}", "h")
time.sleep(0.2)
os.kill(os.getpid(), 9)
"""


def test_a_process_that_is_killed(tmp_path: Path) -> None:
    """What it leaves reads to its last flush, and is not whole."""
    path = tmp_path / "t.kvt"
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(str(root / name) for name in ("model", "runtime"))}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=env, check=False)
    assert done.returncode == -9
    header, ops = read(path)
    assert header.hooks["kvsan stayed on"] == 0
    assert header.pools == {"gpu": 9}
    assert [op.token for op in ops if isinstance(op, Put)] == [f"t{number}" for number in range(len(ops))]
    assert len(ops) > 10


def test_the_command_line(tmp_path: Path) -> None:
    path, lines = tmp_path / "t.kvt", tmp_path / "t.jsonl"
    data = log_of(path)
    run = CliRunner()
    assert run.invoke(cli, ["check", str(path)]).exit_code == 0
    assert run.invoke(cli, ["convert", str(path), str(lines)]).exit_code == 0
    assert read(lines) == read(path)
    path.write_bytes(data[: len(data) // 2])
    for command in (["check", str(path)], ["convert", str(path), str(lines)]):
        bad = run.invoke(cli, command)
        assert bad.exit_code == 2
        assert "whole ops; accepted: an undamaged file" in bad.stderr
        assert bad.stderr.count("\n") == 1
    assert run.invoke(cli, ["convert", "--salvage", str(path), str(lines)]).exit_code == 0
    assert run.invoke(cli, ["check", str(lines)]).exit_code == 3


def test_a_log_through_a_pipe(tmp_path: Path) -> None:
    """It cannot be read twice, and the header that counts is its last."""
    path = tmp_path / "t.kvt"
    log_of(path)
    end, start = os.pipe()
    with os.fdopen(start, "wb") as pipe:
        assert len(path.read_bytes()) < 1 << 16  # it fits into the pipe
        pipe.write(path.read_bytes())
    assert read(Path(f"/dev/fd/{end}")) == read(path)
    os.close(end)


def test_a_signal_while_the_log_waits_for_room(tmp_path: Path) -> None:
    """The segment that was handed on is the writer's: what is logged afterwards stands in another one, once."""
    path, writes = tmp_path / "t.kvt", threading.Event()

    class Impatient:
        def get(self) -> None:
            raise KeyboardInterrupt

        def put(self, _: None) -> None:
            """Somebody may wait."""

    with Log(path, lines=4, ring=2) as out:
        out.put("0", "host")

        def busy(fd: int) -> None:
            writes.wait(60)

        out._work.put(busy)
        freed, out._freed = out._freed, Impatient()  # type: ignore[assignment]
        said = ["0"]

        def says(lines: int) -> None:
            for _ in range(lines):
                said.append(str(len(said)))
                out.put(said[-1], "host")

        with pytest.raises(KeyboardInterrupt):
            says(100)
        assert len(said) == 8, "two segments of four"
        out._freed = freed
        says(3)
        writes.set()
        says(6)
    with open_trace(str(path)) as trace:
        assert [getattr(op, "token", None) for op in trace] == said
