"""A trace of a run that goes on: readable at any moment, with a header that is right at the end.

Line 1 has to name pools, streams and counts that are only known later. So it is written with room to spare and
rewritten in place: as the first bytes of a plain file, as a gzip member of its own (stored, hence of fixed size) in a
`.gz`. Ops follow in whole lines, in `.gz` in whole members, so that a process that is killed leaves a file that reads
to its last flush. The file is made at the first op: a process that does nothing leaves none. Until `close` the header
promises a hook `kvsan stayed on` that has not fired: what is left of a run that was cut off is never Clean.

Lines of blocking calls that are still out are waited for: what comes after them stays in memory until then, and what
is still out at the end is written as a line that orders nothing.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import msgspec

from kvsan.checker.attach.around import nothing
from kvsan.checker.trace.header import Expects, Header
from kvsan.checker.trace.writer import op_document
from kvsan.model.ops import Op, Stream, Sync

ROOM = 1 << 16
"""Bytes of line 1, for the header and its growth."""

FLUSH = 1 << 17
"""Bytes of lines that are written together."""

FLUSH_NS = 1_000_000_000
STAYED_ON = "kvsan stayed on"

_encode = msgspec.json.Encoder().encode


class TraceFile:
    """A `Sink`. `header` says what line 1 has to hold now."""

    def __init__(self, path: str, header: Callable[[], Header]) -> None:
        self.path = path
        self._header = header
        self._zipped = path.endswith(".gz")
        self._room = ROOM
        self._fd = -1
        self._lines: list[bytes] = []
        self._size = 0
        self._waiting: deque[tuple[int, Op | None]] = deque()  # from the first line that is not settled on
        self._held: dict[int, Sync] = {}
        self._flushed = 0
        self._dirty = False

    def pool(self, name: str, blocks: int) -> None:
        self._dirty = True

    def stream(self, name: str, stream: Stream) -> None:
        self._dirty = True

    def take(self, index: int, op: Op) -> None:
        if self._waiting:
            self._waiting.append((index, op))
            return
        self._add(op)

    def hold(self, index: int, op: Sync) -> None:
        self._held[index] = op
        self._waiting.append((index, None))

    def settle(self, index: int, op: Op) -> None:
        self._held.pop(index)
        waiting = self._waiting
        for at, (number, _) in enumerate(waiting):
            if number == index:
                waiting[at] = (index, op)
                break
        while waiting and waiting[0][1] is not None:
            ready = waiting.popleft()[1]
            assert ready is not None
            self._add(ready)

    def flush(self) -> None:
        """Raises `OSError`."""
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            self._dirty = True
        if self._dirty:
            self._dirty = False
            self._write_header(whole=False)
            os.lseek(self._fd, 0, os.SEEK_END)
        data = b"".join(self._lines)
        self._lines, self._size = [], 0
        if data:
            _write(self._fd, gzip.compress(data, 1, mtime=0) if self._zipped else data)

    def close(self, *, whole: bool = True) -> None:
        """`whole`: the session saw the run to its end. Raises `OSError`."""
        if self._fd < 0 and not self._lines and not self._waiting:
            return
        try:
            for index, op in self._waiting:
                self._add(nothing(index, self._held[index]) if op is None else op)
            self._waiting.clear()
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

    def _add(self, op: Op) -> None:
        line = _encode(op_document(op)) + b"\n"
        self._lines.append(line)
        self._size += len(line)
        now = int(op.t or 0)
        if self._size >= FLUSH or now - self._flushed > FLUSH_NS:
            self._flushed = now
            self.flush()

    def _write_header(self, *, whole: bool) -> None:
        header = self._header()
        expects = Expects(header.expects.streams, {**header.expects.hooks, STAYED_ON: 1})
        hooks = {**header.hooks, STAYED_ON: int(whole)}
        line = _encode(replace(header, expects=expects, hooks=hooks).document())
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


def _stored(data: bytes) -> bytes:
    """A gzip member that does not compress, so that its size depends on the size of the data alone."""
    pack = zlib.compressobj(0, zlib.DEFLATED, 31)
    return pack.compress(data) + pack.flush()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
