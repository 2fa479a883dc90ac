"""The alphabet: what a host thread can issue, as frozen values.

An op is one line of a trace (`TRACE.md`) and one call of an engine. It says what was issued, by which host thread, on
which stream; it says nothing of when the device ran it. Order is `kvsan.model.order`'s business, conflicts are
`kvsan.model.hazard`'s.

Not here: time (a trace's `t` is kept as provenance and decides nothing), sizes in bytes (a block is the unit of reuse),
and what a copy pairs with what (reads and writes are sets).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

Source = Literal["stream", "any", "call"]
"""When the source of an access may be read. The names are CUDA's `CUmemcpySrcAccessOrder`: in stream order, any time
between the call and the completion of the op, or before the call returns."""

Device = int | float | str
"""Any number or string, unique across processes."""

StreamKind = Literal["nonblocking", "blocking", "legacy", "per-thread"]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Block ids of one pool as half-open runs, in the order given.

    Runs and not ids, because engines hand out neighbours and a forward of ten thousand blocks is often a few slices.
    A batched copy may name a block twice (that is the `BATCH` hazard), so runs may overlap; `repeats` says whether.
    """

    runs: tuple[tuple[int, int], ...]
    repeats: bool = field(init=False)

    def __post_init__(self) -> None:
        end = 0
        for lo, hi in self.runs:  # the usual case, sorted runs, needs no copy
            if lo < end:
                break
            end = hi
        else:
            object.__setattr__(self, "repeats", False)
            return
        ordered = sorted(self.runs)
        repeats = any(b[0] < a[1] for a, b in pairwise(ordered))
        object.__setattr__(self, "repeats", repeats)

    @classmethod
    def parse(cls, text: str) -> Blocks:
        """Reads `"1-4,9"`: inclusive ranges, ids from 0. Raises `ValueError` that says what is wrong."""
        runs = []
        for part in text.split(",") if text else ():
            lo, dash, hi = part.partition("-")
            if not (lo.isdecimal() and lo.isascii()) or (dash and not (hi.isdecimal() and hi.isascii())):
                raise ValueError(f"{_clip(part)} is not a block id or a range of ids")
            if len(lo) > 18 or len(hi) > 18:
                raise ValueError(f"{_clip(part)} is too large for a block id")
            first = int(lo)
            last = int(hi) if dash else first
            if last < first:
                raise ValueError(f"{_clip(part)} runs backwards")
            runs.append((first, last + 1))
        return cls(tuple(runs))

    @classmethod
    def of(cls, ids: Iterable[int]) -> Blocks:
        """The runs of `ids`, kept in their order: `[3, 4, 7]` is `3-4,7`."""
        runs: list[tuple[int, int]] = []
        for i in ids:
            if runs and runs[-1][1] == i:
                runs[-1] = (runs[-1][0], i + 1)
            else:
                runs.append((int(i), int(i) + 1))
        return cls(tuple(runs))

    def __str__(self) -> str:
        return ",".join(str(lo) if hi == lo + 1 else f"{lo}-{hi - 1}" for lo, hi in self.runs)

    def __iter__(self) -> Iterator[int]:
        for lo, hi in self.runs:
            yield from range(lo, hi)

    def __len__(self) -> int:
        return sum(hi - lo for lo, hi in self.runs)

    def __contains__(self, block: int) -> bool:
        return any(lo <= block < hi for lo, hi in self.runs)

    @property
    def end(self) -> int:
        """One more than the largest id, 0 if there is none."""
        if not self.repeats and self.runs:
            return max(self.runs)[1]  # the last run of those that do not overlap
        return max((hi for _, hi in self.runs), default=0)


def _clip(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream: its device (unique across processes) and how it treats the legacy default stream of that device."""

    device: Device = 0
    kind: StreamKind = "nonblocking"


NOTHING: Mapping[str, Blocks] = {}


@dataclass(frozen=True, slots=True)
class Access:
    """Work that touches blocks: on stream `on`, or by the host thread itself if `on` is None.

    `reads` and `writes` map a pool to blocks. `order` is about the reads alone: writes are always in stream order.
    `batch` says that its parts have no order among themselves. `planned` is the index of the op at which the access was
    decided; `step`, `owner` and `site` (where in the engine's code) are provenance and decide nothing.
    """

    by: str
    on: str | None = None
    reads: Mapping[str, Blocks] = field(default_factory=lambda: NOTHING)
    writes: Mapping[str, Blocks] = field(default_factory=lambda: NOTHING)
    label: str = ""
    order: Source = "stream"
    batch: bool = False
    planned: int | None = None
    step: int | str | None = None
    owner: int | str | None = None
    site: str | None = None
    t: int | float | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """`cudaEventRecord`: the event captures all that the stream holds so far and forgets its earlier record."""

    by: str
    on: str
    event: str
    t: int | float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """`cudaStreamWaitEvent`: later work on the stream waits for the event's latest record at this call."""

    by: str
    on: str
    event: str
    t: int | float | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """The host thread blocked until an event, a stream or a device was done. Exactly one of the three is given."""

    by: str
    event: str | None = None
    stream: str | None = None
    device: Device | None = None
    t: int | float | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """`cudaEventQuery`: `done` is what it answered."""

    by: str
    event: str
    done: bool
    t: int | float | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """A host thread hands its knowledge on: a queue, a lock, a message, a completion list. A token is put once."""

    by: str
    token: str
    t: int | float | None = None


@dataclass(frozen=True, slots=True)
class Get:
    """The other end of a hand-off."""

    by: str
    token: str
    t: int | float | None = None


@dataclass(frozen=True, slots=True)
class Alloc:
    """Blocks are handed out: each starts a new generation."""

    by: str
    pool: str
    blocks: Blocks
    t: int | float | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """Blocks go back to their pool. Legal while work on them is in flight: what matters is who touches them next."""

    by: str
    pool: str
    blocks: Blocks
    t: int | float | None = None


@dataclass(frozen=True, slots=True)
class Touch:
    """Free blocks are taken back with their content (a prefix hit): the same generation lives on."""

    by: str
    pool: str
    blocks: Blocks
    t: int | float | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """The event is gone. Edges that it made stay."""

    by: str
    event: str
    t: int | float | None = None


Op = Access | Record | Wait | Sync | Poll | Put | Get | Alloc | Free | Touch | Drop
