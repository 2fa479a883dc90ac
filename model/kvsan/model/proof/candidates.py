"""What could be added to a design to mend it: edges read off the design, each with what it costs.

A repair may wait for an event that the design does not record yet. So the usual ones are put in first, where they are
missing: one in front of the step, one behind it, one a block, one behind each transfer. A record that nobody waits
for orders nothing and costs next to nothing.

Costs are a vector, never one number, because they are of different kinds: the host stands still; the forward waits on
the device; a block stays out of the pool; a copy waits on the device. In this order, because a host that stands still
delays every request, a forward that waits delays a batch, a block that is held makes the pool smaller, and a copy
that waits delays only who needs the copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kvsan.model.design import (
    Block,
    Design,
    DesignError,
    Edge,
    EdgeKind,
    Event,
    Fence,
    Item,
    Mark,
    Retired,
    Rule,
    Seen,
    Work,
)
from kvsan.model.design.check import check
from kvsan.model.design.guards import blocks
from kvsan.model.design.parts import Per


class Cost(NamedTuple):
    """Less is better, component by component, the first first."""

    host_blocking: int = 0
    critical_waits: int = 0
    held_block_steps: int = 0
    copy_waits: int = 0

    def plus(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def words(self) -> str:
        """`a copy waits, nothing else`: what is paid, the worst first."""
        paid = [
            text
            for count, text in (
                (self.host_blocking, "the host blocks"),
                (self.critical_waits, "the forward waits on the device"),
                (self.held_block_steps, f"blocks stay out of the pool ({self.held_block_steps})"),
                (self.copy_waits, f"a copy waits on the device ({self.copy_waits})"),
            )
            if count
        ]
        return ", ".join(paid) or "nothing"


@dataclass(frozen=True, slots=True)
class Recording:
    """An event that a repair needs and the design does not record: behind these works, or in front of the step."""

    event: Event
    stream: str
    behind: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"behind {' and '.join(self.behind)}" if self.behind else "in front of the step"
        per = "" if self.event.per == "design" else f", one a {self.event.per}"
        return f"record {self.event.name} on {self.stream} {where}{per}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An edge that could be put in, what it costs, and why it costs that."""

    edge: Edge
    cost: Cost
    why: str


def recording(design: Design, more: Iterable[Recording]) -> Design:
    """The design with these events recorded."""
    for new in more:
        if not new.behind:
            design = replace(design, step=(Mark(new.stream, new.event.name), *design.step))

        def signals(item: Item, new: Recording = new) -> Item:
            if isinstance(item, Work) and item.name in new.behind:
                return replace(item, signals=(*item.signals, new.event.name))
            return item

        jobs = [tuple(signals(job) for job in thread.jobs) for thread in design.threads]
        design = replace(
            design,
            events=(*design.events, new.event),
            step=tuple(signals(item) for item in design.step),
            threads=tuple(
                replace(thread, jobs=tuple(job for job in done if isinstance(job, Work)))
                for thread, done in zip(design.threads, jobs, strict=True)
            ),
            expected=None,
        )
    return design


def usual_events(design: Design) -> tuple[Recording, ...]:
    """The events that a repair might wait for and that nobody records yet."""
    out: list[Recording] = []
    taken = {event.name for event in design.events}

    def new(name: str, event_per: str, stream: str, behind: Iterable[str] = ()) -> None:
        while name in taken:
            name += "_"
        taken.add(name)
        per: Per = "block" if event_per == "block" else "design"
        out.append(Recording(Event(name, per), stream, tuple(behind)))

    for stream in dict.fromkeys(work.on for work in design.works() if work.on is not None):
        steady = [w for w in design.works() if w.on == stream and w.every_step and _touches(w)]
        if steady:
            places = {e.name: _places(design, e.name) for e in design.events if e.per == "design"}
            first, last = steady[0].name, steady[-1].name
            if not any(_only(found, stream, before=first, design=design) for found in places.values()):
                new(f"before_{first}", "design", stream)
            if not any(set(found) == {(stream, last)} for found in places.values()):
                new(f"after_{last}", "design", stream, [last])
            names = [work.name for work in steady]
            if not any(e.per == "block" and all(e.name in work.signals for work in steady) for e in design.events):
                new(f"used_by_{stream}", "block", stream, names)
        for work in design.works():
            if work.on == stream and not work.every_step and _touches(work):
                kinds = [design.event(event) for event in work.signals]
                if not any(e.per == "design" and {on for on, _ in _places(design, e.name)} == {stream} for e in kinds):
                    new(f"all_{work.name}_done", "design", stream, [work.name])
    return tuple(out)


