"""A stretch of a test whose operations are checked: `with checked() as kvsan: …`, in pytest and outside it.

At its end a hazard raises `HazardsFound`, with the report; a verdict of Incomplete raises `NotChecked` with its reasons,
unless `incomplete="accept"` was said: what was not seen never passes for Clean unasked. An exception of the body goes
on as it is; what kvsan saw until then is added to it as a note.

Inside, the session is the process's: `kvsan.checker.access`, `register_pool`, `allow` and `simulated_cuda` find it, from
any thread. Opened in one another, the inner one hears what happens, and an outer one that heard nothing itself is not
judged: so a test may open one for each example of hypothesis.

Relies on `session.scoped`. Does not cover: child processes (they have `KVSAN=1`), and two tests at once in the threads of
one process (a session hears the whole process).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.options import Options, OptionsError
from kvsan.checker.report import session as words
from kvsan.checker.session import Session, scoped
from kvsan.checker.summary import Summary

if TYPE_CHECKING:
    from kvsan.checker.testing.cuda import SimulatedCuda

FAIL: Literal["fail"] = "fail"
ACCEPT: Literal["accept"] = "accept"
SHOWN = 5
"""Hazards that a failure's text has in full; the rest are counted."""


class HazardsFound(AssertionError):  # noqa: N818 - a finding, not an error of kvsan
    """The checked operations have a hazard. The text is the report; `summary` what was seen."""

    def __init__(self, text: str, summary: Summary) -> None:
        super().__init__(text)
        self.summary = summary


class NotChecked(AssertionError):  # noqa: N818 - a verdict
    """The verdict is Incomplete: no hazard, in a run that does not show what it had to."""

    def __init__(self, text: str, summary: Summary) -> None:
        super().__init__(text)
        self.summary = summary


@dataclass(frozen=True, slots=True)
class Defaults:
    """What `checked()` uses where it is not told: the plugin sets these for each test."""

    options: Options | None = None
    incomplete: Literal["fail", "accept"] = FAIL
    seed: object = 0


@dataclass(slots=True, eq=False)
class Checked:
    """What `checked()` gives. `devices` are the simulated ones that were made in it, `notes` what replays it besides."""

    session: Session
    incomplete: Literal["fail", "accept"] = FAIL
    seed: object = 0
    devices: list[SimulatedCuda] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    inner: list[Checked] = field(default_factory=list)
    summary: Summary | None = None
    """Set at the end."""

    @property
    def recorder(self) -> Recorder:
        return self.session.recorder

    def pool(self, name: str, blocks: int) -> None:
        """A pool that has a name and a size. Of a tensor: `kvsan.checker.register_pool`."""
        self.session.recorder.pool(name, blocks)

    def note(self, name: str, text: object) -> None:
        """Something that makes this run again: a seed, a schedule. It is kept with the trace of a failure."""
        self.notes[name] = str(text)

    def example(self, **given: Any) -> Any:
        """A context manager: what happens in it is checked by itself, with the options of this one."""
        return checked(
            given.pop("options", self.session.options),
            incomplete=given.pop("incomplete", self.incomplete),
            seed=given.pop("seed", self.seed),
            **given,
        )

    def replay(self) -> dict[str, str]:
        """What makes this run again: the seed, the answers of each simulated device, the notes."""
        out: dict[str, str] = {}
        for number, cuda in enumerate(self.devices):
            name = "" if len(self.devices) == 1 else f" {number}"
            out[f"seed{name}"], out[f"choices{name}"] = str(cuda.seed), cuda.choices
        return out | self.notes

    def allowed(self) -> dict[str, int]:
        """Reason → blocks whose hazards were allowed, here and in what was opened inside."""
        out: dict[str, int] = {}
        for found in self.session.allowed():
            out[found.reason] = out.get(found.reason, 0) + found.used
        for each in self.inner:
            for reason, blocks in each.allowed().items():
                out[reason] = out.get(reason, 0) + blocks
        return out

    def judged(self) -> Summary:
        """The summary as things stand."""
        return self.summary or self.session.summary()

    def failure(self) -> HazardsFound | NotChecked | None:
        """What is wrong as things stand, if anything is."""
        seen = self.judged()
        verdict = seen.verdict.name
        if verdict == "racy":
            return HazardsFound(self._report(seen), seen)
        if verdict == "clean" or self.incomplete == ACCEPT or (seen.idle and self.inner):
            return None
        return NotChecked(self._incomplete(seen), seen)

    def _report(self, seen: Summary) -> str:
        count = len(seen.findings)
        parts = [f"kvsan: {count} {'hazard' if count == 1 else 'hazards'}"]
        parts += [words.finding(found, self.session.pid, n) for n, found in enumerate(seen.findings[:SHOWN], 1)]
        if count > SHOWN:
            parts.append(f"and {count - SHOWN} more")
        parts += [f"{name}: {text}" for name, text in self.replay().items()]
        parts.append(words.summary(seen))
        return "\n".join(parts)

    def _incomplete(self, seen: Summary) -> str:
        why = "; ".join(getattr(seen.verdict, "why", ())) or "nothing was seen"
        return (
            f"kvsan: INCOMPLETE, so this test says nothing of the order: {why}. Accepted: a run that shows it, or"
            ' incomplete="accept" (kvsan_incomplete, --kvsan-incomplete=accept)'
        )


_open: list[Checked] = []
_defaults: list[Defaults] = [Defaults()]


def innermost() -> Checked | None:
    """The one that hears what happens now."""
    return _open[-1] if _open else None


@contextmanager
def defaults(given: Defaults) -> Iterator[None]:
    """What `checked()` uses in here: the plugin, for one test."""
    _defaults.append(given)
    try:
        yield
    finally:
        _defaults.remove(given)


def quiet(options: Options | None) -> Options:
    """Options for a session whose report is a test's failure: said once, there. Incidents are for runs of days."""
    return options or Options(log_path=os.devnull, incident=0.0)


@contextmanager
def checked(
    options: Options | None = None,
    *,
    incomplete: Literal["fail", "accept"] | None = None,
    seed: object = None,
    judge: bool = True,
    about: Mapping[str, Any] | None = None,
) -> Iterator[Checked]:
    """Checks what happens inside. `seed` is that of simulated devices that are given none. `judge=False`: nothing is
    raised; ask `failure()`. Raises `OptionsError`, `HazardsFound`, `NotChecked`.
    """
    default = _defaults[-1]
    if incomplete not in (None, FAIL, ACCEPT):
        raise OptionsError(f'incomplete is "{incomplete}"; accepted: fail or accept')
    session = Session(quiet(options or default.options))
    session.about.update(about or {})
    made = Checked(session, incomplete or default.incomplete, default.seed if seed is None else seed)
    if _open:
        _open[-1].inner.append(made)
    _open.append(made)
    try:
        with scoped(session):
            yield made
    except BaseException as error:
        _end(made)
        if judge and isinstance(error, Exception):
            wrong = made.failure()
            if isinstance(wrong, HazardsFound):
                error.add_note(str(wrong))
        raise
    else:
        _end(made)
        if judge and (wrong := made.failure()) is not None:
            raise wrong
    finally:
        if made in _open:
            _open.remove(made)


def _end(made: Checked) -> None:
    made.summary = made.session.close()
    made.session.say_summary()
    if made.session.options.log_path in ("stderr", "stdout"):
        sys.stdout.flush()
