"""A concrete engine that follows a design: N blocks, vector clocks, a bounded run-ahead. It shares no code with
the proof.

It keeps whole clocks, every access of every block, and the number of every step, and it abstracts nothing: no
tracked access, no order types, no environment. One host thread. A call that the design does not allow is an
`AssertionError`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvsan.model.design import Assign, Block, Design, Fence, Mark, Retired, Seen, Work

Clock = dict[str, int]


def merge(into: Clock, other: Clock) -> None:
    for agent, count in other.items():
        into[agent] = max(into.get(agent, 0), count)


@dataclass(eq=False)
class Cell:
    """One block."""

    facets: dict[str, str]
    events: dict[str, Clock] = field(default_factory=dict)
    accesses: list[tuple[str, int, bool, str]] = field(default_factory=list)  # agent, its count, writes, work
    last_use: int = 0
    fence: int = 0
    held: dict[str, str] = field(default_factory=dict)


class Engine:
    """The engine. `races` is what it has seen so far."""

    def __init__(self, design: Design, blocks: int, run_ahead: int) -> None:
        assert not design.threads
        self.design, self.run_ahead = design, run_ahead
        self.cells = [Cell({f.name: f.values[0] for f in design.facets}) for _ in range(blocks)]
        self.host: Clock = {}
        self.streams: dict[str, Clock] = {stream.name: {} for stream in design.streams}
        self.counts: dict[str, int] = {}
        self.shared: dict[str, Clock] = {}
        self.steps: dict[int, Clock] = {}
        self.launched = self.seen = 0
        self.inside = False
        self.per = {event.name: event.per for event in design.events}
        self.rules = {rule.name: rule for rule in design.rules}
        self.works = {work.name: work for work in design.works()}
        self.recorder = next(
            (
                on
                for item in design.step
                for on, events in (
                    [(item.on, item.signals)] if isinstance(item, Work) else
                    [(item.on, (item.event,))] if isinstance(item, Mark) else []
                )
                if any(self.per[event] == "step" for event in events)
            ),
            None,
        )  # fmt: skip
        self.races: set[tuple[str, str, str, int]] = set()  # kind, earlier, later, block

    # ── between steps ─────────────────────────────────────────────────────────────────────────────────────────────

    def may(self, name: str, at: int) -> bool:
        rule, cell = self.rules[name], self.cells[at]
        return (
            not self.inside
            and rule.when.holds(cell.facets)
            and all(cell.last_use <= self.seen for need in rule.needs if isinstance(need, Retired))
        )

    def rule(self, name: str, at: int) -> None:
        assert self.may(name, at), name
        rule, cell = self.rules[name], self.cells[at]
        for need in rule.needs:
            if isinstance(need, Seen):
                merge(self.host, self._event(need.event, cell))
        for stream, event in rule.records:
            self._record(stream, event, [cell])
        if rule.free is None:
            self._set(cell, rule.then)
        else:
            cell.held = dict(rule.then)
            for facet in cell.held:
                cell.facets[facet] = "(held)"
            cell.fence = {
                Fence.NEWEST: self.launched,
                Fence.LAST_USE: cell.last_use,
                Fence.NEXT: self.launched + 1,
            }[rule.free.fence]

    def returns(self, at: int) -> None:
        cell = self.cells[at]
        assert cell.held
        assert cell.fence <= self.seen
        cell.facets.update(cell.held)
        cell.held = {}

    def _set(self, cell: Cell, then: Assign) -> None:
        """What is set while a block is held is not set again by the return."""
        cell.facets.update(then)
        for facet, _ in then:
            cell.held.pop(facet, None)

    def see(self) -> None:
        assert not self.inside
        assert self.seen < self.launched
        self.seen += 1
        merge(self.host, self.steps.get(self.seen, {}))

    def launch(self) -> None:
        assert not self.inside
        assert self.launched - self.seen <= self.run_ahead
        self.launched += 1
        self.inside = True

    # ── in a step ─────────────────────────────────────────────────────────────────────────────────────────────────

    def mark(self, item: Mark) -> None:
        self._record(item.on, item.event, [])

    def block(self, item: Block, cells: Iterable[int]) -> None:
        for at in cells:
            if item.event is not None:
                merge(self.host, self._event(item.event, self.cells[at]))
            self._set(self.cells[at], item.then)

    def work(self, work: Work, cells: Iterable[int]) -> None:
        """The work, for these blocks (none: for blocks that nobody looks at)."""
        touched = [self.cells[at] for at in cells]
        for event in work.after:
            for cell in touched:
                self._wait(str(work.on), event, cell)
            if not touched and self.per[event] in ("design", "step"):
                self._wait(str(work.on), event, None)
        agent = work.on if work.on is not None else "host"
        clock = self.streams[agent] if work.on is not None else self.host
        if work.on is not None:
            merge(clock, self.host)
        source = self.host if work.order == "any" else clock
        count = self.counts[agent] = self.counts.get(agent, 0) + 1
        for cell in touched:
            reads, writes = work.mode(cell.facets)
            assert reads or writes
            for who, number, wrote, earlier in cell.accesses:
                if reads and wrote and source.get(who, 0) < number:
                    self.races.add(("RAW", earlier, work.name, self.cells.index(cell)))
                if writes and clock.get(who, 0) < number:
                    self.races.add(("WAW" if wrote else "WAR", earlier, work.name, self.cells.index(cell)))
            cell.accesses += [(agent, count, False, work.name)] * reads + [(agent, count, True, work.name)] * writes
            if work.on is not None and work.on == self.recorder:
                cell.last_use = self.launched
            self._set(cell, work.then)
        clock[agent] = count
        for event in work.signals:
            self._record(str(work.on), event, touched)

    def end(self) -> None:
        self.inside = False

    def step(self, dice: random.Random) -> None:
        """A whole step, in launch order; what has no fixed order is shuffled."""
        self.launch()
        items = list(self.design.step)
        while items:
            item = items.pop(0)
            group = getattr(item, "group", None)
            if group is not None:
                members = [item]
                while items and getattr(items[0], "group", None) == group:
                    members.append(items.pop(0))
                dice.shuffle(members)
            else:
                members = [item]
            for member in members:
                self._item(member)
        self.end()

    def _item(self, item: object) -> None:
        if isinstance(item, Mark):
            self.mark(item)
        elif isinstance(item, Block):
            when = item.when
            self.block(item, [i for i, c in enumerate(self.cells) if when is None or when.holds(c.facets)])
        elif isinstance(item, Work):
            due = [i for i, c in enumerate(self.cells) if any(item.mode(c.facets))]
            if due or item.every_step:
                self.work(item, due)

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _event(self, event: str, cell: Cell | None) -> Clock:
        if self.per[event] in ("block", "transfer"):
            assert cell is not None
            return cell.events.get(event, {})
        return self.shared.get(event, {})

    def _wait(self, stream: str, event: str, cell: Cell | None) -> None:
        merge(self.streams[stream], self.host)
        merge(self.streams[stream], self._event(event, cell))

    def _record(self, stream: str, event: str, cells: list[Cell]) -> None:
        merge(self.streams[stream], self.host)
        captured = dict(self.streams[stream])
        if self.per[event] in ("block", "transfer"):
            for cell in cells:
                cell.events[event] = captured
        else:
            self.shared[event] = captured
            if self.per[event] == "step":
                self.steps[self.launched] = captured


def simulate(engine: Engine, actions: int, dice: random.Random) -> None:
    """Random play: any rule on any block, steps launched and seen at random."""
    for _ in range(actions):
        choice = dice.random()
        if choice < 0.25 and engine.launched - engine.seen <= engine.run_ahead:
            engine.step(dice)
        elif choice < 0.4 and engine.seen < engine.launched:
            engine.see()
        else:
            at = dice.randrange(len(engine.cells))
            cell = engine.cells[at]
            if cell.held and cell.fence <= engine.seen and dice.random() < 0.5:
                engine.returns(at)
                continue
            able = [name for name in engine.rules if engine.may(name, at)]
            if able:
                engine.rule(dice.choice(able), at)


def follow(engine: Engine, actions: Iterable[tuple[str, str, bool]]) -> None:
    """Plays a schedule on block 0: (kind, which, whether it touches the block). What has no order of its own (a
    record without work) happens where the step program has it."""
    at = 0
    items = engine.design.step
    for kind, of, touches in actions:
        if kind == "launch":
            engine.launch()
            at = 0
        elif kind == "see":
            engine.see()
        elif kind == "return":
            engine.returns(0)
        elif kind == "rule":
            engine.rule(of, 0)
        else:
            stop = next((i for i, item in enumerate(items) if getattr(item, "name", None) == of), len(items))
            for item in items[at:stop]:
                if isinstance(item, Mark):
                    engine.mark(item)
            at = max(at, stop)
            if kind == "end":
                engine.end()
                continue
            item = items[stop]
            if isinstance(item, Block):
                engine.block(item, [0])
            else:
                engine.work(engine.works[of], [0] if touches else [])
