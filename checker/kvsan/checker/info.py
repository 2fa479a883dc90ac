"""`kvsan info`: what a trace holds. No verdict: who is there, who touches what, who waits for whom.

The first thing to look at when a report surprises: a stream that carries no access, a label that touches a pool it
should not, a pair of streams without a single wait between them.

Memory: one byte a block for each pool and for each way in which an agent touches it, up to `MARKS`; ways beyond that
are counted without their blocks, and beyond `WAYS` they are counted together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsan.checker.clocks import Clocks, Effect
from kvsan.checker.index import index
from kvsan.checker.inventory import (
    DeviceSyncs,
    Handoffs,
    PoolUse,
    StreamUse,
    Survey,
    ThreadUse,
    Waits,
    Watches,
    Way,
)
from kvsan.checker.recent import SPENT_TOKENS, Recent
from kvsan.checker.trace import Trace
from kvsan.model.ops import (
    Access,
    Alloc,
    Blocks,
    Device,
    Drop,
    Free,
    Get,
    Op,
    Poll,
    Put,
    Record,
    Stream,
    Sync,
    Touch,
    Wait,
)

MARKS = 256 << 20
"""Bytes."""

WAYS = 2000
"""Of pool, stream or thread, label, read or write."""

OTHER = "(other labels)"

__all__ = ["MARKS", "OTHER", "WAYS", "Survey", "survey"]


def survey(trace: Trace) -> Survey:
    """Reads a trace to its end. Raises `TraceError` at the first line that cannot be read."""
    ledger = _Ledger(trace)
    for op in trace:
        ledger.note(op)
    return ledger.close()


@dataclass(slots=True)
class _Way:
    """A `Way` in the making."""

    marks: npt.NDArray[np.bool_] | None
    accesses: int = 0
    named: int = 0


@dataclass(slots=True)
class _Stream:
    """A `StreamUse` in the making."""

    declared: Stream | None = None
    ops: Counter[str] = field(default_factory=Counter)
    threads: dict[str, None] = field(default_factory=dict)


_Key = tuple[str, bool, str | None, str | None, str]


class _Ledger:
    """Counts ops as they come."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        header = trace.header
        self._clocks = Clocks(header.streams)
        self._epoch = 0
        self._first: float | None = None
        self._last: float | None = None
        self._threads: dict[str, Counter[str]] = {}
        self._streams = {name: _Stream(stream) for name, stream in header.streams.items()}
        self._lives: dict[tuple[str, type], int] = Counter()
        self._accessed = {pool: np.zeros(size, np.bool_) for pool, size in header.pools.items()}
        self._ways: dict[_Key, _Way] = {}
        self._room = MARKS
        self._waits: dict[tuple[str, str | None], Counter[Effect]] = {}
        self._watches: dict[tuple[str, str | None], Counter[str]] = {}
        self._device_syncs: Counter[tuple[str, Device | None]] = Counter()
        self._handoffs: Counter[tuple[str | None, str]] = Counter()
        self._givers: dict[str, str] = {}
        self._spent: Recent[str, str] = Recent(SPENT_TOKENS)
        self._orders: Counter[str] = Counter()
        self._batches = self._planned = 0

    def note(self, op: Op) -> None:
        self._epoch += 1
        kind = type(op).__name__.lower()
        thread = self._threads.get(op.by)
        if thread is None:
            thread = self._threads[op.by] = Counter()
        thread[kind] += 1
        if op.t is not None:
            self._first = op.t if self._first is None else min(self._first, op.t)
            self._last = op.t if self._last is None else max(self._last, op.t)
        if isinstance(op, Access | Record | Wait) and op.on is not None:
            stream = self._streams.setdefault(op.on, _Stream())
            stream.ops[kind] += 1
            stream.threads[op.by] = None
        match op:
            case Access():
                self._access(op)
            case Record():
                self._clocks.record(self._epoch - 1, op.by, op.on, op.event)
            case Wait():
                effect = self._clocks.wait(op.by, op.on, op.event)
                self._waits.setdefault((op.on, self._recorded_on(op.event)), Counter())[effect] += 1
            case Sync() | Poll():
                self._watch(op)
            case Put():
                self._clocks.put(op.by, op.token)
                self._givers[op.token] = op.by
            case Get():
                self._get(op)
            case Drop():
                self._clocks.drop(op.event)
            case Alloc() | Free() | Touch():
                self._lives[op.pool, type(op)] += len(op.blocks)

    def _access(self, op: Access) -> None:
        self._clocks.access(self._epoch, op)
        if op.reads:
            self._orders[op.order if op.on is not None else "host"] += 1
        self._batches += op.batch
        self._planned += op.planned is not None
        by = op.by if op.on is None else None
        for writes, touched in ((False, op.reads), (True, op.writes)):
            for pool, blocks in touched.items():
                self._touch((pool, writes, op.on, by, op.label), blocks)

    def _touch(self, key: _Key, blocks: Blocks) -> None:
        way = self._ways.get(key)
        if way is None:
            if len(self._ways) >= WAYS:
                key = (*key[:4], OTHER)
            way = self._ways.setdefault(key, _Way(self._new_marks(key)))
        way.accesses += 1
        way.named += len(blocks)
        accessed = self._accessed[key[0]]
        for part in index(blocks):
            accessed[part] = True
            if way.marks is not None:
                way.marks[part] = True

    def _new_marks(self, key: _Key) -> npt.NDArray[np.bool_] | None:
        size = self._trace.header.pools[key[0]]
        if key[4] == OTHER or size > self._room:
            return None
        self._room -= size
        return np.zeros(size, np.bool_)

    def _recorded_on(self, event: str) -> str | None:
        recorded = self._clocks.events.get(event)
        return None if recorded is None else self._clocks.agents[recorded.lane].name

    def _watch(self, op: Sync | Poll) -> None:
        if op.event is None:
            if op.stream is None:
                self._clocks.observe_device(op.by, op.device)
                self._device_syncs[op.by, op.device] += 1
                return
            self._clocks.observe_stream(op.by, op.stream)
            source: str | None = op.stream
            self._streams.setdefault(op.stream, _Stream())
        else:
            source = self._recorded_on(op.event)
            if isinstance(op, Sync) or op.done:
                self._clocks.observe_event(op.by, op.event)
        how = "syncs" if isinstance(op, Sync) else "done" if op.done else "pending"
        self._watches.setdefault((op.by, source), Counter())[how] += 1

    def _get(self, op: Get) -> None:
        self._clocks.get(op.by, op.token)
        giver = self._givers.pop(op.token, None)
        if giver is not None:
            self._spent[op.token] = giver
        else:
            giver = self._spent.get(op.token)
        self._handoffs[giver, op.by] += 1

    def close(self) -> Survey:
        header = self._trace.header
        kinds: Counter[str] = Counter()
        for counts in self._threads.values():
            kinds.update(counts)
        return Survey(
            trace=self._trace.name,
            ops=self._epoch,
            kinds=dict(kinds.most_common()),
            span=None if self._first is None or self._last is None else self._last - self._first,
            threads=tuple(ThreadUse(name, dict(ops.most_common())) for name, ops in self._threads.items()),
            streams=tuple(_stream_use(name, stream) for name, stream in self._streams.items()),
            pools=tuple(self._pool(pool, size) for pool, size in header.pools.items()),
            ways=tuple(self._way(key, way) for key, way in sorted(self._ways.items(), key=_way_order)),
            waits=tuple(
                Waits(on, source, sum(found.values()), found[Effect.REDUNDANT] + found[Effect.OWN_STREAM])
                for (on, source), found in sorted(self._waits.items(), key=_by_names)
            ),
            watches=tuple(
                Watches(by, source, found["syncs"], found["done"], found["pending"])
                for (by, source), found in sorted(self._watches.items(), key=_by_names)
            ),
            device_syncs=tuple(DeviceSyncs(*who, syncs) for who, syncs in self._device_syncs.items()),
            handoffs=tuple(
                Handoffs(giver, taker, gets)
                for (giver, taker), gets in sorted(self._handoffs.items(), key=lambda item: -item[1])
            ),
            live_events=len(self._clocks.events),
            open_tokens=len(self._givers),
            orders=dict(self._orders),
            batches=self._batches,
            planned=self._planned,
            header=header.document(),
        )

    def _pool(self, pool: str, size: int) -> PoolUse:
        lives = (self._lives[pool, kind] for kind in (Alloc, Touch, Free))
        return PoolUse(pool, size, int(np.count_nonzero(self._accessed[pool])), *lives)

    def _way(self, key: _Key, way: _Way) -> Way:
        blocks = None if way.marks is None else int(np.count_nonzero(way.marks))
        return Way(*key, way.accesses, way.named, blocks)


def _stream_use(name: str, stream: _Stream) -> StreamUse:
    declared = stream.declared or Stream()
    known = stream.declared is not None
    return StreamUse(name, declared.device, declared.kind, known, dict(stream.ops.most_common()), tuple(stream.threads))


def _by_names(item: tuple[tuple[str, str | None], Any]) -> tuple[str, str]:
    (first, second), _ = item
    return first, second or ""


def _way_order(item: tuple[_Key, _Way]) -> tuple[Any, ...]:
    (pool, writes, on, by, label), _ = item
    return pool, on or "", by or "", label, writes
