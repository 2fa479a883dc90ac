"""The binary log: a run's ops as bytes, at little cost in the engine's thread. `kvsan convert` makes JSON lines of it.

A line is packed into a segment of a preallocated ring (ids by one copy into it, no Python object a block); a full
segment is written by a thread of its own, so that the engine meets the disk only when the whole ring is waiting for
it. Nothing is ever left out for lack of room: the engine's thread then waits.

    file    = MAGIC, chunk…                  chunk  = tag (4), bytes (u32), CRC-32 (u32), ops in it (u32), payload
    "HEAD"  = the trace's header as JSON (`TRACE.md`), as it stands; the last one counts
    "LINE"  = records, each a multiple of 4 bytes, little-endian; a name's record comes before its first use
    record  = kind (u8), flags (u8), by (u16), on (u16), name (u16), t (i64), then by kind: an access's fields and
              sets, a text (u32 length, UTF-8, padded), a set (pool u16, form u16, count u32, that many i32)

A set is ids (`IDS`, as they came) or half-open runs (`RUNS`). What has no field of its own (a step that is a string, a
key that only somebody else knows) is JSON at the record's end (`MORE`).

A blocking call's line is written at its entry and counts; if the call fails, its kind is changed to one that orders
nothing. So a segment is not let go while such a call is out. If the whole ring waits for one, its line is made to order
nothing, and if the call then does return, the header counts an unseen edge.

Relies on: ids that fit 32 bits (a pool has at most 2^24 blocks), and whoever calls a line's method holding `lock`.
Does not cover: whether ids are within their pool; the reader looks.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, LifoQueue, SimpleQueue
from types import TracebackType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from kvsan.model.ops import (
    Access,
    Alloc,
    Blocks,
    Drop,
    Free,
    Get,
    Op,
    Poll,
    Put,
    Record,
    Source,
    Stream,
    Sync,
    Touch,
    Wait,
)

VERSION = 1
MAGIC = b"\x89KVSAN\r\n" + VERSION.to_bytes(4, "little")
"""The first byte is no text's, the line end shows a transfer that changes line ends (as PNG's does)."""

CHUNK = struct.Struct("<4sIII")
HEAD, LINES = b"HEAD", b"LINE"

NAME, ACCESS, RECORD, WAIT, SYNC_EVENT, SYNC_STREAM, SYNC_DEVICE, NO, YES, PUT, GET, ALLOC, FREE, TOUCH, DROP = range(
    15
)
"""Kinds of record. `NO` and `YES` are polls by their answer; a `NO` stands for a failed sync too (of a stream or a
device: `PUT` of a token that nobody takes)."""

BATCH, PLANNED, STEP, TIMED, MORE = 1, 2, 4, 64, 128
ORDER = 3
"""Two bits from this one on: the index into `ORDERS`."""
ORDERS: tuple[Source, ...] = ("stream", "any", "call")

LINE = struct.Struct("<BBHHHq")
FULL = struct.Struct("<BBHHHqHHHHqq")  # of an access: reads, writes, site, 0, planned, step
TEXT = struct.Struct("<BBHHHqI")
SET = struct.Struct("<HHI")
COUNT = struct.Struct("<I")
IDS, RUNS = 0, 1

NOBODY = 0xFFFF
"""No stream, no name."""
LABELS = 1 << 15
"""So many names may be labels and sites; further ones are spelt out. The rest are threads, streams and pools."""

SEGMENT = 1 << 18
RING = 32
FLUSH_NS = 1_000_000_000
STAYED_ON = "kvsan stayed on"

Given = npt.NDArray[Any] | Blocks
Sets = Mapping[str, Given]
Header = Callable[[bool, int], Mapping[str, Any]]
_NOTHING: Sets = {}


class Segment:
    """A piece of the ring. `at` is where the next record goes: what lies before it is whole."""

    __slots__ = ("at", "buffer", "ops", "out", "size", "words")

    def __init__(self, size: int) -> None:
        self.size = size
        self.buffer = bytearray(size)
        self.words: npt.NDArray[np.int32] = np.frombuffer(self.buffer, np.int32)
        self.clear()

    def clear(self) -> None:
        self.at = CHUNK.size
        self.ops = 0
        self.out = 0


class Held:
    """A blocking call's line. `segment` is `None` once it is settled or given up."""

    __slots__ = ("at", "segment")

    def __init__(self, segment: Segment | None, at: int) -> None:
        self.segment = segment
        self.at = at

    def nothing(self, buffer: bytearray) -> None:
        """The line becomes one that orders nothing."""
        buffer[self.at] = NO if buffer[self.at] == SYNC_EVENT else PUT


