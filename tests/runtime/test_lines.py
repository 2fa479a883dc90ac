"""Debug mode's lines in C against those in Python: the same calls leave the same lines, errors and calls of the device.

Random calls with all sorts of ids, calls that fail and answers that differ; to a log whose segments are soon full, a
recorder that works lines off at once or later, and any other sink. With `KVSAN_NATIVE=0` there is nothing to compare.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsan.checker import open_trace
from kvsan.checker.attach.lines import HELD, SETTLED, SYNC, decoded, encoded, ids_of
from kvsan.checker.attach.recorder import KvsanHazard, Recorder
from kvsan.checker.watched import ToLog, ToRecorder
from kvsan.model.ops import Op, Stream, Sync
from kvsan.runtime import lines, plans, tracing
from kvsan.runtime.binary import Log
from kvsan.runtime.device import Copy, DeviceError, Kernel
from kvsan.runtime.tracing import Sink, Tee, Traced
from runtime.null import NullDevice

pytestmark = pytest.mark.skipif(lines.IN_C is None, reason="the extension kvsan.runtime._lines is not used")

POOLS = {"gpu": 2_000, "cpu": 1_500}
STREAMS = ("compute", "store", "load")
EVENTS = ("e0", "e1", "ü2")


@contextmanager
def in_python() -> Iterator[None]:
    """The same without the extension."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (plans, tracing):
            patch.setattr(module, "IN_C", None)
        yield


# ── what is called ────────────────────────────────────────────────────────────────────────────────────────────────────


def ids(rng: np.random.Generator, pool: str, most: int = 1_200) -> Any:
    """Blocks, as few, many or none, in an array of one sort or another."""
    count = int(rng.choice([0, 1, 3, 8, 512, 513, most], p=[0.05, 0.2, 0.3, 0.25, 0.07, 0.07, 0.06]))
    found = rng.permutation(POOLS[pool])[:count]
    sort = rng.integers(9)
    if sort == 0:
        return found.astype(np.int32)
    if sort == 1:
        return found[::-1]
    if sort == 2:
        return np.stack((found, found), 1)[:, 0]
    if sort == 3:
        return np.frombuffer(b"x" + found.tobytes(), np.int64, len(found), 1) if count else found  # at an odd address
    return found


def drawn(seed: int, count: int = 120) -> list[Callable[[NullDevice, Any], object]]:
    """Calls of a device's host; the null device below is told what is to fail, or to be answered."""
    rng = np.random.default_rng(seed)
    some = {pool: [rng.permutation(size)[:4] for _ in range(3)] for pool, size in POOLS.items()}

    def blocks(pool: str) -> Any:
        return some[pool][rng.integers(3)] if rng.integers(2) else ids(rng, pool)

    def kernel() -> Kernel:
        reads, writes = ({pool: ids(rng, pool) for pool in POOLS if rng.integers(2)} for _ in range(2))
        return Kernel(f"k{rng.integers(3)}", reads, writes, step=int(rng.integers(9)) if rng.integers(2) else None)

    def copy() -> Copy:
        source, target = ("gpu", "cpu") if rng.integers(2) else ("cpu", "gpu")
        sources = blocks(source)
        targets = rng.permutation(POOLS[target])[: len(sources)]
        if len(sources) == 4 and rng.integers(2):
            targets = some[target][rng.integers(3)]
        order: Any = ("stream", "any", "call")[rng.integers(3)]
        return Copy(("store", "load")[rng.integers(2)], source, sources, target, targets, order, int(rng.integers(9)))

    def one() -> Callable[[Any], object]:
        stream, event = STREAMS[rng.integers(3)], EVENTS[rng.integers(3)]
        pool = list(POOLS)[rng.integers(2)]
        found = blocks(pool)
        match rng.integers(14):
            case 0:
                return lambda host: host.record(stream, event)
            case 1:
                return lambda host: host.wait(stream, event)
            case 2:
                return lambda host: host.query(event)
            case 3:
                return lambda host: host.sync(event)
            case 4:
                return lambda host: host.drop(event)
            case 5:
                return lambda host: host.put("jobs", event)
            case 6:
                return lambda host: host.get("jobs")
            case 7:
                return lambda host: host.alloc(pool, found)
            case 8:
                return lambda host: host.free(pool, found)
            case 9:
                return lambda host: host.touch(pool, found)
            case 10:
                work = ("store", "load")[rng.integers(2)]
                return lambda host: host.plan(pool, found, work)
            case 11:
                made = kernel()
                return lambda host: host.work(made)
            case 12:
                made = kernel()
                return lambda host: host.launch(stream, made)
            case _:
                copied = copy()
                return lambda host: host.copy(stream, copied)

    def call() -> Callable[[NullDevice, Any], object]:
        done, made = bool(rng.integers(2)), one()
        error = (None, DeviceError("refused"), RuntimeError("lost"))[rng.choice(3, p=[0.9, 0.05, 0.05])]

        def act(inner: NullDevice, host: Any) -> object:
            inner.done, inner.refuse = done, error
            try:
                return made(host)
            except (DeviceError, RuntimeError) as raised:
                return repr(raised)
            finally:
                inner.refuse = None

        return act

    return [call() for _ in range(count)]


