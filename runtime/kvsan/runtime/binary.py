"""The binary log: a run's ops at little cost in the engine's thread. `kvsan convert` makes JSON lines of it and back.

A line costs the engine's thread some references in a list (no object that the garbage collector counts) and one copy of
its ids: many of them into a preallocated ring, with no Python object a block. A thread of its own packs and writes what
is full, so that the engine meets the disk only when the whole ring waits for it. What that thread does with the GIL
held counts too: it is one call of msgpack's encoder a segment. Nothing is left out for lack of room: then the engine's
thread waits.

    file   = MAGIC, chunk…         chunk = tag (4), bytes (u32), CRC-32 (u32), ops in it (u32), payload
    HEAD   = the trace's header as JSON (`TRACE.md`), as it stands; the last one counts
    PACKED = number of words (u32), the words (i32, little-endian), the lines as one array of msgpack, line by line
    LINES  = the same with a JSON list, for what msgpack has not got (an int past 64 bits), or where there is no msgspec
    line   = kind, by, on, text, t                        an order op; text: its event or token
           | kind, by, pool, set, t                       a life
           | ACCESS, by, on, label, t, order and batch, planned, step, site, r, w, then r and w times: pool, set
    fourth = if need be, [itself, an object: the line's further keys]
    set    = bytes: a few ids (i64, little-endian) as they came; in JSON a list
           | n: so many of the words, in the order of the lines: its ids as they came; with a minus sign, half-open runs

Version 1 had LINES only, a list of lists: `[kind, by, on, text, t]`, `[kind, by, pool, n, t]`, `[ACCESS, by, on, label,
t, order and batch, planned, step, site, [pool, n…], [pool, n…]]`, further keys at the end of any. It is read, and no
longer written.

A blocking call's line is written at its entry and counts; if the call fails, it is changed to one that orders nothing.
So a segment is not let go while such a call is out. If the whole ring waits for one, its line is made to order
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
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
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
from kvsan.runtime.lines import IDS as IDS
from kvsan.runtime.lines import IN_C, HeldState, Lock, LogState, SegmentState

VERSION = 2
READ = (1, VERSION)
"""The versions that are read."""

MARK = b"\x89KVSAN\r\n"
"""The first byte is no text's, the line end shows a transfer that changes line ends (as PNG's does)."""

MAGIC = MARK + VERSION.to_bytes(4, "little")
CHUNK = struct.Struct("<4sIII")
COUNT = struct.Struct("<I")
HEAD, LINES, PACKED = b"HEAD", b"LINE", b"PACK"
WIDTH = 5
"""Items of a line that is no access."""
START = 11
"""Items of an access before its sets."""

ACCESS, RECORD, WAIT, SYNC_EVENT, SYNC_STREAM, SYNC_DEVICE, NO, YES, PUT, GET, ALLOC, FREE, TOUCH, DROP = range(14)
"""Kinds of line. `NO` and `YES` are polls by their answer; a `NO` stands for a failed sync too (of a stream or a
device: `PUT` of a token that nobody takes)."""

ORDERS: tuple[Source, ...] = ("stream", "any", "call")
FLAGS = {(order, batch): 2 * at + batch for at, order in enumerate(ORDERS) for batch in (False, True)}

WORDS = 1 << 19
"""Ids of a segment: two tenths of a second of an engine that reads 5,000 blocks every 2 ms."""
MOST = 1 << 12
"""Lines of a segment."""
RING = 8
FEW = 512
"""So many ids stand in their line: up to here their bytes cost less than a place in the ring."""

FLUSH_NS = 250_000_000
"""A segment that is not full is handed on after this long: what a process that is killed loses. Each time costs the
engine some 0.1 ms, in caches that hold other things.
"""
PAGE = 1024
"""Words of a page."""
NEVER = 1 << 63
STAYED_ON = "kvsan stayed on"

Part = bytes | memoryview
Given = npt.NDArray[Any] | Blocks
Sets = Mapping[str, Given]
Header = Callable[[bool, int], Mapping[str, Any]]
_NOTHING: Sets = {}


def _listed(value: object) -> list[int]:
    """JSON has no bytes."""
    if type(value) is not bytes:
        raise TypeError(f"a value of type {type(value).__name__}")
    ids: list[int] = np.frombuffer(value, IDS).tolist()
    return ids


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=_listed).encode
_to_msgpack: Callable[[Any], bytes] | None = None
with suppress(ImportError):  # it comes with the checker
    from msgspec.msgpack import encode as _to_msgpack


class Segment(SegmentState):
    """A piece of the ring. `lines` has `WIDTH` items a line and `extra` ones; `used` of its words belong to them; `out`
    calls of them are blocking.
    """

    __slots__ = ()

    def __init__(self, size: int) -> None:
        self.size = size
        self.words: npt.NDArray[np.int32] = np.zeros(size, "<i4")
        self.clear()

    def clear(self) -> None:
        self.lines: list[Any] = []
        self.extra = 0
        self.used = 0
        self.out = 0

    @property
    def ops(self) -> int:
        return (len(self.lines) - self.extra) // WIDTH


class Held(HeldState):
    """A blocking call's line, its first item at `at`. `segment` is `None` once it is settled or given up."""

    __slots__ = ()

    at: int
    segment: Segment | None

    def nothing(self, lines: list[Any]) -> None:
        """The line becomes one that orders nothing."""
        at = self.at
        kind, by, _, text, t = lines[at : at + WIDTH]
        lines[at : at + WIDTH] = (NO if kind == SYNC_EVENT else PUT, by, None, text, t)


