"""How a set of blocks is looked up in a numpy column: its long runs as slices, all the rest as one array of ids.

A slice costs a fraction of a microsecond however long it is, a gather costs a few to some tens of nanoseconds an id
(in and out of the caches): each run goes where it costs less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from kvsan.model.ops import Blocks

Ids = npt.NDArray[np.int64]
Index = Sequence[Any]
"""One or more slices and at most one array of ids (not to be changed): `column[part] = x` for each, and `look`."""

IDS_A_SLICE = 256
"""From this many ids on, a slice is the cheaper way (measured: `docs/performance.md`)."""

FEW = 64
"""Up to so many ids a Python loop over them costs less than a numpy call."""

KEPT = 1 << 19
"""So many runs and ids are kept for blocks that are looked up again: some 40 MB if all are single blocks."""


class IdBlocks(Blocks):
    """Blocks as an array of ids, for hooks that are handed arrays: the check needs no runs, so they are made only when
    a line or a report is written. Without `keep` (a batch) the runs are of the distinct ids.
    """

    __slots__ = ("ids", "keep", "made")
    ids: Ids
    keep: bool
    made: tuple[tuple[int, int], ...] | None

    def __init__(self, ids: Ids, *, keep: bool = False) -> None:
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "keep", keep)
        object.__setattr__(self, "made", None)

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        made = self.made
        if made is None:
            made = _in_order(self.ids) if self.keep else runs_of(self.ids).runs
            object.__setattr__(self, "made", made)
        return made

    @property
    def repeats(self) -> bool:
        if not self.keep:
            return False
        if len(self.ids) < FEW:
            return len(set(self.ids.tolist())) < len(self.ids)
        found = np.sort(self.ids)  # `np.unique` takes twenty times as long
        return bool((found[1:] == found[:-1]).any())

    @property
    def end(self) -> int:
        return int(self.ids.max()) + 1 if len(self.ids) else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocks) and self.runs == other.runs

    def __hash__(self) -> int:
        return hash(self.runs)

    def __reduce__(self) -> Any:
        return IdBlocks, (self.ids,)


def blocks_of(given: Any, size: int, *, repeats: bool = False, owned: bool = False) -> Blocks | None:
    """What an engine names blocks by (an array, a sequence, a range, `Blocks`) as `Blocks` of a pool of `size` blocks;
    `None` if it names none. `owned` says of a flat array that nobody else will change it: it needs no copy. Raises
    `ValueError` for ids that the pool has not got.
    """
    if owned and type(given) is np.ndarray:
        return _of_array(given.astype(np.int64, copy=False), size, repeats)
    if isinstance(given, Blocks):
        end = given.end
        if end > size:
            raise ValueError(f"block {end - 1} of a pool of {size} blocks")
        return given if end else None
    if isinstance(given, range) and given.step == 1:
        if not given:
            return None
        if given.start < 0 or given.stop > size:
            raise ValueError(f"blocks {given.start}-{given.stop - 1} of a pool of {size} blocks")
        return Blocks(((given.start, given.stop),))
    if type(given) is list and len(given) < FEW:
        return _of_few(given, size, repeats)
    if isinstance(given, np.ndarray):
        return _of_array(given.astype(np.int64).ravel(), size, repeats)  # a copy: engines reuse their arrays
    count = len(given) if hasattr(given, "__len__") else -1
    return _of_array(np.fromiter(cast("Iterable[int]", given), np.int64, count), size, repeats)


def _of_array(found: Ids, size: int, repeats: bool) -> Blocks | None:
    count = len(found)
    if not count:
        return None
    if count == 1:
        block = int(found[0])
        if not 0 <= block < size:
            raise ValueError(f"block {block} of a pool of {size} blocks")
        return Blocks(((block, block + 1),))
    if count < FEW:
        few = found.tolist()
        outside = min(few) < 0 or max(few) >= size
    else:
        outside = bool(np.maximum.reduce(found.view(np.uint64)) >= size)  # a negative id is a large one
    if outside:
        raise ValueError(f"blocks {found.min()} to {found.max()} of a pool of {size} blocks")
    return IdBlocks(found, keep=repeats)


def _of_few(given: list[int], size: int, repeats: bool) -> Blocks | None:
    """As `blocks_of`: Python is quicker than numpy here."""
    if not given:
        return None
    low, high = min(given), max(given)
    if low < 0 or high >= size:
        where = f"block {low}" if len(given) == 1 else f"blocks {low} to {high}"
        raise ValueError(f"{where} of a pool of {size} blocks")
    if len(given) == 1:
        return Blocks(((int(low), int(low) + 1),))
    return IdBlocks(np.array(given, np.int64), keep=repeats)


class _Kept:
    """The index of each of the latest `Blocks`, by identity: an entry holds its `Blocks`, so its `id` stays its own."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[Blocks, Index]] = {}
        self._size = 0

    def keep(self, blocks: Blocks, made: Index, size: int) -> Index:
        self._size += size
        if self._size > KEPT:
            self.made.clear()
            self._size = 0
        self.made[id(blocks)] = (blocks, made)
        return made


