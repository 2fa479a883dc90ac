"""The process beside this one as a session sees it: what it is to be, what it must hear, what it has seen."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.beside.pipe import Account, BusyError, News, Pipe, Start
from kvsan.checker.live import Seen
from kvsan.checker.manners import numbered, own_path
from kvsan.checker.options import Options
from kvsan.checker.summary import NOT_CHECKED
from kvsan.checker.suppressions import Suppressions

SOON = 10
"""Seconds that a question waits for lines to be worked off that came before it: a SIGTERM may be behind it."""

AT_LAST = 120
"""Seconds that the end waits."""

TOO_LATE = "a hand-off taken too late"
WAY = "the way to the process that checks"


class Side:
    """`about` is the session's; it may change. `first`: as `session.is_first`. Called under the recorder's lock."""

    def __init__(
        self,
        options: Options,
        suppressions: Suppressions,
        recorder: Recorder,
        about: Mapping[str, Any],
        pid: int,
        *,
        first: bool,
    ) -> None:
        self._recorder, self._about = recorder, about
        began = time.time_ns()
        self.pipe = Pipe(
            lambda: Start(_for_it(options), suppressions, pid, first, began),
            self._news,
            recorder.ledger.changes,
            self._cut_off,
        )
        self._last: Account | None = None
        self._lost = 0

    def ask(self, *, last: bool = False, whole: bool = True) -> tuple[Account | None, str]:
        """What it has seen; without it, why not. `last`: it then ends, and later questions have the same answer;
        `whole`: the run was seen to its end.
        """
        if self._last is not None:
            return self._last, ""
        recorder = self._recorder
        if not recorder.ops:  # it has seen no line
            if last:
                self.pipe.stop()
            return Account(Seen.nothing(), (), 0), ""
        try:
            if last:
                account = self._last = self.pipe.end(AT_LAST, whole=whole)
            else:
                account = self.pipe.ask(SOON)
        except BusyError:
            return None, "a signal came while lines were handed to the process that checks"
        except TimeoutError as error:
            return None, str(error)
        except Exception as error:
            self.pipe.stop()
            self._cut_off(error)
            return None, "the process that checks gave no account of what it saw"
        if account.lost > self._lost:
            recorder.ledger.unseen(0, account.lost - self._lost, TOO_LATE)
            self._lost = account.lost
        if account.fault is not None:
            recorder.ledger.note(account.fault)
        return account, "" if account.seen is not None else NOT_CHECKED

    def _news(self) -> News:
        return News(self._recorder.ledger, dict(self._recorder.threads), dict(self._about))

    def _cut_off(self, error: Exception) -> None:
        self._recorder.fault(WAY, error)


def can_be(options: Options, *, binary: bool) -> bool:
    """Not where a hazard has to be raised in the engine, nor for the binary log alone, which costs less (`binary`: the
    trace is one), nor where Python does not know its own executable.
    """
    return bool(sys.executable) and not options.halt_on_error and (options.check or not binary)


def _for_it(given: Options) -> Options:
    """Its options: it checks where it is, its paths are this process's, and the report is this one's to write."""
    return replace(
        given,
        beside=False,
        report="",
        trace=own_path(given.trace) if given.trace else "",
        log_path=given.log_path if given.log_path in ("stderr", "stdout") else own_path(given.log_path),
        incident_path=own_path(numbered(given.incident_path)),
    )