def candidates(design: Design, given: Sequence[Edge] | None = None) -> tuple[Candidate, ...]:
    """Every edge that could be put in, in a fixed order; `given`: these instead."""
    edges = list(given) if given is not None else [*_waits(design), *_frees(design), *_needs(design), *_others(design)]
    out = []
    for edge in dict.fromkeys(edges):
        try:
            check(design.adding(edge))
        except DesignError:
            if given is not None:
                raise
            continue
        out.append(Candidate(edge, cost(design, edge), why(design, edge)))
    return tuple(out)


def _waits(design: Design) -> Iterator[Edge]:
    """Every event, recorded on another stream behind something that touches the block, before every work that does.
    A step's event is for the host."""
    waiting = {stream.name for stream in design.streams if stream.waits}
    touched = {work.on for work in design.works() if _touches(work)}
    for work in design.works():
        if work.on not in waiting or not _touches(work):
            continue
        for event in design.events:
            on = {stream for stream, _ in _places(design, event.name)}
            if event.per != "step" and event.name not in work.after and on & touched - {work.on}:
                yield Edge(EdgeKind.WAIT, work.name, event.name)


def _frees(design: Design) -> Iterator[Edge]:
    """Deferral until the newest step was seen, of each rule that frees the block at once. A block is held in one
    facet: the one that most of these rules change."""
    if design.step_event is None:
        return
    rules = [rule for rule in design.rules if len(rule.then) == 1 and _frees_block(design, rule)]
    if not rules:
        return
    held = [rule.then[0][0] for rule in rules if rule.free is not None]
    facet = held[0] if held else Counter(rule.then[0][0] for rule in rules).most_common(1)[0][0]
    for rule in rules:
        if rule.free is None and rule.then[0][0] == facet:
            yield Edge(EdgeKind.FREE, rule.name, str(Retired(Fence.NEWEST)))


def _needs(design: Design) -> Iterator[Edge]:
    """A poll of a transfer before a rule that changes what the transfer set; a blocking wait that was taken out."""
    for event in design.events:
        if event.per != "transfer":
            continue
        facets = {facet for work in design.works() if event.name in work.signals for facet, _ in work.then}
        for rule in design.rules:
            if facets & {facet for facet, _ in rule.then} and Seen(event.name) not in rule.needs:
                yield Edge(EdgeKind.NEED, rule.name, str(Seen(event.name)))
        for item in design.step:
            if isinstance(item, Block) and item.event is None:
                yield Edge(EdgeKind.NEED, item.name, str(Seen(event.name)))


def _others(design: Design) -> Iterator[Edge]:
    """Source reads in stream order; and a pin, in a facet that a transfer sets and the free guard does not ask."""
    for work in design.works():
        if work.order == "any":
            yield Edge(EdgeKind.ORDER, work.name, "stream")
    asked = set(_asks(design))
    for name in dict.fromkeys(facet for w in design.works() if not w.every_step for facet, _ in w.then):
        if name not in asked:
            yield Edge(EdgeKind.PIN, "free", f"{name}={design.start[name]}")


def _asks(design: Design) -> Iterator[str]:
    """The facets on which it depends whether a block is free."""
    for facet in design.facets:
        for block in blocks(design.facets, design.free):
            if len({design.free.holds(block | {facet.name: value}) for value in facet.values}) > 1:
                yield facet.name
                break


