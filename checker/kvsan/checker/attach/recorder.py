"""The recorder: what every hook calls. It names things, keeps the line order, and hands each op to its sinks.

    recorder = session.start().recorder            # or Recorder([sink, …]) in a test
    recorder.pool("gpu", 1024)                     # blocks 0..1023; once is enough, again is harmless
    load = recorder.stream(0, handle, name="load") # (device, handle) → the stream's name, kind from the handle or given

    with recorder.lock:                            # non-blocking call: the lock is held over call AND line
        original_launch(...)
        recorder.access("load", on=load, reads={"cpu": ids}, writes={"gpu": ids}, order="any", batch=True)

    with recorder.lock:
        original_record(...)
        recorder.record(load, event_object)        # an event is a Python object (its name is made here) or a name

    with recorder.blocking(event=event_object):    # blocking call: the line stands at entry, no lock is held over it,
        original_synchronize()                     # and an exception of the call takes the line back

    recorder.follow("steps", follower)             # an engine that says in messages what its next access touches:
    recorder.tell("steps", message)                # the follower makes blocks of them, where lines are worked off
    recorder.access("forward", on=compute, told="steps")

    with recorder.guard("hook name"):              # code of a hook: a fault turns kvsan off, not the server
        ...

Ids are numpy arrays, sequences of ints, ranges or `Blocks`; a pool may be named with no ids at all (left out). They
are copied: the caller may reuse its array. Repeats are kept in a `batch` and are one id elsewhere. Neighbouring allocs
(or frees) of one pool and thread become one op while they wait (`core`), since nothing lies between them.

`access` returns its op number. `mark()` is the number of the latest op: a job keeps it and passes it as `planned` when
its copy is issued. `put`/`get` hand over between host threads, and between processes if the token's name is the same in
both; `fresh_token` makes a name. Whoever sees a copy or an order that it cannot log calls `unseen(copies=1)` or
`unseen(edges=1)`. `ledger.hook(name)` gives the hook's counter: `.fired()` when it fires, `.missing(why)` if there was
nothing to hook.

`on` is True from the start and False once a fault has turned kvsan off or its session has closed: then every method
returns at once. Without sinks an op goes nowhere. `KvsanHazard` (option `halt_on_error`) is the one exception that
leaves here.

Relies on: the caller holding `lock` over call and line, and over nothing that blocks (`TRACE.md`, "Where a line
stands"). Does not cover: what no hook calls it for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvsan.checker.attach.around import Blocking
from kvsan.checker.attach.core import IDS_BYTES, Core
from kvsan.checker.attach.lines import (
    ACCESS,
    ALLOC,
    DROP,
    FREE,
    GET,
    KINDS,
    POLL,
    PUT,
    RECORD,
    SYNC,
    TOUCH,
    WAIT,
    Line,
    ids_of,
)
from kvsan.checker.attach.sinks import Ids, Sink
from kvsan.checker.index import blocks_of
from kvsan.checker.live import KvsanHazard
from kvsan.model.ops import Access, Blocks, Op, Put, Source

__all__ = ["Ids", "KvsanHazard", "Recorder", "Sink"]


class Recorder(Core):
    """One method an op; see the module's text for where to call it."""

    # ── ops ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def access(
        self,
        label: str,
        *,
        on: str | None = None,
        reads: Mapping[str, Ids] | None = None,
        writes: Mapping[str, Ids] | None = None,
        order: Source = "stream",
        batch: bool = False,
        planned: int | None = None,
        step: int | str | None = None,
        owner: int | str | None = None,
        site: str | None = None,
        by: str | None = None,
        told: str | None = None,
    ) -> int | None:
        """Work that touches blocks, on stream `on` or (`None`) by the host itself. `None` if it touches none.

        `told` in place of `reads` and `writes`: what the follower of that name made of the message told last. A line
        that touches nothing after all is one that orders nothing.
        """
        if not self.on:
            return None
        with self.lock:
            try:
                who = by or self.thread_name()
                return self.add_access(label, who, on, reads, writes, order, batch, planned, step, owner, site, told)
            except KvsanHazard:
                raise
            except Exception as error:
                self.fault("access", error)
                return None

    def add_access(
        self,
        label: str,
        by: str,
        on: str | None,
        reads: Mapping[str, Ids] | None,
        writes: Mapping[str, Ids] | None,
        order: Source,
        batch: bool,
        planned: int | None,
        step: int | str | None,
        owner: int | str | None,
        site: str | None,
        told: str | None = None,
    ) -> int | None:
        """`access` for who holds the lock and takes care of what it raises."""
        read = told or (self._kept(reads) if reads else None)
        write = self._kept(writes) if writes else None
        if not read and not write:
            return None
        index = self.add((ACCESS, by, on, read, write, label, order, batch, planned, step, owner, site, self.now()))
        if self._size > IDS_BYTES:
            self.settle_up()
        return index

    def record(self, on: str, event: object, *, by: str | None = None) -> None:
        self._log("record", RECORD, on, event, by)

    def wait(self, on: str, event: object, *, by: str | None = None) -> None:
        self._log("wait", WAIT, on, event, by)

    def wait_stream(self, on: str, other: str, *, by: str | None = None) -> None:
        """`wait_stream`: a record of a fresh event on `other` and a wait for it on `on`."""
        if not self.on:
            return
        with self.lock:
            try:
                self.add_wait_stream(on, other, by or self.thread_name())
            except KvsanHazard:
                raise
            except Exception as error:
                self.fault("wait_stream", error)

    def add_wait_stream(self, on: str, other: str, by: str) -> None:
        """`wait_stream` for who holds the lock and takes care of what it raises."""
        event, now = self._events.fresh(), self.now()
        self.add((RECORD, by, other, event, now))
        self.add((WAIT, by, on, event, now))
        self.add((DROP, by, event, now))

    def poll(self, event: object, done: bool, *, by: str | None = None) -> None:
        """A query of an event and its answer."""
        if not self.on:
            return
        with self.lock:
            try:
                self.add((POLL, by or self.thread_name(), self.event(event), done, self.now()))
            except KvsanHazard:
                raise
            except Exception as error:
                self.fault("poll", error)

    def blocking(
        self,
        *,
        event: object | None = None,
        stream: str | None = None,
        device: int | str | None = None,
        by: str | None = None,
    ) -> Blocking:
        """A context manager around one blocking call, with exactly one of `event`, `stream`, `device`."""
        return Blocking(self, event, stream, device, by)

    def seen_done(
        self, *, event: object | None = None, stream: str | None = None, device: int | str | None = None
    ) -> None:
        """The calling thread found one of them done without blocking, or blocks now and cannot fail."""
        if not self.on:
            return
        with self.lock:
            try:
                name = None if event is None else self.event(event)
                self.add((SYNC, self.thread_name(), name, stream, device, self.now()))
            except KvsanHazard:
                raise
            except Exception as error:
                self.fault("seen_done", error)

    def put(self, token: str, *, by: str | None = None) -> None:
        """The calling thread hands on what it knows, under a name that was not put before."""
        self._log_one("put", PUT, token, by)

    def get(self, token: str, *, by: str | None = None) -> None:
        """The calling thread took what was put."""
        self._log_one("get", GET, token, by)

    def alloc(self, pool: str, ids: Ids, *, by: str | None = None) -> None:
        self._life("alloc", ALLOC, pool, ids, by)

    def free(self, pool: str, ids: Ids, *, by: str | None = None) -> None:
        self._life("free", FREE, pool, ids, by)

    def touch(self, pool: str, ids: Ids, *, by: str | None = None) -> None:
        """Free blocks are taken back with their content (a prefix hit)."""
        self._life("touch", TOUCH, pool, ids, by)

    def drop(self, event: object, *, by: str | None = None) -> None:
        """The event is gone. Of events that are Python objects the recorder notices it itself."""
        self._log_one("drop", DROP, self.event(event), by)

    # ── lines that are worked off ─────────────────────────────────────────────────────────────────────────────────

    def _fields(self, line: Line) -> tuple[type[Op], tuple[Any, ...]]:
        code = line[0]
        if code == ACCESS:
            return self._access(*line)
        if ALLOC <= code <= TOUCH:
            _, by, pool, ids, now = line
            found = blocks_of(ids_of(ids), self.pools[pool], owned=True)
            return KINDS[code], (by, pool, Blocks(()) if found is None else found, now)
        return KINDS[code], tuple(line[1:])

    def _access(
        self,
        _: int,
        by: str,
        on: str | None,
        reads: Mapping[str, Ids] | str | None,
        writes: Mapping[str, Ids] | None,
        label: str,
        order: Source,
        batch: bool,
        planned: int | None,
        step: int | str | None,
        owner: int | str | None,
        site: str | None,
        now: int,
    ) -> tuple[type[Op], tuple[Any, ...]]:
        owned = type(reads) is not str  # they were copied
        if type(reads) is str:
            reads, writes = self._touched.pop(reads)
        read = self._blocks(reads, batch, owned) if reads else {}  # type: ignore[arg-type]
        write = self._blocks(writes, batch, owned) if writes else {}
        if not read and not write:
            return Put, (by, f"{label} of no block at {now}", now)
        return Access, (by, on, read, write, label, order, batch, planned, step, owner, site, now)

    def _blocks(self, given: Mapping[str, Ids], batch: bool, owned: bool) -> dict[str, Blocks]:
        out = {}
        for pool, ids in given.items():
            blocks = blocks_of(ids_of(ids), self.pools[pool], repeats=batch, owned=owned)
            if blocks is not None:
                out[pool] = blocks
        return out

    # ── lines that are put in ─────────────────────────────────────────────────────────────────────────────────────

    def _kept(self, given: Mapping[str, Ids]) -> dict[str, Any]:
        """The ids of each pool that has some."""
        out = {}
        for pool, ids in given.items():
            some = _copy(ids)
            size = len(some)
            if size:
                self._size += size
                out[pool] = some
        return out

    def _log(self, where: str, code: int, on: str, event: object, by: str | None) -> None:
        if not self.on:
            return
        with self.lock:
            try:
                self.add((code, by or self.thread_name(), on, self.event(event), self.now()))
            except KvsanHazard:
                raise
            except Exception as error:
                self.fault(where, error)

    def _log_one(self, where: str, code: int, name: str, by: str | None) -> None:
        if not self.on:
            return
        with self.lock:
            try:
                self.add((code, by or self.thread_name(), name, self.now()))
            except KvsanHazard:
                raise
            except Exception as error:
                self.fault(where, error)

    def _life(self, where: str, code: int, pool: str, ids: Ids, by: str | None) -> None:
        if not self.on:
            return
        with self.lock:
            try:
                self.add_life(code, pool, ids, by or self.thread_name())
            except KvsanHazard:
                raise
            except Exception as error:
                self.fault(where, error)

    def lives(self, code: int, pools: Sequence[str], ids: list[int]) -> None:
        """The same for several pools, with a list of ids that belongs to the recorder from here on. A fault goes up."""
        with self.lock:
            who = self.thread_name()
            for pool in pools:
                self.add_ids(code, pool, ids, who)
                ids = ids if len(pools) == 1 else list(ids)

    def add_life(self, code: int, pool: str, ids: Ids, by: str) -> None:
        """An alloc, a free or a touch, for who holds the lock and takes care of what it raises."""
        some = _copy(ids)
        if len(some):
            self.add_ids(code, pool, some, by)


def _copy(ids: Ids) -> Any:
    """Ids that nobody else changes, with a length."""
    if type(ids) is np.ndarray:
        return (ids if ids.dtype == np.int64 else ids.astype(np.int64)).tobytes()
    return ids if isinstance(ids, Blocks | range) else list(ids)
