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

`on` is False before a session has begun to listen and once a fault has turned kvsan off: then every method returns at
once. `KvsanHazard` (option `halt_on_error`) is the one exception that leaves here.

Relies on: the caller holding `lock` over call and line, and over nothing that blocks (`TRACE.md`, "Where a line
stands"). Does not cover: what no hook calls it for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from kvsan.checker.attach.around import Blocking, Guard
from kvsan.checker.attach.ledger import Ledger
from kvsan.checker.attach.names import Events, Streams, Threads
from kvsan.checker.index import blocks_of
from kvsan.checker.live import KvsanHazard
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
    StreamKind,
    Sync,
    Touch,
    Wait,
)

Ids = Any
"""A numpy array of ints, a sequence of ints, a range, or `Blocks`."""


class Sink(Protocol):
    """Takes what the recorder logs, always under the recorder's lock, ops in line order."""

    def pool(self, name: str, blocks: int) -> None: ...

    def stream(self, name: str, stream: Stream) -> None: ...

    def take(self, index: int, op: Op) -> None:
        """Op number `index`. May raise `KvsanHazard` once it has taken it."""

    def hold(self, index: int, op: Sync) -> None:
        """A blocking call was entered: its line stands here, and whether it counts is said later."""

    def settle(self, index: int, op: Op) -> None:
        """What line `index` became: the op that was held, or one that orders nothing because the call failed."""


class Recorder:
    """See the module's text. `prefix` is put before every name made here, so that logs of several processes differ."""

    def __init__(
        self,
        sinks: Iterable[Sink] = (),
        *,
        prefix: str = "",
        on_fault: Callable[[str, BaseException], None] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.lock = threading.RLock()
        self.on = True
        self.ledger = Ledger()
        self.pools: dict[str, int] = {}
        self.prefix = prefix
        self.fault_text: str | None = None
        self._sinks: tuple[Sink, ...] = tuple(sinks)
        self._threads = Threads(prefix)
        self._events = Events(prefix)
        self._streams = Streams(prefix, self._declare)
        self._on_fault = on_fault
        self._clock = clock
        self._count = 0
        self._tokens = 0

    # ── what there is ─────────────────────────────────────────────────────────────────────────────────────────────

    def pool(self, name: str, blocks: int) -> None:
        """A pool of `blocks` blocks. Again with the same size: nothing; with a larger one: an error."""
        with self.guard("pool"), self.lock:
            known = self.pools.get(name)
            if known == blocks or not self.on:
                return
            if known is not None:
                raise ValueError(f"pool {name} has {known} blocks; it was registered again with {blocks}")
            self.pools[name] = blocks
            for sink in self._sinks:
                sink.pool(name, blocks)

    def stream(self, device: int | str, handle: int, *, name: str | None = None, kind: StreamKind | None = None) -> str:
        """The name of a stream. `name` and `kind` are heard the first time only; handle 0 is the legacy default
        stream, 1 is it too, 2 the calling thread's default stream, others are non-blocking unless `kind` says more.
        """
        found = self._streams.find(device, handle)
        if found is not None and name is None:
            return found
        with self.lock:
            return self._streams.name(device, handle, name, kind, self._threads.name())

    def stream_gone(self, device: int | str, handle: int) -> None:
        """The stream was destroyed: the next one of that handle is another stream."""
        with self.lock:
            self._streams.gone(device, handle)

    def event(self, event: object) -> str:
        """The name of an event: the same for the same Python object as long as it lives. A name is its own."""
        return event if type(event) is str else self._events.name(event)

    def thread(self) -> str:
        """The name of the calling thread: `h0`, `h1`, … in order of appearance; never that of a dead one."""
        return self._threads.name()

    def fresh_token(self, what: str = "token") -> str:
        """A name that no other token of this process has."""
        with self.lock:
            self._tokens += 1
            return f"{self.prefix}{what}{self._tokens}"

    def mark(self) -> int | None:
        """The number of the latest op, for a later access's `planned`. `None` before the first."""
        return self._count - 1 if self._count else None

    @property
    def ops(self) -> int:
        """How many ops were logged."""
        return self._count

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

    # ── what could not be logged ──────────────────────────────────────────────────────────────────────────────────

    def unseen(self, *, copies: int = 0, edges: int = 0, what: str = "") -> None:
        """Copies into a pool or orders that were noticed and cannot be logged; `what` says which, once each."""
        with self.lock:
            self.ledger.unseen(copies, edges, what)

    def guard(self, where: str) -> Guard:
        """Around the code of a hook: a fault in it turns kvsan off; `KvsanHazard` goes through."""
        return Guard(self, where)

    def fault(self, where: str, error: BaseException) -> None:
        """kvsan itself failed: it stops looking, for good, and says so."""
        with self.lock:
            if not self.on:
                return
            self.on = False
            self.fault_text = f"kvsan turned itself off at op {self._count}: {type(error).__name__} in {where}: {error}"
        if self._on_fault is not None:
            self._on_fault(where, error)

    # ── for the session ───────────────────────────────────────────────────────────────────────────────────────────

    def listen(self, sinks: Iterable[Sink]) -> None:
        """Starts over with other sinks: ops from 0, names as they are. In a forked child the lock is a new one, since
        the thread that held it is not there.
        """
        self.lock = threading.RLock()
        self._sinks = tuple(sinks)
        self._count = 0
        self._events.take_dead()
        self.ledger.restart()
        for name, blocks in self.pools.items():
            for sink in self._sinks:
                sink.pool(name, blocks)
        for name, stream in self._streams.known.items():
            self._declare(name, stream)

    @property
    def streams(self) -> Mapping[str, Stream]:
        """All streams that have a name."""
        return self._streams.known

    @property
    def threads(self) -> Mapping[str, str]:
        """Names of host threads and what Python calls them."""
        return self._threads.names

    # ── for `around` ──────────────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> int:
        return self._clock()

    def hold(self, op: Sync) -> int:
        if self._events.dead:
            self._drain()
        index = self._count
        self._count = index + 1
        for sink in self._sinks:
            sink.hold(index, op)
        return index

    def settle(self, index: int, op: Op) -> None:
        for sink in self._sinks:
            sink.settle(index, op)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _emit(self, op: Op) -> int:
        """Under the lock."""
        if self._events.dead:
            self._drain()
        index = self._count
        self._count = index + 1
        for sink in self._sinks:
            sink.take(index, op)
        return index

    def _drain(self) -> None:
        """Events whose Python objects are gone. Their weak references fire anywhere, so they are only noted there."""
        by = self._threads.name()
        for name in self._events.take_dead():
            index = self._count
            self._count = index + 1
            for sink in self._sinks:
                sink.take(index, Drop(by, name, self._clock()))

    def _declare(self, name: str, stream: Stream) -> None:
        for sink in self._sinks:
            sink.stream(name, stream)

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
