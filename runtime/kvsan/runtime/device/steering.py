"""What a simulated machine does next: chosen by a policy and noted, or read from a schedule.

The machine may go on at each call of the host (`progress`), and has to where the host waits (`complete`). Each time it
has a list of moves (a task runs, a source is read ahead), and one number says which, `1 + 3 * move + how`, or that it
stops, 0; what `how` leaves open follows (`tasks.py`). The list is the same for every policy, so a schedule names none.

With a schedule's polls known in advance, a record that is going to be polled False is held until its last such poll:
what is behind it on its stream, or waits for it, does not run yet. That always works, since where the host waited in
the recorded run, all that it needed was complete then, so past its last False poll.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from kvsan.runtime.device.policy import Chooser, Moves, Policy
from kvsan.runtime.device.schedule import Checks, Schedule, ScheduleError, Tape
from kvsan.runtime.device.tasks import How
from kvsan.runtime.device.timeline import Record, Timeline

Needed = Callable[[], dict[str, int]]
PATIENCE = 8
"""How often in a row the host may poll one record and issue nothing, before the machine goes on whatever the policy."""
_HOW: tuple[How, ...] = (0, 1, 2)


class Steering:
    """`old` is a schedule to follow: its device choices too, if it has them."""

    def __init__(self, old: Schedule | None, policy: Policy, seed: int, threads: float) -> None:
        complete = old is not None and old.complete
        self._choices = Tape("device choices", old.choices if old else None, complete)
        self._polls = Tape("polls", old.polls if old else None, complete)
        self._turns = Tape("turns", old.turns if old else None, complete)
        self.checks = Checks(old)
        self._until = old.last_false() if old else {}
        self._asked = 0
        self.line = Timeline(lambda record: self._asked < self._until.get(record.number, 0))
        self.chooser = Chooser(policy, seed, self.line)
        self._random, self._threads = random.Random(f"{seed} threads").random, threads

    def schedule(self, *, complete: bool) -> Schedule:
        """What was chosen so far."""
        choices, polls, turns = (tuple(tape.made) for tape in (self._choices, self._polls, self._turns))
        return Schedule(choices, polls, turns, self.checks.made, self.checks.calls, complete)

    # ── the device's choices ──────────────────────────────────────────────────────────────────────────────────────

    def progress(self) -> None:
        """The machine goes on as far as it likes."""
        while self.line.tasks:
            moves = self._moves()
            if not moves.total or not self._move(moves, None):
                return

    def complete(self, record: Record) -> None:
        """The machine goes on until the record is complete, at least."""
        while not record.done:
            self._must(partial(self.line.needs, record))

    def finish(self) -> None:
        """The machine does all that there is."""
        self._release()
        while self.line.tasks:
            self._must(lambda: {name: stream.issued for name, stream in self.line.streams.items()})
        self.checks.close()

    def issued(self) -> None:
        """An access was issued. Is it the later op of a `hold`, the host is free from here on: that the two are
        unordered says that the machine may turn them round given the answers until now, and nothing of later polls."""
        held = self.chooser.policy.held
        if held is not None and self._choices.old is None and self.line.issued == held.until + 1:
            self._polls.old = self._turns.old = self.checks.old = None
            self._release()

    def _release(self) -> None:
        """No record is held for a poll any more."""
        self._until = {}
        for stream in self.line.streams.values():
            self.line.advance(stream)

    def _must(self, needed: Needed) -> None:
        moves = self._moves()
        if not moves.heads:
            raise ScheduleError(
                f"{self.checks.where}: what the host waits for is not complete before a later poll of the schedule"
            )
        if not self._move(moves, needed):
            raise ScheduleError(f"{self.checks.where}: the host waits here, and did not in the schedule")

    def _moves(self) -> Moves:
        return Moves(self.line.heads, self.line.unread)

    def _move(self, moves: Moves, needed: Needed | None) -> bool:
        few: list[int] = []
        if self._choices.reading:
            code = self._choices.read(self.checks.where, 3 * moves.total + 1)
        else:
            chosen = self.chooser.choose(moves, needed, self.checks.where)
            code = 0 if chosen is None else 1 + 3 * chosen.move + chosen.how
            few = [chosen.few] if chosen is not None and chosen.few is not None else []
            self._choices.write(code)
        if not code:
            return False
        index, how = divmod(code - 1, 3)
        ahead = index - len(moves.heads)
        task = moves.heads[index] if ahead < 0 else list(moves.ahead.values())[ahead]
        try:
            if ahead < 0:
                task.run(_HOW[how], partial(self._pick, few=few))
            else:
                task.read(_HOW[how], self._pick)
        finally:
            self.line.went_on(task)
        return True

    def _pick(self, options: int, few: list[int] | None = None) -> int:
        if options == 1:
            return 0
        if self._choices.reading:
            return self._choices.read(self.checks.where, options)
        return self._choices.write(few.pop() if few else self.chooser.pick(options))

    # ── the host's choices ────────────────────────────────────────────────────────────────────────────────────────

    def poll(self, record: Record | None) -> bool:
        """Whether the record is complete: as it is, or as the schedule says, which is then made true."""
        number = record.number if record is not None else 0
        where = self.checks.where
        if record is not None and not self._polls.reading and self._stuck(record):
            self._move(self._moves(), partial(self.line.needs, record))
        self.progress()
        if self._polls.reading:
            was, said = divmod(self._polls.read(where, 1 << 62), 2)
            if was != number:
                raise ScheduleError(f"{where}: poll {self._asked} is of record {number}, in the schedule of {was}")
            if said and record is not None:
                self.complete(record)
            if bool(said) != (record is None or record.done):
                raise ScheduleError(f"{where}: poll {self._asked} was {bool(said)}, and cannot be here")
        else:
            self._polls.write(2 * number + (record is None or record.done))
        self._asked += 1
        if record is None or record.done:
            return True
        if self._until.get(number) == self._asked:
            self.line.advance(record.stream)  # it was held for this poll, which was answered False
        return False

    def _stuck(self, record: Record) -> bool:
        """Whether the host seems to poll until this is complete: then the machine has to go on, as a real one does."""
        if record.done or record.issued != self.line.issued:
            record.polled, record.issued = 0, self.line.issued
        record.polled += 1
        return record.polled > PATIENCE and bool(self.line.heads) and not record.done

    def turn(self, threads: int) -> int:
        """Which of the host threads acts next, from 1 on; 0: none, for now."""
        if self._turns.reading:
            return self._turns.read(self.checks.where, threads + 1)
        more = self._random() < self._threads
        return self._turns.write(1 + int(self._random() * threads) if more else 0)
