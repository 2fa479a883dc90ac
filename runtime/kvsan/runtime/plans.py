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

Times = npt.NDArray[np.int64]
Part = tuple[int | None, Ids, Ids]


class _Pool:
    """By block: when its latest copy of each name was decided, and when it was allocated last. 0: never. `youngest` is
    when any block was.
    """

    __slots__ = ("_decided", "born", "youngest")

    def __init__(self, size: int) -> None:
        self._decided: dict[str, Times] = {}
        self.born: Times = np.zeros(size, np.int64)
        self.youngest = 0

    def at_once(self, blocks: Ids, work: str) -> int | None:
        """When the copies of that name of these blocks were decided; `None`: not all at once."""
        made = self._decided.get(work)
        if made is None:
            return 0
        times = made.take(blocks)
        raw = times.tobytes()
        return int(times[0]) if raw == raw[:8] * len(times) else None

    def any_after(self, time: int, blocks: Ids) -> bool:
        """Whether one of them was allocated after that."""
        return self.youngest > time and bool((self.born.take(blocks) > time).any())

    def decided(self, work: str) -> Times:
        """For copies of that name."""
        made = self._decided.get(work)
        if made is None:
            made = self._decided[work] = np.zeros(len(self.born), np.int64)
        return made

    def hold(self, blocks: Ids) -> None:
        """Room for these blocks."""
        more = np.zeros(int(blocks.max()) + 1, np.int64)
        self.born = np.concatenate((self.born, more))
        self._decided = {work: np.concatenate((times, more)) for work, times in self._decided.items()}


class Plans:
    """Under the sink's lock. Times are made of line numbers: an alloc that is line n is at 2n, what was decided after
    line n at 2n + 1.
    """

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._any = False

    def pool(self, name: str, blocks: int) -> None:
        """A pool of so many blocks."""
        if name not in self._pools:
            self._pools[name] = _Pool(blocks)

    def decide(self, pool: str, blocks: Ids, work: str, line: int | None) -> None:
        """A copy of that name of these blocks was decided after that line; without one there is nothing that could be
        planned at."""
        if line is not None:
            self._any = True
            made = self._of(pool)
            try:
                made.decided(work)[blocks] = 2 * line + 1
            except IndexError:
                made.hold(blocks)
                made.decided(work)[blocks] = 2 * line + 1

    def alloc(self, pool: str, blocks: Ids, line: int | None) -> None:
        """These blocks begin a new generation, at that line."""
        made, time = self._of(pool), 2 * (line or 0)
        made.youngest = time
        try:
            made.born[blocks] = time
        except IndexError:
            made.hold(blocks)
            made.born[blocks] = time

    def of(self, copy: Copy) -> Iterable[Part]:
        """The lines that the copy is logged as: `planned`, its sources and its targets."""
        one = self._one(copy) if self._any else 0
        if one is not None:
            return ((one >> 1 if one else None, copy.sources, copy.targets),)
        sides = [self._times(copy.source, copy.sources, copy.name), self._times(copy.target, copy.targets, copy.name)]
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
        try:
            decided, aimed = source.at_once(copy.sources, copy.name), target.at_once(copy.targets, copy.name)
            if decided is None or aimed is None:
                return None
            one = decided if decided > aimed else aimed
            if source.any_after(decided or one, copy.sources) or target.any_after(aimed or one, copy.targets):
                return None
        except IndexError:  # a block that the pool has not got
            return None
        return one

    def _times(self, pool: str, blocks: Ids, work: str) -> tuple[Times, Times]:
        made = self._of(pool)
        try:
            return made.decided(work).take(blocks), made.born.take(blocks)
        except IndexError:
            made.hold(blocks)
            return made.decided(work).take(blocks), made.born.take(blocks)

    def _of(self, name: str) -> _Pool:
        found = self._pools.get(name)
        if found is None:
            found = self._pools[name] = _Pool(0)
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
