"""Finds a race of a given length once more, with clocks instead of knowledge: by z3, over real-valued times.

Each op of a schedule gets a start and an end, each host call a time. There are no knowledge bits: what is ordered
is ordered because its times are. Is there a schedule of this many actions in which the two accesses overlap? There
must be at the length that the search calls shortest, and there must be none below.

The rules are those of `kvsan.model.order` in a reading of their own: a past is a set of times, each the end of some
access; joining two is the union; what is issued on a past starts after all of them. One block is raced for; what an
action does for other blocks it does for blocks of their own, in time like any other. Host threads keep their own
clocks, which only hand-offs set; if the calls of all threads also fit on one clock in the order of the schedule, they
are given so (`Times.one_clock`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvsan.model.design import Design
from kvsan.model.hazard import Kind
from kvsan.model.proof.actions import Action
from kvsan.model.proof.search import Pair
from kvsan.model.proof.solver import InternalError, solver
from kvsan.model.proof.table import Table, tabulate
from kvsan.model.proof.times import CALL, READ_END, RUN_END, Moment, Name, Times, effect, ranked

SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Undecided:
    """z3 did not answer in time: nothing is said."""

    why: str


def bounded(
    design: Design, pair: Pair, length: int, run_ahead: int | None, *, seconds: float = SECONDS, cap: int = 400_000
) -> Times | Undecided:
    """A race of the pair in `length` actions, with its times. Raises `InternalError` if there is none, or a shorter
    one; `MissingSolverError`; `TooManyStatesError`.
    """
    z3 = solver()
    table = tabulate(design, run_ahead, cap)
    until = time.monotonic() + seconds
    shorter = race_within(z3, table, pair, length - 1, until, exactly=False)
    if isinstance(shorter, Undecided):
        return shorter
    if shorter is not None:
        raise InternalError(f"{pair}: the shortest schedule has {length} actions, z3 finds one of {len(shorter)}")
    found = race_within(z3, table, pair, length, until, exactly=True)
    if found is None:
        raise InternalError(f"{pair}: a schedule of {length} actions was found, z3 finds no times for any")
    return found


def race_within(
    z3: Any, table: Table, pair: Pair, length: int, until: float, *, exactly: bool
) -> Times | Undecided | None:
    """A schedule of `length` actions (or fewer) whose last access overlaps an earlier one of the pair."""
    if length < 2:
        return None
    unrolled = _Unrolled(z3, table, pair, length, exactly=exactly)
    if not unrolled.possible:
        return None
    asked = z3.SolverFor("QF_RDL")
    asked.add(list(unrolled.constraints()))
    asked.set("timeout", max(1, int(1000 * (until - time.monotonic()))))
    answer = asked.check()
    if answer == z3.unsat:
        return None
    if answer != z3.sat:
        return Undecided(f"{pair}: z3 gave no answer about {length} actions in time")
    model = asked.model()
    asked.add(unrolled.chosen(model))
    asked.add([a < b for a, b in zip(unrolled.now, unrolled.now[1:], strict=False)])
    one_clock = asked.check() == z3.sat
    return unrolled.times(asked.model() if one_clock else model, one_clock=one_clock)


class _Unrolled:
    """The design's actions, `length` of them, one after the other."""

    def __init__(self, z3: Any, table: Table, pair: Pair, length: int, *, exactly: bool) -> None:
        self.z3, self.table, self.pair, self.length, self.exactly = z3, table, pair, length, exactly
        self.effects = [effect(action) for action in table.actions]
        wrote, writes = pair.kind is not Kind.WAR, pair.kind is not Kind.RAW
        self.is_earlier = [_touches(action, pair.earlier, writes=wrote) for action in table.actions]
        self.is_later = [_touches(action, pair.later, writes=writes) for action in table.actions]
        self.wrote, self.writes = wrote, writes
        self.layers = self._layers()
        self.possible = bool(self.layers) and all(self.layers)
        self.at = [{s: z3.Bool(f"{k}: at {s}") for s in {m[0] for m in layer}} for k, layer in enumerate(self.layers)]
        self.act = [{a: z3.Bool(f"{k}: act {a}") for a in {m[1] for m in layer}} for k, layer in enumerate(self.layers)]
        self.wait = [z3.Bool(f"{k}: not begun") for k in range(length)]
        self.first = [z3.Bool(f"{k}: the earlier access") for k in range(length)]
        self.now = [z3.Real(f"{k}: call") for k in range(length)]
        self.run = [(z3.Real(f"{k}: starts"), z3.Real(f"{k}: ends")) for k in range(length)]
        self.read = [(z3.Real(f"{k}: read starts"), z3.Real(f"{k}: read ends")) for k in range(length)]

    def _layers(self) -> list[list[tuple[int, int, int]]]:
        """The moves that can be number k of a schedule that ends as it should."""
        moves, last = self.table.moves, self.length - 1
        reach = [{0}]
        for _ in range(last):
            reach.append({t for s, _, t in moves if s in reach[-1]} | (set() if self.exactly else {0}))
        layers = [[m for m in moves if m[0] in reach[last] and self.is_later[m[1]]]]
        for k in reversed(range(last)):
            goal = {m[0] for m in layers[0]}
            layers.insert(0, [m for m in moves if m[0] in reach[k] and m[2] in goal])
        return layers

    def constraints(self) -> Iterator[Any]:
        yield from self._path()
        yield from self._race()
        yield from self._order()

    def _path(self) -> Iterator[Any]:
        z3 = self.z3
        yield self.at[0][0] if 0 in self.at[0] else self.wait[0]
        for k, layer in enumerate(self.layers):
            acts = [*self.act[k].values(), self.wait[k]]
            yield z3.Or(acts)
            yield from self._at_most_one(k, acts)
            enabled: dict[int, set[int]] = {s: set() for s in self.at[k]}
            targets: dict[tuple[int, int], list[int]] = {}
            for s, a, t in layer:
                enabled[s].add(a)
                targets.setdefault((s, a), []).append(t)
            for s, able in enabled.items():
                pause = [self.wait[k]] if s == 0 else []
                yield z3.Implies(self.at[k][s], z3.Or([*(self.act[k][a] for a in sorted(able)), *pause]))
            if k + 1 < self.length:
                for (s, a), to in targets.items():
                    yield z3.Implies(z3.And(self.at[k][s], self.act[k][a]), z3.Or([self.at[k + 1][t] for t in to]))
                begin = [self.at[k + 1][0]] if 0 in self.at[k + 1] else []
                yield z3.Implies(self.wait[k], z3.Or([*begin, self.wait[k + 1]]))
            if self.exactly or k + 1 == self.length:
                yield z3.Not(self.wait[k])
            elif k:
                yield z3.Implies(self.wait[k], self.wait[k - 1])

    def _at_most_one(self, k: int, acts: list[Any]) -> Iterator[Any]:
        """Each act has a number of its own, and the step one number."""
        bits = [self.z3.Bool(f"{k}: bit {bit}") for bit in range((len(acts) - 1).bit_length())]
        for number, act in enumerate(acts):
            same = [on if number >> bit & 1 else self.z3.Not(on) for bit, on in enumerate(bits)]
            yield self.z3.Implies(act, self.z3.And(same))

    def _race(self) -> Iterator[Any]:
        """One earlier access overlaps the last one. Whose reads go their own way is read off the action."""
        z3, last = self.z3, self.length - 1
        yield z3.Or(self.first[:last])
        start, end = z3.Real("the later starts"), z3.Real("the later ends")
        for a, act in self.act[last].items():
            span = self._span(last, a, writes=self.writes)
            yield z3.Implies(act, z3.And(start == span[0], end == span[1]))
        for k in range(last):
            able = []
            for a, act in self.act[k].items():
                if self.is_earlier[a]:
                    began, ended = self._span(k, a, writes=self.wrote)
                    able.append(z3.And(act, start < ended, began < end))
            yield z3.Implies(self.first[k], z3.Or(able))

    def _span(self, k: int, action: int, *, writes: bool) -> tuple[Any, Any]:
        return self.run[k] if writes or self.effects[action].read is None else self.read[k]

    def _order(self) -> Iterator[Any]:
        """What each action orders. The time of a context is not before anything that it knows has ended."""
        z3 = self.z3
        known: dict[Name, Any] = {}
        for k in range(self.length):
            changed = {context for a in self.act[k] for context in self.effects[a].after}
            after = known | {context: z3.Real(f"{k}: {context}") for context in sorted(changed)}
            own = {CALL: self.now[k], RUN_END: self.run[k][1], READ_END: self.read[k][1]}
            before = known | own

            def behind(what: Any, names: Iterable[Name], before: dict[Name, Any] = before) -> list[Any]:
                return [what >= before[name] for name in sorted(names) if name in before]

            for a, act in self.act[k].items():
                does = self.effects[a]
                bounds = [self.now[k] > known.get(("host", does.thread), 0)]
                for context in sorted(changed):
                    bounds += behind(after[context], does.after.get(context, {context}))
                if does.run is not None:
                    bounds += [self.run[k][0] < self.run[k][1], *behind(self.run[k][0], does.run)]
                if does.read is not None:
                    bounds += [self.read[k][0] < self.read[k][1], *behind(self.read[k][0], does.read)]
                    bounds += [] if does.read_ends else [self.read[k][1] == self.run[k][1]]
                yield z3.Implies(act, z3.And(bounds))
            if not self.exactly:
                keep = [after[context] >= known[context] for context in sorted(changed) if context in known]
                yield z3.Implies(self.wait[k], z3.And(keep))
            known = after

    # ── the answer ────────────────────────────────────────────────────────────────────────────────────────────────

    def _schedule(self, model: Any) -> list[int | None]:
        def true(what: Any) -> bool:
            return bool(self.z3.is_true(model.eval(what, model_completion=True)))

        return [next((a for a, act in acts.items() if true(act)), None) for acts in self.act]

    def chosen(self, model: Any) -> list[Any]:
        """Holds the actions and the pair of a solution fixed."""
        fixed = [var for k in range(self.length) for var in (*self.act[k].values(), self.first[k])]
        return [var == model.eval(var, model_completion=True) for var in fixed]

    def times(self, model: Any, *, one_clock: bool) -> Times:
        z3 = self.z3

        def value(of: Any) -> Any:
            return model.eval(of, model_completion=True).as_fraction()

        moments: list[Moment] = []
        earlier = 0
        for k, a in enumerate(self._schedule(model)):
            if a is None:
                continue
            if k < self.length - 1 and z3.is_true(model.eval(self.first[k], model_completion=True)):
                earlier = len(moments)
            does = self.effects[a]
            run = (value(self.run[k][0]), value(self.run[k][1])) if does.run is not None else None
            read = (value(self.read[k][0]), value(self.read[k][1])) if does.read is not None else None
            moments.append(Moment(self.table.actions[a], value(self.now[k]), run, read))
        return ranked(Times(self.pair, tuple(moments), earlier, one_clock))


def _touches(action: Action, work: str, *, writes: bool) -> bool:
    touch = action.touch
    return touch is not None and touch.work == work and (touch.writes if writes else touch.reads)
