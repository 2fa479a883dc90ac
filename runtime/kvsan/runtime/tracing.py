"""Debug mode's view of a device: a wrapper that does every call and logs it. The engine does not know that it is there.

`Traced` is a `Device` (`kvsan.runtime.device`) around another one. Where a line stands is `TRACE.md`'s:

- a call that returns at once is made and logged under the sink's lock, so that line order is call order. That holds for
  a whole launch too: no line of another thread stands between its first part and its own, which follows its last;
- a sync's line stands at its entry, no lock is held while it blocks, and it counts only if it returns;
- a call that raises leaves no line. The exception is a kernel that raises anything but `DeviceError`: some of its parts
  were issued, and what they touch would be missed;
- an access to no block leaves none.

A host's name is its design's: the main thread is `host` (`kvsan.model.design.MAIN`). A copy is one access with reads
and writes of its two pools, `batch`, labelled by its name; a kernel one access. Each item put in a queue is one token,
which travels with it. `planned` of a copy is the line at which `Host.plan` said that it was decided (`plans.py`).

With the extension (`lines.py`) a host is `_Host`, which is written in C: what `_TracedHost` does, and the line itself
too if the sink says where it goes (`straight`: a log, or a recorder's queue). Else all of it is done here.

Id sets stay the engine's arrays; the sink copies them. What a sink does with lines is its own: this module knows
neither the log (`binary.py`) nor the checker.

Relies on: streams that ignore the legacy default stream (CUDA's non-blocking ones); a stream of another kind is told to
the sink by whoever made it. Does not cover: memory that is touched past the device, devices that are closed (`close`
waits for all that was issued, and nothing follows).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from types import CodeType
from typing import Any, NamedTuple, Protocol

from kvsan.model.ops import Source
from kvsan.runtime.device import Copy, Device, DeviceError, Host, Ids, Kernel
from kvsan.runtime.lines import IN_C
from kvsan.runtime.plans import Plans

Sets = Mapping[str, Ids]


class Sink(Protocol):
    """Takes lines. All methods but `blocking` are called with `lock` held; none may change an array or keep it.
    Arguments are given by position, which is cheaper.

    A sink that fails says so by its own means and lets the engine go on. It may raise what is meant for the engine (a
    checker that halts it), once it has taken the line.
    """

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Reentrant."""

    def pool(self, name: str, blocks: int) -> None: ...

    def stream(self, name: str) -> str:
        """The name by which lines call it."""

    def mark(self) -> int | None:
        """The number of the latest line; `None` before the first."""

    def access(
        self,
        label: str,
        by: str,
        on: str | None,
        reads: Sets,
        writes: Sets,
        order: Source = "stream",
        batch: bool = False,
        planned: int | None = None,
        step: int | None = None,
        site: str | None = None,
    ) -> Any:
        """Sets without ids are left out; without any there is no line."""

    def copy(
        self,
        label: str,
        by: str,
        on: str,
        source: str,
        sources: Ids,
        target: str,
        targets: Ids,
        order: Source,
        planned: int | None,
        step: int | None,
        site: str | None,
    ) -> None:
        """An access, batch, that reads one pool and writes another, of as many blocks: at least one."""

    def record(self, on: str, event: str, by: str) -> None: ...

    def wait(self, on: str, event: str, by: str) -> None: ...

    def poll(self, event: str, done: bool, by: str) -> None: ...

    def blocking(self, event: str, by: str) -> AbstractContextManager[Any]:
        """Around a call that blocks."""

    def drop(self, event: str, by: str) -> None: ...

    def put(self, token: str, by: str) -> None: ...

    def get(self, token: str, by: str) -> None: ...

    def alloc(self, pool: str, blocks: Ids, by: str) -> None: ...

    def free(self, pool: str, blocks: Ids, by: str) -> None: ...

    def touch(self, pool: str, blocks: Ids, by: str) -> None: ...


class Parcel(NamedTuple):
    """What goes through the device's queue in place of an item."""

    token: str
    item: Any


