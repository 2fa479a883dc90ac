"""The parts of a design: streams' work, records, jobs, rules, and the edges between them. Frozen data, no
decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from kvsan.model.design.guards import Assign, DesignError, Guard
from kvsan.model.ops import Source

MAIN = "host"
"""The thread that runs the scheduler's rules and launches the steps."""

ANY: Literal["any"] = "any"

Per = Literal["design", "block", "transfer", "step"]
"""How many event objects a name stands for: one that is re-recorded, one a block, a fresh one a transfer, one a
step."""


class Claim(StrEnum):
    """What a design says of itself. A claim that does not hold refutes it."""

    RACE_FREE = "race-free"
    RIGHT_GENERATION = "right generation"
    PROGRESS = "progress"
    CLOSED_PROGRESS = "progress without other requests"
    NO_VACUOUS_WAIT = "no vacuous wait"
    HOST_QUIESCENT = "host-quiescent"


class Fence(StrEnum):
    """A step whose completion the host must have seen: the newest launched, the last that used the block, or the next
    one to be launched (which nobody may ever launch)."""

    NEWEST = "newest"
    LAST_USE = "last_use"
    NEXT = "next_step"


@dataclass(frozen=True, slots=True)
class Seen:
    """A host poll of an event, or the end of a blocking wait for it. A false poll enables nothing in this
    language."""

    event: str

    def __invert__(self) -> Seen:
        raise DesignError(f"~seen({self.event}): a rule cannot ask that something is *not* complete; that it was"
                          " observed incomplete orders nothing and the proof would have to guess it")  # fmt: skip

    def __str__(self) -> str:
        return f"seen({self.event})"


@dataclass(frozen=True, slots=True)
class Got:
    """The thread has taken the entry from a queue (a completion list) that another thread put there."""

    queue: str

    def __str__(self) -> str:
        return f"got({self.queue})"


@dataclass(frozen=True, slots=True)
class Retired:
    """The host has seen the completion of the step that the fence names."""

    fence: Fence

    def __str__(self) -> str:
        return f"retired({self.fence})"


Need = Seen | Got | Retired


@dataclass(frozen=True, slots=True)
class Event:
    """One event name and how many objects it stands for."""

    name: str
    per: Per = "design"


@dataclass(frozen=True, slots=True)
class StreamOf:
    """A stream, or with `waits=False` an agent such as a NIC that runs in order but cannot wait for an event."""

    name: str
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Work:
    """Device work on stream `on` (or by the thread itself, `on=None`), and what it does to the block.

    `every_step`: it runs in each step, for other blocks if not for this one (a forward). Otherwise it runs when
    one of its guards holds. `after` are device waits before it, `signals` records after it. `then` applies when
    it touches the block.
    """

    name: str
    on: str | None
    reads: Guard | None = None
    writes: Guard | None = None
    then: Assign = ()
    after: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    order: Source = "stream"
    every_step: bool = False
    takes: str | None = None
    publishes: str | None = None
    group: int | None = None

    def mode(self, block: Mapping[str, str]) -> tuple[bool, bool]:
        """Whether it reads and whether it writes a block with these facet values."""
        return (
            self.reads is not None and self.reads.holds(block),
            self.writes is not None and self.writes.holds(block),
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """A record at this point of the step, with no work of its own."""

    on: str
    event: str


@dataclass(frozen=True, slots=True)
class Block:
    """The thread blocks for an event if the guard holds (always if there is none). No event: the edge was taken
    out."""

    name: str
    event: str | None
    when: Guard | None = None
    then: Assign = ()


@dataclass(frozen=True, slots=True)
class Submit:
    """A job goes in a queue. `creates` names events whose fresh objects a poller can already see from here on."""

    name: str
    queue: str
    when: Guard
    then: Assign = ()
    creates: tuple[str, ...] = ()
    group: int | None = None


Item = Work | Mark | Block | Submit


@dataclass(frozen=True, slots=True)
class Thread:
    """A further host thread: which jobs it takes, in any order and at any time."""

    name: str
    jobs: tuple[Work, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """What the scheduler may do between steps. `free`: at once (None), or held until the fence is seen.
    `keeps`: a free block is taken back with its content, the same generation. `records`: events recorded on a
    stream at that moment."""

    name: str
    when: Guard
    then: Assign
    needs: tuple[Need, ...] = ()
    free: Retired | None = None
    keeps: bool = False
    records: tuple[tuple[str, str], ...] = ()
    cancels: tuple[str, ...] = ()


class EdgeKind(StrEnum):
    """A device wait, what a rule (or a blocking step item) needs, or how long a free is held. The last two can be
    put in and are not listed among a design's edges: a copy that gives its source order away reads in stream order
    again, and a block is handed out only while a facet has a value."""

    WAIT = "after"
    NEED = "needs"
    FREE = "free"
    ORDER = "order"
    PIN = "while"


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """One ordering decision. `of` is an event (a device wait, a poll), a queue, or a fence; for a pin `facet=value`,
    and `at` is "free"."""

    kind: EdgeKind
    at: str
    of: str

    @property
    def name(self) -> str:
        if self.kind is EdgeKind.WAIT:
            return f"{self.at}.after({self.of})"
        return f"{self.at} {self.kind} {self.of}" if self.kind is EdgeKind.PIN else f"{self.at}: {self.kind}={self.of}"

    def __str__(self) -> str:
        return self.name


def need_of(text: str) -> Need:
    """Reads `seen(load_done)`, `got(jobs)` or `retired(last_use)`."""
    kind, _, rest = text.removesuffix(")").partition("(")
    if kind == "seen":
        return Seen(rest)
    if kind == "got":
        return Got(rest)
    if kind == "retired" and rest in tuple(Fence):
        return Retired(Fence(rest))
    raise DesignError(f"{text!r} is nothing to need; write seen(EVENT), got(QUEUE) or retired({' | '.join(Fence)})")