def driven(sink: Sink, seed: int, **options: Any) -> tuple[list[object], list[str]]:
    """What the calls returned, and what the device was asked for."""
    inner = NullDevice()
    device = Traced(inner, sink, **options)
    for name in STREAMS:
        device.stream(name, side=name != "compute")
    for pool, size in POOLS.items():
        device.memory(pool, (1, size), host=pool == "cpu")
    hosts = [device.host("host"), device.host("copier")]
    rng = np.random.default_rng(seed)
    returned = [call(inner, hosts[rng.integers(2)]) for call in drawn(seed)]
    assert inner.calls is not None
    return returned, [repr(call) for call in inner.calls]


def both(run: Callable[[], Any]) -> tuple[Any, Any]:
    with in_python():
        want = run()
    return run(), want


def timeless(ops: list[Op]) -> list[Op]:
    return [replace(op, t=None) for op in ops]


# ── where lines go ────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.sampled_from([(1 << 12, 9), (1 << 16, 1 << 12), (600, 4)]),
    st.sampled_from(["", "2."]),
    st.booleans(),
)
def test_a_log(
    tmp_path_factory: pytest.TempPathFactory, seed: int, room: tuple[int, int], prefix: str, sites: bool
) -> None:
    folder, count = tmp_path_factory.mktemp("logs"), iter(range(2))

    def run() -> Any:
        path = folder / f"{next(count)}.kvt"
        with Log(path, words=room[0], lines=room[1], ring=3) as log:
            seen = driven(log, seed, prefix=prefix, sites=sites)
            mark = log.mark()
        if not path.exists():
            return seen, mark, None
        with open_trace(path) as trace:
            return seen, mark, trace.header, timeless(list(trace))

    got, want = both(run)
    assert got == want


class Ops:
    """A sink of the recorder: ops in line order, as they are in the end."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def pool(self, name: str, blocks: int) -> None:
        pass

    def stream(self, name: str, stream: Stream) -> None:
        pass

    def take(self, index: int, op: Op) -> None:
        assert index == len(self.ops)
        self.ops.append(op)

    def hold(self, index: int, op: Sync) -> None:
        self.take(index, op)

    def settle(self, index: int, op: Op) -> None:
        self.ops[index] = op


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([1, 7, 512]), st.sampled_from(["", "2."]), st.booleans())
def test_a_recorder(seed: int, batch: int, prefix: str, sites: bool) -> None:
    def run() -> Any:
        out, faults = Ops(), list[str]()
        recorder = Recorder(on_fault=lambda where, error: faults.append(f"{where}: {error!r}"))
        recorder.listen([out], batch=batch)
        seen = driven(ToRecorder(recorder), seed, prefix=prefix, sites=sites)
        mark = recorder.mark()
        recorder.settle_up()
        return seen, mark, timeless(out.ops), recorder.fault_text, faults

    got, want = both(run)
    assert got == want
    assert got[3] is None


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30))
def test_several_sinks(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Through the methods that every sink has."""
    folder, count = tmp_path_factory.mktemp("logs"), iter(range(4))

    def run() -> Any:
        paths = [folder / f"{next(count)}.kvt" for _ in range(2)]
        with Log(paths[0]) as first, Log(paths[1]) as second:
            seen = driven(Tee(first, second), seed)
        found: list[Any] = [seen]
        for path in paths:
            with open_trace(path) as trace:
                found.append(timeless(list(trace)))
        return found

    got, want = both(run)
    assert got == want
    assert got[1] == got[2]


