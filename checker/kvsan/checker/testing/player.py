"""Plays a design's host on N blocks, one choice after the other, and checks what it issues.

What a run leaves open and the checker does not cover by itself is what the host sees and does: which rule the scheduler
applies to which block, when a step is launched, what polls answer, when other threads act. Each such choice is a
`Move`; device timing needs none, since a hazard is a pair that some timing of this very issue order lets overlap.

What is issued, and so every fence, is the shipped engine's own (`kvsan.runtime.issue.Issuer`); here is only a device
that writes down what it is told and answers polls as the move says. A poll says "not yet" only where a device could
(`timeline`). A rule needs its poll to answer yes; a poll that says no changes nothing but what the log holds.

Between two items of a step other threads act if the move says so (`between`). Not played: other threads between two
calls of one item, arrivals and what a scheduler prefers (a rule applies to any block that it may apply to), and the
copy's other pool (a design is about one).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from kvsan.checker.online import Online
from kvsan.checker.report.page import Page
from kvsan.checker.report.text import describe
from kvsan.checker.testing.moves import Move
from kvsan.checker.testing.tape import Tape
from kvsan.model.design import ANY, Claim, Design, Item, Seen, Submit, Work
from kvsan.model.design.check import pending
from kvsan.model.design.sound import OTHER_POOL
from kvsan.model.hazard import Hazard, Kind
from kvsan.model.ops import Access, Blocks, Op, Stream
from kvsan.runtime.cells import Cells
from kvsan.runtime.device import Ids
from kvsan.runtime.flight import Flight
from kvsan.runtime.issue import Face, Issuer
from kvsan.runtime.table import Codes, Table, Truth

RUN_AHEAD = 4
"""Steps in flight where a design allows any number: more than its blocks can tell apart in a short play."""


class Raced(AssertionError):  # noqa: N818 - a finding
    """A schedule of the design has a hazard. The text is the report and the schedule, which `play` plays again."""

    def __init__(self, design: Design, hazards: Sequence[Hazard], schedule: str) -> None:
        page = Page(100)
        for hazard in hazards:
            describe(page, hazard)
        super().__init__(f"{design.name} has a hazard\n{page}\nschedule: {schedule}")
        self.design, self.hazards, self.schedule = design, tuple(hazards), schedule


class Player:
    """`blocks` blocks under the rules of a design. `hazards` is what was found of the kinds that count: races always, a
    wrong generation where the design claims there is none. `on_op` is given each op with its number.
    """

    def __init__(
        self,
        design: Design,
        blocks: int = 3,
        *,
        run_ahead: int = RUN_AHEAD,
        on_op: Callable[[int, Op], None] | None = None,
    ) -> None:
        if blocks < 1:
            raise ValueError(f"blocks={blocks}: a pool has at least one")
        self.design = design
        self.run_ahead = run_ahead if design.run_ahead == ANY else int(design.run_ahead)
        self.pools = {design.pool: blocks, OTHER_POOL: 1}
        self.streams = {stream.name: Stream() for stream in design.streams}
        self.ops: list[Op] = []
        self.moves_made: list[Move] = []
        self.hazards: list[Hazard] = []
        self.jobs = {job.name: (thread.name, job) for thread in design.threads for job in thread.jobs}
        self._rules = {rule.name: rule for rule in design.rules}
        self._on_op = on_op
        self._online = Online(self.pools, self.streams)
        self._ignored = set() if Claim.RIGHT_GENERATION in design.claims else {Kind.GEN}
        self._tape = Tape(self._emit, self._between)
        self._flight = Flight()
        self._bodies = _Bodies(self)
        self._order = 0
        self._due: deque[str] = deque()
        self._issuer = Issuer(design, self._tape, self._flight, self._bodies, order=self._permuted)
        self.cells = _Cells(self, blocks, self._flight, self._tape.host("host"))
        self._issuer.of(self.cells)
        self._truth = _guards(design)
        self.orders = math.prod(math.factorial(len(group)) for group in _groups(design))
        """How many orders of a step the design leaves open."""

    @property
    def schedule(self) -> str:
        """What was played, as text."""
        return " ".join(str(move) for move in self.moves_made)

    # ── what may come next ────────────────────────────────────────────────────────────────────────────────────────

    def able(self, rule: str) -> list[int]:
        """The blocks to which the rule applies if its polls answer yes."""
        truth = self._truth[rule]
        here = [block for block, code in enumerate(self.cells.code.tolist()) if truth[code]]
        if not here or not self._rules[rule].needs:
            return here
        allowed: list[int] = self.cells.allowed(self._rules[rule], np.array(here, np.int64)).tolist()
        return allowed

    def unsure(self, rule: str) -> list[int]:
        """The blocks of `able` of which a poll may also answer no."""
        found = self._rules[rule]
        events = [need.event for need in found.needs if isinstance(need, Seen)]
        return [
            block
            for block in (self.able(rule) if events else [])
            if any(
                one is not None and self._tape.may_be_running(one)
                for one in (self.cells.event(event, block) for event in events)
            )
        ]

    def may_launch(self) -> bool:
        return self._flight.unseen <= self.run_ahead

    def may_see(self) -> bool:
        return self._flight.unseen > 0

    def may_be_unseen(self) -> bool:
        """Whether a poll of the oldest step may answer no."""
        oldest = self._flight.oldest
        return oldest is not None and self._tape.may_be_running(oldest)

    def may_do(self, job: str) -> bool:
        """Whether a job of that work is in its queue."""
        return bool(self._tape.queues.get(str(self.jobs[job][1].takes)))

    def may_collect(self) -> bool:
        """Whether another thread has published something."""
        return any(job.publishes is not None and self._tape.queues.get(job.publishes) for _, job in self.jobs.values())

    def moves(self) -> list[Move]:
        """All that is possible, in a fixed order; of a launch the plain one."""
        out = [Move("launch")] if self.may_launch() else []
        out += [Move("rule", rule, block) for rule in self._rules for block in self.able(rule)]
        out += [Move("job", job) for job in self.jobs if self.may_do(job)]
        out += [Move("collect")] if self.may_collect() else []
        out += [Move("see")] if self.may_see() else []
        out += [Move("unseen")] if self.may_be_unseen() else []
        out += [Move("not-yet", rule, block) for rule in self._rules for block in self.unsure(rule)]
        return out

    def choose(self, number: int) -> Move:
        """A move for any number from 0, so that any numbers are a schedule; 0 is the simplest. Raises `IndexError` if
        nothing is possible (with a bounded run-ahead something always is).
        """
        moves = self.moves()
        rest, at = divmod(number, len(moves))
        move = moves[at]
        if move.what != "launch" or not rest:
            return move
        rest, order = divmod(rest, self.orders)
        between = []
        names = list(self.jobs)
        while rest and names:
            rest, at = divmod(rest, len(names) + 1)
            if at:
                between.append(names[at - 1])
        return Move("launch", order=order, between=tuple(between))

    # ── play ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def play(self, move: Move) -> list[Hazard]:
        """Plays it, and returns the hazards that it completes. Raises `ValueError` if it is not possible now."""
        before = len(self.hazards)
        if not self._possible(move):
            possible = ", ".join(str(each) for each in self.moves()) or "nothing"
            raise ValueError(f"{move} is not possible after {len(self.moves_made)} moves; possible: {possible}")
        self.moves_made.append(move)
        self._tape.answer = move.what not in ("not-yet", "unseen")
        match move.what:
            case "rule":
                self.cells.apply(move.of, [move.block])
            case "not-yet":
                self.cells.enabled(self._rules[move.of], np.array([move.block], np.int64))
            case "launch":
                self._order, self._due = move.order, deque(move.between)
                self._issuer.step()
                self._due.clear()
            case "see" | "unseen":
                self._issuer.see()
            case "job":
                self._do(move.of)
            case "collect":
                self._issuer.collect()
        return self.hazards[before:]

    def check(self) -> None:
        """Raises `Raced` if there is a hazard."""
        if self.hazards:
            raise Raced(self.design, self.hazards, self.schedule)

    def _possible(self, move: Move) -> bool:
        match move.what:
            case "rule":
                return move.of in self._rules and move.block in self.able(move.of)
            case "not-yet":
                return move.of in self._rules and move.block in self.unsure(move.of)
            case "launch":
                return self.may_launch() and 0 <= move.order < self.orders and self.jobs.keys() >= set(move.between)
            case "see":
                return self.may_see()
            case "unseen":
                return self.may_be_unseen()
            case "job":
                return move.of in self.jobs and self.may_do(move.of)
            case _:
                return self.may_collect()

    def _between(self) -> None:
        """A point of a step at which another thread may act."""
        if self._due:
            job = self._due.popleft()
            if self.may_do(job):
                self._do(job)

    def _do(self, name: str) -> None:
        thread, job = self.jobs[name]
        self._tape.only, self._bodies.taking = job.takes, True
        try:
            self._issuer.turn(thread)
        finally:
            self._tape.only, self._bodies.taking = None, False

    def _permuted(self, items: list[Item]) -> Iterator[Item]:
        """The next digits of `order`, in the factorial base."""
        left = list(items)
        while left:
            self._order, at = divmod(self._order, len(left))
            yield left.pop(at)

    def _emit(self, op: Op) -> None:
        index = len(self.ops)
        self.ops.append(op)
        self.hazards += [hazard for hazard in self._online.feed(index, op) if hazard.kind not in self._ignored]
        if self._on_op is not None:
            self._on_op(index, op)


def play(design: Design, schedule: str | Iterable[int | Move], blocks: int = 3) -> Player:
    """Plays a schedule: its text, moves, or any numbers from 0. Raises `Raced` at the first hazard, `ValueError` at a
    move that is not possible.
    """
    player = Player(design, blocks)
    for each in map(Move.parse, schedule.split()) if isinstance(schedule, str) else schedule:
        player.play(each if isinstance(each, Move) else player.choose(each))
        player.check()
    return player


def _groups(design: Design) -> list[list[Item]]:
    out: dict[int, list[Item]] = {}
    for item in design.step:
        if isinstance(item, Work | Submit) and item.group is not None:
            out.setdefault(item.group, []).append(item)
    return list(out.values())


@lru_cache(maxsize=16)
def _table(design: Design) -> Table:
    """A table is filled once and never changes; hypothesis plays one design thousands of times."""
    return Table(design)


@lru_cache(maxsize=16)
def _guards(design: Design) -> dict[str, list[bool]]:
    """Rule → whether its guard holds, for each state: asked of every rule at every move."""
    return {rule.name: _table(design).truth(rule.when).tolist() for rule in design.rules}


class _Cells(Cells):
    """Notes when each work and job of a block was decided, as `kvsan.model.proof.replay` does."""

    def __init__(self, player: Player, count: int, flight: Flight, host: Any) -> None:
        super().__init__(player.design, count, flight, host)
        self.table = _table(player.design)
        self.planned_at: dict[tuple[str, int], int] = {}
        self._ops = player.ops
        plans = pending(player.design)
        items: list[Work | Submit] = [*player.design.works()]
        items += [item for item in player.design.step if isinstance(item, Submit)]
        self._plans: list[tuple[str, Truth]] = [
            (item.name, self.table.due(item) if isinstance(item, Work) else self.table.truth(item.when))
            for item in items
            if item.name in plans
        ]

    def set(self, blocks: Ids, after: Codes, *, keeps: bool = False) -> None:
        old = self.code[blocks]
        super().set(blocks, after, keeps=keeps)
        new = self.code[blocks]
        for name, due in self._plans:
            for block in blocks[due[new] & ~due[old]].tolist():
                if self._ops:
                    self.planned_at[name, block] = len(self._ops) - 1


class _Bodies:
    """The works as accesses: one for all its blocks, or one each where they were decided at different ops."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self.taking = False

    def faces(self, work: Work, blocks: Ids, step: int) -> Sequence[Face]:
        cells = self._player.cells
        if self.taking:  # a job whose block has been given another fate is not done
            blocks = blocks[cells.table.due(work)[cells.code[blocks]]]
            if not len(blocks):
                return ()
        return (Face(cells, work, blocks),)

    def run(self, host: Any, work: Work, faces: Sequence[Face], step: int) -> None:
        cells, pool = self._player.cells, self._player.design.pool
        ((_, blocks),) = ((face.cells, face.blocks) for face in faces)
        by_plan: dict[int | None, list[int]] = {}
        for block in blocks.tolist():
            by_plan.setdefault(cells.planned_at.get((work.name, block)), []).append(block)
        if not by_plan:
            self._player._emit(_access(host.name, work, {OTHER_POOL: [0]}, {}, None, step))
        for planned, some in by_plan.items():
            codes = cells.code[some]
            reads = np.array(some)[cells.table.reads(work)[codes]].tolist()
            writes = np.array(some)[cells.table.writes(work)[codes]].tolist()
            self._player._emit(_access(host.name, work, {pool: reads}, {pool: writes}, planned, step))


def _access(
    by: str, work: Work, reads: dict[str, list[int]], writes: dict[str, list[int]], planned: int | None, step: int
) -> Access:
    return Access(
        by,
        work.on,
        reads={pool: Blocks.of(ids) for pool, ids in reads.items() if ids},
        writes={pool: Blocks.of(ids) for pool, ids in writes.items() if ids},
        label=work.name,
        order=work.order,
        planned=planned,
        step=step,
    )
