"""What a design file names things with: streams, events, queues, threads, and `may`. They only write the
protocol down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol as Interface

from kvsan.model.design.guards import Assign, DesignError, Facet, Guard, assignment, leaves, unknown
from kvsan.model.design.parts import Fence, Got, Item, Mark, Need, Retired, Rule, Seen, Work
from kvsan.model.ops import Source


class Writing(Interface):
    """The protocol under construction, as far as these need it."""

    @property
    def group(self) -> int | None:
        """The group of parts in no fixed order that is open, if one is."""

    @property
    def facets(self) -> tuple[Facet, ...]:
        """What the block is described by."""

    def add(self, item: Item) -> None:
        """Puts an item where the program that is open stands."""

    def program(self, name: str) -> AbstractContextManager[None]:
        """Opens a thread's program."""

    def rule(self, rule: Rule) -> None:
        """Adds a rule."""


now: None = None
newest, last_use, next_step = Fence.NEWEST, Fence.LAST_USE, Fence.NEXT


def retired(fence: Fence) -> Retired:
    """The host has seen the step that the fence names: `newest`, `last_use` or `next_step`."""
    if not isinstance(fence, Fence):
        raise DesignError(f"retired() takes a fence (newest, last_use or next_step), not {fence!r}")
    return Retired(fence)


def seen(event: EventRef) -> Seen:
    """A poll of the event answered true."""
    if not isinstance(event, EventRef):
        raise DesignError(f"seen() takes an event of this protocol (p.event(...)), not {event!r}")
    return Seen(event.name)


def got(queue: QueueRef) -> Got:
    """The entry that another thread put in the queue has been taken."""
    if not isinstance(queue, QueueRef):
        raise DesignError(f"got() takes a queue of this protocol (p.queue(...)), not {queue!r}")
    return Got(queue.name)


class EventRef:
    """An event of the protocol under construction."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"event {self.name!r}"


class QueueRef:
    """A queue of it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"queue {self.name!r}"


Events = EventRef | Iterable[EventRef] | None


class Writer:
    """A stream, or the host itself: who does work."""

    def __init__(self, protocol: Writing, name: str | None) -> None:
        self._protocol, self.name = protocol, name

    def __repr__(self) -> str:
        return f"stream {self.name!r}" if self.name is not None else "the host"

    def work(
        self,
        name: str,
        *,
        reads: Guard | None = None,
        writes: Guard | None = None,
        then: Guard | None = None,
        after: Events = None,
        signals: Events = None,
        order: Source = "stream",
        every_step: bool = False,
        takes: QueueRef | None = None,
        publishes: QueueRef | None = None,
    ) -> None:
        """Any work; the methods below are this with the usual roles filled in."""
        name_of(name, "work")
        if order not in ("stream", "any", "call"):
            raise unknown("source order", str(order), ("stream", "any", "call"))
        for what, guard in (("reads", reads), ("writes", writes)):
            guard_of(guard, f"{name}: {what}=", self._protocol.facets)
        self._protocol.add(
            Work(
                name=name,
                on=self.name,
                reads=reads,
                writes=writes,
                then=assigned(then, name, self._protocol.facets),
                after=names_of(after, f"{name}: after="),
                signals=names_of(signals, f"{name}: signals="),
                order=order,
                every_step=every_step,
                takes=queue_of(takes, f"{name}: takes="),
                publishes=queue_of(publishes, f"{name}: publishes="),
                group=self._protocol.group,
            )
        )


class StreamRef(Writer):
    """A stream of it: its work is written down in launch order."""

    name: str

    def forward(
        self,
        *,
        reads: Guard | None = None,
        writes: Guard | None = None,
        then: Guard | None = None,
        after: Events = None,
        signals: Events = None,
        name: str = "forward",
    ) -> None:
        """The model's forward: it runs in every step, for other blocks if not for this one."""
        self.work(name, reads=reads, writes=writes, then=then, after=after, signals=signals, every_step=True)

    def copy_in(
        self,
        when: Guard,
        *,
        then: Guard | None = None,
        after: Events = None,
        signals: Events = None,
        takes: QueueRef | None = None,
        publishes: QueueRef | None = None,
        name: str | None = None,
    ) -> None:
        """A transfer that writes the block."""
        self.work(
            name or self.name,
            writes=when,
            then=then,
            after=after,
            signals=signals,
            takes=takes,
            publishes=publishes,
        )

    def copy_out(
        self,
        when: Guard,
        *,
        then: Guard | None = None,
        after: Events = None,
        signals: Events = None,
        order: Source = "stream",
        takes: QueueRef | None = None,
        publishes: QueueRef | None = None,
        name: str | None = None,
    ) -> None:
        """A transfer that reads the block; `order` is when the copy engine may read the source."""
        self.work(
            name or self.name,
            reads=when,
            then=then,
            after=after,
            signals=signals,
            order=order,
            takes=takes,
            publishes=publishes,
        )

    def zero(self, when: Guard, *, then: Guard | None = None, after: Events = None, name: str = "zero") -> None:
        """A memset of the block."""
        self.work(name, writes=when, then=then, after=after)

    def record(self, event: EventRef) -> None:
        """The event captures what the stream holds at this point of the step."""
        if not isinstance(event, EventRef):
            raise DesignError(f"{self.name}.record() takes one event of this protocol (p.event(...)), not {event!r}")
        self._protocol.add(Mark(self.name, event.name))


