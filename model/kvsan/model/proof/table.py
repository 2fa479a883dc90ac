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
from kvsan.model.proof.actions import IDLE, UNLAUNCHED, Action, Control, Pc, words_of
from kvsan.model.proof.graph import TooManyStatesError
from kvsan.model.proof.system import System

V = TypeVar("V")

USED = "this step used the block"
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
            out.append(self._component(f"{thread} stands", [state.pcs[at] for state in self.states], _stands(items)))
        if system.run_ahead is not None:
            out.append(self._component("steps not yet seen", [state.unseen for state in self.states], str))
        out.append(self._component("the last use", [state.last_use for state in self.states], _position))
        out.append(self._component("the fence", [state.fence for state in self.states], _position))
        out.append(self._component(USED, [state.used for state in self.states], lambda used: "yes" if used else "no"))
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
        if len(states) > cap:
            raise TooManyStatesError
    return Table(system, tuple(states), tuple(actions), tuple(dict.fromkeys(moves)))


def _position(rank: int) -> str:
    return POSITION.get(rank, f"unseen step {rank}")


def _stands(items: tuple[Item, ...]) -> Callable[[Pc], str]:
    def word(pc: Pc) -> str:
        at, done, phase, mode = pc
        if pc == IDLE:
            return "idle"
        where = f"at {_name(items[at])}" if at < len(items) else "at the end"
        finished = [_name(items[at + bit]) for bit in range(done.bit_length()) if done & (1 << bit)]
        where += f" (done: {', '.join(finished)})" if finished else ""
        return where + (f", call {phase + 1} {words_of(mode)}" if phase else "")

    return word


def _name(item: Item) -> str:
    match item:
        case Mark():
            return f"record {item.event}"
        case Work() | Block() | Submit():
            return item.name
