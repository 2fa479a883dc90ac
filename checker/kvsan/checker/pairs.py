"""Every unordered conflicting pair of a trace, exactly: by epochs per access, not by a closure.

`kvsan.model.order` is read with `Epochs`: at each access it gives, for every agent, the latest access of that agent
that is known to be complete. The accesses of an agent are ordered one after the other, so those of them to a block
that are *not* known are the tail of a list. Two columns an agent (its latest read and write of each block) say in one
numpy comparison which blocks have such a tail at all; only those are walked, so the cost is what is read plus what is
found.

Memory grows with what the trace holds: 8 bytes for each block of each access, plus the pairs. A pair that stays
unordered for the whole trace is found again at every later access; that is what `--all` asks for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsan.checker import fix
from kvsan.checker.index import index, look, where
from kvsan.checker.lives import Lives
from kvsan.model.hazard import Hazard, Kind, Site, conflict
from kvsan.model.ops import Access, Alloc, Blocks, Free, Op, Stream, Touch
from kvsan.model.order import Agent, Element, Epochs, Issued, Order

_Past = tuple[int, ...]


class _Mode(NamedTuple):
    """One side of a conflict: an agent's accesses of one pool, reads or writes."""

    agent: Agent
    writes: bool


class _History:
    """What one agent did to one pool in one mode: the latest epoch of each block, and all epochs of each block."""

    __slots__ = ("epochs", "last", "latest")

    def __init__(self, size: int) -> None:
        self.last: npt.NDArray[np.int64] = np.zeros(size, np.int64)
        self.latest = 0
        self.epochs: dict[int, array[int]] = defaultdict(lambda: array("q"))

    def note(self, blocks: Blocks, epoch: int) -> None:
        self.latest = epoch
        for part in index(blocks):
            self.last[part] = epoch
        epochs = self.epochs
        for lo, hi in blocks.runs:
            for block in range(lo, hi):
                tail = epochs[block]
                if not tail or tail[-1] != epoch:  # a batch may name a block twice
                    tail.append(epoch)


class _Key(NamedTuple):
    kind: Kind
    pool: str
    earlier: Element
    freed: int | None
    allocated: int | None


class Pairs:
    """Feed it the ops in order; each `feed` yields the hazards whose later access is that op."""

    def __init__(
        self,
        pools: Mapping[str, int],
        streams: Mapping[str, Stream] | None = None,
        *,
        assume_stream_order: bool = False,
        possible: bool = False,
    ) -> None:
        self._epochs = Epochs()
        self._order: Order[_Past] = Order(self._epochs, streams, assume_stream_order=assume_stream_order)
        self._assume_stream_order = assume_stream_order
        self._pools = pools
        self._possible = possible
        self._lives = {pool: Lives(size) for pool, size in pools.items()}
        self._allocs: dict[str, dict[int, array[int]]] = {pool: defaultdict(lambda: array("q")) for pool in pools}
        self._histories: dict[str, dict[_Mode, _History]] = {pool: {} for pool in pools}
        self._sites: dict[int, Site] = {}

    def feed(self, op: int, what: Op) -> Iterator[Hazard]:
        issued = self._order.issue(op, what)
        match what:
            case Access():
                assert issued is not None  # an access always is issued
                yield from self._check(op, what, issued)
                self._note(op, what, issued)
            case Alloc(pool=pool):
                self._lives[pool].alloc(op, index(what.blocks))
                for block in what.blocks:
                    self._allocs[pool][block].append(op)
            case Free():
                self._lives[what.pool].free(op, index(what.blocks))
            case Touch():
                self._lives[what.pool].touch(op, index(what.blocks))

    def _check(self, op: int, what: Access, issued: Issued[_Past]) -> Iterator[Hazard]:
        self._sites[op] = Site(op, what.label, what.on, what.by, what.step, what.owner, what.site)
        found: dict[_Key, list[int]] = {}
        for pool, blocks in what.reads.items():
            self._tails(found, pool, blocks, issued.reads, writes=False)
        for pool, blocks in what.writes.items():
            self._tails(found, pool, blocks, issued.writes, writes=True)
        for key, racing in found.items():
            yield self._hazard(op, what, issued, key, Blocks.of(sorted(set(racing))))

    def _tails(self, found: dict[_Key, list[int]], pool: str, blocks: Blocks, past: _Past, *, writes: bool) -> None:
        at = index(blocks)
        for mode, history in self._histories[pool].items():
            kind = conflict(mode.writes, writes)
            known = self._epochs.epoch(past, mode.agent)
            if kind is None or history.latest <= known:
                continue
            bad = look(history.last, at) > known
            if not np.count_nonzero(bad):
                continue
            for block in np.unique(where(at, bad)).tolist():
                tail = history.epochs[block]
                for epoch in tail[bisect_right(tail, known) :]:
                    life = self._between(pool, block, epoch - 1)
                    key = _Key(kind, pool, Element(epoch - 1, mode.agent), *life)
                    found.setdefault(key, []).append(block)

    def _note(self, op: int, what: Access, issued: Issued[_Past]) -> None:
        for agent, touched, writes in (
            (issued.read.agent, what.reads, False),
            (issued.write.agent, what.writes, True),
        ):
            mode = _Mode(agent, writes)
            for pool, blocks in touched.items():
                history = self._histories[pool].get(mode)
                if history is None:
                    history = self._histories[pool][mode] = _History(self._pools[pool])
                history.note(blocks, op + 1)

    def _between(self, pool: str, block: int, earlier: int) -> tuple[int | None, int | None]:
        freed, allocated = self._lives[pool].between(block)
        if freed is None or freed <= earlier:
            return None, None
        if allocated is None:
            allocs = self._allocs[pool][block]
            allocated = allocs[bisect_right(allocs, freed)]
        return freed, allocated

    def _hazard(self, op: int, what: Access, issued: Issued[_Past], key: _Key, blocks: Blocks) -> Hazard:
        is_read = key.kind is Kind.RAW
        agent = key.earlier.agent
        known = self._epochs.epoch(issued.reads if is_read else issued.writes, agent)
        informed = [
            host.name
            for host in self._order.hosts()
            if host.name != what.by and self._epochs.knows(self._order.past(host), key.earlier)
        ]
        return Hazard(
            kind=key.kind,
            pool=key.pool,
            blocks=blocks,
            earlier=self._sites[key.earlier.op],
            later=self._sites[op],
            known=self._sites[known - 1] if known else None,
            freed=key.freed,
            allocated=key.allocated,
            possible=self._possible,
            fix=fix.fences(
                key.earlier,
                op,
                what,
                reads=is_read,
                assume_stream_order=self._assume_stream_order,
                stream_knows=self._epochs.knows(issued.writes, key.earlier),
                informed=informed,
            ),
        )
