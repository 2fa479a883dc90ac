"""The control states of a design as a table of named components, for readers that do not share the search's path.

A control state is a handful of small values: each facet of the block, where each host thread stands, which steps
the host has not seen. Here each has a name and each value words, so that a clause about control states can be
read, stored, and handed to z3 as a finite-domain variable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from kvsan.model.design import Block, Design, Item, Mark, Submit, Work
from kvsan.model.proof.actions import IDLE, READS, UNLAUNCHED, WRITES, Action, Control, Pc, calls, words_of
from kvsan.model.proof.graph import TooManyStatesError
from kvsan.model.proof.system import System

V = TypeVar("V")

POSITION = {0: "seen by the host", UNLAUNCHED: "not launched yet"}


@dataclass(frozen=True)
class Component:
    """One part of a control state: its name, its values in words, and the value's number in each state."""

    name: str
    values: tuple[str, ...]
    of: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """All control states, and which action leads from which to which. State 0 is the start."""

    system: System
    states: tuple[Control, ...]
    actions: tuple[Action, ...]
    moves: tuple[tuple[int, int, int], ...]
    """State, action, state."""

    @cached_property
    def components(self) -> tuple[Component, ...]:
        design, system = self.system.design, self.system
        out = [
            self._component(name, [state.block[at] for state in self.states]) for at, name in enumerate(system.names)
        ]
        for at, thread in enumerate(system.threads):
            items = design.step if at == 0 else design.threads[at - 1].jobs
            who = "the host is" if at == 0 else f"the {thread} thread is"
            idle = "between steps" if at == 0 else "idle"
            out.append(
                self._component(who, [state.pcs[at] for state in self.states], _stands(design, items, thread, idle))
            )
        if system.run_ahead is not None:
            out.append(self._component("the number of unseen steps is", [state.unseen for state in self.states], str))
        out.append(self._component("the last use is", [state.last_use for state in self.states], _position))
        out.append(self._component("the fence is", [state.fence for state in self.states], _position))
        used = [state.used for state in self.states]
        out.append(self._component("in this step the block is", used, lambda yes: "used" if yes else "not used"))
        return tuple(part for part in out if len(part.values) > 1)

    def _component(self, name: str, of: list[V], word: Callable[[V], str] = str) -> Component:
        distinct = sorted(set(of), key=repr)
        words = [word(value) for value in distinct]
        words = [f"{w} #{at}" if words.count(w) > 1 else w for at, w in enumerate(words)]
        number = {value: at for at, value in enumerate(distinct)}
        return Component(name, tuple(words), tuple(number[value] for value in of))


def tabulate(design: Design, run_ahead: int | None, cap: int) -> Table:
    """Every control state that can be reached. Raises `TooManyStatesError`."""
    system = System(design, run_ahead)
    number, states, moves = {system.start: 0}, [system.start], []
    actions: dict[Action, int] = {}
    for at, state in enumerate(states):  # grows as we go
        for action, target in system.next(state):
            if target not in number:
                number[target] = len(states)
                states.append(target)
            moves.append((at, actions.setdefault(action, len(actions)), number[target]))
        if len(states) + len(moves) > cap:
            raise TooManyStatesError
    return Table(system, tuple(states), tuple(actions), tuple(dict.fromkeys(moves)))


def _position(rank: int) -> str:
    return POSITION.get(rank, f"unseen step {rank}")


def _stands(design: Design, items: tuple[Item, ...], thread: str, idle: str) -> Callable[[Pc], str]:
    def word(pc: Pc) -> str:
        at, done, phase, mode = pc
        if pc == IDLE:
            return idle
        if at == len(items):
            return "at the end of the step"
        if phase:
            work = items[at]
            assert isinstance(work, Work)  # what else there is has one call
            next_call = calls(design, work, thread, mode)[phase][0]
            plain = mode in (READS, WRITES) and (work.reads is None or work.writes is None)
            does = "" if plain else f" ({words_of(mode).strip('()')})"
            return f"in {work.name}{does} before {next_call!r}"
        group = _group(items, at)
        left = [_name(item) for bit, item in enumerate(group) if not done & (1 << bit)]
        return f"before {' and '.join(left)}" if left else f"behind {' and '.join(_name(item) for item in group)}"

    return word


def _group(items: tuple[Item, ...], at: int) -> tuple[Item, ...]:
    """The item, and those behind it that may come in any order with it."""
    group = getattr(items[at], "group", None)
    end = at + 1
    while group is not None and end < len(items) and getattr(items[end], "group", None) == group:
        end += 1
    return items[at:end]


def _name(item: Item) -> str:
    match item:
        case Mark():
            return f"record {item.event}"
        case Work() | Block() | Submit():
            return item.name
