"""What other processes may have ordered: a process that sees half of a run must not call the lack of an order certain.

A worker and its scheduler in processes of their own hand on what they know by messages. A process sees that it took a
token which another put, not what the other knew. Two readings of that enclose the truth: the token carried nothing
(what the checker takes it for), or it carried all that any thread of this process has ever handed out before. A
hazard that holds in both is certain; one that the second reading orders is possible, and only the merged logs tell
(`kvsan merge`).

Rule: knowledge leaves a process by a put alone and comes back by a get alone, and in this process's order of lines the
put stands before the get. So the past that a get brings is within the union of the pasts of all puts before it.
Relies on: the hand-offs being logged. What is not logged at all is an unseen edge and is counted as one.

Before the first such token nothing is done; what was known by then counts as handed out. Cost after that: a second
set of vectors, no state a block.
"""

from __future__ import annotations

import copy

import numpy as np

from kvsan.checker.clocks import Clocks, Issue, Vector
from kvsan.model.hazard import Hazard, Kind, Site
from kvsan.model.ops import Access, Drop, Get, Op, Poll, Put, Record, Stream, Sync, Wait
from kvsan.model.pasts import Agent

FENCED = (Kind.RAW, Kind.WAR, Kind.WAW)


class Elsewhere:
    """The second reading. `feed` takes every op that the checker takes, from the first foreign token on."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = copy.deepcopy(clocks)
        self._out: Vector = np.zeros(0, np.int64)
        for vector in clocks.pasts().values():
            self._hand_out(vector)
        self._issue: Issue | None = None

    def feed(self, op: int, what: Op) -> None:
        clocks = self._clocks
        if isinstance(what, Access):
            self._issue = clocks.access(op + 1, what)
        elif isinstance(what, Record):
            clocks.record(op, what.by, what.on, what.event)
        elif isinstance(what, Wait):
            clocks.wait(what.by, what.on, what.event)
        elif isinstance(what, Sync):
            self._sync(what)
        elif isinstance(what, Poll):
            if what.done:
                clocks.observe_event(what.by, what.event)
        elif isinstance(what, Put):
            clocks.put(what.by, what.token)
            self._hand_out(clocks.knowledge(what.by))
        elif isinstance(what, Get):
            if not clocks.get(what.by, what.token):
                clocks.learn(what.by, self._out)
        elif isinstance(what, Drop):
            clocks.drop(what.event)

    def _sync(self, what: Sync) -> None:
        if what.event is not None:
            self._clocks.observe_event(what.by, what.event)
        elif what.stream is not None:
            self._clocks.observe_stream(what.by, what.stream)
        else:
            self._clocks.observe_device(what.by, what.device)

    def may_order(self, hazard: Hazard) -> bool:
        """Whether the two accesses of a hazard, of which the later was fed last, are ordered in the second reading."""
        issue = self._issue
        if hazard.kind not in FENCED or issue is None:
            return False
        past = issue.reads if hazard.kind is Kind.RAW else issue.writes
        epoch = hazard.earlier.op + 1
        return any(
            agent in self._clocks.agents and int(past[self._clocks.agents.index(agent)]) >= epoch
            for agent in _agents(hazard.earlier, hazard.kind)
        )

    def declare(self, name: str, stream: Stream) -> None:
        """A stream that appears while the engine runs."""
        self._clocks.declare(name, stream)

    def thread_gone(self, name: str) -> None:
        """A host thread that has ended."""
        self._clocks.thread_gone(name)

    def _hand_out(self, vector: Vector) -> None:
        wide = max(len(vector), len(self._out))
        both = np.zeros((2, wide), np.int64)
        both[0, : len(vector)], both[1, : len(self._out)] = vector, self._out
        self._out = both.max(axis=0)


def _agents(earlier: Site, kind: Kind) -> list[Agent]:
    """Whose access it may have been: a source that is read during the call is its thread's, and a site does not say."""
    on = [Agent(earlier.on)] if earlier.on is not None else []
    by = [Agent(earlier.by, is_host=True)] if earlier.by is not None else []
    return (on + by if kind is Kind.WAR else on) or by
