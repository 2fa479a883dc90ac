"""The control states that a design can reach, and the questions that need no order: is every rule alive, can
the block always become free again, which waits are vacuous, which op acts on the wrong generation.

All by breadth-first search, so each answer comes with a shortest schedule. Progress is backward reachability of
"free", once with every step allowed (another request may launch it) and once with only the steps that have work
for this block.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from kvsan.model.design import Block, Design, Submit
from kvsan.model.design.check import pending
from kvsan.model.ops import Drop, Poll, Record, Sync, Wait
from kvsan.model.proof.actions import OTHER, Action, Control
from kvsan.model.proof.system import System

S = TypeVar("S", bound=Hashable)


class TooManyStatesError(Exception):
    """The cap was reached: so many control states and actions between them, or so many states behind them."""


TRIES = 4
"""How many actions may be tried for each state that the cap allows: time goes with the actions."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Control states by number (0 is the start), their successors, and how each was first reached."""

    states: tuple[Control, ...]
    after: tuple[tuple[tuple[Action, int], ...], ...]
    came: tuple[tuple[int, Action] | None, ...]

    def path(self, state: int) -> tuple[Action, ...]:
        """A shortest way to the state."""
        out: list[Action] = []
        while (step := self.came[state]) is not None:
            state, action = step
            out.append(action)
        return tuple(reversed(out))

    def actions(self) -> Iterator[Action]:
        return (action for nexts in self.after for action, _ in nexts)


def explore(system: System, cap: int) -> Graph:
    """All reachable control states, the cap on them and the actions between them. Raises `TooManyStatesError`."""
    number = {system.start: 0}
    states = [system.start]
    came: list[tuple[int, Action] | None] = [None]
    after: list[tuple[tuple[Action, int], ...]] = []
    moves = 0
    for at, state in enumerate(states):  # grows as we go: breadth first
        nexts = []
        for action, target in system.next(state):
            to = number.get(target)
            if to is None:
                to = number[target] = len(states)
                states.append(target)
                came.append((at, action))
            moves += 1
            if len(states) + moves > cap:
                raise TooManyStatesError
            nexts.append((action, to))
        after.append(tuple(nexts))
    return Graph(tuple(states), tuple(after), tuple(came))


def dead(design: Design, graph: Graph) -> tuple[str, ...]:
    """Rules and work that can never happen. A proof about a design with such a rule is about less than it says."""
    done: set[str] = set()
    for action in graph.actions():
        if action.kind == "rule":
            done.add(f"rule {action.of!r}")
        elif action.touch is not None:
            done |= {f"read of {action.of!r}"} if action.touch.reads else set()
            done |= {f"write of {action.of!r}"} if action.touch.writes else set()
        elif action.kind == "work":
            done.add(f"{action.of!r}")
    want = [f"rule {rule.name!r}" for rule in design.rules]
    for work in design.works():
        want += [f"read of {work.name!r}"] if work.reads is not None else []
        want += [f"write of {work.name!r}"] if work.writes is not None else []
    want += [f"{item.name!r}" for item in design.step if isinstance(item, Block | Submit)]
    if not any(work.reads is not None or work.writes is not None for work in design.works()):
        want.append("any access to the block (no work says reads= or writes=)")
    return tuple(name for name in want if name not in done)


@dataclass(frozen=True, slots=True)
class Stuck:
    """States from which the block can never become free again: how many, and the shortest way into one."""

    states: int
    schedule: tuple[Action, ...]


def stuck(system: System, graph: Graph, *, closed: bool) -> Stuck | None:
    """`closed`: no other request helps, so a step is launched only if it has work for this block."""
    back: list[list[int]] = [[] for _ in graph.states]
    for at, nexts in enumerate(graph.after):
        helped = closed and system.idle(graph.states[at]) and not system.wanted(graph.states[at])
        for action, to in nexts:
            if not (helped and action.kind == "launch"):
                back[to].append(at)
    good = [system.free(state) for state in graph.states]
    todo = [at for at, free in enumerate(good) if free]
    while todo:
        for at in back[todo.pop()]:
            if not good[at]:
                good[at] = True
                todo.append(at)
    bad = [at for at, free in enumerate(good) if not free]
    return Stuck(len(bad), graph.path(bad[0])) if bad else None


