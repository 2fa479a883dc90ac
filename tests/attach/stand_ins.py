"""Streams and events of a few lines: what `attach.torch` hooks where there is no GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvsan.checker.attach.torch import Surface
from kvsan.model.ops import Op, Stream, Sync


class Log:
    """A `Sink` that keeps everything."""

    def __init__(self) -> None:
        self.pools: dict[str, int] = {}
        self.streams: dict[str, Stream] = {}
        self.ops: list[Op] = []
        self.held: list[int] = []

    def pool(self, name: str, blocks: int) -> None:
        self.pools[name] = blocks

    def stream(self, name: str, stream: Stream) -> None:
        self.streams[name] = stream

    def take(self, index: int, op: Op) -> None:
        assert index == len(self.ops)
        self.ops.append(op)

    def hold(self, index: int, op: Sync) -> None:
        self.take(index, op)
        self.held.append(index)

    def settle(self, index: int, op: Op) -> None:
        self.held.remove(index)
        self.ops[index] = op

    def shown(self) -> list[str]:
        """`record s0 e1`."""
        keys = ("on", "stream", "device", "event", "done", "token", "pool")
        return [
            " ".join(
                [type(op).__name__.lower(), *(str(v) for key in keys if (v := getattr(op, key, None)) is not None)]
            )
            for op in self.ops
        ]


class World:
    """A device of stand-ins: classes to be hooked, a current stream a thread, and what may fail."""

    def __init__(self) -> None:
        self.here = threading.local()
        self.fails: BaseException | None = None
        world = self

        class FakeStream:
            def __init__(self, handle: int, device: int = 0) -> None:
                self.cuda_stream, self.device_index = handle, device

            def wait_event(self, event: Any) -> None:
                event.wait(self)

            def wait_stream(self, other: Any) -> None:
                self.wait_event(other.record_event())

            def record_event(self, event: Any = None) -> Any:
                event = event or world.Event()
                event.record(self)
                return event

            def query(self) -> bool:
                return True

            def synchronize(self) -> None:
                world.call()

        class FakeEvent:
            done = True

            def record(self, stream: Any = None) -> None:
                world.call()

            def wait(self, stream: Any = None) -> None:
                world.call()

            def query(self) -> bool:
                world.call()
                return self.done

            def synchronize(self) -> None:
                world.call()

            def elapsed_time(self, end: Any) -> float:
                world.call()
                return 1.0

        self.Stream, self.Event = FakeStream, FakeEvent
        self.Graph: Any = None
        self.default = FakeStream(0)
        self.synchronize: Any = lambda device=None: world.call()

    def call(self) -> None:
        if self.fails is not None:
            raise self.fails

    def current_stream(self) -> Any:
        return getattr(self.here, "stream", self.default)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.here.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self.here.stream = before

    def surface(self, **more: Any) -> Surface:
        return Surface(
            events=(self.Event,),
            streams=(self.Stream,),
            synchronize=((self, "synchronize"),),
            current_stream=self.current_stream,
            **more,
        )
