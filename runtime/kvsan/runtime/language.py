"""The integer language model: what the right completion of a prompt is, worked out with no engine, pool or device.

A word of the KV cache is a hash of its token, its position, its layer and its place among the layer's words; the next
token is a hash of every word that the last position sees. The words are added up, so the order of reading is free,
and one word that is stale, torn or someone else's changes the next token and, through it, everything after. That
holds for one wrong word always (each step of the way is a bijection, but for the token's sign bit), for several with
a chance of 2^-63 of being missed.

The hash is the finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014; constants as in Vigna's https://prng.di.unimi.it/splitmix64.c), on signed 64-bit integers that wrap around. Every
function here takes numpy arrays and torch tensors alike, so a device computes what `answers` does (`forward.py`).

Not here: a word does not depend on the tokens before its own, so a block of another request that holds the same
tokens at the same positions of the same group is not wrong here, though it would be in a transformer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def signed(value: int) -> int:
    """The 64-bit integer of the same bits, as numpy and torch write it; bits above the 64th fall away."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


GOLDEN = signed(0x9E3779B97F4A7C15)
_FIRST = signed(0xBF58476D1CE4E5B9)
_SECOND = signed(0x94D049BB133111EB)
LARGEST = (1 << 63) - 1
"""A token is 0 … LARGEST."""
UNKNOWN = -1
"""Stands where a token is not known to the host yet."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers whose blocks are kept alike. `window`: how many positions a token sees, its own included; None: all."""

    name: str
    window: int | None = None

    def seen_from(self, position: int) -> int:
        """The first position that the token at `position` sees. What lies before it no later token sees either."""
        return 0 if self.window is None else max(position - self.window + 1, 0)


