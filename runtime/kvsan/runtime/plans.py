"""When a copy of a block was decided, for debug mode: the `planned` of an access whose blocks may each have their own.

A line has one `planned` (`TRACE.md`), and says: of these blocks, one that was freed and allocated since then is of the
wrong generation. Blocks of one copy may have been decided at different lines. So it is found here, block by block,
whether a block was allocated after its copy was decided:

- none was: the latest decision stands for all; if a block without a decision was allocated after it, none is given;
- some were: the copy is logged in parts, those blocks with their own decision, the rest as above. A part is whole pairs.

Relies on: `Host.plan` being called when a block's copy is decided, after the alloc of what it is decided for. A
decision stands until the next one of that block. Does not cover: decisions that are carried out by a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvsan.runtime.device import Copy, Ids

Times = npt.NDArray[np.int64]
Part = tuple[int | None, Ids, Ids]


class _Pool:
    """By block: the time of its latest decision and the line before it, and the time of its latest alloc. 0: never."""

    __slots__ = ("born", "decided", "line")

    def __init__(self) -> None:
        self.decided: Times = np.zeros(0, np.int64)
        self.line: Times = np.zeros(0, np.int64)
        self.born: Times = np.zeros(0, np.int64)

    def hold(self, blocks: Ids) -> None:
        """Room for these blocks."""
        need = int(blocks.max()) + 1
        if need > len(self.born):
            more = np.zeros(max(need, 2 * len(self.born)) - len(self.born), np.int64)
            self.decided, self.line, self.born = (
                np.concatenate((column, more)) for column in (self.decided, self.line, self.born)
            )


class Plans:
    """Under the sink's lock."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._time = 0

    def decide(self, pool: str, blocks: Ids, line: int | None) -> None:
        """A copy of these blocks was decided after that line; without one there is nothing that could be planned at."""
        if line is not None:
            made = self._pool(pool, blocks)
            self._time += 1
            made.decided[blocks] = self._time
            made.line[blocks] = line

    def alloc(self, pool: str, blocks: Ids) -> None:
        """These blocks begin a new generation."""
        made = self._pool(pool, blocks)
        self._time += 1
        made.born[blocks] = self._time

    def of(self, copy: Copy) -> Iterator[Part]:
        """The lines that the copy is logged as: `planned`, its sources and its targets."""
        sides = [
            (made, blocks)
            for name, blocks in ((copy.source, copy.sources), (copy.target, copy.targets))
            if (made := self._pools.get(name)) is not None
        ]
        if not sides:
            yield None, copy.sources, copy.targets
            return
        latest = born = 0
        line = -1
        stale: npt.NDArray[np.bool_] | None = None
        for made, blocks in sides:
            made.hold(blocks)
            decided, births = made.decided.take(blocks), made.born.take(blocks)
            if not decided.any():
                born = max(born, int(births.max()))
                continue
            old = (births > decided) & (decided > 0)
            if old.any():
                stale = old if stale is None else stale | old
            latest, born = max(latest, int(decided.max())), max(born, int(births.max()))
            line = max(line, int(made.line.take(blocks).max()))
        if stale is None:
            yield (line if latest > born else None), copy.sources, copy.targets
            return
        yield from self._apart(copy, sides, stale)

    def _apart(self, copy: Copy, sides: list[tuple[_Pool, Ids]], stale: npt.NDArray[np.bool_]) -> Iterator[Part]:
        """The stale pairs by their decision, the earlier one of a pair that has two, and the rest."""
        when = np.full(len(stale), np.iinfo(np.int64).max)
        for made, blocks in sides:
            decided = made.decided[blocks]
            late = (made.born[blocks] > decided) & (decided > 0)
            np.minimum(when, np.where(late, made.line[blocks], when), out=when)
        for line in np.unique(when[stale]).tolist():
            yield line, copy.sources[when == line], copy.targets[when == line]
        rest = ~stale
        if rest.any():
            part = Copy(copy.name, copy.source, copy.sources[rest], copy.target, copy.targets[rest])
            yield from self.of(part)

    def _pool(self, name: str, blocks: Ids) -> _Pool:
        found = self._pools.get(name)
        if found is None:
            found = self._pools[name] = _Pool()
        found.hold(blocks)
        return found
