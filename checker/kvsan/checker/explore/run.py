"""One schedule, played: what happened in words, the ops, and what the checker says of them.

The verdict is that of `kvsan check` on the ops as they are (`judge.check_trace`), by code that shares nothing with the
tracker of a search. Both are kept, so that a test can hold the one to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvsan.checker.explore.moves import LAUNCH
from kvsan.checker.explore.player import NoSuchMoveError, Player, pools
from kvsan.checker.explore.schedule import Schedule, ScheduleError, fingerprint
from kvsan.checker.explore.scope import Scope
from kvsan.checker.explore.tracker import Pair
from kvsan.checker.judge import Report, check_trace
from kvsan.checker.trace import Header, Trace, TraceWriter
from kvsan.model.design import Design
from kvsan.model.ops import Op, Stream

FREELY = 1 << 30


@dataclass(frozen=True, slots=True)
class Run:
    """`races`: each pair with the number of actions up to it, as a proof counts them. `length`: of the whole run."""

    schedule: Schedule
    words: tuple[str, ...]
    ops: tuple[Op, ...]
    races: dict[Pair, int]
    length: int
    report: Report
    same_design: bool

    def write(self, path: Path, design: Design) -> None:
        """The run as a trace for `kvsan check`. Raises `OSError`."""
        with TraceWriter(path, header(design, self.schedule.blocks, str(self.schedule))) as trace:
            for op in self.ops:
                trace.write(op)


class _Played(Trace):
    """Ops that were never a file."""

    def __init__(self, name: str, header: Header, ops: Iterable[Op]) -> None:
        super().__init__(name, header, (), lambda: 0)
        self._ops = ops

    def __iter__(self) -> Iterator[Op]:
        return iter(self._ops)


def header(design: Design, blocks: int, schedule: str) -> Header:
    """The head of a run's trace."""
    return Header(
        pools(design, blocks),
        {stream.name: Stream() for stream in design.streams},
        other={"design": design.name, "schedule": schedule},
    )


def replay(design: Design, schedule: Schedule) -> Run:
    """Plays the schedule. Raises `ScheduleError` where the design does not allow a choice."""
    heard: list[Op] = []
    player = Player(design, Scope(FREELY, schedule.blocks, FREELY, plain=True), also=heard.append)
    player.said = []
    races: dict[Pair, int] = {}
    for number, word in enumerate(schedule.moves, 1):
        try:
            player.do(word)
        except NoSuchMoveError as error:
            raise ScheduleError(f"choice {number} of {len(schedule.moves)}: {error}") from None
        for pair, length in player.races:
            races.setdefault(pair, length)
    name = f"{design.name}, {len(schedule.moves)} choices"
    report = check_trace(_Played(name, header(design, schedule.blocks, str(schedule)), heard), all_pairs=True)
    return Run(
        schedule,
        tuple(player.said),
        tuple(heard),
        races,
        player.length,
        report,
        schedule.fingerprint == fingerprint(design),
    )


def lenient(design: Design, blocks: int, words: Iterable[str], until: Pair) -> tuple[str, ...] | None:
    """Plays what can be played of the choices: one that there is not is left out, and inside a step the first that
    there is takes its place. Returns the choices made up to the first that has the pair; None if none has."""
    player = Player(design, Scope(FREELY, blocks, FREELY, plain=True))
    made: list[str] = []

    def do(word: str) -> bool:
        state = player.save()
        try:
            player.do(word)
        except NoSuchMoveError:
            player.load(state)
            return False
        made.append(word)
        return True

    def found() -> bool:
        return any(pair == until for pair, _ in player.races)

    for word in words:
        while not do(word):
            if player.todo is None:
                break
            do(player.moves()[0].word)
            if found():
                return tuple(made)
        if made and found():
            return tuple(made)
    return None


def steps(words: Iterable[str]) -> int:
    """How many steps a schedule launches."""
    return sum(word.split("-")[0] == LAUNCH for word in words)
