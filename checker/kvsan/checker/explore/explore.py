"""From a design and a scope to an outcome: explores, shrinks what it finds, and lays the proof's length beside it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsan.checker.explore import checkpoint, pct, search
from kvsan.checker.explore.found import Finding, Mode, Outcome, Progress, claimed, never
from kvsan.checker.explore.moves import LAUNCH
from kvsan.checker.explore.run import replay
from kvsan.checker.explore.schedule import Schedule
from kvsan.checker.explore.scope import Scope
from kvsan.checker.explore.search import Search
from kvsan.checker.explore.shrink import shrink
from kvsan.checker.explore.tracker import Pair
from kvsan.model.design import Design

MAX_STATES = 2_000_000
"""Of an exhaustive search, if nobody says: some 100 bytes each."""
SMALL = Scope(2, 3, 3)
"""What is explored exhaustively, if nobody says."""
LONG = Scope(12, 3, 16)
"""What random runs go on for, if nobody says: a race needs a few things in a row, and a long run has many rows."""


@dataclass(frozen=True, slots=True)
class How:
    """How a scope is explored. `runs`: so many random runs; none is exhaustively. `first`: stop at the first race."""

    runs: int = 0
    seed: int = 0
    workers: int = 1
    engine: str = "local"
    max_states: int = MAX_STATES
    first: bool = False
    checkpoint: Path | None = None

    @property
    def mode(self) -> Mode:
        return "random" if self.runs else "exhaustive"


def explore(
    design: Design, scope: Scope, how: How = How(), tell: Callable[[Progress], None] = lambda progress: None
) -> Outcome:
    """Explores. Ctrl-C ends it behind the share that is being worked on, and what was found is kept
    (`Outcome.interrupted`); a second one ends it at once, and the checkpoint stays as it last was. Raises
    `checkpoint.CheckpointError`, `spread.SpreadError`, `OSError` if a checkpoint cannot be written."""
    about = checkpoint.asked(design, scope, how.mode, how.seed)
    progress = Progress(how.mode)
    found: Search | None = None
    if how.checkpoint is not None and how.checkpoint.exists():
        found = checkpoint.load(how.checkpoint, about, progress)
    elif how.mode == "exhaustive":
        found = Search.new(design, scope)
    if found is not None:
        progress = found.progress
    saved = time.monotonic()

    def keep(*, now: bool = False) -> None:
        nonlocal saved
        if how.checkpoint is not None and (now or time.monotonic() - saved > checkpoint.EVERY):
            checkpoint.save(how.checkpoint, about, progress, found)
            saved = time.monotonic()

    keep(now=True)  # a place that cannot be written is found out at once
    stop = Stop()

    def step(_: object = None) -> None:
        tell(progress)
        keep()
        stop.here()

    interrupted = False
    try:
        stop.begin()
        if found is not None:
            search.run(
                design,
                scope,
                found,
                workers=how.workers,
                engine=how.engine,
                max_states=how.max_states,
                first=how.first,
                tell=step,
            )
        else:
            pct.run(
                design,
                scope,
                progress,
                runs=how.runs,
                seed=how.seed,
                workers=how.workers,
                engine=how.engine,
                first=how.first,
                tell=step,
            )
    except KeyboardInterrupt:
        interrupted = True
    finally:
        stop.end()
    if not stop.torn:
        keep(now=True)
    why = tuple(_why(design, progress, found, interrupted=interrupted, first=how.first))
    return Outcome(
        design,
        scope,
        progress,
        findings(design, scope, progress.found),
        never(design, progress.done),
        why,
        interrupted,
    )


class Stop:
    """Ctrl-C, put off to a place at which all is in order. Only the main thread of a program can ask for that; in
    another one nothing is put off."""

    def __init__(self) -> None:
        self._asked = 0
        self._before: Any = None
        self.torn = False

    def begin(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._hear)

    def _hear(self, *_: object) -> None:
        self._asked += 1
        if self._asked > 1:
            self.torn = True
            raise KeyboardInterrupt

    def here(self) -> None:
        """All is in order. Raises `KeyboardInterrupt` if somebody has asked for it."""
        if self._asked:
            raise KeyboardInterrupt

    def end(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None


def _why(design: Design, progress: Progress, found: Search | None, *, interrupted: bool, first: bool) -> list[str]:
    out = []
    works = {work.name for work in design.works()}
    if not progress.done & works:
        out.append("no run touched a block")
    if interrupted:
        out.append("it was interrupted")
    elif found is not None and not found.over and not (first and progress.found):
        out.append(f"{progress.waiting:,} states were left when the limit was reached")
    return out


def findings(design: Design, scope: Scope, found: dict[Pair, tuple[str, ...]]) -> tuple[Finding, ...]:
    """Each pair with its schedule made short; the shortest first."""
    proof = proved(design)
    out = []
    for pair, words in found.items():
        short = renumbered(shrink(design, scope.blocks, words, pair))
        schedule = Schedule.of(design, _blocks(short), short)
        out.append(
            Finding(pair, schedule, replay(design, schedule).races[pair], proof.get(pair), claimed(design, pair))
        )
    return tuple(sorted(out, key=lambda finding: (not finding.claimed, finding.length, finding.pair)))


def renumbered(words: tuple[str, ...]) -> tuple[str, ...]:
    """The same choices with the blocks numbered as they come; to a design one block is as good as another."""
    numbers: dict[str, int] = {}

    def new(block: str) -> str:
        return str(numbers.setdefault(block, len(numbers)))

    out = []
    for word in words:
        if word.startswith(f"{LAUNCH}-"):
            out.append("-".join((LAUNCH, *sorted(map(new, word.split("-")[1:])))))
        elif "." in word:
            name, _, block = word.rpartition(".")
            out.append(f"{name}.{new(block)}")
        else:
            out.append(word)
    return tuple(out)


def _blocks(words: tuple[str, ...]) -> int:
    """So many blocks a schedule speaks of."""
    numbers = [int(word.rpartition(".")[2]) for word in words if "." in word]
    numbers += [int(part) for word in words if word.startswith(f"{LAUNCH}-") for part in word.split("-")[1:]]
    return max(numbers, default=0) + 1


def proved(design: Design) -> dict[Pair, int]:
    """How many actions the proof's own shortest schedule has, for each pair that it calls racy."""
    from kvsan.model.hazard import Kind
    from kvsan.model.proof import Proved, Refuted, verify

    verdict = verify(design)
    if not isinstance(verdict, Proved | Refuted):
        return {}
    races = {
        Pair(race.pair.kind, race.pair.earlier, race.pair.later): len(race.schedule) for race in verdict.findings.races
    }
    wrong = {Pair(Kind.GEN, one.work, one.work): len(one.schedule) for one in verdict.findings.wrong_generation}
    return races | wrong