_kept = _Kept()


def index(blocks: Blocks) -> Index:
    """How to look up some blocks. The same object again costs nothing: an engine that keeps its `Blocks` gains."""
    if type(blocks) is IdBlocks:
        return (blocks.ids,)
    runs = blocks.runs
    if len(runs) == 1:
        return (slice(*runs[0]),)
    kept = _kept.made.get(id(blocks))
    if kept is not None:
        return kept[1]
    made: list[Any] = [slice(lo, hi) for lo, hi in runs if hi - lo >= IDS_A_SLICE]
    if made and len(made) == len(runs):
        return _kept.keep(blocks, made, len(runs))
    rest = _ids([run for run in runs if run[1] - run[0] < IDS_A_SLICE] if made else runs)
    made.append(rest)
    return _kept.keep(blocks, made, len(runs) + len(rest))


def ids(blocks: Blocks) -> Ids:
    """The ids of the runs, one after the other."""
    if type(blocks) is IdBlocks:
        return blocks.ids
    return _ids(blocks.runs)


def _ids(runs: Sequence[tuple[int, int]]) -> Ids:
    """No Python loop over the runs."""
    bounds = np.fromiter(chain.from_iterable(runs), np.int64, 2 * len(runs))
    starts, ends = bounds[::2], bounds[1::2]
    lengths = ends - starts
    after = lengths.cumsum()
    count = int(after[-1]) if len(runs) else 0
    if count == len(runs):
        return starts.copy()
    out: Ids = np.arange(count)
    out += (starts - after + lengths).repeat(lengths)
    return out


def look(column: npt.NDArray[Any], at: Index) -> npt.NDArray[Any]:
    """The column at the ids of an index, in the order of its parts; a view if that is a slice."""
    if len(at) == 1:
        part = at[0]
        found: npt.NDArray[Any] = column[part] if isinstance(part, slice) else column.take(part)
        return found
    return np.concatenate([column[part] for part in at])


def where(at: Index, mask: npt.NDArray[np.bool_]) -> Ids:
    """The ids of an index at which `mask` holds, which is in the order of `look`."""
    parts = [np.arange(part.start, part.stop) if isinstance(part, slice) else part for part in at]
    found: Ids = np.concatenate(parts)[mask]
    return found


def runs_of(found: Ids) -> Blocks:
    """The ids as runs, sorted, each once."""
    if not found.size:
        return Blocks(())
    found = np.sort(found)  # `np.unique` takes twenty times as long
    breaks = np.flatnonzero(np.diff(found) > 1)
    starts = found[np.concatenate(([0], breaks + 1))]
    ends = found[np.concatenate((breaks, [found.size - 1]))] + 1
    return Blocks(tuple(zip(starts.tolist(), ends.tolist(), strict=True)))


def _in_order(found: Ids) -> tuple[tuple[int, int], ...]:
    """Ids as runs, in the order given, repeats kept."""
    breaks = np.flatnonzero(np.diff(found) != 1)
    starts = found[np.concatenate(([0], breaks + 1))]
    ends = found[np.concatenate((breaks, [found.size - 1]))] + 1
    return tuple(zip(starts.tolist(), ends.tolist(), strict=True))
