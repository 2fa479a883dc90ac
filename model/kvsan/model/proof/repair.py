"""All minimal sets of edges that mend a design, cheapest first.

More edges only remove behaviours or add order, so "no race" is monotone in the set of edges, and so are "right
generation" and "host-quiescent": `minimal` enumerates. A counterexample is kept and played again before anything is
searched (`counterexample`), and it is played with as many edges as it survives, so that one schedule says of many
sets at once that they are not enough.

Progress is the opposite: an edge can take it away. So each set found is verified as a design of its own, and one
that breaks another claim, or makes a rule impossible, is told and not offered.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvsan.model.design import Claim, Design, DesignError, Edge, EdgeKind, Fence, Retired
from kvsan.model.proof.candidates import Candidate, Cost, Recording, candidates, recording, usual_events
from kvsan.model.proof.counterexample import Counterexample, still
from kvsan.model.proof.graph import TooManyStatesError, explore, wrong_generations
from kvsan.model.proof.minimal import minimal_sets
from kvsan.model.proof.search import search
from kvsan.model.proof.system import System
from kvsan.model.proof.verdict import Proved, Refused, Refuted, Verdict
from kvsan.model.proof.verify import CAP, verify

MENDABLE = frozenset({Claim.RACE_FREE, Claim.RIGHT_GENERATION, Claim.HOST_QUIESCENT})
"""Claims that more edges can only help."""

CHECKS = 2_000
"""After so many searches the list is given up as incomplete, which is said."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One minimal set: the edges, the records that they need and the design lacks, what it costs and why.
    `eager`: a held free may come back once the *last use* was seen, too, which is sooner."""

    edges: tuple[Edge, ...]
    records: tuple[Recording, ...]
    cost: Cost
    why: tuple[str, ...]
    design: Design
    eager: bool = False

    @property
    def names(self) -> frozenset[str]:
        return frozenset(edge.name for edge in self.edges)

    def __str__(self) -> str:
        return " and ".join(edge.name for edge in self.edges)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A minimal set that mends what was asked for and breaks something else."""

    edges: tuple[Edge, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Repairs:
    """`mends`: the broken claims that edges can mend, `beyond`: those that they cannot. No repair and no rejected one:
    not even all candidates together are enough, and `left` says what stays. `swap`: fences on a step that nobody may
    launch, and the fences that mend it all in their place."""

    design: Design
    mends: tuple[Claim, ...]
    beyond: tuple[Claim, ...]
    swap: tuple[tuple[Edge, Edge], ...]
    repairs: tuple[Repair, ...]
    rejected: tuple[Rejected, ...]
    left: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    complete: bool
    searches: int
    replays: int
    seconds: float


class _GivenUpError(Exception):
    """The number of searches, or of states in one, has been reached."""


def repair(design: Design, *, among: Sequence[Edge] | None = None, cap: int = CAP, checks: int = CHECKS) -> Repairs:
    """All minimal repairs of what the design claims. `among`: only these edges. A design with nothing to mend has no
    repairs."""
    began = time.perf_counter()
    before = verify(design, cap=cap)
    broken = before.broken if isinstance(before, Refuted) else ()
    mends = tuple(claim for claim in broken if claim in MENDABLE)
    beyond = tuple(claim for claim in broken if claim not in MENDABLE)
    hunt = _Hunt(design, frozenset(mends), among, cap, checks)
    found: list[Repair] = []
    rejected: list[Rejected] = []
    complete = not isinstance(before, Refused) and not hasattr(before, "reason")
    try:
        for mask in minimal_sets(len(hunt.candidates), hunt.judge) if mends else ():
            made = hunt.repair(mask)
            wrong = _wrong(verify(made.design, cap=cap), frozenset(beyond))
            if wrong:
                rejected.append(Rejected(made.edges, wrong))
            else:
                found.append(replace(made, eager=_eager(made, frozenset(beyond), cap)))
    except (_GivenUpError, TooManyStatesError):
        complete = False
    return Repairs(
        design,
        mends,
        beyond,
        _swap(design, cap) if beyond else (),
        tuple(sorted(found, key=lambda one: (one.cost, len(one.edges), [edge.name for edge in one.edges]))),
        tuple(rejected),
        hunt.left() if mends and complete and not found and not rejected else (),
        hunt.candidates,
        complete,
        hunt.searches,
        hunt.replays,
        time.perf_counter() - began,
    )


def _swap(design: Design, cap: int) -> tuple[tuple[Edge, Edge], ...]:
    """A fence on the next step holds a block until somebody launches one; the newest step is launched already."""
    bad = [edge for edge in design.edges if edge.of == str(Retired(Fence.NEXT))]
    good = [Edge(edge.kind, edge.at, str(Retired(Fence.NEWEST))) for edge in bad]
    mended = bool(bad) and isinstance(verify(design.without(*bad).adding(*good), cap=cap), Proved)
    return tuple(zip(bad, good, strict=True)) if mended else ()


def _wrong(verdict: Verdict, before: frozenset[Claim]) -> str:
    """What keeps a mended design from being offered; what was broken before and cannot be mended does not."""
    match verdict:
        case Proved():
            return ""
        case Refuted():
            return ", ".join(f"breaks {claim}" for claim in verdict.broken if claim not in before)
        case Refused():
            return "makes impossible: " + ", ".join(verdict.dead)
    return "not decided: " + verdict.reason


def _eager(made: Repair, before: frozenset[Claim], cap: int) -> bool:
    """Whether every held free may end at the last use already."""
    held = [edge for edge in made.edges if edge.kind is EdgeKind.FREE]
    if not held:
        return False
    sooner = [Edge(EdgeKind.FREE, edge.at, str(Retired(Fence.LAST_USE))) for edge in held]
    return not _wrong(verify(made.design.without(*held).adding(*sooner), cap=cap), before)


class _Hunt:
    """The design with the usual events, the candidates, and every counterexample seen so far."""

    def __init__(
        self, design: Design, mends: frozenset[Claim], among: Sequence[Edge] | None, cap: int, checks: int
    ) -> None:
        self.design, self.mends, self.cap, self.checks = design, mends, cap, checks
        self.records = usual_events(design) if among is None else ()
        self.base = recording(design, self.records)
        self.candidates = candidates(self.base, among)
        self.shown: list[Counterexample] = []
        self.searches = self.replays = 0
        self._systems: dict[int, System] = {}

    def system(self, mask: int) -> System:
        system = self._systems.get(mask)
        if system is None:
            edges = [candidate.edge for at, candidate in enumerate(self.candidates) if mask >> at & 1]
            design = self.base.adding(*edges)
            system = System(design, None if design.run_ahead == "any" else design.run_ahead)
            if len(self._systems) > 512:
                self._systems.clear()
            self._systems[mask] = system
        return system

    def judge(self, mask: int) -> list[int] | None:
        """None: the set mends all that is asked for. Else larger sets that do not."""
        for shown in self.shown:
            if self._still(mask, shown):
                return [self._grown(mask, shown)]
        fresh, stale = self._attack(mask)
        if not fresh and not stale:
            return None
        self.shown += fresh
        bad = [self._grown(mask, shown) for shown in fresh]
        return bad or [self._grown_stale(mask, stale)]

    def _attack(self, mask: int) -> tuple[list[Counterexample], frozenset[str]]:
        """The counterexamples that a search finds, and the works that may run on the wrong generation."""
        self.searches += 1
        if self.searches > self.checks:
            raise _GivenUpError
        system = self.system(mask)
        graph = explore(system, self.cap)
        found = search(system, graph, self.cap)
        out = []
        if Claim.RACE_FREE in self.mends:
            out += [Counterexample(schedule, pair) for pair, schedule in sorted(found.races.items())]
        if Claim.HOST_QUIESCENT in self.mends and found.unseen_free is not None:
            out.append(Counterexample(found.unseen_free, None))
        stale: frozenset[str] = frozenset()
        if not out and Claim.RIGHT_GENERATION in self.mends:
            stale = frozenset(w.work for w in wrong_generations(system.design, system, graph, self.cap))
        return out, stale

    def _still(self, mask: int, shown: Counterexample) -> bool:
        self.replays += 1
        try:
            return still(self.system(mask), shown)
        except DesignError:
            return False

    def _grown(self, mask: int, shown: Counterexample) -> int:
        """The set with every candidate that this very schedule survives."""
        for at in range(len(self.candidates)):
            if not mask >> at & 1 and self._still(mask | 1 << at, shown):
                mask |= 1 << at
        return mask

    def _grown_stale(self, mask: int, stale: frozenset[str]) -> int:
        """The same for ops on the wrong generation, where the question is cheap enough to be asked anew."""

        def bad(more: int) -> bool:
            system = self.system(more)
            graph = explore(system, self.cap)
            return any(w.work in stale for w in wrong_generations(system.design, system, graph, self.cap))

        for at in range(len(self.candidates)):
            if not mask >> at & 1 and bad(mask | 1 << at):
                mask |= 1 << at
        return mask

    def left(self) -> tuple[str, ...]:
        """What stays with every candidate put in."""
        fresh, stale = self._attack((1 << len(self.candidates)) - 1)
        races = [str(shown.pair) for shown in fresh if shown.pair is not None]
        unseen = ["a free block that the host does not know to rest"] if any(s.pair is None for s in fresh) else []
        return (*races, *unseen, *(f"{work} on the wrong generation" for work in sorted(stale)))

    def repair(self, mask: int) -> Repair:
        chosen = [candidate for at, candidate in enumerate(self.candidates) if mask >> at & 1]
        awaited = {one.edge.of for one in chosen} | {one.edge.of[5:-1] for one in chosen if one.edge.of[:5] == "seen("}
        records = tuple(record for record in self.records if record.event.name in awaited)
        edges = tuple(candidate.edge for candidate in chosen)
        cost = Cost()
        for candidate in chosen:
            cost = cost.plus(candidate.cost)
        why = tuple(dict.fromkeys(candidate.why for candidate in chosen))
        return Repair(edges, records, cost, why, recording(self.design, records).adding(*edges))
