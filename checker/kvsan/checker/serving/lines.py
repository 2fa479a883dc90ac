"""The lines of a run on the simulated machine, kept in memory as the model's ops, and which op of the machine each is.

`Lines` is a `Sink` (`kvsan.runtime.tracing`). `numbers[i]` is the machine's number of the access that line i is; None
for a line that is no access. A copy may be several lines, and a kernel without blocks is none (`tracing.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from kvsan.checker.trace.header import Header
from kvsan.model.ops import (
    Access,
    Alloc,
    Blocks,
    Drop,
    Free,
    Get,
    Op,
    Poll,
    Put,
    Record,
    Source,
    Stream,
    Sync,
    Touch,
    Wait,
)
from kvsan.runtime.device import Ids
from kvsan.runtime.device.simulated import Simulated


def _blocks(ids: Ids) -> Blocks:
    return Blocks.of(ids.tolist())


class Lines:
    """Of one machine, which observes."""

    def __init__(self, device: Simulated) -> None:
        self._device = device
        self.ops: list[Op] = []
        self.numbers: list[int | None] = []
        self.pools: dict[str, int] = {}
        self.streams: dict[str, Stream] = {}

    @property
    def header(self) -> Header:
        """The trace's."""
        return Header(pools=dict(self.pools), streams=dict(self.streams))

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Simulated host threads take turns: there is nothing to lock."""
        return nullcontext()

    def pool(self, name: str, blocks: int) -> None:
        self.pools[name] = blocks

    def stream(self, name: str) -> str:
        self.streams[name] = Stream()
        return name

    def mark(self) -> int | None:
        return len(self.ops) - 1 if self.ops else None

    def _add(self, op: Op, number: int | None = None) -> None:
        self.ops.append(op)
        self.numbers.append(number)

    def access(
        self,
        label: str,
        by: str,
        on: str | None,
        reads: Mapping[str, Ids],
        writes: Mapping[str, Ids],
        order: Source = "stream",
        batch: bool = False,
        planned: int | None = None,
        step: int | None = None,
        site: str | None = None,
    ) -> None:
        read, written = ({pool: _blocks(ids) for pool, ids in side.items() if len(ids)} for side in (reads, writes))
        if read or written:
            made = Access(
                by, on, read, written, label=label, order=order, batch=batch, planned=planned, step=step, site=site
            )
            self._add(made, self._device.ops[-1].number)

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
        reads, writes = {source: sources}, {target: targets}
        self.access(label, by, on, reads, writes, order, True, planned, step, site)

    def record(self, on: str, event: str, by: str) -> None:
        self._add(Record(by, on, event))

    def wait(self, on: str, event: str, by: str) -> None:
        self._add(Wait(by, on, event))

    def poll(self, event: str, done: bool, by: str) -> None:
        self._add(Poll(by, event, done))

    @contextmanager
    def blocking(self, event: str, by: str) -> Iterator[None]:
        """No other line can stand between a sync's entry and its return: one thread acts at a time."""
        yield
        self._add(Sync(by, event=event))

    def drop(self, event: str, by: str) -> None:
        self._add(Drop(by, event))

    def put(self, token: str, by: str) -> None:
        self._add(Put(by, token))

    def get(self, token: str, by: str) -> None:
        self._add(Get(by, token))

    def alloc(self, pool: str, blocks: Ids, by: str) -> None:
        self._add(Alloc(by, pool, _blocks(blocks)))

    def free(self, pool: str, blocks: Ids, by: str) -> None:
        self._add(Free(by, pool, _blocks(blocks)))

    def touch(self, pool: str, blocks: Ids, by: str) -> None:
        self._add(Touch(by, pool, _blocks(blocks)))
