"""One engine whose watchers are swapped under it, so that debug modes are compared on the same memory and machine.

The engine is built on a plain device behind `Noted`, which notes the pools and streams that are made. Each mode that
watches has a sink that was told of the same ones. A switch changes, in the engine's parts, every attribute that holds
the device or one of its hosts: to the plain ones, or to those of a `kvsan.runtime.tracing.Traced` around them. It is a
new one at each switch, so that no mode lives with one place in memory, nor with plans that another mode saw the end of.

A watcher did not see what happened under the others. When its mode begins, the engine is between two steps, and the
main host waits for all that every stream holds, by events recorded there: for real and in the watcher's lines. So
whatever it missed lies before all that it will see. Then it is told which blocks were freed meanwhile (`free`) and
which are in use (`touch`, since what is in them was not seen). Not told are waits for events that it did not see
recorded, which order nothing and need not; and when copies that are pending were decided, so these copies have no
`planned` and their generation is not checked.

Relies on: parts of the engine keep devices and hosts in attributes, lists, dicts or tuples of `kvsan.runtime`'s objects
(tests/runtime/test_cost.py counts lines). Does not cover: designs with further host threads, whose items travel from
one mode to another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsan.checker.attach.core import BLOCKED, IDS_BYTES
from kvsan.checker.binaryfile import BinaryTrace
from kvsan.checker.session import Session
from kvsan.model.design import MAIN
from kvsan.runtime.binary import Log
from kvsan.runtime.tracing import Sink, Traced

EVENT = "switch"
"""The event by which a mode that begins waits for each stream."""


class Noted:
    """A `Device` that passes all on to another one and notes its pools, streams and hosts."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.pools: dict[str, tuple[tuple[int, ...], bool]] = {}
        self.streams: dict[str, bool] = {}
        self.hosts: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return str(self.inner.name)

    def memory(self, pool: str, shape: tuple[int, ...], *, host: bool) -> Any:
        self.pools[pool] = shape, host
        return self.inner.memory(pool, shape, host=host)

    def tensor(self, shape: tuple[int, ...], *, host: bool) -> Any:
        return self.inner.tensor(shape, host=host)

    def host(self, name: str) -> Any:
        found = self.inner.host(name)
        if self.hosts.setdefault(name, found) is not found:
            raise ValueError(f"the device makes host {name!r} anew at each call; accepted: one that keeps its hosts")
        return found

    def stream(self, name: str, *, side: bool) -> None:
        self.streams[name] = side
        self.inner.stream(name, side=side)

    def thread(self, name: str, turn: Callable[[], bool]) -> None:
        raise ValueError(f"the design has a host thread {name!r}; accepted: designs whose main thread does everything")

    def turns(self) -> None:
        self.inner.turns()

    def close(self) -> None:
        self.inner.close()

    def repeat(self, on: Any) -> None:
        """Makes the same pools and streams on another device."""
        for pool, (shape, host) in self.pools.items():
            on.memory(pool, shape, host=host)
        for stream, side in self.streams.items():
            on.stream(stream, side=side)


class Blank:
    """Stands in for the device while a watcher is told of its pools and streams."""

    def __init__(self, name: str) -> None:
        self.name = name

    def memory(self, pool: str, shape: tuple[int, ...], *, host: bool) -> None:
        """Nothing to do."""

    def stream(self, name: str, *, side: bool) -> None:
        """Nothing to do."""


