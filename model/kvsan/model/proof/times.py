"""What the rules say of times: one action's effect, and a schedule with a time for everything in it.

`effect` runs `kvsan.model.order` on an action with pasts that are sets of names of times: of a context (all that it
knows had ended by then), of the call itself, of the end of the action's own access.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from kvsan.model.ops import Access, Drop, Get, Poll, Put, Record, Sync, Wait
from kvsan.model.order import Issued, Order
from kvsan.model.pasts import Agent, Element
from kvsan.model.proof.actions import Action
from kvsan.model.proof.search import Pair

Name = tuple[str, str]
"""A context ("stream" | "host" | "event" | "queue", name), or one of the three that follow."""

CALL: Name = ("call", "")
RUN_END: Name = ("end", "run")
READ_END: Name = ("end", "read")
Past = frozenset[Name | Element]
Span = tuple[Fraction, Fraction]


class Names:
    """The lattice: a past is a set of names; all that it holds has ended by the latest of these times."""

    def bottom(self) -> Past:
        return frozenset()

    def join(self, a: Past, b: Past) -> Past:
        return a | b

    def add(self, past: Past, element: Element) -> Past:
        return past | {element}

    def via(self, past: Past, op: int) -> Past:
        return past


@dataclass(frozen=True, slots=True)
class Effect:
    """What an action does to times. `after`: the new time of a context is not before any of these. `run`: its access
    starts not before these (None: it has none). `read`: the same for its read, if that is an interval of its own
    (source order `any` or `call`); `read_ends` is whether such a read has an end of its own too."""

    thread: str
    after: Mapping[Name, frozenset[Name]]
    run: frozenset[Name] | None
    read: frozenset[Name] | None
    read_ends: bool


def effect(action: Action) -> Effect:
    """Reads the rules for one action."""
    thread, contexts = ("host", action.thread), _mentioned(action)
    contexts[thread] = None
    order: Order[Past] = Order(Names())
    starts: dict[Name, Past] = {context: frozenset({CALL if context == thread else context}) for context in contexts}
    order.suppose(
        {Agent(name, kind == "host"): past for (kind, name), past in starts.items() if kind in ("stream", "host")},
        {name: past for (kind, name), past in starts.items() if kind == "event"},
        {name: past for (kind, name), past in starts.items() if kind == "queue"},
    )
    access: Access | None = None
    issued: Issued[Past] | None = None
    for number, op in enumerate(action.ops):
        found = order.issue(number, op)
        if isinstance(op, Access):
            assert access is None, action
            access, issued = op, found

    def now(context: Name) -> Past:
        kind, name = context
        if kind == "event":
            recorded = order.events.get(name)
            return frozenset() if recorded is None else recorded.past
        if kind == "queue":
            return order.handed(name) or frozenset()
        return order.past(Agent(name, kind == "host"))

    after = {context: now(context) for context in contexts}
    after |= {("event", new): after["event", old] for new, old in action.copies}
    after |= {("event", name): frozenset() for name in action.forgets}
    ends: dict[Element, Name] = {}
    if issued is not None:
        ends = {issued.read: READ_END, issued.write: RUN_END}  # one element, one end

    def named(past: Past) -> frozenset[Name]:
        return frozenset(ends[one] if isinstance(one, Element) else one for one in past)

    apart = access is not None and access.on is not None and access.order != "stream"
    return Effect(
        action.thread,
        {context: named(past) for context, past in after.items() if past != {context}},
        named(issued.writes) if issued is not None else None,
        named(issued.reads) if issued is not None and apart else None,
        len(ends) > 1,
    )


def _mentioned(action: Action) -> dict[Name, None]:
    out: dict[Name, None] = {}
    for op in action.ops:
        if isinstance(op, Access | Record | Wait) and op.on is not None:
            out["stream", op.on] = None
        if isinstance(op, Record | Wait | Poll | Sync | Drop) and op.event is not None:
            out["event", op.event] = None
        if isinstance(op, Put | Get):
            out["queue", op.token] = None
    return out | {("event", name): None for name in (*(n for copy in action.copies for n in copy), *action.forgets)}


@dataclass(frozen=True, slots=True)
class Moment:
    """An action, when the host makes the call, and from when to when its access runs. `read`: when it reads its
    source, if that is an interval of its own."""

    action: Action
    call: Fraction
    run: Span | None = None
    read: Span | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """A race with a time for everything: the last moment's access overlaps that of moment `earlier`. Only the order of
    times means something; they are small whole numbers. `one_clock`: calls of all threads are in the order of the
    schedule; else each thread has its own clock."""

    pair: Pair
    moments: tuple[Moment, ...]
    earlier: int
    one_clock: bool

    def __len__(self) -> int:
        return len(self.moments)

    def words(self) -> tuple[str, ...]:
        """One line an action."""
        out = []
        for at, moment in enumerate(self.moments):
            runs = "" if moment.run is None else f", runs {moment.run[0]} to {moment.run[1]}"
            runs += "" if moment.read is None else f", reads its source {moment.read[0]} to {moment.read[1]}"
            mark = "   <- overlap" if at in (self.earlier, len(self.moments) - 1) else ""
            out.append(f"{at + 1:3} at {moment.call}: {moment.action}{runs}{mark}")
        return tuple(out)


def ranked(times: Times) -> Times:
    """The same order of times in whole numbers from 0."""
    every = {at for moment in times.moments for at in (moment.call, *(moment.run or ()), *(moment.read or ()))}
    rank = {at: Fraction(number) for number, at in enumerate(sorted(every))}

    def span(of: Span | None) -> Span | None:
        return None if of is None else (rank[of[0]], rank[of[1]])

    moments = tuple(replace(m, call=rank[m.call], run=span(m.run), read=span(m.read)) for m in times.moments)
    return replace(times, moments=moments)
