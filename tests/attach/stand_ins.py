"""Simulated streams and events as tests of the hooks want them: what `attach.torch` hooks where there is no GPU."""

from __future__ import annotations

from typing import Any

from kvsan.checker.attach.torch import Surface
from kvsan.checker.testing.cuda import SimulatedCuda
from kvsan.checker.testing.streams import SimulatedEvent, SimulatedStream
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


class World(SimulatedCuda):
    """Simulated devices whose streams are made by handle, whose events are done unless a test says otherwise, and whose
    every call reaches the driver (`call`), so that a test can see it, or let it fail.
    """

    def __init__(self) -> None:
        super().__init__(devices=16, choose=lambda: True)
        world = self

        class Stream(SimulatedStream):
            """Made by handle."""

            _cuda = world

            def __init__(self, handle: int = 0, device: int = 0, **given: Any) -> None:
                super().__init__(**{"stream_id": handle, "device_index": device} | given)
                self.cuda_stream = handle

            def query(self) -> bool:
                return True

        class Event(SimulatedEvent):
            """Always asks the driver."""

            _cuda = world
            done = True

            def wait(self, stream: Any = None) -> None:
                world.call()

            def record(self, stream: Any = None) -> None:
                world.call()

            def query(self) -> bool:
                world.call()
                return self.done

            def synchronize(self) -> None:
                world.call()

            def elapsed_time(self, end_event: Any) -> float:
                world.call()
                return 1.0

        self.Stream, self.Event = Stream, Event
        self.Graph: Any = None
        self.default = Stream(0)
        self.on = self.stream

    def surface(self, **more: Any) -> Surface:
        return Surface(
            events=(self.Event,),
            streams=(self.Stream,),
            synchronize=((self, "synchronize"),),
            current_stream=self.current_stream,
            **more,
        )
