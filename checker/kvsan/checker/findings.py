"""From blocks that were found racing to the hazards that a report holds: words, lives, fixes, and what is new.

Decides which blocks are reported (a block once for its first race, once for its first `BATCH` and once for its first
`GEN`) and what is said of them; whether they race was decided before (`shadow.py`, `lives.py`).

With `each_edge` a block is reported once for each edge that it misses: for each kind, stream or thread of the earlier
access and of the later. So one missing fence does not hide another that the same blocks would show. Each report is a
pair of unordered accesses; what may be missing after a block's first race is a pair whose write lies before another
write of that block (`shadow.py` knows the last alone). Its marks take `EDGES_APART` bits a block at most; edges beyond
that many in one pool are told apart by their kind alone.

For words alone
(labels, steps, sites) the latest `PROVENANCE` accesses are remembered, and for naming an alloc the latest
`LIVES_REMEMBERED` allocs: what is bounded here can lose a word of a report and never a report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsan.checker import fix
from kvsan.checker.clocks import Clocks, Issue
from kvsan.checker.index import Ids, Index, ids, runs_of
from kvsan.checker.lives import Lives, Marks
from kvsan.checker.recent import Recent
from kvsan.checker.shadow import Found
from kvsan.model.hazard import Hazard, Kind, Site
from kvsan.model.ops import Access, Blocks
from kvsan.model.pasts import Element

PROVENANCE = 1 << 15
LIVES_REMEMBERED = 1 << 12
EDGES_APART = 64

_FENCED = (Kind.RAW, Kind.WAR, Kind.WAW)
_Word = int | str | None
_Provenance = tuple[str | None, str | None, str | None, _Word, _Word, str | None]


@dataclass(frozen=True, slots=True)
class LifetimeNote:
    """`--lifetime`: an access issued to blocks that were free at the time. Legal where the engine runs ahead."""

    pool: str
    blocks: Blocks
    access: Site
    freed: int

    def document(self) -> dict[str, Any]:
        return {
            "pool": self.pool,
            "blocks": str(self.blocks),
            "access": self.access.document(),
            "freed": self.freed,
        }


class Findings:
    """What the online checker says. `possible`, `every` and `each_edge` are those of `Online`."""

    def __init__(
        self,
        clocks: Clocks,
        lives: Mapping[str, Lives],
        *,
        assume_stream_order: bool,
        possible: bool,
        every: bool,
        each_edge: bool = False,
    ) -> None:
        self.notes: list[LifetimeNote] = []
        self._clocks = clocks
        self._lives = lives
        self._assume_stream_order = assume_stream_order
        self._possible = possible
        self._every = every
        self._each_edge = each_edge
        self._shown: dict[tuple[Kind, str], Marks] = {}
        self._raced = {pool: Marks(life.size) for pool, life in lives.items()}
        self._edges: dict[str, dict[tuple[Kind, int, int], Marks]] = {}
        self._words: Recent[int, _Provenance] = Recent(PROVENANCE)
        self._allocs: deque[tuple[int, str, Blocks]] = deque(maxlen=LIVES_REMEMBERED)

    def add_pool(self, name: str, size: int) -> None:
        """A pool that appears while the engine runs."""
        self._raced[name] = Marks(size)

    def raced(self, pool: str) -> Marks:
        """A copy of which blocks have raced."""
        return self._raced[pool].copy()

    def forgive(self, hazard: Hazard) -> None:
        """The blocks of a hazard that was allowed are looked at again from the next op on."""
        kind = hazard.kind
        marks = self._shown.get((kind, hazard.pool)) if kind in (Kind.BATCH, Kind.GEN) else self._raced[hazard.pool]
        if marks is not None:
            marks.clear(ids(hazard.blocks))

    def remember(
        self, op: int, label: str, on: str | None, by: str, step: _Word, owner: _Word, site: str | None
    ) -> None:
        """Keeps the words of an access, before anything else is asked of it."""
        self._words[op] = (label, on, by, step, owner, site)

    def allocated(self, op: int, pool: str, blocks: Blocks) -> None:
        """Keeps what an alloc handed out."""
        self._allocs.append((op, pool, blocks))

    def races(self, op: int, what: Access, issue: Issue, found: list[tuple[Kind, str, Found]]) -> list[Hazard]:
        """The first races among the blocks found: for each kind, pool, earlier access and life between, one hazard."""
        hazards: list[Hazard] = []
        for kind, pool, racing in found:
            if self._each_edge:
                fresh = self._miss_an_edge(kind, pool, racing, issue)
            else:
                fresh = self._raced[pool].fresh(racing.ids)
            if fresh.any():
                hazards += self._report(op, what, issue, kind, pool, Found(*(column[fresh] for column in racing)))
        for _, pool, racing in found:
            self._raced[pool].mark(racing.ids)
        return hazards

    def _miss_an_edge(self, kind: Kind, pool: str, racing: Found, issue: Issue) -> npt.NDArray[np.bool_]:
        """Which of the blocks have not shown this edge before. Marks them."""
        later = issue.read_lane if kind is Kind.RAW else issue.write_lane
        edges = self._edges.setdefault(pool, {})
        fresh = np.zeros(len(racing.ids), np.bool_)
        for earlier in np.unique(racing.lanes).tolist():
            edge = (kind, earlier, later)
            if edge not in edges and len(edges) >= EDGES_APART - len(_FENCED):
                edge = (kind, -1, -1)
            marks = edges.get(edge)
            if marks is None:
                marks = edges[edge] = Marks(self._lives[pool].size)
            mine = racing.lanes == earlier
            mine[mine] = marks.fresh(racing.ids[mine])
            marks.mark(racing.ids[mine])
            fresh |= mine
        return fresh

    def _report(self, op: int, what: Access, issue: Issue, kind: Kind, pool: str, racing: Found) -> Iterable[Hazard]:
        """One hazard for the blocks that share the earlier access and the life between, the latest access first."""
        freed, allocated = self._between(pool, racing.ids, racing.epochs - 1)
        for (epoch, lane, *life), blocks in groups(racing.ids, racing.epochs, racing.lanes, freed, allocated):
            yield self._hazard(op, what, issue, kind, pool, blocks, epoch, lane, *life)

    def _hazard(
        self,
        op: int,
        what: Access,
        issue: Issue,
        kind: Kind,
        pool: str,
        blocks: Blocks,
        epoch: int,
        lane: int,
        freed: int,
        allocated: int,
    ) -> Hazard:
        agent, life = self._clocks.agents[lane], self._life(pool, blocks, freed, allocated)
        is_read = kind is Kind.RAW
        past = issue.reads if is_read else issue.writes
        known = int(past[lane])
        if known > op:  # the vectors hold the op's own epoch already
            known = 0
        return Hazard(
            kind=kind,
            pool=pool,
            blocks=blocks,
            earlier=self.site(epoch - 1, agent.name, is_host=agent.is_host),
            later=self._site(op),
            known=self.site(known - 1, agent.name, is_host=agent.is_host) if known else None,
            freed=life[0],
            allocated=life[1],
            possible=self._possible,
            fix=fix.fences(
                Element(epoch - 1, agent),
                op,
                what,
                reads=is_read,
                assume_stream_order=self._assume_stream_order,
                stream_knows=int(issue.writes[lane]) >= epoch,
                informed=self._clocks.informed(lane, epoch, but=what.by),
            ),
        )

    def site(self, op: int, name: str, *, is_host: bool) -> Site:
        """An earlier access; of one that is no longer remembered, the agent that performed it is still known."""
        words = self._words.get(op)
        if words is None:
            return Site(op, None, None if is_host else name, name if is_host else None)
        return Site(op, *words)

    def _site(self, op: int) -> Site:
        """The op at hand, or one of which nothing need be known."""
        return Site(op, *(self._words.get(op) or ()))

    def _between(self, pool: str, found: Ids, earlier: Ids) -> tuple[Ids, Ids]:
        """The free and the alloc after each block's `earlier` op, if it was reused since; else -1 and -1."""
        freed, allocated = self._lives[pool].between(found)
        reused = freed > earlier
        return np.where(reused, freed, -1), np.where(reused, allocated, -1)

    def _life(self, pool: str, blocks: Blocks, freed: int, allocated: int) -> tuple[int | None, int | None]:
        """The two ops as a report has them. Blocks that were freed once more since have lost their alloc: only the log
        of the latest allocs can say.
        """
        if freed >= 0 > allocated:
            later = (
                op for op, where, handed in self._allocs if where == pool and op > freed and blocks.end - 1 in handed
            )
            allocated = next(later, -1)
        return freed if freed >= 0 else None, allocated if allocated >= 0 else None

    def batch(self, op: int, reads: Mapping[str, Blocks], writes: Mapping[str, Blocks]) -> list[Hazard]:
        """Blocks that a batched copy writes twice, or also reads."""
        out = []
        for pool, blocks in writes.items():
            clash: Ids = np.empty(0, np.int64)
            if blocks.repeats:
                found, counts = np.unique(ids(blocks), return_counts=True)
                clash = found[counts > 1]
            if pool in reads:
                clash = np.union1d(clash, np.intersect1d(ids(blocks), ids(reads[pool])))
            if clash.size:
                clash = self._first_apart(Kind.BATCH, pool, clash)
            if clash.size:
                at, where = runs_of(clash), self._site(op)
                out.append(Hazard(Kind.BATCH, pool, at, where, where, fix=fix.split(pool, at)))
        return out

    def generations(self, op: int, planned: int, touched: Iterable[tuple[str, Index]]) -> list[Hazard]:
        """Blocks that were freed and allocated again since the access was planned."""
        stale: dict[str, list[Ids]] = {}
        for pool, at in touched:
            found = self._lives[pool].reborn_since(planned, at)
            if found is not None:
                stale.setdefault(pool, []).append(found)
        out = []
        for pool, parts in stale.items():
            fresh = self._first_apart(Kind.GEN, pool, np.unique(np.concatenate(parts)))
            freed, allocated = self._between(pool, fresh, np.full(len(fresh), planned))
            for stamps, blocks in groups(fresh, freed, allocated):
                plan, mend = self._site(planned), fix.pin(pool, blocks)
                life = self._life(pool, blocks, *stamps)
                out.append(Hazard(Kind.GEN, pool, blocks, plan, self._site(op), None, *life, fix=mend))
        return out

    def _first_apart(self, kind: Kind, pool: str, found: Ids) -> Ids:
        """Those of `found` that have not shown this kind before; all of them if every op is asked for."""
        if not found.size or self._every:
            return found
        marks = self._shown.get((kind, pool))
        if marks is None:
            marks = self._shown[(kind, pool)] = Marks(self._lives[pool].size)
        fresh: Ids = found[marks.fresh(found)]
        marks.mark(fresh)
        return fresh

    def note_lifetimes(self, op: int, touched: Iterable[tuple[str, Index]]) -> None:
        """Notes the blocks that are free at the moment."""
        for pool, at in touched:
            found = self._lives[pool].free_blocks(at)
            if found is None:
                continue
            found = np.unique(found)
            for (freed,), blocks in groups(found, self._lives[pool].freed_at(found)):
                note = LifetimeNote(pool, blocks, self._site(op), freed)
                if note not in self.notes[-4:]:
                    self.notes.append(note)

    def nbytes(self) -> int:
        """Bytes of the marks of blocks that were reported."""
        edges = (marks for found in self._edges.values() for marks in found.values())
        return sum(marks.nbytes() for marks in (*self._raced.values(), *self._shown.values(), *edges))


def groups(found: Ids, *keys: Ids) -> Iterator[tuple[tuple[int, ...], Blocks]]:
    """The blocks that agree in all keys, as runs; largest key first."""
    if not found.size:
        return
    table = np.stack(keys, axis=1)
    order = np.lexsort((found, *(-key for key in reversed(keys))))
    table, found = table[order], found[order]
    starts = np.flatnonzero(np.concatenate(([True], (table[1:] != table[:-1]).any(axis=1))))
    for start, end in zip(starts, [*starts[1:], len(found)], strict=True):
        yield tuple(table[start].tolist()), runs_of(found[start:end])
