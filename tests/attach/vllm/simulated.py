"""A device without a GPU: streams, events and a copy queue that move when a seed says so.

Host code that races does so on a CPU too: what matters is which of its calls come before which answers of the device.
A stream is a chain of nodes. Nothing moves by itself; whenever host code asks (a query) or blocks (a synchronize) a
seeded choice lets some streams go on, each node in its order and after the event it waits for. The copy thread is
vLLM's own; its queue hands it a job only when the seed says so, and waits until it comes back for the next, so that a
run is the same for the same seed.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

LEGACY = 0


class Chain:
    """The nodes of one stream. A node may wait for a place in another chain."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.issued = 0
        self.done = 0
        self.waits: dict[int, tuple[Chain, int]] = {}

    def add(self, after: tuple[Chain, int] | None = None) -> int:
        if after is not None:
            self.waits[self.issued] = after
        self.issued += 1
        return self.issued

    def ready(self) -> bool:
        if self.done >= self.issued:
            return False
        wait = self.waits.get(self.done)
        return wait is None or wait[0].done >= wait[1]

    def step(self) -> None:
        self.waits.pop(self.done, None)
        self.done += 1


class Device:
    """All streams, the seed, and the copy queue."""

    def __init__(self) -> None:
        self.chains: dict[int, Chain] = {LEGACY: Chain(LEGACY)}
        self.queues: list[SeededQueue] = []
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Before the engine starts, in the thread that will run it."""
        self.random = random.Random(seed)
        self.main = threading.current_thread()
        self.pace = self.random.uniform(0.2, 2.5)
        self.lag = self.random.uniform(0.1, 0.9)

    def new_chain(self) -> Chain:
        handle = 0x1000 + 0x10 * len(self.chains)
        self.chains[handle] = Chain(handle)
        return self.chains[handle]

    def drift(self) -> None:
        """The device goes on by some nodes, or by none."""
        for _ in range(int(self.random.expovariate(1.0) * self.pace)):
            ready = [chain for chain in self.chains.values() if chain.ready()]
            if not ready:
                return
            self.random.choice(ready).step()

    def finish(self, chain: Chain, place: int) -> None:
        """Goes on until this place is done, not further than the seed wants."""
        while chain.done < place:
            ready = [other for other in self.chains.values() if other.ready()]
            if not ready:
                raise RuntimeError(f"stream {chain.handle:#x} waits for work that nobody issued")
            if chain in ready and self.random.random() < 0.7:
                chain.step()
            else:
                self.random.choice(ready).step()

    def pump(self, *, all_of_it: bool = False) -> None:
        """Lets the copy thread take some of what is queued for it. Never where a lock is held that it may want: not
        in a query, which kvsan makes under its own.
        """
        if threading.current_thread() is not self.main:
            return
        for queue in self.queues:
            while queue.items and (all_of_it or self.random.random() > self.lag):
                queue.let_one()


class SeededQueue:
    """Stands in for `queue.SimpleQueue`: the consumer moves only in `let_one`, and the producer waits for it there."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.items: deque[Any] = deque()
        self._turn = threading.Condition()
        self._allowed = 0
        self._idle = False
        device.queues.append(self)

    def put(self, item: Any, *_: Any) -> None:
        self.items.append(item)
        if (item[2] if isinstance(item, tuple) and len(item) == 3 else item) is None:
            with self._turn:  # the word to stop, wrapped by kvsan or bare
                self._allowed += len(self.items)
                self._turn.notify_all()
            return
        self._device.pump()

    def get(self, *_: Any) -> Any:
        with self._turn:
            self._idle = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._allowed > 0)
            self._allowed -= 1
            return self.items.popleft()

    def let_one(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._idle, 10)
            self._idle = False
            self._allowed += 1
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._idle, 10)


def stand_ins(device: Device) -> dict[str, Any]:
    """Classes and functions with torch's names, on this device."""
    local = threading.local()

    class Stream:
        def __init__(self, device_index: Any = None, priority: int = 0, **_: Any) -> None:
            self.chain = device.new_chain()
            self.cuda_stream = self.chain.handle
            self.device_index = 0

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, -5

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def wait_stream(self, stream: Any) -> None:
            self.wait_event(stream.record_event())

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record(self)
            return event

        def query(self) -> bool:
            device.drift()
            return bool(self.chain.done >= self.chain.issued)

        def synchronize(self) -> None:
            device.finish(self.chain, self.chain.issued)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

        def __hash__(self) -> int:
            return hash(self.cuda_stream)

    class Event:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.place: tuple[Chain, int] | None = None

        def record(self, stream: Any = None) -> None:
            chain = (stream or current_stream()).chain
            self.place = (chain, chain.add())

        def wait(self, stream: Any = None) -> None:
            if self.place is not None:
                (stream or current_stream()).chain.add(self.place)

        def query(self) -> bool:
            device.drift()
            return self.place is None or self.place[0].done >= self.place[1]

        def synchronize(self) -> None:
            device.pump()
            if self.place is not None:
                device.finish(*self.place)

        def elapsed_time(self, end: Any) -> float:
            return 1.0

    default = Stream.__new__(Stream)
    default.chain, default.cuda_stream, default.device_index = device.chains[LEGACY], LEGACY, 0

    def current_stream(_: Any = None) -> Any:
        return getattr(local, "stream", default)

    def set_stream(stream: Any) -> None:
        local.stream = stream

    @contextlib.contextmanager
    def stream(other: Any) -> Iterator[None]:
        before = current_stream()
        set_stream(other)
        try:
            yield
        finally:
            set_stream(before)

    def synchronize(_: Any = None) -> None:
        device.pump(all_of_it=True)
        for chain in list(device.chains.values()):
            device.finish(chain, chain.issued)

    return {
        "Stream": Stream,
        "Event": Event,
        "current_stream": current_stream,
        "default_stream": lambda _=None: default,
        "set_stream": set_stream,
        "stream": stream,
        "synchronize": synchronize,
    }
