"""What is recorded and published behind a work, and at which place.

An event that the trace records under the design's name is held to its place: behind the work that signals it and before
the next one, at its own item of the step, or at the rule that records it. A further thread records and publishes in
turn; what its job does to the facets of a block is done with the last of its calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvsan.checker.conform.cells import NOBODY, Cell, Gathered, get, put
from kvsan.checker.conform.facts import Fact
from kvsan.checker.conform.steps import Steps
from kvsan.checker.conform.world import RefusalError
from kvsan.model.design import MAIN, Block, Design, Mark, Seen, Submit, Work
from kvsan.model.ops import Op, Put, Record


@dataclass(slots=True)
class Doing:
    """The job that a further thread is at: what it still has to record, the entry that it has to publish, how many
    records it made, and the blocks."""

    work: Work
    op: int
    unrecorded: dict[str, int]
    entry: int | None
    blocks: list[int]
    records: int = 0


class Records:
    """The records, and the jobs of further threads."""

    def __init__(self, steps: Steps, ops: Sequence[Op], *, attached: bool) -> None:
        self.steps, self.world, self.partition = steps, steps.world, steps.partition
        self.blocks, self.names = steps.blocks, steps.world.names
        self.design: Design = steps.world.design
        self._doing: dict[str, Doing] = {}
        self._recent: dict[str, dict[str, int]] = {}  # what was recorded for the latest work on a stream
        design = self.design
        asked = {event for work in design.works() for event in work.after}
        asked |= {item.event for item in design.step if isinstance(item, Block) and item.event is not None}
        asked |= {need.event for rule in design.rules for need in rule.needs if isinstance(need, Seen)}
        self.kept = {event for event in asked if not self.world.shared(event)}
        """Events of one block that somebody asks about."""
        shown = {event for item in design.step if isinstance(item, Submit) for event in item.creates}
        self._once = {e.name for e in design.events if e.per in ("transfer", "step") and e.name not in shown}
        self._records: dict[str, int] = {}  # the first record of each object
        for index, op in enumerate(ops if not attached else ()):
            if isinstance(op, Record):
                self._records.setdefault(op.event, index)

    # ── works and jobs ────────────────────────────────────────────────────────────────────────────────────────────

    def done(
        self, fact: Fact, work: Work, thread: str, by: str, marks: Mapping[str, int], entry: int | None,
        blocks: list[int],
    ) -> None:  # fmt: skip
        """What is recorded and published behind the work."""
        self.world.last[work.on] = (fact.after, fact.index)
        unrecorded: dict[str, int] = {}
        recent: dict[str, int] = {}
        for event, snapshot in marks.items():
            named = event in self.names.named
            if self.world.shared(event) and (thread == MAIN or not named):
                self.world.signal(event, snapshot)
            if named:
                (unrecorded if blocks or self.world.shared(event) else recent)[event] = snapshot
        if work.on is not None:
            self._recent[work.on] = recent
        if thread == MAIN:
            self.steps.unrecorded[work.on] = unrecorded
        else:
            self._doing[by] = Doing(work, fact.index, unrecorded, entry, blocks)
            if not work.signals and work.publishes is None:
                self.over(by, "")

    def over(self, by: str, when: str) -> None:
        """The job that the thread is at, if it is at one, has ended: what it does to the facets is done."""
        doing = self._doing.pop(by, None)
        if doing is None:
            return
        self._recorded(doing, when)
        for cells, some in self.partition.split(doing.blocks):
            after = Gathered(self._ended(cell, doing.work) for cell in cells).cells()
            self.partition.assign(some, self.steps.settled(after) if not self.steps.inside else after)

    def _ended(self, cell: Cell, work: Work) -> Cell:
        if cell.ending != work.name:
            return cell
        return cell._replace(block=self.blocks.then(cell.block, work.then), ending="")

    def _recorded(self, doing: Doing, when: str) -> None:
        events = list(doing.unrecorded)
        if not events and doing.work.publishes is not None and not doing.records:
            events = list(doing.work.signals)  # whatever the trace calls it
        for event in events:
            raise RefusalError(
                self.steps.at,
                f"{doing.work.name}: record {event} on {doing.work.on}",
                f"expected behind op {doing.op}, before {when}",
            )

    def publish(self, by: str, op: Put) -> None:
        """A further thread puts something: the entry of the job that it is at."""
        doing = self._doing.get(by)
        if doing is None:
            return
        if doing.entry is not None:
            self.world.publish(doing.entry, op.token)
        self.over(by, f"{by} publishes it (token {op.token})")

    # ── records ───────────────────────────────────────────────────────────────────────────────────────────────────

    def record(self, fact: Fact, op: Record) -> None:
        """A record of an event of the design, under its name, at a place where the design has it."""
        event, on = self.names.event(op.event), self.names.stream(op.on)
        by = self.world.thread(op.by)
        if by in self._doing and self._doing[by].work.on == on:
            self._doing[by].records += 1
        if event not in self.names.named:
            return
        doing = self._doing.get(by)
        waiting = doing.unrecorded if doing is not None else self.steps.unrecorded.get(on, {})
        recent = self._recent.setdefault(on, {})
        if event in waiting and self.world.snapshots[waiting[event]].on == on:
            recent[event] = waiting.pop(event)
            if doing is not None:
                self._captured(doing, event, recent[event])
        elif event in recent and not self.world.shared(event):
            pass  # one object a block: the design's event of each block that the work touched
        elif by == MAIN and any((on, event) in rule.records for rule in self.design.rules):
            past, at = self.world.last.get(on, ((), NOBODY))
            snapshot = self.world.take(past, at, on, event, named=True)
            self.world.snapshots[snapshot].objects[op.event] = fact.index
            self.steps.recorded(event, on, snapshot, self.names.block(op.event))
            return
        elif by == MAIN and self._own_item(event, on, fact.index):
            recent = self._recent[on]
        else:
            places = [f"behind {work.name} on {work.on}" for work in self.design.works() if event in work.signals]
            places += [f"on {item.on} in the step" for item in self.design.step
                       if isinstance(item, Mark) and item.event == event]  # fmt: skip
            places += [f"on {stream} by {rule.name!r}" for rule in self.design.rules
                       for stream, e in rule.records if e == event]  # fmt: skip
            raise RefusalError(fact.index, f"record {op.event} on {op.on}", f"expected only {' or '.join(places)}")
        snap = self.world.snapshots[recent[event]]
        snap.objects[op.event] = fact.index
        block = self.names.block(op.event)
        if block is not None and event in self.kept:
            own = self.world.take(snap.past, snap.op, snap.on, event, named=True)
            self.world.snapshots[own].objects[op.event] = fact.index
            for cells, some in self.partition.split([block]):
                marked = (cell._replace(marks=put(cell.marks, event, own))
                          if get(cell.marks, event) == recent[event] else cell for cell in cells)  # fmt: skip
                self.partition.assign(some, Gathered(marked).cells())
        if doing is not None and not doing.unrecorded and doing.work.publishes is None:
            self.over(by, "")

    def _captured(self, doing: Doing, event: str, snapshot: int) -> None:
        """A further thread recorded an event: from here on the block's, or everybody's, event holds this."""
        if self.world.shared(event):
            self.world.signal(event, snapshot)
        elif event in self.kept:
            for cells, some in self.partition.split(doing.blocks):
                after = Gathered(cell._replace(marks=put(cell.marks, event, snapshot)) for cell in cells)
                self.partition.assign(some, after.cells())

    def _own_item(self, event: str, on: str, at: int) -> bool:
        """The record is an item of the step by itself, or that of a forward which touched no block."""
        for index, item in enumerate(self.design.step):
            if isinstance(item, Mark) and (item.event, item.on) == (event, on):
                self.steps.visit(index)
                self._signalled((event,), on, event)
                return True
            if isinstance(item, Work) and item.every_step and item.on == on and event in item.signals:
                if not self.world.shared(event):
                    return False
                self.steps.visit(index)
                self._signalled(item.signals, on, event)
                return True
        return False

    def _signalled(self, events: Iterable[str], on: str, recorded: str) -> None:
        past, op = self.world.last.get(on, ((), NOBODY))
        self.steps.unrecorded[on] = {}
        self._recent[on] = {}
        for event in events:
            if self.world.shared(event):
                named = event in self.names.named
                snapshot = self.world.take(past, op, on, event, named=named)
                self.world.signal(event, snapshot)
                if event == recorded:
                    self._recent[on][event] = snapshot
                elif named:
                    self.steps.unrecorded[on][event] = snapshot

    def visible(self, obj: str, at: int) -> None:
        """An object of one transfer or step is seen done only after its record, unless the design lets it be seen."""
        event = self.names.event(obj)
        if event in self._once and obj in self._records and at < self._records[obj]:
            raise RefusalError(
                at,
                f"{obj} seen done",
                f"expected a record of {event} before that; it comes at op {self._records[obj]}",
            )
