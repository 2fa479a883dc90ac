"""Every run of a scope: breadth first over canonical states (`key.py`), each state gone on from once.

Breadth first, so the first schedule that has a pair is one with the fewest choices. It goes on behind a race, so every
pair is found that the scope has. States are known by their digest; the ones still to be gone on from are kept as the
choices that lead there, which is what a worker is handed, and what a checkpoint holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from kvsan.checker.explore.found import Progress
from kvsan.checker.explore.key import DIGEST, Keys
from kvsan.checker.explore.player import Player, Saved
from kvsan.checker.explore.scope import Scope
from kvsan.checker.explore.tracker import Pair
from kvsan.checker.spread import Spread, spread
from kvsan.model.design import Design

SHARE = 64
"""States a share."""
Path = tuple[str, ...]
Child = tuple[str, int, bytes, tuple[Pair, ...]]
"""A choice, for how many it stands, the digest of the state behind it, and what races on the way there."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """What a worker says of a share: for each state its choices, and which rules and works were in use."""

    children: list[list[Child]]
    done: frozenset[str]


class Expander:
    """Goes on from states."""

    def __init__(self, design: Design, scope: Scope) -> None:
        self._player = Player(design, scope)
        self._keys = Keys(self._player)
        self._trail: list[tuple[str, Saved]] = []

    def __call__(self, share: Sequence[Path]) -> Expanded:
        self._player.done.clear()
        children = [self._expand(path) for path in share]
        return Expanded(children, frozenset(self._player.done))

    def start(self) -> bytes:
        """The digest of the fresh pool."""
        self._player.reset()
        return self._keys.digest()

    def _expand(self, path: Path) -> list[Child]:
        player = self._player
        here = self._go(path)
        out: list[Child] = []
        for number, move in enumerate(player.moves()):
            if number:
                player.load(here)
            player.do(move.word)
            races = tuple(dict.fromkeys(pair for pair, _ in player.races))
            out.append((move.word, move.many, self._keys.digest(), races))
        return out

    def _go(self, path: Path) -> Saved:
        """Plays to the end of the path, from where it leaves the one before: neighbours in a level have most of their
        way in common."""
        player, trail = self._player, self._trail
        shared = 0
        while shared < min(len(trail), len(path)) and trail[shared][0] == path[shared]:
            shared += 1
        del trail[shared:]
        if trail:
            player.load(trail[-1][1])
        else:
            player.reset()
        for word in path[shared:]:
            player.do(word)
            trail.append((word, player.save()))
        return trail[-1][1] if trail else player.save()


@dataclass(slots=True)
class Search:
    """Where a search is: the level that is gone on from, how much of it is done, and the next one. `sizes` of the
    levels so far."""

    progress: Progress
    seen: set[bytes]
    level: list[Path]
    at: int = 0
    next: list[Path] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    @classmethod
    def new(cls, design: Design, scope: Scope) -> Search:
        return cls(Progress("exhaustive", states=1, waiting=1), {Expander(design, scope).start()}, [()], sizes=[1])

    @property
    def over(self) -> bool:
        return not self.level


Edge = Callable[[Path, bytes, int], None]


def run(
    design: Design,
    scope: Scope,
    search: Search,
    *,
    workers: int = 1,
    engine: str = "local",
    max_states: int | None = None,
    first: bool = False,
    tell: Callable[[Search], None] = lambda search: None,
    edges: Callable[[Path, list[Child]], None] | None = None,
) -> None:
    """Goes on until all is seen, or `max_states` are, or with `first` until the first race; `search` is where it then
    is. `tell` is called after each share. Raises `SpreadError`."""
    began = time.perf_counter() - search.progress.seconds
    work: Spread[list[Path], Expanded] = spread(partial(Expander, design, scope), workers, engine)
    try:
        while search.level:
            for share, expanded in _shares(work, search.level, search.at):
                for path, children in zip(share, expanded.children, strict=True):
                    _merge(search, path, children)
                    if edges is not None:
                        edges(path, children)
                search.at += len(share)
                progress = search.progress
                progress.done |= expanded.done
                progress.seconds = time.perf_counter() - began
                progress.waiting = len(search.level) - search.at + len(search.next)
                progress.left = estimate(search.sizes, len(search.next), search.at, len(search.level))
                tell(search)
                if (max_states is not None and progress.states >= max_states) or (first and progress.found):
                    return
            search.level, search.next, search.at = search.next, [], 0
            search.progress.depth += 1
            search.sizes.append(len(search.level))
    finally:
        work.close()


def _shares(work: Spread[list[Path], Expanded], level: list[Path], at: int) -> Iterator[tuple[list[Path], Expanded]]:
    shares = [level[start : start + SHARE] for start in range(at, len(level), SHARE)]
    return zip(shares, work.map(shares), strict=True)


def _merge(search: Search, path: Path, children: list[Child]) -> None:
    progress = search.progress
    for word, _, digest, races in children:
        progress.moves += 1
        there = (*path, word)
        for pair in races:
            progress.found.setdefault(pair, there)
        if digest not in search.seen:
            assert len(digest) == DIGEST
            search.seen.add(digest)
            search.next.append(there)
            progress.states += 1


def estimate(sizes: Sequence[int], next_size: int, at: int, of: int) -> int | None:
    """How many states there may be still. Levels grow by a factor that falls about evenly from level to level; it is
    continued so. None: too early to say."""
    grown = [b / a for a, b in pairwise(sizes[2:])]
    if at and of:
        sizes, grown = [*sizes, next_size * of // at], [*grown, next_size * of / at / of]
    if len(grown) < 5:
        return None
    factor, fall = grown[-1], (grown[-4] - grown[-1]) / 3
    if fall <= 0:
        return None
    size, left = float(sizes[-1]), of - at + float(sizes[-1]) - next_size
    while size >= 1 and (factor := factor - fall) > 0:
        size *= factor
        left += size
    return round(left)
