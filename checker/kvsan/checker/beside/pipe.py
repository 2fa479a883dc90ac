"""The engine's end of the pipe: starts the process beside it and hands it what it has to know, in frames.

A frame is its length (u32), its sort (one byte), and its bytes: lines as `attach.lines` encodes them, everything else
pickled, since both ends are one program and one version. The process is started with the first frame that matters (a
pool that is registered is not worth one), so a process in which nothing happens has none beside it.

Where that is built, C writes the usual frame of lines (`Way`), with the interpreter lock; so the end that is written to
does not block, and whoever finds it full waits here.

Callers hold the recorder's lock. Does not cover: several writers; a frame that a signal handler would begin in the
middle of another (`BusyError`).
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import kvsan.checker
import kvsan.model
import kvsan.runtime
from kvsan.checker.attach.ledger import Counter, Ledger
from kvsan.checker.attach.lines import Line, encoded
from kvsan.checker.attach.native import HOT
from kvsan.checker.attach.sinks import Follower
from kvsan.checker.live import Seen
from kvsan.checker.options import Options
from kvsan.checker.suppressions import Suppression, Suppressions
from kvsan.model.ops import Stream

FRAME = struct.Struct("<IB")
LINES, START, POOL, STREAM, FOLLOW, NEWS, ENTER, LEAVE, ASK, END = range(10)
ROOM = 1 << 20
"""Bytes of the pipe: what an ordinary user may ask for (`pipe(7)`, pipe-max-size)."""
NEWS_NS = 1_000_000_000
ANSWER = struct.Struct("<Q")

_BOOT = "import sys; sys.path[:0] = sys.argv[3:]; from kvsan.checker.beside.process import main; main()"


_HOMES = tuple(
    dict.fromkeys(
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(file))))
        for file in (kvsan.checker.__file__, kvsan.model.__file__, kvsan.runtime.__file__)
        if file
    )
)
"""Where kvsan was loaded from: a relative path means something else after a `chdir`."""


class BusyError(Exception):
    """A signal came in the middle of a frame."""


@dataclass(frozen=True, slots=True)
class News:
    """What the engine's process alone knows of the run, as it stands."""

    ledger: Ledger
    threads: dict[str, str]
    about: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """What the process beside has to be. Paths in `options` are this process's own; `first` as `session.is_first`;
    `began`: when the session did (`time.time_ns`), by which a file of somebody else's is told.
    """

    options: Options
    suppressions: Suppressions
    pid: int
    first: bool
    began: int


@dataclass(frozen=True, slots=True)
class Account:
    """What the process beside has seen. `lost`: orders that it does not know any more."""

    seen: Seen | None
    incidents: tuple[str, ...]
    ops: int
    lost: int = 0
    fault: str | None = None


if TYPE_CHECKING or HOT is None:

    class Way:
        """What says whether lines may be written now. C reads it, which writes the usual frame of lines (`way.h`)."""

        _to: int
        """The end that is written to; it does not block. -1: there is none yet, or any more."""
        _process: subprocess.Popen[bytes] | None
        _writing: bool
        _torn: bool
        """A frame was not written whole."""
        _due: int
        """When there are news to be told, ns."""
        _known: int
        """How many changes there were when news were told."""
        _changes: Counter

else:
    Way = HOT.Way


