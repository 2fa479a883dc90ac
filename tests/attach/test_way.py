"""The way to the process beside: the usual hand-over is C's where that is built, and what arrives is what Python sends.

The other end is in this process. *C*: lines are packed and C writes them; *Python*: they wait as they are.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import operator
import os
import pickle
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attach import native_programs
from attach.hurried import hurried
from attach.native_programs import Elsewhere, Run, Stop, played, program
from attach.test_packed import Does, raising
from kvsan.checker.attach.ledger import Ledger
from kvsan.checker.attach.lines import ALLOC, DROP, GET, GONE, HELD, PUT, SETTLED, SYNC, TOLD, decoded
from kvsan.checker.attach.native import HOT
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.beside.pipe import FRAME, LINES, NEWS, BusyError, Pipe, Way

WAYS = pytest.mark.parametrize(
    "way", ["python", pytest.param("c", marks=pytest.mark.skipif(HOT is None, reason="the C hooks are not built"))]
)
IN_C = pytest.mark.skipif(HOT is None, reason="the C hooks are not built")
PAGE = 4096


class Near(Pipe):
    """A pipe whose other end is here."""

    def __init__(self, ledger: Ledger, size: int = 1 << 20) -> None:
        self.size, self.far, self.slow = size, -1, 0
        self.failures: list[Exception] = []
        super().__init__(lambda: None, lambda: "news", ledger.changes, self.failures.append)  # type: ignore[arg-type, return-value]
        self._got = b""

    def packed(self, lines: bytes) -> None:
        self.slow += 1
        super().packed(lines)

    def _launch(self) -> None:
        self.far, self._to = os.pipe()
        os.set_blocking(self._to, False)
        os.set_blocking(self.far, False)
        fcntl.fcntl(self._to, fcntl.F_SETPIPE_SZ, self.size)
        self._process = SimpleNamespace(pid=0)  # type: ignore[assignment]

    def read(self) -> None:
        with suppress(BlockingIOError):
            while part := os.read(self.far, 1 << 20):
                self._got += part

    def frames(self) -> list[Any]:
        """All that has come since the last time, whole frames: the sort and the lines, or what else it says."""
        self.read()
        found = []
        while self._got:
            size, sort = FRAME.unpack(self._got[: FRAME.size])
            data, self._got = self._got[FRAME.size : FRAME.size + size], self._got[FRAME.size + size :]
            assert len(data) == size
            found.append((sort, decoded(data) if sort == LINES else pickle.loads(data)))
        return found

    def close(self) -> None:
        self._close()
        if self.far >= 0:
            os.close(self.far)
            self.far = -1

    def _close(self) -> None:
        self.found = True  # nobody answers
        super()._close()


class Began:
    """A recorder and its pipe, over which one frame went already, so that the next hand-over is a usual one."""

    def __init__(self, way: str, *, batch: int = 4, size: int = 1 << 20) -> None:
        self.way = way
        self.recorder = Recorder(clock=time.perf_counter_ns)
        self.recorder.pool("gpu", 64)
        self.pipe = Near(self.recorder.ledger, size)
        self.recorder.listen((), batch=batch, beside=self.pipe)
        if way == "python":
            self.recorder._queue = deque()
        self.put(1)
        self.recorder.settle_up()
        assert [sort for sort, _ in self.pipe.frames()] == [NEWS, LINES]
        self.pipe.slow = 0

    def put(self, count: int, token: str = "t") -> None:
        for _ in range(count):
            self.recorder.put(token)

    def arrived(self) -> list[Any]:
        return [line for sort, lines in self.pipe.frames() if sort == LINES for line in lines]

    def tokens(self) -> list[str]:
        return [line[2] for line in self.arrived() if line[0] == PUT]


@contextmanager
def begun(way: str, **given: Any) -> Iterator[Began]:
    made = Began(way, **given)
    try:
        yield made
    finally:
        made.pipe.close()


@WAYS
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_each_batch_is_a_frame(way: str, batch: int) -> None:
    with begun(way, batch=batch) as made:
        for number in range(20):
            made.put(1, f"t{number}")
        made.recorder.settle_up()
        frames = made.pipe.frames()
        assert [sort for sort, _ in frames] == [LINES] * (20 // batch)
        assert [line[2] for _, lines in frames for line in lines] == [f"t{number}" for number in range(20)]
        assert made.pipe.slow == (0 if way == "c" else 20 // batch)
        assert made.recorder.waiting == 0


@WAYS
@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.recorder.unseen(edges=1),
        lambda made: made.recorder.unseen(copies=1, what="a thing"),
        lambda made: made.recorder.ledger.note("a part is off"),
        lambda made: made.recorder.ledger.restart(),
        lambda made: setattr(made.pipe, "_due", 0),
    ],
)
def test_news_come_before_the_lines(way: str, change: Callable[[Began], Any]) -> None:
    with begun(way) as made:
        change(made)
        made.put(8)
        assert [sort for sort, _ in made.pipe.frames()] == [NEWS, LINES, LINES]
        assert made.pipe.slow == (1 if way == "c" else 2)


@WAYS
def test_no_news_no_frame_of_them(way: str) -> None:
    with begun(way) as made:
        made.recorder.ledger.note("off")
        made.put(4)
        made.pipe.frames()
        made.recorder.ledger.note("off")
        made.recorder.ledger.hook("a hook").fired()
        made.put(4)
        assert [sort for sort, _ in made.pipe.frames()] == [LINES]


@WAYS
def test_news_are_told_again_after_a_while(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsan.checker.beside.pipe.NEWS_NS", 20_000_000)
    with begun(way) as made:
        made.pipe._due = 0
        made.put(4)
        time.sleep(0.03)
        made.put(4)
        assert [sort for sort, _ in made.pipe.frames()] == [NEWS, LINES, NEWS, LINES]


# ── a pipe that is full ───────────────────────────────────────────────────────────────────────────────────────────────


def fill(made: Began, room: int) -> int:
    """So that only `room` bytes fit. How many were written."""
    size: int = fcntl.fcntl(made.pipe._to, fcntl.F_GETPIPE_SZ)
    assert size % PAGE == 0
    assert os.write(made.pipe._to, b"." * (size - room)) == size - room
    return size - room


def reads_later(made: Began, filled: int, seconds: float = 0.3) -> threading.Thread:
    """Another thread reads all that comes from then on, until it was so much as the engine's thread has written."""

    def work() -> None:
        time.sleep(seconds)
        left = filled
        while left:
            left -= len(os.read(made.pipe.far, left))
        while not done.is_set():
            made.pipe.read()
            time.sleep(0.001)

    done = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    thread.done = done  # type: ignore[attr-defined]
    return thread


