"""The lives of a pool's blocks in two columns: `kvsan.model.hazard.Life`, vectorised. 8 B a block.

`since` packs the stamp of the latest alloc, touch or free with what it was; `reborn` is the stamp of the free that
the latest alloc ended. Stamps are op numbers plus one in 30 bits; after a billion ops they are moved down, and what
is older than half a billion ops becomes "never": a transfer planned so long ago is no longer checked for its
generation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsan.checker.index import Ids, Index, look, where

LIVE, FREE, TOUCHED = 0, 1, 2
LIMIT = (1 << 30) - 1


class Lives:
    """One pool of `size` blocks; the columns are made at the first alloc, free or touch."""

    __slots__ = ("_base", "_freed", "_limit", "_reborn", "_since", "size")

    def __init__(self, size: int, limit: int = LIMIT) -> None:
        self.size = size
        self._limit = limit
        self._base = 0
        self._freed = -1  # the latest op that freed anything
        self._since: npt.NDArray[np.uint32] | None = None
        self._reborn: npt.NDArray[np.uint32] = np.empty(0, np.uint32)

    def alloc(self, op: int, at: Index) -> None:
        stamp = self._stamp(op)
        since = self._columns()
        for part in at:
            before = since[part]
            ended = (before & 3) == FREE
            freed = before >> 2
            if np.count_nonzero(ended) < len(ended):
                freed = np.where(ended, freed, self._reborn[part])
            self._reborn[part] = freed
            since[part] = stamp << 2 | LIVE

    def free(self, op: int, at: Index) -> None:
        self._freed = op
        self._set(op, at, FREE)

    def touch(self, op: int, at: Index) -> None:
        self._set(op, at, TOUCHED)

    def reborn_since(self, op: int, at: Index) -> Ids | None:
        """Blocks freed and then allocated again, both after op `op`."""
        if self._freed <= op:
            return None
        mark = op + 1 - self._base
        bad = look(self._reborn, at) > mark
        return where(at, bad) if np.count_nonzero(bad) else None

    def between(self, found: Ids) -> tuple[Ids, Ids]:
        """For each block the op of the free that its latest alloc ended, and the op of that alloc; -1 if not known."""
        if self._since is None:
            never = np.full(len(found), -1, np.int64)
            return never, never
        reborn, since = self._reborn[found].astype(np.int64), self._since[found].astype(np.int64)
        freed = np.where(reborn > 0, reborn - 1 + self._base, -1)
        allocated = np.where((reborn > 0) & (since & 3 == LIVE), (since >> 2) - 1 + self._base, -1)
        return freed, allocated

    def free_blocks(self, at: Index) -> Ids | None:
        """Those that are free now."""
        if self._since is None:
            return None
        bad = (look(self._since, at) & 3) == FREE
        return where(at, bad) if np.count_nonzero(bad) else None

    def freed_at(self, found: Ids) -> Ids:
        """The op that freed each of some free blocks."""
        out: Ids = (self._columns()[found].astype(np.int64) >> 2) - 1 + self._base
        return out

    def copy(self) -> Lives:
        other = Lives(self.size, self._limit)
        other._base, other._freed = self._base, self._freed
        if self._since is not None:
            other._since, other._reborn = self._since.copy(), self._reborn.copy()
        return other

    def stamps(self) -> tuple[Ids, Ids, Ids] | None:
        """For each block the stamp of its latest alloc, free or touch, which of them it was, and the stamp of the
        free that its latest alloc ended. `None` if nothing was ever said of the pool.
        """
        if self._since is None:
            return None
        since = self._since.astype(np.int64)
        reborn = self._reborn.astype(np.int64)
        base = self._base
        return (
            np.where(since > 3, (since >> 2) + base, 0),
            since & 3,
            np.where(reborn > 0, reborn + base, 0),
        )

    def nbytes(self) -> int:
        columns = (self._since, self._reborn)
        return sum(column.nbytes for column in columns if column is not None)

    def _columns(self) -> npt.NDArray[np.uint32]:
        if self._since is None:
            self._since = np.zeros(self.size, np.uint32)
            self._reborn = np.zeros(self.size, np.uint32)
        return self._since

    def _set(self, op: int, at: Index, state: int) -> None:
        word = self._stamp(op) << 2 | state
        since = self._columns()
        for part in at:
            since[part] = word

    def _stamp(self, op: int) -> int:
        while op + 1 - self._base > self._limit:
            shift = self._limit // 2
            self._base += shift
            since = self._columns().astype(np.int64)
            self._reborn[:] = np.maximum(self._reborn.astype(np.int64) - shift, 0)
            self._columns()[:] = np.maximum((since >> 2) - shift, 0) << 2 | since & 3
        return op + 1 - self._base


class Marks:
    """A set of blocks of one pool, one bit a block; nothing until the first is marked."""

    __slots__ = ("_bits", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._bits: npt.NDArray[np.uint8] | None = None

    def fresh(self, found: Ids) -> npt.NDArray[np.bool_]:
        """Which of the blocks are not marked."""
        if self._bits is None:
            return np.ones(len(found), np.bool_)
        fresh: npt.NDArray[np.bool_] = (self._bits[found >> 3] >> (found & 7).astype(np.uint8)) & 1 == 0
        return fresh

    def copy(self) -> Marks:
        other = Marks(self._size)
        other._bits = None if self._bits is None else self._bits.copy()
        return other

    def mark(self, found: Ids) -> None:
        if self._bits is None:
            self._bits = np.zeros((self._size + 7) // 8, np.uint8)
        np.bitwise_or.at(self._bits, found >> 3, np.left_shift(1, found & 7).astype(np.uint8))

    def clear(self, found: Ids) -> None:
        if self._bits is not None:
            np.bitwise_and.at(self._bits, found >> 3, np.invert(np.left_shift(1, found & 7).astype(np.uint8)))

    def nbytes(self) -> int:
        return 0 if self._bits is None else self._bits.nbytes