class Traced:
    """A `Device`. `prefix` is put before every name, where one sink has several devices; `suffix` behind every token,
    where several processes' logs are to be merged. `sites`: with each access the place in the engine's code (it costs
    about a microsecond).
    """

    def __init__(self, device: Device, sink: Sink, *, sites: bool = False, prefix: str = "", suffix: str = "") -> None:
        self.inner = device
        self.sink = sink
        self.prefix, self.suffix = prefix, suffix
        self.plans = Plans()
        self.site = _site if sites else None
        self.streams: dict[str, str] = {}
        self._hosts: dict[str, Host] = {}
        self._tokens = 0

    @property
    def name(self) -> str:
        return self.inner.name

    def memory(self, pool: str, shape: tuple[int, ...], *, host: bool) -> Any:
        with self.sink.lock:
            made = self.inner.memory(pool, shape, host=host)
            blocks = shape[1] if len(shape) > 1 else shape[0]
            self.sink.pool(self.prefix + pool, blocks)
            self.plans.pool(pool, blocks)
            return made

    def tensor(self, shape: tuple[int, ...], *, host: bool) -> Any:
        return self.inner.tensor(shape, host=host)

    def host(self, name: str) -> Host:
        found = self._hosts.get(name)
        if found is None:
            with self.sink.lock:
                found = self._hosts.setdefault(name, _host(self, name))
        return found

    def stream(self, name: str, *, side: bool) -> None:
        with self.sink.lock:
            self.inner.stream(name, side=side)
            self.streams[name] = self.sink.stream(self.prefix + name)

    def thread(self, name: str, turn: Callable[[], bool]) -> None:
        self.inner.thread(name, turn)

    def turns(self) -> None:
        self.inner.turns()

    def close(self) -> None:
        self.inner.close()

    def token(self, queue: str) -> str:
        """A name that no other item's token has. Under the lock."""
        self._tokens += 1
        return f"{self.prefix}{queue}#{self._tokens}{self.suffix}"


class _TracedHost:
    """A `Host`."""

    __slots__ = ("_by", "_device", "_host", "_plans", "_prefix", "_sink", "_site", "_streams")

    def __init__(self, device: Traced, name: str) -> None:
        self._device, self._host, self._by = device, device.inner.host(name), device.prefix + name
        self._sink, self._plans, self._prefix = device.sink, device.plans, device.prefix
        self._site, self._streams = device.site, device.streams

    @property
    def name(self) -> str:
        return self._host.name

    # ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def record(self, stream: str, event: str) -> None:
        sink = self._sink
        with sink.lock:
            self._host.record(stream, event)
            sink.record(self._streams[stream], self._prefix + event, self._by)

    def wait(self, stream: str, event: str) -> None:
        sink = self._sink
        with sink.lock:
            self._host.wait(stream, event)
            sink.wait(self._streams[stream], self._prefix + event, self._by)

    def query(self, event: str) -> bool:
        sink = self._sink
        with sink.lock:
            done = self._host.query(event)
            sink.poll(self._prefix + event, done, self._by)
        return done

    def sync(self, event: str) -> None:
        with self._sink.blocking(self._prefix + event, self._by):
            self._host.sync(event)

    def drop(self, event: str) -> None:
        sink = self._sink
        with sink.lock:
            self._host.drop(event)
            sink.drop(self._prefix + event, self._by)

    def put(self, queue: str, item: Any) -> None:
        sink = self._sink
        with sink.lock:
            token = self._device.token(queue)
            self._host.put(queue, Parcel(token, item))
            sink.put(token, self._by)

    def get(self, queue: str) -> Any:
        sink = self._sink
        with sink.lock:
            found = self._host.get(queue)
            if type(found) is not Parcel:  # nothing, or an item that was put before anybody looked
                return found
            sink.get(found.token, self._by)
        return found.item

    # ── accesses ──────────────────────────────────────────────────────────────────────────────────────────────────

    def copy(self, stream: str, copy: Copy) -> None:
        with self._sink.lock:
            self._host.copy(stream, copy)
            if len(copy.targets):
                self._copied(stream, copy)

    def _copied(self, stream: str, copy: Copy) -> None:
        """Its lines."""
        sink, prefix = self._sink, self._prefix
        site = self._site() if self._site is not None else None
        for planned, sources, targets in self._plans.of(copy):
            sink.copy(
                copy.name,
                self._by,
                self._streams[stream],
                prefix + copy.source,
                sources,
                prefix + copy.target,
                targets,
                copy.order,
                planned,
                copy.step,
                site,
            )

    def launch(self, stream: str, kernel: Kernel) -> None:
        with self._sink.lock:
            try:
                self._host.launch(stream, kernel)
            except DeviceError:
                raise
            except BaseException:
                self._kernel(self._streams[stream], kernel)
                raise
            self._kernel(self._streams[stream], kernel)

    def work(self, kernel: Kernel) -> None:
        with self._sink.lock:
            try:
                self._host.work(kernel)
            except DeviceError:
                raise
            except BaseException:
                self._kernel(None, kernel)
                raise
            self._kernel(None, kernel)

    def _kernel(self, on: str | None, kernel: Kernel) -> None:
        reads, writes, prefix = kernel.reads, kernel.writes, self._prefix
        if prefix:
            reads = {prefix + pool: ids for pool, ids in reads.items()}
            writes = {prefix + pool: ids for pool, ids in writes.items()}
        site = self._site() if self._site is not None else None
        self._sink.access(kernel.name, self._by, on, reads, writes, "stream", False, None, kernel.step, site)

    # ── lives ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def alloc(self, pool: str, blocks: Ids) -> None:
        sink = self._sink
        with sink.lock:
            self._host.alloc(pool, blocks)
            if len(blocks):
                sink.alloc(self._prefix + pool, blocks, self._by)
                self._plans.alloc(pool, blocks, sink.mark())

    def free(self, pool: str, blocks: Ids) -> None:
        sink = self._sink
        with sink.lock:
            self._host.free(pool, blocks)
            if len(blocks):
                sink.free(self._prefix + pool, blocks, self._by)

    def touch(self, pool: str, blocks: Ids) -> None:
        sink = self._sink
        with sink.lock:
            self._host.touch(pool, blocks)
            if len(blocks):
                sink.touch(self._prefix + pool, blocks, self._by)

    def plan(self, pool: str, blocks: Ids, work: str) -> None:
        with self._sink.lock:
            self._host.plan(pool, blocks, work)
            if len(blocks):
                self._plans.decide(pool, blocks, work, self._sink.mark())