def test_the_extension_is_what_is_looked_at(tmp_path: Path) -> None:
    """The twin of all of the above: else both sides would be Python's."""
    with Log(tmp_path / "t.kvt") as log:
        assert isinstance(Traced(NullDevice(), log).host("host"), lines.IN_C.Host)
        with in_python():
            assert type(Traced(NullDevice(), log).host("host")) is tracing._TracedHost
        assert log.straight is log
    assert ToRecorder(Recorder()).straight is not None
    kinds = np.ndarray, lines.IDS, lines._as_ids, DeviceError, time.perf_counter_ns
    assert lines.IN_C.set_up(*kinds, Kernel, Copy), "the fields of a numpy array are not where numpy's header has them"


@pytest.mark.parametrize("seed", range(6))
def test_arrays_that_are_asked(tmp_path: Path, seed: int) -> None:
    """Were a numpy's fields not where they are expected, the buffer protocol would say the same."""

    def not_flat(given: Any) -> Any:
        """Where the extension looks how an array lies, it finds something else."""
        made = lines._as_ids(given)
        return made.reshape(1, -1) if isinstance(given, tuple) else made

    kinds = DeviceError, time.perf_counter_ns, Kernel, Copy
    found = []
    for how, known in ((not_flat, False), (lines._as_ids, True)):
        assert lines.IN_C.set_up(np.ndarray, lines.IDS, how, *kinds) is known
        path = tmp_path / f"{known}.kvt"
        with Log(path, words=1 << 14) as log:
            seen = driven(log, seed)
        with open_trace(path) as trace:
            found.append((seen, timeless(list(trace))))
    assert found[0] == found[1]


# ── ids that no pool has ──────────────────────────────────────────────────────────────────────────────────────────────

NONE_OF_A_POOL = [
    -(1 << 63),
    -(1 << 40),
    -5_000,
    -7,
    -1,
    2_500,
    1 << 24,
    1 << 31,
    (1 << 32) + 5,
    1 << 61,
    (1 << 63) - 1,
]


@pytest.mark.parametrize("seed", range(25))
def test_ids_that_no_pool_has(tmp_path: Path, seed: int) -> None:
    """They are logged as they are, for the reader to complain of; the engine goes on, and no memory is taken for them.
    Where numpy counts from the end, so does the extension."""
    rng = np.random.default_rng(seed)

    def some(count: int) -> Any:
        found = rng.permutation(30)[:count]
        where = rng.random(count) < 0.15
        found[where] = rng.choice(NONE_OF_A_POOL, int(where.sum()))
        return found

    calls: list[tuple[Any, ...]] = []
    for _ in range(60):
        count = int(rng.choice([1, 2, 3, 6]))
        works = ("store", "load")[rng.integers(2)]
        calls += [
            ("alloc", "gpu", some(count)),
            ("plan", "gpu", some(count), works),
            ("plan", "cpu", some(count), works),
            ("copy", "compute", Copy(works, "gpu", some(count), "cpu", some(count))),
        ]

    def run(path: Path) -> Any:
        with Log(path) as log:
            device = Traced(NullDevice(), log)
            device.stream("compute", side=False)
            for pool in POOLS:
                device.memory(pool, (1, 30), host=pool == "cpu")
            host = device.host("host")
            for name, *given in calls:
                getattr(host, name)(*given)
            kept = log._segment.lines
            return [item for item in kept if type(item) is not int or item < 1 << 30]  # without times

    with in_python():
        want = run(tmp_path / "a.kvt")
    assert run(tmp_path / "b.kvt") == want


@pytest.mark.parametrize("wrong", [(1 << 32) + 5, -1, -(1 << 32) + 7, 1 << 31])
def test_many_ids_of_which_one_fits_no_pool(tmp_path: Path, wrong: int) -> None:
    """In 32 bits it would be another block's."""

    names = iter("ab")

    def run() -> Any:
        path = tmp_path / f"{next(names)}.kvt"
        with Log(path) as log:
            device = Traced(NullDevice(), log)
            device.stream("compute", side=False)
            device.memory("gpu", (1, 2_000), host=False)
            host = device.host("host")
            host.launch("compute", Kernel("good", {"gpu": np.arange(700)}))
            host.launch("compute", Kernel("bad", {"gpu": np.array([*range(699), wrong])}))
        with open_trace(path) as trace:
            reader = iter(trace)
            next(reader)
            with pytest.raises(Exception, match="block") as raised:
                next(reader)
        return type(raised.value), str(raised.value).replace(str(path), "")

    got, want = both(run)
    assert got == want


