"""What can happen next to one block: a design as a transition system over control states.

Order plays no part: no action is enabled or disabled by what is known to be complete, because in this language
a poll that answers false does nothing. So the control states are few, and order is a second component on top of
them (`search`).

Steps: with a bounded run-ahead the unseen steps are counted. Unbounded, only the *order* of the steps that
somebody refers to is kept (the block's last use, the fence of a held free): between two of them any number of
steps may lie, because a step that does not use the block is always possible. Both are exact.

Environment closure: another block's op adds knowledge, which can only hide a race, so it is left out; except
where it re-records an event object on another stream, which takes knowledge away. Such an op has a twin that
waits and records without touching the block. Without the twins a protocol with a misplaced shared record is
"proved" (`designs/shared-event-trap`).
"""

from __future__ import annotations

from collections.abc import Iterator

from kvsan.model.design import (
    MAIN,
    Assign,
    Block,
    Design,
    DesignError,
    Fence,
    Got,
    Item,
    Mark,
    Retired,
    Rule,
    Seen,
    Submit,
    Work,
)
from kvsan.model.ops import Access, Drop, Get, Op, Poll, Put, Record, Sync
from kvsan.model.proof.actions import (
    FENCE,
    IDLE,
    LAST_USE,
    OTHER,
    READS,
    UNLAUNCHED,
    WRITES,
    Action,
    Control,
    Next,
    Pc,
    Touch,
    calls,
    mode_of,
    slot,
    takes_away,
    words_of,
)


