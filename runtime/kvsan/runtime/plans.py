"""When a copy of a block was decided, for debug mode: the `planned` of an access whose blocks may each have their own.

A line has one `planned` (`TRACE.md`), and says: of these blocks, one that was freed and allocated since then is of the
wrong generation. Blocks of one copy may have been decided at different lines. So it is found here, block by block,
whether a block was allocated after its copy was decided:

- none was: the latest decision stands for all; if a block without a decision was allocated after it, none is given;
- some were: the copy is logged in parts of whole pairs, those blocks with their own decision, the rest as above.

Most often all blocks of a copy were decided at once and none was allocated since: that is seen with one look-up a side
and no arithmetic of arrays, each call of which costs a microsecond (in an engine that has other things in its caches
ten).

Relies on: `Host.plan` being called when a block's copy is decided, after the alloc of what it is decided for. A
decision stands until the next one of that block for a copy of the same name. Does not cover: decisions that are carried
out by a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from kvsan.runtime.device import Copy, Ids
from kvsan.runtime.lines import IN_C

Times = npt.NDArray[np.int64]
Part = tuple[int | None, Ids, Ids]

MOST = 1 << 24
"""No pool has more blocks (`TRACE.md`): an id from here on is none, and gets no memory."""


class _Pool:
    """By block: when its latest copy of each name was decided, and when it was allocated last. 0: never. `youngest` is
    when any block was. In C: `pool.h`'s `Pool`.
    """

    __slots__ = ("_born", "_decided", "youngest")

    def __init__(self, size: int) -> None:
        self._decided: dict[str, Times] = {}
        self._born: Times = np.zeros(size, np.int64)
        self.youngest = 0

    def alloc(self, blocks: Ids, time: int) -> None:
        self.youngest = time
        try:
            self._born[blocks] = time
        except IndexError:
            blocks = self._hold(blocks)
            self._born[blocks] = time

    def decide(self, blocks: Ids, work: str, time: int) -> None:
        made = self._decided.get(work)
        if made is None:
            made = self._decided[work] = np.zeros(len(self._born), np.int64)
        try:
            made[blocks] = time
        except IndexError:
            blocks = self._hold(blocks)
            self._decided[work][blocks] = time

    def at_once(self, blocks: Ids, work: str) -> int | None:
        """When the copies of that name of these blocks were decided; `None`: not all at once, or not seen here."""
        made = self._decided.get(work)
        if made is None:
            return 0
        try:
            times = made.take(blocks)
        except IndexError:  # a block that the pool has not got
            return None
        raw = times.tobytes()
        return int(times[0]) if raw == raw[:8] * len(times) else None

    def any_after(self, time: int, blocks: Ids) -> bool:
        """Whether one of them was allocated after that, or is not seen here."""
        try:
            return self.youngest > time and bool((self._born.take(blocks) > time).any())
        except IndexError:
            return True

    def times(self, blocks: Ids, work: str) -> tuple[Times, Times]:
        """When their copies of that name were decided, and when they were allocated. Of blocks that the pool has not
        got: never."""
        made = self._decided.get(work)
        try:
            born = self._born.take(blocks)
            return np.zeros(len(born), np.int64) if made is None else made.take(blocks), born
        except IndexError:
            here = (blocks >= 0) & (blocks < len(self._born))
            times = np.zeros((2, len(blocks)), np.int64)
            times[1, here] = self._born[blocks[here]]
            if made is not None:
                times[0, here] = made[blocks[here]]
            return times[0], times[1]

    def _hold(self, blocks: Ids) -> Ids:
        """Room for these blocks: those that there can be. What is none is for whoever reads the lines to say."""
        there = blocks[(blocks >= 0) & (blocks < MOST)]
        more = np.zeros(int(there.max(initial=-1)) + 1, np.int64)
        if len(more) > len(self._born):
            self._born = np.concatenate((self._born, more))
            self._decided = {work: np.concatenate((times, more)) for work, times in self._decided.items()}
        return there


if IN_C is not None:

    class _PoolInC(IN_C.Pool):  # type: ignore[misc]
        __slots__ = ()

        def times(self, blocks: Ids, work: str) -> tuple[Times, Times]:
            decided, born = self.times_of(blocks, work)
            return np.frombuffer(decided, np.int64), np.frombuffer(born, np.int64)


def _pool(size: int) -> _Pool:
    made: _Pool = _Pool(size) if IN_C is None else _PoolInC(size)
    return made


class Plans:
    """Under the sink's lock. Times are made of line numbers: an alloc that is line n is at 2n, what was decided after
    line n at 2n + 1.
    """

    def __init__(self) -> None:
        self.pools: dict[str, _Pool] = {}

    def pool(self, name: str, blocks: int) -> None:
        """A pool of so many blocks."""
        if name not in self.pools:
            self.pools[name] = _pool(blocks)

    def decide(self, pool: str, blocks: Ids, work: str, line: int | None) -> None:
        """A copy of that name of these blocks was decided after that line; without one there is nothing that could be
        planned at."""
        if line is not None:
            self._of(pool).decide(blocks, work, 2 * line + 1)

    def alloc(self, pool: str, blocks: Ids, line: int | None) -> None:
        """These blocks begin a new generation, at that line."""
        self._of(pool).alloc(blocks, 2 * (line or 0))

    def of(self, copy: Copy) -> Iterable[Part]:
        """The lines that the copy is logged as: `planned`, its sources and its targets."""
        one = self._one(copy)
        if one is not None:
            return ((one >> 1 if one else None, copy.sources, copy.targets),)
        source, target = self._of(copy.source), self._of(copy.target)
        sides = [source.times(copy.sources, copy.name), target.times(copy.targets, copy.name)]
        one = max(int(decided[0]) for decided, _ in sides)
        if not any(
            np.count_nonzero(born > one)
            or np.count_nonzero(decided > one)
            or np.count_nonzero((born > decided) & (decided > 0))
            for decided, born in sides
        ):
            return ((one >> 1 if one else None, copy.sources, copy.targets),)
        return _apart(copy, sides)

    def _one(self, copy: Copy) -> int | None:
        """When the whole copy was decided, 0 for never; `None` if that takes a closer look."""
        source, target = self._of(copy.source), self._of(copy.target)
        decided, aimed = source.at_once(copy.sources, copy.name), target.at_once(copy.targets, copy.name)
        if decided is None or aimed is None:
            return None
        one = decided if decided > aimed else aimed
        if one and (source.any_after(decided or one, copy.sources) or target.any_after(aimed or one, copy.targets)):
            return None
        return one

    def _of(self, name: str) -> _Pool:
        found = self.pools.get(name)
        if found is None:
            found = self.pools[name] = _pool(0)
        return found


def _apart(copy: Copy, sides: list[tuple[Times, Times]]) -> Iterator[Part]:
    """The stale pairs by their decision, the earlier one of a pair that has two; then the rest."""
    never = np.iinfo(np.int64).max
    when = np.full(len(copy.sources), never)
    for decided, born in sides:
        np.minimum(when, np.where((born > decided) & (decided > 0), decided, never), out=when)
    for time in np.unique(when[when < never]).tolist():
        yield time >> 1, copy.sources[when == time], copy.targets[when == time]
    rest = when == never
    if rest.any():
        latest = max(int(decided[rest].max()) for decided, _ in sides)
        youngest = max(int(born[rest].max()) for _, born in sides)
        yield (latest >> 1 if latest > youngest else None), copy.sources[rest], copy.targets[rest]
