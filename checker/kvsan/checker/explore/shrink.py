"""A racy schedule made as short as leaving out choices can make it: delta debugging (Zeller and Hildebrandt, 2002).

A choice that is not possible any more, since another one was left out, is left out too (`run.lenient`), so every try is
a run of the design. What must stay is the pair: its kind and its two works. The result is minimal in that no single
choice, and no stretch of neighbours, can be left out of it; a shorter one of other choices there may be.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvsan.checker.explore.run import lenient
from kvsan.checker.explore.tracker import Pair
from kvsan.model.design import Design


def shrink(design: Design, blocks: int, words: Sequence[str], pair: Pair) -> tuple[str, ...]:
    """The shorter schedule. `words` must have the pair; raises `ValueError` if it has not."""
    best = lenient(design, blocks, words, pair)
    if best is None:
        raise ValueError(f"the schedule has no {pair}")
    size = max(1, len(best) // 2)
    while True:
        at, shorter = 0, False
        while at < len(best):
            tried = lenient(design, blocks, (*best[:at], *best[at + size :]), pair)
            if tried is not None and len(tried) < len(best):
                best, shorter = tried, True
            else:
                at += size
        if size == 1 and not shorter:
            return best
        size = max(1, min(size // 2 if not shorter else size, len(best) // 2))