def test_lines_after_the_end_are_counted(tmp_path: Path) -> None:
    def run() -> Any:
        log = Log(tmp_path / "t.kvt")
        device = Traced(NullDevice(), log)
        device.stream("compute", side=False)
        host = device.host("host")
        host.record("compute", "e")
        log.close()
        found = [log.mark()]
        for call in (host.drop, host.query, host.sync, host.drop):
            call("e")
            found.append(log.mark())
        return found

    got, want = both(run)
    assert got == want == [0, 1, 2, 3, 4]


def test_hosts_are_garbage_that_is_collected(tmp_path: Path) -> None:
    """No field of them is cleared, since code may still call them then: what is around them is."""
    watch = []
    for sink in (Log(tmp_path / "t.kvt"), ToRecorder(Recorder())):
        device = Traced(NullDevice(), sink)
        last: Any = device.host("garbage")
        device.last = last._host.last = last  # type: ignore[attr-defined]
        last.drop("e")
        watch += [weakref.ref(device), weakref.ref(last._host)]
        if isinstance(sink, Log):
            sink.close()
    del sink, device, last
    gc.collect()
    assert [one() for one in watch] == [None] * 4


# ── what fails in a line ──────────────────────────────────────────────────────────────────────────────────────────────


class Refuses(Ops):
    """Takes two ops and no more."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def take(self, index: int, op: Op) -> None:
        if index >= 2:
            raise self._error
        super().take(index, op)


@pytest.mark.parametrize("error", [KvsanHazard.__new__(KvsanHazard), OSError("full"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("last", range(6))
def test_a_sink_that_raises(error: BaseException, last: int) -> None:
    """A hazard goes to the engine wherever it is raised, what kvsan itself does wrong turns it off."""

    def run() -> Any:
        faults = list[str]()
        recorder = Recorder([Refuses(error)], on_fault=lambda where, error: faults.append(f"{where}: {error!r}"))
        device = Traced(NullDevice(), ToRecorder(recorder))
        device.stream("compute", side=False)
        device.memory("gpu", (1, 9), host=False)
        host, some = device.host("host"), np.arange(3)
        host.record("compute", "e")
        host.record("compute", "e")
        calls: list[Callable[[], object]] = [
            lambda: host.launch("compute", Kernel("k", {"gpu": some})),
            lambda: host.copy("compute", Copy("c", "gpu", some, "gpu", some + 3)),
            lambda: host.record("compute", "e"),
            lambda: host.query("e"),
            lambda: host.sync("e"),
            lambda: host.alloc("gpu", some),
        ]
        try:
            found = repr(calls[last]())
        except BaseException as raised:
            found = f"raised {raised!r}"
        with recorder.lock:  # it was let go
            return found, faults, recorder.on, recorder.fault_text

    got, want = both(run)
    assert got == want
    if isinstance(error, KvsanHazard):
        assert got[0].startswith("raised KvsanHazard")
        assert got[2:] == (True, None)


def test_a_stream_that_nobody_made(tmp_path: Path) -> None:
    def run() -> str:
        with Log(tmp_path / "t.kvt") as log:
            host = Traced(NullDevice(), log).host("host")
            with pytest.raises(KeyError) as raised:
                host.record("none", "e")
            host.drop("e")  # the lock was let go
            assert log.ops == 1
        return repr(raised.value)

    got, want = both(run)
    assert got == want


def test_a_kernel_that_raises_keeps_its_error(tmp_path: Path) -> None:
    """The very object, with what it was raised from."""
    error = RuntimeError("part")
    error.__cause__ = ValueError("why")

    def part() -> None:
        raise error

    with Log(tmp_path / "t.kvt") as log:
        device = Traced(NullDevice(), log)
        device.stream("compute", side=False)
        try:
            raise KeyError("handled meanwhile")
        except KeyError:
            with pytest.raises(RuntimeError) as raised:
                device.host("host").launch("compute", Kernel("k", {"gpu": np.arange(3)}, parts=(part,)))
        assert raised.value is error
        assert type(error.__cause__) is ValueError
        assert log.ops == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_clock_that_makes_lines(tmp_path: Path, seed: int) -> None:
    """Code of somebody else that runs in the middle of a line begins the next segment, and fills words of its own."""

    names = iter("ab")

    def run() -> Any:
        rng, armed, count = np.random.default_rng(seed), False, 0
        many = {size: rng.permutation(2_000)[:size] for size in (3, 700)}

        def clock() -> int:
            nonlocal armed, count
            count += 1
            if armed:
                armed = False
                for _ in range(int(rng.integers(4))):
                    host.free("gpu", many[(3, 700)[rng.integers(2)]])
            return count

        path = tmp_path / f"{next(names)}.kvt"
        with Log(path, words=3_000, lines=4, ring=3, clock=clock) as log:
            device = Traced(NullDevice(), log)
            device.stream("compute", side=False)
            device.memory("gpu", (1, 2_000), host=False)
            host = device.host("host")
            calls: list[Callable[[], object]] = [
                lambda: host.launch("compute", Kernel("k", {"gpu": many[700]}, {"gpu": many[3]})),
                lambda: host.alloc("gpu", many[700]),
                lambda: host.record("compute", "e"),
                lambda: host.sync("e"),
            ]
            for at in rng.integers(0, 4, 60):
                armed = True
                calls[at]()
        with open_trace(path) as trace:
            return timeless(list(trace))

    got, want = both(run)
    assert got == want


def test_lines_of_what_the_garbage_collector_ends(tmp_path: Path) -> None:
    """The line of a blocking call is not put into a segment that was handed on while its own object was made."""
    armed, count, path, before = False, 0, tmp_path / "t.kvt", gc.get_threshold()

    class Ends:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            gc.disable()
            for _ in range(5):
                host.drop("gone")
            log.flush_now()  # what was handed on is written

    def clock() -> int:
        nonlocal armed, count
        count += 1
        if armed:
            armed = False
            Ends()
            gc.enable()  # and the next object that is made ends it
        return count

    with Log(path, words=9, lines=4, ring=50, clock=clock) as log:
        host = Traced(NullDevice(), log).host("host")
        host.drop("first")
        gc.disable()
        gc.set_threshold(1)
        try:
            for at in range(3):
                armed = True
                host.sync(f"e{at}")
        finally:
            gc.set_threshold(*before)
            gc.enable()
    with open_trace(path) as trace:
        ops = list(trace)
    assert [op.event for op in ops if isinstance(op, Sync)] == ["e0", "e1", "e2"]
    assert len(ops) > 6


def told(error: BaseException | None) -> list[str]:
    """An exception and what was handled when it was raised."""
    chain = []
    while error is not None:
        chain.append(repr(error))
        error = error.__context__
    return chain


class Stumbles(Log):
    """A sink of which every line fails, while it handles something else."""

    def access(self, *given: Any, **more: Any) -> None:
        try:
            raise KeyError("the first")
        except KeyError:
            raise ValueError("the second")  # noqa: B904

    record = copy = access

    @contextmanager
    def blocking(self, event: str, by: str) -> Iterator[None]:  # type: ignore[override]
        try:
            yield
        finally:
            self.access()


@pytest.mark.parametrize("refused", [None, RuntimeError("lost"), DeviceError("refused"), KeyboardInterrupt()], ids=repr)
def test_what_was_handled_when_a_line_failed(tmp_path: Path, refused: BaseException | None) -> None:
    """Exceptions have the contexts that they have in Python, and none is lost."""

    def run() -> Any:
        found = []
        with Log(tmp_path / "t.kvt") as log:
            inner, sink = NullDevice(), Stumbles(tmp_path / "u.kvt")
            device = Traced(inner, sink)
            device.stream("compute", side=False)
            host, some = device.host("host"), np.arange(3)
            calls: list[Callable[[], object]] = [
                lambda: host.launch("compute", Kernel("k", {"gpu": some})),
                lambda: host.launch("none", Kernel("k", {"gpu": some})),
                lambda: host.copy("compute", Copy("c", "gpu", some, "gpu", some + 3)),
                lambda: host.record("compute", "e"),
                lambda: host.sync("e"),
            ]
            for call in calls:
                inner.refuse = refused  # type: ignore[assignment]
                try:
                    call()
                except BaseException as raised:
                    found.append(told(raised))
                if refused is not None:
                    refused.__context__ = None
            assert not log.ops
        return found

    got, want = both(run)
    assert got == want


class Interrupts:
    """A lock that a signal comes to, when it is taken for the so many-th time or let go."""

    def __init__(self, taken: int, left: int) -> None:
        self.taken, self.left, self.heard = taken, left, list[Any]()

    def __enter__(self) -> None:
        self.taken -= 1
        if self.taken == 0:
            raise KeyboardInterrupt("taken")

    def __exit__(self, kind: Any, value: Any, at: Any) -> None:
        self.heard.append((kind, repr(value), at is not None))
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt("left")


def test_a_blocking_call_that_returned_is_settled_by_whoever_looks_next(tmp_path: Path) -> None:
    """The next blocking call, a segment that is handed on, the end. Its line counts in each case."""

    def run() -> Any:
        seen = []
        for after in (0, 1, 3 * 4):  # lines that come after it; a segment has four
            path = tmp_path / f"{after}.kvt"
            with Log(path, lines=4) as log:
                device = Traced(NullDevice(), log)
                device.stream("compute", side=False)
                host = device.host("host")
                host.record("compute", "e")
                host.sync("e")
                for number in range(after):
                    host.sync("e") if number % 2 else host.record("compute", f"e{number}")
            with open_trace(str(path)) as trace:
                seen.append([(type(op).__name__, getattr(op, "event", None)) for op in trace])
            assert not log.lost
        return seen

    got, want = both(run)
    assert got == want
    assert got[0] == [("Record", "e"), ("Sync", "e")]


@pytest.mark.parametrize("where", ["log", "tee"])
@pytest.mark.parametrize("refused", [None, RuntimeError("lost")], ids=repr)
@pytest.mark.parametrize(("taken", "left"), [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (0, 2)])
def test_a_signal_at_the_lock(tmp_path: Path, where: str, refused: Any, taken: int, left: int) -> None:
    """It is raised in the engine, whatever else failed, and the lock hears what did."""

    calls: list[Callable[[Any], object]] = [
        lambda host: host.record("compute", "e"),
        lambda host: host.query("e"),
    ]
    if where == "tee" or refused is not None:  # C takes the log's lock once for a blocking call that returns
        calls.append(lambda host: host.sync("e"))

    def run() -> Any:
        found: list[object] = []
        for count, call in enumerate(calls):
            with Log(tmp_path / f"{count}.kvt") as log, Log(tmp_path / f"{count}u.kvt") as other:
                log.record("compute", "e", "host")  # the log is open
                inner = NullDevice()
                device = Traced(inner, log if where == "log" else Tee(log, other))
                device.stream("compute", side=False)
                host = device.host("host")
                inner.refuse = refused
                lock = Interrupts(taken, left)
                before, log.lock = log.lock, lock
                try:
                    found.append(call(host))
                except BaseException as raised:
                    found.append(told(raised))
                log.lock = before
                if refused is not None:
                    refused.__context__ = None
                found.append(lock.heard if where == "log" else None)
        return found

    got, want = both(run)
    assert got == want


def test_calls_that_failed_are_not_kept(tmp_path: Path) -> None:
    def run() -> tuple[int, int]:
        with Log(tmp_path / "t.kvt") as log:
            inner = NullDevice()
            host = Traced(inner, log).host("host")
            for number in range(40):
                inner.refuse = DeviceError("x") if number % 3 else None
                with suppress(DeviceError):
                    host.sync("e")
            log._reap()
            return len(log._out), log.ops

    assert both(run) == ((0, 40),) * 2


KINDS_OF_LOCK: list[Callable[[], Any]] = [threading.RLock, type(Recorder().lock)]


@pytest.mark.parametrize("kinds", [KINDS_OF_LOCK, KINDS_OF_LOCK[::-1]])
def test_a_lock_that_is_replaced_in_a_call(tmp_path: Path, kinds: list[Callable[[], Any]]) -> None:
    """As where the device's code forks: what was taken is let go, and not the new one, whatever its sort."""
    first, second = (kind() for kind in kinds)

    def run() -> Any:
        with Log(tmp_path / "t.kvt") as log:
            inner = NullDevice()
            device = Traced(inner, log)
            device.stream("compute", side=False)
            host = device.host("host")
            log.lock = first

            def part() -> None:
                log.lock = second
                host.record("compute", "e")

            host.launch("compute", Kernel("k", {"gpu": np.arange(3)}, parts=(part,)))
            free = []

            def look() -> None:
                for lock in (first, second):
                    free.append(lock.acquire(False))
                    if free[-1]:
                        lock.release()

            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            return log.ops, free

    assert both(run) == ((2, [True, True]),) * 2