def joined(thread: Any) -> None:
    thread.done.set()
    thread.join()


@WAYS
@pytest.mark.parametrize("room", [0, PAGE])
@pytest.mark.parametrize("big", [1, 3000, 200_000])
def test_whoever_fills_it_waits(way: str, room: int, big: int) -> None:
    """It takes nothing, or a part; a frame of `big` bytes or more, and those behind it."""
    with begun(way, size=4 * PAGE) as made:
        thread = reads_later(made, fill(made, room))
        try:
            began = time.monotonic()
            made.put(3)
            made.put(1, "x" * big)
            waited = time.monotonic() - began
            made.put(8, "y")
        finally:
            joined(thread)
        assert made.recorder.fault_text is None
        assert not made.pipe._torn
        assert not made.pipe._writing
        assert made.tokens() == ["t"] * 3 + ["x" * big] + ["y"] * 8
        assert waited > 0.05 or big < room


@contextmanager
def alarm(handler: Callable[[], None], seconds: float = 0.2) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def stop() -> None:
    raise Stop


@WAYS
@pytest.mark.parametrize("room", [0, PAGE])
def test_a_signal_s_handler_that_raises_while_it_is_full(way: str, room: int) -> None:
    """As Ctrl-C does: the engine has it, the lines are lost, and kvsan is off."""
    with begun(way, size=4 * PAGE) as made:
        fill(made, room)
        made.put(3)
        with alarm(stop), pytest.raises(Stop):
            made.put(1, "x" * 9000)
        assert not made.recorder.on
        assert "Stop in the way to the process that checks" in str(made.recorder.fault_text)
        assert made.pipe._torn
        assert not made.pipe._writing
        assert made.recorder.waiting == 0
        assert made.recorder._settling is False
        got = made.pipe.size
        made.pipe.read()
        made.recorder.on = True
        made.put(9)
        assert len(made.pipe._got) == got  # nothing behind half a frame