class Blocking:
    """Around one blocking call."""

    __slots__ = ("_by", "_event", "_held", "_log")

    def __init__(self, log: Log, event: str, by: str) -> None:
        self._log, self._event, self._by = log, event, by

    def __enter__(self) -> None:
        log = self._log
        with log.lock:
            log._text(SYNC_EVENT, self._by, None, self._event)
            self._held = log._hold()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        log = self._log
        with log.lock:
            log.settle(self._held, done=value is None)


class Log:
    """Writes the file `path`, from its first line on. A `kvsan.runtime.tracing.Sink`.

    `header` gives line 1 of the trace (whether the run was seen whole, how many edges were lost); without it the log's
    own: the pools and streams it was told of, and `about`. An error of the file ends the log, not the engine:
    `on_fault` is told once, what was written is a log that does not count as whole, and `close` raises it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        header: Header | None = None,
        about: Mapping[str, Any] | None = None,
        on_fault: Callable[[Exception], None] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        segment: int = SEGMENT,
        ring: int = RING,
    ) -> None:
        self.path = str(path)
        self.lock = threading.RLock()
        self.now = clock
        self.ops = 0
        self.lost = 0
        self.fault: Exception | None = None
        self.pools: dict[str, int] = {}
        self.streams: dict[str, Stream] = {}
        self._about = dict(about or {})
        self._header = header or self._own_header
        self.on_fault = on_fault
        self._told = False
        self._size = segment
        self._names: dict[str | None, int] = {None: NOBODY}
        self._dirty = True
        self._free: LifoQueue[Segment] = LifoQueue()  # the one that was written last is still in the caches
        for _ in range(ring):
            self._free.put(Segment(segment))
        self._segment: Segment | None = None
        self._full: deque[Segment] = deque()
        self._out: dict[int, Held] = {}
        self._last = 0
        self._flushed = 0
        self._work: SimpleQueue[Callable[[int], None] | None] = SimpleQueue()
        self._writer: threading.Thread | None = None
        self._fd = -1
        self._end = 0
        self._closed = False

    # ── what there is ─────────────────────────────────────────────────────────────────────────────────────────────

    def pool(self, name: str, blocks: int) -> None:
        """Raises `ValueError` if the pool is known with another size."""
        known = self.pools.setdefault(name, blocks)
        if known != blocks:
            raise ValueError(f"pool {name} has {known} blocks; it was registered again with {blocks}")
        self._dirty = True

    def stream(self, name: str, stream: Stream | None = None) -> str:
        self.streams.setdefault(name, stream or Stream())
        self._dirty = True
        return name

    def mark(self) -> int | None:
        """The number of the latest line."""
        return self.ops - 1 if self.ops else None

    # ── lines, under the lock ─────────────────────────────────────────────────────────────────────────────────────

    def access(
        self,
        label: str,
        *,
        by: str,
        on: str | None = None,
        reads: Sets = _NOTHING,
        writes: Sets = _NOTHING,
        order: Source = "stream",
        batch: bool = False,
        planned: int | None = None,
        step: int | str | None = None,
        site: str | None = None,
        t: int | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        """Sets are arrays of ids, copied here, or `Blocks`; an array without ids is left out, and an access without any
        set has no line."""
        sets, need = [], FULL.size
        reading = 0
        for given in (reads, writes):
            for pool, blocks in given.items():
                if type(blocks) is np.ndarray:
                    count = len(blocks)
                    if not count:
                        continue
                    need += SET.size + 4 * count
                else:
                    need += SET.size + _bytes(blocks)
                sets.append((pool, blocks))
            if given is reads:
                reading = len(sets)
        if not sets:
            return
        self.ops += 1
        if self.fault is not None:
            self._tell()
            return
        try:
            names = self._names
            flags = _FLAGS[order, batch]
            if planned is None:
                planned = 0
            else:
                flags |= PLANNED
            if step is None:
                step = 0
            elif type(step) is int and -1 << 63 <= step < 1 << 63:
                flags |= STEP
            else:
                more, step = {**(more or {}), "step": step}, 0
            try:
                by_id, on_id, label_id, site_id = names[by], names[on], names[label], names[site]
                for pool, _ in sets:
                    names[pool]
            except KeyError:
                by_id, on_id, label_id, site_id = self._name(by), self._name(on), self._label(label), self._label(site)
                for pool, _ in sets:
                    self._name(pool)
                if label_id == NOBODY:
                    more = {**(more or {}), "label": label}
                if site_id == NOBODY and site is not None:
                    more = {**(more or {}), "site": site}
            extra = b""
            if more:
                flags |= MORE
                extra = _json(more)
                need += COUNT.size + len(extra) + 3
            if t is None:
                t = self.now()
            elif t == UNTIMED:
                flags, t = flags ^ TIMED, 0
            segment = self._segment
            if segment is None or segment.at + need > segment.size or t - self._flushed > FLUSH_NS:
                segment = self._turn(need, t)
            buffer, words, at = segment.buffer, segment.words, segment.at
            FULL.pack_into(
                buffer,
                at,
                ACCESS,
                flags,
                by_id,
                on_id,
                label_id,
                t,
                reading,
                len(sets) - reading,
                site_id,
                0,
                planned,
                step,
            )
            at += FULL.size
            for pool, blocks in sets:
                if type(blocks) is np.ndarray:
                    count = len(blocks)
                    SET.pack_into(buffer, at, names[pool], IDS, count)
                    at += SET.size
                    start = at >> 2
                    words[start : start + count] = blocks
                    at += 4 * count
                else:
                    at = _set(buffer, words, at, names[pool], blocks)
            if extra:
                at = _extra(buffer, at, extra)
            segment.at = at
            segment.ops += 1
        except Exception as error:
            self.fault = error
            self._tell()

    def record(self, on: str, event: str, *, by: str) -> None:
        self._text(RECORD, by, on, event)

    def wait(self, on: str, event: str, *, by: str) -> None:
        self._text(WAIT, by, on, event)

    def poll(self, event: str, done: bool, *, by: str) -> None:
        self._text(YES if done else NO, by, None, event)

    def drop(self, event: str, *, by: str) -> None:
        self._text(DROP, by, None, event)

    def put(self, token: str, *, by: str) -> None:
        self._text(PUT, by, None, token)

    def get(self, token: str, *, by: str) -> None:
        self._text(GET, by, None, token)

    def alloc(self, pool: str, blocks: Given, *, by: str) -> None:
        self._life(ALLOC, by, pool, blocks)

    def free(self, pool: str, blocks: Given, *, by: str) -> None:
        self._life(FREE, by, pool, blocks)

    def touch(self, pool: str, blocks: Given, *, by: str) -> None:
        self._life(TOUCH, by, pool, blocks)

    def blocking(self, *, event: str, by: str) -> Blocking:
        """A context manager around one blocking call; takes the lock itself."""
        return Blocking(self, event, by)

    def hold(self, op: Sync) -> Held | None:
        """A blocking call begins; `None` if the log has ended."""
        self.write(op)
        return self._hold()

    def _hold(self) -> Held | None:
        """The latest line is that of a call which is out."""
        segment = self._segment
        if self.fault is not None or segment is None:
            return None
        held = Held(segment, self._last)
        segment.out += 1
        self._out[id(held)] = held
        return held

    def settle(self, held: Held | None, *, done: bool) -> None:
        """It has returned, or failed."""
        if held is None:
            return
        segment = held.segment
        if segment is None:  # given up
            if done:
                self.lost += 1
                self._dirty = True
            return
        del self._out[id(held)]
        held.segment = None
        if not done:
            held.nothing(segment.buffer)
        segment.out -= 1
        if self._full and not segment.out:
            self._release()

    def write(self, op: Op, more: dict[str, Any] | None = None) -> None:
        """Any op, with the keys that only somebody else knows. Sets: `Blocks`, or arrays in their place."""
        extra, t = dict(more or {}), op.t
        if t is not None and not (type(t) is int and -1 << 63 < t < 1 << 63):
            extra["t"], t = t, None
        if t is None:
            t = UNTIMED
        match op:
            case Access():
                if op.owner is not None:
                    extra["owner"] = op.owner
                self.access(
                    op.label,
                    by=op.by,
                    on=op.on,
                    reads=op.reads,
                    writes=op.writes,
                    order=op.order,
                    batch=op.batch,
                    planned=op.planned,
                    step=op.step,
                    site=op.site,
                    t=t,
                    more=extra,
                )
            case Alloc() | Free() | Touch():
                self._life(_LIVES[type(op)], op.by, op.pool, op.blocks, t, extra)
            case Sync():
                kind, text = SYNC_DEVICE, ""
                if op.event is not None:
                    kind, text = SYNC_EVENT, op.event
                elif op.device is not None:
                    extra["device"] = op.device
                else:
                    kind = SYNC_STREAM
                if kind != SYNC_EVENT:  # the token of a hand-off that never is, should the call fail
                    text = f"failed sync {self.ops}"
                self._text(kind, op.by, op.stream, text, t, extra)
            case Record() | Wait():
                self._text(_TEXTS[type(op)], op.by, op.on, op.event, t, extra)
            case Poll():
                self._text(YES if op.done else NO, op.by, None, op.event, t, extra)
            case Put() | Get():
                self._text(_TEXTS[type(op)], op.by, None, op.token, t, extra)
            case Drop():
                self._text(DROP, op.by, None, op.event, t, extra)

    # ── records ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _text(
        self,
        kind: int,
        by: str,
        on: str | None,
        text: str,
        t: int | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        self.ops += 1
        if self.fault is not None:
            self._tell()
            return
        try:
            names = self._names
            try:
                by_id, on_id = names[by], names[on]
                raw = text.encode()
            except (KeyError, UnicodeEncodeError):
                by_id, on_id = self._name(by), self._name(on)
                raw = text.encode("utf-8", "backslashreplace")
            size = len(raw)
            need = TEXT.size + size + 3
            flags, extra = TIMED, b""
            if more:
                flags, extra = flags | MORE, _json(more)
                need += COUNT.size + len(extra) + 3
            if t is None:
                t = self.now()
            elif t == UNTIMED:
                flags, t = flags ^ TIMED, 0
            segment = self._segment
            if segment is None or segment.at + need > segment.size or t - self._flushed > FLUSH_NS:
                segment = self._turn(need, t)
            at, buffer = segment.at, segment.buffer
            TEXT.pack_into(buffer, at, kind, flags, by_id, on_id, NOBODY, t, size)
            self._last = at
            at += TEXT.size
            buffer[at : at + size] = raw
            at = (at + size + 3) & ~3
            if extra:
                at = _extra(buffer, at, extra)
            segment.at = at
            segment.ops += 1
        except Exception as error:
            self.fault = error
            self._tell()

    def _life(
        self,
        kind: int,
        by: str,
        pool: str,
        given: Given,
        t: int | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        self.ops += 1
        if self.fault is not None:
            self._tell()
            return
        try:
            names = self._names
            try:
                by_id, pool_id = names[by], names[pool]
            except KeyError:
                by_id, pool_id = self._name(by), self._name(pool)
            need = LINE.size + SET.size + _bytes(given)
            flags, extra = TIMED, b""
            if more:
                flags, extra = flags | MORE, _json(more)
                need += COUNT.size + len(extra) + 3
            if t is None:
                t = self.now()
            elif t == UNTIMED:
                flags, t = flags ^ TIMED, 0
            segment = self._segment
            if segment is None or segment.at + need > segment.size or t - self._flushed > FLUSH_NS:
                segment = self._turn(need, t)
            at, buffer = segment.at, segment.buffer
            LINE.pack_into(buffer, at, kind, flags, by_id, NOBODY, NOBODY, t)
            at = _set(buffer, segment.words, at + LINE.size, pool_id, given)
            if extra:
                at = _extra(buffer, at, extra)
            segment.at = at
            segment.ops += 1
        except Exception as error:
            self.fault = error
            self._tell()

    def _name(self, name: str | None) -> int:
        """The number of a name, defined at its first use."""
        found = self._names.get(name)
        if found is not None or name is None:
            return NOBODY if found is None else found
        number = len(self._names) - 1
        if number >= NOBODY:
            raise OverflowError(f"more than {NOBODY} names of threads, streams and pools")
        raw = name.encode("utf-8", "backslashreplace")
        need = TEXT.size + len(raw) + 3
        segment = self._segment
        if segment is None or segment.at + need > segment.size:
            segment = self._turn(need, self._flushed)
        at = segment.at
        TEXT.pack_into(segment.buffer, at, NAME, 0, NOBODY, NOBODY, number, 0, len(raw))
        at += TEXT.size
        segment.buffer[at : at + len(raw)] = raw
        segment.at = (at + len(raw) + 3) & ~3
        self._names[name] = number
        return number

    def _label(self, text: str | None) -> int:
        found = self._names.get(text)
        if found is not None:
            return found
        return self._name(text) if len(self._names) < LABELS else NOBODY

    # ── the ring ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _turn(self, need: int, now: int) -> Segment:
        """Another segment, with so many bytes left."""
        self._flushed = max(now, self._flushed)
        if self._fd < 0:
            self.open()
        if self._segment is not None:
            if self._segment.at > CHUNK.size:
                self._full.append(self._segment)
            else:
                self._free.put(self._segment)
            self._segment = None
            self._release()
        if need > self._size - CHUNK.size:  # one of its own
            self._segment = Segment((CHUNK.size + need + 3) & ~3)
            return self._segment
        try:
            self._segment = self._free.get_nowait()
        except Empty:
            while self._full:  # all of it waits for a blocking call
                self._give_up()
            self._segment = self._free.get()
        return self._segment

    def _release(self) -> None:
        """Hands on what waits for no call any more, in order."""
        while self._full and not self._full[0].out:
            segment = self._full.popleft()
            self._say_header(whole=False)
            self._work.put(lambda fd, segment=segment: self._write_segment(fd, segment))  # type: ignore[misc]

    def _give_up(self) -> None:
        """The oldest segment goes, whatever calls are out in it."""
        first = self._full[0]
        for held in [held for held in self._out.values() if held.segment is first]:
            held.nothing(first.buffer)
            held.segment = None
            del self._out[id(held)]
        first.out = 0
        self._release()

    def flush_now(self, timeout: float = 10) -> None:
        """What is whole so far is in the file when this returns, also from a signal handler in the middle of a line.
        It is written once more when its segment is full. Raises what has ended the log.
        """
        if self._closed:
            return
        segment = self._segment
        if segment is not None and not self._full and self._writer is not None:
            part = Segment(segment.size)
            part.at, part.ops = segment.at, segment.ops
            part.buffer[: part.at] = segment.buffer[: part.at]
            for held in list(self._out.values()):
                if held.segment is segment and held.at < part.at:
                    held.nothing(part.buffer)
            self._say_header(whole=False)
            self._work.put(lambda fd: self._write_part(fd, part))
        done = threading.Event()
        if self._writer is not None:
            self._work.put(lambda fd: done.set())
            done.wait(timeout)
        if self.fault is not None:
            raise self.fault

    def close(self, *, whole: bool = True) -> None:
        """`whole`: the run was seen to its end. Calls that are still out have lines that order nothing. Raises what has
        ended the log.
        """
        with self.lock:
            if self._closed:
                return
            if self._writer is None:
                self._closed = True
                if self.fault is not None:
                    raise self.fault
                return
            if self._segment is not None:
                self._full.append(self._segment)
                self._segment = None
            while self._full:
                self._give_up()
            self._dirty = True
            self._say_header(whole=whole and self.fault is None)
            self._work.put(None)
        self._writer.join()
        fault = self.fault
        if fault is not None:
            self._tell()
        self.abandon()
        if fault is not None:
            raise fault

    def abandon(self) -> None:
        """Lets go of the file as it is: in a forked child it is the parent's."""
        self._closed = True
        self.fault = self.fault or ValueError("the log is closed")
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close(whole=value is None)

    # ── the file, in the thread that writes ───────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Makes the file now; else it is made at the first line, and a run without one leaves none."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._put(self._fd, MAGIC)
        self._flushed = self.now()
        self._writer = threading.Thread(target=self._run, args=(self._fd,), name="kvsan-log", daemon=True)
        self._writer.start()

    def _run(self, fd: int) -> None:
        while (task := self._work.get()) is not None:
            try:
                task(fd)
            except Exception as error:
                self.fault = self.fault or error

    def _say_header(self, *, whole: bool) -> None:
        if not self._dirty:
            return
        self._dirty = False
        data = _json(self._header(whole, self.lost))
        self._work.put(lambda fd: self._put(fd, _chunk(HEAD, data)))

    def _write_segment(self, fd: int, segment: Segment) -> None:
        try:
            self._put(fd, _finished(segment))
        finally:
            if segment.size == self._size:
                segment.clear()
                self._free.put(segment)

    def _write_part(self, fd: int, part: Segment) -> None:
        """Where the next chunk will be: that one overwrites it, and is not shorter."""
        end = self._end
        self._put(fd, _finished(part))
        self._end = end

    def _put(self, fd: int, data: bytes | memoryview) -> None:
        if self.fault is not None:
            return
        view = memoryview(data)
        while view:
            done = os.pwrite(fd, view, self._end)
            self._end += done
            view = view[done:]

    def _tell(self) -> None:
        """In a thread that logs: the one that writes may take no lock."""
        if not self._told and not self._closed:
            self._told = True
            if self.on_fault is not None and self.fault is not None:
                self.on_fault(self.fault)

    def _own_header(self, whole: bool, lost: int) -> Mapping[str, Any]:
        streams = {name: {"device": made.device, "kind": made.kind} for name, made in self.streams.items()}
        out = {"kvsan_trace": 1, **self._about, "pools": dict(self.pools), "streams": streams, "start": "fresh"}
        out |= {"expects": {"streams": [], "hooks": {STAYED_ON: 1}}, "hooks": {STAYED_ON: int(whole)}}
        return out | ({"unseen": {"copies": 0, "edges": lost}} if lost else {})


