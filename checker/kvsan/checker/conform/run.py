"""The ops of a trace, one after the other, as what a design lets an engine do. `RefusalError` at the first that it does
not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kvsan.checker.conform.cells import NOBODY, Blocks, Cell, Cells, Gathered, Partition, put
from kvsan.checker.conform.edges import Edges
from kvsan.checker.conform.facts import Fact
from kvsan.checker.conform.life import Life
from kvsan.checker.conform.names import Names
from kvsan.checker.conform.records import Records
from kvsan.checker.conform.steps import Steps
from kvsan.checker.conform.world import DID, QUEUE, Entry, RefusalError, World
from kvsan.model.design import MAIN, Design, Mark, Submit, Work
from kvsan.model.ops import Access, Alloc, Drop, Free, Get, Op, Poll, Put, Record, Sync, Touch, Wait
from kvsan.model.pasts import Agent

READ, WRITE = 1, 2


class Run:
    """A run of the design, as far as the ops so far are one."""

    def __init__(self, design: Design, names: Names, ops: Sequence[Op], agents: Mapping[Agent, int], *,
                 attached: bool) -> None:  # fmt: skip
        self.design, self.names = design, names
        self.world = World(design, names)
        self.blocks = Blocks(design)
        start: Cells = self.blocks.everything() if attached else (Cell(self.blocks.start),)
        self.partition = Partition(start)
        self.steps = Steps(self.world, self.blocks, self.partition)
        self.edges = Edges(self.world, agents)
        self.works: Counter[str] = Counter()
        self.records = Records(self.steps, ops, attached=attached)
        self.life = Life(self.steps)
        self._agents = agents
        self._works = {work.name: work for work in design.works()}
        self._index = {item.name: i for i, item in enumerate(design.step) if isinstance(item, Work)}
        self._thread = {job.name: thread.name for thread in design.threads for job in thread.jobs}
        self._recorder = _recorder(design)
        self._early = any(isinstance(item, Submit) and item.creates for item in design.step)
        self._wrote: dict[int, int] = {}  # the latest op that wrote a block, on a stream that reads blocks too
        self._both = {w.on for w in design.works() if w.reads is not None and w.order == "stream"} & {
            w.on for w in design.works() if w.writes is not None
        }

    def take(self, fact: Fact) -> None:
        """The next op. Raises `RefusalError`."""
        op = fact.op
        if fact.main != self.world.main:
            self.steps.learnt()
        self.world.main = fact.main
        self.steps.at = fact.index
        match op:
            case Access():
                self._access(fact, op)
            case Wait():
                self.edges.wait(fact, self.names.stream(op.on))
            case Record():
                self.world.dropped.discard(op.event)
                self.records.record(fact, op)
            case Drop():
                self.world.dropped.add(op.event)
            case Poll(done=True) | Sync():
                if op.event is not None:
                    self.records.visible(op.event, fact.index)
                if op.event is not None and fact.recorded >= 0:
                    self.world.observe(op.event, fact.recorded)
                elif isinstance(op, Sync) and op.event is None:
                    self._synced(op, fact.index)
                self.steps.learnt()
                if self._early and op.by == self.names.main and isinstance(op, Poll):
                    self.steps.idle()  # what the poll allows it allows before the record that may follow
            case Put():
                self._put(fact, op)
            case Get():
                if op.by == self.names.main:
                    self.world.get(op.token)
                    self.steps.learnt()
                else:
                    self.records.over(self.world.thread(op.by), "its next job")
            case Alloc() | Free() | Touch():
                if op.pool == self.names.pool:
                    self.life.take(fact, op)

    def end(self) -> list[str]:
        """The trace is over, perhaps in the middle of a step; why it shows too little, if it breaks off in a work."""
        return [
            f"it ends before {event} is recorded behind op {self.world.snapshots[snapshot].op}"
            for waiting in self.steps.unrecorded.values()
            for event, snapshot in waiting.items()
        ]

    # ── accesses ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _access(self, fact: Fact, op: Access) -> None:
        label = self.names.label(op.label)
        work = self._works.get(label)
        reads, writes = op.reads.get(self.names.pool), op.writes.get(self.names.pool)
        at = f"{op.label or 'access'} on {op.on or 'the host'}"
        if work is None or (op.on is not None and self.names.stream(op.on)) != (work.on or False):
            if reads or writes:
                have = ", ".join(f"{one.name} on {one.on or 'the host'}" for one in self._works.values())
                raise RefusalError(fact.index, at, f"expected a work of the design to touch {self.names.pool}: {have}"
                                   " (other names: --map label:NAME=WORK, stream:NAME=STREAM)")  # fmt: skip
            return
        modes: dict[int, list[int]] = {0: [], READ: [], WRITE: [], READ | WRITE: []}
        if reads is None or writes is None:
            for touched, mode in ((reads, READ), (writes, WRITE)):
                modes[mode] += touched or ()
        else:
            r, w = set(reads), set(writes)
            for mode, ids in ((READ, r - w), (WRITE, w - r), (READ | WRITE, r & w)):
                modes[mode] += sorted(ids)
        if op.batch and any(touched is not None and touched.repeats for touched in (reads, writes)):
            raise RefusalError(fact.index, at, "batch order: expected each block once in a batch")
        self._work(fact, op, work, modes, at)

    def _work(self, fact: Fact, op: Access, work: Work, modes: Mapping[int, list[int]], at: str) -> None:
        thread = self._thread.get(work.name, MAIN)
        by = self.world.thread(op.by)
        if thread != MAIN and by != thread:
            raise RefusalError(fact.index, at, f"expected thread {thread} to do it, not {by}")
        if thread == MAIN and op.by != self.names.main and fact.heard < 0:
            raise RefusalError(fact.index, at, f"expected {MAIN} to do it, or to hand it over; {by} was given nothing")
        fresh = False
        if thread == MAIN:
            before = len(self.world.steps)
            self.steps.visit(self._index[work.name])
            fresh = len(self.world.steps) > before
        else:
            self.records.over(by, f"{work.name} is next")
        self._source(fact, op, work, modes, at)
        marks = {
            event: self.world.take(fact.after, fact.index, work.on, event, named=event in self.names.named)
            for event in work.signals
        }
        entry = None
        if work.publishes is not None:
            entry = len(self.world.entries)
            self.world.entries.append(Entry(work.publishes))
        given: dict[str, set[int]] = {event: set() for event in work.after}
        for mode, ids in modes.items():
            for cells, some in self.partition.split(ids):
                after = self._touch(fact, op, work, mode, cells, some[0], at, fresh=fresh, marks=marks, entry=entry,
                                    given=given)  # fmt: skip
                self.partition.assign(some, after)
        if not any(modes.values()):
            self._unaimed(fact, work, at)
        self.edges.extra(work, [one for held in given.values() for one in held])
        self.edges.count(work, {event: 0 for event, held in given.items() if held})
        self.works[work.name] += any(modes.values())
        self.records.done(fact, work, thread, by, marks, entry, [i for ids in modes.values() for i in ids])

    def _unaimed(self, fact: Fact, work: Work, at: str) -> None:
        """A work for blocks that the design is not about waits for what is one object for all blocks all the same."""
        for event in work.after:
            if event in self.names.named and self.world.shared(event):
                lacking = self.edges.missing(fact, work, Cell(self.blocks.start), {}, reads=False)
                if lacking is not None:
                    raise RefusalError(fact.index, at, lacking)

    def _source(self, fact: Fact, op: Access, work: Work, modes: Mapping[int, list[int]], at: str) -> None:
        """Reads out of stream order: where the stream alone ordered them behind a write of its own."""
        if modes[READ] or modes[READ | WRITE]:
            if work.order == "call" and op.order != "call":
                raise RefusalError(fact.index, at, f"source order {op.order}: expected call")
            if op.order != "stream" and work.order == "stream" and work.on in self._both and op.on is not None:
                agent = self._agents.get(Agent(op.on), len(fact.reads))
                known = fact.reads[agent] if agent < len(fact.reads) else 0
                for i in (*modes[READ], *modes[READ | WRITE]):
                    if self._wrote.get(i, -1) >= known:
                        raise RefusalError(
                            fact.index,
                            at,
                            f"source order {op.order}: expected stream, which orders the read of {self.names.pool} {i}"
                            f" behind op {self._wrote[i]}",
                        )
        if work.on in self._both:
            self._wrote.update(dict.fromkeys((*modes[WRITE], *modes[READ | WRITE]), fact.index))

    def _touch(
        self, fact: Fact, op: Access, work: Work, mode: int, cells: Cells, block: int, at: str, *, fresh: bool,
        marks: Mapping[str, int], entry: int | None, given: Mapping[str, set[int]],
    ) -> Cells:  # fmt: skip
        """What a block may be after this work touched it so."""
        able = [cell for cell in cells if self._fits(op, work, mode, cell)]
        virtual: Mapping[str, int] = {}
        if not able and not fresh and work.name in self._index and not self.names.named:
            later, virtual = self.steps.later(cells, self._index[work.name])
            able = [cell for cell in later if self._fits(op, work, mode, cell)]
        does = {READ: "reads", WRITE: "writes", READ | WRITE: "reads and writes"}[mode]
        at = f"{at} {does} {self.names.pool} {block}"
        if not able:
            raise RefusalError(fact.index, at, self._unfit(work, mode, cells))
        gathered, why = Gathered(), ""
        for cell in able:
            lacking = self._handed(fact, work, cell) or self.edges.missing(fact, work, cell, virtual,
                                                                           reads=bool(mode & READ))  # fmt: skip
            if lacking is not None:
                why = lacking
                continue
            for event in work.after:
                held = self.edges.holds(event, cell, work, virtual)
                if held != NOBODY:
                    given[event].add(held)
            self.world.rules |= cell.via
            for one in self._after(cell, work, mode, marks, entry):
                gathered.add(one)
        if not gathered.by:
            raise RefusalError(fact.index, at, why)
        return gathered.cells()

    def _fits(self, op: Access, work: Work, mode: int, cell: Cell) -> bool:
        """Whether the design lets the work do that to the block. What a work writes it may read too, in stream order:
        the read stands where the write stands, and whoever is ordered with the write is ordered with it."""
        reads, writes = self.blocks.mode(work, cell.block)
        r, w = bool(mode & READ), bool(mode & WRITE)
        if w != writes and not (reads and writes):
            return False
        return r == reads or (w and writes and (reads or (r and op.order == "stream" and not op.batch)))

    def _unfit(self, work: Work, mode: int, cells: Cells) -> str:
        wants = [str(guard) for bit, guard in ((READ, work.reads), (WRITE, work.writes))
                 if mode & bit and guard is not None]  # fmt: skip
        does = {READ: "read", WRITE: "write", READ | WRITE: "read and write"}[mode]
        be = list(dict.fromkeys(self.blocks.words(cell.block) for cell in cells))
        states = " or ".join(be[:3]) + (" or ..." if len(be) > 3 else "")
        if not wants:
            return f"{work.name}: expected it not to {does} blocks; the block is {states}"
        lacking = self._almost(work, mode, cells)
        return f"{work.name}: expected a block with {' or '.join(wants)} to {does}; it is {states}" + lacking

    def _almost(self, work: Work, mode: int, cells: Cells) -> str:
        """The rule that would have let it, and what it needs."""
        for cell in cells:
            for move in self.blocks.moves(cell.block):
                lacking = self.steps.lacks(cell, move)
                if move.rule is not None and not move.crosses and lacking is not None:
                    reads, writes = self.blocks.mode(work, move.block)
                    if (reads and mode & READ) or (writes and mode & WRITE):
                        return f", and {move.rule.name!r} needs {lacking}"
        return ""

    def _handed(self, fact: Fact, work: Work, cell: Cell) -> str | None:
        """Whether the thread was given the block's job."""
        if work.takes is None or work.name not in self._thread:
            return None
        job = next((job for job in cell.jobs if job.queue == work.takes), None)
        if job is None or fact.heard >= job.at:
            return None
        return f"{work.name}: expected a get of its job of {work.takes!r}, put at op {job.at} or later"

    def _after(self, cell: Cell, work: Work, mode: int, marks: Mapping[str, int], entry: int | None) -> Iterable[Cell]:
        """With what the work does to the block; of a forward that writes, also what it was: it may not be full yet."""
        own, job = cell.marks, work.name in self._thread
        for event, snapshot in marks.items():
            if event in self.records.kept and not (job and event in self.names.named):
                own = put(own, event, snapshot)
        if entry is not None:
            own = put(own, QUEUE + str(work.publishes), entry)
        block = self.blocks.then(cell.block, work.then)
        if work.name in self._index and not work.every_step and any(self.blocks.mode(work, block)):
            own = put(own, DID + work.name, 0)
        used = len(self.world.steps) if self.blocks.uses and work.name in self._index else 0
        done = cell._replace(
            block=cell.block if job else block,
            marks=own,
            ending=work.name if job else cell.ending,
            jobs=tuple(job for job in cell.jobs if job.queue != work.takes),
            last_use=used if used and work.on == self._recorder else cell.last_use,
            begun=False,
            via=0,
        )
        yield done
        if work.every_step and mode & WRITE and done.block != cell.block:
            known = not any(event in self.records.kept for event in work.signals)  # nothing of its own is recorded anew
            yield done._replace(block=cell.block, begun=known and self.steps.fills(cell, work))

    # ── hand-offs and syncs ───────────────────────────────────────────────────────────────────────────────────────

    def _put(self, fact: Fact, op: Put) -> None:
        by = self.world.thread(op.by)
        if by == MAIN:
            if self.design.threads:
                self._submit(op)
            return
        self.records.publish(by, op)

    def _submit(self, op: Put) -> None:
        queue = self.names.queue(op.token)
        known = queue in self.design.queues
        index = self.steps.first_submit(queue if known else None)
        if index is None:
            return
        self.steps.visit(index)
        items = [item for item in self.design.step[index:] if isinstance(item, Submit)]
        for item in items[:1] if known else items:
            self.partition.each(lambda cells, _, item=item: self.steps.submitted(cells, item, anew=not known))  # type: ignore[misc]

    def _synced(self, op: Sync, index: int) -> None:
        if op.stream is not None:
            self.world.sync(self.names.stream(op.stream), index)
        else:
            for stream in self.design.streams:
                self.world.sync(stream.name, index)


def _recorder(design: Design) -> str | None:
    """The stream on which a step is seen to be complete."""
    event = design.step_event
    for item in design.step:
        if isinstance(item, Mark) and item.event == event:
            return item.on
        if isinstance(item, Work) and event in item.signals:
            return item.on
    return None