@WAYS
@pytest.mark.parametrize("room", [0, PAGE])
def test_a_signal_s_handler_that_logs_while_it_is_full(way: str, room: int) -> None:
    """More than a batch: its lines wait until the frame is whole."""
    with begun(way, size=4 * PAGE) as made:
        waited: list[int] = []

        def handler() -> None:
            made.put(6, "signal")
            made.recorder.settle_up()
            waited.append(made.recorder.waiting)

        thread = reads_later(made, fill(made, room), 0.6)
        try:
            with alarm(handler):
                made.put(3)
                made.put(1, "x" * 9000)
            assert waited == [6]
            made.recorder.settle_up()
        finally:
            joined(thread)
        assert made.recorder.fault_text is None
        assert made.tokens() == ["t"] * 3 + ["x" * 9000] + ["signal"] * 6


@IN_C
@pytest.mark.parametrize("raises", [False, True])
def test_a_signal_that_waited_while_c_wrote_finds_it_busy(raises: bool) -> None:
    """Its handler runs at the entry of `rest`: who asks then (the summary of a SIGTERM) is told to come later, and not
    that the pipe is broken, which would end the process beside.
    """
    with begun("c", size=4 * PAGE) as made:
        recorder, said = made.recorder, list[BaseException]()
        recorder.batch = 99
        recorder.hand_on("m")  # the thread's name is known to C, so nothing of Python's runs before `rest`
        recorder.put("x" * 9000)
        recorder.batch = 1

        def handler(*_: object) -> None:
            try:
                made.pipe._put(NEWS, b"")
            except Exception as error:
                said.append(error)
            if raises:
                raise Stop

        before = signal.signal(signal.SIGUSR1, handler)
        thread = reads_later(made, fill(made, PAGE))
        try:
            calls = [partial(ctypes.PyDLL(None)["raise"], int(signal.SIGUSR1)), partial(recorder.hand_on, "q")]
            with pytest.raises(Stop) if raises else nullcontext():
                list(map(operator.call, calls))  # no line of Python between the two
        finally:
            signal.signal(signal.SIGUSR1, before)
            joined(thread)
        assert [type(error) for error in said] == [BusyError]
        assert not made.pipe._writing
        assert made.pipe._torn is raises
        assert (recorder.fault_text is None) is not raises


@WAYS
@pytest.mark.parametrize("room", [0, PAGE])
def test_nobody_reads_any_more_while_it_is_full(way: str, room: int) -> None:
    with begun(way, size=4 * PAGE) as made:
        fill(made, room)
        end, made.pipe.far = made.pipe.far, -1
        timer = threading.Timer(0.2, os.close, (end,))
        timer.start()
        made.put(3)
        made.put(1, "x" * 9000)
        timer.join()
        assert "BrokenPipeError in the way" in str(made.recorder.fault_text)
        assert made.pipe._torn


# ── what is not usual ─────────────────────────────────────────────────────────────────────────────────────────────────


@WAYS
def test_nobody_reads_any_more(way: str) -> None:
    with begun(way) as made:
        os.close(made.pipe.far)
        made.pipe.far = -1
        made.put(4)
        assert "BrokenPipeError in the way to the process that checks" in str(made.recorder.fault_text)
        assert not made.recorder.on
        assert made.recorder.waiting == 0


@WAYS
def test_a_number_that_is_another_file_s(way: str, tmp_path: Path) -> None:
    """Once the pipe is closed (`stop`, a forked child) nothing is written to whatever has its number then."""
    with begun(way) as made:
        made.pipe._process.returncode = None  # type: ignore[union-attr]
        number = made.pipe._to
        made.pipe.forked()
        other = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
        if other != number:
            os.dup2(other, number)
        try:
            made.put(4)
            assert "OSError in the way" in str(made.recorder.fault_text)
            assert os.fstat(number).st_size == 0
        finally:
            for each in {other, number}:
                os.close(each)


def test_it_is_no_number_any_more_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's handler may log between the two."""
    with begun("python") as made:
        seen: list[int] = []
        close = os.close

        def closing(number: int) -> None:
            seen.append(made.pipe._to)
            close(number)

        monkeypatch.setattr(os, "close", closing)
        made.pipe._close()
        monkeypatch.undo()
        assert seen == [-1]


