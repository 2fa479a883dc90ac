"""N blocks of one design, driven choice by choice through the engine's own code: `Cells` and `Issuer` on no device.

`moves` are the host choices that the design allows now, `do` makes one, `save` and `load` go back. What the choices are
is in `moves.py`. One rule, one item of a step, one job of a thread is atomic, as it is for the `Issuer`; a proof also
lets threads act between two calls of one job.

Choices that lead to no other race are not offered, unless the scope is `plain`:

- *see*: to learn that a step is complete only adds to what the host knows, which takes races away, and changes no
  facet. So it is offered when something waits for it: a held free, a rule that needs `retired(...)` and would apply
  otherwise, a step that run-ahead does not allow yet. A run with an earlier *see* has a twin with the later one, the
  same calls otherwise, and every race of the first.
- *fresh blocks*: of blocks that nobody has touched yet and that are in the same state only the first is offered; the
  others are the same up to their number. `move.many` says for how many it stands.
- *taking what a thread published* is done by the rule that needs it, as late as can be, for the reason of *see*. (Not
  in a plain scope either: no choice of an engine that takes all that is there.)

A hold ends as soon as its fence is seen (`Cells.settle`): who would have it end later may as well use the block later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from kvsan.checker.explore.device import NullDevice
from kvsan.checker.explore.moves import END, LAUNCH, SEE, Words, item_name
from kvsan.checker.explore.scope import Scope
from kvsan.checker.explore.tracker import Pair, State, Tracker
from kvsan.model.design import MAIN, Block, Design, Got, Item, Mark, Retired, Rule, Submit, Work
from kvsan.model.design.check import pending
from kvsan.model.design.sound import OTHER_POOL
from kvsan.model.hazard import Kind
from kvsan.model.ops import Access, Blocks, Op
from kvsan.runtime.cells import NONE, Cells
from kvsan.runtime.cells import Saved as CellsSaved
from kvsan.runtime.device import Host, Ids
from kvsan.runtime.flight import Flight
from kvsan.runtime.flight import Saved as FlightSaved
from kvsan.runtime.issue import Face, Issuer, Job

NOBODY = {OTHER_POOL: Blocks.of([0])}
"""What a forward reads that is for none of the blocks, so that it is an access at all."""


def pools(design: Design, blocks: int) -> dict[str, int]:
    """The pools of a player's ops, with their sizes."""
    return {design.pool: blocks, OTHER_POOL: 1}


class Move(NamedTuple):
    """A choice: its word, and for how many choices it stands that differ in the number of a fresh block alone."""

    word: str
    many: int = 1


class NoSuchMoveError(ValueError):
    """A schedule asks for a choice that there is not, at this place."""


class Hand(NamedTuple):
    """A work that a thread has begun: which blocks it is for and what it does to them, and how many of its waits are
    issued."""

    work: str
    blocks: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    step: int
    waited: int
    at: int = -1


class Saved(NamedTuple):
    """A state of a player."""

    cells: CellsSaved
    flight: FlightSaved
    queues: dict[str, tuple[tuple[str, object], ...]]
    numbers: dict[str, int]
    tracker: State | None
    hands: dict[str, Hand]
    todo: tuple[int, ...] | None
    out: frozenset[int]
    handed: int
    stale: tuple[frozenset[str], ...]
    planned: dict[tuple[int, str], int]
    ops: int
    length: int


