"""Which write is in a block: what each op really saw and destroyed, and what it would have in program order.

A version is the number of the op whose write is in the block, `FRESH` if none is. Program order is the one in which all
ops run one at a time as issued. An op that saw or destroyed another version than that is a *stray*: a race came true.

A block is the unit, as in the checker: a kernel may touch any of its blocks in each of its parts, and a block half
copied holds the version of the latest write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from kvsan.runtime.device import Ids

FRESH = -1


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """An access as issued. `on` is None for the host's own work. `sees` and `destroys` are the versions of program
    order, in the order of `reads` and `writes`; empty unless the machine observes.
    """

    number: int
    name: str
    by: str
    on: str | None
    step: int | None = None
    reads: Mapping[str, Ids] = field(default_factory=dict)
    writes: Mapping[str, Ids] = field(default_factory=dict)
    sees: Mapping[str, Ids] = field(default_factory=dict)
    destroys: Mapping[str, Ids] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """A part of an op ran: the versions that were in these blocks, just before."""

    op: Op
    pool: str
    write: bool
    blocks: Ids
    versions: Ids


@dataclass(frozen=True, slots=True)
class Stray:
    """An op met another version than program order says."""

    op: int
    pool: str
    block: int
    write: bool
    version: int
    expected: int


class Versions:
    """The versions of each pool: as they are, and as they would be in program order."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.log: list[Touch] = []
        self._real: dict[str, Ids] = {}
        self._serial: dict[str, Ids] = {}

    def pool(self, name: str, blocks: int) -> None:
        """A pool of fresh blocks."""
        self._real[name] = np.full(blocks, FRESH, np.int64)
        self._serial[name] = np.full(blocks, FRESH, np.int64)

    def issue(self, op: Op) -> Op:
        """The op with what it would see and destroy in program order."""
        reads, writes = ({pool: ids.copy() for pool, ids in side.items()} for side in (op.reads, op.writes))
        sees = {pool: self._serial[pool][blocks] for pool, blocks in reads.items()}
        destroys = {pool: self._serial[pool][blocks] for pool, blocks in writes.items()}
        for pool, blocks in writes.items():
            self._serial[pool][blocks] = op.number
        op = replace(op, reads=reads, writes=writes, sees=sees, destroys=destroys)
        self.ops.append(op)
        return op

    def read(self, op: Op, pool: str, blocks: Ids) -> None:
        """A part of the op reads them now."""
        if len(blocks):
            self.log.append(Touch(op, pool, False, blocks, self._real[pool][blocks]))

    def write(self, op: Op, pool: str, blocks: Ids) -> None:
        """A part of the op writes them now."""
        if len(blocks):
            self.log.append(Touch(op, pool, True, blocks, self._real[pool][blocks]))
            self._real[pool][blocks] = op.number


def strays(log: Iterable[Touch]) -> Iterator[Stray]:
    """What differs from program order, each once, in the order in which it came true. What an op finds of its own is no
    difference.
    """
    seen: set[Stray] = set()
    for touch in log:
        op, pool = touch.op, touch.pool
        asked, expected = (op.writes[pool], op.destroys[pool]) if touch.write else (op.reads[pool], op.sees[pool])
        if len(asked) == len(touch.blocks) and (asked == touch.blocks).all():
            should = expected
        else:
            order = np.argsort(asked, kind="stable")
            should = expected[order[np.searchsorted(asked[order], touch.blocks)]]
        for at in np.flatnonzero((touch.versions != should) & (touch.versions != op.number)).tolist():
            stray = Stray(op.number, pool, int(touch.blocks[at]), touch.write, int(touch.versions[at]), int(should[at]))
            if stray not in seen:
                seen.add(stray)
                yield stray