@pytest.mark.parametrize("where", ["log", "recorder"])
def test_a_child_that_is_forked_in_a_call(tmp_path: Path, where: str) -> None:
    """Another thread waits for the lock then, and is not in the child, which has a lock of its own and goes on."""

    def run() -> tuple[list[bool], bool]:
        log, recorder = Log(tmp_path / "t.kvt"), Recorder()
        sink: Any = ToLog(recorder, log) if where == "log" else ToRecorder(recorder)
        inner, in_child = NullDevice(), False
        device = Traced(inner, sink)
        device.stream("compute", side=False)
        host, other = device.host("host"), device.host("other")
        host.record("compute", "e")
        waiting = threading.Thread(target=lambda: other.record("compute", "o"))

        def fork() -> None:
            nonlocal in_child
            waiting.start()
            time.sleep(0.02)
            found.append(os.fork())
            if found[-1] == 0:
                in_child = True
                signal.alarm(20)
                recorder.listen([])
                host.drop("in the call")

        def looked() -> int:
            for call in (host.drop, host.query, host.sync):
                call("e")
            with sink.lock:
                return 0

        found: list[int] = []
        try:
            host.launch("compute", Kernel("k", {"gpu": np.arange(3)}, parts=(fork,)))
            status = looked()
        except BaseException:
            status = 1
        if in_child:
            os._exit(status)
        waiting.join(10)
        _, ended = os.waitpid(found[0], 0)
        log.close()
        return [status == 0, waiting.is_alive()], ended == 0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: a fork with threads
        assert both(run) == (([True, False], True),) * 2


