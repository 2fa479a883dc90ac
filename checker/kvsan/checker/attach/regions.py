"""Which blocks of which registered pool a tensor covers, by address: arithmetic over strides, no torch.

A pool is a tensor of which one dimension counts blocks. A block's bytes need not lie together: with K and V in front
(`2 × blocks × …`) each block has two parts. So an address is in block `(address - start) // step % blocks`, where
`step` is the stride of that dimension in bytes.

A view is taken as runs of addresses: dimensions whose stride is below `step` make one run, the others say where runs
start. A run is a block's from its first byte to its last, gaps included: parts of a block are pools of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsan.checker.index import Ids

MOST_RUNS = 1 << 20


@dataclass(frozen=True, slots=True)
class Region:
    """One registered pool: addresses `start` to `end`, `count` blocks, `step` bytes apart."""

    name: str
    start: int
    end: int
    step: int
    count: int

    @classmethod
    def of(cls, tensor: Any, count: int, name: str, dim: int) -> Region:
        if tensor.shape[dim] != count:
            raise ValueError(f"pool {name}: dimension {dim} has {tensor.shape[dim]} entries, not {count} blocks")
        size = tensor.element_size()
        step = tensor.stride(dim) * size
        inner = 0
        for other in range(tensor.dim()):
            stride, extent = tensor.stride(other) * size, tensor.shape[other]
            if other == dim or extent == 1:
                continue
            if stride < step:
                inner += stride * (extent - 1)
            elif stride % (step * count):
                raise ValueError(f"pool {name}: blocks along dimension {dim} are not evenly spaced")
        if inner + size > step:
            raise ValueError(f"pool {name}: blocks along dimension {dim} overlap")
        start = tensor.data_ptr()
        span = sum(tensor.stride(d) * size * (tensor.shape[d] - 1) for d in range(tensor.dim())) + size
        return cls(name, start, start + span, step, count)

    def blocks(self, tensor: Any) -> Ids:
        """The blocks that a view of the pool covers, sorted."""
        size = tensor.element_size()
        starts = np.array([tensor.data_ptr() - self.start], np.int64)
        run = size
        if 0 in tensor.shape:
            return np.empty(0, np.int64)
        for extent, stride in zip(tensor.shape, tensor.stride(), strict=True):
            if extent == 1 or stride == 0:
                continue
            if stride * size < self.step or starts.size * extent > MOST_RUNS:
                run += stride * size * (extent - 1)
            else:
                starts = (starts[:, None] + np.arange(extent, dtype=np.int64) * (stride * size)).ravel()
        low, high = starts // self.step, (starts + run - 1) // self.step
        most = int((high - low).max()) + 1
        if most >= self.count:
            return np.arange(self.count, dtype=np.int64)
        every = low[:, None] + np.arange(most, dtype=np.int64)
        found: Ids = np.unique(every[every <= high[:, None]] % self.count)
        return found


class Regions:
    """All registered pools. Searched one by one: an engine has one a layer at most."""

    def __init__(self) -> None:
        self._all: list[Region] = []

    def add(self, region: Region) -> None:
        self._all = [known for known in self._all if known.end <= region.start or known.start >= region.end]
        self._all.append(region)

    def find(self, tensor: Any) -> Region | None:
        """The pool that a tensor's first byte lies in."""
        if not tensor.numel():
            return None
        at = tensor.data_ptr()
        return next((region for region in self._all if region.start <= at < region.end), None)

    def __len__(self) -> int:
        return len(self._all)
