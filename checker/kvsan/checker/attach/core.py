"""Inside the recorder: names, sinks, the lock, op numbers, lines that wait, and what happens when kvsan itself fails.

`recorder.Recorder` adds a method for each op. Here is what all of them share, and what a session does with it.

A line gets its number, its time and its names where the engine makes the call. What follows from it is worked out
later, `batch` lines at a time: between an engine's own work each line finds cold caches and costs several times as
much (`docs/performance.md`). So a hook only adds a tuple to a queue (`lines`), and `settle_up` works the queue off:
when `batch` lines wait, before a blocking call with `BLOCKED` of them waiting, and before anything is said (summary,
trace, end). With `batch` 1 every line is handed on at once. Where lines go:

- to a process beside this one, which does all that follows (`beside`): they are encoded and written to its pipe;
- to the sinks here, in line order: ops are made of them (a check that listens alone gets their fields, and no op is).

Relied on: what is queued does not change any more (ids are copied), and no sink needs to be asked before the next line.
Threads that are gone are noted before the next line (who comes after them is no luck), events behind the lines that
wait: nobody can name them any more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from os import getpid
from typing import Any

from kvsan.checker.attach.around import Guard, nothing
from kvsan.checker.attach.ledger import Ledger
from kvsan.checker.attach.lines import DROP, GONE, HELD, KINDS, NUMBERED, SETTLED, TOLD, Held, Line, said
from kvsan.checker.attach.names import Events, Streams, Threads
from kvsan.checker.attach.regions import Regions
from kvsan.checker.attach.sinks import Beside, Follower, Sink, Touched
from kvsan.checker.attach.state import HERE, State, packed_queue
from kvsan.checker.live import KvsanHazard
from kvsan.model.ops import Op, Stream, StreamKind
from kvsan.runtime.lines import Lock

BATCH = 512
"""So many lines wait in a session at most."""

IDS_BYTES = 1 << 17
"""So many bytes of ids wait at most: a pipe holds 1 MiB, and whoever fills it waits for the other side."""

BLOCKED = 256
"""With so many waiting a thread that is about to block works them off first."""


class Core(State):
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
        self.lock = Lock()
        self.relocked: list[Callable[[Any], None]] = []
        """Called with the lock where it is another one from here on."""
        self.on = True
        self.batch, self.blocked = 1, BLOCKED
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
        self._hearers: tuple[Sink | Beside, ...] = self._sinks
        """Who is told of pools and streams."""
        self._threads = Threads(prefix)
        self._events = Events(prefix)
        self.event_names = self._events
        self.event_name, self.thread_name = self._events.name, self._threads.name
        """The name of an event that is an object, and of the calling thread, for hooks that are in a hurry."""
        self._dead_events, self._dead_threads = self._events.dead, self._threads.dead
        self._streams = Streams(prefix, self._declare)
        self._on_fault = on_fault
        self.now = clock
        self._count = 0
        self._queue: deque[Line] = deque()
        self._size = 0  # bytes of ids in it, or ids where they are no bytes
        self._worked = 0  # the number of the next line that is worked off
        self._settling = False
        self._shut = False
        self.closing = False
        """Off, and what fails is a fault all the same."""
        self._sealed = -1
        self._followers: dict[str, Follower] = {}
        self._touched: dict[str, Touched] = {}
        self._beside: Beside | None = None
        self._out: dict[int, Held] = {}
        """Beside an engine: its blocking calls that had not returned when their lines came."""

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
            for hearer in self._hearers:
                hearer.pool(name, blocks)

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

    def follow(self, name: str, follower: Follower) -> None:
        """From now on `follower` gets what is told under `name`, and accesses may have their blocks from it."""
        with self.lock:
            self.settle_up()
            self._followers[name] = follower
            self._touched.pop(name, None)
            if self._beside is not None:
                self._beside.follow(name, follower)

    def tell(self, name: str, message: Any) -> None:
        """A message for whoever follows under that name, in its turn among the lines. It must not change any more."""
        if self.on:
            with self.lock:
                try:
                    self._queue.append((TOLD, name, message))
                except BaseException as error:  # it could not be packed
                    self._lost(error)
                    return
                if len(self._queue) >= self.batch:
                    self.settle_up()

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
            if not self.on and not self.closing:
                return
            self.settle_up()
            if self.fault_text is not None:  # that failed too
                return
            self.on = False
            self.fault_text = f"kvsan turned itself off at op {self._count}: {type(error).__name__} in {where}: {error}"
        if self._on_fault is not None:
            self._on_fault(where, error)

    # ── for the session ───────────────────────────────────────────────────────────────────────────────────────────

    def listen(self, sinks: Iterable[Sink], *, batch: int = 1, beside: Beside | None = None) -> None:
        """Starts over with other sinks, or with a process beside this one: ops from 0, names as they are; lines that
        wait are let go.

        In a forked child the lock is a new one, since
        the thread that held it is not there.
        """
        self.lock = Lock()
        for take in self.relocked:
            take(self.lock)
        self._sinks = tuple(sinks)
        self._beside = beside
        self._hearers = self._sinks if beside is None else (*self._sinks, beside)
        self.batch = batch
        self._count = self._worked = 0
        self.sessions += 1
        if self.workers == HERE:  # a forked child may be a worker of a scheduler elsewhere
            self.workers = 0
        self._queue = deque() if beside is None else packed_queue()
        self._size = 0
        self._out.clear()
        self._touched.clear()
        self._settling = self._shut = self.closing = False
        self._sealed = -1
        self._events.take_dead()
        self._threads.dead.clear()
        self.ledger.restart()
        for name, blocks in self.pools.items():
            for hearer in self._hearers:
                hearer.pool(name, blocks)
        for name, stream in self._streams.known.items():
            self._declare(name, stream)
        if beside is not None:
            for name, follower in self._followers.items():
                beside.follow(name, follower)

    def declare(self, name: str, stream: Stream) -> None:
        """In the process beside an engine's: a stream of that one."""
        with self.lock:
            self._streams.known[name] = stream
            self._declare(name, stream)

    def adopt(self, ledger: Ledger, threads: Mapping[str, str]) -> None:
        """In the process beside an engine's: what that one knows by now."""
        with self.lock:
            self.ledger = ledger
            self._threads.names.update(threads)
            if self.fault_text is not None:
                ledger.note(self.fault_text)

    def shut(self) -> bool:
        """No line counts from here on; what waits is worked off before. Whether all was well until now."""
        with self.lock:
            self.settle_up()
            whole, self.on, self._shut = self.on, False, True
            self.closing = whole
            return whole

    def take_over(self, lines: Iterable[Line]) -> None:
        """In the process beside an engine's: lines of that one's recorder, as they travelled."""
        with self.lock:
            for line in lines:
                if line[0] <= NUMBERED:
                    self._count += 1
                self._queue.append(line)
            self.settle_up()

    @property
    def streams(self) -> Mapping[str, Stream]:
        """All streams that have a name."""
        return self._streams.known

    @property
    def threads(self) -> Mapping[str, str]:
        """Names of host threads and what Python calls them."""
        return self._threads.names

    # ── for `around` ──────────────────────────────────────────────────────────────────────────────────────────────

    def returned(self, held: Held, done: bool) -> None:
        """It has returned, or failed (not `done`). A fault turns kvsan off."""
        with self.lock:
            try:
                self.settle(held, done=done)
            except Exception as error:
                self.fault("blocking", error)

    def settle(self, held: Held, *, done: bool) -> None:
        """The same under the lock."""
        held.done = done
        if not held.told:
            return
        if self._beside is not None:
            self._queue.append((SETTLED, held.index, done))
            return
        op = held.op if done else nothing(held.index, held.op)
        for sink in self._sinks:
            sink.settle(held.index, op)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────

    def settle_up(self) -> None:
        """Works off the lines that wait, or hands them to the process beside (where C calls it, the usual hand-over is
        C's: `state_hand_over`). A fault in it turns kvsan off; they are lost with it.
        """
        with self.lock:
            if self._settling:  # a signal in the middle of it
                return
            if self.fault_text is not None or self._shut:
                self._queue.clear()
                return
            self._settling = True
            self._size = 0
            try:
                try:
                    if self._dead_events or self._dead_threads:
                        self._ended()
                except BaseException as error:  # a line that waited could not be packed
                    self._lost(error)
                    return
                if self._beside is None:
                    self._work_off()
                elif self._queue:
                    self._hand_over(self._beside)
            finally:
                self._settling = False

    def _hand_over(self, beside: Beside) -> None:
        queue: Any = self._queue
        try:
            if type(queue) is deque:
                lines = list(queue)
                queue.clear()
                beside.lines(lines)
            else:
                beside.packed(queue.take())
        except BaseException as error:  # an exception from a signal's handler too: the lines are lost with it
            self._lost(error)

    def _lost(self, error: BaseException) -> None:
        """Lines on their way to the process beside are lost."""
        self.fault("the way to the process that checks", error)
        self._queue.clear()
        if not isinstance(error, Exception):
            raise error

    def _work_off(self) -> None:
        queue, sinks = self._queue, self._sinks
        only = getattr(sinks[0], "line", None) if len(sinks) == 1 else None
        line: Line = None
        try:
            while queue:
                line = queue.popleft()
                code = HELD if type(line) is Held else line[0]
                if code > NUMBERED:
                    self._hear(line)
                    continue
                index = self._worked
                self._worked = index + 1
                if code == HELD:
                    self._hand_on(line if type(line) is Held else self._held_elsewhere(index, line))
                elif only is not None:
                    only(index, *self._fields(line))
                else:
                    kind, given = self._fields(line)
                    op = kind(*given)
                    for sink in sinks:
                        sink.take(index, op)
        except KvsanHazard:
            raise
        except Exception as error:
            self._queue.clear()
            self._count = self._worked
            self.fault(said(line), error)

    def _fields(self, line: Line) -> tuple[type[Op], tuple[Any, ...]]:
        """A line that waited as a kind of op and its fields."""
        return KINDS[line[0]], tuple(line[1:])

    def _hear(self, line: Line) -> None:
        """What stands among the lines and is none."""
        if line[0] == TOLD:
            _, name, message = line
            self._touched[name] = self._followers[name].feed(message)
        elif line[0] == SETTLED:
            _, index, done = line
            self.settle(self._out.pop(index), done=done)
        elif self.on_thread_end is not None:
            self.on_thread_end(line[1])

    def _held_elsewhere(self, index: int, line: Line) -> Held:
        """A blocking call of the engine's process that was out when its line was handed over, or had failed."""
        _, *given, done = line
        held = Held(index, tuple(given), done)
        if done is None:
            self._out[index] = held
        return held

    def _hand_on(self, held: Held) -> None:
        op, done = held.op, held.done
        if done:  # it has returned meanwhile
            for sink in self._sinks:
                sink.take(held.index, op)
            return
        held.told = True
        for sink in self._sinks:
            sink.hold(held.index, op)
        if done is False:
            failed = nothing(held.index, op)
            for sink in self._sinks:
                sink.settle(held.index, failed)

    def _ended(self) -> None:
        """Threads and events that are gone: they end anywhere, so it is only noted there. No line names them again."""
        while self._threads.dead:
            self._queue.append((GONE, self._threads.dead.popleft()))
        if not self._dead_events or self.drop_events():
            return
        by, now = self._threads.name(), self.now()
        for name in self._events.take_dead():
            self._queue.append((DROP, by, name, now))
            self._count += 1

    def _declare(self, name: str, stream: Stream) -> None:
        self.settle_up()
        for hearer in self._hearers:
            hearer.stream(name, stream)
