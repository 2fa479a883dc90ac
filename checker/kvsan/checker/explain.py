"""Two ops of a trace looked at together: do they conflict, are they ordered, through what, and what would order them.

Two passes over the trace, since what is interesting is known only once the later op is reached: the first finds the
hazards of the pair and what the later op does know, the second the ops on the way and the life of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from kvsan.checker.graph import HappensBefore
from kvsan.checker.online import Online
from kvsan.checker.pairs import Pairs
from kvsan.checker.trace import Trace
from kvsan.model.hazard import Hazard, Kind, Site, conflict
from kvsan.model.ops import Access, Alloc, Blocks, Free, Op, Touch

Conflict = tuple[Kind, str, Blocks]
APART = (Kind.BATCH, Kind.GEN)


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
    conflicts: tuple[Conflict, ...]
    hazards: tuple[Hazard, ...]
    ordered: tuple[Way, ...]
    known_way: tuple[int, ...]
    life: tuple[int, ...]
    ops: Mapping[int, Op]

    @property
    def blocks(self) -> dict[str, Blocks]:
        """The blocks that the pair is about, by pool."""
        shared: dict[str, set[int]] = {}
        named = [(pool, blocks) for _, pool, blocks in self.conflicts]
        for pool, blocks in named + [(hazard.pool, hazard.blocks) for hazard in self.hazards]:
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
    """Explains the pair of op numbers. `reopen` opens the trace; it is called twice.

    `earlier` may also be the op at which `later` was planned (a `GEN` hazard), or `later` itself (a `BATCH`). Raises
    `NoSuchPairError`, `TraceError`.
    """
    if not 0 <= earlier <= later:
        raise NoSuchPairError(f"op {earlier} does not come before op {later}; accepted: EARLIER < LATER, from 0")
    with reopen() as trace:
        name, header = trace.name, trace.header
        first, second, hazards = _hazards(trace, earlier, later, assume_stream_order=assume_stream_order)
    conflicts = tuple(_conflicts(first, second)) if isinstance(first, Access) and earlier < later else ()
    known = next((hazard.known for hazard in hazards if hazard.known is not None), None)
    start = earlier if known is None else min(known.op, earlier)
    about = {(hazard.pool, block) for hazard in hazards for block in hazard.blocks}
    about |= {(pool, block) for _, pool, blocks in conflicts for block in blocks}
    with reopen() as trace:
        stretch, life = _stretch(trace, start, earlier, later, about)
    graph = HappensBefore(sorted(stretch.items()), header.streams, assume_stream_order=assume_stream_order)
    ordered = tuple(_ways(graph, conflicts, hazards, earlier, later))
    known_way: tuple[int, ...] = ()
    if known is not None:
        kind = next(hazard.kind for hazard in hazards if hazard.known is not None)
        known_way = tuple(_known_way(graph, known, later, kind))
    shown = {earlier, later, *life, *known_way, *(op for way in ordered for op in way.ops)}
    ops = {number: op for number, op in stretch.items() if number in shown}
    return Explanation(
        name, _site(earlier, first), _site(later, second), conflicts, hazards, ordered, known_way, life, ops
    )


def _ways(
    graph: HappensBefore, conflicts: Iterable[Conflict], hazards: Iterable[Hazard], earlier: int, later: int
) -> Iterator[Way]:
    """For each conflict the blocks that do not race, and why."""
    for kind, pool, blocks in conflicts:
        racing = {block for hazard in hazards if (hazard.kind, hazard.pool) == (kind, pool) for block in hazard.blocks}
        kept = Blocks.of(block for block in blocks if block not in racing)
        issued = graph.issued[earlier]
        element = issued.read if kind is Kind.WAR else issued.write
        way = graph.path(element, later, reads=kind is Kind.RAW) if kept.runs else None
        if way:
            yield Way(kind, pool, kept, tuple(way))


def _hazards(
    trace: Trace, earlier: int, later: int, *, assume_stream_order: bool
) -> tuple[Op, Access, tuple[Hazard, ...]]:
    header = trace.header
    possible = header.unseen.edges > 0
    pairs = Pairs(header.pools, header.streams, assume_stream_order=assume_stream_order, possible=possible)
    online = Online(header.pools, header.streams, every=True)  # for BATCH and GEN
    first: Op | None = None
    count = -1
    for count, op in enumerate(trace):
        found = [*pairs.feed(count, op), *(hazard for hazard in online.feed(count, op) if hazard.kind in APART)]
        if count == earlier:
            first = op
        if count < later:
            continue
        if not isinstance(op, Access):
            raise NoSuchPairError(f"op {count} is a {_kind(op)}; accepted: an access")
        about = tuple(hazard for hazard in found if hazard.earlier.op == earlier)
        if first is None or not ((isinstance(first, Access) and earlier < later) or about):
            accepted = (
                "an earlier access, the op at which the later one was planned, or a batch that touches a block twice"
            )
            raise NoSuchPairError(
                f"op {earlier} is {'the same' if earlier == later else 'a ' + _kind(first)}; accepted: {accepted}"
            )
        return first, op, about
    raise NoSuchPairError(f"op {later} is past the end; accepted: numbers from 0 to {count}")


def _kind(op: Op | None) -> str:
    return type(op).__name__.lower()


def _stretch(
    trace: Trace, start: int, earlier: int, later: int, wanted: Set[tuple[str, int]]
) -> tuple[dict[int, Op], tuple[int, ...]]:
    """The ops from `start` to `later`, and the alloc, free and touch of the blocks between the two accesses (and the
    last one before them)."""
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


def _conflicts(first: Access, second: Access) -> Iterator[Conflict]:
    for earlier_writes, one in ((True, first.writes), (False, first.reads)):
        for later_writes, other in ((False, second.reads), (True, second.writes)):
            kind = conflict(earlier_writes, later_writes)
            for pool in sorted(set(one) & set(other)) if kind else ():
                common = Blocks.of(sorted(set(one[pool]) & set(other[pool])))
                if common.runs and kind:
                    yield kind, pool, common


def _site(op: int, what: Op) -> Site:
    if isinstance(what, Access):
        return Site(op, what.label, what.on, what.by, what.step, what.owner, what.site)
    return Site(op, _kind(what), None, what.by)
