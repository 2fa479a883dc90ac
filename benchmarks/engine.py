"""The running engine that the benchmarks share: a million blocks, four streams that read, others that write.

What an access op costs depends on what it must look at, so the engine is put into a state in which a write has to
look at everything: each reader has just read, and each other stream has just written, one spare block which the
writer at hand does not know of. Its own blocks are all ordered behind it, which only their columns can show.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from kvsan.checker.online import Online
from kvsan.model.ops import Access, Blocks, Op, Record, Wait

BLOCKS = 1_000_000
READERS = 4
SETS = 16
"""Block sets that a benchmark goes through in turn: together they do not fit in the caches of a core."""

Ids = npt.NDArray[np.int64]
LAYOUTS = ("scattered", "runs of 16", "runs of 256", "one run")


def id_sets(count: int, layout: str) -> list[Ids]:
    """`SETS` sets of `count` distinct blocks (block 0 is spare), in the order in which an allocator gives them out."""
    rng = np.random.default_rng(count)
    lengths = {"scattered": 1, "runs of 16": 16, "runs of 256": 256, "one run": count}
    length = lengths[layout]
    sets = []
    for _ in range(SETS):
        starts = 1 + length * rng.choice((BLOCKS - 1) // length, -(-count // length), replace=False)
        sets.append((starts[:, None] + np.arange(length)).ravel()[:count])
    return sets


class Engine:
    """`feed` numbers the ops. Streams are `w` (who writes), `r0` to `r3`, and others up to `agents`, the host
    included.
    """

    def __init__(self, agents: int) -> None:
        self.online = Online({"gpu": BLOCKS})
        self._numbers = itertools.count()
        self.readers = [f"r{i}" for i in range(READERS)]
        self.others = [f"s{i}" for i in range(agents - READERS - 2)]
        for on in (*self.others, *self.readers):
            every, spare = {"gpu": Blocks(((1, BLOCKS),))}, {"gpu": Blocks(((0, 1),))}
            known = Access("h", on, reads=every) if on in self.readers else Access("h", on, writes=every)
            self.feed(known)
            self.feed(Record("h", on, "done"))
            for to in ("w", *self.others, *self.readers):
                self.feed(Wait("h", to, "done"))
            self._spare = spare
        self.feed(Access("h", "w", writes={"gpu": Blocks(((1, BLOCKS),))}))
        self.feed(Record("h", "w", "done"))
        for on in (*self.others, *self.readers):
            self.feed(Wait("h", on, "done"))

    def hide(self) -> None:
        """From here on every other stream has an access that `w` does not know of, to a block that `w` does not
        touch.
        """
        for on in self.others:
            self.feed(Access("h", on, writes=self._spare))
        for on in self.readers:
            self.feed(Access("h", on, reads=self._spare))

    def feed(self, op: Op) -> None:
        self.online.feed(next(self._numbers), op)

    def cycle(self, accesses: list[Access]) -> Callable[[], None]:
        """Feeds the next of `accesses` at each call."""
        feed, numbers, turn = self.online.feed, self._numbers, itertools.cycle(accesses)

        def one() -> None:
            assert not feed(next(numbers), next(turn))

        return one


def bare(columns: list[Ids], sets: list[Ids], known: int, vector: Ids) -> Callable[[], None]:
    """What any such check costs in numpy: gather each column at the ids, compare. No filter, no provenance, no update.

    The first column packs the writer beside its epoch, so that one column serves all writers.
    """
    turn: Iterator[Ids] = itertools.cycle(sets)
    write, *reads = columns
    epoch = (1 << 48) - 1

    def one() -> None:
        ids = next(turn)
        packed = write[ids]
        racing = np.count_nonzero((packed & epoch) > vector[packed >> 48])
        for column in reads:
            racing += np.count_nonzero(column[ids] > known)
        assert not racing

    return one
