"""The traced device: each call is made, once, and its line stands where TRACE.md says."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsan.checker import check, open_trace
from kvsan.checker.options import Options
from kvsan.checker.session import KvsanHazard, Session
from kvsan.checker.watched import ToLog
from kvsan.model.ops import Access, Alloc, Drop, Free, Get, Op, Poll, Put, Record, Sync, Touch, Wait
from kvsan.runtime.binary import Log
from kvsan.runtime.device import Copy, Device, DeviceError, Ids, Kernel
from kvsan.runtime.tracing import Sink, Tee, Traced
from runtime.null import NullDevice


def ids(*blocks: int) -> Ids:
    return np.array(blocks, np.int64)


class Run:
    """A null device, traced into a file."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.inner = NullDevice()
        self.log = Log(path)
        sink: Sink = self.log
        self.device: Device = Traced(self.inner, sink, **options)
        self.host = self.device.host("host")
        for name in ("compute", "load", "store"):
            self.device.stream(name, side=name != "compute")
        self.device.memory("gpu", (2, 64, 8), host=False)
        self.device.memory("cpu", (2, 32, 8), host=True)

    def ops(self) -> list[Op]:
        self.log.close()
        with open_trace(self.path) as trace:
            self.header = trace.header
            return list(trace)

    def lines(self) -> list[str]:
        return [spelt(op) for op in self.ops()]


def spelt(op: Op) -> str:
    match op:
        case Access():
            parts = [op.by, op.label, op.on or "-"]
            parts += [f"r {pool} {blocks}" for pool, blocks in op.reads.items()]
            parts += [f"w {pool} {blocks}" for pool, blocks in op.writes.items()]
            parts += [op.order] * (op.order != "stream") + ["batch"] * op.batch
            parts += [f"planned {op.planned}"] * (op.planned is not None) + [f"step {op.step}"] * (op.step is not None)
            return " ".join(parts)
        case Record() | Wait():
            return f"{op.by} {type(op).__name__.lower()} {op.on} {op.event}"
        case Sync() | Drop():
            return f"{op.by} {type(op).__name__.lower()} {op.event}"
        case Poll():
            return f"{op.by} poll {op.event} {op.done}"
        case Put() | Get():
            return f"{op.by} {type(op).__name__.lower()} {op.token}"
        case Alloc() | Free() | Touch():
            return f"{op.by} {type(op).__name__.lower()} {op.pool} {op.blocks}"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path / "t.kvt")
    yield made
    made.log.close()


def test_each_call_has_its_line(run: Run) -> None:
    host = run.host
    host.alloc("gpu", ids(3, 4, 9))
    host.launch("compute", Kernel("forward", {"gpu": ids(9, 3)}, {"gpu": ids(4)}, step=1))
    host.record("compute", "done#1")
    host.wait("store", "done#1")
    host.copy("store", Copy("store", "gpu", ids(9, 3), "cpu", ids(0, 1), "any", 1))
    host.put("jobs", "a job")
    assert run.device.host("copier").get("jobs") == "a job"
    assert host.query("done#1")
    run.inner.done = False
    assert not host.query("done#1")
    host.sync("done#1")
    host.work(Kernel("check", {"cpu": ids(0)}))
    host.free("gpu", ids(3, 4))
    host.touch("gpu", ids(3))
    host.drop("done#1")
    assert run.lines() == [
        "host alloc gpu 3-4,9",
        "host forward compute r gpu 3,9 w gpu 4 step 1",
        "host record compute done#1",
        "host wait store done#1",
        "host store store r gpu 9,3 w cpu 0-1 any batch step 1",
        "host put jobs#1",
        "copier get jobs#1",
        "host poll done#1 True",
        "host poll done#1 False",
        "host sync done#1",
        "host check - r cpu 0",
        "host free gpu 3-4",
        "host touch gpu 3",
        "host drop done#1",
    ]
    assert run.inner.calls is not None
    calls = "alloc launch record wait copy put get query query sync work free touch drop"
    assert " ".join(call[1] for call in run.inner.calls) == calls
    assert run.header.pools == {"gpu": 64, "cpu": 32}
    assert list(run.header.streams) == ["compute", "load", "store"]


