"""The design itself: frozen data that the proof reads, an interpreter can run and an engine can be built from.

Nothing here decides anything. A `Design` holds one block's facets, the streams, events, host threads and
queues, one engine step as a program in launch order, what other threads do with the jobs handed to them, and
what the scheduler may do between steps. Every ordering decision in it is an `Edge` with a name, which can be
taken out (`without`) and put in (`adding`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from kvsan.model.design.guards import DesignError, Facet, Guard, Is, blocks, unknown
from kvsan.model.design.parts import (
    ANY,
    Block,
    Claim,
    Edge,
    EdgeKind,
    Event,
    Item,
    Need,
    Retired,
    Rule,
    Seen,
    StreamOf,
    Thread,
    Work,
    need_of,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Expected:
    """What the catalogue says the proof will say; a test holds it to that.

    `races` maps `"WAR forward -> load"` to the length of its shortest schedule. `stuck`, `stuck_closed`: the
    shortest way into a state from which the block cannot become free (None: there is none). `spare`: edges that
    can go, one at a time. `not_quiescent`: the shortest way to a free block that the host does not know at rest,
    where a file says it.
    """

    verdict: Literal["proved", "refuted"]
    races: tuple[tuple[str, int], ...] = ()
    wrong_generation: tuple[tuple[str, int], ...] = ()
    stuck: int | None = None
    stuck_closed: int | None = None
    quiescent: bool = False
    spare: tuple[str, ...] = ()
    not_quiescent: int | None = None


@dataclass(frozen=True, slots=True)
class Design:
    """An ordering protocol: what is proved, interpreted, and built into an engine."""

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
        """The edge of that name. Raises `DesignError` with the nearest name there is."""
        for edge in self.edges:
            if edge.name == name:
                return edge
        raise unknown("edge", name, (edge.name for edge in self.edges))

    def without(self, *gone: Edge | str) -> Design:
        """The design with these edges taken out."""
        return _without(self, frozenset(self.edge(edge if isinstance(edge, str) else edge.name) for edge in gone))

    def adding(self, *more: Edge) -> Design:
        """The design with these edges put in. The work, step item or rule and the event must exist."""
        return _adding(self, more)


def _without(design: Design, gone: frozenset[Edge]) -> Design:
    def work(item: Work) -> Work:
        return replace(item, after=tuple(e for e in item.after if Edge(EdgeKind.WAIT, item.name, e) not in gone))

    def rule(item: Rule) -> Rule:
        needs = tuple(n for n in item.needs if Edge(EdgeKind.NEED, item.name, str(n)) not in gone)
        held = item.free is not None and Edge(EdgeKind.FREE, item.name, str(item.free)) not in gone
        return replace(item, needs=needs, free=item.free if held else None)

    def block(item: Block) -> Block:
        """A step that no longer blocks still does what came with it: the facet changes, and nothing was seen."""
        return replace(item, event=None) if Edge(EdgeKind.NEED, item.name, f"seen({item.event})") in gone else item

    return _mapped(design, work, rule, block)


def _adding(design: Design, more: tuple[Edge, ...]) -> Design:
    for edge in more:
        if edge.kind is EdgeKind.PIN:
            design = _pinned(design, edge)
    works = {work.name: work for work in design.works()}
    blocks = {item.name for item in design.step if isinstance(item, Block)}
    rules = {rule.name for rule in design.rules}
    in_order: set[str] = set()
    waits: dict[str, list[str]] = {}
    needs: dict[str, list[Need]] = {}
    frees: dict[str, Retired] = {}
    for edge in more:
        if edge.kind is EdgeKind.PIN:
            continue
        if edge.kind in (EdgeKind.WAIT, EdgeKind.ORDER) and edge.at not in works:
            raise unknown("work", edge.at, works)
        if edge.kind is EdgeKind.ORDER:
            if edge.of != "stream":
                raise DesignError(f"{edge.at}: order={edge.of} orders less; only stream can be put in")
            in_order.add(edge.at)
            continue
        if edge.kind is EdgeKind.WAIT:
            on = works[edge.at].on
            if on is None or any(stream.name == on and not stream.waits for stream in design.streams):
                raise DesignError(f"{edge.at} runs on {on or 'the host'}, which cannot wait for an event")
            waits.setdefault(edge.at, []).append(design.event(edge.of).name)
            continue
        if edge.at not in rules and (edge.kind is EdgeKind.FREE or edge.at not in blocks):
            raise unknown("rule", edge.at, rules)
        need = need_of(edge.of)
        if isinstance(need, Seen):
            design.event(need.event)
        if edge.kind is EdgeKind.NEED:
            needs.setdefault(edge.at, []).append(need)
        elif isinstance(need, Retired):
            frees[edge.at] = need
        else:
            raise DesignError(f"{edge.at}: a free is held until retired(...), not {need}")

    def work(item: Work) -> Work:
        order = "stream" if item.name in in_order else item.order
        return replace(item, after=_and(item.after, waits.get(item.name, ())), order=order)

    def rule(item: Rule) -> Rule:
        return replace(item, needs=_and(item.needs, needs.get(item.name, ())), free=frees.get(item.name, item.free))

    def block(item: Block) -> Block:
        seen = [need for need in needs.get(item.name, ()) if isinstance(need, Seen)]
        return replace(item, event=seen[0].event) if seen else item

    return _mapped(design, work, rule, block)


def _pinned(design: Design, pin: Edge) -> Design:
    """A block is free, and can be taken by a rule that takes free ones, only while the facet has the value."""
    name, _, value = pin.of.partition("=")
    facet = next((facet for facet in design.facets if facet.name == name), None)
    if pin.at != "free" or facet is None or value not in facet.values:
        raise unknown("pin", pin.of, (f"{f.name}={value}" for f in design.facets for value in f.values))
    idle = Is(name, (value,), facet.values)

    def rule(item: Rule) -> Rule:
        """Where the rule takes only free blocks its guard stays readable."""
        here = [block for block in blocks(design.facets, design.free, item.when) if item.when.holds(block)]
        takes = [b for b in here if design.free.holds(b) and not design.free.holds(b | dict(item.then))]
        if not takes:
            return item
        return replace(item, when=item.when & (idle if len(takes) == len(here) else idle | ~design.free))

    pinned = _mapped(design, lambda work: work, rule, lambda block: block)
    return replace(pinned, free=design.free & idle)


def _mapped(
    design: Design, work: Callable[[Work], Work], rule: Callable[[Rule], Rule], block: Callable[[Block], Block]
) -> Design:
    """What was expected of the design is not expected of another one."""
    step: list[Item] = []
    for item in design.step:
        match item:
            case Work():
                step.append(work(item))
            case Block():
                step.append(block(item))
            case _:
                step.append(item)
    threads = tuple(replace(thread, jobs=tuple(work(job) for job in thread.jobs)) for thread in design.threads)
    rules = tuple(rule(item) for item in design.rules)
    return replace(design, step=tuple(step), threads=threads, rules=rules, expected=None)


def _and(have: tuple[T, ...], more: Iterable[T]) -> tuple[T, ...]:
    return have + tuple(one for one in more if one not in have)
