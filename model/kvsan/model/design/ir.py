"""The design itself: frozen data that the proof reads, an interpreter can run and an engine can be built from.

Nothing here decides anything. A `Design` holds one block's facets, the streams, events, host threads and queues, one engine
step as a program in launch order, what other threads do with the jobs handed to them, and what the scheduler may do between
steps. Every ordering decision in it is an `Edge` with a name, which can be taken out (`without`) and put in (`adding`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, TypeVar

from kvsan.model.design.guards import Assign, DesignError, Facet, Guard, unknown
from kvsan.model.ops import Source

T = TypeVar("T")

MAIN = "host"
"""The thread that runs the scheduler's rules and launches the steps."""

ANY: Literal["any"] = "any"

Per = Literal["design", "block", "transfer", "step"]
"""How many event objects a name stands for: one that is re-recorded, one a block, a fresh one a transfer, one a step."""


class Claim(StrEnum):
    """What a design says of itself. A claim that does not hold refutes it."""

    RACE_FREE = "race-free"
    RIGHT_GENERATION = "right generation"
    PROGRESS = "progress"
    CLOSED_PROGRESS = "progress without other requests"
    NO_VACUOUS_WAIT = "no vacuous wait"
    HOST_QUIESCENT = "host-quiescent"


class Fence(StrEnum):
    """A step whose completion the host must have seen: the newest launched, the last that used the block, or the next
    one to be launched (which nobody may ever launch)."""

    NEWEST = "newest"
    LAST_USE = "last_use"
    NEXT = "next_step"


@dataclass(frozen=True, slots=True)
class Seen:
    """A host poll of an event, or the end of a blocking wait for it. A false poll enables nothing in this language."""

    event: str

    def __invert__(self) -> Seen:
        raise DesignError(f"~seen({self.event}): a rule cannot ask that something is *not* complete; that it was"
                          " observed incomplete orders nothing and the proof would have to guess it")  # fmt: skip

    def __str__(self) -> str:
        return f"seen({self.event})"


@dataclass(frozen=True, slots=True)
class Got:
    """The thread has taken the entry from a queue (a completion list) that another thread put there."""

    queue: str

    def __str__(self) -> str:
        return f"got({self.queue})"


@dataclass(frozen=True, slots=True)
class Retired:
    """The host has seen the completion of the step that the fence names."""

    fence: Fence

    def __str__(self) -> str:
        return f"retired({self.fence})"


Need = Seen | Got | Retired


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    per: Per = "design"