class Nothing:
    """A `Sink` that does nothing, with the lock that every sink has: what `Traced` costs by itself."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def mark(self) -> None:
        return None

    def stream(self, name: str) -> str:
        return name

    def blocking(self, event: str, by: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def _ignore(self, *given: Any) -> None:
        """Nothing to do."""

    pool = access = copy = record = wait = poll = drop = put = get = alloc = free = touch = _ignore


class Rare:
    """A clock for what a watcher does now and then: a batch is handed over or worked off, a segment goes to its writer.

    `took`: seconds of each that was due, because so many lines or bytes had come (`filled`) or, for a log, because its
    time was up. `all`: seconds of all of them, forced ones too. Those of the session's close are not looked at.
    """

    def __init__(self, session: Session) -> None:
        self.took: list[float] = []
        self.all = 0.0
        self._written = 0.0
        self._recorder = session.recorder
        trace = session.trace if session.ops is not None else None
        self.log: Log | None = trace.log if isinstance(trace, BinaryTrace) else None
        if self.log is not None:
            self._time(self.log, "_turn")
        else:
            self._time(self._recorder, "settle_up")

    def _time(self, owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def timed(*given: Any) -> Any:
            due = self.log is not None or self.filled() >= 1
            began = time.perf_counter()
            try:
                return call(*given)
            finally:
                took = time.perf_counter() - began
                self.all += took
                if due:
                    self.took.append(took)

        setattr(owner, name, timed)

    def writer(self) -> float:
        """Seconds of processor time that the thread of the log has had."""
        thread = self.log._writer if self.log is not None else None
        if thread is None or thread.ident is None or not thread.is_alive():
            return self._written
        self._written = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        return self._written

    def filled(self) -> float:
        """What waits, as a share of what is handed on at once."""
        if self.log is not None:
            segment = self.log._segment
            return max(len(segment.lines) / self.log._most, segment.used / segment.size)
        recorder = self._recorder
        return max(recorder.waiting / min(BLOCKED, recorder.batch), recorder._size / IDS_BYTES)


class Watcher:
    """Who looks in one mode: nobody, a sink, or a session's sink."""

    def __init__(self, noted: Noted, *, sink: Sink | None = None, session: Session | None = None) -> None:
        self.session, self._noted = session, noted
        blank: Any = Blank(noted.name)
        traced: Any = session.watch(blank) if session is not None else Traced(blank, sink) if sink is not None else None
        if traced is not None:
            noted.repeat(traced)
        self._told = traced
        self.rare = Rare(session) if session is not None else None
        self.alive = {pool: np.ones(shape[1], np.bool_) for pool, (shape, _) in noted.pools.items()}
        """Which blocks are in use as far as it knows."""

    @property
    def looks(self) -> bool:
        return self._told is not None

    def device(self) -> Any:
        """What the engine has to hold."""
        if self._told is None:
            return self._noted.inner
        made = Traced(self._noted.inner, self._told.sink, suffix=self._told.suffix)
        made.streams.update(self._told.streams)
        for pool, (shape, _) in self._noted.pools.items():
            made.plans.pool(pool, shape[1])
        return made

    @property
    def lines(self) -> int:
        """How many it got so far; one without a session counts none."""
        if self.session is None:
            return 0
        return self.session.ops() if self.session.ops is not None else self.session.recorder.ops

    def settle(self) -> None:
        """Works off or hands over what waits: then none of it is done in another mode's time."""
        if self.session is None:
            return
        if self.session.ops is not None and self.session.trace is not None:
            self.session.trace.flush_now()
        else:
            self.session.recorder.settle_up()


class Switchboard:
    """An engine and its watchers by mode; `mode` is the one that is on, at first a mode in which nobody looks.

    `build` makes the engine on the device that it is given, `watchers` the watchers, once there is an engine.
    """

    def __init__(
        self, device: Any, build: Callable[[Any], Any], watchers: Callable[[Noted], dict[str, Watcher]]
    ) -> None:
        self.noted = Noted(device)
        self.engine = build(self.noted)
        self._places = list(_places(self.engine, self.noted))
        self.watchers = watchers(self.noted)
        self.mode = next(mode for mode, watcher in self.watchers.items() if not watcher.looks)
        self._put(device)

    @property
    def watcher(self) -> Watcher:
        return self.watchers[self.mode]

    def switch(self, mode: str) -> None:
        """Between two steps. Waits for the device; the lines of that wait with the others."""
        self.watcher.alive = self._alive()
        self.mode = mode
        device = self.watcher.device()
        self._put(device)
        host = device.host(MAIN)
        self.wait(host)
        if self.watcher.looks:
            for pool, now in self._alive().items():
                before = self.watcher.alive[pool]
                host.free(pool, np.flatnonzero(before & ~now))
                host.touch(pool, np.flatnonzero(now & ~before))

    def wait(self, host: Any) -> None:
        """The host waits for all that the streams hold."""
        for stream in self.noted.streams:
            host.record(stream, EVENT)
            host.sync(EVENT)
            host.drop(EVENT)

    def close(self) -> None:
        """Ends the engine, unwatched; sessions stay open."""
        for watcher in self.watchers.values():
            watcher.settle()
            if watcher.rare is not None:
                watcher.rare.writer()  # while it is there
        self._put(self.noted.inner)
        self.engine.close()

    def _alive(self) -> dict[str, npt.NDArray[np.bool_]]:
        return {pool.cells.pool: ~pool.cells.table.free[pool.cells.code] for pool, _ in self.engine.transfers.pools}

    def _put(self, device: Any) -> None:
        for holder, name, host in self._places:
            setattr(holder, name, device if host is None else device.host(host))


Place = tuple[Any, str, str | None]


def _places(engine: Any, noted: Noted) -> Iterator[Place]:
    """Every attribute that holds the device, or the host of that name."""
    hosts = {id(host): name for name, host in noted.hosts.items()}
    left, seen = [engine], {id(engine)}
    while left:
        one = left.pop()
        if isinstance(one, list | tuple | dict):
            inside: list[Any] = list(one.values()) if isinstance(one, dict) else list(one)
        else:
            inside = []
            for name, value in _attributes(one):
                if value is noted or id(value) in hosts:
                    yield one, name, None if value is noted else hosts[id(value)]
                else:
                    inside.append(value)
        for value in inside:
            if value is noted or id(value) in hosts:
                raise ValueError(f"a {type(one).__name__} holds the device or a host; accepted: attributes that do")
            mine = isinstance(value, list | tuple | dict) or type(value).__module__.startswith("kvsan.runtime")
            if mine and id(value) not in seen:
                seen.add(id(value))
                left.append(value)


def _attributes(one: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(one, "__dict__", {}).items()
    for kind in type(one).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(one, name):
                yield name, getattr(one, name)
