"""A step of the language model on a pool of KV blocks: the kernel that the engine launches.

`Forward` turns a `Batch` (which slots compute which positions, in which blocks) into a `Kernel`: what is read and
written, and parts that do it with torch's integer operations, the same on a CPU and on a GPU (but for the bijection,
which a GPU has in one kernel). First the words of the
new tokens are written, then every word in view of each row's last position is read, last the next token is taken.

Nothing here blocks the host. All indices of a step are worked out in numpy and go to the device in one copy from a
fresh pinned tensor: torch's host allocator does not hand that memory out again before the copy is done (`copy_` with
non_blocking records the stream on the block, aten/src/ATen/native/cuda/Copy.cu; `free` puts an event on each such
stream and the block comes back when they are complete, ATen/core/CachingHostAllocator.h). A token that the host does
not know yet is taken from the device's `tokens`.

Not covered: a row that samples nothing (a prompt's earlier chunk) reads, and what it read changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvsan.runtime.ballast import Ballast, Matrices
from kvsan.runtime.device import Ids, Kernel, Part
from kvsan.runtime.language import LARGEST, UNKNOWN, Ints, Model, content, layer_keys, mix, place, sample, terms, words

_FUSED = """template <typename T> T mix(T x) {
    unsigned long long z = static_cast<unsigned long long>(x);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return static_cast<T>(z ^ (z >> 31));
}"""
"""`language.mix` as one kernel, compiled at its first call (torch.cuda.jiterator): 9 µs of the host on an H200, where
the eleven operations take 85."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes, row by row. Arrays are read at the call of `Forward` and may be written after it.

    Row r is request slot `slots[r]`; it computes positions `first[r]` … `first[r] + count[r] - 1` (count of 1 or more)
    and samples a token after them if `samples[r]`. `tokens` holds the new positions' tokens, all rows' in a row,
    `UNKNOWN` for the one that was last sampled in the slot. `tables[g, slot, i]` is the block of group g for positions
    `i * block_size` …, -1 where there is none (behind a window).
    """

    slots: Ints
    first: Ints
    count: Ints
    tokens: Ints
    samples: npt.NDArray[np.bool_]
    tables: Ints


@dataclass(slots=True)
class _Step:
    """One step's indices, by name, on the host and (once the first part ran) on the device; and the sums."""

    host: Any
    cuts: dict[str, tuple[int, int]]
    on: dict[str, Any] = field(default_factory=dict)
    sums: Any = None