if IN_C is not None:
    IN_C.set_held(Held)


class Blocking(Held):
    """Around one blocking call."""

    __slots__ = ("_by", "_event", "_log")

    def __init__(self, log: Log, event: str, by: str) -> None:
        self._log, self._event, self._by = log, event, by

    def __enter__(self) -> None:
        log = self._log
        with log.lock:
            log.hold_line(self, (SYNC_EVENT, self._by, None, self._event, log.now()))

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        log = self._log
        with log.lock:
            log.settle(self, done=value is None)


def _of_stream(kind: int) -> Callable[[Log, str, str, str], None]:
    """Methods that share their code: in an engine that has other things in its caches, each piece has to be fetched."""

    def line(self: Log, on: str, event: str, by: str) -> None:
        t = self.now()
        self._add((kind, by, on, event, t))
        if t > self._due:
            self._see_to(t)

    return line


def _of_text(kind: int) -> Callable[[Log, str, str], None]:
    def line(self: Log, text: str, by: str) -> None:
        t = self.now()
        self._add((kind, by, None, text, t))
        if t > self._due or len(self._segment.lines) >= self._most:
            self._see_to(t)

    return line


def _of_blocks(kind: int) -> Callable[[Log, str, Given, str], None]:
    def line(self: Log, pool: str, blocks: Given, by: str) -> None:
        t = self.now()
        if type(blocks) is np.ndarray and 0 < len(blocks) <= FEW and blocks.dtype is IDS:
            self._add((kind, by, pool, blocks.tobytes(), t))
            if t > self._due or len(self._segment.lines) >= self._most:
                self._see_to(t)
        else:
            self._life(kind, by, pool, blocks, t)

    return line


