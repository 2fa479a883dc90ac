"""The language: how a designer writes an ordering protocol down. `Protocol` collects, `design()` checks and
freezes.

A design file reads top to bottom like the engine: streams and events, one block, one engine step in launch
order, what other threads do with the jobs handed to them, what the scheduler may do between steps. Every edge
is visible as an argument: `after=[event]` is a device wait, `needs=seen(event)` a host poll,
`free=retired(last_use)` a free that is held.

What is checked here is only what can be read off the text: names, roles, one value a facet, an event that
nobody records, a rule that silently drops a job that is under way. Whether the protocol is right is
`kvsan.model.proof`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from kvsan.model.design.guards import BlockRef, DesignError, Facet, Guard, unknown
from kvsan.model.design.ir import Design, Expected
from kvsan.model.design.parts import (
    ANY,
    Block,
    Claim,
    Event,
    Item,
    Mark,
    Per,
    Rule,
    StreamOf,
    Submit,
    Thread,
    Work,
)
from kvsan.model.design.refs import (
    EventRef,
    Events,
    QueueRef,
    Scheduler,
    StreamRef,
    ThreadRef,
    Writer,
    assigned,
    got,
    guard_of,
    last_use,
    name_of,
    names_of,
    newest,
    next_step,
    now,
    queue_of,
    retired,
    seen,
)
from kvsan.model.design.sound import sound

__all__ = ["EventRef", "Protocol", "got", "last_use", "newest", "next_step", "now", "retired", "seen"]


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
        name_of(name, "protocol")
        if run_ahead != ANY and (type(run_ahead) is not int or run_ahead < 0):
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
        self.group: int | None = None
        self._groups = 0

    # ── what there is ─────────────────────────────────────────────────────────────────────────────────────────────

    def stream(self, name: str) -> StreamRef:
        name_of(name, "stream")
        self._streams.append(StreamOf(name))
        return StreamRef(self, name)

    def streams(self, *names: str) -> list[StreamRef]:
        return [self.stream(name) for name in names]

    def nic(self, name: str) -> StreamRef:
        """An agent that runs what is posted to it in order and cannot wait for an event."""
        name_of(name, "stream")
        self._streams.append(StreamOf(name, waits=False))
        return StreamRef(self, name)

    def event(self, name: str, per: Per = "design") -> EventRef:
        name_of(name, "event")
        if per not in ("design", "block", "transfer", "step"):
            raise unknown("kind of event", str(per), ("design", "block", "transfer", "step"))
        self._events.append(Event(name, per))
        return EventRef(name)

    def events(self, *names: str, per: Per = "design") -> list[EventRef]:
        return [self.event(name, per) for name in names]

    def queue(self, name: str) -> QueueRef:
        """A hand-off between host threads. One queue carries one kind of job: what carries two is written as two."""
        name_of(name, "queue")
        self._queues.append(name)
        return QueueRef(name)

    def queues(self, *names: str) -> list[QueueRef]:
        return [self.queue(name) for name in names]

    def thread(self, name: str) -> ThreadRef:
        name_of(name, "thread")
        self._programs.setdefault(name, [])
        return ThreadRef(self, name)

    def block(self, **facets: str) -> BlockRef:
        """The one block: each facet with its values, `owner="none | running"`. The first is a fresh block's."""
        if self._facets:
            raise DesignError("a protocol describes one block; give it more facets instead of a second block()")
        for name, values in facets.items():
            if not isinstance(values, str):
                raise DesignError(f'block: {name}= takes its values in one text, "none | running", not {values!r}')
        self._facets = tuple(
            Facet(name, tuple(value.strip() for value in values.split("|"))) for name, values in facets.items()
        )
        return BlockRef(self._facets)

    def free(self, when: Guard) -> Guard:
        """When the allocator may hand the block out."""
        guard_of(when, "p.free()", self.facets)
        self._free = when
        return when

    # ── what happens ──────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def step(self) -> Iterator[None]:
        """One engine step, in the order in which the worker launches it."""
        if "" in self._programs:
            raise DesignError("a protocol has one step; write all of it in one `with p.step():`")
        self._programs[""] = []
        with self.program(""):
            yield

    @contextmanager
    def any_order(self) -> Iterator[None]:
        """Parts of the step (work, jobs submitted) whose order the engine does not fix."""
        if self.group is not None:
            raise DesignError("p.any_order() inside p.any_order(): all parts of the outer one are in no fixed order")
        self._groups += 1
        self.group = self._groups
        try:
            yield
        finally:
            self.group = None

    def submit(
        self,
        name: str,
        queue: QueueRef,
        *,
        when: Guard | None = None,
        then: Guard | None = None,
        creates: Events = None,
    ) -> None:
        """A job for another thread goes in the queue."""
        name_of(name, "submit")
        to = queue_of(queue, f"{name}: the second argument")
        if when is None or to is None:
            raise DesignError(f"{name}: say the queue and when=, p.submit({name!r}, jobs, when=b.want_load)")
        guard_of(when, f"{name}: when=", self.facets)
        made = names_of(creates, f"{name}: creates=")
        self.add(Submit(name, to, when, assigned(then, name, self.facets), made, self.group))

    def sync(self, name: str, event: EventRef, *, when: Guard | None = None, then: Guard | None = None) -> None:
        """The host blocks at this point of the step until the event is done."""
        name_of(name, "sync")
        guard_of(when, f"{name}: when=", self.facets)
        if not isinstance(event, EventRef):
            raise DesignError(f"{name}: sync takes one event of this protocol (p.event(...)), not {event!r}")
        self.add(Block(name, event.name, when, assigned(then, name, self.facets)))

    @contextmanager
    def scheduler(self) -> Iterator[Scheduler]:
        """What may happen between steps, in any order, any number of times."""
        yield Scheduler(self)

    # ── what is said of it ────────────────────────────────────────────────────────────────────────────────────────

    def claims(self, *claims: str) -> None:
        if not claims:
            raise DesignError(f"{self.name}: p.claims() claims nothing; name at least one of {', '.join(Claim)}")
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
            raise DesignError(f"{self.name}: say p.block(...) and p.free(...): when the block may be handed out")
        threads = []
        for name, items in self._programs.items():
            if name:
                jobs = tuple(item for item in items if isinstance(item, Work))
                if len(jobs) != len(items):
                    raise DesignError(f"{name}: a thread's jobs are work (copy_in, copy_out, work), nothing else")
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
        sound(design)
        return design

    @property
    def facets(self) -> tuple[Facet, ...]:
        """What the block is described by."""
        return self._facets

    # ── bookkeeping ───────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, item: Item) -> None:
        if self._open is None:
            raise DesignError("work belongs in `with p.step():` or in `with thread.jobs():`")
        if self.group is not None and isinstance(item, Mark | Block):
            what = f"{item.on}.record({item.event})" if isinstance(item, Mark) else f"p.sync({item.name!r})"
            raise DesignError(
                f"{what} inside p.any_order(): only work and submit can have no fixed order; write the record as"
                " signals= of a work, a wait for it as after="
            )
        self._programs.setdefault(self._open, []).append(item)

    def rule(self, rule: Rule) -> None:
        """Adds a rule."""
        self._rules.append(rule)

    @contextmanager
    def program(self, name: str) -> Iterator[None]:
        self._open = name
        yield
        self._open = None
