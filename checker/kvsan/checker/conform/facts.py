"""What the trace's own order says at each op, and the order in which the ops are looked at.

The pasts are those of `kvsan.model.order` over epochs, in the order of the lines. A design with one host thread puts
all work in its step; if another thread of the trace issues it (a copy thread that takes jobs from a queue), what that
thread does after it got a job belongs at the place where the job was put: there the design has it. So such ops are
looked at right behind the put. Their pasts stay those of their lines.

Not covered: a helper thread that lags behind a re-record of the event that it waits for is judged by the record that
it waited for, at the place of the put; it may be told that its wait is an extra one. A design with that thread says it.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    writes: Past = ()
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


def facts(
    ops: Sequence[Op], streams: dict[str, Stream], names: Names, design: Design
) -> tuple[list[Fact], dict[str, int]]:
    """The facts in the order in which they are looked at, and where a past keeps each stream."""
    lattice = Epochs()
    order = Order(lattice, streams)
    main = Agent(names.main, is_host=True)
    heard: dict[str, int] = {}
    tokens: dict[str, int] = {}
    out: list[tuple[int, int, Fact]] = []
    alone = not design.threads
    for index, op in enumerate(ops):
        fact = Fact(index, op)
        if isinstance(op, Wait):
            fact.before = lattice.join(order.past(Agent(op.on)), order.past(Agent(op.by, is_host=True)))
        if isinstance(op, Wait | Poll | Sync) and op.event is not None:
            recorded = order.events.get(op.event)
            if recorded is not None:
                fact.event, fact.recorded = recorded.past, recorded.op
        issued = order.issue(index, op)
        if issued is not None and isinstance(op, Access):
            fact.reads, fact.writes = issued.reads, issued.writes
            agent = Agent(op.on) if op.on is not None else Agent(op.by, is_host=True)
            fact.after = order.past(agent)
        if isinstance(op, Put):
            tokens[op.token] = index if op.by == names.main else heard.get(op.by, -1)
        elif isinstance(op, Get) and op.by != names.main:
            heard[op.by] = max(heard.get(op.by, -1), tokens.get(op.token, -1))
        fact.main = order.past(main)
        fact.heard = index if op.by == names.main else heard.get(op.by, -1)
        moved = alone and op.by != names.main and fact.heard >= 0
        out.append((fact.heard, 1, fact) if moved else (index, 0, fact))
    out.sort(key=lambda one: (one[0], one[1], one[2].index))
    where = {agent.name: at for agent, at in lattice.agents.items() if not agent.is_host}
    return [fact for _, _, fact in out], where
