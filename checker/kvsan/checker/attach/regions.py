"""Which blocks of which registered pools a tensor covers, by address: arithmetic over strides, no torch.

A pool is a tensor of which one dimension counts blocks. A block's bytes need not lie together: with K and V in front
(`2 × blocks × …`) each block has two parts, one a slab. Block `k` of slab `s` begins at `(s × blocks + k) × step`,
where `step` is the stride of that dimension in bytes. Inside a block the bytes may have gaps, and another pool may lie
in them (`cache[:, 0]` and `cache[:, 1]`): a block is a few runs of bytes, its chunks.

A view is taken as runs of addresses, gaps left out: neighbouring dimensions make one run, the others say where runs
start. It touches a block if one of its runs meets one of the block's chunks. A view of more than `MOST_RUNS` runs is
not resolved: `Unresolved`, and whoever asked counts an unseen copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsan.checker.index import Ids

MOST_RUNS = 1 << 20


class Unresolved(Exception):  # noqa: N818 - an answer, caught where it is asked
    """What a tensor covers is too scattered to be said."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a tensor's addresses are: `starts` of runs of `run` bytes, all of it between `low` and `high`."""

    low: int
    high: int
    dims: tuple[tuple[int, int], ...]
    """(stride in bytes, extent), small strides first, of the dimensions that are no single entry."""

    @classmethod
    def of(cls, tensor: Any) -> Extent | None:
        """`None` for a tensor without memory: empty, on `meta`, a compiler's stand-in."""
        if 0 in tensor.shape or hasattr(tensor, "fake_mode"):
            return None
        try:
            low = int(tensor.data_ptr())
        except (RuntimeError, NotImplementedError):
            return None
        size = tensor.element_size()
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        dims = sorted((int(stride) * size, int(extent)) for extent, stride in pairs if extent > 1 and stride)
        span = sum(stride * (extent - 1) for stride, extent in dims)
        return cls(low, low + span + size, ((0, size), *dims)) if low else None

    def runs(self) -> tuple[Ids, int]:
        """Starts relative to `low`, and the length of each. Raises `Unresolved` if there are too many."""
        run, starts = self.dims[0][1], np.zeros(1, np.int64)
        for stride, extent in self.dims[1:]:
            if stride <= run and starts.size == 1:
                run += stride * (extent - 1)
            elif starts.size * extent > MOST_RUNS:
                raise Unresolved
            else:
                starts = (starts[:, None] + np.arange(extent, dtype=np.int64) * stride).ravel()
        return starts, run


