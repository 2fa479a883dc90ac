"""What a design file names things with: streams, events, queues, threads, and `may`. They only write the
protocol down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol as Interface

from kvsan.model.design.guards import DesignError, Guard, assignment, unknown
from kvsan.model.design.parts import Fence, Got, Item, Mark, Need, Retired, Rule, Seen, Work
from kvsan.model.ops import Source


class Writing(Interface):
    """The protocol under construction, as far as these need it."""

    @property
    def group(self) -> int | None:
        """The group of parts in no fixed order that is open, if one is."""

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
        raise DesignError(f"retired() takes newest, last_use or next_step, not {fence!r}")
    return Retired(fence)


def seen(event: EventRef) -> Seen:
    """A poll of the event answered true."""
    if not isinstance(event, EventRef):
        raise DesignError(f"seen() takes an event of this protocol, not {event!r}")
    return Seen(event.name)


def got(queue: QueueRef) -> Got:
    """The entry that another thread put in the queue has been taken."""
    if not isinstance(queue, QueueRef):
        raise DesignError(f"got() takes a queue of this protocol, not {queue!r}")
    return Got(queue.name)


class EventRef:
    """An event of the protocol under construction."""

    def __init__(self, name: str) -> None:
        self.name = name


class QueueRef:
    """A queue of it."""

    def __init__(self, name: str) -> None:
        self.name = name


Events = EventRef | Iterable[EventRef] | None


class Writer:
    """A stream, or the host itself: who does work."""

    def __init__(self, protocol: Writing, name: str | None) -> None:
        self._protocol, self.name = protocol, name

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
        if order not in ("stream", "any", "call"):
            raise unknown("source order", str(order), ("stream", "any", "call"))
        for what, guard in (("reads", reads), ("writes", writes)):
            guard_of(guard, f"{name}: {what}=")
        self._protocol.add(
            Work(
                name=name,
                on=self.name,
                reads=reads,
                writes=writes,
                then=assignment(then, name),
                after=names_of(after, f"{name}: after="),
                signals=names_of(signals, f"{name}: signals="),
                order=order,
                every_step=every_step,
                takes=takes.name if takes is not None else None,
                publishes=publishes.name if publishes is not None else None,
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
        (name,) = names_of(event, f"{self.name}.record")
        self._protocol.add(Mark(self.name, name))


class ThreadRef:
    """A further host thread of it."""

    def __init__(self, protocol: Writing, name: str) -> None:
        self._protocol, self.name = protocol, name

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
        when: Guard,
        then: Guard | None = None,
        needs: Need | Iterable[Need] | None = None,
        free: Retired | None = now,
        keeps: bool = False,
        records: Mapping[StreamRef, EventRef] | None = None,
        cancels: Iterable[str] = (),
    ) -> None:
        if not isinstance(when, Guard):
            raise DesignError(f"{name}: when= takes a guard such as b.running & b.empty, not {when!r}")
        if free is not None and not isinstance(free, Retired):
            raise DesignError(f"{name}: free= takes now or retired(...), not {free!r}")
        wanted: tuple[Need, ...] = (
            () if needs is None else (needs,) if isinstance(needs, Seen | Got | Retired) else tuple(needs)
        )
        for need in wanted:
            if not isinstance(need, Seen | Got | Retired):
                raise DesignError(f"{name}: needs= takes seen(event), got(queue) or retired(fence), not {need!r}")
        marks = tuple((stream.name, event.name) for stream, event in (records or {}).items())
        self._protocol.rule(Rule(name, when, assignment(then, name), wanted, free, keeps, marks, tuple(cancels)))


def guard_of(value: object, where: str) -> None:
    """Raises `DesignError` if this is neither a guard nor left out."""
    if value is not None and not isinstance(value, Guard):
        raise DesignError(f"{where} takes a guard such as b.running & b.empty, not {value!r}")


def names_of(events: Events, where: str) -> tuple[str, ...]:
    if events is None:
        return ()
    listed = (events,) if isinstance(events, EventRef) else tuple(events)
    for event in listed:
        if not isinstance(event, EventRef):
            raise DesignError(f"{where} takes events of this protocol (p.event(...)), not {event!r}")
    return tuple(event.name for event in listed)
