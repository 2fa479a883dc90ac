"""What the design's events would hold, and what the scheduler's thread has seen of them.

Where the design records an event, a `Snapshot` is taken of the past that the stream had in the *trace* right behind
the work that the record follows: the least that a record at that place captures. So "the trace has at least the order
of the design" is one comparison of pasts for each edge, and says so even if the trace's own event is another object,
or the order came by another road.

If the trace records the design's events under their names, the objects are held to their places besides: a snapshot
knows which objects were recorded for it, a wait must name one of them, and `seen` asks for a poll of one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsan.checker.conform.cells import NOBODY, Cell, get
from kvsan.checker.conform.facts import Past, covers
from kvsan.checker.conform.names import Names
from kvsan.model.design import MAIN, Design, Got, Need, Retired, Seen

Where = str | None
"""A stream of the design, or the scheduler's thread (None)."""


class RefusalError(Exception):
    """The trace is no run of the design: at which op, which rule, work or edge, and what was expected instead."""

    def __init__(self, op: int, at: str, expected: str) -> None:
        super().__init__(f"op {op}: {at}: {expected}")
        self.op, self.at, self.expected = op, at, expected


QUEUE = "queue "
"""What the mark of a queue entry begins with."""
DID = "did "
"""What the mark of a work begins with that was done in this step and leaves the block as due as it was."""


@dataclass(slots=True)
class Snapshot:
    """What an event holds in the design: the past, behind which op (-1: none yet), on which stream; `objects` of the
    trace that were recorded for it, with the op of their record. `named`: there must be one."""

    past: Past
    op: int
    on: Where
    event: str
    named: bool = False
    objects: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Entry:
    """A queue entry; `token`: what it was put as, None before."""

    queue: str
    token: str | None = None


