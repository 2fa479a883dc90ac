"""The engine's end of the pipe: starts the process beside it and hands it what it has to know, in frames.

A frame is its length (u32), its sort (one byte), and its bytes: lines as `attach.lines` encodes them, everything else
pickled, since both ends are one program and one version. The process is started with the first frame that matters (a
pool that is registered is not worth one), so a process in which nothing happens has none beside it.

Callers hold the recorder's lock. Does not cover: several writers; a frame that a signal handler would begin in the
middle of another (`Busy`).
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsan.checker.attach.core import Follower
from kvsan.checker.attach.ledger import Ledger
from kvsan.checker.attach.lines import Line, encoded
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


class Busy(Exception):
    """A signal came in the middle of a frame."""


@dataclass(frozen=True, slots=True)
class News:
    """What the engine's process alone knows of the run, as it stands."""

    ledger: Ledger
    threads: dict[str, str]
    about: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """What the process beside has to be. Paths in `options` are this process's own; `first` as `session.is_first`."""

    options: Options
    suppressions: Suppressions
    pid: int
    first: bool


@dataclass(frozen=True, slots=True)
class Account:
    """What the process beside has seen. `lost`: orders that it does not know any more."""

    seen: Seen | None
    incidents: tuple[str, ...]
    ops: int
    lost: int = 0
    fault: str | None = None


class Pipe:
    """A `core.Beside`. `start` says what the process has to be, `news` what there is to know now."""

    def __init__(self, start: Callable[[], Start], news: Callable[[], News]) -> None:
        self._start, self._news = start, news
        self._process: subprocess.Popen[bytes] | None = None
        self._to = self._from = -1
        self._early: list[tuple[int, bytes]] = []
        self._writing = False
        self._told = 0
        self._known: tuple[Any, ...] = ()
        self._ended = False

    @property
    def running(self) -> bool:
        """Whether there is a process beside this one, or was."""
        return self._process is not None

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
        news = self._news
        now = time.monotonic_ns()
        ledger = news().ledger
        known = (ledger.copies, ledger.edges, len(ledger.notes))
        if known != self._known or now - self._told > NEWS_NS:
            self._told, self._known = now, known
            self._put(NEWS, pickle.dumps(news()))
        self._put(LINES, encoded(lines))

    def _tell(self, sort: int, what: object) -> None:
        data = pickle.dumps(what)
        if self._process is None:
            self._early.append((sort, data))
        else:
            self._put(sort, data)

    # ── what it says ──────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, seconds: float) -> Account:
        """What it has seen, once it has worked off all that it was given; its trace is flushed. Raises `OSError` if it
        is gone or does not answer in that time, and `Busy`.
        """
        return self._asked(ASK, True, seconds)

    def end(self, seconds: float, *, whole: bool) -> Account:
        """The same for the last time: it closes its files and ends. `whole`: the run was seen to its end."""
        account = self._asked(END, whole, seconds)
        self._ended = True
        self.abandon()
        if self._process is not None:
            self._process.wait()
        return account

    def _asked(self, sort: int, what: bool, seconds: float) -> Account:
        self._put(NEWS, pickle.dumps(self._news()))
        self._put(sort, pickle.dumps(what))
        until = time.monotonic() + seconds
        (size,) = ANSWER.unpack(self._read(ANSWER.size, until))
        found = pickle.loads(self._read(size, until))  # of our own process
        assert isinstance(found, Account)
        return found

    def _read(self, size: int, until: float) -> bytes:
        parts = []
        while size:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("the process that checks is not done yet")
            part = os.read(self._from, min(size, ROOM))
            if not part:
                raise BrokenPipeError("the process that checks has ended")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    # ── the process ───────────────────────────────────────────────────────────────────────────────────────────────

    def _put(self, sort: int, data: bytes) -> None:
        if self._writing:
            raise Busy
        if self._process is None:
            self._launch()
        self._writing = True
        try:
            self._write(FRAME.pack(len(data), sort) + data)
        finally:
            self._writing = False

    def _write(self, data: bytes) -> None:
        done = os.write(self._to, data)
        while done < len(data):
            data = data[done:]
            done = os.write(self._to, data)

    def _launch(self) -> None:
        if self._ended:
            raise BrokenPipeError("the process that checks has ended")
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        with suppress(OSError):
            fcntl.fcntl(self._to, fcntl.F_SETPIPE_SZ, ROOM)
        import kvsan.checker
        import kvsan.model
        import kvsan.runtime

        paths = dict.fromkeys(
            str(Path(folder).parent) for part in (kvsan.checker, kvsan.model, kvsan.runtime) for folder in part.__path__
        )
        above = dict.fromkeys(str(Path(path).parent) for path in paths)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(read), str(write), *above],
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
            self._put(sort, data)

    def abandon(self) -> None:
        """Lets go of it: in a forked child it is the parent's."""
        self._ended = True
        for fd in (self._to, self._from):
            if fd >= 0:
                os.close(fd)
        self._to = self._from = -1

    def forked(self) -> None:
        self.abandon()
        if self._process is not None:
            self._process.returncode = 0  # not ours to wait for
