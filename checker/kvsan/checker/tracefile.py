"""A trace of a run that goes on: readable at any moment, with a header that is right at the end.

Line 1 has to name pools, streams and counts that are only known later. So it is written with room to spare and
rewritten in place: as the first bytes of a plain file, as a gzip member of its own (stored, hence of fixed size) in a
`.gz`. Ops follow in whole lines, in `.gz` in whole members, so that a process that is killed leaves a file that reads
to its last flush. The file is made at the first op: a process that does nothing leaves none. Until `close` the header
promises a hook `kvsan stayed on` that has not fired: what is left of a run that was cut off is never Clean.

A file that another process writes, or has written since this one began, is left alone: this one's gets the process id
in its name. (That is for processes of which neither knows the other; `manners.own_path` names those that do apart.)

Lines of blocking calls that are still out are waited for: what comes after them stays in memory until then, up to
`WAITING` bytes. What is out longer, or still out at the end, is written as a line that orders nothing; if such a call
does return, the header counts an unseen edge.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import msgspec

from kvsan.checker.attach.around import nothing
from kvsan.checker.manners import with_id, written_since
from kvsan.checker.trace.header import Expects, Header
from kvsan.checker.trace.writer import op_document
from kvsan.model.ops import Op, Stream, Sync
from kvsan.runtime.binary import STAYED_ON

ROOM = 1 << 16
"""Bytes of line 1, for the header and its growth."""

FLUSH = 1 << 17
"""Bytes of lines that are written together."""

WAITING = 1 << 24
"""Bytes of lines that wait for a blocking call to return."""

FLUSH_NS = 1_000_000_000

_encode = msgspec.json.Encoder().encode


class TraceFile:
    """A `Sink`. `header` says what line 1 has to hold now; `say` hears of a file of another name than asked for."""

    def __init__(self, path: str, header: Callable[[], Header], say: Callable[[str], None] | None = None) -> None:
        self.path = path
        self._say = say
        self.began = time.time_ns()
        self._header = header
        self._zipped = path.endswith(".gz")
        self._room = ROOM
        self._fd = -1
        self._lines: list[bytes] = []
        self._size = 0
        self._waiting: deque[tuple[int, bytes | None, int]] = deque()  # from the first line that is not settled on
        self._waiting_size = 0
        self._held: dict[int, Sync] = {}
        self._settled: dict[int, bytes] = {}
        self._given_up: set[int] = set()
        self._lost = 0
        self._flushed = 0
        self._dirty = False
        self._busy = False

    def pool(self, name: str, blocks: int) -> None:
        self._dirty = True

    def stream(self, name: str, stream: Stream) -> None:
        self._dirty = True

    def take(self, index: int, op: Op) -> None:
        line = _line(op)
        if not self._waiting:
            self._add(line, int(op.t or 0))
            return
        self._waiting.append((index, line, int(op.t or 0)))
        self._waiting_size += len(line)
        while self._waiting_size > WAITING:
            first = self._waiting[0][0]
            self._given_up.add(first)
            self._settled[first] = _line(nothing(first, self._held.pop(first)))
            self._advance()

    def hold(self, index: int, op: Sync) -> None:
        self._held[index] = op
        self._waiting.append((index, None, int(op.t or 0)))

    def settle(self, index: int, op: Op) -> None:
        if index in self._given_up:
            self._given_up.remove(index)
            if isinstance(op, Sync):
                self._lost += 1
                self._dirty = True
            return
        del self._held[index]
        self._settled[index] = _line(op)
        self._advance()

    def _advance(self) -> None:
        """Writes what waits for nothing any more."""
        waiting = self._waiting
        while waiting:
            index, line, t = waiting[0]
            if line is None:
                if index not in self._settled:
                    return
                line = self._settled.pop(index)
            else:
                self._waiting_size -= len(line)
            waiting.popleft()
            self._add(line, t)

    def flush_now(self) -> None:
        """What a signal handler may call, also in the middle of a flush. Raises `OSError`."""
        if not self._busy and (self._fd >= 0 or self._lines):
            self._dirty = True
            self.flush()

    def flush(self) -> None:
        """Raises `OSError`."""
        self._busy = True
        try:
            self._flush()
        finally:
            self._busy = False

    def _flush(self) -> None:
        if self._fd < 0:
            self._fd = self._open()
            self._dirty = True
        if self._dirty:
            self._dirty = False
            self._write_header(whole=False)
            os.lseek(self._fd, 0, os.SEEK_END)
        data = b"".join(self._lines)
        self._lines, self._size = [], 0
        if data:
            _write(self._fd, gzip.compress(data, 1, mtime=0) if self._zipped else data)

    def _open(self) -> int:
        asked = self.path
        fd = -1 if written_since(asked, self.began) else _own(asked)
        if fd < 0:
            self.path = with_id(asked)
            fd = _own(self.path)
            if fd < 0:
                raise OSError(f"{asked} and {self.path} are written by other processes; accepted: a path with %p")
            if self._say is not None:
                self._say(f"{asked} is another process's: the trace goes to {self.path} (give trace= a %p)")
        return fd

    def close(self, *, whole: bool = True) -> None:
        """`whole`: the session saw the run to its end. Raises `OSError`."""
        if self._fd < 0 and not self._lines and not self._waiting:
            return
        try:
            for index, op in self._held.items():
                self._settled[index] = _line(nothing(index, op))
            self._held.clear()
            self._advance()
            self.flush()
            self._write_header(whole=whole)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Lets go of the file as it is: in a forked child it is the parent's."""
        self._lines, self._size = [], 0
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _add(self, line: bytes, now: int) -> None:
        self._size += len(line)
        self._lines.append(line)
        if self._size >= FLUSH or now - self._flushed > FLUSH_NS:
            self._flushed = now
            self.flush()

    def _write_header(self, *, whole: bool) -> None:
        header = self._header()
        expects = Expects(header.expects.streams, {**header.expects.hooks, STAYED_ON: 1})
        hooks = {**header.hooks, STAYED_ON: int(whole)}
        unseen = replace(header.unseen, edges=header.unseen.edges + self._lost)
        line = _encode(replace(header, expects=expects, hooks=hooks, unseen=unseen).document())
        while len(line) >= self._room:
            self._make_room()
        data = line + b" " * (self._room - 1 - len(line)) + b"\n"
        data = _stored(data) if self._zipped else data
        if os.pwrite(self._fd, data, 0) != len(data):
            raise OSError("the header was not written whole")

    def _make_room(self) -> None:
        """A header that has outgrown its place: the rest of the file moves."""
        old = self._room
        self._room *= 4
        if self._zipped:
            before, after = len(_stored(b" " * old)), len(_stored(b" " * self._room))
        else:
            before, after = old, self._room
        end = os.fstat(self._fd).st_size
        while end > before:
            start = max(before, end - (1 << 20))
            os.pwrite(self._fd, os.pread(self._fd, end - start, start), start + after - before)
            end = start
        os.lseek(self._fd, 0, os.SEEK_END)


def _own(path: str) -> int:
    """The file, empty and locked for as long as it is open; -1 if another process has locked it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(fd)
            return -1  # other errors: a file system without locks
    os.ftruncate(fd, 0)
    return fd


def _line(op: Op) -> bytes:
    return _encode(op_document(op)) + b"\n"


def _stored(data: bytes) -> bytes:
    """A gzip member that does not compress, so that its size depends on the size of the data alone."""
    pack = zlib.compressobj(0, zlib.DEFLATED, 31)
    return pack.compress(data) + pack.flush()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
