"""Where the scheduler's thread stands: in which step, behind which item, or between two steps; and what passing an
item means for every block.

A step begins with the first op that belongs to an item of it and ends before the next step begins, before the next
alloc, touch or free (rules are between steps), or at the end of the trace. Ops come in the order of the program;
parts in `any_order` in any order. What an item that has no op of its own does happens when the thread passes it: a
record captures what the stream holds, a job is submitted for all blocks that are due, a blocking step item must have
seen its event. Work that is due for a block and was not done by then rules that way of being out.

The forward (`every_step`) is no such work: a step may leave a running block out, and a step may have no access of the
forward at all. The proof has no such step, and needs none: it leaves an access out and nothing else, what is known of
the earlier accesses only grows, and the host sees a step no later than the one before it. In the same way a forward
may write a block again until something shows that the block counts as full. Where the step goes on at once with a block
that is full (it stores it behind the forward), a block that was begun may come to count as full in a later step whose
forward leaves it out, as one does that is given back half filled: in the design that step's forward writes it once
more, and again all that is left out is an access.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvsan.checker.conform.cells import EXACT, NOBODY, Blocks, Cell, Cells, Gathered, Job, Move, Partition, get, put
from kvsan.checker.conform.world import DID, RefusalError, World
from kvsan.model.design import Block, Fence, Item, Mark, Submit, Work


class Steps:
    """The scheduler's thread and the blocks."""

    def __init__(self, world: World, blocks: Blocks, partition: Partition) -> None:
        self.world, self.blocks, self.partition = world, blocks, partition
        self.items = world.design.step
        self.inside = False
        self.at = 0
        """The op that is looked at, for messages."""
        self.cur = -1
        self.visited: set[int] = set()
        self.unrecorded: dict[str | None, dict[str, int]] = {}
        """On each stream, what the work done last signals under a name of the trace and has not been recorded yet."""
        self._left = 0
        self._dirty = True
        self._settled: dict[Cells, Cells] = {}
        timed = any(rule.free is not None or rule.records for rule in world.design.rules)
        self._lasts = not timed
        """What rules make of a block depends on when they fire only if one holds a free or records an event."""
        self._begun = False
        """Whether a block was ever begun that may come to count as full without an access."""
        self._awaited = {event for work in world.design.works() for event in work.after}
        self._jobs = {job.takes: job for thread in world.design.threads for job in thread.jobs}

    # ── between steps ─────────────────────────────────────────────────────────────────────────────────────────────

    def learnt(self) -> None:
        """The scheduler's thread knows more than before."""
        self._dirty = True

    def idle(self) -> None:
        """The thread is between two steps; every rule that the trace cannot show may have happened."""
        if self.inside:
            self._pass_to(len(self.items))
            self.no_unrecorded("the step ends")
            self.inside = False
            self._dirty = True
        if self._dirty:
            self._dirty = False
            if not self._lasts:
                self._settled.clear()
            self.partition.each(lambda cells, _: self.settled(cells))

    def settled(self, cells: Cells) -> Cells:
        """With all that silent rules may have made of the block."""
        found = self._settled.get(cells)
        if found is not None:
            return found
        plain = tuple(self._forgetting(cell) for cell in cells)
        gathered, todo, lacking = Gathered(plain), list(plain), False
        while todo:
            cell = todo.pop()
            for move in self.blocks.moves(cell.block):
                if move.crosses or self._shown(move):
                    continue
                if self.lacks(cell, move) is not None:
                    lacking = True
                    continue
                after = self.fire(cell, move)
                if gathered.add(after):
                    todo.append(after)
        out = gathered.cells()
        if not lacking and not any(cell.marks or cell.fence or cell.last_use for cell in out):
            self._settled[cells] = out
        return out

    def _forgetting(self, cell: Cell) -> Cell:
        """Without what the host knows by now and no stream waits for: nothing more can be asked about it."""
        world = self.world
        if cell.marks:
            marks = tuple(
                (name, at)
                for name, at in cell.marks
                if name.removeprefix(EXACT) in self._awaited or not world.over(name, at)
            )
            if len(marks) != len(cell.marks):
                cell = cell._replace(marks=marks)
        if cell.fence and world.step_seen(cell.fence):
            cell = cell._replace(fence=0)
        if cell.last_use and world.step_seen(cell.last_use):
            cell = cell._replace(last_use=0)
        return cell

    def lacks(self, cell: Cell, move: Move) -> str | None:
        """What the rule, or the return of a held block, still needs; None if it may happen."""
        if move.rule is None:
            return None if not cell.fence or self.world.step_seen(cell.fence) else self.world.held_until(cell)
        for need in move.rule.needs:
            lacking = self.world.lacks(need, cell)
            if lacking is not None:
                return lacking
        return None

    def _shown(self, move: Move) -> bool:
        """A rule that records an event under its name happens at that record, and at no other time."""
        named = self.world.names.named
        return move.rule is not None and not move.crosses and any(event in named for _, event in move.rule.records)

    def recorded(self, event: str, on: str, snapshot: int, block: int | None) -> None:
        """The scheduler's thread recorded an event that a rule records; None: for which block is not known."""
        self.idle()

        def fired(cells: Cells) -> list[Cell]:
            return [
                self.fire(cell, move)._replace(marks=put(cell.marks, EXACT + event, snapshot))
                for cell in cells
                for move in self.blocks.moves(cell.block)
                if self._shown(move) and move.rule is not None and (on, event) in move.rule.records
                and self.lacks(cell, move) is None
            ]  # fmt: skip

        if block is None:
            self.partition.each(lambda cells, _: Gathered((*cells, *fired(cells))).cells())
            self._dirty = True
            return
        for cells, some in self.partition.split([block]):
            after = fired(cells)
            if not after:
                rules = [rule.name for rule in self.world.design.rules if (on, event) in rule.records]
                be = " or ".join(dict.fromkeys(self.blocks.words(cell.block) for cell in cells[:3]))
                raise RefusalError(
                    self.at,
                    f"record {event} on {on} for {self.world.names.pool} {block}",
                    f"expected a block to which {' or '.join(map(repr, rules))} may happen; it is {be}",
                )
            self.partition.assign(some, self.settled(Gathered(after).cells()))

    def fire(self, cell: Cell, move: Move) -> Cell:
        rule = move.rule
        if rule is None:
            return cell._replace(block=move.block, fence=0)
        fence, marks = cell.fence, cell.marks
        if rule.free is not None:
            steps = len(self.world.steps)
            fence = {Fence.NEWEST: steps, Fence.LAST_USE: cell.last_use, Fence.NEXT: steps + 1}[rule.free.fence]
        for stream, event in rule.records:
            if event not in self.world.names.named or move.crosses:
                marks = put(marks, event, self.world.bare(stream, event))
        return cell._replace(
            block=move.block,
            fence=fence,
            marks=marks,
            begun=cell.begun and not move.crosses,
            via=cell.via | self.blocks.bits[rule.name],
        )

    # ── in a step ─────────────────────────────────────────────────────────────────────────────────────────────────

    def visit(self, index: int) -> None:
        """The op that is looked at belongs to this item of the program, in this step or a new one."""
        item = self.items[index]
        self.no_unrecorded(f"{_words(item)} is next")
        once = isinstance(item, Mark) or (isinstance(item, Work) and item.every_step)
        here = self.inside and index >= self._first(self.cur) and not (once and index in self.visited)
        if not here:
            self.launch()
        self._pass_to(self._first(index))
        self.cur = index
        self.visited.add(index)

    def launch(self) -> None:
        """A new step."""
        self.idle()
        world, ahead = self.world, self.world.design.run_ahead
        last = len(world.steps) - (ahead if ahead != "any" else 0)
        if ahead != "any" and world.design.step_event is not None and last > 0 and not world.step_seen(last):
            raise RefusalError(
                self.at,
                f"run_ahead={ahead}",
                f"expected a poll or sync of {world.step(last)} before step {len(world.steps) + 1} is launched",
            )
        world.steps.append(NOBODY)
        self.inside, self.cur, self._left, self.visited = True, -1, 0, set()

    def first_submit(self, queue: str | None) -> int | None:
        """The item that puts a job in the queue, or in any."""
        return next((i for i, item in enumerate(self.items)
                     if isinstance(item, Submit) and queue in (None, item.queue)), None)  # fmt: skip

    def submitted(self, cells: Cells, item: Submit, *, anew: bool) -> Cells:
        """The block's job may have been put in the queue by the op that is looked at. `anew`: also if the step had to
        end and another begin (whose forward runs for other blocks) before the job was due."""
        gathered = Gathered(cells)
        later = self._later(cells, self.items.index(item)) if anew else ()
        for cell in (*cells, *later):
            if self.blocks.due(item, cell.block):
                gathered.add(self._submit(cell, item))
        return gathered.cells()

    def _later(self, cells: Cells, index: int) -> Cells:
        """The block in a further step, in front of the item: what the trace cannot show if nothing ran in it."""
        rest = self._through(cells, range(self._left, len(self.items)))[0]
        return self._through(self.settled(rest), range(self._first(index)))[0] if rest else ()

    def later(self, cells: Cells, index: int) -> tuple[Cells, dict[str, int]]:
        """`_later`, and what the events hold that such a step would have recorded in front of the item."""
        marks: dict[str, int] = {}
        for item in self.items[: self._first(index)]:
            for on, event in _records(item):
                if self.world.shared(event):
                    marks[event] = self.world.bare(on, event)
        return self._later(cells, index), marks

    def no_unrecorded(self, when: str) -> None:
        """Whatever the works done so far signal must have been recorded by now."""
        for stream in [stream for stream in self.unrecorded if stream is not None]:
            self.recorded_on(stream, when)

    def recorded_on(self, stream: str | None, when: str) -> None:
        for event, snapshot in self.unrecorded.get(stream, {}).items():
            snap = self.world.snapshots[snapshot]
            behind = f" behind op {snap.op}" if snap.op >= 0 else ""
            raise RefusalError(self.at, f"record {event} on {snap.on}", f"expected{behind}, before {when}")

    def _pass_to(self, end: int) -> None:
        if end <= self._left:
            return
        span = range(self._left, end)
        self._left = end
        for index in span:
            self._unseen(index)
        if not any(isinstance(self.items[i], Submit | Block) or _planned(self.items[i])
                   or (self._begun and _forward(self.items[i])) for i in span):  # fmt: skip
            return

        def change(cells: Cells, block: int) -> Cells:
            after, why = self._through(cells, span)
            if not after:
                raise RefusalError(self.at, *self._stuck(why, block))
            return after

        self.partition.each(change)

    def _unseen(self, index: int) -> None:
        """What a record does that no op of the trace stands for."""
        item = self.items[index]
        if index in self.visited:
            return
        for on, event in _records(item):
            if isinstance(item, Mark) and event in self.world.names.named:
                raise RefusalError(
                    self.at, f"record {event} on {on}", "expected in every step, in front of what follows"
                )
            if self.world.shared(event) and (isinstance(item, Mark) or (isinstance(item, Work) and item.every_step)):
                self.world.signal(event, self.world.bare(on, event))

    def _through(self, cells: Cells, span: Sequence[int]) -> tuple[Cells, tuple[Item, str] | None]:
        """The block behind these items; if it cannot come there, the item that it is stuck at and why."""
        why: tuple[Item, str] | None = None
        for index in span:
            item = self.items[index]
            if isinstance(item, Work) and item.every_step:
                cells = self._filled(cells, item)
                continue
            if isinstance(item, Mark) or not any(self.blocks.due(item, cell.block) for cell in cells):
                continue
            gathered = Gathered()
            for cell in cells:
                if not self.blocks.due(item, cell.block):
                    gathered.add(cell)
                elif isinstance(item, Submit):
                    gathered.add(self._submit(cell, item))
                elif isinstance(item, Block):
                    lacking = self._blocked(cell, item)
                    if lacking is None:
                        gathered.add(cell._replace(block=self.blocks.then(cell.block, item.then)))
                    else:
                        why = (item, lacking)
                elif get(cell.marks, DID + item.name) != NOBODY:
                    gathered.add(cell._replace(marks=tuple(m for m in cell.marks if m[0] != DID + item.name)))
                else:
                    why = (item, f"a block that is {self.blocks.words(cell.block)}")
            cells = gathered.cells()
            if not cells:
                return (), why
        return cells, None

    def fills(self, cell: Cell, work: Work) -> bool:
        """Whether the step goes on at once with a block that this forward has filled. If so, one that it only began may
        be full in a later step, and no access shows in which."""
        after = self.blocks.then(cell.block, work.then)
        items = [item for item in self.items[self.items.index(work) + 1 :] if not isinstance(item, Mark | Block)]
        found = any(self.blocks.due(item, after) and not self.blocks.due(item, cell.block)
                    for item in items if isinstance(item, Submit) or _planned(item))  # fmt: skip
        self._begun |= found
        return found

    def _filled(self, cells: Cells, work: Work) -> Cells:
        """What blocks may be behind a forward that left them out: as they were, or full at last."""
        full = [
            cell._replace(block=self.blocks.then(cell.block, work.then), begun=False)
            for cell in cells
            if cell.begun and self.blocks.mode(work, cell.block)[1]
        ]
        return Gathered((*cells, *full)).cells() if full else cells

    def _submit(self, cell: Cell, item: Submit) -> Cell:
        job = self._jobs[item.queue]
        now = self.world.now
        events = tuple((e, now[e]) for e in job.after if self.world.shared(e) and e in now)
        marks = tuple(pair for pair in cell.marks if pair[0] not in item.creates)
        kept = tuple(one for one in cell.jobs if one.queue != item.queue)
        jobs = tuple(sorted((*kept, Job(item.queue, self.at, events))))
        return cell._replace(block=self.blocks.then(cell.block, item.then), marks=marks, jobs=jobs)

    def _blocked(self, cell: Cell, item: Block) -> str | None:
        if item.event is None:
            return None
        world = self.world
        at = world.now.get(item.event, NOBODY) if world.shared(item.event) else get(cell.marks, item.event)
        if at == NOBODY or world.knows(at):
            return None
        return f"a sync of {item.event}{world.behind(at)}"

    def _stuck(self, why: tuple[Item, str] | None, block: int) -> tuple[str, str]:
        assert why is not None
        item, words = why
        pool, step = self.world.names.pool, len(self.world.steps)
        which = f"{pool} {block}" if block >= 0 else f"the other blocks of {pool}"
        if isinstance(item, Block):
            return item.name, f"expected {words} in step {step} for {which}"
        return _words(item), f"expected in step {step} for {which}, {words}; the step went on without it"

    def _first(self, index: int) -> int:
        """The first item of those that may come in any order with this one."""
        if index < 0:
            return 0
        group = _group(self.items[index])
        while group is not None and index and _group(self.items[index - 1]) == group:
            index -= 1
        return index


def _group(item: Item) -> int | None:
    return item.group if isinstance(item, Work | Submit) else None


def _planned(item: Item) -> bool:
    return isinstance(item, Work) and not item.every_step


def _forward(item: Item) -> bool:
    return isinstance(item, Work) and item.every_step and item.writes is not None


def _words(item: Item) -> str:
    return f"record {item.event} on {item.on}" if isinstance(item, Mark) else item.name


def _records(item: Item) -> list[tuple[str | None, str]]:
    """What an item records, and on which stream."""
    if isinstance(item, Mark):
        return [(item.on, item.event)]
    return [(item.on, event) for event in item.signals] if isinstance(item, Work) else []
