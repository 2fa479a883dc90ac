"""Where the words of a wrong completion came from: which ops on which blocks, by the versions that were really met.

A request's token is made of the blocks that its forward read. A version in a block was written by a forward, or by a
copy whose source held a version, and so on back: to a host block that was filled wrongly long ago, if need be. At
each read both the version that was met and the one of program order are followed, since the one that should have been
there is half of the hazard. A block that a forward wrote on in is what it was before, too; so is one that a write met
in the middle of another.

Relies on `versions.py` (a block is the unit) and on the pairs of a copy being in order. Does not follow tokens: those
that a forward takes from the one before are of the same request, whose forwards are all in the lineage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from kvsan.checker.serving.observed import Observed
from kvsan.model.hazard import Hazard, Kind

Place = tuple[int, str, int]
"""An op of the machine, a pool, a block of it."""


class Lineage:
    """Of the completions of one run."""

    def __init__(self, run: Observed) -> None:
        self._run = run
        self._met: dict[tuple[int, str, int, bool], set[int]] = defaultdict(set)
        for touch in run.log:
            op, pool, write = touch.op.number, touch.pool, touch.write
            for block, version in zip(touch.blocks.tolist(), touch.versions.tolist(), strict=True):
                self._met[op, pool, block, write].add(version)
        self._begun = {(op, block) for op, rows in run.rows.items() for row in rows for block in row.begun}

    def of(self, request: int) -> set[Place]:
        """Every op and block that the request's tokens came from."""
        seen: set[tuple[Place, bool]] = set()
        todo = [
            ((op, "gpu", block), False)
            for op, rows in self._run.rows.items()
            for row in rows
            if row.request == request
            for block in row.reads
        ]
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += self._behind(*node)
        return {place for place, _ in seen}

    def _behind(self, place: Place, write: bool) -> Iterator[tuple[Place, bool]]:
        number, pool, block = place
        if number < 0 or number >= len(self._run.ops):
            return
        op = self._run.ops[number]
        sets, expected = (op.writes, op.destroys) if write else (op.reads, op.sees)
        at = np.flatnonzero(sets[pool] == block) if pool in sets else np.empty(0, np.int64)
        if not len(at):
            return
        should = int(expected[pool][at[0]])
        met = self._met[number, pool, block, write] - {number}
        if not write or (number, block) in self._begun or any(version != should for version in met):
            yield from (((version, pool, block), True) for version in (met | {should}) if version >= 0)
        if write and len(op.reads) == len(op.writes) == 1 and pool not in op.reads:
            ((source, blocks),) = op.reads.items()
            yield (number, source, int(blocks[at[0]])), False


def lies_in(hazard: Hazard, run: Observed, places: set[Place]) -> bool:
    """Whether both accesses of the hazard are in the lineage, at one of its blocks; of a hazard that needs no order,
    the later one.
    """
    later = run.numbers[hazard.later.op]
    ops = [later] if hazard.kind in (Kind.GEN, Kind.BATCH) else [run.numbers[hazard.earlier.op], later]
    return any(all((op, hazard.pool, block) in places for op in ops) for block in hazard.blocks)