@dataclass(frozen=True, slots=True)
class Vacuous:
    """A wait or query of an event that nobody has recorded: it orders nothing, and a query answers "done"."""

    at: str
    event: str
    schedule: tuple[Action, ...]


def vacuous(graph: Graph, cap: int) -> tuple[Vacuous, ...]:
    """Every (action, event) at which that can happen, each with a shortest schedule."""
    found: dict[tuple[str, str], tuple[Action, ...]] = {}

    def step(recorded: frozenset[str], action: Action, at: int) -> tuple[frozenset[str], list[tuple[str, str]]]:
        bad = []
        now = set(recorded)
        for op in action.ops:
            if isinstance(op, Record):
                now.add(op.event)
            elif isinstance(op, Drop):
                now.discard(op.event)
            elif isinstance(op, Wait | Poll | Sync) and op.event not in now and action.kind != "see":
                bad.append((action.of, str(op.event)))
        return frozenset(now), bad

    for what, schedule in _walk(graph, frozenset[str](), step, cap):
        found.setdefault(what, schedule)
    return tuple(Vacuous(at, event, schedule) for (at, event), schedule in found.items())


@dataclass(frozen=True, slots=True)
class WrongGeneration:
    """An op that was planned for one generation of the block and runs on another."""

    work: str
    schedule: tuple[Action, ...]


def wrong_generations(design: Design, system: System, graph: Graph, cap: int) -> tuple[WrongGeneration, ...]:
    """Every planned op that a new generation can overtake, each with a shortest schedule.

    Planned: its guard holds, and it changes a facet that the guard asks about. A rule that hands the block out
    anew while that facet stays as it is makes the plan stale; so does one while a thread has the job in hand.
    """
    keeps = {rule.name for rule in design.rules if rule.keeps}
    changes = {rule.name: {facet for facet, _ in rule.then} for rule in design.rules}
    plans = pending(design)
    planned = [work for work in design.works() if work.name in plans]
    found: dict[str, tuple[Action, ...]] = {}
    facets = [system.facets(state) for state in graph.states]
    free = [system.free(state) for state in graph.states]

    def step(stale: frozenset[str], action: Action, at: int) -> tuple[frozenset[str], list[str]]:
        bad = []
        if action.touch is not None and action.of in stale:
            bad.append(action.of)
        if action.touch is not None:
            stale = stale - {action.of}
        if action.kind == "rule" and free[at] and action.of not in keeps:
            due = {
                work.name
                for work in planned
                if any(work.mode(facets[at])) and not plans[work.name] & changes[action.of]
            }
            for thread, pc in zip(design.threads, graph.states[at].pcs[1:], strict=True):
                if pc[0] >= 0 and not pc[3] & OTHER:
                    due.add(thread.jobs[pc[0]].name)
            stale = stale | due
        elif action.kind == "rule":
            gone = {name for name in stale if plans.get(name, frozenset()) & changes[action.of]}
            stale = stale - gone
        return stale, bad

    for what, schedule in _walk(graph, frozenset[str](), step, cap):
        found.setdefault(what, schedule)
    return tuple(WrongGeneration(work, schedule) for work, schedule in found.items())


F = TypeVar("F")


def _walk(
    graph: Graph, start: S, step: Callable[[S, Action, int], tuple[S, list[F]]], cap: int
) -> Iterator[tuple[F, tuple[Action, ...]]]:
    """The graph with some memory carried along; yields what `step` finds, nearest first."""
    came: dict[tuple[int, S], tuple[tuple[int, S], Action] | None] = {(0, start): None}
    todo = [(0, start)]
    tries = 0
    for here in todo:
        at, memory = here
        tries += len(graph.after[at])
        if tries > TRIES * cap:
            raise TooManyStatesError
        for action, to in graph.after[at]:
            then, found = step(memory, action, at)
            if found:
                schedule = [action]
                back = came[here]
                while back is not None:
                    node, via = back
                    schedule.append(via)
                    back = came[node]
                for what in found:
                    yield what, tuple(reversed(schedule))
            if (to, then) not in came:
                came[to, then] = (here, action)
                todo.append((to, then))
                if len(todo) > cap:
                    raise TooManyStatesError
