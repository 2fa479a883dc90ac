"""A device that does nothing, for looking at what stands around it. `calls` has what it was asked for."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from kvsan.runtime.device import Copy, DeviceError, Ids, Kernel


class NullHost:
    """A `Host`. `done` is what a query answers; `refuse` is raised by the next call that can fail."""

    def __init__(self, name: str, device: NullDevice) -> None:
        self.name, self.device = name, device

    def _note(self, *call: Any) -> None:
        if self.device.refuse is not None:
            error, self.device.refuse = self.device.refuse, None
            raise error
        if self.device.calls is not None:
            self.device.calls.append((self.name, *call))

    def record(self, stream: str, event: str) -> None:
        self._note("record", stream, event)

    def wait(self, stream: str, event: str) -> None:
        self._note("wait", stream, event)

    def query(self, event: str) -> bool:
        self._note("query", event)
        return self.device.done

    def sync(self, event: str) -> None:
        self.device.blocked()
        self._note("sync", event)

    def drop(self, event: str) -> None:
        self._note("drop", event)

    def copy(self, stream: str, copy: Copy) -> None:
        self._note("copy", stream, copy)

    def launch(self, stream: str, kernel: Kernel) -> None:
        for part in kernel.parts:
            part()
        self._note("launch", stream, kernel)

    def work(self, kernel: Kernel) -> None:
        self._note("work", kernel)

    def put(self, queue: str, item: Any) -> None:
        self._note("put", queue)
        self.device.queues[queue].append(item)

    def get(self, queue: str) -> Any:
        self._note("get", queue)
        return self.device.queues[queue].popleft() if self.device.queues[queue] else None

    def alloc(self, pool: str, blocks: Ids) -> None:
        self._note("alloc", pool)

    def free(self, pool: str, blocks: Ids) -> None:
        self._note("free", pool)

    def touch(self, pool: str, blocks: Ids) -> None:
        self._note("touch", pool)

    def plan(self, pool: str, blocks: Ids, work: str) -> None:
        self._note("plan", pool)


class NullDevice:
    """A `Device`. `keep=False`: it keeps no list of its calls (a benchmark's)."""

    name = "nothing"

    def __init__(self, *, keep: bool = True) -> None:
        self.calls: list[tuple[Any, ...]] | None = [] if keep else None
        self.queues: dict[str, deque[Any]] = defaultdict(deque)
        self.done = True
        self.refuse: Exception | None = None
        self.blocked: Callable[[], None] = lambda: None
        self.hosts: dict[str, NullHost] = {}
        self.turn: list[Callable[[], bool]] = []

    def memory(self, pool: str, shape: tuple[int, ...], *, host: bool) -> Any:
        return np.zeros(shape, np.int64)

    def tensor(self, shape: tuple[int, ...], *, host: bool) -> Any:
        return np.zeros(shape, np.int64)

    def host(self, name: str) -> NullHost:
        return self.hosts.setdefault(name, NullHost(name, self))

    def stream(self, name: str, *, side: bool) -> None:
        pass

    def thread(self, name: str, turn: Callable[[], bool]) -> None:
        self.turn.append(turn)

    def turns(self) -> None:
        for turn in self.turn:
            turn()

    def close(self) -> None:
        pass


__all__ = ["DeviceError", "NullDevice", "NullHost"]
