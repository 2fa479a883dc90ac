"""What `kvsan replay` does: a report, or a schedule string, becomes a run on the simulated machine, beside its control.

Each kind of thing that can be replayed is one function that gives a `Replayed`; another kind is another function.

- `by_hazard`: one of the hazards of a debug run, turned round (`witness.py`); the control has the missing order put in;
- `by_schedule`: a schedule of a run, all of its choices; the control is the same host in program order.

A witness is told the tokens that its host read in the run (`observed.py`). If others came out of the device, its
schedule string alone would not replay it, and none is given.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsan.checker.serving.observed import Observed, observe
from kvsan.checker.serving.trial import Trial, requests_for
from kvsan.checker.serving.witness import control, in_program_order, witness
from kvsan.model.hazard import Hazard
from kvsan.runtime.device.policy import policy
from kvsan.runtime.device.simulated import Simulated
from kvsan.runtime.device.versions import FRESH, Stray, strays


@dataclass(frozen=True, slots=True)
class Replayed:
    """`strays`, `control_strays`: what met another write than in program order, in the run and in the control."""

    what: str
    run: Observed
    strays: tuple[Stray, ...]
    control: Observed
    control_strays: tuple[Stray, ...]
    forced: str = ""

    @property
    def shown(self) -> bool:
        """Whether the run shows something that its control does not."""
        return bool(self.strays) and not self.control_strays

    def lines(self) -> list[str]:
        """For people."""
        out = [self.what]
        if self.forced:
            out.append(f"it cannot be held: {self.forced}")
        out += [f"replayed: {_words(stray, self.run)}" for stray in self.strays[:5]]
        if len(self.strays) > 5:
            out.append(f"          and {len(self.strays) - 5} more")
        if not self.strays:
            out.append("replayed: every access met the write of program order")
        held = f"{len(self.control_strays)} accesses differ" if self.control_strays else "nothing differs"
        out.append(f"control:  {held}")
        out.append(
            f"garbled:  {len(self.run.garbled)} of {len(self.run.done)} completions;"
            f" control: {len(self.control.garbled)} of {len(self.control.done)}"
        )
        return out if self.run.told_otherwise else [*out, f"schedule: {self.run.schedule}"]


def watched(trial: Trial, number: int = 0) -> Observed:
    """The round of a `kvsan run`, with everything observed."""
    device = Simulated(seed=trial.seed + number, policy=policy(trial.policy), observe=True)
    return observe(trial, device, requests_for(trial))


def by_hazard(trial: Trial, number: int, run: Observed, at: int) -> Replayed:
    """Hazard `at` of the run's report, from 0. Raises `IndexError`, and `NoOrderError` if it needs no timing."""
    hazard = run.report.hazards[at]
    served = requests_for(trial)
    shown, mended = witness(run, hazard, served, whole=True), control(run, hazard, served, whole=True)
    what = f"hazard {at} of {len(run.report.hazards)}: {title(hazard)}"
    forced = shown.forced.why if shown.forced is not None else ""
    return Replayed(what, shown.run, shown.strays, mended.run, mended.turned, forced)


def by_schedule(trial: Trial, schedule: str) -> Replayed:
    """A schedule of the trial's run. Raises `ValueError` if it is none, `ScheduleError` if it is of another run."""
    run = observe(trial, Simulated(replay=schedule, observe=True), requests_for(trial))
    right = in_program_order(run, requests_for(trial))
    met = tuple(strays(run.log))
    what = f"schedule of {len(schedule)} characters: {len(run.ops)} accesses, {len(run.report.hazards)} hazards"
    return Replayed(what, run, met, right, tuple(strays(right.log)))


def title(hazard: Hazard) -> str:
    """One line."""
    return (
        f"{hazard.kind} on {hazard.pool} {hazard.blocks}: op {hazard.earlier.op} ({hazard.earlier}),"
        f" op {hazard.later.op} ({hazard.later})"
    )


def _words(stray: Stray, run: Observed) -> str:
    def write(version: int) -> str:
        return "nothing" if version == FRESH else f"the write of {_name(run, version)}"

    did = "overwrote" if stray.write else "read"
    return (
        f"{_name(run, stray.op)} {did} {stray.pool} {stray.block} with {write(stray.version)} in it,"
        f" not {write(stray.expected)}"
    )


def _name(run: Observed, number: int) -> str:
    op = run.ops[number]
    where = f"on {op.on}" if op.on is not None else "by the host"
    return f"{op.name} {where}, step {op.step}" if op.step is not None else f"{op.name} {where}"
