"""Inside the recorder: names, sinks, the lock, op numbers, lines that wait, and what happens when kvsan itself fails.

`recorder.Recorder` adds a method for each op. Here is what all of them share, and what a session does with it.

A line gets its number, its time and its names where the engine makes the call. What follows from it is worked out
later, `batch` lines at a time: between an engine's own work each line finds cold caches and costs several times as
much (`docs/performance.md`). So a hook only adds a tuple to a queue, and `settle_up` makes the ops and hands them to
the sinks, in line order (a check that listens alone gets their fields, and no op is made): when `batch` lines wait,
before a blocking call with `BLOCKED` of them waiting, and before anything is said (summary, trace, end). With `batch`
1 every line is handed on at once.

Relied on: what is queued does not change any more (ids are copied), and no sink needs to be asked before the next line.
Events and threads that are gone are noted before the next line.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from os import getpid
from typing import Any, Protocol

from kvsan.checker.attach.around import Guard
from kvsan.checker.attach.ledger import Ledger
from kvsan.checker.attach.names import Events, Streams, Threads
from kvsan.checker.attach.regions import Regions
from kvsan.checker.live import KvsanHazard
from kvsan.model.ops import Drop, Op, Stream, StreamKind, Sync

BATCH = 512
"""So many lines wait in a session at most."""

BLOCKED = 256
"""With so many waiting a thread that is about to block works them off first."""

_Kind = type[Op]


class _Gone:
    """In place of a kind of op: a host thread has ended."""


def _said(make: object) -> str:
    """What a line was, for the words of a fault."""
    if make is None or make is _Gone:
        return "the end of a thread"
    return "blocking" if type(make) is Held else str(getattr(make, "__name__", make)).strip("_").lower()


class Held:
    """The line of a blocking call that is out: `settled` is what it became, `told` whether the sinks hold it."""

    __slots__ = ("index", "op", "settled", "told")

    def __init__(self, index: int, op: Sync) -> None:
        self.index = index
        self.op = op
        self.settled: Op | None = None
        self.told = False


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

    # A sink may also have `line(index, kind, fields)`, in place of `take` where it is the only one: it gets no op made.


class Core:
    """What the recorder is besides its ops. `prefix` is put before every name made here, so that logs of several
    processes differ.
    """

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
        self.batch = 1
        """So many lines wait at most before they are worked off."""
        self.ledger = Ledger()
        self.pools: dict[str, int] = {}
        self.regions = Regions()
        """Where registered pools lie in memory."""
        self.attachments: dict[str, object] = {}
        """What is hooked, by name: an attachment is installed once."""
        self.prefix = prefix
        self.fault_text: str | None = None
        self.on_thread_end: Callable[[str], None] | None = None
        """Called under the lock with the name of a host thread that has ended, at an op after that."""
        self._sinks: tuple[Sink, ...] = tuple(sinks)
        self._threads = Threads(prefix)
        self._events = Events(prefix)
        self._streams = Streams(prefix, self._declare)
        self._on_fault = on_fault
        self._clock = clock
        self.streams_gone = 0
        self._count = 0
        self._tokens = 0
        self._queue: deque[tuple[int, _Kind | type[_Gone] | Held, tuple[Any, ...]]] = deque()
        self._settling = False
        self._sealed = -1

    # ── what there is ─────────────────────────────────────────────────────────────────────────────────────────────

    def pool(self, name: str, blocks: int) -> None:
        """A pool of `blocks` blocks. Again with the same size: nothing; with another one: a fault, kvsan is off."""
        with self.guard("pool"), self.lock:
            known = self.pools.get(name)
            if known == blocks or not self.on:
                return
            if known is not None:
                raise ValueError(f"pool {name} has {known} blocks; it was registered again with {blocks}")
            self.settle_up()
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

    def find_stream(self, device: int | str, handle: int) -> str | None:
        """The name of a stream that has one already."""
        return self._streams.find(device, handle)

    def stream_gone(self, device: int | str, handle: int) -> None:
        """The stream was destroyed: the next one of that handle is another stream."""
        with self.lock:
            self._streams.gone(device, handle)
            self.streams_gone += 1

    def event(self, event: object) -> str:
        """The name of an event: the same for the same Python object as long as it lives. A name is its own."""
        return event if type(event) is str else self._events.name(event)

    def thread(self) -> str:
        """The name of the calling thread: `h0`, `h1`, … in order of appearance; never that of a dead one."""
        return self._threads.name()

    def fresh_token(self, what: str = "token") -> str:
        """A name that no other token has, of this process or of another on this machine: tokens are not renamed when
        logs are merged.
        """
        with self.lock:
            self._tokens += 1
            return f"{self.prefix}{what}{self._tokens}.{getpid()}"

    def mark(self) -> int | None:
        """The number of the latest op, for a later access's `planned`. `None` before the first."""
        with self.lock:
            self._sealed = self._count - 1
        return self._sealed if self._count else None

    @property
    def ops(self) -> int:
        """How many ops were logged."""
        return self._count

    @property
    def waiting(self) -> int:
        """How many lines wait to be worked off: after `settle_up` none, unless a signal came in the middle of that."""
        return len(self._queue)

    # ── what could not be logged ──────────────────────────────────────────────────────────────────────────────────

    def unseen(self, *, copies: int = 0, edges: int = 0, what: str = "") -> None:
        """Copies into a pool or orders that were noticed and cannot be logged; `what` says which, once each."""
        with self.lock:
            self.ledger.unseen(copies, edges, what)

    def guard(self, where: str) -> Guard:
        """Around the code of a hook: a fault in it turns kvsan off; `KvsanHazard` goes through."""
        return Guard(self, where)

    def fault(self, where: str, error: BaseException) -> None:
        """kvsan itself failed: it stops looking, for good, and says so. What was logged before is still looked at."""
        with self.lock:
            if not self.on:
                return
            self.settle_up()
            if self.fault_text is not None:  # that failed too
                return
            self.on = False
            self.fault_text = f"kvsan turned itself off at op {self._count}: {type(error).__name__} in {where}: {error}"
        if self._on_fault is not None:
            self._on_fault(where, error)

    # ── for the session ───────────────────────────────────────────────────────────────────────────────────────────

    def listen(self, sinks: Iterable[Sink], *, batch: int = 1) -> None:
        """Starts over with other sinks: ops from 0, names as they are; lines that wait are let go.

        In a forked child the lock is a new one, since
        the thread that held it is not there.
        """
        self.lock = threading.RLock()
        self._sinks = tuple(sinks)
        self.batch = batch
        self._count = 0
        self._queue.clear()
        self._settling = False
        self._sealed = -1
        self._events.take_dead()
        self._threads.dead.clear()
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

    def hold(self, op: Sync) -> Held:
        """Under the lock."""
        if len(self._queue) >= BLOCKED:
            self.settle_up()
        if self._events.dead or self._threads.dead:
            self._ended()
        index = self._count
        self._count = index + 1
        held = Held(index, op)
        self._queue.append((index, held, ()))
        if self.batch <= 1:
            self.settle_up()
        return held

    def settle(self, held: Held, op: Op) -> None:
        """Under the lock."""
        held.settled = op
        if held.told:
            for sink in self._sinks:
                sink.settle(held.index, op)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, kind: _Kind, given: tuple[Any, ...]) -> int:
        """A line of a kind of op, with what its fields will be made of (`_worked`). Under the lock."""
        if self._events.dead or self._threads.dead:
            self._ended()
        index = self._count
        self._count = index + 1
        queue = self._queue
        queue.append((index, kind, given))
        if len(queue) >= self.batch:
            self.settle_up()
        return index

    def settle_up(self) -> None:
        """Works off the lines that wait. A fault in it turns kvsan off; they are lost with it."""
        with self.lock:
            if self._settling:  # a signal in the middle of it
                return
            if self.fault_text is not None:
                self._queue.clear()
                return
            self._settling = True
            try:
                self._work_off()
            finally:
                self._settling = False

    def _work_off(self) -> None:
        queue, sinks = self._queue, self._sinks
        only = getattr(sinks[0], "line", None) if len(sinks) == 1 else None
        index, make = self._count - 1, None
        try:
            while queue:
                index, make, given = queue.popleft()
                if isinstance(make, Held):
                    self._hand_on(make)
                elif make is _Gone:
                    if self.on_thread_end is not None:
                        self.on_thread_end(*given)
                elif only is not None:
                    only(index, *self._worked(make, given))
                else:
                    kind, given = self._worked(make, given)
                    op = kind(*given)
                    for sink in sinks:
                        sink.take(index, op)
        except KvsanHazard:
            raise
        except Exception as error:
            self._queue.clear()
            self._count = index + 1
            self.fault(_said(make), error)

    def _worked(self, kind: Any, given: tuple[Any, ...]) -> tuple[_Kind, tuple[Any, ...]]:
        """A line that waited as a kind of op and its fields."""
        return kind, given

    def _hand_on(self, held: Held) -> None:
        op = held.settled
        if op is held.op:  # it has returned meanwhile
            for sink in self._sinks:
                sink.take(held.index, op)
            return
        held.told = True
        for sink in self._sinks:
            sink.hold(held.index, held.op)
        if op is not None:  # it has failed
            for sink in self._sinks:
                sink.settle(held.index, op)

    def _ended(self) -> None:
        """Threads and events that are gone. They end anywhere, so it is only noted there."""
        while self._threads.dead:
            self._queue.append((self._count - 1, _Gone, (self._threads.dead.popleft(),)))
        by, now = self._threads.name(), self._clock()
        for name in self._events.take_dead():
            self._queue.append((self._count, Drop, (by, name, now)))
            self._count += 1

    def _declare(self, name: str, stream: Stream) -> None:
        self.settle_up()
        for sink in self._sinks:
            sink.stream(name, stream)
