"""Reads the binary log that `kvsan.runtime.binary` writes, with all the checks that a JSON trace meets.

A log that was cut off between two chunks reads to there; its header then says that it was not seen whole, and the
verdict is Incomplete. A chunk that is cut off, or whose sum is wrong, is a `TraceError` that says how many whole ops
lie before it; `salvage` reads those and stops.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np

from kvsan.checker.index import IdBlocks
from kvsan.checker.trace.header import Header, TraceError, header_from
from kvsan.checker.trace.keys import LineError
from kvsan.checker.trace.line import Line
from kvsan.model.ops import Access, Alloc, Blocks, Drop, Free, Get, Op, Poll, Put, Record, Sync, Touch, Wait
from kvsan.runtime import binary as form

ACCEPTED = 'an undamaged file ("kvsan convert --salvage" keeps what is whole)'
_Chunk = tuple[int, int, int, int]
"""Where its payload is, bytes, sum, ops."""


class BinaryLog:
    """A log in a file, from its first byte on. Raises `TraceError`."""

    def __init__(self, name: str, file: io.BufferedIOBase, *, salvage: bool = False) -> None:
        self.name = name
        self._salvage = salvage
        self._file = file if file.seekable() else _spooled(file)
        self.left_out = False
        """Salvaging: something was not whole."""
        self._chunks: list[_Chunk] = []
        self.header = self._survey()

    def bytes_read(self) -> int:
        return self._file.tell()

    def _survey(self) -> Header:
        """Finds the chunks and the last header."""
        file = self._file
        start = file.read(len(form.MAGIC))
        if start[:8] != form.MAGIC[:8]:
            raise TraceError(self.name, 0, "is no kvsan log, though it begins like one", "a whole log, or JSON lines")
        if start != form.MAGIC:
            version = int.from_bytes(start[8:], "little")
            wrong = (
                f"is a log of version {version}" if len(start) == len(form.MAGIC) else "is cut off in its first bytes"
            )
            raise TraceError(self.name, 0, wrong, f"version {form.VERSION}")
        end = file.seek(0, io.SEEK_END)
        at, ops, header = len(form.MAGIC), 0, b""
        while at < end:
            file.seek(at)
            head = file.read(form.CHUNK.size)
            tag, size, total, count = form.CHUNK.unpack(head) if len(head) == form.CHUNK.size else (b"", 0, 0, 0)
            wrong = ""
            if len(head) < form.CHUNK.size or (tag in (form.HEAD, form.LINES) and at + form.CHUNK.size + size > end):
                wrong = "is cut off"
            elif tag == form.HEAD:
                data = file.read(size)
                wrong = "is damaged" if zlib.crc32(data) != total else ""
                header = header if wrong else data
            elif tag == form.LINES:
                if self._salvage and zlib.crc32(file.read(size)) != total:  # else it is seen when it is read
                    wrong = "is damaged"
                else:
                    self._chunks.append((at + form.CHUNK.size, size, total, count))
                    ops += count
            else:
                wrong = "is damaged"
            if wrong:
                self._broken(wrong, at, ops)
                break
            at += form.CHUNK.size + size
        if not header:
            raise TraceError(self.name, 0, "has no header that is whole", "a log with at least one chunk of each sort")
        try:
            return header_from(json.loads(header))
        except LineError as error:
            raise TraceError(self.name, 1, error.wrong, error.accepted) from None
        except (ValueError, RecursionError):
            raise TraceError(self.name, 1, "has a header that is not JSON", "a log that kvsan wrote") from None

    def _broken(self, wrong: str, at: int, ops: int) -> None:
        self.left_out = True
        if not self._salvage:
            raise TraceError(self.name, 0, f"{wrong} at byte {at}, after {ops} whole ops", ACCEPTED)

    def lines(self) -> Iterator[Line]:
        """The ops, once."""
        names: dict[int, str] = {}
        ops = 0
        for at, size, total, _ in self._chunks:
            self._file.seek(at)
            data = self._file.read(size)
            if zlib.crc32(data) != total:
                self._broken("is damaged", at, ops)
                return
            try:
                for line in _records(data, names):
                    ops += 1
                    yield line
            except (struct.error, LookupError, ValueError, TypeError, RecursionError) as error:
                raise TraceError(
                    self.name, 0, f"has a record that cannot be read, after op {ops} ({error})", ACCEPTED
                ) from None


def _spooled(file: io.BufferedIOBase) -> io.BufferedIOBase:
    """A pipe cannot be read twice, and the header that counts is the last."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the last reference
    shutil.copyfileobj(file, copy)
    copy.seek(0)
    return cast(io.BufferedIOBase, copy)