class World:
    """What holds for all blocks at the op that is looked at."""

    def __init__(self, design: Design, names: Names) -> None:
        self.design, self.names = design, names
        self.per = {event.name: event.per for event in design.events}
        self.snapshots: list[Snapshot] = []
        self.now: dict[str, int] = {}
        """The snapshot of each event that is one object for all blocks."""
        self.dropped: set[str] = set()
        """Event objects that were given back."""
        self.last: dict[Where, tuple[Past, int]] = {}
        """What each stream knew behind its latest work, and which op that was."""
        self.main: Past = ()
        self.rules = 0
        """The rules that may have happened, as bits (`Blocks.bits`)."""
        self.steps: list[int] = []
        """The snapshot of each step's completion event; -1 until the step has come to it."""
        self.entries: list[Entry] = []
        """What threads published, or are about to."""
        self._tokens: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        self._observed: dict[str, int] = {}
        self._synced: dict[Where, int] = {}
        self._seen_step = -1  # the latest record of a step event that was seen done
        self._steps_seen = 0
        self._bare: dict[tuple[Where, str], int] = {}
        self._known: set[int] = set()

    # ── snapshots ─────────────────────────────────────────────────────────────────────────────────────────────────

    def shared(self, event: str) -> bool:
        return self.per[event] in ("design", "step")

    def take(self, past: Past, op: int, on: Where, event: str, *, named: bool) -> int:
        self.snapshots.append(Snapshot(past, op, on, event, named))
        return len(self.snapshots) - 1

    def bare(self, on: Where, event: str) -> int:
        """What a record of the event on this stream would hold now, if no op of the trace stands for it."""
        past, op = self.last.get(on, ((), NOBODY))
        found = self._bare.get((on, event))
        if found is None or self.snapshots[found].op != op:
            found = self._bare[on, event] = self.take(past, op, on, event, named=False)
        return found

    def signal(self, event: str, snapshot: int) -> None:
        """The event, one object for all blocks, holds this from now on."""
        self.now[event] = snapshot
        if event == self.design.step_event and self.steps:
            self.steps[-1] = snapshot

    # ── what was seen ─────────────────────────────────────────────────────────────────────────────────────────────

    def observe(self, obj: str, recorded: int) -> None:
        """Some thread saw this record of an event object done."""
        self._observed[obj] = max(recorded, self._observed.get(obj, -1))
        if self.names.event(obj) == self.design.step_event:
            self._seen_step = max(self._seen_step, recorded)

    def sync(self, on: Where, op: int) -> None:
        self._synced[on] = op

    def knows(self, snapshot: int) -> bool:
        """Whether the scheduler's thread has seen this record done."""
        if snapshot in self._known:
            return True
        snap = self.snapshots[snapshot]
        if not covers(self.main, snap.past):
            return False
        if snap.named and self._synced.get(snap.on, -1) < max(snap.objects.values(), default=1 << 62):
            if snap.event == self.design.step_event:
                seen = bool(snap.objects) and self._seen_step >= min(snap.objects.values())
            else:
                seen = any(self._observed.get(obj, -1) >= op for obj, op in snap.objects.items())
            if not seen:
                return False
        self._known.add(snapshot)
        return True

    def publish(self, entry: int, token: str) -> None:
        """The entry is put under this token."""
        self.entries[entry].token = token
        self._tokens[token] = entry

    def get(self, token: str) -> None:
        """The scheduler's thread took an entry, and with it those put in the queue before: whoever published the later
        one had published them, so it brings at least what they would."""
        entry = self._tokens.get(token, NOBODY)
        if entry != NOBODY:
            queue = self.entries[entry].queue
            self._taken[queue] = max(entry, self._taken.get(queue, NOBODY))

    def taken(self, entry: int) -> bool:
        return entry <= self._taken.get(self.entries[entry].queue, NOBODY) and self.entries[entry].token is not None

    def over(self, mark: str, at: int) -> bool:
        """Whether a mark of a cell can be needed no more: the event was seen done, the entry was taken."""
        if mark.startswith(QUEUE):
            return self.taken(at)
        return mark.startswith(DID) or self.knows(at)

    def step_seen(self, number: int) -> bool:
        """Whether the host has seen the step of that number (from 1) done."""
        if number <= self._steps_seen:
            return True
        if number > len(self.steps) or self.steps[number - 1] == NOBODY or not self.knows(self.steps[number - 1]):
            return False
        self._steps_seen = max(self._steps_seen, number)
        return True

    def lacks(self, need: Need, cell: Cell) -> str | None:
        """What is missing for the need, in words; None if nothing is."""
        if isinstance(need, Seen):
            snapshot = self.now.get(need.event, NOBODY) if self.shared(need.event) else get(cell.marks, need.event)
            if snapshot == NOBODY or self.knows(snapshot):
                return None  # a query of an event never recorded says done, and orders nothing
            return f"a poll or sync of {need.event}{self.behind(snapshot)}"
        if isinstance(need, Got):
            entry = get(cell.marks, QUEUE + need.queue)
            if entry == NOBODY:
                return None
            if self.taken(entry):
                return None
            token = self.entries[entry].token
            return f"a get of the block's entry of {need.queue}" + (f" ({token})" if token else ", which was not put")
        assert isinstance(need, Retired)
        if not cell.last_use or self.step_seen(cell.last_use):
            return None
        return f"a poll or sync of {self.step(cell.last_use)}, the block's last use"

    # ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def behind(self, snapshot: int) -> str:
        snap = self.snapshots[snapshot]
        return f" behind op {snap.op}" if snap.op >= 0 else ""

    def step(self, number: int) -> str:
        if number > len(self.steps):
            return f"step {number}, which was not launched"
        snapshot = self.steps[number - 1]
        return f"step {number}" + (self.behind(snapshot) if snapshot != NOBODY else "")

    def held_until(self, cell: Cell) -> str:
        return f"a poll or sync of {self.step(cell.fence)}, until which the free is held"

    def thread(self, name: str) -> str:
        return MAIN if name == self.names.main else self.names.thread(name)
