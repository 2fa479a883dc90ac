"""A stretch of a test whose operations are checked: `with checked() as kvsan: …`, in pytest and outside it.

At its end a hazard raises `HazardsFound`, with the report; a verdict of Incomplete raises `NotChecked` with its
reasons, unless `incomplete="accept"` was said: what was not seen never passes for Clean unasked. An exception of the
body goes on as it is; what kvsan saw until then is added to it as a note.

Inside, the session is the process's: `kvsan.checker.access`, `register_pool`, `allow` and `simulated_cuda` find it,
from any thread. Opened in one another, the inner one hears what happens, and an outer one that heard nothing itself is
not judged: so a test may open one for each example of hypothesis.

Relies on `session.scoped`. Does not cover: child processes (they have `KVSAN=1`), and two tests at once in the threads
of one process (a session hears the whole process).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.options import Options, OptionsError
from kvsan.checker.report import session as words
from kvsan.checker.session import Session, current, scoped
from kvsan.checker.summary import Summary

if TYPE_CHECKING:
    from kvsan.checker.testing.cuda import SimulatedCuda

FAIL: Literal["fail"] = "fail"
ACCEPT: Literal["accept"] = "accept"
QUIET = Options(log_path=os.devnull, incident=0.0)
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


class Host(Protocol):
    """Who runs the test: the pytest plugin, found where it is loaded."""

    def settings(self) -> Settings:
        """Of the test that runs now."""

    def began(self, made: Checked) -> None: ...

    def ended(self, made: Checked, wrong: str | None) -> None:
        """Its summary is final; `wrong` is why it failed, if it did."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `checked()` uses where it is not told."""

    options: Options = QUIET
    """The report of a test is its failure: it is said once, there. Incidents are for runs of days."""
    incomplete: Literal["fail", "accept"] = FAIL
    seed: object = 0


@dataclass(slots=True, eq=False)
class Checked:
    """What `checked()` gives. `devices`: the simulated ones that were made in it; `notes`: what replays it besides."""

    session: Session
    incomplete: Literal["fail", "accept"] = FAIL
    seed: object = 0
    devices: list[SimulatedCuda] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    inner: list[Checked] = field(default_factory=list)
    summary: Summary | None = None
    """Set at the end."""
    trace: str = ""
    """Where its trace is written, if the plugin keeps those of failures."""

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
        parts += [f"not seen besides: {why}" for why in getattr(seen.verdict, "why", ())]
        return "\n".join([*parts, *(f"{name}: {text}" for name, text in self.replay().items())])

    def _incomplete(self, seen: Summary) -> str:
        why = "; ".join(getattr(seen.verdict, "why", ())) or "nothing was seen"
        return (
            f"kvsan: INCOMPLETE, so this test says nothing of the order: {why}. Accepted: a run that shows it, or"
            ' incomplete="accept" (kvsan_incomplete, --kvsan-incomplete=accept)'
        )


listeners: list[Callable[[Session | None], None]] = []
"""Called with the session that hears from now on: simulated devices, whose hooks go with it."""

_open: list[Checked] = []
_PLUGIN = "kvsan.checker.testing.plugin"


def innermost() -> Checked | None:
    """The one that hears what happens now."""
    return _open[-1] if _open else None


def _host() -> Host | None:
    plugin: Any = sys.modules.get(_PLUGIN)  # never imported from here: outside pytest there is none
    return None if plugin is None else plugin.running()


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
    raised; ask `failure()`. What is left out is what the plugin was told, in a test of pytest. Raises `OptionsError`,
    `HazardsFound`, `NotChecked`.
    """
    __tracebackhide__ = True  # for pytest: the lines of interest are the test's
    if incomplete not in (None, FAIL, ACCEPT):
        raise OptionsError(f'incomplete is "{incomplete}"; accepted: fail or accept')
    host = _host()
    told = Settings() if host is None else host.settings()
    session = Session(told.options if options is None else options)
    session.about.update(about or {})
    made = Checked(session, incomplete or told.incomplete, told.seed if seed is None else seed)
    if host is not None:
        host.began(made)
    if _open:
        _open[-1].inner.append(made)
    _open.append(made)
    wrong: str | None = None
    try:
        with scoped(session):
            for listener in listeners:
                listener(session)
            yield made
        _end(made)
        if judge and (failure := made.failure()) is not None:
            wrong = str(failure)
            raise failure
    except BaseException as error:
        _end(made)
        if wrong is None and (isinstance(error, Exception) or type(error).__name__ == "Failed"):  # pytest.fail's
            wrong = f"{type(error).__name__}: {error}"
            failure = made.failure() if judge else None
            if isinstance(failure, HazardsFound):
                error.add_note(str(failure))
                wrong += f"\n{failure}"
        raise
    finally:
        _end(made)
        _open.remove(made)
        for listener in listeners:
            listener(current())
        if host is not None:
            host.ended(made, wrong)


def _end(made: Checked) -> None:
    if made.summary is None:
        made.summary = made.session.close()
        if made.session.options.log_path != os.devnull or made.session.options.report:
            made.session.say_summary()
