"""The blocks of one pool as an engine keeps them: reference counts, prefix hashes, a least-recently-used free queue.

What a block *may* do is the design's (`cells.py`); here is who uses it and what it holds. A block that is free keeps
its content and its hash until it is handed out again, from the head of the queue, so that a later request with the
same prefix finds it (vLLM's block pool does so; facts in shared/research/serving-engines.md).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from kvsan.model.design import Design
from kvsan.runtime.cells import Cells
from kvsan.runtime.device import Host, Ids
from kvsan.runtime.flight import Flight


class Pool:
    """`generations[b]` counts how often block b was handed out with nothing in it. `refs[b]`: how many requests use
    it.
    """

    def __init__(self, design: Design, count: int, flight: Flight, host: Host, *, name: str | None = None) -> None:
        self.queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self.cells = Cells(design, count, flight, host, pool=name, on_free=self._freed, on_take=self._taken)
        self.refs: list[int] = [0] * count
        self.generations: list[int] = [0] * count
        self.hashes: list[int | None] = [None] * count
        self._by_hash: dict[int, int] = {}

    @property
    def name(self) -> str:
        return self.cells.pool

    def __len__(self) -> int:
        return len(self.refs)

    # ── handing out and taking back ───────────────────────────────────────────────────────────────────────────────

    def take(self, rule: str, count: int) -> list[int] | None:
        """Hands out that many blocks by the rule, the longest free first; None, and nothing, if there are not so many.
        Their hashes are forgotten."""
        if len(self.queue) < count:
            return None
        heads = [block for block, _ in zip(self.queue, range(count), strict=False)]
        got: list[int] = self.cells.apply(rule, heads).tolist()
        assert got == heads, f"{rule!r} did not hold of a free block of {self.name}"
        for block in got:
            self.generations[block] += 1
            self.forget(block)
        return got

    def leave(self, block: int) -> bool:
        """One user less; whether that was the last."""
        assert self.refs[block] > 0, f"block {block} of {self.name} has no user to lose"
        self.refs[block] -= 1
        return self.refs[block] == 0

    def _freed(self, blocks: Ids) -> None:
        for block in blocks.tolist():
            self.queue[block] = None

    def _taken(self, blocks: Ids) -> None:
        for block in blocks.tolist():
            del self.queue[block]

    # ── prefix hashes ─────────────────────────────────────────────────────────────────────────────────────────────

    def holding(self, digest: int) -> int | None:
        """The block with this content."""
        return self._by_hash.get(digest)

    def remember(self, block: int, digest: int) -> None:
        """The block now holds this content; a block that held it before keeps it, and this one is not found."""
        if digest not in self._by_hash:
            self._by_hash[digest] = block
            self.hashes[block] = digest

    def forget(self, block: int) -> None:
        """The block's content is nobody's."""
        digest = self.hashes[block]
        if digest is not None:
            self.hashes[block] = None
            del self._by_hash[digest]

    # ── what must hold ────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, users: Iterable[int] = ()) -> None:
        """The invariants; `users` are the blocks of all requests, one for each use. Raises `AssertionError`."""
        free = set(self.cells.free.tolist())
        assert free == set(self.queue), f"{self.name}: the free queue and the blocks' states differ"
        counted = np.bincount(np.fromiter(users, np.int64), minlength=len(self)).tolist()
        assert counted == self.refs, f"{self.name}: references leaked or lost"
        assert not any(self.refs[block] for block in free), f"{self.name}: a free block is in use"
        for digest, block in self._by_hash.items():
            assert self.hashes[block] == digest, f"{self.name}: block {block} is found by a hash that it has not"
