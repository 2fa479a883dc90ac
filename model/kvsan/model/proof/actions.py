"""One thing that happens to one block, and where its engine stands between two of them.

A control state holds the block's facets, where each host thread stands in its program, and which steps the host
has seen. It holds nothing about order (`search` adds that). An action says what it issues, in the ops of
`kvsan.model.ops`, and in words.

With several host threads each call is an action of its own, because the other thread may act between two of
them; records in a row are one. With one thread a work goes with its waits and records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvsan.model.design import Assign, Design, Mark, Work
from kvsan.model.ops import Access, Blocks, Get, Op, Put, Record, Wait

TRACKED = 0
"""The id of the one block. Every other block is nobody's: it has no id, because nothing is asked about it."""

IDLE: Pc = (-1, 0, 0, 0)
Pc = tuple[int, int, int, int]
"""Where a thread stands: item, which of a group are done, which call of the item, and the item's mode (reads,
writes, or another block's)."""

READS, WRITES, OTHER = 1, 2, 4
UNLAUNCHED = 99  # the fence is a step that nobody has launched

OWN = "\0"
"""What the proof's own event names begin with, and no name in a design does (`design.check`)."""
LAST_USE, FENCE = f"{OWN}last_use", f"{OWN}fence"


class Control(NamedTuple):
    """A control state. `unseen` counts launched steps (bounded run-ahead only). `last_use` and `fence` are
    positions in them, 1 the oldest, 0 seen; unbounded, they are ranks."""

    block: tuple[str, ...]
    pcs: tuple[Pc, ...]
    unseen: int = 0
    last_use: int = 0
    fence: int = 0
    used: bool = False


@dataclass(frozen=True, slots=True)
class Touch:
    """The access of an action: which work, and what it does to the block."""

    work: str
    reads: bool
    writes: bool
    order: str = "stream"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that happens. `ops` is what it issues, in `kvsan.model.ops`; `copies` gives names to events
    already recorded (the fence *is* the newest step's event); `forgets` are names that are over. `sets` is what
    becomes of the block."""

    label: str
    thread: str
    kind: Literal["launch", "end", "see", "rule", "return", "work", "call"]
    of: str
    ops: tuple[Op, ...] = ()
    touch: Touch | None = None
    copies: tuple[tuple[str, str], ...] = ()
    forgets: tuple[str, ...] = ()
    sets: Assign = ()

    def __str__(self) -> str:
        return self.label

    def __hash__(self) -> int:
        return hash((self.label, self.kind, self.of))


Next = tuple[Action, Control]


def slot(position: int) -> str:
    """The name of the completion event of the unseen step at this position."""
    return f"{OWN}unseen step {position}"


Context = tuple[str, str]
"""Who can know of an access: ("stream" | "host" | "event" | "queue", name), or ("use", name), the completion event of
a step that the proof itself keeps track of."""


def event_context(event: str) -> Context:
    """The context of an event as an op names it."""
    return ("use", event.removeprefix(OWN)) if event.startswith(OWN) else ("event", event)


def event_name(context: Context) -> str | None:
    """What an op calls the event of this context; None if it is not an event's."""
    kind, name = context
    return name if kind == "event" else OWN + name if kind == "use" else None


Calls = list[tuple[str, tuple[Op, ...]]]


def mode_of(reads: bool, writes: bool) -> int:
    """The mode of a work that touches the block, or runs for others (0)."""
    return (READS if reads else 0) | (WRITES if writes else 0)


def words_of(mode: int) -> str:
    """What a work in this mode does to the block."""
    return {
        0: "(other blocks)",
        READS: "reads the block",
        WRITES: "writes the block",
        READS | WRITES: "reads and writes the block",
        OTHER: "of another block (its waits and records)",
    }[mode]


def calls(design: Design, work: Work, thread: str, mode: int) -> Calls:
    """What a work issues, call by call, each with a word. Queue entries and events of another block have no
    name here."""
    mine, shared = Blocks.of([TRACKED]), {event.name for event in design.events if event.per in ("design", "step")}
    out: Calls = []
    if work.takes is not None and mode != OTHER:
        out.append((f"{thread} takes the job", (Get(thread, work.takes),)))
    touches = bool(mode & (READS | WRITES))
    out += [
        (f"{work.on} waits for {event}", (Wait(thread, str(work.on), event),))
        for event in work.after
        if event in shared or touches
    ]
    access = Access(
        thread,
        work.on,
        reads={design.pool: mine} if mode & READS else {},
        writes={design.pool: mine} if mode & WRITES else {},
        label=work.name,
        order=work.order,
    )
    out.append(("runs", (access,)))
    records = [event for event in work.signals if event in shared or touches]
    if records:
        ops = tuple(Record(thread, str(work.on), event) for event in records)
        out.append((f"record {' and '.join(records)} on {work.on}", ops))
    if work.publishes is not None and mode != OTHER:
        out.append((f"{thread} publishes it", (Put(thread, work.publishes),)))
    return out


def takes_away(design: Design, work: Work) -> bool:
    """Whether another block's work records an event object that is also recorded on another stream: on one
    stream a later record only adds, on two it can replace what a waiter counts on."""
    for event in work.signals:
        if design.event(event).per == "design":
            on = {other.on for other in design.works() if event in other.signals}
            on |= {item.on for item in design.step if isinstance(item, Mark) and item.event == event}
            if len(on) > 1:
                return True
    return False