class Name(str):
    """Text, and not quite."""

    __slots__ = ()


@pytest.mark.parametrize("name", [Name("e"), None, 3, b"e"], ids=repr)
def test_names_that_are_no_plain_text(tmp_path: Path, name: Any) -> None:
    """What a subclass of text names is logged as text; what is none is an error, as it is in Python."""

    def run() -> Any:
        found: list[Any] = []
        with Log(tmp_path / "t.kvt") as log:
            device = Traced(NullDevice(), log)
            device.stream("compute", side=False)
            host, some = device.host("host"), np.arange(3)
            calls: list[Callable[[], object]] = [
                lambda: host.record("compute", name),
                lambda: host.query(name),
                lambda: host.sync(name),
                lambda: host.drop(name),
                lambda: host.free(name, some),
                lambda: host.copy("compute", Copy("c", name, some, "gpu", some)),
                lambda: host.copy("compute", Copy("c", "gpu", some, name, some)),
            ]
            for call in calls:
                try:
                    call()
                except TypeError as error:
                    found.append(str(error))
            found += [(type(item), item) for item in log._segment.lines if type(item) is not int or item < 99]
        return found

    got, want = both(run)
    assert got == want


@pytest.mark.parametrize("call", ["record", "wait", "query", "sync", "drop", "copy", "launch", "alloc", "plan"])
def test_arguments(tmp_path: Path, call: str) -> None:
    with Log(tmp_path / "t.kvt") as log, pytest.raises(TypeError, match=call):
        getattr(Traced(NullDevice(), log).host("host"), call)()


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """References of what every call sees, and memory blocks of the interpreter, after many calls as after few."""
    inner = NullDevice(keep=False)
    recorder = Recorder([])
    with Log(tmp_path / "t.kvt", lines=64) as log:
        hosts = []
        for sink in (log, ToRecorder(recorder)):
            device = Traced(inner, sink)
            device.stream("compute", side=False)
            for pool in POOLS:
                device.memory(pool, (1, 2_000), host=pool == "cpu")
            hosts.append(device.host("host"))
        some, many, event = np.arange(4), np.arange(700), "an event"
        kernel = Kernel("k", {"gpu": many}, {"gpu": some})
        copy = Copy("c", "gpu", some, "cpu", some)

        def calls(count: int) -> None:
            for _ in range(count):
                for host in hosts:
                    host.record("compute", event)
                    host.query(event)
                    host.sync(event)
                    host.drop(event)
                    host.launch("compute", kernel)
                    host.plan("gpu", some, "c")
                    host.copy("compute", copy)
                    host.alloc("gpu", some)
                inner.refuse = RuntimeError("lost")
                with pytest.raises(RuntimeError):
                    hosts[0].launch("compute", kernel)
            log.flush_now()
            gc.collect()

        def kept() -> list[int]:
            return [sys.getrefcount(one) for one in (some, many, event, kernel, copy, recorder, *hosts)]

        calls(200)
        blocks = sys.getallocatedblocks()
        before = kept()
        calls(2_000)
        after = kept()
        grown = sys.getallocatedblocks() - blocks
    assert max(abs(b - a) for a, b in zip(before, after, strict=True)) < 400, (before, after)  # lines in the segment
    assert grown < 2_000, grown