@WAYS
@pytest.mark.parametrize(("state", "error"), [("_writing", "BusyError"), ("_torn", "BrokenPipeError")])
def test_in_the_middle_of_a_frame_or_behind_half_of_one(way: str, state: str, error: str) -> None:
    with begun(way) as made:
        setattr(made.pipe, state, True)
        made.put(4)
        assert f"{error} in the way" in str(made.recorder.fault_text)
        assert made.pipe.frames() == []


@WAYS
def test_while_it_settles_up_already(way: str) -> None:
    with begun(way) as made:
        made.recorder._settling = True
        made.put(9)
        assert (made.recorder.waiting, made.pipe.frames()) == (9, [])
        made.recorder._settling = False
        made.put(1)
        assert len(made.arrived()) == 10


@WAYS
@pytest.mark.parametrize("state", ["_shut", "fault_text"])
def test_lines_that_do_not_count_are_let_go(way: str, state: str) -> None:
    with begun(way) as made:
        setattr(made.recorder, state, True if state == "_shut" else "off")
        made.put(9)
        assert made.recorder.waiting == 1
        assert made.pipe.frames() == []


@WAYS
def test_the_process_is_started_at_the_first_lines(way: str) -> None:
    with begun(way) as made:
        pipe = Near(made.recorder.ledger)
        made.recorder.listen((), batch=4, beside=pipe)
        if way == "python":
            made.recorder._queue = deque()
        made.put(3)
        assert pipe.pid is None
        made.put(5)
        assert [sort for sort, _ in pipe.frames()] == [NEWS, LINES, LINES]
        assert made.pipe.frames() == []
        pipe.close()


@WAYS
def test_ends_of_threads_and_events_go_first(way: str) -> None:
    class Event:
        pass

    with begun(way) as made:
        recorder = made.recorder
        event: Any = Event()
        recorder.record("s", event)
        recorder.settle_up()
        made.pipe.frames()
        made.pipe.slow = 0
        made.put(3)
        del event
        gc.collect()
        made.put(1)
        assert [line[0] for line in made.arrived()] == [PUT, PUT, PUT, PUT, DROP]
        assert made.pipe.slow == (way == "python")
        thread = threading.Thread(target=lambda: recorder.get("a"))
        thread.start()
        thread.join()
        gc.collect()
        made.put(2)
        made.recorder.settle_up()
        assert [line[0] for line in made.arrived()] == [GET, GONE, PUT, PUT]
        made.recorder._dead_threads.append("h9")  # it ends while the last line of a batch is put in
        made.put(4)
        assert [line[0] for line in made.arrived()] == [GONE, PUT, PUT, PUT]  # before the next line
        assert recorder.fault_text is None


@WAYS
def test_lives_that_wait_go_with_them(way: str) -> None:
    with begun(way, batch=2) as made:
        made.put(1)
        made.recorder.alloc("gpu", [1, 2])
        made.recorder.alloc("gpu", [3])
        made.recorder.alloc("gpu", [4])
        assert [[line[0], line[3]] for line in made.arrived()[1:]] == [[ALLOC, [1, 2]]]
        made.put(1)
        assert [line[:4] for line in made.arrived()] == [[ALLOC, "h0", "gpu", [3, 4]], [PUT, "h0", "t", ANY]]
        assert made.pipe.slow == (0 if way == "c" else 2)


@IN_C
def test_a_life_that_cannot_be_packed() -> None:
    """What was logged before arrives."""
    for error, where in ((KeyError("odd"), "alloc"), (Stop(), "the way")):
        with begun("c", batch=2) as made:
            made.put(1)
            with pytest.raises(Stop) if isinstance(error, Stop) else nullcontext():
                made.recorder.alloc("gpu", [raising(error)])
            assert f"{type(error).__name__} in {where}" in str(made.recorder.fault_text)
            assert made.recorder.waiting == 0
            assert made.recorder._settling is False
            assert [line[0] for line in made.arrived()] == [PUT]


@IN_C
@pytest.mark.parametrize("beside", [True, False])
def test_another_session_begins_while_a_life_is_packed(beside: bool) -> None:
    """The lines of the one before are let go with it."""
    with begun("c", batch=2) as made:
        recorder, other = made.recorder, Near(made.recorder.ledger)
        given: dict[str, Any] = {"batch": 2, "beside": other} if beside else {}
        made.put(1)
        recorder.alloc("gpu", [Does(lambda: recorder.listen((), **given))])
        assert recorder.fault_text is None
        made.put(4, "new")
        recorder.settle_up()
        assert made.pipe.frames() == []
        if beside:
            assert [line[2] for sort, lines in other.frames() if sort == LINES for line in lines] == ["new"] * 4
        other.close()


