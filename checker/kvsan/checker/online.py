"""The online checker: takes the ops of an engine one by one and returns the hazards that each completes.

Exact for the ops that it is given: a block is reported at the first op that has an unordered conflicting access to it
before it, with every kind that holds there and for each the latest such access. `BATCH` and `GEN` need no order and
are found beside that, each at its first op for a block. Later races of a block that has raced are left to `pairs.py`.

Memory: the columns of `shadow.py` and `lives.py`, the vectors of `clocks.py`, and for words alone (labels, steps,
sites) the latest `PROVENANCE` accesses. Whatever is bounded there can lose a word of a report and never a report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsan.checker import fix
from kvsan.checker.advice import Advice, HandOrder
from kvsan.checker.clocks import Clocks, Effect, Issue
from kvsan.checker.index import Ids, Index, ids, index, runs_of
from kvsan.checker.lives import Lives
from kvsan.checker.recent import Recent
from kvsan.checker.shadow import Found, Shadow
from kvsan.model.hazard import Hazard, Kind, Site
from kvsan.model.ops import (
    Access,
    Alloc,
    Blocks,
    Drop,
    Free,
    Get,
    Op,
    Poll,
    Put,
    Record,
    Stream,
    Sync,
    Touch,
    Wait,
)
from kvsan.model.order import Element

PROVENANCE = 1 << 15
LIVES_REMEMBERED = 1 << 12

_Provenance = tuple[str | None, str | None, str | None, Any, Any, str | None]


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


class Online:
    """`feed` takes op number `op` (from 0, growing) and returns the hazards that it completes.

    `possible` marks every hazard as only possible (edges went unseen); `every` reports BATCH and GEN at each op, not
    only at a block's first.
    """

    def __init__(
        self,
        pools: Mapping[str, int],
        streams: Mapping[str, Stream] | None = None,
        *,
        attached: bool = False,
        assume_stream_order: bool = False,
        lifetime: bool = False,
        possible: bool = False,
        every: bool = False,
    ) -> None:
        self.clocks = Clocks(streams, assume_stream_order=assume_stream_order)
        self.advice = Advice()
        self.notes: list[LifetimeNote] = []
        self.shadows = {pool: Shadow(size) for pool, size in pools.items()}
        self.lives = {pool: Lives(size) for pool, size in pools.items()}
        self._apart: dict[tuple[Kind, str], Lives] = {}  # first BATCH and first GEN of a block, beside its first race
        self._pools = dict(pools)
        self._hands = HandOrder(self.advice)
        self._attached = attached
        self._assume_stream_order = assume_stream_order
        self._lifetime = lifetime
        self._possible = possible
        self._every = every
        self._words: Recent[int, _Provenance] = Recent(PROVENANCE)
        self._allocs: deque[tuple[int, str, Blocks]] = deque(maxlen=LIVES_REMEMBERED)
        self._rules: dict[type, Callable[[int, Any], list[Hazard] | None]] = {
            Access: self._access,
            Record: self._record,
            Wait: self._wait,
            Sync: self._sync,
            Poll: self._poll,
            Put: self._put,
            Get: self._get,
            Drop: self._drop,
            Alloc: self._alloc,
            Free: self._free,
            Touch: self._touch,
        }

    def feed(self, op: int, what: Op) -> list[Hazard]:
        """Raises nothing for any legal op; blocks must be within their pool (the reader sees to it)."""
        return self._rules[type(what)](op, what) or []

    def add_pool(self, name: str, size: int) -> None:
        """A pool that appears while the engine runs."""
        self._pools[name] = size
        self.shadows[name] = Shadow(size)
        self.lives[name] = Lives(size)

    # ── accesses ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _access(self, op: int, what: Access) -> list[Hazard] | None:
        if what.on is not None:
            self._hands.stream(op, what.by, what.on, changes=True)
        epoch = op + 1
        issue = self.clocks.access(epoch, what)
        reads = [(pool, index(blocks)) for pool, blocks in what.reads.items()]
        writes = [(pool, index(blocks)) for pool, blocks in what.writes.items()]
        found: list[tuple[Kind, str, Found]] = []
        for pool, at in reads:
            racing = self.shadows[pool].unordered_writes(at, issue.reads)
            if racing:
                found.append((Kind.RAW, pool, racing))
        for pool, at in writes:
            shadow = self.shadows[pool]
            racing = shadow.unordered_reads(at, issue.writes)
            if racing:
                found.append((Kind.WAR, pool, racing))
            racing = shadow.unordered_writes(at, issue.writes)
            if racing:
                found.append((Kind.WAW, pool, racing))
        hazards = self._first_races(op, what, issue, found) if found else []
        if what.batch:
            hazards += self._batch(op, what)
        if what.planned is not None:
            hazards += self._generations(op, what, what.planned, (*reads, *writes))
        if self._lifetime:
            self._note_lifetimes(op, what, (*reads, *writes))
        for pool, at in reads:
            self.shadows[pool].note_read(at, issue.read_lane, epoch)
        for pool, at in writes:
            self.shadows[pool].note_write(at, issue.write_lane, epoch)
        self._words[op] = (what.label, what.on, what.by, what.step, what.owner, what.site)
        return hazards

    def _first_races(self, op: int, what: Access, issue: Issue, found: list[tuple[Kind, str, Found]]) -> list[Hazard]:
        hazards: list[Hazard] = []
        for kind, pool, racing in found:
            fresh = self.lives[pool].first_race(racing.ids)
            if fresh.any():
                hazards += self._report(op, what, issue, kind, pool, Found(*(column[fresh] for column in racing)))
        for _, pool, racing in found:
            self.lives[pool].mark_raced(racing.ids)
        return hazards

    def _report(self, op: int, what: Access, issue: Issue, kind: Kind, pool: str, racing: Found) -> Iterable[Hazard]:
        """One hazard for the blocks that share the earlier access and the life between."""
        groups: dict[tuple[int, int, int | None, int | None], list[int]] = {}
        for block, epoch, lane in zip(*(column.tolist() for column in racing), strict=True):
            freed, allocated = self._between(pool, block, epoch - 1)
            groups.setdefault((epoch, lane, freed, allocated), []).append(block)
        for (epoch, lane, freed, allocated), blocks in sorted(groups.items(), key=lambda group: -group[0][0]):
            yield self._hazard(op, what, issue, kind, pool, runs_of(_ids(blocks)), epoch, lane, freed, allocated)

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
        freed: int | None,
        allocated: int | None,
    ) -> Hazard:
        agent = self.clocks.agents[lane]
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
            later=_site(op, what),
            known=self.site(known - 1, agent.name, is_host=agent.is_host) if known else None,
            freed=freed,
            allocated=allocated,
            possible=self._possible,
            fix=fix.fences(
                Element(epoch - 1, agent),
                op,
                what,
                reads=is_read,
                assume_stream_order=self._assume_stream_order,
                stream_knows=int(issue.writes[lane]) >= epoch,
                informed=self.clocks.informed(lane, epoch, but=what.by),
            ),
        )

    def site(self, op: int, name: str, *, is_host: bool) -> Site:
        """An earlier access; of one that is no longer remembered, the agent that performed it is still known."""
        words = self._words.get(op)
        if words is None:
            return Site(op, None, None if is_host else name, name if is_host else None)
        return Site(op, *words)

    def _between(self, pool: str, block: int, earlier: int) -> tuple[int | None, int | None]:
        freed, allocated = self.lives[pool].between(block)
        if freed is None or freed <= earlier:
            return None, None
        if allocated is None:  # freed again since: only the log of latest allocs can say
            for number, where, blocks in reversed(self._allocs):
                if where == pool and number > freed and block in blocks:
                    return freed, number
        return freed, allocated

    def _batch(self, op: int, what: Access) -> list[Hazard]:
        out = []
        for pool, blocks in what.writes.items():
            clash: Ids = np.empty(0, np.int64)
            if blocks.repeats:
                found, counts = np.unique(ids(blocks), return_counts=True)
                clash = found[counts > 1]
            if pool in what.reads:
                clash = np.union1d(clash, np.intersect1d(ids(blocks), ids(what.reads[pool])))
            clash = self._first_apart(Kind.BATCH, pool, clash)
            if clash.size:
                at, where = runs_of(clash), _site(op, what)
                out.append(Hazard(Kind.BATCH, pool, at, where, where, fix=fix.split(pool, at)))
        return out

    def _generations(self, op: int, what: Access, planned: int, touched: Iterable[tuple[str, Index]]) -> list[Hazard]:
        stale: dict[str, list[Ids]] = {}
        for pool, at in touched:
            found = self.lives[pool].reborn_since(planned, at)
            if found is not None:
                stale.setdefault(pool, []).append(found)
        out = []
        for pool, parts in stale.items():
            fresh = self._first_apart(Kind.GEN, pool, np.unique(np.concatenate(parts)))
            groups: dict[tuple[int | None, int | None], list[int]] = {}
            for block in fresh.tolist():
                groups.setdefault(self._between(pool, block, planned), []).append(block)
            for (freed, allocated), blocks in groups.items():
                stale_ids, where = runs_of(_ids(blocks)), _site(op, what)
                plan = Site(planned, what.label, what.on, what.by)
                mend = fix.pin(pool, stale_ids)
                out.append(Hazard(Kind.GEN, pool, stale_ids, plan, where, None, freed, allocated, fix=mend))
        return out

    def _first_apart(self, kind: Kind, pool: str, found: Ids) -> Ids:
        """Those of `found` that have not shown this kind before; all of them if every op is asked for."""
        if not found.size or self._every:
            return found
        marks = self._apart.get((kind, pool))
        if marks is None:
            marks = self._apart[(kind, pool)] = Lives(self._pools[pool])
        fresh: Ids = found[marks.first_race(found)]
        marks.mark_raced(fresh)
        return fresh

    def _note_lifetimes(self, op: int, what: Access, touched: Iterable[tuple[str, Index]]) -> None:
        for pool, at in touched:
            found = self.lives[pool].free_blocks(at)
            if found is None:
                continue
            groups: dict[int, list[int]] = {}
            for block in np.unique(found).tolist():
                groups.setdefault(self.lives[pool].freed_at(block), []).append(block)
            for freed, blocks in groups.items():
                note = LifetimeNote(pool, runs_of(_ids(blocks)), _site(op, what), freed)
                if note not in self.notes[-4:]:
                    self.notes.append(note)

    # ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _record(self, op: int, what: Record) -> None:
        self._hands.stream(op, what.by, what.on, changes=True)
        self._hands.event(op, what.by, what.event, changes=True)
        self.clocks.record(op, what.by, what.on, what.event)

    def _wait(self, op: int, what: Wait) -> None:
        self._hands.stream(op, what.by, what.on, changes=True)
        self._hands.event(op, what.by, what.event, changes=False)
        effect = self.clocks.wait(what.by, what.on, what.event)
        if effect is Effect.ORDERED:
            return
        on, by, event = what.on, what.by, what.event
        if effect is Effect.UNRECORDED:
            self._unrecorded(op, "wait", on=on, by=by, event=event)
        elif effect is Effect.OWN_STREAM:
            self.advice.warn(op, "own-stream", (on, by), on=on, by=by, event=event)
        else:
            source = self.clocks.agents[self.clocks.events[event].lane].name
            self.advice.warn(op, "redundant-wait", (on, by, source), on=on, by=by, event=event, recorded_on=source)

    def _sync(self, op: int, what: Sync) -> None:
        if what.event is not None:
            self._observe(op, "sync", what.by, what.event)
        elif what.stream is not None:
            self._hands.stream(op, what.by, what.stream, changes=False)
            self.clocks.observe_stream(what.by, what.stream)
        else:
            self.clocks.observe_device(what.by, what.device)

    def _poll(self, op: int, what: Poll) -> None:
        if what.done:
            self._observe(op, "poll", what.by, what.event)
        else:
            self._hands.event(op, what.by, what.event, changes=False)

    def _observe(self, op: int, call: str, by: str, event: str) -> None:
        self._hands.event(op, by, event, changes=False)
        if not self.clocks.observe_event(by, event):
            self._unrecorded(op, call, by=by, event=event)

    def _unrecorded(self, op: int, call: str, **where: str) -> None:
        if not self._attached:
            self.advice.warn(op, "never-recorded", (call, where.get("on", ""), where["by"]), call=call, **where)

    def _put(self, op: int, what: Put) -> None:
        self._hands.put(what.by, what.token)
        self.clocks.put(what.by, what.token)

    def _get(self, op: int, what: Get) -> None:
        self._hands.get(what.by, what.token)
        self.clocks.get(what.by, what.token)

    def _drop(self, op: int, what: Drop) -> None:
        self._hands.forget(what.event)
        self.clocks.drop(what.event)

    # ── lives ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _alloc(self, op: int, what: Alloc) -> None:
        self.lives[what.pool].alloc(op, index(what.blocks))
        self._allocs.append((op, what.pool, what.blocks))

    def _free(self, op: int, what: Free) -> None:
        self.lives[what.pool].free(op, index(what.blocks))

    def _touch(self, op: int, what: Touch) -> None:
        self.lives[what.pool].touch(op, index(what.blocks))

    # ── sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def touched(self) -> dict[str, dict[str, int]]:
        """For each pool its number of blocks and how many of them were accessed."""
        return {pool: {"blocks": shadow.size, "touched": shadow.touched()} for pool, shadow in self.shadows.items()}

    def nbytes(self) -> int:
        """Bytes of per-block state, over all pools."""
        lives = (*self.lives.values(), *self._apart.values())
        return sum(shadow.nbytes() for shadow in self.shadows.values()) + sum(life.nbytes() for life in lives)


def _site(op: int, what: Access) -> Site:
    return Site(op, what.label, what.on, what.by, what.step, what.owner, what.site)


def _ids(blocks: list[int]) -> Ids:
    return np.array(blocks, np.int64)
