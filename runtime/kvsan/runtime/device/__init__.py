"""What the engine asks of a machine: memory, streams, events, batched copies, kernels. Two machines answer.

`Device` makes memory and hosts; a `Host` is one host thread's way of issuing. Streams and events are named, as in a
design (`kvsan.model.design`): the engine says `host.wait("load", "compute_done")` and a device knows which handle
that is. Every call returns at once but `sync`. What a call means for order is CUDA's (`docs/limits.md`, DESIGN.md):
a wait binds to the latest record at the call, an event never recorded is complete and orders nothing.

`cuda.py` has torch streams and events and the driver's batched copies; `simulated.py` runs on any CPU, in any order
that CUDA allows. Neither decides what is fenced: that is the design's, and `issue.py` says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvsan.model.ops import Source

Ids = npt.NDArray[np.int64]
"""Block ids of one pool, in the order in which they were asked for."""

Part = Callable[[], None]


class DeviceError(RuntimeError):
    """The device refused a call: nothing was issued, the stream stands as it stood. It may be tried again."""


class DeviceLostError(RuntimeError):
    """Work issued earlier failed, or a call half done: what the device holds is unknown. Nothing may be tried again;
    the message says what to do."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A batched copy: block `sources[i]` of pool `source` to block `targets[i]` of pool `target`, in no order among
    themselves. `order` is when the sources may be read (CUDA's `CUmemcpySrcAccessOrder`)."""

    name: str
    source: str
    sources: Ids
    target: str
    targets: Ids
    order: Source = "stream"
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """Work on blocks: what it reads and writes, pool by pool, and how it is done.

    `parts` run one after the other; a device may let other streams' work in between. Each part is a function that
    issues torch operations on the pools' tensors, on the stream that is current.
    """

    name: str
    reads: Mapping[str, Ids] = field(default_factory=dict)
    writes: Mapping[str, Ids] = field(default_factory=dict)
    parts: Sequence[Part] = ()
    step: int | None = None


class Host(Protocol):
    """One host thread. Every method issues in that thread's program order."""

    @property
    def name(self) -> str: ...

    def record(self, stream: str, event: str) -> None:
        """The event captures all that the stream holds; an earlier record is replaced."""

    def wait(self, stream: str, event: str) -> None:
        """Later work on the stream waits for the event's latest record at this call."""

    def query(self, event: str) -> bool:
        """Whether the event is complete. One that was never recorded is."""

    def sync(self, event: str) -> None:
        """Blocks the thread until the event is complete."""

    def drop(self, event: str) -> None:
        """The event is not needed any more; its handle may be used again."""

    def copy(self, stream: str, copy: Copy) -> None:
        """Raises `DeviceError` if the device refuses."""

    def launch(self, stream: str, kernel: Kernel) -> None:
        """Raises what the kernel's parts raise while they are issued."""

    def work(self, kernel: Kernel) -> None:
        """The host thread does it itself, at this point of its program."""

    def put(self, queue: str, item: Any) -> None:
        """Hands an item to whichever thread gets it."""

    def get(self, queue: str) -> Any:
        """The oldest item of the queue, `None` if there is none."""

    def alloc(self, pool: str, blocks: Ids) -> None:
        """Blocks were handed out with nothing in them. A fact for whoever looks; a device need do nothing."""

    def free(self, pool: str, blocks: Ids) -> None:
        """Blocks went back to their pool."""

    def touch(self, pool: str, blocks: Ids) -> None:
        """Free blocks were taken back with their content."""

    def plan(self, pool: str, blocks: Ids, work: str) -> None:
        """A copy of that name of these blocks was decided, and will be issued later."""


class Device(Protocol):
    """A machine."""

    @property
    def name(self) -> str:
        """For people: `simulated, seed 7` or the GPU's own name."""

    def memory(self, pool: str, shape: tuple[int, ...], *, host: bool) -> Any:
        """A tensor of 64-bit integers for the blocks of a pool, zeroed; pinned if it is the host's. The second
        dimension is the block: (layers, blocks, …).
        """

    def tensor(self, shape: tuple[int, ...], *, host: bool) -> Any:
        """A tensor of 64-bit integers that is no pool, zeroed; pinned if it is the host's."""

    def host(self, name: str) -> Host:
        """The host thread of that name, made at the first call."""

    def stream(self, name: str, *, side: bool) -> None:
        """Makes a stream; a side stream has the device's lowest priority (which orders nothing)."""

    def thread(self, name: str, turn: Callable[[], bool]) -> None:
        """A further host thread, which calls `turn` for ever; it returned whether there was something to do. Ends with
        `close`. What `turn` raises is raised by the next `turns` of the device."""

    def turns(self) -> None:
        """A point at which other host threads may act. Real threads need no leave; simulated ones act here."""

    def close(self) -> None:
        """Waits until everything issued is done, and ends the threads."""