class Player:
    """`done` collects the names of rules, items and works in use.

    `tell` hears every op; without one the player's own `Tracker` does, and `races` has what it finds. `also` hears
    it besides."""

    def __init__(
        self,
        design: Design,
        scope: Scope,
        tell: Callable[[Op], None] | None = None,
        *,
        also: Callable[[Op], None] | None = None,
    ) -> None:
        self.design, self.scope = design, scope
        self.tracker = Tracker(design, scope.blocks) if tell is None else None
        self.tell: Callable[[Op], None] = tell if tell is not None else self._tracked
        self.also = also
        self.device = NullDevice(self._op)
        self.flight = Flight()
        self.issuer = Issuer(design, self.device, self.flight, self)
        self.cells = Cells(design, scope.blocks, self.flight, self.issuer.host)
        self.issuer.of(self.cells)
        self.words = Words(design)
        self.said: list[str] | None = None
        self.done: set[str] = set()
        self._todo: tuple[int, ...] | None = None  # items of the step that are still to come
        self.hands: dict[str, Hand] = {}
        self._out: frozenset[int] = frozenset()  # blocks that this step leaves out
        self._handed = 0
        self._stale: list[frozenset[str]] = [frozenset()] * scope.blocks
        self._planned: dict[tuple[int, str], int] = {}
        self._ops = 0
        self.length = 0
        self._found: list[tuple[Pair, int]] = []
        self._split = bool(design.threads)
        self._plans = {
            name: facets for name, facets in pending(design).items() if name in {w.name for w in design.works()}
        }
        self._works = {work.name: work for work in design.works()}
        self._due = {work.name: self.cells.table.due(work) for work in design.works()}
        self._reads = {work.name: self.cells.table.reads(work) for work in design.works()}
        self._writes = {work.name: self.cells.table.writes(work) for work in design.works()}
        self._when = {rule.name: self.cells.table.truth(rule.when) for rule in design.rules}
        self._to = {rule.name: self.cells.table.after(rule.then, hold=rule.free is not None) for rule in design.rules}
        self._fenced = [rule for rule in design.rules if any(isinstance(need, Retired) for need in rule.needs)]
        self._asked = self.issuer.asked
        self._wakes = self._can_wake()
        self._start = self.save()

    def _can_wake(self) -> bool:
        """Whether a job of another thread can give an item of the step something to do that had nothing."""
        table = self.cells.table
        guards = [table.truth(item.when) for item in self.design.step if isinstance(item, Submit | Block)]
        guards += [self._due[item.name] for item in self.design.step if isinstance(item, Work)]
        for _, job in self.words.jobs.values():
            after = table.after(job.then)
            if any(bool((self._due[job.name] & ~guard & guard[after]).any()) for guard in guards):
                return True
        return False

    # ── what the engine asks and tells ────────────────────────────────────────────────────────────────────────────

    def _op(self, what: Op) -> None:
        self._ops += 1
        if self.also is not None:
            self.also(what)
        self.tell(what)

    def _tracked(self, what: Op) -> None:
        assert self.tracker is not None
        self._found += [(pair, self.length) for pair in self.tracker(what)]

    def faces(self, work: Work, blocks: Ids, step: int) -> Sequence[Face]:
        """All blocks that are due, but those that the step leaves out."""
        if self._out and work.takes is None:
            blocks = np.array([block for block in blocks.tolist() if block not in self._out], np.int64)
        if not len(blocks) and not work.every_step:
            return ()
        return (Face(self.cells, work, blocks),)

    def run(self, host: Host, work: Work, faces: Sequence[Face], step: int) -> None:
        """The access. What was planned for an earlier generation is one of its own, since an op says only once when it
        was planned; of the rest the latest plan is behind every rebirth."""
        blocks: list[int] = faces[0].blocks.tolist()
        hand = self.hands.get(host.name)
        reads, writes = self._mode(work, blocks) if hand is None else (list(hand.reads), list(hand.writes))
        if self.said is not None:
            self.said.append(_words(work, host.name, reads, writes, step))
        if reads or writes:
            self.done.add(work.name)
        if work.name not in self._plans:
            self._access(host.name, work, reads, writes, step, None)
            return
        plans = {block: self._planned.pop((block, work.name), None) for block in blocks}
        stale = [block for block in blocks if work.name in self._stale[block]]
        for block in stale:
            self._found.append((Pair(Kind.GEN, work.name, work.name), self.length))
            self._stale[block] -= {work.name}
            mine = [one for one in reads if one == block], [one for one in writes if one == block]
            self._access(host.name, work, mine[0], mine[1], step, plans[block])
        fresh = [one for one in reads if one not in stale], [one for one in writes if one not in stale]
        if any(fresh):
            known = [plan for block, plan in plans.items() if plan is not None and block not in stale]
            self._access(host.name, work, fresh[0], fresh[1], step, max(known, default=None))

    def _mode(self, work: Work, blocks: Sequence[int]) -> tuple[list[int], list[int]]:
        code = self.cells.code
        return (
            [block for block in blocks if self._reads[work.name][code[block]]],
            [block for block in blocks if self._writes[work.name][code[block]]],
        )

    def _access(self, by: str, work: Work, reads: list[int], writes: list[int], step: int, planned: int | None) -> None:
        pool = self.design.pool
        nobody = NOBODY if not reads and not writes else {}
        self._op(
            Access(
                by,
                work.on,
                {pool: Blocks.of(reads)} if reads else nobody,
                {pool: Blocks.of(writes)} if writes else {},
                work.name,
                work.order,
                planned=planned,
                step=step,
            )
        )

    # ── there and back ────────────────────────────────────────────────────────────────────────────────────────────

    def save(self) -> Saved:
        return Saved(
            self.cells.save(),
            self.flight.save(),
            dict(self.device.queues),
            dict(self.device.numbers),
            self.tracker.save() if self.tracker is not None else None,
            dict(self.hands),
            self._todo,
            self._out,
            self._handed,
            tuple(self._stale),
            dict(self._planned),
            self._ops,
            self.length,
        )

    def load(self, saved: Saved) -> None:
        self.cells.load(saved.cells)
        self.flight.load(saved.flight)
        self.device.queues = dict(saved.queues)
        self.device.numbers.clear()
        self.device.numbers.update(saved.numbers)
        if self.tracker is not None:
            assert saved.tracker is not None
            self.tracker.load(saved.tracker)
        self.hands = dict(saved.hands)
        self._todo, self._out, self._handed = saved.todo, saved.out, saved.handed
        self._stale, self._planned = list(saved.stale), dict(saved.planned)
        self._ops, self.length = saved.ops, saved.length
        self._found = []

    def reset(self) -> None:
        """The fresh pool again."""
        self.load(self._start)
        if self.said is not None:
            self.said = []

    @property
    def races(self) -> Sequence[tuple[Pair, int]]:
        """What the last `do` found: hazards of the happens-before check (a tracker's) and of generations, each with the
        number of actions up to there, as a proof counts them."""
        return self._found

    # ── what can be chosen ────────────────────────────────────────────────────────────────────────────────────────

    def moves(self) -> list[Move]:
        """All choices, in a fixed order. None: the run is over."""
        out = [*self._turns()]
        if self._todo is not None:
            return [*([Move(self.words.items[at]) for at in self._next()] or [Move(END)]), *out]
        if self._see():
            out.append(Move(SEE))
        out += self._rules()
        if self.flight.launched < self.scope.steps and self._run_ahead():
            out.append(Move(LAUNCH))
            if self.scope.skips:
                due = [block for block in range(self.scope.blocks) if self._any_due(block)]
                out += [
                    Move("-".join((LAUNCH, *map(str, left))))
                    for many in range(1, len(due) + 1)
                    for left in combinations(due, many)
                ]
        return out

    def _turns(self) -> Iterator[Move]:
        for word, (thread, job) in self.words.jobs.items():
            hand = self.hands.get(thread.name)
            if (
                hand.work == job.name
                if hand is not None
                else job.takes is not None and self.device.queues.get(job.takes)
            ):
                yield Move(word)

    def _see(self) -> bool:
        flight = self.flight
        if not flight.unseen:
            return False
        if self.scope.plain or self.cells.held:
            return True
        if not self._run_ahead() and flight.launched < self.scope.steps:
            return True
        for rule in self._fenced:
            for block in np.flatnonzero(self._when[rule.name][self.cells.code]).tolist():
                if self.cells.last_use[block] > flight.seen:
                    return True
        return False

    def _run_ahead(self) -> bool:
        return self.design.run_ahead == "any" or self.flight.unseen <= self.design.run_ahead

    def _rules(self) -> Iterator[Move]:
        code: list[int] = self.cells.code.tolist()
        fresh = self._fresh(code)
        free = self.cells.table.free
        for rule, word in zip(self.design.rules, self.words.rule_words, strict=True):
            when = self._when[rule.name]
            to = self._to[rule.name]
            for block, state in enumerate(code):
                if not when[state] or (block in fresh and block != fresh[0]):
                    continue
                if self._handed >= self.scope.requests and free[state] and not free[to[state]]:
                    continue
                if self._needs(rule, block):
                    yield Move(f"{word}.{block}", len(fresh) if block in fresh else 1)

    def _fresh(self, code: Sequence[int]) -> list[int]:
        """The blocks that nobody has touched, if they may be taken as one."""
        if self.tracker is None or self.scope.plain:
            return []
        start = self.cells.table.start
        touched = self.cells.last_use
        names = {block for mine in self.cells.bound.values() for block in mine}
        return [
            block
            for block, state in enumerate(code)
            if state == start and not touched[block] and block not in names and not self.tracker.accesses[block]
            and not self._stale[block]
        ]  # fmt: skip

    def _needs(self, rule: Rule, block: int) -> bool:
        for need in rule.needs:
            if isinstance(need, Retired) and self.cells.last_use[block] > self.flight.seen:
                return False
            if isinstance(need, Got) and not self._published(need.queue, block):
                return False
        return True

    def _published(self, queue: str, block: int) -> bool:
        if block in self.cells.arrived.get(queue, ()):
            return True
        return any(block in job.blocks.tolist() for _, job in self.device.queues.get(queue, ()))

    def _any_due(self, block: int) -> bool:
        state = self.cells.code[block]
        return any(bool(due[state]) for name, due in self._due.items() if self._works[name].takes is None)

    # ── what a choice does ────────────────────────────────────────────────────────────────────────────────────────

    def do(self, word: str) -> None:
        """Makes the choice, and goes on as far as nothing is open. Raises `NoSuchMoveError`."""
        self._found = []
        if word in self.words.jobs:
            self._turn(word)
        elif self._todo is not None:
            self._choose(word)
        elif word == SEE:
            self._seen()
        elif word == LAUNCH or word.startswith(f"{LAUNCH}-"):
            self._launch(word)
        else:
            self._rule(word)
        self._run_on()

    def _no(self, word: str) -> NoSuchMoveError:
        offered = ", ".join(move.word for move in self.moves()) or "nothing, the run is over"
        return NoSuchMoveError(f"{word!r} cannot be chosen here; possible: {offered}")

    def _seen(self) -> None:
        if not self.flight.unseen:
            raise self._no(SEE)
        held = len(self.cells.held)
        self.issuer.see()
        self.length += 1 + held - len(self.cells.held)
        self._say(f"the host sees step {self.flight.seen} complete")

    def _launch(self, word: str) -> None:
        left = word.split("-")[1:]
        if not self._run_ahead() or not all(one.isdecimal() and int(one) < self.scope.blocks for one in left):
            raise self._no(word)
        self._out = frozenset(map(int, left))
        self.flight.launch()
        self.length += 1
        self._todo = tuple(range(len(self.design.step)))
        without = f", without block {' and '.join(left)}" if left else ""
        self._say(f"launch step {self.flight.launched}{without}")

    def _rule(self, word: str) -> None:
        name, _, number = word.rpartition(".")
        rule = self.words.rules.get(name)
        if rule is None or not number.isdecimal() or int(number) >= self.scope.blocks:
            raise self._no(word)
        block = int(number)
        state = int(self.cells.code[block])
        if not self._when[rule.name][state] or not self._needs(rule, block):
            raise self._no(word)
        for need in rule.needs:
            while isinstance(need, Got) and block not in self.cells.arrived.get(need.queue, ()):
                self.device.only = need.queue
                self.cells.got(need.queue, self.issuer.host.get(need.queue).blocks)
                self.device.only = None
        due = {name for name in self._plans if self._due[name][state]}
        held = len(self.cells.held)
        at = np.array([block], np.int64)
        before = self._codes()
        self.cells.enabled(rule, at)
        self.cells.force(rule, at)
        self._replan(before)
        self.length += 1
        if rule.free is not None and len(self.cells.held) == held:
            self.length += 1  # its fence was seen already: the block returns
        free = self.cells.table.free
        takes = bool(free[state]) and not free[self.cells.code[block]]
        changes = {facet for facet, _ in rule.then}
        if takes:
            self._handed += 1
        if takes and not rule.keeps:
            self._stale[block] |= {name for name in due if not self._plans[name] & changes}
        elif not takes and self._stale[block]:
            self._stale[block] = frozenset(n for n in self._stale[block] if not self._plans[n] & changes)
        self.done.add(rule.name)
        self._say(f"{rule.name}: block {block}")

    def _turn(self, word: str) -> None:
        thread, job = self.words.jobs[word]
        hand = self.hands.get(thread.name)
        if hand is None:
            if job.takes is None or not self.device.queues.get(job.takes):
                raise self._no(word)
            entry = self.device.host(thread.name).get(job.takes)
            hand = self._begin(job, thread.name, entry.blocks, entry.step)
            self.length += 1
        elif hand.work != job.name:
            raise self._no(word)
        self._call(job, thread.name, hand)

    def _begin(self, work: Work, thread: str, blocks: Ids, step: int, at: int = -1) -> Hand:
        ids = blocks.tolist()
        reads, writes = self._mode(work, ids)
        hand = self.hands[thread] = Hand(work.name, tuple(ids), tuple(reads), tuple(writes), step, 0, at)
        return hand

    def _call(self, work: Work, thread: str, hand: Hand) -> bool:
        """The next call of a work in hand: a wait, or all the rest. Returns whether it was the last."""
        host = self.device.host(thread)
        faces = (Face(self.cells, work, np.array(hand.blocks, np.int64)),)
        self.length += 1
        if hand.waited < len(work.after):
            name = work.after[hand.waited]
            self.hands[thread] = hand._replace(waited=hand.waited + 1)
            self.issuer.wait(host, work, faces, name)
            self._say(f"{'' if thread == MAIN else thread + ': '}{work.name} waits for {name}")
            return False
        before = self._codes()
        self.issuer.issue(host, work, faces, hand.step)
        del self.hands[thread]
        if work.publishes is not None:
            host.put(work.publishes, Job(work.name, faces[0].blocks, hand.step))
        self._replan(before)
        self.length += any(event in self._asked for event in work.signals) + (work.publishes is not None)
        return True

    def _choose(self, word: str) -> None:
        if word == END and not self._next():
            self._end()
            return
        at = next((at for at in self._next() if self.words.items[at] == word), None)
        if at is None:
            raise self._no(word)
        self._item(at)

    def _run_on(self) -> None:
        """Items of the step as long as there is one thing only that can come next."""
        while self._todo is not None:
            nexts = self._next()
            turns = any(True for _ in self._turns())
            if len(nexts) > 1 or (nexts and turns) or (turns and self._wakes and self._todo):
                return
            if not nexts:
                self._end()
                return
            self._item(nexts[0])

    def _end(self) -> None:
        self._todo, self._out = None, frozenset()
        self.length += 1
        self._say(f"end of step {self.flight.launched}")

    def _next(self) -> list[int]:
        """The items that may come next: the first with something to do, or all such of its group. What stands in front
        of them has nothing to do, and is passed when one is chosen."""
        hand = self.hands.get(MAIN)
        if hand is not None:
            return [hand.at]
        items = self.design.step
        todo = self._todo or ()
        for at, first in enumerate(todo):
            group = getattr(items[first], "group", None)
            end = at + 1
            while group is not None and end < len(todo) and getattr(items[todo[end]], "group", None) == group:
                end += 1
            due = [one for one in todo[at:end] if self._is_due(items[one])]
            if due:
                return due
        return []

    def _is_due(self, item: Item) -> bool:
        match item:
            case Mark():
                return item.event in self._asked
            case Work():
                return item.every_step or self._some(self._due[item.name])
            case Submit():
                return self._some(self.cells.table.truth(item.when))
            case Block():
                return item.when is None or bool(self.cells.table.truth(item.when)[self.cells.code].any())

    def _some(self, truth: object) -> bool:
        here = np.flatnonzero(truth[self.cells.code])  # type: ignore[index]
        return bool(len(here)) if not self._out else any(block not in self._out for block in here.tolist())

    def _item(self, at: int) -> None:
        assert self._todo is not None
        item = self.design.step[at]
        if isinstance(item, Work) and self._split:
            hand = self.hands.get(MAIN)
            if hand is None:
                due = self.cells.where(self._due[item.name])
                (face,) = self.faces(item, due, self.flight.launched)
                hand = self._begin(item, MAIN, face.blocks, self.flight.launched, at)
            if not self._call(item, MAIN, hand):
                return
        else:
            before = self._codes()
            self.length += int(self._split or not isinstance(item, Mark))
            self.issuer.item(item, self.flight.launched)
            self._replan(before)
        group = getattr(item, "group", None)
        self._todo = tuple(
            other
            for other in self._todo
            if other > at
            or (other < at and group is not None and getattr(self.design.step[other], "group", None) == group)
        )
        if not isinstance(item, Work):
            self.done.add(item_name(item))
            self._say(item_name(item))

    # ── plans ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _codes(self) -> list[int]:
        return self.cells.code.tolist() if self._plans else []

    def _replan(self, before: list[int]) -> None:
        for block, (old, new) in enumerate(zip(before, self.cells.code.tolist(), strict=True) if self._plans else ()):
            if old != new:
                for name in self._plans:
                    if self._due[name][new] and not self._due[name][old]:
                        self._planned[block, name] = max(self._ops - 1, 0)

    def _say(self, line: str) -> None:
        if self.said is not None:
            self.said.append(line)

    # ── for the key ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def todo(self) -> tuple[int, ...] | None:
        """Items of the step that are still to come; None between two steps."""
        return self._todo

    @property
    def out(self) -> frozenset[int]:
        """Blocks that this step leaves out."""
        return self._out

    @property
    def handed(self) -> int:
        """How often a block was handed out."""
        return self._handed

    @property
    def stale(self) -> Sequence[frozenset[str]]:
        """For each block the works that were planned for an earlier generation of it."""
        return self._stale


def _words(work: Work, by: str, reads: list[int], writes: list[int], step: int) -> str:
    def ids(blocks: list[int]) -> str:
        return f"block{'' if len(blocks) == 1 else 's'} {Blocks.of(blocks)}"

    parts = [f"{verb} {ids(blocks)}" for verb, blocks in (("reads", reads), ("writes", writes)) if blocks]
    who = "" if by == MAIN else f"{by}: "
    return f"{who}{work.name} {' and '.join(parts) or 'runs for nobody'} [step {step}]"


__all__ = ["NONE", "Move", "NoSuchMoveError", "Player", "Saved"]
