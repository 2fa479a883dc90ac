"""Two ops of a trace looked at together: do they conflict, are they ordered, through what, and what would order them.

Two passes over the trace, since what is interesting is known only once the later op is reached: the first finds the
hazards of the pair and what the later op does know, the second the ops on the way and the life of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from kvsan.checker.graph import HappensBefore
from kvsan.checker.pairs import Pairs
from kvsan.checker.trace import Trace
from kvsan.model.hazard import Hazard, Kind, Site, conflict
from kvsan.model.ops import Access, Alloc, Blocks, Free, Op, Touch


class NoSuchPairError(ValueError):
    """The two numbers do not name an earlier and a later access of the trace."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a later op knows an earlier access: the ops on the shortest way, both ends included."""

    kind: Kind
    pool: str
    blocks: Blocks
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `kvsan explain` says. `ops` holds the ops worth showing; `known_way` is how `hazard.known` is known."""

    trace: str
    earlier: Site
    later: Site
    conflicts: tuple[tuple[Kind, str, Blocks], ...]
    hazards: tuple[Hazard, ...]
    ordered: tuple[Way, ...]
    known_way: tuple[int, ...]
    life: tuple[int, ...]
    ops: Mapping[int, Op]

    @property
    def blocks(self) -> dict[str, Blocks]:
        """The blocks that both touch, by pool, for the conflicts only."""
        shared: dict[str, set[int]] = {}
        for _, pool, blocks in self.conflicts:
            shared.setdefault(pool, set()).update(blocks)
        return {pool: Blocks.of(sorted(blocks)) for pool, blocks in shared.items()}

    def document(self) -> dict[str, Any]:
        return {
            "kvsan": 1,
            "trace": self.trace,
            "earlier": self.earlier.document(),
            "later": self.later.document(),
            "conflicts": [
                {"kind": kind.value, "pool": pool, "blocks": str(blocks)} for kind, pool, blocks in self.conflicts
            ],
            "hazards": [hazard.document() for hazard in self.hazards],
            "ordered": [
                {"kind": way.kind.value, "pool": way.pool, "blocks": str(way.blocks), "through": list(way.ops)}
                for way in self.ordered
            ],
            "known_through": list(self.known_way),
            "life": list(self.life),
        }


def explain(
    reopen: Callable[[], AbstractContextManager[Trace]],
    earlier: int,
    later: int,
    *,
    assume_stream_order: bool = False,
) -> Explanation:
    """Explains the pair of op numbers. `reopen` opens the trace; it is called twice. Raises `NoSuchPairError`,
    `TraceError`.
    """
    if not 0 <= earlier < later:
        raise NoSuchPairError(f"op {earlier} does not come before op {later}; accepted: EARLIER < LATER, from 0")
    with reopen() as trace:
        name, header = trace.name, trace.header
        first, second, hazards = _hazards(trace, earlier, later, assume_stream_order=assume_stream_order)
    conflicts = tuple(_conflicts(first, second))
    known = next((hazard.known for hazard in hazards if hazard.known is not None), None)
    start = earlier if known is None else min(known.op, earlier)
    with reopen() as trace:
        stretch, life = _stretch(trace, start, earlier, later, conflicts)
    graph = HappensBefore(sorted(stretch.items()), header.streams, assume_stream_order=assume_stream_order)
    ordered = []
    for kind, pool, blocks in conflicts:
        racing = {block for hazard in hazards if (hazard.kind, hazard.pool) == (kind, pool) for block in hazard.blocks}
        kept = Blocks.of(block for block in blocks if block not in racing)
        issued = graph.issued[earlier]
        element = issued.read if kind is Kind.WAR else issued.write
        way = graph.path(element, later, reads=kind is Kind.RAW) if kept.runs else None
        if way:
            ordered.append(Way(kind, pool, kept, tuple(way)))
    known_way: tuple[int, ...] = ()
    if known is not None:
        kind = next(hazard.kind for hazard in hazards if hazard.known is not None)
        known_way = tuple(_known_way(graph, known, later, kind))
    shown = {earlier, later, *life, *known_way, *(op for way in ordered for op in way.ops)}
    return Explanation(
        name,
        _site(earlier, first),
        _site(later, second),
        conflicts,
        hazards,
        tuple(ordered),
        known_way,
        life,
        {number: op for number, op in stretch.items() if number in shown},
    )


def _hazards(
    trace: Trace, earlier: int, later: int, *, assume_stream_order: bool
) -> tuple[Access, Access, tuple[Hazard, ...]]:
    header = trace.header
    pairs = Pairs(
        header.pools,
        header.streams,
        assume_stream_order=assume_stream_order,
        possible=header.unseen.edges > 0,
    )
    first: Op | None = None
    count = 0
    for count, op in enumerate(trace):
        found = list(pairs.feed(count, op))
        if count == earlier:
            first = op
        if count == later:
            for number, what in ((earlier, first), (later, op)):
                if not isinstance(what, Access):
                    raise NoSuchPairError(f"op {number} is a {type(what).__name__.lower()}; accepted: two accesses")
            assert isinstance(first, Access)
            assert isinstance(op, Access)
            return first, op, tuple(hazard for hazard in found if hazard.earlier.op == earlier)
    raise NoSuchPairError(f"op {later} is past the end; accepted: numbers from 0 to {count}")


def _stretch(
    trace: Trace, start: int, earlier: int, later: int, conflicts: tuple[tuple[Kind, str, Blocks], ...]
) -> tuple[dict[int, Op], tuple[int, ...]]:
    """The ops from `start` to `later`, and the alloc, free and touch of the blocks between the two accesses (and the
    last one before them)."""
    wanted = {(pool, block) for _, pool, blocks in conflicts for block in blocks}
    stretch: dict[int, Op] = {}
    life: list[int] = []
    before: tuple[int, Op] | None = None
    for number, op in enumerate(trace):
        if number > later:
            break
        if number >= start:
            stretch[number] = op
        if isinstance(op, Alloc | Free | Touch) and any((op.pool, block) in wanted for block in op.blocks):
            if number < earlier:
                before = (number, op)
            else:
                life.append(number)
    if before is not None:
        stretch.setdefault(*before)
        life.insert(0, before[0])
    return stretch, tuple(life)


def _known_way(graph: HappensBefore, known: Site, later: int, kind: Kind) -> Iterator[int]:
    issued = graph.issued.get(known.op)
    if issued is None:
        return
    for element in dict.fromkeys((issued.write, issued.read)):
        way = graph.path(element, later, reads=kind is Kind.RAW)
        if way:
            yield from way
            return


def _conflicts(first: Access, second: Access) -> Iterator[tuple[Kind, str, Blocks]]:
    for earlier_writes, one in ((True, first.writes), (False, first.reads)):
        for later_writes, other in ((False, second.reads), (True, second.writes)):
            kind = conflict(earlier_writes, later_writes)
            for pool in sorted(set(one) & set(other)) if kind else ():
                common = Blocks.of(sorted(set(one[pool]) & set(other[pool])))
                if common.runs and kind:
                    yield kind, pool, common


def _site(op: int, what: Access) -> Site:
    return Site(op, what.label, what.on, what.by, what.step, what.owner, what.site)
