"""What a past is: the lattice that `kvsan.model.order` is read with, and four readings of it.

A past is a set of accesses known to be complete. Because the rules only join and copy pasts, any type with a join
will do that maps the set homomorphically: the set itself, its latest element of each agent, the membership of one
element, or the ops through which its elements became known. A test holds the four to each other on random traces.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

P = TypeVar("P")


class Agent(NamedTuple):
    """Who performs accesses one after the other: a stream, or a host thread (which `is_host`)."""

    name: str
    is_host: bool = False


class Element(NamedTuple):
    """What a past holds: the part of the access op `op` that `agent` performed.

    An access has one part, except one with source order `call`: its reads are the host thread's own, its writes the
    stream's.
    """

    op: int
    agent: Agent


class Lattice(Protocol[P]):
    """What a past is. All four functions are total and never change their arguments."""

    def bottom(self) -> P:
        """Nothing is known to be complete."""

    def join(self, a: P, b: P) -> P:
        """Both are known: the union."""

    def add(self, past: P, element: Element) -> P:
        """`past` and one more access."""

    def via(self, past: P, op: int) -> P:
        """`past` as it stands after the op `op` that passes it on: the same set. Only `Edges` notes the op."""


class Bits:
    """A past as the set itself, in the bits of an int. Exact, and as large as the trace is long."""

    def bottom(self) -> int:
        return 0

    def join(self, a: int, b: int) -> int:
        return a | b

    def add(self, past: int, element: Element) -> int:
        return past | self.bit(element)

    def via(self, past: int, op: int) -> int:
        return past

    def bit(self, element: Element) -> int:
        return 1 << (2 * element.op + element.agent.is_host)

    def knows(self, past: int, element: Element) -> bool:
        return bool(past & self.bit(element))


class Epochs:
    """A past as the latest complete access of each agent: as large as there are agents.

    Exact, because an agent completes its accesses in the order of issue: who knows one knows the agent's earlier
    ones. An epoch is the number of the op plus one, so it says *which* access it is (0: none).
    """

    def __init__(self) -> None:
        self.agents: dict[Agent, int] = {}

    def bottom(self) -> tuple[int, ...]:
        return ()

    def join(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        if a is b or not b:
            return a
        if len(a) < len(b):
            a, b = b, a
        return (*map(max, a, b), *a[len(b) :])

    def add(self, past: tuple[int, ...], element: Element) -> tuple[int, ...]:
        at = self.agents.setdefault(element.agent, len(self.agents))
        padded = past + (0,) * (at + 1 - len(past))
        return (*padded[:at], element.op + 1, *padded[at + 1 :])

    def via(self, past: tuple[int, ...], op: int) -> tuple[int, ...]:
        return past

    def epoch(self, past: tuple[int, ...], agent: Agent) -> int:
        """The epoch of the agent's latest access in `past`, 0 if there is none."""
        at = self.agents.get(agent, len(past))
        return past[at] if at < len(past) else 0

    def knows(self, past: tuple[int, ...], element: Element) -> bool:
        return self.epoch(past, element.agent) > element.op


class OneBit:
    """A past as one bit: does it hold the one tracked access? Membership of one access evolves without the others, so
    this loses nothing about that access; a proof chooses it nondeterministically.
    """

    def __init__(self, tracked: Element) -> None:
        self.tracked = tracked

    def bottom(self) -> bool:
        return False

    def join(self, a: bool, b: bool) -> bool:
        return a or b

    def add(self, past: bool, element: Element) -> bool:
        return past or element == self.tracked

    def via(self, past: bool, op: int) -> bool:
        return past

    def knows(self, past: bool, element: Element) -> bool:
        return past and element == self.tracked


class Edges:
    """A past as the ops through which its knowledge came; `edges` collects every step from one such op to the next.

    A node is an element (an access by its agent) or the number of an op that passed knowledge on. The past of an op
    reaches back over `edges` to all that it holds: a graph that can say *why*.
    """

    Node = Element | int

    def __init__(self) -> None:
        self.edges: dict[Element | int, frozenset[Element | int]] = {}

    def bottom(self) -> frozenset[Element | int]:
        return frozenset()

    def join(self, a: frozenset[Element | int], b: frozenset[Element | int]) -> frozenset[Element | int]:
        return a | b

    def add(self, past: frozenset[Element | int], element: Element) -> frozenset[Element | int]:
        return self._step(past, element)

    def via(self, past: frozenset[Element | int], op: int) -> frozenset[Element | int]:
        return self._step(past, op)

    def _step(self, past: frozenset[Element | int], node: Element | int) -> frozenset[Element | int]:
        self.edges[node] = self.edges.get(node, frozenset()) | (past - {node})
        return frozenset((node,))

    def knows(self, past: frozenset[Element | int], element: Element) -> bool:
        todo, seen = list(past), set(past)
        while todo:
            node = todo.pop()
            if node == element:
                return True
            fresh = self.edges.get(node, frozenset()) - seen
            seen |= fresh
            todo.extend(fresh)
        return False
