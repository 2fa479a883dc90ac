"""A counterexample played again on another design: is it one there too?

Much cheaper than a search, and it need not be complete: "no" may only mean that this very schedule is no longer
possible. The rules are `kvsan.model.order`'s, over sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsan.model.design import MAIN
from kvsan.model.hazard import Kind
from kvsan.model.ops import Access
from kvsan.model.order import Issued, Order
from kvsan.model.pasts import Agent, Bits, Element
from kvsan.model.proof.actions import Action, Control
from kvsan.model.proof.search import Pair, Schedule
from kvsan.model.proof.system import System


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A race (`pair`), or without a pair a free block of which the host does not know every access complete."""

    schedule: Schedule
    pair: Pair | None


def still(system: System, shown: Counterexample) -> bool:
    """Whether the schedule, or one with a few calls more, is possible in this system and breaks the same property."""
    walked = _walk(system, shown.schedule.actions)
    if walked is None:
        return False
    actions, numbers, end = walked
    first = numbers[shown.schedule.earlier]
    order: Order[int] = Order(Bits())
    op = 0
    elements: list[Element] = []
    checked: Issued[int] | None = None
    for at, action in enumerate(actions):
        for what in action.ops:
            found = order.issue(op, what)
            op += 1
            if isinstance(what, Access) and found is not None and action.touch is not None:
                checked = found
                if at == first:
                    reads = action.touch.reads and (shown.pair is None or shown.pair.kind is Kind.WAR)
                    writes = action.touch.writes and (shown.pair is None or shown.pair.kind is not Kind.WAR)
                    elements = [found.read] * reads + [found.write] * writes
        recorded = dict(order.events)
        for new, old in action.copies:
            if old in recorded:
                order.events[new] = recorded[old]
            else:
                order.events.pop(new, None)
        for gone in action.forgets:
            order.events.pop(gone, None)
    if shown.pair is None:
        known = order.past(Agent(MAIN, is_host=True))
        resting = system.idle(end) and system.free(end)
        return resting and any(not Bits().knows(known, element) for element in elements)
    assert checked is not None
    known = checked.reads if shown.pair.kind is Kind.RAW else checked.writes
    return any(not Bits().knows(known, element) for element in elements)


def _walk(system: System, schedule: Sequence[Action]) -> tuple[list[Action], list[int], Control] | None:
    """The same actions in this system, and where each stands. A call of the same work that was not there before (an
    added wait, with several host threads) is put in."""
    state = system.start
    actions: list[Action] = []
    numbers: list[int] = []
    known = {(action.of, action.label) for action in schedule}
    for wanted in schedule:
        while True:
            nexts = list(system.next(state))
            step = next(((a, s) for a, s in nexts if _same(a, wanted)), None)
            if step is None:
                more = [(a, s) for a, s in nexts if a.kind == "call" and a.of == wanted.of and a.thread == wanted.thread
                        and (a.of, a.label) not in known]  # fmt: skip
                if len(more) != 1:
                    return None
                state = more[0][1]
                actions.append(more[0][0])
                continue
            numbers.append(len(actions))
            actions.append(step[0])
            state = step[1]
            break
    return actions, numbers, state


def _same(a: Action, b: Action) -> bool:
    return a.label == b.label and a.kind == b.kind and a.of == b.of and a.thread == b.thread