@IN_C
@pytest.mark.parametrize("change", ["news", "closed", "off"])
def test_what_changes_while_a_life_is_packed(change: str) -> None:
    def inside() -> None:
        if change == "news":
            made.recorder.unseen(edges=1)
        elif change == "closed":
            made.pipe._close()
        else:
            made.recorder.fault("inside", KeyError("odd"))

    with begun("c", batch=2) as made:
        made.put(1)
        made.recorder.alloc("gpu", [Does(inside)])
        if change == "news":
            assert [sort for sort, _ in made.pipe.frames()] == [NEWS, LINES]
            assert made.recorder.fault_text is None
        else:
            assert [sort for sort, _ in made.pipe.frames()] == [LINES] * (change == "off")  # those before it
            said = "KeyError in inside" if change == "off" else "OSError in the way"
            assert said in str(made.recorder.fault_text)
            made.recorder.settle_up()
            assert made.recorder.waiting == 0


@IN_C
def test_in_the_middle_of_a_line_that_is_made_plain() -> None:
    """What goes then are the lines before it; the others follow."""
    with begun("c", batch=3) as made:
        made.put(1, "before")
        made.recorder.access("x", reads={"gpu": [1]}, step=Does(lambda: made.put(4, "inside")))  # type: ignore[arg-type]
        made.put(4, "after")
        made.recorder.settle_up()
        assert made.recorder.fault_text is None
        assert [line[2] for line in made.arrived() if line[0] == PUT] == ["before"] + ["inside"] * 4 + ["after"] * 4


@WAYS
def test_a_huge_line_is_not_kept(way: str) -> None:
    with begun(way, size=1 << 20) as made:
        made.recorder._queue.append((TOLD, "x", "y" * 900_000))
        made.recorder._queue.append((TOLD, "x", "y" * 300_000))
        thread = reads_later(made, 0)
        try:
            made.put(4)
            made.recorder.settle_up()
        finally:
            joined(thread)
        if way == "c":
            assert made.recorder._queue.__sizeof__() < 1 << 20
        assert [line[0] for line in made.arrived()] == [TOLD, TOLD] + [PUT] * 4


# ── hooks, threads, the end ───────────────────────────────────────────────────────────────────────────────────────────

ANY: Any = type("Any", (), {"__eq__": lambda self, other: True, "__hash__": None})()


@pytest.mark.parametrize("batch", [1, 2, 3, 7])
def test_hooks_hand_over(batch: int) -> None:
    """What they send in C and in Python, but for the times and when it is sent."""
    found = []
    for language in ("c", "python") if HOT is not None else ("python",):
        with Run(language, batch, beside=True, counted=False) as run:
            recorder, world = run.recorder, run.world
            pipe = Near(recorder.ledger)
            recorder.listen((), batch=batch, beside=pipe)
            recorder.blocked = 2
            if language == "python":
                recorder._queue = deque()
            stream = world.Stream(7)
            for _ in range(5):
                event = world.Event()
                event.record()
                event.query()
                stream.wait_event(event)
                event.synchronize()
                world.current_stream().wait_stream(stream)
                recorder.tell("x", {"a": 1})
                recorder.touch("gpu", [1, 2])
            del event
            recorder.settle_up()
            assert recorder.fault_text is None
            frames = pipe.frames()
            assert pipe.slow <= len(frames) // 2 or language == "python"
            lines = [line for sort, lines in frames if sort == LINES for line in lines if line[0] != SETTLED]
            codes = [SYNC if line[0] == HELD else line[0] for line in lines]
            names = [[each for each in line[1:4] if type(each) is not int] for line in lines]
            found.append(sorted(str(line) for line in zip(codes, names, strict=True)))
            pipe.close()
    assert found[0] == found[-1]
    assert len(found[0]) > 30