# ── ids on their way to a recorder ────────────────────────────────────────────────────────────────────────────────────


def test_no_int64_is_taken_for_an_int32() -> None:
    """Their bytes are a multiple of 8 long, those of int32s 1 or 5 more; of no id there is nothing."""
    for count in range(1, 40):
        for ids in (np.full(count, 4), np.full(count, -1), np.full(count, (4 << 56) + 4), np.arange(count)):
            assert ids_of(ids.tobytes()).tolist() == ids.tolist()
            short = ids.astype(np.int32).tobytes() + b"\4"
            assert len(short) % 8 in (1, 5)
            assert ids_of(short).tolist() == ids.astype(np.int32).tolist()
    assert ids_of(b"").tolist() == []
    assert ids_of(b"\4").tolist() == []


@pytest.mark.parametrize(
    "ids",
    [
        [0],
        [5, 3],
        [1, 2, 3],
        [(1 << 31) - 1, 0],
        [1 << 31, 0],
        [-1],
        [-1, 7],
        [(1 << 63) - 1],
        [-(1 << 63), 0],
        list(range(999)),
    ],
)
def test_ids_are_the_same_when_they_arrive(ids: list[int]) -> None:
    """Of four bytes each if they fit, else of eight."""
    recorder = Recorder()
    recorder.batch = 9
    device = Traced(NullDevice(), ToRecorder(recorder))
    device.host("host").free("gpu", np.array(ids))
    kept = recorder._queue[0][3]
    assert ids_of(kept).tolist() == ids
    assert len(kept) == (4 * len(ids) + 1 if min(ids) >= 0 and max(ids) < 1 << 31 else 8 * len(ids))


