"""Breadth-first search for races: control states × one tracked access × one bit a context.

Any access may become the tracked one. From then on a state knows which contexts (streams, host threads, events,
queues) have it in their past, and each later access is held against that. Every ordered pair of works and kind
of hazard that can occur is found, each with a schedule of least length, because the search goes on behind a
race. Also found: the shortest way to a free block of which the host does not know every access complete.

Two reductions, both exact: a bit that nobody will read before it is overwritten is dropped, and a state in
which every bit that will be read is set is not continued, since nothing can race with the tracked access any
more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsan.model.design import MAIN
from kvsan.model.hazard import Kind, conflict
from kvsan.model.proof.actions import Action
from kvsan.model.proof.graph import TRIES, Graph, TooManyStatesError
from kvsan.model.proof.system import System
from kvsan.model.proof.transfer import Transfer, Transfers


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
    """What a search found. `states` counts control states and tracked ones."""

    states: int
    races: dict[Pair, Schedule]
    unseen_free: Schedule | None


def pairs(graph: Graph) -> frozenset[Pair]:
    """All conflicting pairs that occur at all, ordered or not: the later access can be reached behind the earlier one.

    The search does not know them, because it drops an access as soon as all that may follow is ordered behind it.
    """
    touches: dict[tuple[str, bool], int] = {}

    def bits(action: Action) -> int:
        done = action.touch
        if done is None:
            return 0
        out = 0
        for there, writes in ((done.reads, False), (done.writes, True)):
            if there:
                out |= 1 << touches.setdefault((done.work, writes), len(touches))
        return out

    moves = [[(bits(action), to) for action, to in nexts] for nexts in graph.after]
    back: list[set[int]] = [set() for _ in moves]
    for at, nexts in enumerate(moves):
        for _, to in nexts:
            back[to].add(at)
    follows = [0] * len(moves)
    for at, nexts in enumerate(moves):
        for mine, _ in nexts:
            follows[at] |= mine
    todo = [at for at, mine in enumerate(follows) if mine]
    while todo:
        to = todo.pop()
        for at in back[to]:
            if follows[to] & ~follows[at]:
                follows[at] |= follows[to]
                todo.append(at)
    behind = [0] * len(touches)
    for nexts in moves:
        for mine, to in nexts:
            for bit in range(len(touches)):
                if mine >> bit & 1:
                    behind[bit] |= follows[to]
    return frozenset(
        Pair(kind, earlier, later)
        for (earlier, wrote), first in touches.items()
        for (later, writes), second in touches.items()
        if behind[first] >> second & 1 and (kind := conflict(wrote, writes)) is not None
    )


def search(
    system: System,
    graph: Graph,
    cap: int,
    *,
    first: frozenset[Pair] | None = None,
    transfers: Transfers | None = None,
    works: Sequence[str] = (),
) -> Found:
    """`first`: stop as soon as these pairs have been found. `transfers` and `works`: what to ask of which accesses,
    if not whether those of the design's works race. Raises `TooManyStatesError`."""
    transfers = transfers or Transfers(system.design, graph.actions(), system.threads)
    width = len(transfers.contexts)
    low, host = (1 << width) - 1, transfers.bit["host", MAIN]
    works = works or [work.name for work in system.design.works()]
    tracked = [("", False)] + [(work, writes) for work in works for writes in (False, True)]
    index = {what: i for i, what in enumerate(tracked)}
    many = len(tracked)
    idle_free = [system.idle(state) and system.free(state) for state in graph.states]
    live = _live(graph, transfers, [host if free else 0 for free in idle_free])
    after = [
        [(action, to * many << width, transfers.of[action], live[to]) for action, to in nexts] for nexts in graph.after
    ]
    ends: list[tuple[Pair, int, Action]] = []
    have: set[Pair] = set()
    unseen: int | None = None
    came: dict[int, tuple[int, Action] | None] = {0: None}
    todo = [0]
    tries = 0
    for here in todo:
        bits, rest = here & low, here >> width
        at, what = divmod(rest, many)
        tries += len(after[at])
        if what and unseen is None and idle_free[at] and not bits & host:
            unseen = here
        for action, to, transfer, read in after[at]:
            check = transfer.check
            targets = []
            if what:
                new = transfer(bits) & read
                if check is not None:
                    earlier, wrote = tracked[what]
                    for touches, writes, mask in (
                        (check.reads, False, check.read_mask),
                        (check.writes, True, check.write_mask),
                    ):
                        kind = conflict(wrote, writes) if touches else None
                        if kind is not None:
                            pair = Pair(kind, earlier, check.work)
                            if not bits & mask and pair not in have:
                                have.add(pair)
                                ends.append((pair, here, action))
                if new == read:
                    continue
                targets.append(to + (what << width) + new)
            else:
                targets.append(to)
                if check is not None and check.reads and check.start_read & read != read:
                    targets.append(to + (index[check.work, False] << width) + (check.start_read & read))
                if check is not None and check.writes and check.start_write & read != read:
                    targets.append(to + (index[check.work, True] << width) + (check.start_write & read))
            for target in targets:
                if target not in came:
                    came[target] = (here, action)
                    todo.append(target)
        if len(todo) > cap or tries > TRIES * cap:
            raise TooManyStatesError
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
    return Found(len(todo), races, None if unseen is None else schedule(unseen, None))


def _live(graph: Graph, transfers: Transfers, asked: list[int]) -> list[int]:
    """For each control state the bits that some continuation reads before it overwrites them."""
    live = list(asked)
    back: list[list[tuple[int, Transfer]]] = [[] for _ in live]
    for at, nexts in enumerate(graph.after):
        for action, to in nexts:
            transfer = transfers.of[action]
            back[to].append((at, transfer))
            if transfer.check is not None:
                live[at] |= transfer.check.read_mask if transfer.check.reads else 0
                live[at] |= transfer.check.write_mask if transfer.check.writes else 0
    todo = list(range(len(live)))
    queued = [True] * len(live)
    while todo:
        to = todo.pop()
        queued[to] = False
        for at, transfer in back[to]:
            more = live[at] | transfer.read(live[to])
            if more != live[at]:
                live[at] = more
                if not queued[at]:
                    queued[at] = True
                    todo.append(at)
    return live
