"""Host time of an engine's steps in blocks, one block a mode, in a new order each round (`switching.py`).

A step counts if it decodes one token for each of all the sequences, which is known before its turn: so steps are alike
and a prompt's are not among them. A block is so many of those, whichever window they come from, in one mode; the first
after a switch is left out. Its figure is the mean time of their turns less what the host was blocked in `sync`, and
what it takes to work off the lines that they left waiting, at the end of the block or before a step that does not count
(`settle_us`, which is in `host_us`). Where lines would have waited for more of them that is rather too much: a batch
has its fixed cost once a block at least. What steps that do not count left waiting is worked off outside of the clock.

Does not cover: what a mode does to the other modes' steps in other processes or threads (caches, memory bandwidth).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.switching import Switchboard
from benchmarks.turns import watched

from kvsan.model.design import MAIN

SKIPPED = 1
"""Steps after a switch that do not count: the device has nothing in flight."""

Round = dict[str, dict[str, float]]


@dataclass
class Block:
    """Seconds, but for `lines`."""

    host: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    settle: float = 0.0
    lines: int = 0

    def figures(self) -> dict[str, float]:
        """µs a step; `step_us` from one step's end to the next."""
        steps = len(self.host)
        return {
            "host_us": round((sum(self.host) + self.settle) / steps * 1e6, 2),
            "settle_us": round(self.settle / steps * 1e6, 2),
            "step_us": round(sum(self.gaps) / max(len(self.gaps), 1) * 1e6, 2),
            "lines": round(self.lines / steps, 3),
        }


class Blocks:
    """`length`: steps that count in a block; `sequences`: how many an engine serves when all of them run. `each_round`
    is told of every round that is whole."""

    def __init__(
        self, board: Switchboard, sequences: int, length: int, seed: int, each_round: Callable[[Round], None]
    ) -> None:
        self.board, self.engine = board, board.engine
        self._sequences, self._length, self._each_round = sequences, length, each_round
        self._dice = random.Random(seed)
        self._order: list[str] = []
        self._round: Round = {}
        self._block: Block | None = None
        self._skip = 0
        self._owing = False
        self._blocked = 0.0
        self._ended = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """While this lasts, turns are timed and modes switched."""
        host = self.board.noted.hosts[MAIN]
        with watched(self.engine, host, self._turn, self._wait):
            yield

    def _wait(self, seconds: float) -> None:
        self._blocked += seconds

    def _decodes(self) -> bool:
        """Whether the next step is one token for each of all the sequences."""
        running = self.engine.scheduler.running
        return len(running) == self._sequences and all(one.todo(2) == 1 for one in running)

    def _turn(self, turn: Callable[[], Any]) -> Any:
        decodes = self._decodes()
        if not decodes:
            self._settle()
        elif self._block is None:
            self._begin()
        watcher = self.board.watcher
        launched, lines = self.engine.flight.launched, watcher.lines
        self._blocked = 0.0
        began = time.perf_counter()
        done = turn()
        ended = time.perf_counter()
        block = self._block
        if block is None or not decodes or self.engine.flight.launched == launched or self._skip:
            self._skip -= bool(self._skip and decodes)
            self._ended = 0.0
            watcher.settle()
            return done
        block.host.append(ended - began - self._blocked)
        block.lines += watcher.lines - lines
        if self._ended:
            block.gaps.append(ended - self._ended)
        self._ended, self._owing = ended, True
        if len(block.host) == self._length:
            self._end(block)
        return done

    def _settle(self) -> None:
        """On the clock, if steps that count may have left lines."""
        if self._owing and self._block is not None:
            began = time.perf_counter()
            self.board.watcher.settle()
            self._block.settle += time.perf_counter() - began
        self._owing = False

    def _begin(self) -> None:
        if not self._order:
            self._order = list(self.board.watchers)
            self._dice.shuffle(self._order)
        self.board.switch(self._order.pop())
        self._block, self._skip, self._ended = Block(), SKIPPED, 0.0

    def _end(self, block: Block) -> None:
        self._settle()
        self._round[self.board.mode] = block.figures()
        self._block = None
        if not self._order:
            whole, self._round = self._round, {}
            self._each_round(whole)
