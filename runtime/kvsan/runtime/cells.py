"""The blocks of one pool under a design's rules: what state each is in, and what a scheduler's rule does to it.

A rule applies to a block if its guard holds, its polls answer true, its hand-offs have arrived and its steps were seen
(`needs`); then the facets change at once, or are held until the fence is seen (`free`). Which rule is applied to which
block is the scheduler's choice (`scheduler.py`), or an explorer's. What is free is read off the state: the pool is told
when a block comes and goes, and so is the host (`alloc`, `free`, `touch`, `plan`).

Not here: what a step issues (`issue.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from kvsan.model.design import Assign, Design, Fence, Got, Retired, Rule, Seen
from kvsan.runtime.device import Host, Ids
from kvsan.runtime.flight import Flight
from kvsan.runtime.table import Codes, Table, Truth

NONE: Ids = np.empty(0, np.int64)

Saved = tuple[
    Codes,
    npt.NDArray[np.int64],
    dict[str, dict[int, str]],
    dict[str, str],
    dict[Assign, dict[int, int]],
    dict[str, set[int]],
]
"""What `Cells.save` keeps: states, last uses, events (a block's, everybody's), holds, arrived hand-offs."""


class Cells:
    """`count` blocks of the design's pool, all fresh. `pool` is the pool's name if it is not the design's.

    `on_free` and `on_take` are told of blocks that became free, or are no longer.
    """

    def __init__(
        self,
        design: Design,
        count: int,
        flight: Flight,
        host: Host,
        *,
        pool: str | None = None,
        on_free: Callable[[Ids], None] | None = None,
        on_take: Callable[[Ids], None] | None = None,
    ) -> None:
        self.design, self.pool, self.table, self.flight, self.host = (
            design,
            pool or design.pool,
            Table(design),
            flight,
            host,
        )
        self.code: Codes = np.full(count, self.table.start, np.int32)
        self.last_use: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        self.rules = {rule.name: rule for rule in design.rules}
        self.per = {event.name: event.per for event in design.events}
        self._events: dict[str, dict[int, str]] = {
            name: {} for name, per in self.per.items() if per in ("block", "transfer")
        }
        self._shared: dict[str, str] = {}
        self._held: dict[Assign, dict[int, int]] = {}
        self._got: dict[str, set[int]] = {}
        self._known: set[str] = set()
        self._when: dict[str, Truth] = {}
        self._on_free, self._on_take = on_free, on_take

    def __len__(self) -> int:
        return len(self.code)

    # ── what holds ────────────────────────────────────────────────────────────────────────────────────────────────

    def where(self, truth: npt.NDArray[np.bool_]) -> Ids:
        """The blocks of whose state it is true."""
        return np.flatnonzero(truth[self.code])

    def when(self, rule: Rule) -> Truth:
        """Whether the rule's guard holds, state by state."""
        made = self._when.get(rule.name)
        if made is None:
            made = self._when[rule.name] = self.table.truth(rule.when)
        return made

    def facets(self, block: int) -> dict[str, str]:
        """One block's facet values."""
        return self.table.facets(int(self.code[block]))

    @property
    def free(self) -> Ids:
        """The blocks that may be handed out."""
        return self.where(self.table.free)

    def allowed(self, rule: Rule, blocks: Ids) -> Ids:
        """Those of the blocks of which the rule's guard holds and whose steps were seen; nothing is asked of the
        device."""
        blocks = blocks[self.when(rule)[self.code[blocks]]]
        for need in rule.needs:
            if isinstance(need, Retired):
                blocks = blocks[self._fence(need.fence, blocks) <= self.flight.seen]
            elif isinstance(need, Got):
                here = self._got.get(need.queue, set())
                blocks = np.array([block for block in blocks.tolist() if block in here], np.int64)
        return blocks

    def enabled(self, rule: Rule, blocks: Ids, query: Callable[[str], bool] | None = None) -> Ids:
        """Those of the blocks to which the rule applies now. Polls the events that it needs, each once."""
        blocks = self.allowed(rule, blocks)
        query = query or self.host.query
        for need in rule.needs:
            if isinstance(need, Seen) and len(blocks):
                events = [self.event(need.event, block) for block in blocks.tolist()]
                seen = self._seen(list(dict.fromkeys(event for event in events if event is not None)), query)
                # an event never recorded is complete
                blocks = blocks[np.array([event is None or event in seen for event in events], bool)]
        return blocks

    def known(self, event: str) -> None:
        """The host knows that this transfer's event is complete."""
        self._known.add(event)

    def _seen(self, events: list[str], query: Callable[[str], bool]) -> set[str]:
        """Which of the event objects are complete. One name's transfers are of one stream, so they end in the order in
        which they were made, and nobody asks for those behind one that is not complete."""
        seen = set()
        for event in sorted(events, key=_number):
            if not query(event):
                break
            seen.add(event)
            self._known.add(event)
        return seen

    def event(self, name: str, block: int) -> str | None:
        """The event object that the name stands for at this block; None if there is none yet."""
        return self._events[name].get(block) if name in self._events else self._shared.get(name)

    def instances(self, name: str, blocks: Ids) -> list[str]:
        """The event objects that the name stands for at these blocks, each once."""
        if name not in self._events:
            one = self._shared.get(name)
            return [] if one is None else [one]
        mine = self._events[name]
        return list(dict.fromkeys(mine[block] for block in blocks.tolist() if block in mine))

    @property
    def transfers(self) -> list[str]:
        """The event objects of transfers that a rule asks for, of blocks as they are, the oldest first, but for
        those that the host knows complete: a rule need not come up while a block is in its state."""
        out: dict[str, None] = {}
        for rule in self.design.rules:
            for need in rule.needs:
                if isinstance(need, Seen) and self.per[need.event] == "transfer":
                    mine, holds, code = self._events[need.event], self.when(rule), self.code
                    out.update(
                        (event, None)
                        for block, event in mine.items()
                        if holds[code[block]] and event not in self._known
                    )
        return sorted(out, key=_number)

    # ── what changes ──────────────────────────────────────────────────────────────────────────────────────────────

    def apply(self, name: str, blocks: Iterable[int] | Ids) -> Ids:
        """Applies the rule to those of the blocks to which it applies, and returns them."""
        rule = self.rules[name]
        at = self.enabled(rule, np.fromiter(blocks, np.int64) if not isinstance(blocks, np.ndarray) else blocks)
        if len(at):
            self.force(rule, at)
        return at

    def force(self, rule: Rule, blocks: Ids) -> None:
        """Applies the rule to blocks that are known to be `enabled`."""
        for need in rule.needs:
            if isinstance(need, Got):
                self._got[need.queue].difference_update(blocks.tolist())
        for need in rule.needs:
            if isinstance(need, Seen) and self.per[need.event] == "transfer":
                for block in blocks.tolist():
                    self._leave(need.event, block)
        for stream, event in rule.records:
            for block in blocks.tolist():
                one = self.noted(event, np.array([block], np.int64))
                self.host.record(stream, one)
        if rule.free is None:
            self.set(blocks, self.table.after(rule.then), keeps=rule.keeps)
            return
        fences = np.broadcast_to(self._fence(rule.free.fence, blocks), blocks.shape)
        self.set(blocks, self.table.after(rule.then, hold=True))
        held = self._held.setdefault(rule.then, {})
        for block, fence in zip(blocks.tolist(), fences.tolist(), strict=True):
            held[block] = fence
        self.settle()

    def settle(self) -> Ids:
        """Ends the holds whose fence was seen; returns the blocks."""
        out: list[int] = []
        for then, held in self._held.items():
            due = [block for block, fence in held.items() if fence <= self.flight.seen]
            if due:
                for block in due:
                    del held[block]
                self.set(np.array(due, np.int64), self.table.returned(then))
                out += due
        return np.array(out, np.int64)

    def set(self, blocks: Ids, after: Codes, *, keeps: bool = False) -> None:
        """The blocks' states become what the table says; whoever has to know is told."""
        old = self.code[blocks]
        new = after[old]
        self.code[blocks] = new
        was, now = self.table.free[old], self.table.free[new]
        taken, freed = blocks[was & ~now], blocks[now & ~was]
        if len(taken):
            (self.host.touch if keeps else self.host.alloc)(self.pool, taken)
            if self._on_take is not None:
                self._on_take(taken)
        for work, due in self.table.planned.items():
            planned = blocks[due[new] & ~due[old]]
            if len(planned):
                self.host.plan(self.pool, planned, work)
        if len(freed):
            self.host.free(self.pool, freed)
            if self._on_free is not None:
                self._on_free(freed)

    def noted(self, name: str, blocks: Ids, instance: str | None = None) -> str:
        """The event object that a record of the name is made on, and from now on the one of these blocks (of an event a
        block, the last one's). `instance`: a fresh one, for a transfer or a step."""
        per = self.per[name]
        if per == "block":
            one = ""
            for block in blocks.tolist():
                one = self._events[name][block] = f"{name}#{block}"
            return one
        if per == "transfer":
            assert instance is not None
            self._known.discard(instance)
            self.flight.use(instance, len(blocks))
            for block in blocks.tolist():
                self._leave(name, block)
                self._events[name][block] = instance
            return instance
        one = self._shared[name] = name if per == "design" else str(instance)
        return one

    def _leave(self, name: str, block: int) -> None:
        """The transfer's event is not this block's any more: it was seen, or there is a newer one."""
        old = self._events[name].pop(block, None)
        if old is not None and self.flight.leave(old):
            self._known.discard(old)
            self.host.drop(old)

    # ── there and back ────────────────────────────────────────────────────────────────────────────────────────────

    def save(self) -> Saved:
        """All that changes, as it is now. For whoever tries one choice and then another."""
        return (
            self.code.copy(),
            self.last_use.copy(),
            {name: dict(mine) for name, mine in self._events.items()},
            dict(self._shared),
            {then: dict(held) for then, held in self._held.items() if held},
            {queue: set(blocks) for queue, blocks in self._got.items() if blocks},
        )

    def load(self, saved: Saved) -> None:
        """As it was at `save`, which stays as it is and may be loaded again."""
        code, last_use, events, shared, held, got = saved
        self.code, self.last_use = code.copy(), last_use.copy()
        self._events = {name: dict(mine) for name, mine in events.items()}
        self._shared = dict(shared)
        self._held = {then: dict(mine) for then, mine in held.items()}
        self._got = {queue: set(blocks) for queue, blocks in got.items()}

    @property
    def held(self) -> dict[int, tuple[Assign, int]]:
        """For each block whose free is held: what is set when it ends, and the step that it waits for."""
        return {block: (then, fence) for then, held in self._held.items() for block, fence in held.items()}

    @property
    def bound(self) -> dict[str, dict[int, str]]:
        """For each event of a block or transfer, which object it is at which block. Not to be changed."""
        return self._events

    @property
    def shared(self) -> dict[str, str]:
        """For each event that all blocks share, the object that it is now. Not to be changed."""
        return self._shared

    @property
    def arrived(self) -> dict[str, frozenset[int]]:
        """For each queue the blocks whose entry was taken and no rule has used yet."""
        return {queue: frozenset(blocks) for queue, blocks in self._got.items() if blocks}

    def got(self, queue: str, blocks: Ids) -> None:
        """The entry of these blocks was taken from the queue."""
        self._got.setdefault(queue, set()).update(blocks.tolist())

    def _fence(self, fence: Fence, blocks: Ids) -> npt.NDArray[np.int64]:
        if fence is Fence.LAST_USE:
            return self.last_use[blocks]
        number = self.flight.launched + (1 if fence is Fence.NEXT else 0)
        return np.full(len(blocks), number, np.int64)


def _number(event: str) -> int:
    """`load_done#17`: 17."""
    return int(event.rpartition("#")[2]) if "#" in event else 0