UNTIMED = -(1 << 63)
"""In place of a time: the line has none."""

_FLAGS = {
    (order, batch): bits << ORDER | TIMED | (BATCH if batch else 0)
    for bits, order in enumerate(ORDERS)
    for batch in (False, True)
}

_LIVES: dict[type, int] = {Alloc: ALLOC, Free: FREE, Touch: TOUCH}
_TEXTS: dict[type, int] = {Record: RECORD, Wait: WAIT, Put: PUT, Get: GET}


def _bytes(given: Given) -> int:
    """Of a set, packed."""
    ids = given if isinstance(given, np.ndarray) else getattr(given, "ids", None)
    return 4 * len(ids) if ids is not None else 8 * len(cast(Blocks, given).runs)


def _set(buffer: bytearray, words: npt.NDArray[np.int32], at: int, pool: int, given: Given) -> int:
    """Packs a set; where it ends. `Blocks` that hold ids are packed as ids."""
    if type(given) is not np.ndarray:
        given = getattr(given, "ids", given)
    if isinstance(given, np.ndarray):
        count = len(given)
        SET.pack_into(buffer, at, pool, IDS, count)
        start = (at + SET.size) >> 2
        words[start : start + count] = given
        return at + SET.size + 4 * count
    runs = given.runs
    count = 2 * len(runs)
    SET.pack_into(buffer, at, pool, RUNS, count)
    if count:
        start = (at + SET.size) >> 2
        words[start : start + count] = np.array(runs, np.int64).ravel()
    return at + SET.size + 4 * count


def _extra(buffer: bytearray, at: int, extra: bytes) -> int:
    COUNT.pack_into(buffer, at, len(extra))
    at += COUNT.size
    buffer[at : at + len(extra)] = extra
    return (at + len(extra) + 3) & ~3


def _json(what: Mapping[str, Any]) -> bytes:
    return json.dumps(what, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _chunk(tag: bytes, data: bytes) -> bytes:
    return CHUNK.pack(tag, len(data), zlib.crc32(data), 0) + data


def _finished(segment: Segment) -> memoryview:
    """The segment as a chunk."""
    whole = memoryview(segment.buffer)[: segment.at]
    CHUNK.pack_into(segment.buffer, 0, LINES, segment.at - CHUNK.size, zlib.crc32(whole[CHUNK.size :]), segment.ops)
    return whole
