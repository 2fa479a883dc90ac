"""An engine that plays a design at random and logs what it issues, as the engine of the project does.

N blocks, one main thread (`h0`) and the design's further threads under their own names, between any two calls of which
another thread may act. It shares no code with `kvsan.checker.conform` or the proof. `lenient`: it also does what
engines do and designs do not say (a step leaves a running block out, a block is filled over several steps). `early`:
the number of the free (from 0) that it does too early: a held block that the fence's own step uses returns one step
early, or a rule that returns a block does so without the polls and gets that it needs. (Of a held block that the step
does not use, the trace does not show when it began to be held: a step earlier is as good, and the free not early.)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvsan.model.design import Assign, Block, Design, Fence, Got, Mark, Retired, Seen, Submit, Work
from kvsan.model.ops import Access, Alloc, Blocks, Free, Get, Op, Poll, Put, Record, Sync, Touch, Wait

MAIN = "h0"
OTHERS = "other blocks"


@dataclass(eq=False)
class Cell:
    """One block."""

    number: int
    facets: dict[str, str]
    events: dict[str, str] = field(default_factory=dict)  # event of the block -> its object
    tokens: dict[str, str] = field(default_factory=dict)  # queue -> the token of the block's published entry
    held: dict[str, str] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)  # the facets before it was held
    fence: int = 0
    last_use: int = 0


@dataclass(eq=False)
class Job:
    """A queue entry."""

    token: str
    cells: list[Cell]


class Player:
    """One play; `ops` is what it issued."""

    def __init__(
        self, design: Design, dice: random.Random, *, blocks: int = 3, lenient: bool = False, early: int = -1
    ) -> None:
        self.design, self.dice, self.lenient, self.early = design, dice, lenient, early
        self.run_ahead = dice.choice([0, 1, 2]) if design.run_ahead == "any" else design.run_ahead
        self.cells = [Cell(i, {f.name: f.values[0] for f in design.facets}) for i in range(blocks)]
        self.header = {
            "kvsan_trace": 1,
            "pools": {design.pool: blocks, OTHERS: 1},
            "streams": {stream.name: {} for stream in design.streams},
        }
        self.ops: list[Op] = []
        self.per = {event.name: event.per for event in design.events}
        self.objects: dict[str, str] = {}
        self.recorded: set[str] = set()
        self.steps: list[str | None] = []
        self.seen = self.count = self.early_chances = 0
        self.early_done = False
        self.queues: dict[str, deque[Job]] = {queue: deque() for queue in design.queues}
        self.recorder = next((on for on, events in (
            *((item.on, (item.event,)) for item in design.step if isinstance(item, Mark)),
            *((work.on, work.signals) for work in design.works())) if design.step_event in events), None)  # fmt: skip

    def play(self, actions: int) -> list[Op]:
        threads = [self._main(actions), *(self._thread(t.name, t.jobs) for t in self.design.threads)]
        main = threads[0]
        while True:
            chosen = self.dice.choice(threads)
            if next(chosen, "over") == "over" and chosen is main:
                return self.ops

    # ── the main thread ───────────────────────────────────────────────────────────────────────────────────────────

    def _main(self, actions: int) -> Iterator[None]:
        for _ in range(actions):
            choice = self.dice.random()
            if choice < 0.3 and len(self.steps) - self.seen <= self.run_ahead:
                yield from self._step()
            elif choice < 0.45 and self.seen < len(self.steps):
                self._see()
            else:
                self._something(self.dice.choice(self.cells))
            yield

    def _see(self) -> None:
        event = self.steps[self.seen]
        self.seen += 1
        if event is not None:
            self.ops.append(Poll(MAIN, event, done=True))

    def _something(self, cell: Cell) -> None:
        if cell.held and (cell.fence <= self.seen or self._early(self._fence_matters(cell))):
            then, cell.held = tuple(cell.held.items()), {}
            self._set(cell, then, keeps=False)
            return
        able = [
            rule
            for rule in self.design.rules
            if rule.when.holds(cell.facets)
            and all(cell.last_use <= self.seen for need in rule.needs if isinstance(need, Retired))
            and all(need.queue in cell.tokens for need in rule.needs if isinstance(need, Got))
        ]
        if not able:
            return
        rule = self.dice.choice(able)
        frees = self.design.free.holds({**cell.facets, **dict(rule.then)}) and not self.design.free.holds(cell.facets)
        polls = [need for need in rule.needs if not isinstance(need, Retired)]
        fresh = [
            need for need in polls if isinstance(need, Seen) and not self._observed(self._object(need.event, cell))
        ]
        if not self._early(bool(fresh) and frees and rule.free is None):
            for need in polls:
                if isinstance(need, Seen):
                    self.ops.append(Poll(MAIN, self._object(need.event, cell), done=True))
                else:
                    self.ops.append(Get(MAIN, cell.tokens.pop(need.queue)))
        for stream, event in rule.records:
            self._record(MAIN, stream, event, [cell])
        if rule.free is None:
            self._set(cell, rule.then, keeps=rule.keeps)
        else:
            cell.held, cell.origin = dict(rule.then), dict(cell.facets)
            cell.facets.update(dict.fromkeys(cell.held, "(held)"))
            launched = len(self.steps)
            cell.fence = {Fence.NEWEST: launched, Fence.LAST_USE: cell.last_use, Fence.NEXT: launched + 1}[
                rule.free.fence
            ]

    def _fence_matters(self, cell: Cell) -> bool:
        """The return frees; one step is missing, it uses the block, and no rule would have freed it at once instead."""
        if not self.design.free.holds({**cell.facets, **cell.held}):
            return False
        was = {**cell.facets, **{facet: cell.origin[facet] for facet in cell.held}}
        others = (
            rule
            for rule in self.design.rules
            if rule.free is None
            and (rule.when.holds(cell.origin) or rule.when.holds(was))
            and not any(isinstance(n, Retired) and cell.last_use > self.seen for n in rule.needs)
            and self.design.free.holds({**was, **dict(rule.then)})
        )
        return cell.fence == self.seen + 1 == cell.last_use and not any(others)

    def _observed(self, obj: str) -> bool:
        return any(isinstance(op, Poll | Sync) and op.event == obj for op in self.ops)

    def _early(self, chance: bool) -> bool:
        if chance and self.early >= 0 and not self.early_done:
            self.early_chances += 1
            self.early_done = self.early_chances > self.early
            return self.early_done
        return False

    def _set(self, cell: Cell, then: Assign, *, keeps: bool) -> None:
        before = self.design.free.holds(cell.facets)
        cell.facets.update(then)
        for facet, _ in then:
            cell.held.pop(facet, None)
        after, ids = self.design.free.holds(cell.facets), Blocks.of([cell.number])
        if before and not after:
            self.ops.append((Touch if keeps else Alloc)(MAIN, self.design.pool, ids))
        elif after and not before:
            self.ops.append(Free(MAIN, self.design.pool, ids))

    def _step(self) -> Iterator[None]:
        self.steps.append(None)
        items = list(self.design.step)
        while items:
            group = getattr(items[0], "group", None)
            members = [items.pop(0)]
            while group is not None and items and getattr(items[0], "group", None) == group:
                members.append(items.pop(0))
            self.dice.shuffle(members)
            for item in members:
                if isinstance(item, Mark):
                    self._record(MAIN, item.on, item.event, [])
                elif isinstance(item, Block):
                    due = [c for c in self.cells if item.when is None or item.when.holds(c.facets)]
                    if item.event is not None:
                        objects = dict.fromkeys(self._object(item.event, c) for c in due)
                        self.ops += [Sync(MAIN, event=obj) for obj in objects]
                    for cell in due:
                        self._set(cell, item.then, keeps=False)
                elif isinstance(item, Submit):
                    for cells in self._transfers([c for c in self.cells if item.when.holds(c.facets)]):
                        for event in item.creates:
                            self.count += 1
                            for cell in cells:
                                cell.events[event] = f"{event}#{self.count}"
                        self.count += 1
                        job = Job(f"{item.queue}#{self.count}", cells)
                        self.queues[item.queue].append(job)
                        self.ops.append(Put(MAIN, job.token))
                        for cell in cells:
                            self._set(cell, item.then, keeps=False)
                        yield
                else:
                    due = [c for c in self.cells if any(item.mode(c.facets))]
                    if item.every_step:
                        if self.lenient:
                            due = [c for c in due if self.dice.random() < 0.8]
                        yield from self._work(item, MAIN, due)
                    else:
                        for cells in self._transfers(due):
                            yield from self._work(item, MAIN, cells)
                yield
        done = self.design.step_event
        self.steps[-1] = None if done is None else self.objects.get(done)

    def _transfers(self, cells: list[Cell]) -> list[list[Cell]]:
        """One or two of them."""
        at = self.dice.randrange(len(cells) + 1)
        return [part for part in (cells[:at], cells[at:]) if part]

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _thread(self, name: str, jobs: tuple[Work, ...]) -> Iterator[None]:
        while True:
            ready = [job for job in jobs if self.queues[str(job.takes)]]
            if ready:
                work = self.dice.choice(ready)
                job = self.queues[str(work.takes)].popleft()
                self.ops.append(Get(name, job.token))
                yield
                yield from self._work(work, name, job.cells)
            yield

    def _work(self, work: Work, by: str, cells: list[Cell]) -> Iterator[None]:
        on = work.on
        for event in work.after:
            shared = self.per[event] in ("design", "step")
            objects = [self.objects.get(event)] if shared else [cell.events.get(event) for cell in cells]
            for awaited in dict.fromkeys(objects):
                if awaited is not None and awaited in self.recorded:
                    self.ops.append(Wait(by, str(on), awaited))
                    yield
        modes = [(cell, work.mode(cell.facets)) for cell in cells]
        reads, writes = [c.number for c, mode in modes if mode[0]], [c.number for c, mode in modes if mode[1]]
        pool = self.design.pool
        both = bool(self.lenient and work.every_step and writes and self.dice.random() < 0.5)
        self.ops.append(
            Access(
                by,
                on,
                reads={pool: Blocks.of(sorted({*reads, *(writes if both else ())}))} if reads or both
                else {} if cells else {OTHERS: Blocks.of([0])},
                writes={pool: Blocks.of(writes)} if writes else {},
                label=work.name,
                order=work.order,
            )
        )  # fmt: skip
        for cell in cells:
            if on is not None and on == self.recorder and by == MAIN:
                cell.last_use = len(self.steps)
        yield
        for event in work.signals:
            self._record(by, str(on), event, cells)
            yield
        if work.publishes is not None:
            self.count += 1
            token = f"{work.publishes}#{self.count}"
            self.ops.append(Put(by, token))
            for cell in cells:
                cell.tokens[work.publishes] = token
        for cell in cells:
            filling = self.lenient and work.every_step and cell.number in writes and self.dice.random() < 0.4
            if not filling:
                self._set(cell, work.then, keeps=False)

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _object(self, event: str, cell: Cell) -> str:
        if self.per[event] in ("block", "transfer"):
            return cell.events.get(event, f"{event}#0")
        return self.objects.get(event, event)

    def _record(self, by: str, stream: str, event: str, cells: list[Cell]) -> None:
        per = self.per[event]
        if per == "design":
            objects = [event]
            self.objects[event] = event
        elif per == "step":
            objects = [f"{event}#{len(self.steps)}"]
            self.objects[event] = objects[0]
        elif per == "block":
            objects = []
            for cell in cells:
                cell.events[event] = f"{event}#{cell.number}"
                objects.append(cell.events[event])
        else:
            visible = {cell.events[event] for cell in cells if event in cell.events} - self.recorded
            self.count += bool(cells)
            obj = min(visible) if visible else f"{event}#{self.count}"
            objects = [obj] if cells else []
            for cell in cells:
                cell.events[event] = obj
        for obj in objects:
            self.ops.append(Record(by, stream, obj))
            self.recorded.add(obj)
