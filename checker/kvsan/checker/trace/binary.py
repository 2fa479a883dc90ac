"""Reads the binary log that `kvsan.runtime.binary` writes, with all the checks that a JSON trace meets.

A log that was cut off between two chunks reads to there; its header then says that it was not seen whole, and the
verdict is Incomplete. A chunk that is cut off, or whose sum is wrong, is a `TraceError` that says how many whole ops
lie before it; `salvage` reads those and stops. What stands in a chunk is data: numbers, texts, lists and objects, of
JSON or of msgpack, each checked for its type.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np

from kvsan.checker.index import IdBlocks, Ids
from kvsan.checker.trace.header import Header, TraceError, header_from
from kvsan.checker.trace.keys import LineError
from kvsan.checker.trace.line import Line
from kvsan.model.ops import Access, Alloc, Blocks, Drop, Free, Get, Op, Poll, Put, Record, Sync, Touch, Wait
from kvsan.runtime import binary as form

ACCEPTED = 'an undamaged file ("kvsan convert --salvage" keeps what is whole)'
_Chunk = tuple[bytes, int, int, int]
"""Tag, where its payload is, bytes, sum."""

_Row = tuple[Any, Any, Any, Any, Any, Any]
"""Kind, by, on (or the pool), text (or the number of words, or what is known of an access), t, further keys."""


class BinaryLog:
    """A log in a file that can be sought in, from its first byte on. Raises `TraceError`."""

    def __init__(self, name: str, file: io.BufferedIOBase, *, salvage: bool = False) -> None:
        self.name = name
        self._salvage = salvage
        self._file = file
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
        if start[: len(form.MARK)] != form.MARK:
            raise TraceError(self.name, 0, "is no kvsan log, though it begins like one", "a whole log, or JSON lines")
        self._version = int.from_bytes(start[len(form.MARK) :], "little")
        accepted = "version " + " or ".join(map(str, form.READ))
        if len(start) < len(form.MAGIC):
            raise TraceError(self.name, 0, "is cut off in its first bytes", accepted)
        if self._version not in form.READ:
            raise TraceError(self.name, 0, f"is a log of version {self._version}", accepted)
        end = file.seek(0, io.SEEK_END)
        at, ops, header = len(form.MAGIC), 0, b""
        while at < end:
            file.seek(at)
            head = file.read(form.CHUNK.size)
            tag, size, total, count = form.CHUNK.unpack(head) if len(head) == form.CHUNK.size else (b"", 0, 0, 0)
            wrong = ""
            if len(head) < form.CHUNK.size or (tag in (form.HEAD, *_LINES) and at + form.CHUNK.size + size > end):
                wrong = "is cut off"
            elif tag == form.HEAD:
                data = file.read(size)
                wrong = "is damaged" if zlib.crc32(data) != total else ""
                header = header if wrong else data
            elif tag in _LINES:
                if self._salvage and zlib.crc32(file.read(size)) != total:  # else it is seen when it is read
                    wrong = "is damaged"
                else:
                    self._chunks.append((tag, at + form.CHUNK.size, size, total))
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
        ops = 0
        for tag, at, size, total in self._chunks:
            self._file.seek(at)
            data = self._file.read(size)
            if zlib.crc32(data) != total:
                self._broken("is damaged", at, ops)
                return
            try:
                for line in _records(tag, data, self._version):
                    ops += 1
                    yield line
            except (struct.error, LookupError, ValueError, TypeError, RecursionError) as error:
                raise TraceError(
                    self.name, 0, f"has a record that cannot be read, after op {ops} ({error})", ACCEPTED
                ) from None


@contextmanager
def seekable(file: io.BufferedIOBase) -> Iterator[io.BufferedIOBase]:
    """The file, or a copy if it is a pipe: that cannot be read twice, and the header that counts is the last."""
    if file.seekable():
        yield file
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(file, copy)
        copy.seek(0)
        yield cast(io.BufferedIOBase, copy)


class _Words:
    """The words of a chunk, taken in the order of its lines."""

    def __init__(self, data: bytes) -> None:
        (count,) = form.COUNT.unpack_from(data)
        self._words = np.frombuffer(data, "<i4", count, form.COUNT.size)
        self._at = 0

    def set(self, given: Any, *, keep: bool = False) -> Blocks:
        """A set: its ids, or a number: the next so many words are its ids, or runs if there are less than none."""
        if type(given) is int:
            found = self._words[self._at : self._at + abs(given)].astype(np.int64)
            self._at += abs(given)
            if len(found) != abs(given):
                raise ValueError("a set that is cut off")
        else:
            found = _few(given)
        if len(found) and int(found.min()) < 0:
            raise ValueError(f"block {found.min()}")
        if type(given) is not int or given > 0:
            return IdBlocks(found, keep=keep)
        runs = found.reshape(-1, 2)
        if not (runs[:, 0] < runs[:, 1]).all():
            raise ValueError("a run without blocks")
        return Blocks(tuple((lo, hi) for lo, hi in runs.tolist()))

    def sets(self, given: list[Any], *, keep: bool) -> dict[str, Blocks]:
        return {pool: self.set(found, keep=keep) for pool, found in zip(given[::2], given[1::2], strict=True)}


def _few(given: Any) -> Ids:
    """Ids that stand in their line."""
    if type(given) is list and all(type(block) is int for block in given):
        given = np.array(given, form.IDS).tobytes()
    if type(given) is not bytes or not given:
        raise ValueError("a set that is none")
    return np.frombuffer(given, form.IDS).astype(np.int64)


def _records(tag: bytes, data: bytes, version: int) -> Iterator[Line]:
    words = _Words(data)
    (count,) = form.COUNT.unpack_from(data)
    lines = _LINES[tag](data[form.COUNT.size + 4 * count :])
    for kind, by, on, text, t, more in (_old if version == 1 else _rows)(lines):
        _texts(by)
        op: Op
        if kind == form.ACCESS:
            label, flags, planned, step, site, reading, writing = text
            keep = bool(flags & 1)
            reads, writes = words.sets(reading, keep=keep), words.sets(writing, keep=keep)
            _texts(label, *reads, *writes, *(name for name in (on, site) if name is not None))
            order, owner = form.ORDERS[flags >> 1], more.pop("owner", None)
            op = Access(by, on, reads, writes, label, order, keep, planned, step, owner, site, t)
        elif kind in _LIVES:
            _texts(on)
            op = _LIVES[kind](by, on, words.set(text), t)
        else:
            _texts(text)
            op = _order(kind, by, on, text, t)
        if not isinstance(t, int | float | None) or isinstance(t, bool):
            raise TypeError("a time that is no number")
        _plain(more)
        yield Line(op, more)


def _rows(lines: Any) -> Iterator[_Row]:
    if type(lines) is not list:
        raise TypeError("lines that are none")
    at = 0
    while at < len(lines):
        kind, by, on, text, t = lines[at : at + form.WIDTH]
        more: Any = {}
        if type(text) is list and len(text) == 2 and type(text[1]) is dict:
            text, more = text
        at += form.WIDTH
        if kind == form.ACCESS:
            flags, planned, step, site, reads, writes = lines[at : at + form.START - form.WIDTH]
            at += form.START - form.WIDTH
            middle, end = at + 2 * reads, at + 2 * (reads + writes)
            if not at <= middle <= end <= len(lines):
                raise ValueError("sets that are cut off")
            text = [text, flags, planned, step, site, lines[at:middle], lines[middle:end]]
            at = end
        yield kind, by, on, text, t, more


def _old(lines: Any) -> Iterator[_Row]:
    """Of version 1."""
    for kind, by, *rest in lines:
        more = rest.pop() if isinstance(rest[-1], dict) else {}
        if kind == form.ACCESS:
            on, label, t, *about = rest
            yield kind, by, on, [label, *about], t, more
        else:
            on, text, t = rest
            yield kind, by, on, text, t, more


def _plain(value: Any) -> None:
    """Msgpack has types that JSON has not: a line's further keys are what JSON could have said."""
    if type(value) is dict:
        _texts(*value)
        value = list(value.values())
    if type(value) is list:
        for one in value:
            _plain(one)
    elif type(value) is str:
        _texts(value)
    elif value is not None and type(value) not in (bool, int, float):
        raise TypeError(f"a value of type {type(value).__name__}")