if IN_C is not None:

    class _Host(IN_C.Host):  # type: ignore[misc]
        """The same in C, but for this."""

        __slots__ = ()

        name = _TracedHost.name
        put, get, work = _TracedHost.put, _TracedHost.get, _TracedHost.work
        _copied, _kernel = _TracedHost._copied, _TracedHost._kernel


def _host(device: Traced, name: str) -> Host:
    """The host thread of that name, traced."""
    if IN_C is None:
        return _TracedHost(device, name)
    sink, plans = device.sink, device.plans
    inner, by, straight = device.inner.host(name), device.prefix + name, getattr(sink, "straight", None)
    made: Host = _Host(
        device, inner, by, sink, straight, plans, plans.pools, device.prefix, device.site, device.streams
    )
    return made


_places: dict[tuple[CodeType, int], str] = {}


def _site() -> str | None:
    """Where the engine's code made the call: the first frame that is not of this file."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__:
        if frame.f_back is None:
            return None
        frame = frame.f_back
    key = (frame.f_code, frame.f_lineno)
    found = _places.get(key)
    if found is None:
        parts = frame.f_code.co_filename.rsplit("/", 2)
        found = _places[key] = f"{'/'.join(parts[-2:])}:{frame.f_lineno}"
    return found


class Tee:
    """Several sinks as one. Line numbers are the first one's: all have to be fresh. One that may raise stands last."""

    def __init__(self, first: Sink, *others: Sink) -> None:
        self._first, self._all = first, (first, *others)

    @property
    def lock(self) -> AbstractContextManager[Any]:
        return self._first.lock

    def mark(self) -> int | None:
        return self._first.mark()

    def stream(self, name: str) -> str:
        first, *_ = [sink.stream(name) for sink in self._all]
        return first

    def blocking(self, event: str, by: str) -> AbstractContextManager[Any]:
        return _Blocking(self.lock, [sink.blocking(event, by) for sink in self._all])

    def pool(self, name: str, blocks: int) -> None:
        for sink in self._all:
            sink.pool(name, blocks)

    def access(self, label: str, by: str, on: str | None, reads: Sets, writes: Sets, *given: Any) -> None:
        for sink in self._all:
            sink.access(label, by, on, reads, writes, *given)

    def copy(self, label: str, by: str, on: str, source: str, sources: Ids, target: str, *given: Any) -> None:
        for sink in self._all:
            sink.copy(label, by, on, source, sources, target, *given)

    def record(self, on: str, event: str, by: str) -> None:
        for sink in self._all:
            sink.record(on, event, by)

    def wait(self, on: str, event: str, by: str) -> None:
        for sink in self._all:
            sink.wait(on, event, by)

    def poll(self, event: str, done: bool, by: str) -> None:
        for sink in self._all:
            sink.poll(event, done, by)

    def drop(self, event: str, by: str) -> None:
        for sink in self._all:
            sink.drop(event, by)

    def put(self, token: str, by: str) -> None:
        for sink in self._all:
            sink.put(token, by)

    def get(self, token: str, by: str) -> None:
        for sink in self._all:
            sink.get(token, by)

    def alloc(self, pool: str, blocks: Ids, by: str) -> None:
        for sink in self._all:
            sink.alloc(pool, blocks, by)

    def free(self, pool: str, blocks: Ids, by: str) -> None:
        for sink in self._all:
            sink.free(pool, blocks, by)

    def touch(self, pool: str, blocks: Ids, by: str) -> None:
        for sink in self._all:
            sink.touch(pool, blocks, by)


class _Blocking:
    """All sinks' lines of a blocking call, entered at once so that their numbers agree."""

    def __init__(self, lock: AbstractContextManager[Any], parts: list[AbstractContextManager[Any]]) -> None:
        self._lock, self._parts, self._stack = lock, parts, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            for part in self._parts:
                self._stack.enter_context(part)

    def __exit__(self, *error: Any) -> None:
        with self._lock:
            self._stack.__exit__(*error)
