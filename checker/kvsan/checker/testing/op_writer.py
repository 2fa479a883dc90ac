"""Legal random ops: whatever an engine on these pools, streams and threads could have issued.

A `Writer` turns small numbers into ops one at a time. Legal means: a get has its put, a token is put once, a block is
allocated or touched only while it is free and freed only while it is not, no id is named twice in an access. Events may
be waited for before they are recorded, and blocks accessed while they are free: engines do that.

`safe`: before each access the writer orders it behind all that it would race with, with the means that the numbers
choose: a record and a wait, a sync of the stream, a poll, a hand-off. Such a stream of ops has no hazard, by the rules
of `DESIGN.md`: the new access comes after the newest access of every other agent to its blocks, and so after all.

Does not cover: batches, `planned`, ops of several processes, legacy streams in `safe` (their barriers only add order).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from kvsan.checker.testing.random_designs import Dice
from kvsan.model.ops import (
    Access,
    Alloc,
    Blocks,
    Drop,
    Free,
    Get,
    Op,
    Poll,
    Put,
    Record,
    Source,
    Stream,
    Sync,
    Touch,
    Wait,
)

_WORDS = (
    *(("access",) * 12),
    *(("record",) * 4),
    *(("wait",) * 4),
    "sync",
    "poll",
    "put",
    "get",
    *("life",) * 3,
    "drop",
)
_SHAPES: tuple[Literal["write", "read", "copy", "update"], ...] = ("write", "read", "copy", "update")
_ORDERS: tuple[Source, ...] = ("stream", "stream", "stream", "any", "call")
SHARED = 4
"""Events that are recorded again and again."""

Agent = tuple[str, str]
"""("stream" or "host", name)."""


class Writer:
    """`ops` is what was written so far. Every `step` adds one op of its own, and before it what `safe` asks for."""

    def __init__(
        self, pools: Mapping[str, int], streams: Sequence[str], threads: Sequence[str], *, safe: bool = False
    ) -> None:
        self.ops: list[Op] = []
        self._pools, self._streams, self._threads, self._safe = dict(pools), list(streams), list(threads), safe
        self._recorded: dict[str, None] = {}
        self._put: list[str] = []
        self._live: dict[str, set[int]] = {pool: set() for pool in pools}
        self._touched: dict[tuple[str, int], set[Agent]] = {}
        self._names = 0

    def step(self, dice: Dice) -> None:
        """One more op; nothing, if what the dice name is impossible now (a get before any put)."""
        by = dice.one(self._threads)
        match dice.one(_WORDS):
            case "access":
                self._access(by, dice)
            case "record":
                self._record(by, dice.one(self._streams), f"e{dice.pick(SHARED)}")
            case "wait":
                self.ops.append(Wait(by, dice.one(self._streams), self._an_event(dice)))
            case "sync":
                stream = dice.one([None, *self._streams])
                self.ops.append(Sync(by, stream=stream) if stream else Sync(by, event=self._an_event(dice)))
            case "poll":
                self.ops.append(Poll(by, self._an_event(dice), dice.pick(2) == 0))
            case "put":
                self._put.append(self._fresh("t"))
                self.ops.append(Put(by, self._put[-1]))
            case "get" if self._put:
                self.ops.append(Get(by, dice.one(self._put[-SHARED:])))
            case "life":
                self._life(by, dice)
            case "drop" if self._recorded:
                event = dice.one(list(self._recorded))
                del self._recorded[event]
                self.ops.append(Drop(by, event))

    # ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fresh(self, what: str) -> str:
        self._names += 1
        return f"{what}.{self._names}"

    def _record(self, by: str, stream: str, event: str) -> None:
        self._recorded[event] = None
        self.ops.append(Record(by, stream, event))

    def _an_event(self, dice: Dice) -> str:
        """A recorded one mostly; else one that may never have been."""
        if self._recorded and dice.pick(6) < 5:
            return dice.one(list(self._recorded)[-SHARED:])
        return f"e{dice.pick(SHARED)}"

    def _ids(self, dice: Dice, pool: str) -> list[int]:
        size = self._pools[pool]
        first = dice.pick(size)
        return sorted({(first + n) % size for n in range(1 + dice.pick(min(3, size)))})

    def _life(self, by: str, dice: Dice) -> None:
        pool = dice.one(list(self._pools))
        chosen, live = self._ids(dice, pool), self._live[pool]
        is_live = chosen[0] in live
        blocks = [block for block in chosen if (block in live) == is_live]
        kind: Any = Free if is_live else (Touch if dice.pick(4) == 3 else Alloc)
        live.symmetric_difference_update(blocks)
        self.ops.append(kind(by, pool, Blocks.of(blocks)))

    def _access(self, by: str, dice: Dice) -> None:
        where = dice.pick(len(self._streams) * 3 + 1)
        on = None if where == len(self._streams) * 3 else self._streams[where % len(self._streams)]
        shape, pool = dice.one(_SHAPES), dice.one(list(self._pools))
        order: Source = dice.one(_ORDERS) if on is not None and shape != "write" else "stream"
        reads: dict[str, list[int]] = {} if shape == "write" else {pool: self._ids(dice, pool)}
        if shape == "copy":
            pool = dice.one(list(self._pools))
        writes = {} if shape == "read" else dict(reads) if shape == "update" else {pool: self._ids(dice, pool)}
        access = Access(by, on, _blocks(reads), _blocks(writes), shape, order)
        if self._safe:
            self._order(access, [(p, b) for ids in (reads, writes) for p, bs in ids.items() for b in bs], dice)
        self.ops.append(access)
        agents: list[Agent] = [("host", by)] if on is None else [("stream", on)]
        if order == "call":
            agents.append(("host", by))
        for ids in (reads, writes):
            for p, blocks in ids.items():
                for block in blocks:
                    self._touched.setdefault((p, block), set()).update(agents)

    def _order(self, access: Access, blocks: list[tuple[str, int]], dice: Dice) -> None:
        """Orders the access behind everything that touched its blocks."""
        by, on = access.by, access.on
        outside = on is None or access.order != "stream"  # some of it is ordered by the host thread alone
        others: set[Agent] = set().union(*(self._touched.get(block, set()) for block in blocks))
        for kind, name in sorted(others):
            if kind == "host":
                if name != by:
                    token = self._fresh("t")
                    self.ops += [Put(name, token), Get(by, token)]
            elif outside:
                self._host_learns(by, name, dice)
            elif name != on:
                event = self._fresh("use")
                self._record(by, name, event)
                if dice.pick(4) == 3:
                    self.ops.append(Sync(by, event=event))
                else:
                    self.ops.append(Wait(by, str(on), event))

    def _host_learns(self, by: str, stream: str, dice: Dice) -> None:
        if dice.pick(2) == 0:
            self.ops.append(Sync(by, stream=stream))
            return
        event = self._fresh("use")
        self._record(by, stream, event)
        self.ops.append(Poll(by, event, True) if dice.pick(2) else Sync(by, event=event))


def _blocks(ids: Mapping[str, list[int]]) -> dict[str, Blocks]:
    return {pool: Blocks.of(blocks) for pool, blocks in ids.items()}


DEFAULT_POOLS = {"gpu": 4, "cpu": 4}
DEFAULT_STREAMS = {name: Stream() for name in ("compute", "load", "store")}
DEFAULT_THREADS = ("h0", "h1")