def _texts(*names: Any) -> None:
    for name in names:
        if type(name) is not str:
            raise TypeError("a name that is no text")
        name.encode()


def _order(kind: int, by: str, on: Any, text: str, t: Any) -> Op:
    match kind:
        case form.RECORD | form.WAIT:
            _texts(on)
            return (Record if kind == form.RECORD else Wait)(by, on, text, t)
        case form.SYNC_EVENT:
            return Sync(by, text, t=t)
        case form.SYNC_STREAM:
            _texts(on)
            return Sync(by, stream=on, t=t)
        case form.SYNC_DEVICE:
            return Sync(by, device=on, t=t)
        case form.NO | form.YES:
            return Poll(by, text, kind == form.YES, t)
        case form.PUT:
            return Put(by, text, t)
        case form.GET:
            return Get(by, text, t)
        case form.DROP:
            return Drop(by, text, t)
    raise ValueError(f"a line of kind {kind}")


_LINES: dict[bytes, Callable[[bytes], Any]] = {form.LINES: json.loads, form.PACKED: msgspec.msgpack.decode}
_LIVES: dict[int, type[Alloc] | type[Free] | type[Touch]] = {form.ALLOC: Alloc, form.FREE: Free, form.TOUCH: Touch}


def not_whole(header: Header) -> Header:
    """The header of what was salvaged: it does not promise to be all."""
    hooks = {**header.hooks, form.STAYED_ON: 0}
    return replace(
        header, hooks=hooks, expects=replace(header.expects, hooks={**header.expects.hooks, form.STAYED_ON: 1})
    )
