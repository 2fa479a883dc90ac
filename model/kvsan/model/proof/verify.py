"""Design in, verdict out.

The proof explores the design's own run-ahead (any, as a rule). A schedule is then searched at run-ahead 1,
where an engine prepares one step while another runs, so that no more steps are in flight than needed; if a race
needs more, at 2, 3 and 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from kvsan.model.design import Design, DesignError, Edge
from kvsan.model.proof.assumptions import assumptions
from kvsan.model.proof.confirm import confirm
from kvsan.model.proof.graph import TooManyStatesError, dead, explore, stuck, vacuous, wrong_generations
from kvsan.model.proof.search import Found, Pair, pairs, search
from kvsan.model.proof.system import System
from kvsan.model.proof.verdict import Findings, Proved, Race, Refused, Refuted, Unknown, Verdict

CAP = 400_000
SECONDS = 15.0
"""How long z3 may take over one design."""
SHOWN = (1, 2, 3, 4)
"""The run-aheads at which a schedule is looked for, in this order."""


def verify(design: Design, *, cap: int = CAP, certify: bool = False, seconds: float = SECONDS) -> Verdict:
    """Total: every design that could be defined gets a verdict.

    `certify`: z3 checks it by another road, for `seconds` at most; then raises `InternalError` if z3 disagrees, and
    `MissingSolverError` if there is no z3.
    """
    began = time.perf_counter()
    told = assumptions(design)
    try:
        system = System(design, None if design.run_ahead == "any" else design.run_ahead)
        graph = explore(system, cap)
        never = dead(design, graph)
        if never:
            return Refused(design, never, told)
        found = search(system, graph, cap)
        races = _shown(design, found, cap)
        findings = Findings(
            states=found.states,
            control_states=len(graph.states),
            races=races,
            kept_apart=tuple(sorted(pairs(graph) - found.races.keys())),
            stuck=stuck(system, graph, closed=False),
            stuck_closed=stuck(system, graph, closed=True),
            vacuous=vacuous(graph, cap),
            wrong_generation=wrong_generations(design, system, graph, cap),
            not_quiescent=found.unseen_free,
            seconds=time.perf_counter() - began,
        )
    except TooManyStatesError:
        return Unknown(design, f"more than {cap} states", told)
    broken = tuple(sorted(design.claims & findings.broken()))
    if broken:
        refuted = Refuted(design, findings, broken, told)
        return confirm(refuted, seconds=seconds, cap=cap) if certify else refuted
    proved = Proved(design, findings, told)
    return confirm(proved, seconds=seconds, cap=cap) if certify else proved


def racy_pairs(design: Design, *, cap: int = CAP) -> frozenset[Pair]:
    """Only which pairs can race: what a search over many designs asks. Raises `TooManyStatesError`."""
    system = System(design, None if design.run_ahead == "any" else design.run_ahead)
    return frozenset(search(system, explore(system, cap), cap).races)


class Racy:
    """The racy pairs of a design; each design is asked about once."""

    def __init__(self, cap: int = CAP) -> None:
        self._cap = cap
        self._known: dict[Design, frozenset[Pair] | None] = {}

    def __call__(self, make: Callable[[], Design]) -> frozenset[Pair] | None:
        """None: there is no such design, or no verdict on it."""
        try:
            design = make()
            if design not in self._known:
                self._known[design] = racy_pairs(design, cap=self._cap)
            return self._known[design]
        except (DesignError, TooManyStatesError):
            return None


def keepers(design: Design, pairs: Iterable[Pair], ask: Racy | None = None) -> dict[Pair, tuple[Edge, ...]]:
    """For each pair the edges without which, one at a time, it could race. None: several do it, or the program does."""
    ask = ask or Racy()
    out: dict[Pair, list[Edge]] = {pair: [] for pair in pairs}
    for edge in design.edges:
        for pair in (ask(partial(design.without, edge)) or frozenset()) & out.keys():
            out[pair].append(edge)
    return {pair: tuple(edges) for pair, edges in out.items()}


def _shown(design: Design, found: Found, cap: int) -> tuple[Race, ...]:
    """Each racy pair with a schedule at the least run-ahead from 1 on that has one."""
    open_pairs = frozenset(found.races)
    out: dict[Pair, Race] = {}
    depths = SHOWN if design.run_ahead == "any" else ()
    for depth in depths:
        if not open_pairs:
            break
        system = System(design, depth)
        for pair, schedule in search(system, explore(system, cap), cap, first=open_pairs).races.items():
            if pair in open_pairs:
                out[pair] = Race(pair, schedule, depth)
        open_pairs = open_pairs - out.keys()
    for pair in open_pairs:
        out[pair] = Race(pair, found.races[pair], None if design.run_ahead == "any" else design.run_ahead)
    return tuple(out[pair] for pair in sorted(out, key=lambda p: (len(out[p].schedule), p)))