def _frees_block(design: Design, rule: Rule) -> bool:
    return any(
        rule.when.holds(block) and not design.free.holds(block) and design.free.holds(block | dict(rule.then))
        for block in blocks(design.facets, rule.when, design.free)
    )


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

OWN, EARLIER, THIS = 1, 2, 3
"""How much a device wait takes in: the work that used this block; all earlier steps; this step too."""


def scope(design: Design, work: Work, event: str) -> int:
    """What a wait of the work for the event takes in."""
    if design.event(event).per in ("block", "transfer"):
        return OWN
    names = [item.name if isinstance(item, Work) else "" for item in design.step]
    if work.name not in names:
        return THIS  # another thread, at any time: the newest record there is
    here = names.index(work.name)
    for at, item in enumerate(design.step[:here]):
        if (isinstance(item, Work) and event in item.signals) or (isinstance(item, Mark) and item.event == event):
            before = [one for one in design.step[: at + 1] if isinstance(one, Work) and one.on == item.on]
            if any(work.every_step and _touches(work) for work in before) or not _steady(design, item.on):
                return THIS
    return EARLIER


def cost(design: Design, edge: Edge) -> Cost:
    """What the edge costs."""
    if edge.kind is EdgeKind.WAIT:
        work = next(work for work in design.works() if work.name == edge.at)
        much = scope(design, work, edge.of)
        return Cost(critical_waits=much) if work.every_step else Cost(copy_waits=much)
    if edge.kind is EdgeKind.ORDER:
        return Cost(copy_waits=OWN)
    if edge.kind is EdgeKind.FREE:
        return Cost(held_block_steps=OWN if edge.of == str(Retired(Fence.LAST_USE)) else EARLIER)
    if any(isinstance(item, Block) and item.name == edge.at for item in design.step):
        return Cost(host_blocking=1)
    return Cost(held_block_steps=OWN)


def why(design: Design, edge: Edge) -> str:
    """Why it costs that, in words."""
    if edge.kind is EdgeKind.WAIT:
        work = next(work for work in design.works() if work.name == edge.at)
        behind = {
            OWN: "the work on its own block",
            EARLIER: "the forwards before this step's, and may run beside this step's",
            THIS: "all that is launched so far, this step's included",
        }[scope(design, work, edge.of)]
        who = "every forward" if work.every_step else "the copy"
        return f"{who} waits for {behind}"
    if edge.kind is EdgeKind.ORDER:
        return "the copy engine may not read the source ahead of its stream"
    if edge.kind is EdgeKind.FREE:
        step = {
            str(Retired(Fence.NEWEST)): "the newest step launched",
            str(Retired(Fence.LAST_USE)): "the last step that used it",
        }
        return f"the block stays out of the pool until the host has seen {step.get(edge.of, 'a later step')}"
    if edge.kind is EdgeKind.PIN:
        return "the block stays out of the pool until then"
    if any(isinstance(item, Block) and item.name == edge.at for item in design.step):
        return "the host stands still until the event is done"
    return "the block stays as it is until a poll answers true"


# ── bookkeeping ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _touches(work: Work) -> bool:
    return work.reads is not None or work.writes is not None


def _steady(design: Design, stream: str | None) -> bool:
    """Whether the stream runs something in every step that touches the block."""
    return any(work.on == stream and work.every_step and _touches(work) for work in design.works())


def _places(design: Design, event: str) -> list[tuple[str, str]]:
    """Where an event is recorded: (stream, the work in front of the record, or "" for a record by itself)."""
    out = [(str(work.on), work.name) for work in design.works() if event in work.signals]
    out += [(item.on, "") for item in design.step if isinstance(item, Mark) and item.event == event]
    return out + [(stream, "") for rule in design.rules for stream, name in rule.records if name == event]


def _only(places: list[tuple[str, str]], stream: str, *, before: str, design: Design) -> bool:
    """Whether these are one record by itself, on the stream, in front of that work and of every transfer."""
    if places != [(stream, "")]:
        return False
    for item in design.step:
        if isinstance(item, Mark) and item.on == stream:
            return True
        if isinstance(item, Work) and (item.name == before or not item.every_step):
            return False
    return False
