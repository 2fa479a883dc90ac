"""A device that does everything at once, in the order in which it is asked: no stream is ever behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from kvsan.runtime.device import Copy, Ids, Kernel


class Immediate:
    """`calls` is what was issued, as words."""

    name = "immediate"

    def __init__(self) -> None:
        self.pools: dict[str, Any] = {}
        self.calls: list[tuple[str, ...]] = []
        self.queues: dict[str, deque[Any]] = {}
        self.work_of: list[Callable[[], bool]] = []

    def memory(self, pool: str, shape: tuple[int, ...], *, host: bool) -> Any:
        self.pools[pool] = torch.zeros(shape, dtype=torch.int64)
        return self.pools[pool]

    def tensor(self, shape: tuple[int, ...], *, host: bool) -> Any:
        return torch.zeros(shape, dtype=torch.int64)

    def host(self, name: str) -> ImmediateHost:
        return ImmediateHost(self, name)

    def stream(self, name: str, *, side: bool) -> None:
        self.calls.append(("stream", name))

    def thread(self, name: str, turn: Callable[[], bool]) -> None:
        self.work_of.append(turn)

    def turns(self) -> None:
        for turn in self.work_of:
            while turn():
                pass

    def close(self) -> None:
        pass


class ImmediateHost:
    """Its host threads."""

    def __init__(self, device: Immediate, name: str) -> None:
        self.device, self.name = device, name

    def record(self, stream: str, event: str) -> None:
        self.device.calls.append(("record", stream, event))

    def wait(self, stream: str, event: str) -> None:
        self.device.calls.append(("wait", stream, event))

    def query(self, event: str) -> bool:
        return True

    def sync(self, event: str) -> None:
        pass

    def drop(self, event: str) -> None:
        self.device.calls.append(("drop", event))

    def copy(self, stream: str, copy: Copy) -> None:
        self.device.calls.append(("copy", stream, copy.name))
        pools = self.device.pools
        pools[copy.target][:, copy.targets] = pools[copy.source][:, copy.sources]

    def launch(self, stream: str, kernel: Kernel) -> None:
        self.device.calls.append(("launch", stream, kernel.name))
        for part in kernel.parts:
            part()

    def work(self, kernel: Kernel) -> None:
        self.launch(self.name, kernel)

    def put(self, queue: str, item: Any) -> None:
        self.device.queues.setdefault(queue, deque()).append(item)

    def get(self, queue: str) -> Any:
        waiting = self.device.queues.get(queue)
        return waiting.popleft() if waiting else None

    def alloc(self, pool: str, blocks: Ids) -> None:
        pass

    def free(self, pool: str, blocks: Ids) -> None:
        pass

    def touch(self, pool: str, blocks: Ids) -> None:
        pass

    def plan(self, pool: str, blocks: Ids, work: str) -> None:
        pass
