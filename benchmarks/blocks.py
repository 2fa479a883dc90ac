"""Host time of an engine's steps in blocks, one block a mode, in a new order each round (`switching.py`).

A step counts if it decodes one token for each of all the sequences, which is known before its turn: so a prompt's are
not among them. A block is so many of those, in one mode, and short: the modes' blocks of a round are neighbours in
time. The first step after a switch is left out. A step's time is that of its turn less what the host was blocked in
`sync` (`wall`), or the processor time of its thread (`cpu`), each less what the watcher does rarely (`switching.Rare`),
which is timed by itself: what waits at the end of a block waits until the mode's next one, as it would if the mode were
always on. `kind` says which step of its block it was, since the device has little in flight at first, and what the
engine did: blocks stored, loaded and taken from the pool, in powers of two. `filled` is by how much a step fills what
is handed on at once.

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

Round = dict[str, dict[str, Any]]


@dataclass
class Block:
    """One element a step; times in µs."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    filled: list[float] = field(default_factory=list)
    lines: int = 0
    rare: float = 0.0

    def figures(self) -> dict[str, Any]:
        """What a round's line says; `step_us`, from one step's end to the next, `lines` and `rare_us` are a step's."""
        steps = len(self.wall)
        return {
            "wall": self.wall,
            "cpu": self.cpu,
            "kind": self.kind,
            "filled": round(sum(self.filled) / max(len(self.filled), 1), 6),
            "step_us": round(sum(self.gaps) / max(len(self.gaps), 1), 2),
            "lines": round(self.lines / steps, 3),
            "rare_us": round(self.rare / steps, 2),
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

    def _done(self) -> tuple[int, ...]:
        """What the engine has done so far, in any mode."""
        transfers = self.engine.transfers
        return transfers.stored_blocks, transfers.loaded_blocks, -len(transfers.pools[0][0].queue)

    def _turn(self, turn: Callable[[], Any]) -> Any:
        decodes = self._decodes()
        if decodes and self._block is None:
            self._begin()
        watcher = self.board.watcher
        rare = watcher.rare
        launched, lines, before = self.engine.flight.launched, watcher.lines, self._done()
        filled, seen = (rare.filled(), rare.all) if rare is not None else (0.0, 0.0)
        self._blocked = 0.0
        began, cpu = time.perf_counter(), time.thread_time()
        done = turn()
        ended, cpu_ended = time.perf_counter(), time.thread_time()
        block = self._block
        if block is None or not decodes or self.engine.flight.launched == launched or self._skip:
            self._skip -= bool(self._skip and decodes)
            self._ended = 0.0
            return done
        apart = rare.all - seen if rare is not None else 0.0
        block.wall.append(round((ended - began - self._blocked - apart) * 1e6, 1))
        block.cpu.append(round((cpu_ended - cpu - apart) * 1e6, 1))
        block.rare += apart * 1e6
        block.lines += watcher.lines - lines
        did = (str((b - a).bit_length()) for a, b in zip(before, self._done(), strict=True))
        block.kind.append("/".join((str(len(block.kind)), *did)))
        if rare is not None and not apart:
            block.filled.append(rare.filled() - filled)
        if self._ended:
            block.gaps.append((ended - self._ended) * 1e6)
        self._ended = ended
        if len(block.wall) == self._length:
            self._end(block)
        return done

    def _begin(self) -> None:
        if not self._order:
            self._order = list(self.board.watchers)
            self._dice.shuffle(self._order)
        self.board.switch(self._order.pop())
        self._block, self._skip, self._ended = Block(), SKIPPED, 0.0

    def _end(self, block: Block) -> None:
        self._round[self.board.mode] = block.figures()
        self._block = None
        if not self._order:
            whole, self._round = self._round, {}
            self._each_round(whole)
