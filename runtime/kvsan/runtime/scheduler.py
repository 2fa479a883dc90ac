"""Continuous batching: which requests the next step serves, which blocks they get, and which they lose.

In the order of arrival: what runs goes on, then what waits is let in, with the blocks of its prefix that the device
still holds and those that the host pool can bring back. Under pressure the youngest running request is preempted and
computed anew. A window slides on what is launched, not on what is seen, as engines do; whether a block may really go
at that moment is the design's word, and one that may not is left until it may.

Every state of a block changes by a rule of the design (`cells.py`), found by its role (`roles.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvsan.runtime.cells import NONE
from kvsan.runtime.device import Ids
from kvsan.runtime.forward import Batch
from kvsan.runtime.language import UNKNOWN, Group, Model, prefix_hash
from kvsan.runtime.pool import Pool
from kvsan.runtime.requests import EMPTY, Active, State
from kvsan.runtime.roles import Roles
from kvsan.runtime.transfers import Transfers


class EngineError(RuntimeError):
    """The engine cannot go on, or cannot take the request: what is wrong and what would help."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a step's forward computes. `served`: whom, and how many tokens; `samples`: those of them that get a token.
    `batch` is None if nobody is served. `touched`: the blocks that it reads or writes; `full`: those that it fills."""

    served: tuple[tuple[Active, int], ...] = ()
    samples: tuple[Active, ...] = ()
    batch: Batch | None = None
    touched: Ids = field(default_factory=lambda: NONE)
    full: Ids = field(default_factory=lambda: NONE)


class Scheduler:
    """`budget`: tokens a step computes at most. `slots`: requests at a time. `longest`: blocks of one group that a
    request may have. `tables`: what the tables of the active requests hold, by group, slot and block index.
    """

    def __init__(
        self,
        model: Model,
        pool: Pool,
        roles: Roles,
        transfers: Transfers,
        *,
        slots: int,
        budget: int,
        longest: int,
        caching: bool = True,
    ) -> None:
        self.model, self.pool, self.roles, self.transfers = model, pool, roles, transfers
        self.budget, self.caching = budget, caching
        self.waiting: deque[Active] = deque()
        self.loading: list[Active] = []
        self.running: list[Active] = []
        self.preemptions = 0
        self.short = False
        """Whether the last plan lacked blocks: a store near eviction would take more away from who waits for them."""
        self._slots = list(range(slots))[::-1]
        self.tables = np.full((len(model.groups), slots, longest), EMPTY, np.int64)
        self._leaving: dict[int, str] = {}
        self._promised: dict[Active, int] = {}
        table = pool.cells.table
        forward = roles.forward
        assert forward is not None
        self._forward = forward
        self._used = table.due(forward)
        self._empty = table.writes(forward)
        load = roles.load
        begins = table.truth(roles.rules["load"].when) if "load" in roles.rules else None
        self._at_once = False
        if load is not None and begins is not None and load in pool.cells.design.step:
            states = np.flatnonzero(begins & table.free)
            after = table.after(load.then)[table.after(roles.rules["load"].then)[states]]
            items = pool.cells.design.step
            self._at_once = bool(self._used[after].all()) and items.index(load) < items.index(forward)

    @property
    def active(self) -> list[Active]:
        """Every request that is not done."""
        return [*self.waiting, *self.loading, *self.running]

    @property
    def leaving(self) -> bool:
        """Whether blocks that nobody uses wait for the rule by which they go."""
        return bool(self._leaving)

    # ── a step's plan ─────────────────────────────────────────────────────────────────────────────────────────────

    def plan(self) -> Plan:
        """Decides the next step. It may have no rows."""
        self.short = False
        self.let_go()
        self._slide(self.running)
        budget = self.budget
        chosen: list[tuple[Active, int]] = []
        for active in list(self.running):
            if active.state is not State.RUNNING:
                continue  # preempted for an older one
            count = active.todo(budget)
            if count and self._fit(active, count):
                chosen.append((active, count))
                budget -= count
        for active in [one for one in self.loading if self._arrived(one)]:
            self.loading.remove(active)
            self._run(active)
            count = active.todo(budget)
            if count and self._fit(active, count):
                chosen.append((active, count))
                budget -= count
        while self.waiting and budget > 0 and self._slots and self.waiting[0].in_flight == 0:
            active = self.waiting[0]
            if not self._admit(active, min(budget, len(active.tokens))):
                break
            self.waiting.popleft()
            if active.state is State.RUNNING:
                count = active.todo(budget)
                if count and self._fit(active, count):
                    chosen.append((active, count))
                    budget -= count
        self._keep_promises()
        return self.planned([(active, count) for active, count in chosen if active.state is State.RUNNING])

    def planned(self, chosen: Sequence[tuple[Active, int]]) -> Plan:
        """The plan that serves these requests, each with so many tokens."""
        if not chosen:
            return Plan()
        size = self.model.block_size
        tokens, touched, full, samples = list[int](), list[int](), list[int](), list[bool]()
        for active, count in chosen:
            first, end = active.computed, active.computed + count
            known = active.tokens[first:end]
            tokens += known
            tokens += [UNKNOWN] * (count - len(known))
            samples.append(end == len(active.tokens) + active.in_flight)
            for group, table in zip(self.model.groups, active.tables, strict=True):
                # written are those of the new tokens, read those that the last of them sees (`forward.py`): one that
                # only the first of them saw is not touched, and has no event and no last use of this step
                touched += table[min(first // size, _first_visible(group, end - 1, size)) : -(-end // size)]
                full += table[first // size : end // size]
        return Plan(
            tuple(chosen),
            tuple(active for (active, _), samples_it in zip(chosen, samples, strict=True) if samples_it),
            Batch(
                slots=np.array([active.slot for active, _ in chosen], np.int64),
                first=np.array([active.computed for active, _ in chosen], np.int64),
                count=np.array([count for _, count in chosen], np.int64),
                tokens=np.array(tokens, np.int64),
                samples=np.array(samples, np.bool_),
                tables=self.tables,
            ),
            np.unique(np.array(touched, np.int64)),
            np.unique(np.array(full, np.int64)),
        )

    def launched(self, plan: Plan) -> None:
        """The plan's forward was issued: its tokens count as computed, its full blocks can be found and stored."""
        for active, count in plan.served:
            active.computed += count
            self.register(active)
        for active in plan.samples:
            active.in_flight += 1

    # ── blocks for a request ──────────────────────────────────────────────────────────────────────────────────────

    def _fit(self, active: Active, count: int) -> bool:
        """Promises it blocks for so many more tokens, from younger requests if need be; whether there are enough."""
        need = -(-(active.computed + count) // self.model.block_size)
        missing = sum(max(0, need - len(table)) for table in active.tables)
        if not missing:
            return True
        while not self._room(missing):
            victim = next((one for one in reversed(self.running) if one is not active), None)
            if victim is None or self.running.index(victim) < self.running.index(active):
                return False
            self.preempt(victim)
        self._promised[active] = missing
        return True

    def _keep_promises(self) -> None:
        """Hands out what was promised, all at once."""
        rule = self.roles.name("allocate")
        assert rule is not None
        promised, self._promised = self._promised, {}
        blocks = self.pool.take(rule, sum(promised.values()))
        assert blocks is not None
        for active, missing in promised.items():
            end = (missing + sum(len(table) for table in active.tables)) // len(active.tables)
            for group, table in enumerate(active.tables):
                for index in range(len(table), end):
                    block = blocks.pop()
                    self.pool.refs[block] = 1
                    table.append(block)
                    self.tables[group, active.slot, index] = block

    def _room(self, count: int, spared: Container[int] = ()) -> bool:
        """Whether so many blocks are free and not promised; evicts kept ones but those spared, if the design keeps
        any.
        """
        evict = self.roles.rules.get("evict")
        count += sum(self._promised.values())
        if evict is not None and len(self.pool.queue) < count:
            cells = self.pool.cells
            kept = cells.allowed(evict, cells.where(cells.when(evict)))
            kept = np.array([block for block in kept.tolist() if block not in spared], np.int64)
            cells.apply(evict.name, kept[: count - len(self.pool.queue)])
        self.short |= len(self.pool.queue) < count
        return len(self.pool.queue) >= count

    def _slide(self, actives: Sequence[Active]) -> None:
        """Gives back what no query sees any more that is still to be launched."""
        size = self.model.block_size
        blocks: list[int] = []
        for at, group in enumerate(self.model.groups):
            if group.window is None:
                continue
            for active in actives:
                table = active.tables[at]
                gone = min(_first_visible(group, active.computed, size), len(table))
                if gone and table[gone - 1] != EMPTY:
                    blocks += [block for block in reversed(table[:gone]) if block != EMPTY]
                    table[:gone] = [EMPTY] * gone
                    self.tables[at, active.slot, :gone] = EMPTY
        if blocks:
            self.leave(blocks, "slide")

    def preempt(self, active: Active) -> None:
        """Takes all its blocks; it waits again, and computes anew what it has."""
        self.running.remove(active)
        self._promised.pop(active, None)
        self.preemptions += 1
        blocks = active.blocks[::-1]
        active.tables = [[] for _ in self.model.groups]
        active.computed, active.state = 0, State.WAITING
        self._slots.append(active.slot)
        self.leave(blocks, "preempt")
        self.waiting.appendleft(active)

    def end(self, active: Active) -> None:
        """It is done, or aborted: its blocks go. A load under way is aborted as the design says."""
        if active.state is State.WAITING:
            self.waiting.remove(active)
        elif active.state is State.RUNNING:
            self.running.remove(active)
            self._slots.append(active.slot)
        else:
            self.loading.remove(active)
            self._slots.append(active.slot)
        active.state = State.DONE
        blocks = active.blocks[::-1]
        active.tables = [[] for _ in self.model.groups]
        self.leave(blocks, "finish")

    def leave(self, blocks: Sequence[int], role: str) -> None:
        """One user of the blocks is gone; what nobody uses goes by the rule of that role, as soon as it holds."""
        for block in blocks:
            if self.pool.leave(block):
                self._leaving[block] = role
        self.let_go()

    def let_go(self) -> bool:
        """Applies the rules by which blocks leave to those that wait to. Returns whether one went."""
        if not self._leaving:
            return False
        cells, table = self.pool.cells, self.pool.cells.table
        some = False
        for role in ("finish", "preempt", "slide"):
            blocks = [block for block, how in self._leaving.items() if how == role]
            if not blocks:
                continue
            at = np.array(blocks, np.int64)
            begun = at[self._empty[cells.code[at]]]
            if len(begun):  # its last write was the one that filled it, as far as it was filled
                cells.set(begun, table.after(self._forward.then))
            rule = self.roles.name(role, "finish", "keep")
            assert rule is not None
            gone = set(cells.apply(rule, at).tolist())
            abort = self.roles.rules.get("abort")
            if abort is not None:
                gone |= set(cells.apply(abort.name, [block for block in blocks if block not in gone]).tolist())
            for block in gone:
                del self._leaving[block]
            some |= bool(gone)
        return some

    # ── letting a request in ──────────────────────────────────────────────────────────────────────────────────────

    def add(self, active: Active) -> None:
        """A request arrives."""
        for at in range(len(self.model.groups)):
            self._digest(active, at, active.prompt // self.model.block_size)
        self.waiting.append(active)

    def _admit(self, active: Active, budget: int) -> bool:
        """Gives it the blocks of its prefix and room for its first piece; whether there was room."""
        length, here, there = self._prefix(active) if self.caching else (0, {}, {})
        size = self.model.block_size
        first = min(budget, len(active.tokens) - length * size)
        new = sum(-(-(length * size + first) // size) - length for _ in self.model.groups)
        if not self._room(new + len(there) + self._idle(here.values()), set(here.values())):
            if not there:
                return False
            length, here, there = self._prefix(active, loads=False)
            first = min(budget, len(active.tokens) - length * size)
            new = sum(-(-(length * size + first) // size) - length for _ in self.model.groups)
            if not self._room(new + self._idle(here.values()), set(here.values())):
                return False
        active.slot = self._slots.pop()
        active.tables = [[EMPTY] * length for _ in self.model.groups]
        self.tables[:, active.slot] = EMPTY
        for (group, index), block in here.items():
            if self.pool.refs[block] == 0:
                hit = self.roles.name("hit")
                assert hit is not None
                self.pool.cells.apply(hit, [block])
            self.pool.refs[block] += 1
            active.tables[group][index] = self.tables[group, active.slot, index] = block
        active.computed = length * size
        if not there:
            self._run(active)
            return True
        blocks = self.transfers.plan_load(list(there.values()))
        assert blocks is not None
        for (group, index), block in zip(there, blocks, strict=True):
            self.pool.refs[block] = 1
            active.tables[group][index] = self.tables[group, active.slot, index] = block
        active.awaited = blocks
        if self._at_once:
            self._run(active)
        else:
            active.state = State.LOADING
            self.loading.append(active)
        return True

    def _idle(self, blocks: Iterable[int]) -> int:
        """How many of the blocks are in the free queue."""
        return sum(block in self.pool.queue for block in blocks)

    def _run(self, active: Active) -> None:
        active.state = State.RUNNING
        self.running.append(active)
        active.awaited = []
        active.registered = 0
        self.register(active)

    def register(self, active: Active) -> None:
        """Full blocks whose tokens the host knows can be found by their hash from now on, and stored."""
        size = self.model.block_size
        end = min(active.computed, len(active.tokens)) // size
        if not self.caching or end <= active.registered:
            return
        for at, table in enumerate(active.tables):
            digests = self._digest(active, at, end)
            for index in range(active.registered, end):
                block = table[index]
                if block != EMPTY and self.pool.hashes[block] is None:
                    self.pool.remember(block, digests[index])
                    if self.pool.hashes[block] is not None:
                        self.transfers.offer(block, digests[index])
        active.registered = end

    def _digest(self, active: Active, group: int, end: int) -> list[int]:
        """The hashes of the group's first blocks, up to `end` of them: each stands for its tokens and all before."""
        made, size = active.digests[group], self.model.block_size
        while len(made) < end:
            at = len(made) * size
            name = self.model.groups[group].name
            made.append(prefix_hash(made[-1] if made else None, active.tokens[at : at + size], name))
        return made

    def _arrived(self, active: Active) -> bool:
        codes = self.pool.cells.code[np.array(active.awaited, np.int64)]
        return bool((self._used[codes] & ~self._empty[codes]).all())

    def _prefix(
        self, active: Active, *, loads: bool = True
    ) -> tuple[int, dict[tuple[int, int], int], dict[tuple[int, int], int]]:
        """The longest prefix, in blocks, that is here or in the host pool: (group, block index) → device block, and
        → host block."""
        size = self.model.block_size
        most = (len(active.tokens) - 1) // size
        loads = loads and "load" in self.roles.rules and self.roles.load is not None
        found: list[list[tuple[int | None, int | None]]] = []
        for digests in active.digests:
            column: list[tuple[int | None, int | None]] = []
            for digest in digests[:most]:
                block = self._usable(digest)
                source = self.transfers.loadable(digest) if block is None and loads else None
                column.append((block, source))
            found.append(column)
        length = min((len(column) for column in found), default=0)
        while length > 0:
            missing = None
            for group, column in zip(self.model.groups, found, strict=True):
                for index in range(length - 1, _first_visible(group, length * size, size) - 1, -1):
                    if column[index] == (None, None):
                        missing = index
            if missing is None:
                break
            length = missing
        here, there = {}, {}
        for at, (group, column) in enumerate(zip(self.model.groups, found, strict=True)):
            for index in range(_first_visible(group, length * size, size), length):
                block, source = column[index]
                if block is not None:
                    here[at, index] = block
                elif source is not None:
                    there[at, index] = source
        return length, here, there

    def _usable(self, digest: int) -> int | None:
        """The device's block with this content, if the request may use it as it is."""
        block = self.pool.holding(digest)
        if block is None:
            return None
        if self.pool.refs[block]:
            code = self.pool.cells.code[block]
            return block if self._used[code] and not self._empty[code] else None
        hit = self.roles.rules.get("hit")
        if hit is None:
            return None
        return block if len(self.pool.cells.enabled(hit, np.array([block], np.int64))) else None


def _first_visible(group: Group, position: int, size: int) -> int:
    """The first block index that a query at this position sees."""
    return group.seen_from(position) // size