class Beside:
    """Stands in for the pipe: the lines as they would arrive."""

    def __init__(self) -> None:
        self.arrived: list[Any] = []

    def pool(self, name: str, blocks: int) -> None:
        pass

    def stream(self, name: str, stream: Stream) -> None:
        pass

    def follow(self, name: str, follower: object) -> None:
        pass

    def lines(self, given: list[Any]) -> None:
        self.packed(encoded(given))

    def packed(self, given: bytes) -> None:
        self.arrived += decoded(given)


def untimed(line: list[Any]) -> list[Any]:
    """With ids in one form, and without the time."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()} or None  # either says that there are none
        return ids_of(value).tolist() if isinstance(value, bytes) else value

    kept = [plain(one) for one in line]
    if line[0] in (SYNC, HELD):
        return [*kept[:5], *kept[6:]]
    return kept if line[0] == SETTLED else kept[:-1]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([7, 512]))
def test_a_process_beside(seed: int, batch: int) -> None:
    """The lines that arrive, calls that block and return or fail among them."""

    def run() -> Any:
        beside, recorder = Beside(), Recorder()
        recorder.listen([], batch=batch, beside=beside)
        seen = driven(ToRecorder(recorder), seed)
        recorder.settle_up()
        return seen, [untimed(line) for line in beside.arrived], recorder.fault_text

    got, want = both(run)
    assert got[0] == want[0]
    for at, (mine, its) in enumerate(zip(got[1], want[1], strict=True)):
        assert mine == its, at
    assert got[2] is want[2] is None
