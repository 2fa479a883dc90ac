"""What an action does to what is known, read off `kvsan.model.order` and stated nowhere else.

`Order` runs once on the action's ops, over *symbolic* pasts: each context starts with a past that holds nothing
but its own name, so afterwards a context's past says whose knowledge went into it. With one bit a context,
"knows the tracked access", that is the action's whole effect: the new bit of a context is the OR of the old
bits of those names. Membership of one access evolves without the others, so this loses nothing.

A past here is a frozenset of context names and of the elements added on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kvsan.model.design import Design
from kvsan.model.ops import Access, Drop, Poll, Record, Sync, Wait
from kvsan.model.order import Issued, Order
from kvsan.model.pasts import Agent, Element
from kvsan.model.proof.actions import Action, Context, event_context, event_name

Past = frozenset[Context | Element]


class Symbolic:
    """The lattice of symbolic pasts."""

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
    """The new past of each context, and what the action's access may rely on (of whichever block)."""

    after: Mapping[Context, Past]
    issued: Issued[Past] | None


def effect(action: Action, contexts: Iterable[Context]) -> Effect:
    """Runs the rules on the action's ops, from pasts that are only names."""
    order: Order[Past] = Order(Symbolic())
    names = list(contexts)
    order.suppose(
        {Agent(name, kind == "host"): frozenset({(kind, name)}) for kind, name in names if kind in ("stream", "host")},
        {event: frozenset({context}) for context in names if (event := event_name(context)) is not None},
        {name: frozenset({(kind, name)}) for kind, name in names if kind == "queue"},
    )
    issued: Issued[Past] | None = None
    for number, op in enumerate(action.ops):
        found = order.issue(number, op)
        if isinstance(op, Access):
            issued = found

    def now(context: Context) -> Past:
        kind, name = context
        event = event_name(context)
        if event is not None:
            recorded = order.events.get(event)
            return recorded.past if recorded is not None else frozenset()
        if kind == "queue":
            return order.handed(name) or frozenset()
        return order.past(Agent(name, kind == "host"))

    after = {context: now(context) for context in names}
    renamed = {event_context(new): after[event_context(old)] for new, old in action.copies}
    return Effect(after | renamed | {event_context(name): frozenset() for name in action.forgets}, issued)


@dataclass(frozen=True, slots=True)
class Check:
    """What an access is held against: it is ordered behind the tracked access iff one of these bits is set.
    `start_*`: the bits when this very read or write becomes the tracked one."""

    work: str
    reads: bool
    writes: bool
    read_mask: int
    write_mask: int
    start_read: int
    start_write: int


@dataclass(slots=True)
class Transfer:
    """An effect on states packed in an int: `parts` has each changing context's bit and the bits that it comes
    from."""

    keep: int
    parts: tuple[tuple[int, int], ...]
    check: Check | None
    known: dict[int, int] = field(default_factory=dict)
    sources: dict[int, int] = field(default_factory=dict)

    def __call__(self, bits: int) -> int:
        out = self.known.get(bits)
        if out is None:
            out = bits & self.keep
            for bit, mask in self.parts:
                if bits & mask:
                    out |= bit
            self.known[bits] = out
        return out

    def read(self, wanted: int) -> int:
        """The bits before the action that decide the `wanted` bits after it."""
        out = self.sources.get(wanted)
        if out is None:
            out = wanted & self.keep
            for bit, mask in self.parts:
                if bit & wanted:
                    out |= mask
            self.sources[wanted] = out
        return out


class Transfers:
    """The transfer functions of a set of actions. A context whose bit nobody ever reads has none."""

    def __init__(
        self,
        design: Design,
        actions: Iterable[Action],
        threads: Iterable[str],
        check: Callable[[Action, Check], Check] | None = None,
    ) -> None:
        """`check` may ask something else of an access than whether it races; it sees those of other blocks too."""
        self.threads = tuple(threads)
        self._asks = check
        distinct = list(dict.fromkeys(actions))
        contexts = self._contexts(design, distinct)
        effects = {action: effect(action, contexts) for action in distinct}
        self.contexts = self._read(contexts, effects)
        self.bit = {context: 1 << i for i, context in enumerate(self.contexts)}
        self.of = {action: self._pack(action, effects[action]) for action in distinct}

    def _contexts(self, design: Design, actions: Iterable[Action]) -> list[Context]:
        out: dict[Context, None] = {("stream", stream.name): None for stream in design.streams}
        out |= {("host", thread): None for thread in self.threads}
        out |= {("event", event.name): None for event in design.events}
        out |= {("queue", queue): None for queue in design.queues}
        for action in actions:
            out |= {event_context(name): None for copy in action.copies for name in copy}
            out |= {event_context(name): None for name in action.forgets}
            for op in action.ops:
                if isinstance(op, Record | Wait | Poll | Sync | Drop) and op.event is not None:
                    out[event_context(op.event)] = None
        return list(out)

    def _read(self, contexts: list[Context], effects: Mapping[Action, Effect]) -> list[Context]:
        """The contexts that can decide something: a check asks them, or one that decides something takes from
        them."""
        asked = {context for context in contexts if context[0] in ("stream", "host")}
        while True:
            more = {
                source
                for done in effects.values()
                for context in asked
                for source in done.after[context]
                if not isinstance(source, Element)
            }
            if more <= asked:
                return [context for context in contexts if context in asked]
            asked |= more

    def _pack(self, action: Action, done: Effect) -> Transfer:
        keep, parts = 0, []
        for context in self.contexts:
            bit, mask = self.bit[context], self._mask(done.after[context])
            if mask == bit:
                keep |= bit
            elif mask:
                parts.append((bit, mask))
        check = None
        touch = action.touch
        if done.issued is not None and (touch is not None or self._asks is not None):
            issued = done.issued
            check = Check(
                action.of,
                touch is not None and touch.reads,
                touch is not None and touch.writes,
                self._mask(issued.reads),
                self._mask(issued.writes),
                self._start(done, issued.read),
                self._start(done, issued.write),
            )
            check = check if self._asks is None else self._asks(action, check)
        return Transfer(keep, tuple(parts), check)

    def _mask(self, past: Past) -> int:
        return sum(self.bit[source] for source in past if not isinstance(source, Element) and source in self.bit)

    def _start(self, done: Effect, element: Element) -> int:
        return sum(bit for context, bit in self.bit.items() if element in done.after[context])