@dataclass(frozen=True, slots=True)
class StreamOf:
    """A stream, or with `waits=False` an agent such as a NIC that runs in order but cannot wait for an event."""

    name: str
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Work:
    """Device work on stream `on` (or by the thread itself, `on=None`), and what it does to the block.

    `every_step`: it runs in each step, for other blocks if not for this one (a forward). Otherwise it runs when one of its
    guards holds. `after` are device waits before it, `signals` records after it. `then` applies when it touches the block.
    """

    name: str
    on: str | None
    reads: Guard | None = None
    writes: Guard | None = None
    then: Assign = ()
    after: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    order: Source = "stream"
    every_step: bool = False
    takes: str | None = None
    publishes: str | None = None
    group: int | None = None

    def mode(self, block: Mapping[str, str]) -> tuple[bool, bool]:
        """Whether it reads and whether it writes a block with these facet values."""
        return (
            self.reads is not None and self.reads.holds(block),
            self.writes is not None and self.writes.holds(block),
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """A record at this point of the step, with no work of its own."""

    on: str
    event: str


@dataclass(frozen=True, slots=True)
class Block:
    """The thread blocks for an event if the guard holds (always if there is none). No event: the edge was taken out."""

    name: str
    event: str | None
    when: Guard | None = None
    then: Assign = ()


@dataclass(frozen=True, slots=True)
class Submit:
    """A job goes in a queue. `creates` names events whose fresh objects a poller can already see from here on."""

    name: str
    queue: str
    when: Guard
    then: Assign = ()
    creates: tuple[str, ...] = ()
    group: int | None = None


Item = Work | Mark | Block | Submit


@dataclass(frozen=True, slots=True)
class Thread:
    """A further host thread: which jobs it takes, in any order and at any time."""

    name: str
    jobs: tuple[Work, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """What the scheduler may do between steps. `free`: at once (None), or held until the fence is seen. `keeps`: a free
    block is taken back with its content, the same generation. `records`: events recorded on a stream at that moment."""

    name: str
    when: Guard
    then: Assign
    needs: tuple[Need, ...] = ()
    free: Retired | None = None
    keeps: bool = False
    records: tuple[tuple[str, str], ...] = ()
    cancels: tuple[str, ...] = ()


class EdgeKind(StrEnum):
    WAIT = "after"
    NEED = "needs"
    FREE = "free"


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """One ordering decision. `of` is an event (a device wait, a poll), a queue, or a fence."""

    kind: EdgeKind
    at: str
    of: str

    @property
    def name(self) -> str:
        return (
            f"{self.at}.after({self.of})"
            if self.kind is EdgeKind.WAIT
            else f"{self.at}: {self.kind}={self.of}"
        )

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Expected:
    """What the catalogue says the proof will say; a test holds it to that.

    `races` maps `"WAR forward -> load"` to the length of its shortest schedule. `stuck`, `stuck_closed`: the shortest way
    into a state from which the block cannot become free (None: there is none). `spare`: edges that can go, one at a time.
    """

    verdict: Literal["proved", "refuted"]
    races: tuple[tuple[str, int], ...] = ()
    wrong_generation: tuple[tuple[str, int], ...] = ()
    stuck: int | None = None
    stuck_closed: int | None = None
    quiescent: bool = False
    vacuous: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Design:
    name: str
    title: str
    reference: str
    pool: str
    facets: tuple[Facet, ...]
    free: Guard
    streams: tuple[StreamOf, ...]
    events: tuple[Event, ...]
    queues: tuple[str, ...]
    threads: tuple[Thread, ...]
    step: tuple[Item, ...]
    rules: tuple[Rule, ...]
    run_ahead: int | Literal["any"] = ANY
    claims: frozenset[Claim] = frozenset({Claim.RACE_FREE, Claim.RIGHT_GENERATION, Claim.PROGRESS})
    assumes: tuple[str, ...] = ()
    expected: Expected | None = None
    note: str = ""
    about: str = field(default="", compare=False)

    def works(self) -> tuple[Work, ...]:
        """All device and host work, of the step and of the other threads."""
        own = tuple(item for item in self.step if isinstance(item, Work))
        return own + tuple(job for thread in self.threads for job in thread.jobs)

    def event(self, name: str) -> Event:
        for event in self.events:
            if event.name == name:
                return event
        raise unknown("event", name, (event.name for event in self.events))

    @property
    def step_event(self) -> str | None:
        """The event whose completion means that the host has seen a step."""
        return next((event.name for event in self.events if event.per == "step"), None)

    @property
    def start(self) -> dict[str, str]:
        return {facet.name: facet.values[0] for facet in self.facets}

    # ── edges ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Every ordering decision, in the order in which the design states them."""
        waits = [Edge(EdgeKind.WAIT, work.name, event) for work in self.works() for event in work.after]
        blocks = [
            Edge(EdgeKind.NEED, item.name, str(Seen(item.event)))
            for item in self.step
            if isinstance(item, Block) and item.event is not None
        ]
        rules: list[Edge] = []
        for rule in self.rules:
            rules += [Edge(EdgeKind.NEED, rule.name, str(need)) for need in rule.needs]
            if rule.free is not None:
                rules.append(Edge(EdgeKind.FREE, rule.name, str(rule.free)))
        return (*waits, *blocks, *rules)

    def edge(self, name: str) -> Edge:
        for edge in self.edges:
            if edge.name == name:
                return edge
        raise unknown("edge", name, (edge.name for edge in self.edges))

    def without(self, *gone: Edge | str) -> Design:
        """The design with these edges taken out."""
        edges = {self.edge(edge) if isinstance(edge, str) else edge for edge in gone}
        missing = edges - set(self.edges)
        if missing:
            raise unknown("edge", min(missing).name, (edge.name for edge in self.edges))

        def work(item: Work) -> Work:
            return replace(
                item, after=tuple(e for e in item.after if Edge(EdgeKind.WAIT, item.name, e) not in edges)
            )

        def rule(item: Rule) -> Rule:
            needs = tuple(n for n in item.needs if Edge(EdgeKind.NEED, item.name, str(n)) not in edges)
            deferred = item.free is not None and Edge(EdgeKind.FREE, item.name, str(item.free)) in edges
            return replace(item, needs=needs, free=None if deferred else item.free)

        def unblocked(item: Item) -> Item:
            """A step that no longer blocks still does what came with it: the facet changes, and nothing was seen."""
            gone = isinstance(item, Block) and Edge(EdgeKind.NEED, item.name, f"seen({item.event})") in edges
            return replace(item, event=None) if gone and isinstance(item, Block) else item

        return self._mapped(work, rule, unblocked)

    def adding(self, *more: Edge) -> Design:
        """The design with these edges put in. The op or rule and the event must exist."""
        waits = {(edge.at, edge.of) for edge in more if edge.kind is EdgeKind.WAIT}
        needs = {(edge.at, need_of(edge.of)) for edge in more if edge.kind is EdgeKind.NEED}
        frees = {edge.at: need_of(edge.of) for edge in more if edge.kind is EdgeKind.FREE}
        works, rules = {work.name: work for work in self.works()}, {rule.name for rule in self.rules}
        for at, event in sorted(waits):
            if at not in works:
                raise unknown("work", at, works)
            self.event(event)
            if any(s.name == works[at].on and not s.waits for s in self.streams) or works[at].on is None:
                raise DesignError(
                    f"{at} runs on {works[at].on or 'the host'}, which cannot wait for an event"
                )
        for at in sorted({at for at, _ in needs} | set(frees)):
            if at not in rules:
                raise unknown("rule", at, rules)

        def work(item: Work) -> Work:
            return replace(item, after=_and(item.after, sorted(e for at, e in waits if at == item.name)))

        def rule(item: Rule) -> Rule:
            free = frees.get(item.name, item.free)
            if free is not None and not isinstance(free, Retired):
                raise DesignError(f"{item.name}: a free is held until retired(...), not {free}")
            wanted = sorted((n for at, n in needs if at == item.name), key=str)
            return replace(item, needs=_and(item.needs, wanted), free=free)

        return self._mapped(work, rule, lambda item: item)

    def _mapped(
        self, work: Callable[[Work], Work], rule: Callable[[Rule], Rule], other: Callable[[Item], Item]
    ) -> Design:
        return replace(
            self,
            step=tuple(work(item) if isinstance(item, Work) else other(item) for item in self.step),
            threads=tuple(replace(t, jobs=tuple(work(job) for job in t.jobs)) for t in self.threads),
            rules=tuple(rule(item) for item in self.rules),
            expected=None,
        )


def _and(have: tuple[T, ...], more: Iterable[T]) -> tuple[T, ...]:
    return have + tuple(one for one in more if one not in have)


def need_of(text: str) -> Need:
    """Reads `seen(load_done)`, `got(jobs)` or `retired(last_use)`."""
    kind, _, rest = text.removesuffix(")").partition("(")
    if kind == "seen":
        return Seen(rest)
    if kind == "got":
        return Got(rest)
    if kind == "retired" and rest in tuple(Fence):
        return Retired(Fence(rest))
    raise DesignError(
        f"{text!r} is nothing to need; write seen(EVENT), got(QUEUE) or retired({' | '.join(Fence)})"
    )