class System:
    """The transition system of a design at a run-ahead (None: any). `others`: every work also runs for other blocks,
    not only where that takes knowledge away."""

    def __init__(self, design: Design, run_ahead: int | None, *, others: bool = False) -> None:
        self.design, self.run_ahead = design, run_ahead
        self.names = tuple(facet.name for facet in design.facets)
        self.threads = (MAIN, *(thread.name for thread in design.threads))
        self.split = bool(design.threads)
        self._at = {name: i for i, name in enumerate(self.names)}
        needs = [need for rule in design.rules for need in rule.needs]
        frees = [rule.free for rule in design.rules if rule.free is not None]
        self.uses = any(n == Retired(Fence.LAST_USE) for n in (*needs, *frees))
        facets = {facet for rule in design.rules if rule.free is not None for facet, _ in rule.then}
        if len(facets) > 1:
            raise DesignError(
                f"{design.name}: held frees change {' and '.join(sorted(facets))}; a block is held in one facet"
            )
        self._recorder = next(
            (
                stream
                for stream, event in (
                    *((i.on, i.event) for i in design.step if isinstance(i, Mark)),
                    *((w.on, e) for w in design.works() for e in w.signals),
                )
                if event == design.step_event
            ),
            None,
        )
        self._made: dict[tuple[str, int, int, tuple[Op, ...]], tuple[Action, bool]] = {}
        self._blocks: dict[tuple[str, ...], dict[str, str]] = {}
        self._twins = {work.name for work in design.works() if others or takes_away(design, work)}

    @property
    def start(self) -> Control:
        return Control(tuple(f.values[0] for f in self.design.facets), (IDLE,) * len(self.threads))

    def facets(self, state: Control) -> dict[str, str]:
        """The block's facets by name (shared; do not change it)."""
        found = self._blocks.get(state.block)
        if found is None:
            found = self._blocks[state.block] = dict(zip(self.names, state.block, strict=True))
        return found

    def free(self, state: Control) -> bool:
        return self.design.free.holds(self.facets(state))

    def idle(self, state: Control) -> bool:
        """Whether the scheduler is between two steps."""
        return state.pcs[0] == IDLE

    def wanted(self, state: Control) -> bool:
        """Whether a step has something to do for this block: else only another request would launch it."""
        block = self.facets(state)
        return any(
            any(item.mode(block)) if isinstance(item, Work) else item.when is not None and item.when.holds(block)
            for item in self.design.step
            if isinstance(item, Work | Submit | Block)
        )

    def next(self, state: Control) -> Iterator[Next]:
        """Every action that is possible, in a fixed order."""
        block = self.facets(state)
        if self.idle(state):
            yield from self._see(state)
            yield from self._return(state)
            for rule in self.design.rules:
                yield from self._rule(rule, state, block)
            if self.run_ahead is None or state.unseen <= self.run_ahead:
                yield Action("launch a step", MAIN, "launch", "step"), self._at_pc(state, 0, (0, 0, 0, 0))
        else:
            yield from self._in_step(state, block)
        for index, thread in enumerate(self.design.threads, 1):
            yield from self._job(index, thread.name, thread.jobs, state, block)

    # ── the scheduler ─────────────────────────────────────────────────────────────────────────────────────────────

    def _see(self, state: Control) -> Iterator[Next]:
        """The host learns that the oldest unseen step is complete (unbounded: up to the oldest that matters)."""
        if self.run_ahead is not None:
            if not state.unseen:
                return
            down = state._replace(
                unseen=state.unseen - 1,
                last_use=max(0, state.last_use - 1),
                fence=state.fence if state.fence == UNLAUNCHED else max(0, state.fence - 1),
            )
            poll = (Poll(MAIN, slot(1), done=True),) if self.design.step_event else ()
            shift = tuple((slot(n), slot(n + 1)) for n in range(1, state.unseen)) if poll else ()
            gone = (slot(state.unseen),) if poll else ()
            yield Action("the host sees a step complete", MAIN, "see", "step", poll, None, shift, gone), down
            return
        known = [(rank, name) for rank, name in ((state.last_use, LAST_USE), (state.fence, FENCE)) if rank]
        lowest = min((rank for rank, _ in known), default=UNLAUNCHED)
        if lowest == UNLAUNCHED:
            return
        names = tuple(name for rank, name in known if rank == lowest)
        ops = tuple(Poll(MAIN, name, done=True) for name in names)
        after = _ranked(state, last_use=state.last_use if state.last_use > lowest else 0,
                        fence=state.fence if state.fence > lowest else 0)  # fmt: skip
        yield Action("the host sees a step complete", MAIN, "see", "step", ops, None, (), names), after

    def _return(self, state: Control) -> Iterator[Next]:
        if state.fence:
            return
        for at, value in enumerate(state.block):
            if value.startswith("held:"):
                sets = ((self.names[at], value.removeprefix("held:")),)
                action = Action("the fence is seen: the block returns", MAIN, "return", "return", sets=sets)
                yield action, self._then(state, sets)

    def _rule(self, rule: Rule, state: Control, block: dict[str, str]) -> Iterator[Next]:
        if not rule.when.holds(block):
            return
        ops: list[Op] = []
        for need in rule.needs:
            if isinstance(need, Seen):
                ops.append(Poll(MAIN, need.event, done=True))
            elif isinstance(need, Got):
                ops.append(Get(MAIN, need.queue))
            elif state.last_use:
                return
        ops += [Record(MAIN, stream, event) for stream, event in rule.records]
        copies: tuple[tuple[str, str], ...] = ()
        sets = rule.then
        if rule.free is not None:
            sets = tuple((facet, f"held:{value}") for facet, value in rule.then)
        after = self._then(state, sets)
        if rule.free is not None:
            after, copies = self._fenced(after, rule.free.fence)
        yield Action(rule.name, MAIN, "rule", rule.name, tuple(ops), None, copies, sets=sets), after

    def _fenced(self, state: Control, fence: Fence) -> tuple[Control, tuple[tuple[str, str], ...]]:
        if fence is Fence.NEXT:
            return state._replace(fence=UNLAUNCHED), ()
        if self.run_ahead is not None:
            return state._replace(fence=state.last_use if fence is Fence.LAST_USE else state.unseen), ()
        if fence is Fence.LAST_USE:
            return _ranked(state, fence=state.last_use), ((FENCE, LAST_USE),) if state.last_use else ()
        return _ranked(state, fence=state.last_use + 1), ((FENCE, str(self.design.step_event)),)

    # ── the step ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _in_step(self, state: Control, block: dict[str, str]) -> Iterator[Next]:
        index, done, phase, _ = state.pcs[0]
        items = self.design.step
        if phase:
            item = items[index]
            assert isinstance(item, Work)
            yield self._work(item, MAIN, 0, state, state.pcs[0])
            return
        before: list[Op] = []
        while index < len(items):
            item = items[index]
            last = self._group_end(index)
            busy = False
            for at in range(index, last):
                member = items[at]
                if not done & (1 << (at - index)):
                    yield from self._member(member, state, block, (at, done, 0, 0), tuple(before))
                    busy = busy or self._due(member, block)
            if busy:
                return
            if isinstance(item, Mark):
                before.append(Record(MAIN, item.on, item.event))
            index, done = last, 0
        yield self._end(state, tuple(before))

    def _due(self, item: Item, block: dict[str, str]) -> bool:
        match item:
            case Work():
                return item.every_step or any(item.mode(block))
            case Submit():
                return item.when.holds(block)
            case Block():
                return item.when is None or item.when.holds(block)
            case Mark():
                return self.split

    def _member(
        self, item: Item, state: Control, block: dict[str, str], pc: Pc, before: tuple[Op, ...]
    ) -> Iterator[Next]:
        """The item at `pc`, if it is due, and its twin, if another block's could take knowledge away."""
        due = self._due(item, block)
        match item:
            case Mark():
                if due:
                    action = Action(f"record {item.event} on {item.on}", MAIN, "call", item.event,
                                    (*before, Record(MAIN, item.on, item.event)))  # fmt: skip
                    yield action, self._after(state, pc)
            case Block():
                if due:
                    ops = () if item.event is None else (Sync(MAIN, event=item.event),)
                    yield (
                        Action(item.name, MAIN, "work", item.name, (*before, *ops), sets=item.then),
                        self._after(self._then(state, item.then), pc),
                    )
            case Submit():
                if due:
                    fresh = tuple(Drop(MAIN, event) for event in item.creates)
                    yield (
                        Action(
                            item.name,
                            MAIN,
                            "work",
                            item.name,
                            (*before, *fresh, Put(MAIN, item.queue)),
                            sets=item.then,
                        ),
                        self._after(self._then(state, item.then), pc),
                    )
            case Work():
                reads, writes = item.mode(block)
                if due:
                    yield self._work(item, MAIN, 0, state, (*pc[:3], mode_of(reads, writes)), before)
                if item.name in self._twins and not item.every_step:
                    yield self._work(item, MAIN, 0, state, (*pc[:3], OTHER), before)

    def _end(self, state: Control, before: tuple[Op, ...]) -> Next:
        """The step is launched; it becomes one of the unseen ones."""
        event = self.design.step_event
        copies: list[tuple[str, str]] = []
        after = self._at_pc(state, 0, IDLE)._replace(used=False)
        if self.run_ahead is not None:
            top = state.unseen + 1
            if event:
                copies.append((slot(top), event))
            after = after._replace(unseen=top)
        else:
            top = 1 + max(state.last_use, 0 if state.fence == UNLAUNCHED else state.fence)
        if state.used and self.uses:
            after = after._replace(last_use=top)
            copies += [(LAST_USE, str(event))] if self.run_ahead is None else []
        if state.fence == UNLAUNCHED:
            after = after._replace(fence=top)
            copies += [(FENCE, str(event))] if self.run_ahead is None else []
        if self.run_ahead is None:
            after = _ranked(after)
        return Action("end of the step", MAIN, "end", "step", before, None, tuple(copies)), after

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _job(
        self, index: int, thread: str, jobs: tuple[Work, ...], state: Control, block: dict[str, str]
    ) -> Iterator[Next]:
        pc = state.pcs[index]
        if pc != IDLE:
            yield self._work(jobs[pc[0]], thread, index, state, pc)
            return
        for at, job in enumerate(jobs):
            reads, writes = job.mode(block)
            if reads or writes:
                yield self._work(job, thread, index, state, (at, 0, 0, mode_of(reads, writes)))
            if job.name in self._twins:
                yield self._work(job, thread, index, state, (at, 0, 0, OTHER))

    def _work(self, work: Work, thread: str, index: int, state: Control, pc: Pc, before: tuple[Op, ...] = ()) -> Next:
        """One call of the work (all of it, with a single host thread), and where the thread stands afterwards."""
        at, done, phase, mode = pc
        action, final = self._call(work, thread, phase, mode, before)
        if action.touch is not None and index == 0 and work.on == self._recorder:
            state = state._replace(used=self.uses)
        after = self._then(state, action.sets)
        if index:
            return action, self._at_pc(after, index, IDLE if final else (at, done, phase + 1, mode))
        return action, self._after(after, pc) if final else self._at_pc(after, 0, (at, done, phase + 1, mode))

    def _call(self, work: Work, thread: str, phase: int, mode: int, before: tuple[Op, ...]) -> tuple[Action, bool]:
        """The action, and whether the work is over with it."""
        key = (work.name, phase, mode, before)
        made = self._made.get(key)
        if made is None:
            every = calls(self.design, work, thread, mode)
            now = every[phase : phase + 1] if self.split else every
            final = not self.split or phase + 1 == len(every)
            ops = tuple(op for _, ops in now for op in ops)
            runs = any(isinstance(op, Access) for op in ops)
            reads, writes = bool(mode & READS), bool(mode & WRITES)
            made = self._made[key] = (
                Action(
                    label=f"{work.name} {words_of(mode)}" if runs else f"{work.name}: {now[0][0]}",
                    thread=thread,
                    kind="work" if runs and mode != OTHER else "call",
                    of=work.name,
                    ops=before + ops,
                    touch=Touch(work.name, reads, writes, work.order) if runs and (reads or writes) else None,
                    sets=work.then if final and (reads or writes) else (),
                ),
                final,
            )
        return made

    # ── bookkeeping ───────────────────────────────────────────────────────────────────────────────────────────────

    def _then(self, state: Control, then: Assign) -> Control:
        if not then:
            return state
        block = list(state.block)
        for facet, value in then:
            block[self._at[facet]] = value
        return state._replace(block=tuple(block))

    def _at_pc(self, state: Control, index: int, pc: Pc) -> Control:
        return state._replace(pcs=(*state.pcs[:index], pc, *state.pcs[index + 1 :]))

    def _after(self, state: Control, pc: Pc) -> Control:
        """The main thread behind the item at `pc`; a twin stays where it is, another may follow."""
        at, done, _, mode = pc
        first = self._group_start(at)
        if self._group_end(first) - first > 1:
            bit = 0 if mode & OTHER else 1 << (at - first)
            return self._at_pc(state, 0, (first, done | bit, 0, 0))
        return self._at_pc(state, 0, (at if mode & OTHER else at + 1, 0, 0, 0))

    def _group_end(self, index: int) -> int:
        items, group = self.design.step, _group(self.design.step[index])
        end = index + 1
        while group is not None and end < len(items) and _group(items[end]) == group:
            end += 1
        return end

    def _group_start(self, index: int) -> int:
        group = _group(self.design.step[index])
        while group is not None and index and _group(self.design.step[index - 1]) == group:
            index -= 1
        return index


def _group(item: Item) -> int | None:
    return item.group if isinstance(item, Work | Submit) else None


def _ranked(state: Control, **changed: int) -> Control:
    """Unbounded run-ahead: only the order of the steps referred to matters."""
    state = state._replace(**changed) if changed else state  # type: ignore[arg-type]  # positions only
    ranks = sorted({rank for rank in (state.last_use, state.fence) if 0 < rank < UNLAUNCHED})
    where = {0: 0, UNLAUNCHED: UNLAUNCHED} | {rank: i for i, rank in enumerate(ranks, 1)}
    return state._replace(last_use=where[state.last_use], fence=where[state.fence])