class Pipe(Way):
    """A `sinks.Beside`. `start` says what the process has to be, `news` what there is to know now, `changes` counts
    news that cannot wait; `failed` hears of an end of it that nobody else hears of.
    """

    def __init__(
        self,
        start: Callable[[], Start],
        news: Callable[[], News],
        changes: Counter,
        failed: Callable[[Exception], None],
    ) -> None:
        self._start, self._news, self._changes, self._failed = start, news, changes, failed
        self._process = None
        self._to = self._from = -1
        self._early: list[tuple[int, bytes]] = []
        self._writing = self._torn = False
        self.found = False
        """Whether it has said that a hazard is certain."""
        self._owed = 0  # answers that were asked for and not waited for
        self._answer = b""
        self._due, self._known = 0, -1
        self._ended = False

    @property
    def pid(self) -> int | None:
        """Of the process beside this one, once there is one."""
        return None if self._process is None else self._process.pid

    # ── what it is told ───────────────────────────────────────────────────────────────────────────────────────────

    def pool(self, name: str, blocks: int) -> None:
        self._tell(POOL, (name, blocks))

    def stream(self, name: str, stream: Stream) -> None:
        self._tell(STREAM, (name, stream))

    def follow(self, name: str, follower: Follower) -> None:
        self._tell(FOLLOW, (name, follower))

    def enter(self, line: Suppression) -> None:
        """Hazards that the line matches are allowed from here on, until it is left."""
        self._tell(ENTER, line)

    def leave(self, line: Suppression) -> None:
        self._tell(LEAVE, line)

    def lines(self, lines: list[Line]) -> None:
        """Raises `OSError`: the process is gone."""
        self.packed(encoded(lines))

    def packed(self, lines: bytes) -> None:
        """The same with lines that are encoded already."""
        now, changes = time.monotonic_ns(), self._changes.count
        if changes != self._known or now > self._due:
            self._due, self._known = now + NEWS_NS, changes
            self._put(NEWS, pickle.dumps(self._news()))
        self._put(LINES, lines)

    def rest(self, lines: bytes, done: int) -> None:
        """What C could not write of a frame of lines, since the pipe was full: so many bytes of it are done."""
        self._writing = True
        try:
            self._write_on(FRAME.pack(len(lines), LINES) + lines, done)
            self._torn = False
        finally:
            self._writing = False

    def _tell(self, sort: int, what: object) -> None:
        try:
            data = pickle.dumps(what)
            if self._process is None:
                self._early.append((sort, data))
            else:
                self._put(sort, data)
        except Exception as error:  # it is gone, or a follower that cannot travel
            self._failed(error)

    # ── what it says ──────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, seconds: float) -> Account:
        """What it has seen, once it has worked off all that it was given; its trace is flushed. Raises `TimeoutError`
        if that takes longer, another `OSError` if it is gone, and `BusyError`.
        """
        return self._asked(ASK, True, seconds)

    def end(self, seconds: float, *, whole: bool) -> Account:
        """The same for the last time: it closes its files and ends. `whole`: the run was seen to its end."""
        try:
            return self._asked(END, whole, seconds)
        finally:
            self.stop()

    def _asked(self, sort: int, what: bool, seconds: float) -> Account:
        self._put(NEWS, pickle.dumps(self._news()))
        self._put(sort, pickle.dumps(what))
        self._owed += 1
        until = time.monotonic() + seconds
        while True:
            (size,) = ANSWER.unpack(self._read(ANSWER.size, until))
            if not size:
                self.found, self._answer = True, b""
                continue
            data = self._read(ANSWER.size + size, until)[ANSWER.size :]
            self._answer = b""
            self._owed -= 1
            if not self._owed:
                found = pickle.loads(data)  # of our own other half
                assert isinstance(found, Account)
                return found

    def _read(self, size: int, until: float) -> bytes:
        """The first so many bytes of the answer that comes next, which stay there."""
        while len(self._answer) < size:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("the process that checks is not done yet")
            part = os.read(self._from, min(size - len(self._answer), ROOM))
            if not part:
                raise BrokenPipeError("the process that checks has ended")
            self._answer += part
        return self._answer

    # ── the process ───────────────────────────────────────────────────────────────────────────────────────────────

    def _put(self, sort: int, data: bytes) -> None:
        if self._writing:
            raise BusyError
        if self._torn:
            raise BrokenPipeError("a frame was not written whole")
        self._writing = True
        try:
            if self._process is None:
                self._launch()
            self._write(sort, data)
        finally:
            self._writing = False

    def _write(self, sort: int, data: bytes) -> None:
        head = FRAME.pack(len(data), sort)
        self._torn = True  # until it is whole: a signal's handler may raise
        try:
            with _quietly():
                done = os.writev(self._to, (head, data))
        except BlockingIOError:
            done = 0
        if done < len(head) + len(data):
            self._write_on(head + data, done)
        self._torn = False

    def _write_on(self, frame: bytes, done: int) -> None:
        """The pipe is full: whoever fills it waits for the other side."""
        rest, room = memoryview(frame)[done:], select.poll()
        room.register(self._to, select.POLLOUT)
        while rest:
            room.poll()
            with suppress(BlockingIOError), _quietly():
                rest = rest[os.write(self._to, rest) :]

    def _launch(self) -> None:
        if self._ended:
            raise BrokenPipeError("the process that checks has ended")
        read, self._to = _pipe()
        self._from, write = _pipe()
        os.set_blocking(self._to, False)
        with suppress(OSError):
            fcntl.fcntl(self._to, fcntl.F_SETPIPE_SZ, ROOM)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(read), str(write), *_HOMES, *sys.path],
                pass_fds=(read, write),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "KVSAN": "0", "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is the engine's; this one ends when the engine has
            )
        finally:
            os.close(read)
            os.close(write)
        early, self._early = self._early, []
        for sort, data in [(START, pickle.dumps(self._start())), *early]:
            self._write(sort, data)

    def stop(self) -> None:
        """It ends, if it has not: nobody asks it any more."""
        self._close()
        if self._process is not None:
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def forked(self) -> None:
        """In a forked child: it is the parent's."""
        self._close()
        if self._process is not None:
            self._process.returncode = 0  # not ours to wait for

    def _close(self) -> None:
        self._ended = True
        if self._from >= 0 and not self.found:  # said, and never asked for
            ready, _, _ = select.select([self._from], [], [], 0)
            said = os.read(self._from, ANSWER.size) if ready else b""
            self.found = said == ANSWER.pack(0)
        ends = self._to, self._from
        self._to = self._from = -1  # before they are closed: a signal's handler may log
        for fd in ends:
            if fd >= 0:
                os.close(fd)


@contextmanager
def _quietly() -> Iterator[None]:
    """No signal tells that nobody reads: the engine may have SIGPIPE end its process."""
    if not hasattr(signal, "sigtimedwait"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    except BrokenPipeError:
        signal.sigtimedwait({signal.SIGPIPE}, 0)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pipe() -> tuple[int, int]:
    """A pipe on descriptors that are nobody's stdin, stdout or stderr, which may be closed."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))
        os.close(end)
    return ends[0], ends[1]