@dataclass(frozen=True, slots=True)
class Model:
    """A model of `groups` of `layers` layers each, `words` 64-bit words of KV a layer and token.

    A physical block holds `block_size` tokens of one group, so a pool's tensor is (layers, blocks, block_size, words)
    whatever group a block serves, as in vLLM's hybrid KV cache manager. A completion ends with a token that is 0
    modulo `stop_every` (None: at its wanted length only). Raises ValueError for a model that cannot be.
    """

    groups: tuple[Group, ...] = (Group("full"),)
    layers: int = 2
    block_size: int = 16
    words: int = 1
    stop_every: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"Model.groups: {names}; want one or more groups, each of its own name")
        sizes = {"layers": self.layers, "block_size": self.block_size, "words": self.words}
        sizes |= {} if self.stop_every is None else {"stop_every": self.stop_every}
        sizes |= {f"window of {group.name!r}": group.window for group in self.groups if group.window is not None}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"Model: {name} is {value}; want 1 or more")

    def pool_shape(self, blocks: int) -> tuple[int, int, int, int]:
        """The shape of a pool's tensor of 64-bit integers."""
        return (self.layers, blocks, self.block_size, self.words)

    def blocks(self, tokens: int) -> int:
        """How many blocks of one group `tokens` positions take, all of them kept."""
        return -(-tokens // self.block_size)

    def stops(self, token: int) -> bool:
        """Whether the token ends its completion."""
        return self.stop_every is not None and token % self.stop_every == 0


# ── the hash, on numpy arrays and torch tensors of int64 ──────────────────────────────────────────────────────────────


def mix(x: Any) -> Any:
    """A bijection of 64-bit integers, element by element; the argument stays as it is. The shifts are logical ones,
    written with the arithmetic shift that signed integers have."""
    x = x ^ ((x >> 30) & 0x3FFFFFFFF)
    x *= _FIRST
    x ^= (x >> 27) & 0x1FFFFFFFFF
    x *= _SECOND
    x ^= (x >> 31) & 0x1FFFFFFFF
    return x


def place(positions: Any) -> Any:
    """The hash of a position."""
    return mix((positions + 1) * GOLDEN)


def content(tokens: Any, places: Any) -> Any:
    """The hash of a token at its place, alike for all layers."""
    return mix(tokens ^ places)


def words(contents: Any, keys: Any) -> Any:
    """The KV words; the shapes broadcast."""
    return mix(contents ^ keys)


def terms(read: Any, places: Any, keys: Any) -> Any:
    """What words that were read add to the sum. The place and the key are the reader's: a word of elsewhere differs."""
    return mix(read ^ places ^ keys)


def sample(sums: Any, model: Model) -> Any:
    """The next token, from the sum over all words in view."""
    return mix(sums ^ signed(GOLDEN * (model.seed + 1))) & LARGEST


@lru_cache(maxsize=16)
def layer_keys(model: Model) -> Ints:
    """The key of every word of a token: (groups, layers, words), not to be written."""
    count = len(model.groups) * model.layers * model.words
    start = np.full(count, signed(model.seed * 2 + 1), np.int64)
    keys: Ints = mix(mix(start) + np.arange(1, count + 1) * GOLDEN).reshape(-1, model.layers, model.words)
    keys.flags.writeable = False
    return keys


# ── the right answer ──────────────────────────────────────────────────────────────────────────────────────────────────


def answer(model: Model, prompt: Sequence[int] | Ints, new_tokens: int) -> list[int]:
    """The completion of one prompt: at most `new_tokens` tokens, the last one may be a stop. See `answers`."""
    return answers(model, [(prompt, new_tokens)])[0]


def answers(model: Model, requests: Sequence[tuple[Sequence[int] | Ints, int]]) -> list[list[int]]:
    """The completions of (prompt, new tokens) pairs, all worked out side by side from running sums.

    Memory: requests × longest length × groups words. Raises ValueError for an empty prompt or a negative token.
    """
    prompts = [np.asarray(prompt, np.int64) for prompt, _ in requests]
    wanted = np.array([count for _, count in requests], np.int64)
    for number, prompt in enumerate(prompts):
        if not len(prompt) or prompt.min() < 0:
            raise ValueError(f"answers: prompt {number} is empty or has a negative token; want tokens of 0 … 2^63-1")
    lengths = np.array([len(prompt) for prompt in prompts], np.int64)
    if not len(prompts) or wanted.max() < 1:
        return [[] for _ in prompts]
    # sums[g, r, n]: all terms of group g in the first n positions of request r
    sums = np.zeros((len(model.groups), len(prompts), int((lengths + wanted).max()) + 1), np.int64)
    for row, prompt in enumerate(prompts):
        np.cumsum(_terms(model, prompt, np.arange(len(prompt))), axis=1, out=sums[:, row, 1 : len(prompt) + 1])
    back = np.array([LARGEST if group.window is None else group.window for group in model.groups])[:, None]
    group = np.arange(len(model.groups))[:, None]
    made: list[list[int]] = [[] for _ in prompts]
    rows = np.flatnonzero(wanted > 0)
    while len(rows):
        length = lengths[rows]
        seen = sums[:, rows, length] - sums[group, rows, np.maximum(length - back, 0)]
        tokens = sample(seen.sum(axis=0), model)
        sums[:, rows, length + 1] = sums[:, rows, length] + _terms(model, tokens, length)
        lengths[rows] += 1
        going = []
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            made[row].append(token)
            if len(made[row]) < wanted[row] and not model.stops(token):
                going.append(row)
        rows = np.array(going, np.int64)
    return made


def _terms(model: Model, tokens: Ints, positions: Ints) -> Ints:
    """What each token adds in each group: (groups, tokens)."""
    keys, places = layer_keys(model)[:, None], place(positions)[:, None, None]
    right = words(content(tokens, place(positions))[:, None, None], keys)
    added: Ints = terms(right, places, keys).sum(axis=(2, 3))
    return added


# ── which blocks hold the same ────────────────────────────────────────────────────────────────────────────────────────


def prefix_hash(previous: int | None, tokens: Sequence[int] | Ints, group: str) -> int:
    """The name of a full block's content: its tokens and all before them, by way of the hash of the block before
    (None: the first). Blocks of two groups never share one. A 64-bit BLAKE2b (RFC 7693); engines chain alike, see
    `hash_block_tokens` in vLLM's v1/core/kv_cache_utils.py.
    """
    digest = hashlib.blake2b(group.encode(), digest_size=8)
    digest.update(b"\0" if previous is None else b"\1" + previous.to_bytes(8, "little"))
    digest.update(np.asarray(tokens, np.int64).tobytes())
    return int.from_bytes(digest.digest(), "little")


def prefix_hashes(model: Model, tokens: Sequence[int] | Ints, group: str) -> list[int]:
    """The hashes of all full blocks of a prompt, first to last; a part of a block has none."""
    whole = np.asarray(tokens, np.int64)
    hashes: list[int] = []
    for start in range(0, len(whole) - model.block_size + 1, model.block_size):
        hashes.append(prefix_hash(hashes[-1] if hashes else None, whole[start : start + model.block_size], group))
    return hashes
