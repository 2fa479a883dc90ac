"""Which of a request's blocks a step reads and writes, for each kind of KV-cache group.

A group is a set of layers that share block ids. For a request of which `computed` tokens are done and `new` are
scheduled, a rule says: blocks `lo` to `hi` are read, `first` to `hi` are written, as positions in the request's list of
blocks. That list keeps ids that a window already gave back, so it is the window that decides and not the list.

Relied on: kinds are told by what a spec has (`sliding_window`, `attention_chunk_size`, …) and by its class's name.
`FullAttentionSpec.sliding_window` is not used: where vLLM merges windowed layers with full ones, it frees nothing
early, and some layer of the group may read everything.
Not covered: a kind without a rule; `unknown` then says its name and the run is Incomplete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Kind = Literal["full", "sliding", "chunked", "mamba", "cross", "none", "unknown"]


@dataclass(frozen=True, slots=True)
class Group:
    """One KV-cache group: tokens a block, its kind, and the window or chunk in tokens (0 if it has none)."""

    block_size: int
    kind: Kind = "full"
    width: int = 0
    spec: str = ""

    def ranges(self, computed: Ints, new: Ints, known: Ints) -> tuple[Ints, Ints, Ints]:
        """`(lo, first, hi)` for each request. `known`: how many blocks the request has in this group."""
        size = self.block_size
        hi = np.minimum((computed + new - 1) // size + 1, known)
        if self.kind == "sliding":
            lo = np.maximum(computed - self.width + 1, 0) // size
        elif self.kind == "chunked":
            lo = (computed // self.width * self.width) // size
        elif self.kind == "mamba":  # the state after the last token is read, the one after the new tokens is written
            lo = np.maximum(computed - 1, 0) // size
        elif self.kind == "cross":  # the encoder's output: all of it, written in the step that runs the encoder
            return np.zeros_like(known), known.copy(), known.copy()
        elif self.kind in ("none", "unknown"):
            return np.zeros_like(known), np.zeros_like(known), np.zeros_like(known)
        else:
            lo = np.zeros_like(known)
        first = np.minimum(computed // size, hi)
        return np.minimum(lo, hi), first, hi


def group_of(kv_cache_group: Any, context_parallel: int = 1) -> Group:
    """A `KVCacheGroupSpec` of vLLM as a `Group`."""
    spec = kv_cache_group.kv_cache_spec
    parts = getattr(spec, "kv_cache_specs", None)  # UniformTypeKVCacheSpecs: a spec a layer, all of one kind
    if parts:
        found = [_one(part, context_parallel) for part in parts.values()]
        widest = max(found, key=lambda group: (group.kind != "sliding", group.width))
        same = len({group.block_size for group in found}) == 1
        return widest if same else Group(widest.block_size, "unknown", 0, type(spec).__name__)
    return _one(spec, context_parallel)


def _one(spec: Any, context_parallel: int) -> Group:
    names = {cls.__name__ for cls in type(spec).__mro__}
    size, shown = int(spec.block_size), type(spec).__name__
    if "MambaSpec" in names:
        return Group(size, "mamba", 0, shown)
    size *= context_parallel
    if "SlidingWindowSpec" in names:
        return Group(size, "sliding", int(spec.sliding_window), shown)
    if "ChunkedLocalAttentionSpec" in names:
        return Group(size, "chunked", int(spec.attention_chunk_size), shown)
    if "CrossAttentionSpec" in names:
        return Group(size, "cross", 0, shown)
    if "EncoderOnlyAttentionSpec" in names:
        return Group(size, "none", 0, shown)
    if "FullAttentionSpec" in names:
        return Group(size, "full", 0, shown)
    return Group(size, "unknown", 0, shown)
