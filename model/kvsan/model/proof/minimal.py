"""All minimal sets that are good, where adding to a good set keeps it good.

A map of what is known bad leads the search, as in MARCO, without a solver: the map is a list of clauses ("every good
set holds one of these"), and the next set to look at is a smallest one that satisfies all clauses. If it is good it
is minimal, because each part of it breaks a clause. If it is bad, whoever judges says so with a *larger* bad set,
and what that leaves out is the next clause. Sets are bit masks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence


def minimal_sets(size: int, judge: Callable[[int], Sequence[int] | None]) -> Iterator[int]:
    """Yields every minimal good set, smallest first. `judge` says None (good), or at least one superset of the set
    that is bad."""
    full = (1 << size) - 1
    clauses: list[int] = []
    good: list[int] = []
    heap = [(0, 0)]
    seen = {0}
    while heap:
        _, here = heapq.heappop(heap)
        if any(here & one == one for one in good):
            continue
        clause = next((clause for clause in clauses if not clause & here), None)
        if clause is None:
            bad = judge(here)
            if bad is None:
                good.append(here)
                yield here
                continue
            assert bad
            new = [full & ~one for one in bad]
            assert all(not one & here for one in new), "a bad set must hold the one that was asked about"
            if not all(new):
                return  # everything together is bad: nothing is good
            clauses += [one for one in new if not any(old & one == old for old in clauses)]
            clause = new[0]
        for at in range(size):
            more = here | 1 << at
            if clause >> at & 1 and more not in seen:
                seen.add(more)
                heapq.heappush(heap, (more.bit_count(), more))