def _records(data: bytes, names: dict[int, str]) -> Iterator[Line]:
    words = np.frombuffer(data, "<i4", len(data) // 4)
    at, end = 0, len(data)
    while at < end:
        kind, flags, by_id, on_id, name_id, t = form.LINE.unpack_from(data, at)
        more: dict[str, Any] = {}
        if kind == form.NAME:
            names[name_id], at = _text(data, at)
            continue
        by, on = names[by_id], None if on_id == form.NOBODY else names[on_id]
        when: Any = t if flags & form.TIMED else None
        op: Op
        if kind == form.ACCESS:
            *_, reading, writing, site, _, planned, step = form.FULL.unpack_from(data, at)
            at += form.FULL.size
            batch = bool(flags & form.BATCH)
            reads, at = _sets(data, words, at, reading, names, keep=batch)
            writes, at = _sets(data, words, at, writing, names, keep=batch)
            more, at = _more(data, at, flags)
            op = Access(
                by,
                on,
                reads,
                writes,
                more.pop("label", "") if name_id == form.NOBODY else names[name_id],
                form.ORDERS[flags >> form.ORDER & 3],
                batch,
                planned if flags & form.PLANNED else None,
                step if flags & form.STEP else more.pop("step", None),
                more.pop("owner", None),
                more.pop("site", None) if site == form.NOBODY else names[site],
                more.pop("t", when),
            )
        elif kind in _LIVES:
            sets, at = _sets(data, words, at + form.LINE.size, 1, names)
            more, at = _more(data, at, flags)
            ((pool, blocks),) = sets.items()
            op = _LIVES[kind](by, pool, blocks, more.pop("t", when))
        else:
            text, at = _text(data, at)
            more, at = _more(data, at, flags)
            when = more.pop("t", when)
            op = _order(kind, by, on, text, when, more)
        yield Line(op, more)


def _order(kind: int, by: str, on: str | None, text: str, t: Any, more: dict[str, Any]) -> Op:
    match kind:
        case form.RECORD | form.WAIT:
            if on is None:
                raise ValueError("no stream")
            return (Record if kind == form.RECORD else Wait)(by, on, text, t)
        case form.SYNC_EVENT:
            return Sync(by, text, t=t)
        case form.SYNC_STREAM:
            return Sync(by, stream=on, t=t)
        case form.SYNC_DEVICE:
            return Sync(by, device=more.pop("device"), t=t)
        case form.NO | form.YES:
            return Poll(by, text, kind == form.YES, t)
        case form.PUT:
            more.pop("device", None)  # of a sync that failed
            return Put(by, text, t)
        case form.GET:
            return Get(by, text, t)
        case form.DROP:
            return Drop(by, text, t)
    raise ValueError(f"record of kind {kind}")


_LIVES: dict[int, type[Alloc] | type[Free] | type[Touch]] = {form.ALLOC: Alloc, form.FREE: Free, form.TOUCH: Touch}


def _text(data: bytes, at: int) -> tuple[str, int]:
    size = form.TEXT.unpack_from(data, at)[-1]
    at += form.TEXT.size
    return _slice(data, at, size).decode(), (at + size + 3) & ~3


def _sets(
    data: bytes, words: Any, at: int, count: int, names: dict[int, str], *, keep: bool = False
) -> tuple[dict[str, Blocks], int]:
    out: dict[str, Blocks] = {}
    for _ in range(count):
        pool, shape, size = form.SET.unpack_from(data, at)
        start = (at + form.SET.size) // 4
        found = words[start : start + size].astype(np.int64)
        if len(found) != size:
            raise ValueError("a set that is cut off")
        if size and int(found.min()) < 0:
            raise ValueError(f"block {found.min()}")
        if shape == form.IDS:
            out[names[pool]] = IdBlocks(found, keep=keep) if size else Blocks(())
        elif shape == form.RUNS:
            runs = found.reshape(-1, 2)
            if size and not (runs[:, 0] < runs[:, 1]).all():
                raise ValueError("a run without blocks")
            out[names[pool]] = Blocks(tuple(map(tuple, runs.tolist())))
        else:
            raise ValueError(f"a set of form {shape}")
        at += form.SET.size + 4 * size
    return out, at


def _more(data: bytes, at: int, flags: int) -> tuple[dict[str, Any], int]:
    if not flags & form.MORE:
        return {}, at
    (size,) = form.COUNT.unpack_from(data, at)
    at += form.COUNT.size
    more = json.loads(_slice(data, at, size))
    if not isinstance(more, dict):
        raise TypeError("no object")
    return more, (at + size + 3) & ~3


def _slice(data: bytes, at: int, size: int) -> bytes:
    found = data[at : at + size]
    if len(found) != size:
        raise ValueError("a text that is cut off")
    return found


def not_whole(header: Header) -> Header:
    """The header of what was salvaged: it does not promise to be all."""
    hooks = {**header.hooks, form.STAYED_ON: 0}
    return replace(
        header, hooks=hooks, expects=replace(header.expects, hooks={**header.expects.hooks, form.STAYED_ON: 1})
    )
