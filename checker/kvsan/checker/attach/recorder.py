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

    with recorder.guard("hook name"):              # code of a hook: a fault turns kvsan off, not the server
        ...

Ids are numpy arrays (fastest), sequences of ints, ranges or `Blocks`; a pool may be named with no ids at all (left
out). They are copied: the caller may reuse its array. Repeats are kept in a `batch` and are one id elsewhere.

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

from collections.abc import Mapping
from typing import Any

from kvsan.checker.attach.around import Blocking
from kvsan.checker.attach.core import Core, Sink
from kvsan.checker.index import blocks_of
from kvsan.checker.live import KvsanHazard
from kvsan.model.ops import Access, Alloc, Blocks, Drop, Free, Get, Poll, Put, Record, Source, Sync, Touch, Wait

__all__ = ["Ids", "KvsanHazard", "Recorder", "Sink"]

Ids = Any
"""A numpy array of ints, a sequence of ints, a range, or `Blocks`."""


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
    ) -> int | None:
        """Work that touches blocks, on stream `on` or (`None`) by the host itself. `None` if it touches none."""
        if not self.on:
            return None
        with self.lock:
            try:
                read = self._blocks(reads, batch) if reads else {}
                write = self._blocks(writes, batch) if writes else {}
                if not read and not write:
                    return None
                who = by or self._threads.name()
                now = self._clock()
                return self._emit(Access(who, on, read, write, label, order, batch, planned, step, owner, site, now))
            except KvsanHazard:
                raise
            except Exception as error:
                self.fault("access", error)
                return None

    def record(self, on: str, event: object, *, by: str | None = None) -> None:
        self._log("record", Record, on, event, by)

    def wait(self, on: str, event: object, *, by: str | None = None) -> None:
        self._log("wait", Wait, on, event, by)

    def wait_stream(self, on: str, other: str, *, by: str | None = None) -> None:
        """`wait_stream`: a record of a fresh event on `other` and a wait for it on `on`."""
        with self.lock:
            event = self._events.fresh()
            self._log("wait_stream", Record, other, event, by)
            self._log("wait_stream", Wait, on, event, by)
            self.drop(event, by=by)

    def poll(self, event: object, done: bool, *, by: str | None = None) -> None:
        """A query of an event and its answer."""
        if not self.on:
            return
        with self.lock:
            try:
                name = event if type(event) is str else self._events.name(event)
                self._emit(Poll(by or self._threads.name(), name, done, self._clock()))
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
                self._emit(Sync(self._threads.name(), name, stream, device, self._clock()))
            except Exception as error:
                self.fault("seen_done", error)

    def put(self, token: str, *, by: str | None = None) -> None:
        """The calling thread hands on what it knows, under a name that was not put before."""
        self._log_one("put", Put, token, by)

    def get(self, token: str, *, by: str | None = None) -> None:
        """The calling thread took what was put."""
        self._log_one("get", Get, token, by)

    def alloc(self, pool: str, ids: Ids, *, by: str | None = None) -> None:
        self._life("alloc", Alloc, pool, ids, by)

    def free(self, pool: str, ids: Ids, *, by: str | None = None) -> None:
        self._life("free", Free, pool, ids, by)

    def touch(self, pool: str, ids: Ids, *, by: str | None = None) -> None:
        """Free blocks are taken back with their content (a prefix hit)."""
        self._life("touch", Touch, pool, ids, by)

    def drop(self, event: object, *, by: str | None = None) -> None:
        """The event is gone. Of events that are Python objects the recorder notices it itself."""
        self._log_one("drop", Drop, self.event(event), by)

    def _blocks(self, given: Mapping[str, Ids], batch: bool) -> dict[str, Blocks]:
        out = {}
        for pool, ids in given.items():
            blocks = blocks_of(ids, self.pools[pool], repeats=batch)
            if blocks is not None:
                out[pool] = blocks
        return out

    def _log(self, where: str, kind: type[Record] | type[Wait], on: str, event: object, by: str | None) -> None:
        if not self.on:
            return
        with self.lock:
            try:
                name = event if type(event) is str else self._events.name(event)
                self._emit(kind(by or self._threads.name(), on, name, self._clock()))
            except Exception as error:
                self.fault(where, error)

    def _log_one(self, where: str, kind: type[Put] | type[Get] | type[Drop], name: str, by: str | None) -> None:
        if not self.on:
            return
        with self.lock:
            try:
                self._emit(kind(by or self._threads.name(), name, self._clock()))
            except Exception as error:
                self.fault(where, error)

    def _life(
        self, where: str, kind: type[Alloc] | type[Free] | type[Touch], pool: str, ids: Ids, by: str | None
    ) -> None:
        if not self.on:
            return
        with self.lock:
            try:
                blocks = blocks_of(ids, self.pools[pool])
                if blocks is not None:
                    self._emit(kind(by or self._threads.name(), pool, blocks, self._clock()))
            except Exception as error:
                self.fault(where, error)
