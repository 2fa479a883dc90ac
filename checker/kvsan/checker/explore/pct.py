"""Random runs: probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi, Nagarakatte, ASPLOS 2010).

Each actor gets a random priority, the possible choice of the highest goes next, and at `d - 1` random places of a run
the actor that would be next falls below all others. So few orders of the actors are tried, and each often: a race that
needs `d` things in the right order is met more often than by a fair die. An actor here is a rule on a block, the one
who launches steps, the one who looks at what is complete, each other thread, each item of a step.

`d` goes round from 1 to `DEPTH` with the seed, and every other run throws a fair die instead: what needs many changes,
the die finds. Run number n of seed s depends on n and s alone, so any share of runs can be done by anybody.

Every op goes to the checker (`online.Online`) as the engine would issue it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from kvsan.checker.explore.found import Progress
from kvsan.checker.explore.moves import LAUNCH
from kvsan.checker.explore.player import Move, Player, pools
from kvsan.checker.explore.scope import Scope
from kvsan.checker.explore.tracker import Pair
from kvsan.checker.online import Online
from kvsan.checker.spread import Spread, spread
from kvsan.model.design import Design
from kvsan.model.hazard import Kind
from kvsan.model.ops import Op, Stream

DEPTH = 5
SHARE = 50
"""Runs a share."""

Walk = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Walked:
    """What a worker says of a share: how many choices, which rules and works were in use, and for each pair the first
    run that had it, with its number."""

    moves: int
    done: frozenset[str]
    found: dict[Pair, tuple[int, Walk]]


class Chooser:
    """Chooses for one run."""

    def __init__(self, seed: int, number: int, length: int) -> None:
        self._dice = random.Random(f"{seed}/{number}")
        self._fair = number % 2 == 1
        depth = 1 + number // 2 % DEPTH
        self._drops = set(self._dice.sample(range(length), min(depth - 1, length)))
        self._priority: dict[str, float] = {}
        self._lowest = 0.0
        self._at = 0

    def __call__(self, moves: list[Move]) -> str:
        at, self._at = self._at, self._at + 1
        if self._fair:
            return self._dice.choice(moves).word
        for move in moves:
            actor = _actor(move.word)
            if actor not in self._priority:
                self._priority[actor] = self._dice.random()
        best = self._highest(moves)
        if at in self._drops:
            self._lowest -= 1
            self._priority[_actor(best)] = self._lowest
            best = self._highest(moves)
        return best

    def _highest(self, moves: list[Move]) -> str:
        top = max(self._priority[_actor(move.word)] for move in moves)
        return self._dice.choice([move.word for move in moves if self._priority[_actor(move.word)] == top])


def _actor(word: str) -> str:
    if word.startswith(f"{LAUNCH}-"):
        return LAUNCH
    return word.split(":")[0] if ":" in word else word


class Walker:
    """Makes random runs of a design."""

    def __init__(self, design: Design, scope: Scope, seed: int) -> None:
        self._design, self._seed = design, seed
        self._pools = pools(design, scope.blocks)
        self._streams = {stream.name: Stream() for stream in design.streams}
        self._player = Player(design, scope, self._hear)
        self._online = Online(self._pools, self._streams)
        self._count = 0
        self._pairs: list[Pair] = []
        self._length = 4 * scope.requests + 3 * scope.steps

    def _hear(self, what: Op) -> None:
        for hazard in self._online.feed(self._count, what):
            later = str(hazard.later.label)
            earlier = later if hazard.kind is Kind.GEN else str(hazard.earlier.label)
            self._pairs.append(Pair(hazard.kind, earlier, later))
        self._count += 1

    def __call__(self, share: tuple[int, int]) -> Walked:
        """Runs from number `share[0]` on, `share[1]` of them."""
        first, many = share
        self._player.done.clear()
        moves = 0
        found: dict[Pair, tuple[int, Walk]] = {}
        for number in range(first, first + many):
            walk = self.walk(number)
            moves += len(walk)
            for pair in self._pairs:
                found.setdefault(pair, (number, walk))
        return Walked(moves, frozenset(self._player.done), found)

    def walk(self, number: int) -> Walk:
        """One run to its end; `pairs` are what was found in it."""
        player = self._player
        player.reset()
        self._online = Online(self._pools, self._streams)
        self._count, self._pairs = 0, []
        choose = Chooser(self._seed, number, self._length)
        walk: list[str] = []
        while moves := player.moves():
            if len(walk) == LONGEST:
                break
            word = choose(moves)
            player.do(word)
            walk.append(word)
        return tuple(walk)

    @property
    def pairs(self) -> list[Pair]:
        """What the last run had."""
        return self._pairs


LONGEST = 1_000
"""Choices of a run, should a design have a rule that can be applied for ever."""


def run(
    design: Design,
    scope: Scope,
    progress: Progress,
    *,
    runs: int,
    seed: int = 0,
    workers: int = 1,
    engine: str = "local",
    first: bool = False,
    tell: Callable[[], None] = lambda: None,
) -> None:
    """Makes the runs that are still missing in `progress`, with `first` until the first race. Raises `SpreadError`."""
    began = time.perf_counter() - progress.seconds
    progress.of = runs
    work: Spread[tuple[int, int], Walked] = spread(partial(Walker, design, scope, seed), workers, engine)
    try:
        shares = list(_shares(progress.runs, runs))
        for share, walked in zip(shares, work.map(shares), strict=True):
            progress.runs += share[1]
            progress.moves += walked.moves
            progress.done |= walked.done
            for pair, (_, walk) in sorted(walked.found.items(), key=lambda item: item[1][0]):
                progress.found.setdefault(pair, walk)
            progress.seconds = time.perf_counter() - began
            tell()
            if first and progress.found:
                return
    finally:
        work.close()


def _shares(done: int, runs: int) -> Iterator[tuple[int, int]]:
    for start in range(done, runs, SHARE):
        yield start, min(SHARE, runs - start)
