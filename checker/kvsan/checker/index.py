"""How a set of blocks is looked up in a numpy column: as a few slices, or as one array of ids.

A slice costs about a microsecond however long it is, a gather costs a few nanoseconds an id: whichever is less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsan.model.ops import Blocks

Ids = npt.NDArray[np.int64]
Index = Sequence[Any]
"""Slices, or a single array of ids: each item indexes a column."""

IDS_A_SLICE = 96
"""From this many ids a run on, a slice is the cheaper way (measured: `docs/performance.md`)."""


def index(blocks: Blocks) -> Index:
    """The cheaper of the two forms. Ids are in the order of the runs."""
    runs = blocks.runs
    count = len(blocks)
    if len(runs) * IDS_A_SLICE <= count or len(runs) == 1:
        return [slice(lo, hi) for lo, hi in runs]
    if not count:
        return []
    return [ids(blocks)]


def ids(blocks: Blocks) -> Ids:
    """The ids of the runs, one after the other, without a Python loop over them."""
    if not blocks.runs:
        return np.empty(0, np.int64)
    runs = np.array(blocks.runs, np.int64)
    lengths = runs[:, 1] - runs[:, 0]
    ends = np.cumsum(lengths)
    out: Ids = np.arange(ends[-1], dtype=np.int64) + np.repeat(runs[:, 0] - ends + lengths, lengths)
    return out


def where(part: Any, mask: npt.NDArray[np.bool_]) -> Ids:
    """The ids of one item of an `Index` at which `mask` holds."""
    if isinstance(part, slice):
        found: Ids = np.flatnonzero(mask) + part.start
    else:
        found = part[mask]
    return found


def runs_of(found: Ids) -> Blocks:
    """Sorted, distinct ids as runs."""
    found = np.unique(found)
    if not found.size:
        return Blocks(())
    breaks = np.flatnonzero(np.diff(found) != 1)
    starts = found[np.concatenate(([0], breaks + 1))]
    ends = found[np.concatenate((breaks, [found.size - 1]))] + 1
    return Blocks(tuple(zip(starts.tolist(), ends.tolist(), strict=True)))
