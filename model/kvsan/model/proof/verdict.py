"""What a verification says: proved, refuted, unknown or refused, with everything that a report needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsan.model.design import MAIN, Claim, Design
from kvsan.model.proof.actions import Action
from kvsan.model.proof.certificate import Certificate
from kvsan.model.proof.graph import Stuck, Vacuous, WrongGeneration
from kvsan.model.proof.search import Pair, Schedule
from kvsan.model.proof.times import Times


@dataclass(frozen=True, slots=True)
class Race:
    """A pair that can race, with a shortest schedule. `run_ahead`: how many steps it needs in flight besides
    the one being launched, at most (None: more than was tried)."""

    pair: Pair
    schedule: Schedule
    run_ahead: int | None


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was found, of every property, claimed or not."""

    states: int
    control_states: int
    seconds: float
    races: tuple[Race, ...]
    kept_apart: tuple[Pair, ...]
    stuck: Stuck | None
    stuck_closed: Stuck | None
    vacuous: tuple[Vacuous, ...]
    wrong_generation: tuple[WrongGeneration, ...]
    not_quiescent: Schedule | None

    def broken(self) -> frozenset[Claim]:
        """The claims that do not hold."""
        truth = {
            Claim.RACE_FREE: not self.races,
            Claim.RIGHT_GENERATION: not self.wrong_generation,
            Claim.PROGRESS: self.stuck is None,
            Claim.CLOSED_PROGRESS: self.stuck_closed is None,
            Claim.NO_VACUOUS_WAIT: not self.vacuous,
            Claim.HOST_QUIESCENT: self.not_quiescent is None,
        }
        return frozenset(claim for claim, holds in truth.items() if not holds)


@dataclass(frozen=True, slots=True)
class Proved:
    """Every claim holds, for every number of blocks, requests and steps, and the design's run-ahead.

    If z3 was asked (`verify(..., certify=True)`): `certificate` is why nothing races, and z3 agrees; `times` are the
    races with a time for everything, found once more by z3 (a design may be proved without the claim to be free of
    races); `unchecked` is what z3 did not answer in time."""

    design: Design
    findings: Findings
    assumptions: tuple[str, ...]
    certificate: Certificate | None = None
    times: tuple[Times, ...] = ()
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuted:
    """`broken` are the claims that do not hold. `certificate`, `times`, `unchecked`: as in `Proved` (what is refuted
    may still be free of races)."""

    design: Design
    findings: Findings
    broken: tuple[Claim, ...]
    assumptions: tuple[str, ...]
    certificate: Certificate | None = None
    times: tuple[Times, ...] = ()
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """The cap on states was reached: nothing is said."""

    design: Design
    reason: str
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Something in the design can never happen, so a proof would be about less than it says."""

    design: Design
    dead: tuple[str, ...]
    assumptions: tuple[str, ...]


Verdict = Proved | Refuted | Unknown | Refused


def words(actions: Sequence[Action]) -> tuple[str, ...]:
    """One line an action, with the step that it is in, and the thread if there are several."""
    out = []
    launched = seen = 0
    threads = {action.thread for action in actions}
    for action in actions:
        label = action.label
        if action.kind == "launch":
            launched += 1
            label = f"launch step {launched}"
        elif action.kind == "see":
            seen += 1
            label = f"{label} ({seen} so far)"
        elif action.touch is not None and action.thread == MAIN:
            label = f"{label} [step {launched}]"
        if len(threads) > 1 and action.thread != MAIN:
            label = f"{action.thread}: {label}"
        out.append(label)
    return tuple(out)
