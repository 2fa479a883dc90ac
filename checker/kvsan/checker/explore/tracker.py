"""Which accesses of a run may still race, and what each stream and thread knows of them. It can go back.

The rules are `kvsan.model.order`'s, with a past as a set of accesses. What is added is what an explorer needs and a
checker of one trace does not: a copy of the state and the way back to it, every racy pair and not only a block's
first, and the forgetting of accesses that cannot race any more.

Forgotten is an access that everybody knows who may be checked against it: a past never loses an access, so it will
never race (`settled`). Forgotten is also one that somebody else makes superfluous: an earlier access of the same
work, to the same block, in the same mode, that is known wherever the other one is. Knowledge moves by unions and
copies of whole pasts, so that stays so, and whoever races with the first races with the second, as the same kind
between the same works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvsan.model.design import MAIN, Design
from kvsan.model.hazard import Kind, conflict
from kvsan.model.ops import Access, Op
from kvsan.model.order import Order, Recorded
from kvsan.model.pasts import Agent, Bits


class Past(NamedTuple):
    """An access of a block that may still race."""

    bit: int
    writes: bool
    work: str


class Pair(NamedTuple):
    """A hazard as a proof names it: a kind and two works, the earlier first. For `GEN` both are the same."""

    kind: Kind
    earlier: str
    later: str

    def __str__(self) -> str:
        return f"{self.kind} {self.later}" if self.kind is Kind.GEN else f"{self.kind} {self.earlier} -> {self.later}"


State = tuple[int, dict[Agent, int], dict[str, Recorded[int]], dict[str, int], tuple[tuple[Past, ...], ...]]


def checked(design: Design) -> tuple[Agent, ...]:
    """Against whose knowledge accesses are checked: streams that touch a block; hosts that do, or that issue a copy
    whose source may be read out of order."""
    out: dict[Agent, None] = {}
    threads = {job.name: thread.name for thread in design.threads for job in thread.jobs}
    for work in design.works():
        host = Agent(threads.get(work.name, MAIN), is_host=True)
        if work.on is None:
            out[host] = None
            continue
        out[Agent(work.on)] = None
        if work.order != "stream":
            out[host] = None
    return tuple(out)


class Tracker(Order[int]):
    """Takes the ops of one run, each call one op, and returns the racy pairs that it completes."""

    def __init__(self, design: Design, blocks: int) -> None:
        super().__init__(Bits())
        self.pool = design.pool
        self.checked = checked(design)
        self.op = 0
        self.accesses: list[tuple[Past, ...]] = [()] * blocks

    def __call__(self, what: Op) -> list[Pair]:
        op, self.op = self.op, self.op + 1
        issued = self.issue(op, what)
        if issued is None:
            return []
        assert isinstance(what, Access)
        bits = self.lattice
        assert isinstance(bits, Bits)
        reads, writes = bits.bit(issued.read), bits.bit(issued.write)
        found: list[tuple[int, Past]] = []
        races: dict[Pair, None] = {}
        for touched, known, bit, writing in (
            (what.reads.get(self.pool, ()), issued.reads, reads, False),
            (what.writes.get(self.pool, ()), issued.writes, writes, True),
        ):
            for block in touched:
                for past in self.accesses[block]:
                    if not known & past.bit and (kind := conflict(past.writes, writing)) is not None:
                        races[Pair(kind, past.work, what.label)] = None
                found.append((block, Past(bit, writing, what.label)))
        for block, past in found:
            self.accesses[block] += (past,)
        return list(races)

    # ── there and back ────────────────────────────────────────────────────────────────────────────────────────────

    def save(self) -> State:
        return self.op, dict(self._pasts), dict(self.events), dict(self._tokens), tuple(self.accesses)

    def load(self, state: State) -> None:
        self.op = state[0]
        self._pasts, self.events, self._tokens = dict(state[1]), dict(state[2]), dict(state[3])
        self.accesses = list(state[4])

    def settled(self) -> None:
        """Forgets what everybody knows who is ever asked, and tokens that were taken."""
        known = -1
        for agent in self.checked:
            known &= self.past(agent)
        self.accesses = [
            tuple(past for past in accesses if not known & past.bit) if accesses else () for accesses in self.accesses
        ]

    @property
    def tokens(self) -> Mapping[str, int]:
        return self._tokens
