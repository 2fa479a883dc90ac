"""A device that runs nothing: each call becomes an op of `kvsan.model.ops` and goes to whoever listens.

What the device would do and when is not decided here, because nobody needs it: the happens-before rules say of one
order of calls what every timing of it may do. A poll therefore answers true: a false one enables nothing in a design
(`kvsan.model.design.parts.Seen`), and true is possible as soon as the event may be asked.

Queues are the one thing with a content. `only` is the queue of which `get` hands something out, so that an explorer
says which job a thread takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from kvsan.model.ops import Alloc, Blocks, Drop, Free, Get, Op, Poll, Put, Record, Sync, Touch, Wait
from kvsan.runtime.device import Copy, Ids, Kernel

Entry = tuple[str, Any]
"""An entry of a queue: the token of its hand-off, and what was put."""


class NullHost:
    """One host thread of a `NullDevice`."""

    def __init__(self, device: NullDevice, name: str) -> None:
        self._device, self._name = device, name

    @property
    def name(self) -> str:
        return self._name

    def record(self, stream: str, event: str) -> None:
        self._device.tell(Record(self._name, stream, event))

    def wait(self, stream: str, event: str) -> None:
        self._device.tell(Wait(self._name, stream, event))

    def query(self, event: str) -> bool:
        self._device.tell(Poll(self._name, event, done=True))
        return True

    def sync(self, event: str) -> None:
        self._device.tell(Sync(self._name, event=event))

    def drop(self, event: str) -> None:
        self._device.tell(Drop(self._name, event))

    def copy(self, stream: str, copy: Copy) -> None:
        raise NotImplementedError("an explorer's works say themselves what they touch")

    def launch(self, stream: str, kernel: Kernel) -> None:
        raise NotImplementedError("an explorer's works say themselves what they touch")

    def work(self, kernel: Kernel) -> None:
        raise NotImplementedError("an explorer's works say themselves what they touch")

    def put(self, queue: str, item: Any) -> None:
        device = self._device
        device.numbers[queue] += 1
        token = f"{queue}#{device.numbers[queue]}"
        device.tell(Put(self._name, token))
        device.queues[queue] = (*device.queues.get(queue, ()), (token, item))

    def get(self, queue: str) -> Any:
        device = self._device
        waiting = device.queues.get(queue, ())
        if not waiting or (device.only is not None and queue != device.only):
            return None
        (token, item), rest = waiting[0], waiting[1:]
        device.queues[queue] = rest
        device.tell(Get(self._name, token))
        return item

    def alloc(self, pool: str, blocks: Ids) -> None:
        self._device.tell(Alloc(self._name, pool, Blocks.of(blocks.tolist())))

    def free(self, pool: str, blocks: Ids) -> None:
        self._device.tell(Free(self._name, pool, Blocks.of(blocks.tolist())))

    def touch(self, pool: str, blocks: Ids) -> None:
        self._device.tell(Touch(self._name, pool, Blocks.of(blocks.tolist())))

    def plan(self, pool: str, blocks: Ids, work: str) -> None:
        """An explorer keeps plans by work (`player.py`)."""


class NullDevice:
    """`tell` is who listens: it may be replaced between two calls."""

    def __init__(self, tell: Callable[[Op], None]) -> None:
        self.tell = tell
        self.queues: dict[str, tuple[Entry, ...]] = {}
        self.numbers: Counter[str] = Counter()
        self.only: str | None = None
        self._hosts: dict[str, NullHost] = {}

    @property
    def name(self) -> str:
        return "no device"

    def memory(self, pool: str, shape: tuple[int, ...], *, host: bool) -> Any:
        raise NotImplementedError("there is no memory here")

    def tensor(self, shape: tuple[int, ...], *, host: bool) -> Any:
        raise NotImplementedError("there is no memory here")

    def host(self, name: str) -> NullHost:
        made = self._hosts.get(name)
        if made is None:
            made = self._hosts[name] = NullHost(self, name)
        return made

    def stream(self, name: str, *, side: bool) -> None:
        """Streams need not be made."""

    def thread(self, name: str, turn: Callable[[], bool]) -> None:
        """Whose turn it is says the explorer."""

    def turns(self) -> None:
        """Likewise."""

    def close(self) -> None:
        """Nothing is in flight."""
