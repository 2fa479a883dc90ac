"""An op of a simulated machine that runs in parts: a kernel part by part, a copy pair by pair in any order.

What may happen to an op between its call and its completion, and no more: a kernel's parts follow one another; the
pairs of a copy are in no order among themselves, and a block may be copied layer by layer. With source order `any` the
source of a pair may be read at any moment from the call on; with `call` it was read at the call. One layer of one block
is the smallest thing that is copied at once.

Which part runs is asked of `choose(n)`, a number below n; it is not decided here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvsan.runtime.device import Ids, Part
from kvsan.runtime.device.versions import Op, Versions

Choose = Callable[[int], int]
How = Literal[0, 1, 2]
ALL: How = 0
"""All that is left."""
SOME: How = 1
"""Some parts or pairs: how many less one, then (a copy) from which of those left on."""
ONE: How = 2
"""A kernel's next part. Of a copy some layers of one pair: which of those left, how many layers less one, then from
which on."""

Words = npt.NDArray[np.int64]


class Task(ABC):
    """An op in a stream's queue. `loose`: its source is not read in stream order."""

    def __init__(self, op: Op, versions: Versions | None, loose: bool = False) -> None:
        self.op, self.versions, self.loose = op, versions, loose
        self.number = op.number
        self.stream = ""
        self.at = 0

    @property
    @abstractmethod
    def left(self) -> int:
        """How many parts or pairs are not complete."""

    @property
    def unread(self) -> bool:
        """Whether a part of the source may be read now although the op may not run yet."""
        return False

    @abstractmethod
    def run(self, how: How, choose: Choose) -> None:
        """Runs a part of it."""

    def read(self, how: How, choose: Choose) -> None:
        """Reads a part of its source ahead."""
        raise AssertionError("only a copy in order `any` is read ahead")


class KernelTask(Task):
    """A kernel: its parts in their order. One of no parts still is something that runs."""

    def __init__(self, op: Op, parts: tuple[Part, ...], versions: Versions | None) -> None:
        super().__init__(op, versions)
        self._parts, self._done, self._size = parts, 0, max(len(parts), 1)

    @property
    def left(self) -> int:
        return self._size - self._done

    def run(self, how: How, choose: Choose) -> None:
        end = self._size if how == ALL else self._done + 1 + (choose(self.left) if how == SOME else 0)
        if self.versions is not None:
            for pool, blocks in self.op.reads.items():
                self.versions.read(self.op, pool, blocks)
            for pool, blocks in self.op.writes.items():
                self.versions.write(self.op, pool, blocks)
        parts, self._done = self._parts[self._done : end], end
        for part in parts:
            part()


class CopyTask(Task):
    """A batched copy. `source` and `target` are the pools' words: (layers, blocks, …)."""

    def __init__(
        self,
        op: Op,
        source: tuple[str, Words, Ids],
        target: tuple[str, Words, Ids],
        order: str,
        versions: Versions | None,
    ) -> None:
        super().__init__(op, versions, order != "stream")
        self._from, self._source, self._sources = source
        self._to, self._target, self._targets = target
        self._layers = len(self._source)
        self._size = len(self._sources)
        self._pending: npt.NDArray[np.bool_] | None = None  # (pairs, layers) not written; None: all
        self._ahead: npt.NDArray[np.bool_] | None = None  # (pairs, layers) read already; None: none
        self._words: Words | None = None
        self._complete = False
        if order == "call":
            self._note_read(np.arange(self._size))
            self._words = self._source[:, self._sources]
            self._ahead = np.ones((self._size, self._layers), bool)

    @property
    def left(self) -> int:
        if self._complete:
            return 0
        return max(self._size, 1) if self._pending is None else int(self._pending.any(1).sum())

    @property
    def unread(self) -> bool:
        return self.loose and not self._complete and bool(self._unread().any())

    def _unread(self) -> npt.NDArray[np.bool_]:
        pending = np.ones((self._size, self._layers), bool) if self._pending is None else self._pending
        return pending if self._ahead is None else pending & ~self._ahead

    def run(self, how: How, choose: Choose) -> None:
        untouched = self._pending is None and self._ahead is None
        if not self._size or (how == ALL and untouched):  # mostly
            self._complete = True
            self._note_read(np.arange(self._size))
            self._note_write(np.arange(self._size))
            self._target[:, self._targets] = self._source[:, self._sources]
            return
        if self._pending is None:
            self._pending = np.ones((self._size, self._layers), bool)
        pairs, layers = _pick(self._pending, how, choose)
        self._note_write(pairs)
        self._target[layers, self._targets[pairs]] = self._take(pairs, layers)
        self._pending[pairs, layers] = False
        self._complete = not self._pending.any()

    def read(self, how: How, choose: Choose) -> None:
        pairs, layers = _pick(self._unread(), how, choose)
        if self._words is None or self._ahead is None:
            shape = (self._layers, self._size, *self._source.shape[2:])
            self._words, self._ahead = np.empty(shape, np.int64), np.zeros((self._size, self._layers), bool)
        self._note_read(pairs)
        self._words[layers, pairs] = self._source[layers, self._sources[pairs]]
        self._ahead[pairs, layers] = True

    def _take(self, pairs: Ids, layers: Ids) -> Words:
        """The words to write: read ahead, or now."""
        if self._words is None or self._ahead is None:
            self._note_read(pairs)
            return self._source[layers, self._sources[pairs]]
        ahead = self._ahead[pairs, layers]
        if ahead.all():
            return self._words[layers, pairs]
        now = ~ahead
        self._note_read(pairs[now])
        words = self._words[layers, pairs]
        words[now] = self._source[layers[now], self._sources[pairs[now]]]
        return words

    def _note_read(self, pairs: Ids) -> None:
        if self.versions is not None:
            self.versions.read(self.op, self._from, self._sources[np.unique(pairs)])

    def _note_write(self, pairs: Ids) -> None:
        if self.versions is not None:
            self.versions.write(self.op, self._to, self._targets[np.unique(pairs)])


def _pick(open_: npt.NDArray[np.bool_], how: How, choose: Choose) -> tuple[Ids, Ids]:
    """Some of the open (pair, layer) cells, as two index arrays."""
    if how == ALL:
        pairs, layers = np.nonzero(open_)
        return pairs, layers
    rows = np.flatnonzero(open_.any(1))
    if how == ONE:
        pair = rows[choose(len(rows))]
        layers = _some(np.flatnonzero(open_[pair]), choose)
        return np.full(len(layers), pair), layers
    rows = _some(rows, choose)
    at, layers = np.nonzero(open_[rows])
    return rows[at], layers


def _some(of: Ids, choose: Choose) -> Ids:
    """So many of them, from one of them on, around the end."""
    number = 1 + choose(len(of))
    return np.roll(of, -choose(len(of)))[:number]
