"""What changed between two designs, in the terms of a review: which ordered pairs lost or gained protection and
through which edge, what may now overlap and what no longer can, the verdicts, and what would mend the new one.

A pair is blamed on an edge by trying: an edge that went is to blame if putting it back (or taking it out of the old
design) makes the difference; an edge that came, if taking it out does. A pair that several edges keep apart is kept
by all of them together, which is said. Works go by name: a renamed work is one that went and one that came.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from kvsan.model.design import Block, Design, Edge, StreamOf
from kvsan.model.proof.graph import TooManyStatesError
from kvsan.model.proof.overlap import May, overlap
from kvsan.model.proof.repair import Repairs, repair
from kvsan.model.proof.search import Pair
from kvsan.model.proof.verdict import Proved, Refuted, Verdict
from kvsan.model.proof.verify import CAP, Racy, keepers, verify

RACY, ORDERED, ABSENT = "can race", "kept apart", "never meets"


@dataclass(frozen=True, slots=True)
class Changed:
    """A pair whose state changed. `through`: the edges to blame, each by itself; empty if no single edge is (then
    `together` says whether all edges that changed are, taken at once)."""

    pair: Pair
    before: str
    after: str
    through: tuple[Edge, ...] = ()
    together: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """A pair that is kept apart in both, and by other edges than before."""

    pair: Pair
    before: tuple[Edge, ...]
    after: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two works, the earlier issued first, that may overlap otherwise than before."""

    earlier: str
    later: str
    before: May | None
    after: May | None


@dataclass(frozen=True, slots=True)
class Difference:
    """From design `a` to design `b`. `other`: changes that are no edges, in words."""

    a: Verdict
    b: Verdict
    removed: tuple[Edge, ...]
    added: tuple[Edge, ...]
    other: tuple[str, ...]
    lost: tuple[Changed, ...]
    gained: tuple[Changed, ...]
    moved: tuple[Moved, ...]
    meetings: tuple[Meeting, ...]
    repairs: Repairs | None
    seconds: float


def diff(a: Design, b: Design, *, cap: int = CAP) -> Difference:
    """Total: a design without a verdict takes part as far as its text goes."""
    began = time.perf_counter()
    before, after = verify(a, cap=cap), verify(b, cap=cap)
    removed = tuple(edge for edge in a.edges if edge not in b.edges)
    added = tuple(edge for edge in b.edges if edge not in a.edges)
    lost: list[Changed] = []
    gained: list[Changed] = []
    moved: list[Moved] = []
    if isinstance(before, Proved | Refuted) and isinstance(after, Proved | Refuted):
        was, now = _states(before), _states(after)
        ask = Racy(cap)
        for pair in sorted(was.keys() | now.keys()):
            x, y = was.get(pair, ABSENT), now.get(pair, ABSENT)
            if x == y:
                continue
            if y == RACY:
                lost.append(_blamed(Changed(pair, x, y), removed, b, a, ask))
            elif x == RACY:
                gained.append(_blamed(Changed(pair, x, y), added, a, b, ask))
        if removed or added:
            both = [pair for pair in was if was[pair] == now.get(pair) == ORDERED]
            keeps_a, keeps_b = keepers(a, both, ask), keepers(b, both, ask)
            moved += [Moved(p, keeps_a[p], keeps_b[p]) for p in sorted(both) if keeps_a[p] != keeps_b[p]]
    mend = isinstance(after, Refuted) and bool(after.broken)
    return Difference(
        before,
        after,
        removed,
        added,
        tuple(_others(a, b)),
        tuple(lost),
        tuple(gained),
        tuple(moved),
        tuple(_meetings(a, b, cap)),
        repair(b, cap=cap) if mend else None,
        time.perf_counter() - began,
    )


def _states(verdict: Proved | Refuted) -> dict[Pair, str]:
    return dict.fromkeys(verdict.findings.kept_apart, ORDERED) | {race.pair: RACY for race in verdict.findings.races}


