"""Stores and loads: which host block goes with which device block, from the plan to the end of the copy.

A store is planned for a full block whose content the host pool lacks, eagerly (each full block) or lazily (near the
head of the free queue, soon handed out again). A load is planned when a request's prefix is in the host pool. Both
pools follow a design: the device's says what a copy waits for, the host pool's what may be read, written and evicted
when. A design that stores in the forward's own step leaves no full block for the next: if the host pool is full the
host waits for one of its transfers. A load may go through slots of a staging pool, which the host fills, if a third
design says how.

A copy that the device refuses stays planned, and the next step issues it again; `refused` counts in a row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvsan.model.design import Work
from kvsan.runtime.cells import Cells
from kvsan.runtime.device import Copy, DeviceError, Host, Ids, Kernel
from kvsan.runtime.issue import Face
from kvsan.runtime.pool import Pool
from kvsan.runtime.roles import Roles


class Transfers:
    """Between the device's pool and the host's. `memory`: the tensors of the pools by name, (layers, blocks, …)."""

    def __init__(
        self,
        gpu: Pool,
        gpu_roles: Roles,
        host: Pool,
        host_roles: Roles,
        staging: Pool | None,
        staging_roles: Roles | None,
        memory: dict[str, Any],
    ) -> None:
        self.gpu, self.host, self.staging = gpu, host, staging
        self.gpu_roles, self.host_roles, self.staging_roles = gpu_roles, host_roles, staging_roles
        self.memory = memory
        self.loads = self.stores = self.loaded_blocks = self.stored_blocks = self.refused = self.host_full = 0
        self.why = ""
        self.candidates: OrderedDict[int, int] = OrderedDict()
        self._sources: dict[int, int] = {}
        self._targets: dict[int, int] = {}
        self._digests: dict[int, int | None] = {}
        self._on_the_way: set[int] = set()
        self._published: OrderedDict[int, None] = OrderedDict()
        self._slots: dict[int, int] = {}
        self._tried: dict[int, int] = {}
        self._nameless: dict[int, int] = {}

    # ── stores ────────────────────────────────────────────────────────────────────────────────────────────────────

    def offer(self, block: int, digest: int) -> None:
        """The device's block is full and holds this; it may be stored, or was, by the design's own accord."""
        target = self._nameless.pop(block, None)
        if target is None:
            self.candidates[block] = digest
        elif not self.has(digest):
            if target in self._digests:
                self._digests[target] = digest
                self._on_the_way.add(digest)
            else:
                self.host.remember(target, digest)

    def plan_stores(self) -> None:
        """Plans the stores that the device's design allows now, as far as the host pool has room."""
        rule = self.gpu_roles.rules.get("store")
        if rule is None or self.gpu_roles.store is None:
            self.candidates.clear()
            return
        for block, digest in list(self.candidates.items()):
            if self.gpu.hashes[block] != digest or self.has(digest):
                del self.candidates[block]
        if not self.candidates:
            return
        cells = self.gpu.cells
        blocks = cells.enabled(rule, np.fromiter(self.candidates, np.int64, len(self.candidates)))
        targets = self._room(len(blocks))
        self.host_full += len(blocks) - len(targets)
        blocks = blocks[: len(targets)]
        for block, target in zip(blocks.tolist(), targets, strict=True):
            self._aim(block, target, self.candidates.pop(block))
        if len(blocks):
            cells.force(rule, blocks)

    def plan_lazily(self, near: int) -> None:
        """Stores blocks among the next `near` to be handed out: taken back, stored, and left again. Each content once:
        where the host pool holds less than the device's, one store would evict what the last one brought."""
        hit, store, leave = (self.gpu_roles.name(*role) for role in (("hit",), ("store",), ("finish", "keep")))
        if hit is None or store is None or leave is None:
            return
        for block, _ in zip(list(self.gpu.queue), range(near), strict=False):
            digest = self.gpu.hashes[block]
            if digest is None or self.has(digest) or self._tried.get(block) == self.gpu.generations[block]:
                continue
            at = np.array([block], np.int64)
            cells = self.gpu.cells
            back = cells.rules[hit]
            storable = cells.when(cells.rules[store])[cells.table.after(back.then)[cells.code[at]]]
            if not storable.all() or not len(cells.enabled(back, at)):  # one may be under way, if it holds no reference
                continue
            room = self._room(1)
            if not room:
                self.host_full += 1
                return
            cells.apply(hit, at)
            self._tried[block] = self.gpu.generations[block]
            self._aim(block, room[0], digest)
            if not len(cells.apply(store, at)):
                self._targets.pop(block)
            cells.apply(leave, at)

    def warm(self, host: Host, contents: Mapping[int, Any]) -> None:
        """Puts content in the host pool, as a store or a peer would have: prefix hash → (layers, block size, words). As
        far as there is room, and before the first step."""
        reserve, store = self.host_roles.rules["reserve"].name, self.host_roles.store
        assert store is not None
        chosen = dict(list(contents.items())[: len(self.host.queue)])
        blocks = self.host.take(reserve, len(chosen))
        if not blocks:
            return
        at, memory = np.array(blocks, np.int64), self.memory[self.host.name]

        def part() -> None:
            for block, content in zip(blocks, chosen.values(), strict=True):
                memory[:, block] = content

        host.work(Kernel("warm", {}, {self.host.name: at}, (part,)))
        self.host.cells.set(at, self.host.cells.table.after(store.then))
        self._digests.update(zip(blocks, chosen, strict=True))
        self.settle()

    def has(self, digest: int) -> bool:
        """Whether the host pool has this content or a store of it is under way."""
        return digest in self._on_the_way or self.host.holding(digest) is not None

    def _aim(self, block: int, target: int, digest: int | None) -> None:
        self._targets[block] = target
        self._digests[target] = digest
        if digest is not None:
            self._on_the_way.add(digest)

    def _room(self, count: int) -> list[int]:
        """So many host blocks for stores, or as many as there are: free ones, then those longest unread, whose
        content is lost.
        """
        cells, evict = self.host.cells, self.host_roles.rules["evict"]
        if len(self.host.queue) < count and self._published:
            idle = cells.allowed(evict, np.fromiter(self._published, np.int64, len(self._published)))
            gone = set(cells.apply(evict.name, idle[: count - len(self.host.queue)]).tolist())
            for block in gone:
                self.host.forget(block)
                del self._published[block]
            self._nameless = {one: target for one, target in self._nameless.items() if target not in gone}
        return self.host.take(self.host_roles.rules["reserve"].name, min(count, len(self.host.queue))) or []

    def _awaited(self) -> list[int]:
        """A host block for a store, if need be one that some transfer under way still uses: the host waits for it."""
        cells = self.host.cells
        for event in cells.transfers:
            cells.host.sync(event)
            cells.known(event)
            self._settle(self.host, self.host_roles)
            self._publish()
            if room := self._room(1):
                return room
        return []

    # ── loads ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def loadable(self, digest: int) -> int | None:
        """The host block with this content, if a load may read it now."""
        block = self.host.holding(digest)
        if block is None:
            return None
        at = np.array([block], np.int64)
        return block if len(self.host.cells.allowed(self.host_roles.rules["read"], at)) else None

    def plan_load(self, sources: Sequence[int]) -> list[int] | None:
        """Device blocks for loads of these host blocks; None, and nothing, if there are not so many."""
        rule = self.gpu_roles.name("load")
        assert rule is not None
        blocks = self.gpu.take(rule, len(sources))
        if blocks is None:
            return None
        read = self.host_roles.rules["read"].name
        assert len(self.host.cells.apply(read, sources)) == len(sources)
        for block, source in zip(blocks, sources, strict=True):
            self._sources[block] = source
            if source in self._published:
                self._published.move_to_end(source)
        return blocks

    # ── what happens by itself ────────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> bool:
        """Applies what ends a transfer or a free, in all pools, until nothing more holds. Returns whether anything
        did."""
        some = False
        for pool, roles in self.pools:
            some |= self._settle(pool, roles)
        self._publish()
        return some

    def _settle(self, pool: Pool, roles: Roles) -> bool:
        some = False
        for rule in roles.settles:
            here = pool.cells.where(pool.cells.when(rule))
            some |= bool(len(here)) and bool(len(pool.cells.apply(rule.name, here)))
        return some

    def _publish(self) -> None:
        """Host blocks whose store has ended can be found by what they hold."""
        for target in [one for one in self._digests if self._is_published(one)]:
            digest = self._digests.pop(target)
            self._published[target] = None
            if digest is not None:
                self._on_the_way.discard(digest)
                self.host.remember(target, digest)

    def _is_published(self, block: int) -> bool:
        evict = self.host_roles.rules["evict"]
        return bool(self.host.cells.when(evict)[self.host.cells.code[block]])

    @property
    def pools(self) -> list[tuple[Pool, Roles]]:
        """Every pool with its roles."""
        out = [(self.gpu, self.gpu_roles), (self.host, self.host_roles)]
        if self.staging is not None and self.staging_roles is not None:
            out.append((self.staging, self.staging_roles))
        return out

    @property
    def busy(self) -> bool:
        """Whether a transfer is planned or under way, as far as the host knows."""
        under_way = any(pool.cells.transfers for pool, _ in self.pools)
        return bool(self._sources or self._targets or self._digests or under_way)

    # ── what a step issues ────────────────────────────────────────────────────────────────────────────────────────

    def faces(self, work: Work, blocks: Ids) -> list[Face]:
        """The sides of a load or a store of those of the blocks that have a partner."""
        if work == self.gpu_roles.load:
            return self._load_faces(work, [block for block in blocks.tolist() if block in self._sources])
        mine: list[int] = []
        lacking = 0
        for block in blocks.tolist():
            if block not in self._targets:  # the design stores it of its own accord, and in this step
                room = self._room(1) or ([] if mine else self._awaited())
                if not room:
                    lacking += 1  # behind those that there is room for it is asked again
                    continue
                self._aim(block, room[0], None)
                self._nameless[block] = room[0]
            mine.append(block)
        if not mine:
            self.host_full += lacking
            return []
        store = self.host_roles.store
        assert store is not None
        return [_face(self.gpu.cells, work, mine), _face(self.host.cells, store, [self._targets[b] for b in mine])]

    def _load_faces(self, work: Work, blocks: list[int]) -> list[Face]:
        if self.staging is None or self.staging_roles is None:
            if not blocks:
                return []
            load = self.host_roles.load
            assert load is not None
            return [
                _face(self.gpu.cells, work, blocks),
                _face(self.host.cells, load, [self._sources[b] for b in blocks]),
            ]
        fresh = [block for block in blocks if block not in self._slots][: len(self.staging.queue)]
        taken = self.staging.take(self.staging_roles.rules["slot"].name, len(fresh))
        self._slots.update(zip(fresh, taken or (), strict=True))
        blocks = [block for block in blocks if block in self._slots]
        if not blocks:
            return []
        slots = [self._slots[block] for block in blocks]
        out, read = self.staging_roles.load, self.host_roles.load
        assert out is not None
        assert read is not None
        return [
            _face(self.gpu.cells, work, blocks),
            _face(self.staging.cells, out, slots),
            _face(self.host.cells, read, [self._sources[b] for b in blocks]),
        ]

    def run(self, host: Host, work: Work, faces: Sequence[Face], step: int) -> None:
        """Issues the copy. Raises `DeviceError` if the device refuses it."""
        mine, other = faces[0], faces[1]
        assert work.on is not None
        load = work == self.gpu_roles.load
        if load and len(faces) == 3:
            self._fill(host, other, faces[2], step)
        source, target = (other, mine) if load else (mine, other)
        copy = Copy(
            work.name,
            source.cells.pool,
            source.blocks,
            target.cells.pool,
            target.blocks,
            order=source.work.order,
            step=step,
        )
        try:
            host.copy(work.on, copy)
        except DeviceError as error:
            self.refused, self.why = self.refused + 1, str(error)
            raise
        self.refused = 0
        partners = self._sources if load else self._targets
        for block in mine.blocks.tolist():
            partners.pop(block)
            self._slots.pop(block, None)
        if load:
            self.loads, self.loaded_blocks = self.loads + 1, self.loaded_blocks + len(mine.blocks)
        else:
            self.stores, self.stored_blocks = self.stores + 1, self.stored_blocks + len(mine.blocks)

    def _fill(self, host: Host, slots: Face, sources: Face, step: int) -> None:
        """The host copies host blocks in the slots that the load then reads."""
        assert self.staging_roles is not None
        fill = self.staging_roles.fill
        assert fill is not None
        into, out_of = self.memory[slots.cells.pool], self.memory[sources.cells.pool]
        empty = slots.cells.table.due(fill)[slots.cells.code[slots.blocks]]  # not filled by a try that was refused
        at, of = slots.blocks[empty], sources.blocks[empty]

        def part() -> None:
            into[:, at] = out_of[:, of]

        host.work(Kernel(fill.name, {sources.cells.pool: of}, {slots.cells.pool: at}, (part,), step))
        slots.cells.set(at, slots.cells.table.after(fill.then))


def _face(cells: Cells, work: Work, blocks: Sequence[int]) -> Face:
    return Face(cells, work, np.fromiter(blocks, np.int64, len(blocks)))
