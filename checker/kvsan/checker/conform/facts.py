"""What the trace's own order says at each op, and the order in which the ops are looked at.

The pasts are those of `kvsan.model.order` over epochs, in the order of the lines. A design with one host thread puts
all work in its step; if another thread of the trace issues it (a copy thread that takes jobs from a queue), what that
thread does after it got a job belongs at the place where the job was put: there the design has it. So such ops are
looked at right behind the put. Their pasts stay those of their lines.

Not covered: a helper thread that lags behind a re-record of the event that it waits for is judged by the record that
it waited for, at the place of the put; it may be told that its wait is an extra one. A design with that thread says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvsan.checker.conform.names import Names
from kvsan.model.design import Design
from kvsan.model.ops import Access, Get, Op, Poll, Put, Stream, Sync, Wait
from kvsan.model.order import Order
from kvsan.model.pasts import Agent, Epochs

Past = tuple[int, ...]


@dataclass(slots=True)
class Fact:
    """An op and what it may rely on. `main`: what the scheduler's thread knows then; `before`: what the stream knew;
    `event`: what the event waited for or polled holds, and `recorded` the op that recorded it (-1: nobody);
    `heard`: the latest op of the scheduler's thread that this thread has been handed something behind."""

    index: int
    op: Op
    main: Past = ()
    before: Past = ()
    reads: Past = ()
    after: Past = ()
    event: Past = ()
    recorded: int = -1
    heard: int = -1


def covers(a: Past, b: Past) -> bool:
    """Whether all that `b` knows is in `a`."""
    if len(b) > len(a):
        if any(b[len(a) :]):
            return False
        b = b[: len(a)]
    return all(y <= x for x, y in zip(a, b, strict=False))


class Facts:
    """The facts of a trace in the order in which they are looked at, worked out no further than they are asked for.
    `agents`: where a past keeps each stream, as far as that is known by then."""

    def __init__(self, ops: Sequence[Op], streams: Mapping[str, Stream], names: Names, design: Design) -> None:
        lattice = Epochs()
        self.agents = lattice.agents
        self._ops, self._main = ops, Agent(names.main, is_host=True)
        self._lattice, self._order = lattice, Order(lattice, streams)
        self._heard = _heard(ops, names.main)
        self._alone = not design.threads

    def __iter__(self) -> Iterator[Fact]:
        order: list[int] = list(range(len(self._ops)))
        if self._alone:
            main = self._main.name
            order.sort(key=lambda i: (i if self._ops[i].by == main or self._heard[i] < 0 else self._heard[i],
                                      self._ops[i].by != main, i))  # fmt: skip
        made: dict[int, Fact] = {}
        done = 0
        for index in order:
            while done <= index:
                made[done] = self._fact(done)
                done += 1
            yield made.pop(index)

    def _fact(self, index: int) -> Fact:
        op, order = self._ops[index], self._order
        fact = Fact(index, op, heard=self._heard[index])
        if isinstance(op, Wait):
            fact.before = self._lattice.join(order.past(Agent(op.on)), order.past(Agent(op.by, is_host=True)))
        if isinstance(op, Wait | Poll | Sync) and op.event is not None:
            recorded = order.events.get(op.event)
            if recorded is not None:
                fact.event, fact.recorded = recorded.past, recorded.op
        issued = order.issue(index, op)
        if issued is not None and isinstance(op, Access):
            fact.reads = issued.reads
            fact.after = order.past(Agent(op.on) if op.on is not None else Agent(op.by, is_host=True))
        fact.main = order.past(self._main)
        return fact


def _heard(ops: Sequence[Op], main: str) -> list[int]:
    """For each op the latest op of the main thread that its thread has been handed something behind."""
    by: dict[str, int] = {}
    tokens: dict[str, int] = {}
    out = []
    for index, op in enumerate(ops):
        if isinstance(op, Get) and op.by != main:
            by[op.by] = max(by.get(op.by, -1), tokens.get(op.token, -1))
        out.append(index if op.by == main else by.get(op.by, -1))
        if isinstance(op, Put):
            tokens[op.token] = out[-1]
    return out