class ThreadRef:
    """A further host thread of it."""

    def __init__(self, protocol: Writing, name: str) -> None:
        self._protocol, self.name = protocol, name

    def __repr__(self) -> str:
        return f"thread {self.name!r}"

    def jobs(self) -> AbstractContextManager[None]:
        """What the thread does with each kind of job, in any order and at any time."""
        return self._protocol.program(self.name)


class Scheduler:
    """`may("allocate", when=free, then=...)`: one thing that the scheduler may do between steps."""

    def __init__(self, protocol: Writing) -> None:
        self._protocol = protocol

    def __call__(
        self,
        name: str,
        *,
        when: Guard | None = None,
        then: Guard | None = None,
        needs: Need | Iterable[Need] | None = None,
        free: Retired | None = now,
        keeps: bool = False,
        records: Mapping[StreamRef, EventRef] | None = None,
        cancels: Iterable[str] = (),
    ) -> None:
        name_of(name, "rule")
        if when is None:
            raise DesignError(f"{name}: say when=, a guard such as b.running & b.empty: which blocks it may happen to")
        guard_of(when, f"{name}: when=", self._protocol.facets)
        self._protocol.rule(
            Rule(
                name,
                when,
                assigned(then, name, self._protocol.facets),
                _needs(needs, f"{name}: needs="),
                _held(free, f"{name}: free="),
                keeps,
                _marks(records, f"{name}: records="),
                _cancelled(cancels, f"{name}: cancels="),
            )
        )


def _held(free: object, where: str) -> Retired | None:
    if isinstance(free, Fence):
        raise DesignError(f"{where} takes now or retired(...), not {free}; write retired({free})")
    if free is not None and not isinstance(free, Retired):
        raise DesignError(f"{where} takes now or retired(...), not {free!r}")
    return free


def _cancelled(cancels: object, where: str) -> tuple[str, ...]:
    if isinstance(cancels, str):
        raise DesignError(f"{where} takes a list of works, not one text; write cancels=[{cancels!r}]")
    out: list[str] = []
    for one in _listed(cancels):
        if not isinstance(one, str):
            raise DesignError(f"{where} takes a list of works by their names, such as ['load'], not {one!r}")
        out.append(one)
    return tuple(out)


def _needs(needs: object, where: str) -> tuple[Need, ...]:
    if needs is None:
        return ()
    out: list[Need] = []
    for need in [needs] if isinstance(needs, Seen | Got | Retired) else _listed(needs):
        if not isinstance(need, Seen | Got | Retired):
            hint = {EventRef: "seen", QueueRef: "got", Fence: "retired"}.get(type(need))
            write = f"; write {hint}({getattr(need, 'name', '') if hint != 'retired' else need})" if hint else ""
            raise DesignError(
                f"{where} takes seen(event), got(queue) or retired(fence), one or a list, not {need!r}{write}"
            )
        out.append(need)
    return tuple(out)


def _marks(records: object, where: str) -> tuple[tuple[str, str], ...]:
    out: list[tuple[str, str]] = []
    pairs = list(records.items()) if isinstance(records, Mapping) else [] if records is None else [(records, None)]
    for stream, event in pairs:
        if not isinstance(stream, StreamRef) or not isinstance(event, EventRef):
            raise DesignError(
                f"{where} maps streams to events of this protocol, such as {{compute: used}}, not {records!r}"
            )
        out.append((stream.name, event.name))
    return tuple(out)


def _listed(value: object) -> tuple[object, ...]:
    """One thing is a list of one; a text is one thing and never its letters."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def name_of(name: object, what: str) -> None:
    """Raises `DesignError` if this is no name for a work, a rule, a stream."""
    if not isinstance(name, str) or not name.strip():
        raise DesignError(f"the name of a {what} is a text that is not empty, not {name!r}")


def guard_of(value: object, where: str, facets: tuple[Facet, ...]) -> None:
    """Raises `DesignError` if this is neither left out nor a guard on this block."""
    if value is None:
        return
    if not isinstance(value, Guard):
        raise DesignError(f"{where} takes a guard such as b.running & b.empty, not {value!r}")
    known = {facet.name: facet.values for facet in facets}
    for leaf in leaves(value):
        if known.get(leaf.facet) != leaf.domain:
            have = "; ".join(f"{facet}: {' | '.join(values)}" for facet, values in known.items())
            raise DesignError(
                f"{where} asks {leaf}, which is of another protocol's block; this one has {have or 'no facets yet'}"
            )


def assigned(value: Guard | None, name: str, facets: tuple[Facet, ...]) -> Assign:
    """What `then=` says, of this block."""
    if isinstance(value, Guard):
        guard_of(value, f"{name}: then=", facets)
    return assignment(value, name)


def queue_of(value: object, where: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, QueueRef):
        raise DesignError(f"{where} takes a queue of this protocol (p.queue(...)), not {value!r}")
    return value.name


def names_of(events: object, where: str) -> tuple[str, ...]:
    """The events that were given: none, one, or a list of them."""
    out: list[str] = []
    for event in () if events is None else _listed(events):
        if not isinstance(event, EventRef):
            raise DesignError(f"{where} takes events of this protocol (p.event(...)), one or a list, not {event!r}")
        out.append(event.name)
    return tuple(out)