@dataclass(frozen=True, slots=True)
class Region:
    """One registered pool: addresses `start` to `end`, `count` blocks, `step` bytes apart, in each of its slabs."""

    name: str
    start: int
    end: int
    step: int
    count: int
    chunks: tuple[int, ...]
    """Where the runs of bytes of one block begin, each of `width` bytes."""
    width: int
    slabs: tuple[int, ...]
    storage: tuple[int, int]
    """Address and size of the memory that it is a view of."""

    @classmethod
    def of(cls, tensor: Any, count: int, name: str, dim: int) -> Region:
        if tensor.shape[dim] != count:
            raise ValueError(f"pool {name}: dimension {dim} has {tensor.shape[dim]} entries, not {count} blocks")
        extent = Extent.of(tensor)
        if extent is None:
            raise ValueError(f"pool {name}: the tensor has no memory")
        size = tensor.element_size()
        step = tensor.stride(dim) * size
        if count == 1:  # nothing says how far apart blocks are: the one block is all of it
            step = extent.high - extent.low
        inner, outer = [(0, size)], [np.zeros(1, np.int64)]
        reach = size
        for other in range(tensor.dim()):
            stride, entries = tensor.stride(other) * size, tensor.shape[other]
            if other == dim or entries == 1 or not stride:
                continue
            if stride < step or count == 1:
                inner.append((stride, entries))
                reach += stride * (entries - 1)
            elif stride % (step * count):
                raise ValueError(f"pool {name}: blocks along dimension {dim} are not evenly spaced")
            else:
                outer.append(np.arange(entries, dtype=np.int64) * (stride // (step * count)))
        if reach > step:
            raise ValueError(f"pool {name}: blocks along dimension {dim} overlap")
        chunks, width = Extent(0, reach, (inner[0], *sorted(inner[1:]))).runs()
        slabs = outer[0]
        for more in outer[1:]:
            slabs = (slabs[:, None] + more).ravel()
        memory = tensor.untyped_storage()
        storage = (int(memory.data_ptr()), int(memory.nbytes()))
        every = tuple(sorted(int(at) for at in chunks))
        return cls(name, extent.low, extent.high, step, count, every, width, tuple(sorted(slabs.tolist())), storage)

    def blocks(self, tensor: Any) -> Ids:
        """The blocks that a tensor covers, sorted; none if it only lies between them. Raises `Unresolved`."""
        extent = Extent.of(tensor)
        return np.empty(0, np.int64) if extent is None else self.covered(extent)

    def covered(self, extent: Extent) -> Ids:
        if extent.low >= self.end or extent.high <= self.start:
            return np.empty(0, np.int64)
        starts, run = extent.runs()
        starts = starts + (extent.low - self.start)
        if len(self.chunks) > 1 and run >= self.step:  # it meets each chunk of what it runs over
            chunks, width = self.chunks[:1], self.chunks[-1] + self.width
        else:
            chunks, width = self.chunks, self.width
        if starts.size * len(chunks) > MOST_RUNS:
            raise Unresolved
        last = (self.slabs[-1] + 1) * self.count
        found = []
        for chunk in chunks:
            # from the first block that ends behind a run's start to the last that begins before its end
            low = np.maximum((starts - chunk - width) // self.step + 1, 0)
            high = np.minimum(-((chunk - starts - run) // self.step) - 1, last - 1)
            most = int((high - low).max()) + 1
            if most <= 0:
                continue
            if starts.size * most > 4 * MOST_RUNS:
                raise Unresolved
            every = low[:, None] + np.arange(most, dtype=np.int64)
            found.append(every[every <= high[:, None]])
        if not found:
            return np.empty(0, np.int64)
        places: Ids = np.unique(np.concatenate(found))
        if len(self.slabs) != self.slabs[-1] + 1:
            places = places[np.isin(places // self.count, np.array(self.slabs))]
        out: Ids = np.unique(places % self.count)
        return out


class Regions:
    """All registered pools. Searched one by one: an engine has one a layer at most."""

    def __init__(self) -> None:
        self.all: list[Region] = []
        self.on_first: Callable[[], None] | None = None
        """Called after the first region has been added."""

    def add(self, region: Region, tensor: Any = None) -> None:
        """A region takes the place of older ones whose memory it has, unless both are views of one storage: those of
        other pools stay beside it, and so do parts of the same pool that share no byte with it.
        """
        first = not self.all
        self.all[:] = [known for known in self.all if self._stays(known, region, tensor)]
        self.all.append(region)
        if first and self.on_first is not None:
            self.on_first()

    @staticmethod
    def _stays(known: Region, region: Region, tensor: Any) -> bool:
        if known.end <= region.start or known.start >= region.end:
            return True
        if known.storage != region.storage or tensor is None:
            return False
        if known.name != region.name:
            return True
        try:
            return not known.blocks(tensor).size
        except Unresolved:
            return False

    def find(self, tensor: Any) -> list[Region]:
        """The pools that a tensor's addresses, first to last, run into; `Region.blocks` says whether it meets them."""
        extent = Extent.of(tensor) if self.all else None
        if extent is None:
            return []
        low, high = extent.low, extent.high
        return [region for region in self.all if region.start < high and low < region.end]

    def touched(self, tensor: Any) -> bool:
        """Whether a tensor has a byte of a pool, or may have."""
        try:
            return any(region.blocks(tensor).size for region in self.find(tensor))
        except Unresolved:
            return True

    def __len__(self) -> int:
        return len(self.all)