class Log(LogState):
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
        words: int = WORDS,
        lines: int = MOST,
        ring: int = RING,
    ) -> None:
        self.path = str(path)
        self.lock = Lock()
        self.now = clock
        self.lost = 0
        self.fault: Exception | None = None
        self.on_fault = on_fault
        self.pools: dict[str, int] = {}
        self.streams: dict[str, Stream] = {}
        self._about = dict(about or {})
        self._header = header or self._own_header
        self._size, self._most = words, lines * WIDTH
        self._dirty = True
        self._free = [Segment(words) for _ in range(ring - 1)]  # from its end: what was written last is in the caches
        self._freed: SimpleQueue[None] = SimpleQueue()
        self._waits = False
        self._segment = Segment(words)
        self._add = self._segment.lines.extend
        self._before = 0
        """Lines of earlier segments."""
        self._due = -NEVER
        """When the segment is handed on at the latest. Long ago: there is something to be seen to first."""
        self._full: deque[Segment] = deque()
        self._out: set[Held] = set()
        self._work: SimpleQueue[Callable[[int], None] | None] = SimpleQueue()
        self._writer: threading.Thread | None = None
        self._fd = -1
        self._end = 0
        self._told = False
        self._closed = False

    # ── what there is ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def ops(self) -> int:
        """How many lines there are."""
        return self._before + self._segment.ops

    @property
    def straight(self) -> object:
        """Where the extension puts lines past the methods here (`tracing`): a subclass's may be others."""
        return self if type(self) is Log else None

    def mark(self) -> int | None:
        """The number of the latest line."""
        segment = self._segment
        count = self._before + (len(segment.lines) - segment.extra) // WIDTH
        return count - 1 if count else None

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

    # ── lines, under the lock ─────────────────────────────────────────────────────────────────────────────────────

    def line(self, line: tuple[Any, ...]) -> None:
        """Any line that has no ids. Its fifth item is its time."""
        self._add(line)
        t = line[4]
        if t is None or t > self._due or len(self._segment.lines) >= self._most:
            self._see_to(t)

    def poll(self, event: str, done: bool, by: str) -> None:
        t = self.now()
        self._add((YES if done else NO, by, None, event, t))
        if t > self._due:
            self._see_to(t)

    record, wait = _of_stream(RECORD), _of_stream(WAIT)
    drop, put, get = _of_text(DROP), _of_text(PUT), _of_text(GET)
    alloc, free, touch = _of_blocks(ALLOC), _of_blocks(FREE), _of_blocks(TOUCH)

    def copy(
        self,
        label: str,
        by: str,
        on: str,
        source: str,
        sources: npt.NDArray[Any],
        target: str,
        targets: npt.NDArray[Any],
        order: Source,
        planned: int | None,
        step: int | str | None,
        site: str | None,
    ) -> None:
        """An access, batch, of one pool's ids to another's."""
        if 0 < len(sources) <= FEW >= len(targets) > 0 and sources.dtype is IDS is targets.dtype:
            t, read, written = self.now(), sources.tobytes(), targets.tobytes()
            segment, flags = self._segment, FLAGS[order, True]
            segment.extra += START + 4 - WIDTH
            self._add((ACCESS, by, on, label, t, flags, planned, step, site, 1, 1, source, read, target, written))
            if t > self._due or len(segment.lines) >= self._most:
                self._see_to(t)
        else:
            self.access(label, by, on, {source: sources}, {target: targets}, order, True, planned, step, site)

    def access(
        self,
        label: str,
        by: str,
        on: str | None = None,
        reads: Sets = _NOTHING,
        writes: Sets = _NOTHING,
        order: Source = "stream",
        batch: bool = False,
        planned: int | None = None,
        step: int | str | None = None,
        site: str | None = None,
    ) -> None:
        """Sets are arrays of ids, copied here, or `Blocks`; an array without ids is left out, and an access without any
        set has no line.
        """
        line = [ACCESS, by, on, label, self.now(), FLAGS[order, batch], planned, step, site, 0, 0]
        self._access(line, reads, writes)

    def _access(self, line: list[Any], reads: Sets, writes: Sets) -> None:
        """The line is given without its sets."""
        segment = self._segment
        try:
            used = _pack(line, segment, segment.used, reads)
            middle = len(line)
            used = _pack(line, segment, used, writes)
        except ValueError:  # no room
            segment = self._turn(_words(reads) + _words(writes))
            del line[START:]
            used = _pack(line, segment, 0, reads)
            middle = len(line)
            used = _pack(line, segment, used, writes)
        count = len(line)
        if count == START:
            return
        line[9], line[10] = (middle - START) // 2, (count - middle) // 2
        segment.used = used
        segment.extra += count - WIDTH
        self._add(line)
        t = line[4]
        if t is None or t > self._due or len(segment.lines) >= self._most:
            self._see_to(t)

    def _life(
        self, kind: int, by: str, pool: str, blocks: Given, t: float | None, more: tuple[dict[str, Any], ...] = ()
    ) -> None:
        segment, given = self._segment, {pool: blocks}
        packed: list[Any] = []
        try:
            used = _pack(packed, segment, segment.used, given)
        except ValueError:  # no room
            segment = self._turn(_words(given))
            used = _pack(packed, segment, 0, given)
        if not packed:
            return
        segment.used, found = used, packed[1]
        self._add((kind, by, pool, (found, *more) if more else found, t))
        if t is None or t > self._due or len(segment.lines) >= self._most:
            self._see_to(t)

    def blocking(self, event: str, by: str) -> Blocking:
        """A context manager around one blocking call; takes the lock itself."""
        return Blocking(self, event, by)

    def hold(self, op: Sync) -> Held:
        """A blocking call begins."""
        held = Held()
        self.hold_line(held, self._sync(op))
        return held

    def hold_line(self, held: Held, line: tuple[Any, ...]) -> None:
        """The line of a call that is out."""
        t, segment = line[4], self._segment
        if t is None or t > self._due or len(segment.lines) >= self._most:
            self._see_to(t)
            segment = self._segment
        held.at = len(segment.lines)
        self._add(line)
        if self.fault is not None:
            held.segment = None
            self._forget()
            return
        held.segment = segment
        segment.out += 1
        self._out.add(held)

    def settle(self, held: Held, *, done: bool) -> None:
        """It has returned, or failed."""
        segment = held.segment
        if segment is None:  # given up
            if done:
                self.lost += 1
                self._dirty = True
            return
        self._out.discard(held)
        held.segment = None
        if not done:
            held.nothing(segment.lines)
        segment.out -= 1
        if self._full and not segment.out:
            self._release()

    def write(self, op: Op, more: Mapping[str, Any] | None = None) -> None:
        """Any op, with the keys that only somebody else knows."""
        extra = ({**more},) if more else ()
        match op:
            case Access():
                if op.owner is not None:
                    extra = ({**(more or {}), "owner": op.owner},)
                label, flags = (op.label, *extra) if extra else op.label, FLAGS[op.order, op.batch]
                line = [ACCESS, op.by, op.on, label, op.t, flags, op.planned, op.step, op.site, 0, 0]
                self._access(line, op.reads, op.writes)
            case Alloc() | Free() | Touch():
                self._life(_LIVES[type(op)], op.by, op.pool, op.blocks, op.t, extra)
            case Record() | Wait():
                self._order(extra, _TEXTS[type(op)], op.by, op.on, op.event, op.t)
            case Put() | Get():
                self._order(extra, _TEXTS[type(op)], op.by, None, op.token, op.t)
            case Poll():
                self._order(extra, YES if op.done else NO, op.by, None, op.event, op.t)
            case Drop():
                self._order(extra, DROP, op.by, None, op.event, op.t)
            case Sync():
                self._order(extra, *self._sync(op))
        if len(self._segment.lines) >= self._most:  # whatever the times say
            self._see_to(None)

    def _order(self, extra: tuple[Any, ...], kind: int, by: str, on: Any, text: str, t: float | None) -> None:
        self.line((kind, by, on, (text, *extra) if extra else text, t))

    def _sync(self, op: Sync) -> tuple[Any, ...]:
        if op.event is not None:
            return SYNC_EVENT, op.by, None, op.event, op.t
        kind, on = (SYNC_STREAM, op.stream) if op.device is None else (SYNC_DEVICE, op.device)
        return kind, op.by, on, f"failed sync {self.ops}", op.t  # a token that nobody takes, should the call fail

    # ── the ring ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _see_to(self, t: float | None) -> None:
        """A line was added, and it is time for something: the first one, a fault, a second gone by; or it has none."""
        if self._due == -NEVER:
            self._begin()
        if self.fault is not None:
            self._forget()
        elif (t is not None and t > self._due) or len(self._segment.lines) >= self._most:
            self._turn(0)

    def _begin(self) -> None:
        """Opens the file if nobody has; what is wrong with it is the log's fault."""
        if self._writer is None and self.fault is None and not self._closed:
            try:
                self.open()
            except OSError as error:
                self.fault = error

    def _forget(self) -> None:
        """The log has ended: lines are counted and no more."""
        self._before += self._segment.ops
        self._segment.clear()
        self._add = self._segment.lines.extend
        self._due = -NEVER
        if not self._told and not self._closed:
            self._told = True
            if self.on_fault is not None and self.fault is not None:
                self.on_fault(self.fault)

    def _turn(self, need: int) -> Segment:
        """Another segment, with so many words left."""
        self._begin()
        if self.fault is not None:
            self._forget()
        else:
            self._due = self.now() + FLUSH_NS
            self._hand_on()
        if need > self._segment.size:  # one of its own
            if self._segment.size == self._size:
                self._free.append(self._segment)
            self._segment = Segment(need)
            self._add = self._segment.lines.extend
        return self._segment

    def _hand_on(self) -> None:
        """The segment is full, if there is anything in it."""
        if not self._segment.lines:
            return
        self._before += self._segment.ops
        self._full.append(self._segment)
        self._release()
        if not self._free:
            while self._full:  # all of it waits for a blocking call
                self._give_up()
            self._waits = True  # the writer sees that, or what it freed is seen here
            try:
                while not self._free:
                    self._freed.get()
            except BaseException:  # a signal's handler: the segment is the writer's, so the next lines have another
                self._segment = Segment(self._size)
                self._add = self._segment.lines.extend
                raise
            finally:
                self._waits = False
        self._segment = self._free.pop()
        self._add = self._segment.lines.extend

    def _release(self) -> None:
        """Hands on what waits for no call any more, in order."""
        self._reap()
        while self._full and not self._full[0].out:
            segment = self._full.popleft()
            self._say_header(whole=False)
            self._work.put(lambda fd, segment=segment: self._write_segment(fd, segment))  # type: ignore[misc]

    def _give_up(self) -> None:
        """The oldest segment goes, whatever calls are out in it."""
        self._reap()
        if not self._full:
            return
        first = self._full[0]
        for held in [held for held in self._out if held.segment is first]:
            held.nothing(first.lines)
            held.segment = None
            self._out.discard(held)
        first.out = 0
        self._release()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────

    def flush_now(self, timeout: float = 10) -> None:
        """What is whole so far is in the file when this returns, also from a signal handler in the middle of a line.
        It is written once more when its segment is full. Raises what has ended the log.
        """
        if self._closed or self._writer is None:
            return
        segment = self._segment
        if not self._full and segment.lines:
            part = Segment(0)
            part.lines = list(segment.lines)
            part.extra = _extra(part.lines)  # the segment's may be another line's already
            part.words, part.used = segment.words[: segment.used].copy(), segment.used
            for held in self._calls_out():
                if held.segment is segment and held.at < len(part.lines) and not held.returned:
                    held.nothing(part.lines)
            self._say_header(whole=False)
            self._work.put(lambda fd: self._write_part(fd, part))
        done = threading.Event()
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
            self._reap()
            if self._writer is not None:
                if self._segment.lines:
                    self._before += self._segment.ops
                    self._full.append(self._segment)
                    self._segment = Segment(self._size)
                    self._add = self._segment.lines.extend
                while self._full:
                    self._give_up()
                self._dirty = True
                self._say_header(whole=whole and self.fault is None)
                self._work.put(None)
        if self._writer is not None:
            self._writer.join()
        fault = self.fault
        if fault is not None:
            self._forget()
        self.abandon()
        if fault is not None:
            raise fault

    def abandon(self) -> None:
        """Lets go of the file as it is: in a forked child it is the parent's."""
        self._closed = True
        self.fault = self.fault or ValueError("the log is closed")
        self._due = -NEVER
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close(whole=value is None)

    # ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Makes the file now; else it is made at the first line. Raises `OSError`."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._writer = threading.Thread(target=self._run, args=(self._fd,), name="kvsan-log", daemon=True)
        self._writer.start()
        self._work.put(lambda fd: self._put(fd, [MAGIC]))
        for segment in (self._segment, *self._free):  # a page that nobody has written is not there yet
            segment.words[::PAGE] = segment.words[::PAGE]
        self._due = self.now() + FLUSH_NS

    def _run(self, fd: int) -> None:
        """In the thread that writes, which takes no lock.

        As a batch job its waking up does not take the processor from the engine's thread in the middle of a step, which
        costs that 1 to 2 ms where all processors are busy (sched(7)). What it gets when it runs is the same.
        """
        with suppress(AttributeError, OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # 0: this thread
        while (task := self._work.get()) is not None:
            try:
                task(fd)
            except Exception as error:
                self.fault = self.fault or error
                self._due = -NEVER

    def _say_header(self, *, whole: bool) -> None:
        if not self._dirty:
            return
        self._dirty = False
        data = _encode(self._header(whole, self.lost)).encode()
        self._work.put(lambda fd: self._put(fd, _chunk(HEAD, 0, data)))

    def _write_segment(self, fd: int, segment: Segment) -> None:
        try:
            self._put(fd, _finished(segment))
        finally:
            if segment.size == self._size:
                segment.clear()
                self._free.append(segment)
                if self._waits:
                    self._freed.put(None)

    def _write_part(self, fd: int, part: Segment) -> None:
        """Where the next chunk will be: that one overwrites it, and is not shorter."""
        end = self._end
        self._put(fd, _finished(part))
        self._end = end

    def _put(self, fd: int, parts: list[Part]) -> None:
        """Parts are written as they lie, in one call: no copy of the words, and the GIL is let go once."""
        if self.fault is not None:
            return
        left = sum(map(len, parts))
        while left:
            done = os.pwritev(fd, parts, self._end)
            self._end += done
            left -= done
            while left and done >= len(parts[0]):
                done -= len(parts.pop(0))
            parts[0] = memoryview(parts[0])[done:]

    def _own_header(self, whole: bool, lost: int) -> Mapping[str, Any]:
        streams = {name: {"device": made.device, "kind": made.kind} for name, made in self.streams.items()}
        out = {"kvsan_trace": 1, **self._about, "pools": dict(self.pools), "streams": streams, "start": "fresh"}
        out |= {"expects": {"streams": [], "hooks": {STAYED_ON: 1}}, "hooks": {STAYED_ON: int(whole)}}
        return out | ({"unseen": {"copies": 0, "edges": lost}} if lost else {})


_LIVES: dict[type, int] = {Alloc: ALLOC, Free: FREE, Touch: TOUCH}
_TEXTS: dict[type, int] = {Record: RECORD, Wait: WAIT, Put: PUT, Get: GET}


def _extra(lines: list[Any]) -> int:
    at = extra = 0
    while at < len(lines):
        more = START - WIDTH + 2 * (lines[at + 9] + lines[at + 10]) if lines[at] == ACCESS else 0
        at, extra = at + WIDTH + more, extra + more
    return extra


def _pack(line: list[Any], segment: Segment, used: int, sets: Sets) -> int:
    """Puts each set's pool and what stands for it behind the line; words are copied behind `used`. Raises `ValueError`
    if there is no room.
    """
    for pool, given in sets.items():
        if type(given) is np.ndarray:
            count = len(given)
            if count <= FEW and given.dtype is IDS:
                if count:
                    line += pool, given.tobytes()
                continue
            words, runs = given, False
        else:
            words, runs = _parts(given)
            count = len(words)
        if not count and not runs:
            continue
        start, used = used, used + count
        if used > segment.size:
            raise ValueError("no room")
        segment.words[start:used] = words
        if not runs and words.dtype != segment.words.dtype and (segment.words[start:used] != words).any():
            line += pool, words.astype(np.int64).tobytes()  # whole, for the reader to complain of: they fit no pool
            used = start
            continue
        line += pool, -count if runs else count
    return used


def _parts(given: Given) -> tuple[Any, bool]:
    """What a set is packed as, and whether that is runs: `Blocks` may hold ids."""
    ids = given if isinstance(given, np.ndarray) else getattr(given, "ids", None)
    if ids is not None and len(ids):
        return ids, False
    return np.array([] if ids is not None else cast(Blocks, given).runs, np.int64).ravel(), True


def _words(sets: Sets) -> int:
    return sum(len(_parts(given)[0]) for given in sets.values())


def _finished(segment: Segment) -> list[Part]:
    """The segment as a chunk."""
    tag, data = _packed(segment.lines)
    words = segment.words[: segment.used].view(np.uint8).data
    return _chunk(tag, segment.ops, COUNT.pack(segment.used), words, data)


def _packed(lines: list[Any]) -> tuple[bytes, bytes]:
    if _to_msgpack is not None:
        try:
            return PACKED, _to_msgpack(lines)
        except (OverflowError, TypeError, ValueError):  # JSON may know better
            pass
    return LINES, _encode(lines).encode()


def _chunk(tag: bytes, ops: int, *parts: Part) -> list[Part]:
    total = 0
    for part in parts:
        total = zlib.crc32(part, total)
    return [CHUNK.pack(tag, sum(map(len, parts)), total, ops), *parts]
