"""Which edges can go, what each of the others is for, and where a weaker one would do.

An edge is for the pairs that could race without it. A weaker wait takes in less: this step, the steps before, the
work on this very block; a weaker fence returns a block sooner. Each is judged alone; which edges can go *together*
is in `cores`, the smallest sets of the design's own edges that are enough.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from kvsan.model.design import Claim, Design, DesignError, Edge, EdgeKind, Fence, Retired
from kvsan.model.design.check import check
from kvsan.model.proof.candidates import Recording, recording, scope, usual_events, why
from kvsan.model.proof.repair import repair
from kvsan.model.proof.search import Pair
from kvsan.model.proof.verdict import Findings, Proved, Refused, Refuted, Verdict
from kvsan.model.proof.verify import CAP, verify


@dataclass(frozen=True, slots=True)
class Needed:
    """An edge that cannot go alone: the pairs that it keeps apart, and other claims that fall without it."""

    edge: Edge
    pairs: tuple[Pair, ...]
    claims: tuple[Claim, ...]
    also: str = ""


@dataclass(frozen=True, slots=True)
class Weaker:
    """An edge, and one that takes in less and is enough. `record`: what has to be recorded for it, if anything."""

    edge: Edge
    instead: Edge
    why: str
    record: Recording | None = None


@dataclass(frozen=True, slots=True)
class Redundancy:
    """`spare`: edges that can go, one at a time. `cores`: every smallest set of the design's edges that is enough."""

    design: Design
    spare: tuple[Edge, ...]
    needed: tuple[Needed, ...]
    weaker: tuple[Weaker, ...]
    cores: tuple[tuple[Edge, ...], ...]
    seconds: float


def redundant(design: Design, *, cap: int = CAP, weaker: bool = True, cores: bool = True) -> Redundancy:
    """Total, and says nothing of a design that gets no verdict. `weaker`, `cores`: whether to look for these."""
    began = time.perf_counter()
    before = verify(design, cap=cap)
    if not isinstance(before, Proved | Refuted):
        return Redundancy(design, (), (), (), (), time.perf_counter() - began)
    spare: list[Edge] = []
    needed: list[Needed] = []
    for edge in design.edges:
        lost = _lost(before.findings, design.claims, verify(design.without(edge), cap=cap))
        if lost == ((), (), ""):
            spare.append(edge)
        else:
            needed.append(Needed(edge, *lost))
    less = tuple(_weaker(design, before, [one.edge for one in needed], cap)) if weaker else ()
    enough = _cores(design, spare, cap) if cores and isinstance(before, Proved) else ()
    return Redundancy(design, tuple(spare), tuple(needed), less, enough, time.perf_counter() - began)


def _lost(
    before: Findings, claims: frozenset[Claim], after: Verdict
) -> tuple[tuple[Pair, ...], tuple[Claim, ...], str]:
    """What falls: pairs that could not race, claims that held, or why there is no verdict."""
    if isinstance(after, Refused):
        return (), (), "makes impossible: " + ", ".join(after.dead)
    if not isinstance(after, Proved | Refuted):
        return (), (), "not decided: " + after.reason
    racy = {race.pair for race in before.races}
    pairs = tuple(sorted(race.pair for race in after.findings.races if race.pair not in racy))
    broken = (after.findings.broken() - before.broken()) & claims - {Claim.RACE_FREE}
    return pairs, tuple(sorted(broken)), ""


def _weaker(design: Design, before: Proved | Refuted, edges: list[Edge], cap: int) -> Iterator[Weaker]:
    """For each edge every one that takes in less and loses nothing, the weakest first."""
    usual = usual_events(design)
    rich = recording(design, usual)
    works = {work.name: work for work in design.works()}
    for edge in edges:
        found: list[tuple[int, Weaker]] = []
        if edge.kind is EdgeKind.WAIT:
            work = works[edge.at]
            instead = [
                (scope(rich, work, event.name), Edge(EdgeKind.WAIT, edge.at, event.name))
                for event in rich.events
                if event.per != "step" and event.name not in (*work.after, *work.signals)
            ]
            limit = scope(design, work, edge.of)
        elif edge.kind is EdgeKind.FREE:
            fences = [Fence.LAST_USE, Fence.NEWEST, Fence.NEXT]
            instead = [(at, Edge(EdgeKind.FREE, edge.at, str(Retired(fence)))) for at, fence in enumerate(fences)]
            limit = next(at for at, other in instead if other == edge)
        else:
            continue
        for much, other in instead:
            if much >= limit:
                continue
            record = next((one for one in usual if one.event.name == other.of), None)
            try:
                changed = recording(design, [record] if record else []).without(edge).adding(other)
                check(changed)
            except DesignError:
                continue
            if _lost(before.findings, design.claims, verify(changed, cap=cap)) == ((), (), ""):
                found.append((much, Weaker(edge, other, why(changed, other), record)))
        yield from (weak for _, weak in sorted(found, key=lambda one: (one[0], one[1].instead.name)))


def _cores(design: Design, spare: list[Edge], cap: int) -> tuple[tuple[Edge, ...], ...]:
    """Which sets of the design's own edges are enough; with at most one spare edge that is plain."""
    rest = tuple(edge for edge in design.edges if edge not in spare)
    if len(spare) <= 1:
        return (rest,)
    found = repair(design.without(*spare), among=spare, cap=cap)
    return tuple(sorted((*rest, *one.edges) for one in found.repairs)) or (rest,)
