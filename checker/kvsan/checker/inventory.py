"""What `kvsan info` finds in a trace, as values. `kvsan.checker.info` fills them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvsan.model.ops import Device


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """A host thread and the ops that it issued, by kind."""

    name: str
    ops: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StreamUse:
    """A stream, the ops on it by kind, and the host threads that issued them."""

    name: str
    device: Device
    kind: str
    declared: bool
    ops: Mapping[str, int]
    threads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolUse:
    """A pool: how many of its blocks were accessed, and how many handed out, taken back (`touch`) and freed in all."""

    name: str
    blocks: int
    accessed: int
    allocated: int
    touched: int
    freed: int


@dataclass(frozen=True, slots=True)
class Way:
    """One way to touch a pool: a stream `on`, or a host thread `by` itself.

    `named` counts a block once for each access, `blocks` once; None if there were too many to keep apart.
    """

    pool: str
    writes: bool
    on: str | None
    by: str | None
    label: str
    accesses: int
    named: int
    blocks: int | None


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits of a stream for events recorded on another; `recorded_on` is None for events without a record.

    `redundant` of them added no order that the stream did not have.
    """

    on: str
    recorded_on: str | None
    waits: int
    redundant: int


@dataclass(frozen=True, slots=True)
class Watches:
    """What a host thread learned of a stream's work: by blocking, by a query that said done; `pending`: not done yet.

    `recorded_on` is None for events without a record.
    """

    by: str
    recorded_on: str | None
    syncs: int
    done: int
    pending: int


@dataclass(frozen=True, slots=True)
class DeviceSyncs:
    """How often a host thread waited for all of a device."""

    by: str
    device: Device | None
    syncs: int


@dataclass(frozen=True, slots=True)
class Handoffs:
    """Hand-offs from one host thread to another; `giver` is None for what was put before logging began."""

    giver: str | None
    taker: str
    gets: int


@dataclass(frozen=True, slots=True)
class Survey:
    """What `kvsan info` says of a trace. `span`: nanoseconds from the least to the greatest `t`."""

    trace: str
    ops: int
    kinds: Mapping[str, int]
    span: float | None
    threads: tuple[ThreadUse, ...]
    streams: tuple[StreamUse, ...]
    pools: tuple[PoolUse, ...]
    ways: tuple[Way, ...]
    waits: tuple[Waits, ...]
    watches: tuple[Watches, ...]
    device_syncs: tuple[DeviceSyncs, ...]
    handoffs: tuple[Handoffs, ...]
    live_events: int
    open_tokens: int
    orders: Mapping[str, int]
    batches: int
    planned: int
    header: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """The JSON document of `kvsan info --format json`."""
        return {"kvsan_info": 1, **asdict(self)}
