"""Breadth-first search for races: control states × one tracked access × one bit a context.

Any access may become the tracked one. From then on a state knows which contexts (streams, host threads, events, queues) have
it in their past, and each later access is held against that. Every ordered pair of works and kind of hazard that can occur
is found, each with a schedule of least length, because the search goes on behind a race. Also found: the shortest way to a
free block of which the host does not know every access complete.

A state in which every stream and host thread knows the tracked access is not continued: nothing can race with it any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsan.model.design import MAIN
from kvsan.model.hazard import Kind, conflict
from kvsan.model.proof.actions import Action, System
from kvsan.model.proof.graph import Graph, TooManyStates
from kvsan.model.proof.transfer import Transfers


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A kind of hazard and the two works, the earlier issued first."""

    kind: Kind
    earlier: str
    later: str

    def __str__(self) -> str:
        return f"{self.kind} {self.earlier} -> {self.later}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A counterexample: the actions, and which of them is the earlier access. The last one is the later."""

    actions: tuple[Action, ...]
    earlier: int

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found. `states` counts control states and tracked ones. `pairs`: conflicting pairs that occur at all."""

    states: int
    races: dict[Pair, Schedule]
    unseen_free: Schedule | None
    pairs: frozenset[Pair]


def search(system: System, graph: Graph, cap: int, *, first: frozenset[Pair] | None = None) -> Found:
    """`first`: stop as soon as these pairs have been found. Raises `TooManyStates`."""
    transfers = Transfers(system.design, graph.actions(), system.threads)
    width = len(transfers.contexts)
    low, done, host = (1 << width) - 1, transfers.agents, transfers.bit["host", MAIN]
    works = [work.name for work in system.design.works()]
    tracked = [("", False)] + [(work, writes) for work in works for writes in (False, True)]
    index = {what: i for i, what in enumerate(tracked)}
    many = len(tracked)
    after = [
        [(action, to * many << width, transfers.of[action]) for action, to in nexts] for nexts in graph.after
    ]
    idle_free = [system.idle(state) and system.free(state) for state in graph.states]
    ends: list[tuple[Pair, int, Action]] = []
    have: set[Pair] = set()
    occurs: set[Pair] = set()
    unseen: int | None = None
    came: dict[int, tuple[int, Action] | None] = {0: None}
    todo = [0]
    for here in todo:
        bits, rest = here & low, here >> width
        at, what = divmod(rest, many)
        if what and unseen is None and idle_free[at] and not bits & host:
            unseen = here
        for action, to, transfer in after[at]:
            check = transfer.check
            targets = []
            if what:
                new = transfer(bits)
                if check is not None:
                    earlier, wrote = tracked[what]
                    for touches, writes, mask in (
                        (check.reads, False, check.read_mask),
                        (check.writes, True, check.write_mask),
                    ):
                        kind = conflict(wrote, writes) if touches else None
                        if kind is not None:
                            pair = Pair(kind, earlier, check.work)
                            occurs.add(pair)
                            if not bits & mask and pair not in have:
                                have.add(pair)
                                ends.append((pair, here, action))
                if new & done == done:
                    continue
                targets.append(to + (what << width) + new)
            else:
                targets.append(to)
                if check is not None and check.reads:
                    targets.append(to + (index[check.work, False] << width) + check.start_read)
                if check is not None and check.writes:
                    targets.append(to + (index[check.work, True] << width) + check.start_write)
            for target in targets:
                if target not in came:
                    came[target] = (here, action)
                    todo.append(target)
        if len(todo) > cap:
            raise TooManyStates
        if first is not None and first <= have:
            break

    def schedule(end: int, last: Action | None) -> Schedule:
        actions = [last] if last is not None else []
        start = 0
        node = end
        while (back := came[node]) is not None:
            before, action = back
            actions.append(action)
            if (node >> width) % many and not (before >> width) % many:
                start = len(actions)
            node = before
        return Schedule(tuple(reversed(actions)), len(actions) - start)

    races = {pair: schedule(end, action) for pair, end, action in ends}
    return Found(len(todo), races, None if unseen is None else schedule(unseen, None), frozenset(occurs))