def test_what_touches_nothing_has_no_line(run: Run) -> None:
    host, none = run.host, ids()
    host.launch("compute", Kernel("forward", {"gpu": none}, {}))
    host.copy("load", Copy("load", "cpu", none, "gpu", none))
    host.alloc("gpu", none)
    host.plan("gpu", none, "store")
    assert host.get("jobs") is None
    host.launch("compute", Kernel("forward", {"gpu": none, "cpu": ids(1)}, {}))  # the twin
    assert run.lines() == ["host forward compute r cpu 1"]


def test_an_item_is_handed_on_as_it_is(run: Run) -> None:
    """The same object twice is two tokens; what was put past the wrapper comes out of it."""
    item, host = object(), run.host
    host.put("a", item)
    host.put("a", item)
    run.inner.queues["a"].append(item)
    assert [host.get("a") for _ in range(4)] == [item, item, item, None]
    assert run.lines() == ["host put a#1", "host put a#2", "host get a#1", "host get a#2"]


# ── calls that fail ───────────────────────────────────────────────────────────────────────────────────────────────────

CALLS = {
    "record": lambda host: host.record("load", "e"),
    "wait": lambda host: host.wait("load", "e"),
    "query": lambda host: host.query("e"),
    "drop": lambda host: host.drop("e"),
    "put": lambda host: host.put("q", 1),
    "get": lambda host: host.get("q"),
    "copy": lambda host: host.copy("load", Copy("load", "cpu", ids(1), "gpu", ids(1))),
    "launch": lambda host: host.launch("compute", Kernel("forward", {"gpu": ids(1)})),
    "work": lambda host: host.work(Kernel("check", {"cpu": ids(1)})),
    "alloc": lambda host: host.alloc("gpu", ids(1)),
    "free": lambda host: host.free("gpu", ids(1)),
    "touch": lambda host: host.touch("gpu", ids(1)),
    "plan": lambda host: host.plan("gpu", ids(1), "store"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_refused_has_no_line(run: Run, call: str) -> None:
    run.inner.refuse = DeviceError("no")
    with pytest.raises(DeviceError):
        CALLS[call](run.host)
    run.host.record("load", "after")
    assert run.lines() == ["host record load after"]


def test_a_sync_that_fails_orders_nothing(run: Run) -> None:
    run.inner.refuse = DeviceError("no")
    with pytest.raises(DeviceError):
        run.host.sync("e")
    assert run.lines() == ["host poll e False"]


@pytest.mark.parametrize("call", ["launch", "work"])
def test_a_kernel_that_raises_on_its_way_has_a_line(run: Run, call: str) -> None:
    """Some of its parts were issued."""
    run.inner.refuse = ValueError("in the third part")
    with pytest.raises(ValueError, match="third"):
        CALLS[call](run.host)
    assert len(run.lines()) == 1


# ── threads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lines_are_in_the_order_of_the_calls(run: Run) -> None:
    """Four threads; the device's own list of calls is the truth."""

    def work(name: str) -> None:
        host = run.device.host(name)
        for number in range(300):
            host.record(name, f"{name}#{number}")
            host.query(f"{name}#{number}")
            host.launch(name, Kernel("forward", {"gpu": ids(number % 64)}))
            if not number % 50:
                host.sync(f"{name}#{number}")

    for name in "abcd":
        run.device.stream(name, side=True)
    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kinds = {"Record": "record", "Poll": "query", "Access": "launch"}
    made = [(op.by, kinds[type(op).__name__]) for op in run.ops() if not isinstance(op, Sync)]
    assert run.inner.calls is not None
    assert made == [(by, call) for by, call, *_ in run.inner.calls if call != "sync"]
    assert len(made) == 4 * 900


def test_a_sync_stands_at_its_entry_and_holds_no_lock(run: Run) -> None:
    """Another thread goes on while it blocks; what that issues stands behind the sync's line."""

    def other() -> None:
        run.device.host("copier").record("load", "e")

    def blocked() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()

    run.inner.blocked = blocked
    run.host.sync("e")
    assert run.lines() == ["host sync e", "copier record load e"]


def test_no_line_stands_within_a_launch(run: Run) -> None:
    inside = threading.Event()

    def other() -> None:
        inside.wait(10)
        run.device.host("copier").record("compute", "e")

    def slow() -> None:
        inside.set()
        time.sleep(0.05)

    thread = threading.Thread(target=other)
    thread.start()
    run.host.launch("compute", Kernel("forward", {"gpu": ids(1)}, parts=[slow, slow]))
    thread.join()
    assert run.lines() == ["host forward compute r gpu 1", "copier record compute e"]


def test_a_thread_of_the_device_is_traced(run: Run) -> None:
    def turn() -> bool:
        return run.device.host("copier").get("jobs") is not None

    run.device.thread("copier", turn)
    run.host.put("jobs", 1)
    run.device.turns()
    assert run.lines() == ["host put jobs#1", "copier get jobs#1"]


def test_a_load_is_not_as_old_as_the_store_that_was_decided_before_it(run: Run) -> None:
    """The block changes hands between the two decisions: the load is the new owner's and of the right generation."""
    run.host.alloc("gpu", ids(1))
    run.host.plan("gpu", ids(1), "store")
    run.host.free("gpu", ids(1))
    run.host.alloc("gpu", ids(1))
    run.host.plan("gpu", ids(1), "load")
    run.host.copy("load", Copy("load", "cpu", ids(0), "gpu", ids(1)))
    run.host.copy("store", Copy("store", "gpu", ids(1), "cpu", ids(2)))
    assert [line.rpartition("planned ")[2] for line in run.lines()[-2:]] == ["2", "0"]


# ── what was planned ──────────────────────────────────────────────────────────────────────────────────────────────────


def store(run: Run, *blocks: int) -> None:
    run.host.copy("store", Copy("store", "gpu", ids(*blocks), "cpu", ids(*range(len(blocks)))))


def test_a_copy_of_what_was_decided(run: Run) -> None:
    run.host.alloc("gpu", ids(1, 2))
    run.host.plan("gpu", ids(1), "store")
    run.host.record("compute", "e")
    run.host.plan("gpu", ids(2), "store")
    store(run, 1, 2)
    assert run.lines()[-1] == "host store store r gpu 1-2 w cpu 0-1 batch planned 1"
    assert not check(str(run.path)).hazards


def test_blocks_that_nobody_decided_on(run: Run) -> None:
    """A target that was allocated after the decision is no wrong generation."""
    run.host.alloc("gpu", ids(1))
    run.host.plan("gpu", ids(1), "store")
    run.host.alloc("cpu", ids(0))
    store(run, 1)
    store(run, 2)
    assert [line.partition("batch")[2] for line in run.lines()[-2:]] == ["", ""]
    assert not check(str(run.path)).hazards


def test_a_wrong_generation_is_found_and_only_that(run: Run) -> None:
    """Block 1 was freed and handed out again since its store was decided, block 2 decided on after that."""
    host = run.host
    host.alloc("gpu", ids(1, 2))
    host.plan("gpu", ids(1), "store")
    host.free("gpu", ids(1, 2))
    host.alloc("gpu", ids(1, 2))
    host.plan("gpu", ids(2), "store")
    store(run, 2, 1)
    assert run.lines()[-2:] == [
        "host store store r gpu 1 w cpu 1 batch planned 0",
        "host store store r gpu 2 w cpu 0 batch planned 2",
    ]
    found = check(str(run.path)).hazards
    assert [(hazard.kind.value, hazard.pool, str(hazard.blocks)) for hazard in found] == [("GEN", "gpu", "1")]


def test_decided_anew_it_is_the_right_generation(run: Run) -> None:
    host = run.host
    for _ in range(3):
        host.alloc("gpu", ids(1))
        host.plan("gpu", ids(1), "store")
        store(run, 1)
        host.free("gpu", ids(1))
    assert len(run.ops()) == 9
    assert not [h for h in check(str(run.path)).hazards if h.kind.value == "GEN"]


@pytest.mark.parametrize("seed", range(30))
def test_generations_against_the_rule(tmp_path: Path, seed: int) -> None:
    """Random lives, decisions and copies: GEN is reported of exactly the blocks that the rule names, block by block."""
    rng = np.random.default_rng(seed)
    run = Run(tmp_path / "t.kvt")
    host, wrong = run.host, set()
    decided: dict[int, int] = {}
    born: dict[int, int] = {}
    host.record("compute", "e")
    for now in range(1, 60):
        blocks = rng.permutation(12)[: rng.integers(1, 6)]
        match rng.integers(4):
            case 0:
                host.free("gpu", blocks)
                host.alloc("gpu", blocks)
                born |= dict.fromkeys(blocks.tolist(), now)
            case 1:
                host.plan("gpu", blocks, "store")
                decided |= dict.fromkeys(blocks.tolist(), now)
            case _:
                host.copy("store", Copy("store", "gpu", blocks, "cpu", np.arange(len(blocks))))
                wrong |= {b for b in blocks.tolist() if b in decided and born.get(b, 0) > decided[b]}
    run.log.close()
    found = {b for h in check(str(run.path)).hazards if h.kind.value == "GEN" for b in h.blocks}
    assert found == wrong, f"seed {seed}"


# ── provenance ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sites_and_prefixes(tmp_path: Path) -> None:
    run = Run(tmp_path / "t.kvt", sites=True, prefix="2.", suffix=".77")
    run.host.launch("compute", Kernel("forward", {"gpu": ids(1)}))
    run.host.copy("load", Copy("load", "cpu", ids(1), "gpu", ids(1)))
    run.host.put("q", 1)
    run.host.record("load", "e")
    forward, load, put, record = run.ops()
    assert isinstance(forward, Access)
    assert isinstance(load, Access)
    assert forward.site is not None
    assert forward.site.startswith("runtime/test_tracing.py:")
    assert load.site != forward.site
    assert load.reads.keys() == {"2.cpu"}
    assert spelt(put) == "2.host put 2.q#1.77"
    assert spelt(record) == "2.host record 2.load 2.e"


# ── the session ───────────────────────────────────────────────────────────────────────────────────────────────────────


def step(host: Any, number: int, *, fenced: bool) -> None:
    """A forward reads what the load of the next step overwrites."""
    blocks = ids(2 * number, 2 * number + 1)
    host.launch("compute", Kernel("forward", {"gpu": blocks}, step=number))
    host.record("compute", f"done#{number}")
    if fenced:
        host.wait("load", f"done#{number}")
    host.copy("load", Copy("load", "cpu", blocks, "gpu", blocks, "any", number))


def drive(session: Session, *, fenced: bool, steps: int = 3) -> NullDevice:
    inner = NullDevice()
    device = session.watch(inner)
    assert isinstance(device, Traced)
    for name in ("compute", "load"):
        device.stream(name, side=name == "load")
    device.memory("gpu", (1, 64), host=False)
    device.memory("cpu", (1, 64), host=True)
    for number in range(steps):
        step(device.host("host"), number, fenced=fenced)
    return inner


def options(tmp_path: Path, **more: Any) -> Options:
    return Options(log_path=str(tmp_path / "log.txt"), incident_path=str(tmp_path / "i-%n.jsonl"), **more)


@pytest.mark.parametrize("fenced", [True, False])
def test_checked_in_the_process(tmp_path: Path, fenced: bool) -> None:
    session = Session(options(tmp_path))
    drive(session, fenced=fenced)
    seen = session.close()
    assert seen.verdict.name == ("clean" if fenced else "racy")
    assert [(f.hazard.kind.value, f.hazard.pool, f.blocks) for f in seen.findings] == (
        [] if fenced else [("WAR", "gpu", 6)]
    )


@pytest.mark.parametrize("suffix", ["jsonl", "kvt"])
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("fenced", [True, False])
def test_log_only_and_both(tmp_path: Path, suffix: str, checked: bool, fenced: bool) -> None:
    """The file tells what the process was told, whichever way the lines went."""
    path = tmp_path / f"t.{suffix}"
    session = Session(options(tmp_path, trace=str(path), check=checked))
    drive(session, fenced=fenced)
    seen = session.close()
    assert seen.ops == (12 if fenced else 9)
    verdict = "clean" if fenced else "racy"
    assert seen.verdict.name == (verdict if checked else "incomplete")
    report = check(str(path))
    assert report.verdict.name == verdict
    assert report.ops == seen.ops
    assert report.coverage.pools["gpu"]["blocks"] == 64


@pytest.mark.parametrize("checked", [True, False])
def test_what_a_signal_leaves(tmp_path: Path, checked: bool) -> None:
    """All lines so far are in the file, and it does not count as whole; the session goes on."""
    path = tmp_path / "t.kvt"
    session = Session(options(tmp_path, trace=str(path), check=checked))
    drive(session, fenced=True)
    session.settle_down()
    report = check(str(path))
    assert report.ops == 12
    assert report.verdict.name == "incomplete"
    drive(session, fenced=True)
    session.close()
    assert (check(str(path)).ops, check(str(path)).verdict.name) == (24, "clean")


def test_straight_to_the_log_only_if_nobody_else_logs(tmp_path: Path) -> None:
    for others in (False, True):
        session = Session(options(tmp_path, trace=str(tmp_path / "t.kvt"), check=False))
        if others:
            session.recorder.attachments["torch"] = object()
        device = session.watch(NullDevice())
        assert isinstance(device, Traced)
        assert isinstance(device.sink, ToLog) != others
        session.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_that_was_forked_while_a_line_was_logged(tmp_path: Path) -> None:
    """The thread that holds the lock is not in the child, whose engine goes on. The file is the parent's."""
    path = tmp_path / "t.kvt"
    session = Session(options(tmp_path, trace=str(path), check=False))
    device = session.watch(NullDevice())
    assert isinstance(device, Traced)
    assert isinstance(device.sink, ToLog)
    device.memory("gpu", (1, 64), host=False)
    device.stream("compute", side=False)
    host = device.host("host")
    host.record("compute", "before")
    held, forked = threading.Event(), threading.Event()

    def other() -> None:
        with device.sink.lock:
            held.set()
            forked.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    assert held.wait(10)
    child = os.fork()
    if not child:
        signal.alarm(10)  # it would wait for ever
        session.forked()
        host.record("compute", "in the child")
        host.sync("in the child")
        os._exit(0)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    host.record("compute", "after")
    session.close()
    with open_trace(path) as trace:
        assert [op.event for op in trace if isinstance(op, Record)] == ["before", "after"]


def test_two_devices_of_one_session(tmp_path: Path) -> None:
    session = Session(options(tmp_path))
    for _ in range(2):
        drive(session, fenced=True)
    seen = session.close()
    assert seen.verdict.name == "clean"
    assert set(seen.coverage.pools) == {"gpu", "cpu", "2.gpu", "2.cpu"}


def test_a_hazard_that_halts_is_raised_where_the_copy_is_issued(tmp_path: Path) -> None:
    session = Session(options(tmp_path, halt_on_error=True))
    with pytest.raises(KvsanHazard):
        drive(session, fenced=False)
    session.close()
    twin = Session(options(tmp_path, halt_on_error=True))
    drive(twin, fenced=True)
    assert twin.close().verdict.name == "clean"


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    """The engine goes on, the session says so."""
    session = Session(options(tmp_path, trace=str(tmp_path / "none" / "t.kvt"), check=False))
    inner = drive(session, fenced=True)
    assert inner.calls is not None
    assert len(inner.calls) == 12
    seen = session.close()
    assert any("turned itself off" in why for why in getattr(seen.verdict, "why", ()))
    assert "FAULT in kvsan itself, in the binary log" in (tmp_path / "log.txt").read_text()


def test_a_tee(tmp_path: Path) -> None:
    """A log and a checker of its own: numbers agree, so the reports do."""
    from kvsan.checker.watched import ToRecorder

    session = Session(options(tmp_path))
    log = Log(tmp_path / "t.kvt")
    first: Sink = log
    second: Sink = ToRecorder(session.recorder)
    device = Traced(NullDevice(), Tee(first, second))
    for name in ("compute", "load"):
        device.stream(name, side=name == "load")
    for pool in ("gpu", "cpu"):
        device.memory(pool, (1, 64), host=pool == "cpu")
    host = device.host("host")
    host.alloc("gpu", ids(0, 1))
    host.plan("gpu", ids(0), "load")
    host.free("gpu", ids(0))
    host.alloc("gpu", ids(0))
    host.put("q", 1)
    host.get("q")
    host.query("done#7")
    for number in range(3):
        step(host, number, fenced=False)
    host.sync("done#2")
    host.touch("gpu", ids(1))
    host.drop("done#2")
    host.work(Kernel("look", {"cpu": ids(0)}))
    log.close()
    live = session.close()
    report = check(str(tmp_path / "t.kvt"))
    assert report.ops == live.ops
    key = [(h.kind.value, h.pool, h.later.op) for h in report.hazards]
    assert {(f.hazard.kind.value, f.hazard.pool, f.hazard.later.op) for f in live.findings} <= set(key)
    assert "GEN" in {kind for kind, *_ in key}
