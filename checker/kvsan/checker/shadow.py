"""What is remembered of a pool's accesses: one packed write epoch a block, one column of read epochs an agent that
reads.

Rule: until a block's first race its writes are ordered one after the other, and every read lies between two of them.
So the last write stands for all writes, the last read of an agent for all its reads, and a later access that is
ordered behind those is ordered behind all. After a block's first race this is no longer so, which is why a block is
reported once (`pairs.py` has every pair). The argument is FastTrack's (Flanagan and Freund, PLDI 2009), a block at a
time in numpy.

A column is looked at only if its agent's latest access to the pool is unknown to the access at hand; where an engine
orders its streams well, nothing is gathered at all. Memory: 8 B a block, and 8 B a block for each agent that reads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsan.checker.clocks import Vector
from kvsan.checker.index import Ids, Index, look, where

SHIFT = 48
EPOCH = (1 << SHIFT) - 1
"""A packed epoch is the agent's lane above 48 bits of epoch: 2.8e14 ops."""


class Found(NamedTuple):
    """Blocks with an unordered earlier access: for each the epoch and the lane of that access (the latest one)."""

    ids: Ids
    epochs: Ids
    lanes: Ids


class Shadow:
    """One pool of `size` blocks."""

    __slots__ = ("_readers", "_writers", "read", "size", "write")

    def __init__(self, size: int) -> None:
        self.size = size
        self.write = np.zeros(size, np.int64)
        self.read: dict[int, npt.NDArray[np.int64]] = {}
        self._writers: dict[int, int] = {}  # lane -> its latest epoch in the pool
        self._readers: dict[int, int] = {}

    def unordered_writes(self, at: Index, past: Vector) -> Found | None:
        """Blocks whose last write `past` does not know."""
        unknown = _unknown(self._writers, past)
        if not unknown:
            return None
        packed = look(self.write, at)
        bad = _racing(packed, unknown, past)
        if not np.count_nonzero(bad):
            return None
        words = packed[bad]
        return Found(where(at, bad), words & EPOCH, words >> SHIFT)

    def unordered_reads(self, at: Index, past: Vector) -> Found | None:
        """Blocks with a last read of some agent that `past` does not know."""
        latest: Ids | None = None
        for lane in _unknown(self._readers, past):
            epochs = look(self.read[lane], at)
            bad = epochs > past[lane]
            if np.count_nonzero(bad):
                if latest is None:
                    latest, lanes = np.zeros(len(epochs), np.int64), np.zeros(len(epochs), np.int64)
                bad &= epochs > latest
                latest[bad], lanes[bad] = epochs[bad], lane
        if latest is None:
            return None
        racing = latest > 0
        return Found(where(at, racing), latest[racing], lanes[racing])

    def note_read(self, at: Index, lane: int, epoch: int) -> None:
        column = self.read.get(lane)
        if column is None:
            column = self.read[lane] = np.zeros(self.size, np.int64)
        self._readers[lane] = epoch
        for part in at:
            column[part] = epoch

    def note_write(self, at: Index, lane: int, epoch: int) -> None:
        self._writers[lane] = epoch
        word = lane << SHIFT | epoch
        for part in at:
            self.write[part] = word

    def copy(self) -> Shadow:
        """The columns; enough to look at, not to go on from."""
        other = Shadow(0)
        other.size, other.write = self.size, self.write.copy()
        other.read = {lane: column.copy() for lane, column in self.read.items()}
        return other

    def touched(self) -> int:
        """How many blocks were accessed at all."""
        seen = self.write != 0
        for column in self.read.values():
            seen |= column != 0
        return int(np.count_nonzero(seen))

    def nbytes(self) -> int:
        return self.write.nbytes + sum(column.nbytes for column in self.read.values())


def _unknown(latest: dict[int, int], past: Vector) -> list[int]:
    """The agents whose latest access `past` does not know. They are few, and then numpy takes twice as long."""
    known = past.item
    return [lane for lane, epoch in latest.items() if epoch > known(lane)]


def _racing(packed: Ids, unknown: list[int], past: Vector) -> npt.NDArray[np.bool_]:
    """Which packed epochs `past` does not know, if `unknown` lists the agents of which it does not know all."""
    racing: npt.NDArray[np.bool_]
    if len(unknown) == 1:  # the usual case, and then they are one range: half the time, no epoch is unpacked
        known = int(past[unknown[0]])
        first = (unknown[0] << SHIFT) + known + 1
        racing = (packed - first).view(np.uint64) < EPOCH - known  # a word below the range wraps around
    else:
        racing = (packed & EPOCH) > past[packed >> SHIFT]
    return racing