class ByPipe(Way, Elsewhere):
    """Stands in for the process beside, and lines come by a pipe where C writes them."""

    slow = quick = 0

    def __init__(self) -> None:
        self._far, self._to = os.pipe()
        for end in (self._far, self._to):
            os.set_blocking(end, False)
        self._writing = self._torn = False
        self._process: Any = self
        self._changes, self._known, self._due = Ledger().changes, 0, 1 << 62
        super().__init__()

    @property
    def raises(self) -> BaseException | None:
        return self._raises

    @raises.setter
    def raises(self, error: BaseException | None) -> None:
        self._raises = error
        self._torn = error is not None

    @property
    def arrived(self) -> list[Any]:
        frames = []
        with suppress(BlockingIOError):
            while head := os.read(self._far, FRAME.size):
                size, sort = FRAME.unpack(head)
                assert sort == LINES
                frames.append(os.read(self._far, size))
        ByPipe.quick += len(frames)
        error, self.raises = self.raises, None  # which is for the next ones
        for frame in frames:  # each of whose lines looks here again
            self._take(decoded(frame))
        self.raises = error
        return self._arrived

    @arrived.setter
    def arrived(self, lines: list[Any]) -> None:
        self._arrived = lines

    def packed(self, given: bytes) -> None:
        _ = self.arrived  # what came before
        ByPipe.slow += 1
        super().packed(given)

    def __del__(self) -> None:
        os.close(self._far)
        os.close(self._to)


@IN_C
@pytest.mark.parametrize("seeds", [range(at, at + 10) for at in range(0, 60, 10)])
@pytest.mark.parametrize("counted", [True, False])
def test_programs_hand_over(seeds: range, counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine sees and what arrives is the same as where each hand-over is Python's."""
    ByPipe.quick = ByPipe.slow = 0
    for seed in seeds:
        batch, steps = program(seed)
        expected = played("c", batch, steps, beside=True, counted=counted)
        with monkeypatch.context() as patch:
            patch.setattr(native_programs, "Elsewhere", ByPipe)
            assert played("c", batch, steps, beside=True, counted=counted) == expected, seed
    assert ByPipe.quick > 100


@WAYS
def test_threads_that_hand_over_at_once(way: str) -> None:
    with begun(way, batch=3, size=4 * PAGE) as made:
        thread = reads_later(made, 0, 0)

        def work(name: str) -> Callable[[], None]:
            def log() -> None:
                for number in range(300):
                    made.recorder.put(f"{name}{number}")

            return log

        try:
            hurried([work(name) for name in "abcd"])
            made.recorder.settle_up()
        finally:
            joined(thread)
        tokens = made.tokens()
        for name in "abcd":
            mine = [token for token in tokens if token[0] == name]
            assert mine == [f"{name}{number}" for number in range(300)]
        assert made.recorder.fault_text is None
        assert made.recorder.ops == 1 + 1200


@WAYS
def test_a_recorder_and_its_pipe_end(way: str) -> None:
    """They know one another (`side.Side`)."""
    with begun(way) as made:
        recorder, pipe = made.recorder, made.pipe
        pipe.failures = recorder  # type: ignore[assignment]
        made.put(9)
    gone = [weakref.ref(each) for each in (recorder, pipe)]
    del recorder, pipe, made
    gc.collect()
    assert [each() for each in gone] == [None, None]


@IN_C
def test_hand_overs_keep_nothing() -> None:
    with begun("c") as made:
        made.put(40)
        made.pipe.frames()
        before = [
            sys.getrefcount(each) for each in (made.pipe, made.recorder._queue, made.recorder.ledger.changes, None)
        ]
        made.put(400)
        made.pipe.frames()
        after = [
            sys.getrefcount(each) for each in (made.pipe, made.recorder._queue, made.recorder.ledger.changes, None)
        ]
        assert before[:3] == after[:3]
        assert abs(after[3] - before[3]) < 50


@IN_C
def test_changes_are_a_counter_s() -> None:
    made: Any = Way()
    assert (made._to, made._process, made._changes) == (-1, None, None)
    with pytest.raises(TypeError, match="Counter"):
        made._changes = lambda: 3
    with pytest.raises(TypeError, match="Counter"):
        del made._changes
    recorder = Recorder()
    recorder.listen((), batch=2, beside=made)  # it has not begun to be anything
    assert recorder._beside is made


def test_a_ledger_that_travels() -> None:
    """Whoever gets it counts what it notices itself."""
    ledger = Ledger()
    ledger.unseen(1, 2, "a thing")
    ledger.note("off")
    assert ledger.changes.count == 2
    other = pickle.loads(pickle.dumps(ledger))
    assert other == ledger
    assert other.changes.count == 0
    other.note("another")
    assert (other.changes.count, ledger.changes.count) == (1, 2)
