"""The language: how a designer writes an ordering protocol down. `Protocol` collects, `design()` checks and freezes.

A design file reads top to bottom like the engine: streams and events, one block, one engine step in launch order, what
other threads do with the jobs handed to them, what the scheduler may do between steps. Every edge is visible as an
argument: `after=[event]` is a device wait, `needs=seen(event)` a host poll, `free=retired(last_use)` a free that is held.

What is checked here is only what can be read off the text: names, roles, one value a facet, an event that nobody records, a
rule that silently drops a job that is under way. Whether the protocol is right is `kvsan.model.proof`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from kvsan.model.design.check import check
from kvsan.model.design.guards import BlockRef, DesignError, Facet, Guard, assignment, unknown
from kvsan.model.design.ir import (
    ANY,
    Block,
    Claim,
    Design,
    Event,
    Expected,
    Fence,
    Got,
    Item,
    Mark,
    Need,
    Per,
    Retired,
    Rule,
    Seen,
    StreamOf,
    Submit,
    Thread,
    Work,
)
from kvsan.model.ops import Source

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
    def __init__(self, name: str) -> None:
        self.name = name


class QueueRef:
    def __init__(self, name: str) -> None:
        self.name = name


Events = EventRef | Iterable[EventRef] | None


class Writer:
    """A stream, or the host itself: who does work."""

    def __init__(self, protocol: Protocol, name: str | None) -> None:
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
        self._protocol._add(
            Work(
                name=name,
                on=self.name,
                reads=reads,
                writes=writes,
                then=assignment(then, name),
                after=_names(after, f"{name}: after="),
                signals=_names(signals, f"{name}: signals="),
                order=order,
                every_step=every_step,
                takes=takes.name if takes is not None else None,
                publishes=publishes.name if publishes is not None else None,
                group=self._protocol._group,
            )
        )


class StreamRef(Writer):
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

    def zero(
        self, when: Guard, *, then: Guard | None = None, after: Events = None, name: str = "zero"
    ) -> None:
        """A memset of the block."""
        self.work(name, writes=when, then=then, after=after)

    def record(self, event: EventRef) -> None:
        """The event captures what the stream holds at this point of the step."""
        (name,) = _names(event, f"{self.name}.record")
        self._protocol._add(Mark(self.name, name))


class ThreadRef:
    def __init__(self, protocol: Protocol, name: str) -> None:
        self._protocol, self.name = protocol, name

    @contextmanager
    def jobs(self) -> Iterator[None]:
        """What the thread does with each kind of job, in any order and at any time."""
        with self._protocol._program(self.name):
            yield


class Scheduler:
    """`may("allocate", when=free, then=...)`: one thing that the scheduler may do between steps."""

    def __init__(self, protocol: Protocol) -> None:
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
                raise DesignError(
                    f"{name}: needs= takes seen(event), got(queue) or retired(fence), not {need!r}"
                )
        marks = tuple((stream.name, event.name) for stream, event in (records or {}).items())
        self._protocol._rules.append(
            Rule(name, when, assignment(then, name), wanted, free, keeps, marks, tuple(cancels))
        )


class Protocol:
    """A design under construction."""

    def __init__(
        self,
        name: str,
        *,
        title: str = "",
        reference: str = "",
        pool: str = "gpu",
        run_ahead: int | Literal["any"] = ANY,
        about: str = "",
    ) -> None:
        if run_ahead != ANY and not (isinstance(run_ahead, int) and run_ahead >= 0):
            raise DesignError(f'run_ahead is a number of steps from 0, or "any", not {run_ahead!r}')
        self.name, self.title, self.reference, self.pool, self.about = (
            name,
            title or name,
            reference,
            pool,
            about,
        )
        self.run_ahead: int | Literal["any"] = run_ahead
        self.host = Writer(self, None)
        self._streams: list[StreamOf] = []
        self._events: list[Event] = []
        self._queues: list[str] = []
        self._programs: dict[str, list[Item]] = {}
        self._rules: list[Rule] = []
        self._facets: tuple[Facet, ...] = ()
        self._free: Guard | None = None
        self._claims: frozenset[Claim] | None = None
        self._expected: Expected | None = None
        self._assumes: list[str] = []
        self._note = ""
        self._open: str | None = None
        self._group: int | None = None
        self._groups = 0

    # ── what there is ─────────────────────────────────────────────────────────────────────────────────────────────

    def stream(self, name: str) -> StreamRef:
        self._streams.append(StreamOf(name))
        return StreamRef(self, name)

    def streams(self, *names: str) -> list[StreamRef]:
        return [self.stream(name) for name in names]

    def nic(self, name: str) -> StreamRef:
        """An agent that runs what is posted to it in order and cannot wait for an event."""
        self._streams.append(StreamOf(name, waits=False))
        return StreamRef(self, name)

    def event(self, name: str, per: Per = "design") -> EventRef:
        if per not in ("design", "block", "transfer", "step"):
            raise unknown("kind of event", str(per), ("design", "block", "transfer", "step"))
        self._events.append(Event(name, per))
        return EventRef(name)

    def events(self, *names: str, per: Per = "design") -> list[EventRef]:
        return [self.event(name, per) for name in names]

    def queue(self, name: str) -> QueueRef:
        """A hand-off between host threads. One that carries two kinds of jobs is written as two."""
        self._queues.append(name)
        return QueueRef(name)

    def queues(self, *names: str) -> list[QueueRef]:
        return [self.queue(name) for name in names]

    def thread(self, name: str) -> ThreadRef:
        self._programs.setdefault(name, [])
        return ThreadRef(self, name)

    def block(self, **facets: str) -> BlockRef:
        """The one block: each facet with its values, `owner="none | running"`. The first is a fresh block's."""
        if self._facets:
            raise DesignError(
                "a protocol describes one block; give it more facets instead of a second block()"
            )
        self._facets = tuple(
            Facet(name, tuple(value.strip() for value in values.split("|")))
            for name, values in facets.items()
        )
        return BlockRef(self._facets)

    def free(self, when: Guard) -> Guard:
        """When the allocator may hand the block out."""
        self._free = when
        return when

    # ── what happens ──────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def step(self) -> Iterator[None]:
        """One engine step, in the order in which the worker launches it."""
        with self._program(""):
            yield

    @contextmanager
    def any_order(self) -> Iterator[None]:
        """Parts of the step whose order the engine does not fix."""
        self._groups += 1
        self._group = self._groups
        yield
        self._group = None

    def submit(
        self,
        name: str,
        queue: QueueRef,
        *,
        when: Guard,
        then: Guard | None = None,
        creates: Events = None,
    ) -> None:
        """A job for another thread goes in the queue."""
        made = _names(creates, f"{name}: creates=")
        self._add(Submit(name, queue.name, when, assignment(then, name), made, self._group))

    def sync(
        self, name: str, event: EventRef, *, when: Guard | None = None, then: Guard | None = None
    ) -> None:
        """The host blocks at this point of the step until the event is done."""
        self._add(Block(name, event.name, when, assignment(then, name)))

    @contextmanager
    def scheduler(self) -> Iterator[Scheduler]:
        """What may happen between steps, in any order, any number of times."""
        yield Scheduler(self)

    # ── what is said of it ────────────────────────────────────────────────────────────────────────────────────────

    def claims(self, *claims: str) -> None:
        for claim in claims:
            if claim not in tuple(Claim):
                raise unknown("claim", claim, tuple(Claim))
        self._claims = frozenset(Claim(claim) for claim in claims)

    def assumes(self, *facts: str) -> None:
        """What the file leaves out on purpose; printed with the verdict."""
        self._assumes += facts

    def expect(
        self, verdict: Literal["proved", "refuted"], races: Mapping[str, int] | None = None, **more: object
    ) -> None:
        generations = more.pop("wrong_generation", {})
        if not isinstance(generations, Mapping):
            raise DesignError("expect: wrong_generation maps an op to the length of its shortest schedule")
        self._expected = Expected(
            verdict,
            tuple(sorted((races or {}).items())),
            tuple(sorted(generations.items())),
            **more,  # type: ignore[arg-type]  # a wrong name is Expected's own TypeError
        )

    def note(self, text: str) -> None:
        """Why an expectation differs from the literature."""
        self._note = text

    def design(self) -> Design:
        """Checks what can be read off the text, and freezes it."""
        if not self._facets or self._free is None:
            raise DesignError(
                f"{self.name}: say p.block(...) and p.free(...): when the block may be handed out"
            )
        threads = []
        for name, items in self._programs.items():
            if name:
                jobs = tuple(item for item in items if isinstance(item, Work))
                if len(jobs) != len(items):
                    raise DesignError(
                        f"{name}: a thread's jobs are work (copy_in, copy_out, work), nothing else"
                    )
                threads.append(Thread(name, jobs))
        claims = {} if self._claims is None else {"claims": self._claims}
        design = Design(
            name=self.name,
            title=self.title,
            reference=self.reference,
            pool=self.pool,
            facets=self._facets,
            free=self._free,
            streams=tuple(self._streams),
            events=tuple(self._events),
            queues=tuple(self._queues),
            threads=tuple(threads),
            step=tuple(self._programs.get("", ())),
            rules=tuple(self._rules),
            run_ahead=self.run_ahead,
            assumes=tuple(self._assumes),
            expected=self._expected,
            note=" ".join(self._note.split()),
            about=self.about,
            **claims,
        )
        check(design)
        return design

    # ── bookkeeping ───────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, item: Item) -> None:
        if self._open is None:
            raise DesignError("work belongs in `with p.step():` or in `with thread.jobs():`")
        self._programs.setdefault(self._open, []).append(item)

    @contextmanager
    def _program(self, name: str) -> Iterator[None]:
        self._open = name
        yield
        self._open = None


def _names(events: Events, where: str) -> tuple[str, ...]:
    if events is None:
        return ()
    listed = (events,) if isinstance(events, EventRef) else tuple(events)
    for event in listed:
        if not isinstance(event, EventRef):
            raise DesignError(f"{where} takes events of this protocol (p.event(...)), not {event!r}")
    return tuple(event.name for event in listed)