def _blamed(changed: Changed, edges: tuple[Edge, ...], lacks: Design, has: Design, ask: Racy) -> Changed:
    """`lacks` is racy, `has` has the edges and is not."""

    def decides(chosen: tuple[Edge, ...]) -> bool:
        with_them = ask(lambda: lacks.adding(*chosen))
        without_them = ask(lambda: has.without(*chosen))
        return (with_them is not None and changed.pair not in with_them) or (
            without_them is not None and changed.pair in without_them
        )

    single = tuple(edge for edge in edges if decides((edge,)))
    together = not single and len(edges) > 1 and decides(edges)
    return Changed(changed.pair, changed.before, changed.after, single, together)


def _meetings(a: Design, b: Design, cap: int) -> Iterator[Meeting]:
    try:
        was, now = overlap(a, cap=cap).may, overlap(b, cap=cap).may
    except TooManyStatesError:
        return
    for key in dict.fromkeys((*was, *now)):
        if was.get(key) != now.get(key):
            yield Meeting(*key, was.get(key), now.get(key))


def _others(a: Design, b: Design) -> Iterator[str]:
    """Changes that are no edges: what there is, and what each part says besides its edges."""
    for what, mine, theirs in (
        ("facet", {f.name: " | ".join(f.values) for f in a.facets}, {f.name: " | ".join(f.values) for f in b.facets}),
        ("stream", {s.name: _agent(s) for s in a.streams}, {s.name: _agent(s) for s in b.streams}),
        ("event", {e.name: f"one a {e.per}" for e in a.events}, {e.name: f"one a {e.per}" for e in b.events}),
        ("queue", dict.fromkeys(a.queues, ""), dict.fromkeys(b.queues, "")),
        ("work", _works(a), _works(b)),
        ("rule", _rules(a), _rules(b)),
        ("host wait", _waits(a), _waits(b)),
    ):
        for name in sorted(mine.keys() - theirs.keys()):
            yield f"{what} {name!r} is gone"
        for name in sorted(theirs.keys() - mine.keys()):
            yield f"{what} {name!r} is new"
        for name in sorted(mine.keys() & theirs.keys()):
            if mine[name] != theirs[name]:
                yield f"{what} {name!r}: {mine[name]} → {theirs[name]}"
    if str(a.free) != str(b.free):
        yield f"free: {a.free} → {b.free}"
    if a.run_ahead != b.run_ahead:
        yield f"run-ahead: {a.run_ahead} → {b.run_ahead}"
    if [_name(item) for item in a.step] != [_name(item) for item in b.step]:
        yield "the order of the step changed"
    for claim in sorted(a.claims - b.claims):
        yield f"no longer claimed: {claim}"
    for claim in sorted(b.claims - a.claims):
        yield f"newly claimed: {claim}"


def _works(design: Design) -> dict[str, str]:
    return {
        w.name: ", ".join(
            f"{key}={value}"
            for key, value in (
                ("on", w.on),
                ("reads", w.reads),
                ("writes", w.writes),
                ("then", _assigned(w.then)),
                ("signals", " ".join(w.signals)),
                ("order", "" if w.order == "stream" else w.order),
            )
            if value not in (None, "")
        )
        for w in design.works()
    }


def _rules(design: Design) -> dict[str, str]:
    return {r.name: f"when {r.when} then {_assigned(r.then)}" + (", keeps" if r.keeps else "") for r in design.rules}


def _waits(design: Design) -> dict[str, str]:
    return {i.name: f"when {i.when} then {_assigned(i.then)}" for i in design.step if isinstance(i, Block)}


def _agent(stream: StreamOf) -> str:
    return "a stream" if stream.waits else "a NIC, which cannot wait"


def _assigned(then: tuple[tuple[str, str], ...]) -> str:
    return " & ".join(f"{facet}={value}" for facet, value in then)


def _name(item: object) -> str:
    return str(getattr(item, "name", None) or f"record {getattr(item, 'event', '')}")