class Forward:
    """Makes the kernels of a model's steps on one pool.

    `pool` is the pool's tensor, (layers, blocks, block_size, words) of int64; `tokens` the last token sampled in each
    slot, (slots,) of int64 on the same device. `name` is the pool's name. The reading is cut into `parts` at least
    (None: 2 on a CPU, 1 elsewhere): by layers, and by blocks if that is more than there are layers. A kernel has two
    more, the writing and the sampling. Positions are less than `longest`: their hashes are kept on the device.
    `spin_cycles` (CUDA only) lets the kernel spin between its writes and its reads. Raises ValueError.
    """

    def __init__(
        self,
        model: Model,
        pool: Any,
        tokens: Any,
        *,
        name: str = "gpu",
        parts: int | None = None,
        longest: int = 1 << 14,
        ballast: Ballast | None = None,
        spin_cycles: int = 0,
    ) -> None:
        on_cpu = pool.device.type == "cpu"
        parts = parts or (2 if on_cpu else 1)
        if tuple(pool.shape) != model.pool_shape(pool.shape[1]) or not pool.is_contiguous():
            raise ValueError(
                f"Forward: a pool of {tuple(pool.shape)}; want (layers, blocks, block_size, words) in a row"
            )
        if spin_cycles and on_cpu:
            raise ValueError("Forward: spin_cycles on a CPU; want a CUDA device")
        self.model, self.pool, self.tokens, self.name, self.spin_cycles = model, pool, tokens, name, spin_cycles
        self.blocks = int(pool.shape[1])
        self._device, self._pinned = pool.device, not on_cpu
        self._mix = mix if on_cpu else torch.cuda.jiterator._create_jit_fn(_FUSED)
        self._ballast = None if ballast is None else Matrices(ballast, pool.device)
        self._flat = pool.view(model.layers, -1, model.words)
        # (layers, groups, words), so that one index over groups gives what broadcasts against the pool's layers
        keys = layer_keys(model).transpose(1, 0, 2).copy()
        self._keys = torch.from_numpy(keys).to(pool.device)
        self.longest = model.blocks(longest) * model.block_size
        self._places = torch.from_numpy(place(np.arange(self.longest))).to(pool.device)
        self._mix(self._places[:1])  # compiled now, not in a step
        self._offsets = torch.arange(model.block_size, device=pool.device)
        self._back = np.array([LARGEST if g.window is None else g.window for g in model.groups])[:, None]
        by_layer, by_block = min(parts, model.layers), -(-parts // model.layers)
        layers = [model.layers * i // by_layer for i in range(by_layer + 1)]
        if not on_cpu:
            torch.cuda.synchronize(pool.device)  # what was made here was made on another stream than the kernels'
        self._readings = [(low, high, i, by_block) for low, high in pairwise(layers) for i in range(by_block)]

    def __call__(self, batch: Batch, out: Any, step: int | None = None) -> Kernel:
        """The step's kernel. Its last part copies `tokens` to `out`, a row (slots,) of int64 (pinned, for a GPU) that
        is the step's own until the host has read it: `out[slot]` is the token of a row that samples. Raises ValueError,
        before anything is issued, for a block that is needed and not there.
        """
        size = self.model.block_size
        slots, first, count = batch.slots, batch.first, batch.count
        rows = np.arange(len(slots))
        last = first + count - 1
        if len(last) and last.max() >= self.longest:
            raise ValueError(f"Forward: position {last.max()}; want one of 0 … {self.longest - 1}")
        # the new tokens
        row, position = rows, first
        if len(batch.tokens) > len(rows):
            row = np.repeat(rows, count)
            position = np.arange(len(row)) + (first - np.cumsum(count) + count)[row]
        slot = slots[row]
        target = batch.tables[:, slot, position // size]
        # the blocks in view of each row's last position, for each group: (groups, rows), then one entry a block
        low = np.maximum(last - self._back + 1, 0)
        start = low // size
        counts = (last // size - start + 1).ravel()
        pairs = np.arange(len(counts))
        entry = np.repeat(pairs, counts)
        nth = np.arange(len(entry)) + (start.ravel() - np.cumsum(counts) + counts)[entry]
        group, reader = (pairs // max(len(rows), 1))[entry], np.tile(rows, len(start))[entry]
        begins = nth * size
        block = batch.tables[group, slots[reader], nth]
        if len(block) and (block.min() < 0 or block.max() >= self.blocks):
            at = int(((block < 0) | (block >= self.blocks)).argmax())
            raise ValueError(
                f"Forward: slot {slots[reader[at]]} has block {block[at]} of group "
                f"{self.model.groups[group[at]].name!r} for positions from {begins[at]}; "
                f"want one of 0 … {self.blocks - 1}, as position {last[reader[at]]} sees it"
            )
        # a new token that its own chunk's end does not see any more may have no block: nobody will read it
        there = target >= 0
        if target.size and target.max() >= self.blocks:
            raise ValueError(f"Forward: a new token in block {target.max()}; want one of 0 … {self.blocks - 1}, or -1")
        to_group, to_token = np.nonzero(there)
        target = target[there]
        sampled = np.flatnonzero(batch.samples)
        taken = self._pack(
            token=batch.tokens,
            slot=slot,
            position=position,
            to_cell=target * size + position[to_token] % size,
            to_group=to_group,
            to_token=to_token,
            block=block,
            nth=nth,
            low=low.ravel()[entry] - begins,
            high=last[reader] - begins,
            group=group,
            reader=reader,
            sampled=sampled,
            sampled_slot=slots[sampled],
        )
        parts: list[Part] = [lambda: self._write(taken, len(slots))]
        parts += [lambda cut=cut: self._read(taken, *cut) for cut in self._readings]  # type: ignore[misc]
        parts.append(lambda: self._sample(taken, out))
        reads, writes = {self.name: self._set(block)}, {self.name: self._set(target)}
        return Kernel("forward", reads, writes, parts, step)

    def _set(self, blocks: Ids) -> Ids:
        there = np.zeros(self.blocks, np.bool_)
        there[blocks] = True
        return np.flatnonzero(there)

    def _pack(self, **arrays: Ints) -> _Step:
        cuts, end = {}, 0
        for name, array in arrays.items():
            cuts[name] = (end, end + len(array))
            end += len(array)
        host = torch.empty(end, dtype=torch.int64, pin_memory=self._pinned)
        np.concatenate(tuple(arrays.values()), out=host.numpy())
        return _Step(host, cuts)

    # ── the parts: each issues torch operations on the current stream ─────────────────────────────────────────────

    def _write(self, step: _Step, rows: int) -> None:
        on = step.host.to(self._device, non_blocking=True)
        at = step.on = {name: on[low:high] for name, (low, high) in step.cuts.items()}
        step.sums = torch.zeros(rows, dtype=torch.int64, device=self._device)
        known = torch.where(at["token"] == UNKNOWN, self.tokens.index_select(0, at["slot"]), at["token"])
        contents = content(known, self._places.index_select(0, at["position"]), self._mix)
        to_token, to_group = contents.index_select(0, at["to_token"]), self._keys.index_select(1, at["to_group"])
        written = words(to_token[:, None], to_group, self._mix)
        self._flat.index_copy_(1, at["to_cell"], written)
        if self._ballast is not None:
            self._ballast.run(len(at["token"]))
        if self.spin_cycles:
            torch.cuda._sleep(self.spin_cycles)

    def _read(self, step: _Step, low: int, high: int, nth: int, of: int) -> None:
        at, count = step.on, len(step.on["block"])
        cut = slice(count * nth // of, count * (nth + 1) // of)
        places = self._places.view(-1, self.model.block_size).index_select(0, at["nth"][cut])
        keys = self._keys[low:high].index_select(1, at["group"][cut])
        read = self.pool[low:high].index_select(1, at["block"][cut])
        added = terms(read, places[:, :, None], keys[:, :, None], self._mix).sum((0, 3))
        seen = (self._offsets >= at["low"][cut, None]) & (self._offsets <= at["high"][cut, None])
        step.sums.index_add_(0, at["reader"][cut], (added * seen).sum(1))

    def _sample(self, step: _Step, out: Any) -> None:
        at = step.on
        chosen = sample(step.sums.index_select(0, at["sampled"]), self.model, self._mix)
        self.tokens.index_copy_(0, at["sampled_slot"], chosen)
        out.copy_(self.tokens, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a `Batch`, for a caller with no arrays of its own. `tables`: the blocks of each group in order."""

    slot: int
    first: int
    tokens: Sequence[int]
    tables: Sequence[Sequence[int]]
    samples: bool = True


def batch_of(rows: Sequence[Row]) -> Batch:
    """The rows as arrays. Slower than to keep arrays, which an engine does."""
    slots = max(row.slot for row in rows) + 1
    longest = max(len(table) for row in rows for table in row.tables)
    tables = np.full((len(rows[0].tables), slots, longest), -1, np.int64)
    for row in rows:
        for group, table in enumerate(row.tables):
            tables[group, row.slot, : len(table)] = table
    return Batch(
        slots=np.array([row.slot for row in rows], np.int64),
        first=np.array([row.first for row in rows], np.int64),
        count=np.array([len(row.tokens) for row in rows], np.int64),
        tokens=np.array([token for row in rows for token in row.tokens], np.int64),
        samples=np.array([row.samples for row in rows], np.bool_),
        tables=tables,
    )


def block_words(model: Model, tokens: Sequence[int] | Ints, group: int) -> list[Any]:
    """What the full blocks of a prompt hold: tensors of (layers, block_size, words), first to last."""
    count, size = len(tokens) // model.block_size, model.block_size
    whole = np.asarray(tokens, np.int64)[: count * size]
    made = words(content(whole, place(np.arange(len(whole))))[None, :, None], layer_keys(model)[group][:, None])
    return list(torch.from_numpy(made).reshape(model.layers, count, size, model.words).unbind(1))
