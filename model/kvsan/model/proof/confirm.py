"""A verdict's second opinion: z3 checks what the search said, by another road.

Free of races: an inductive certificate, checked by plain queries. Races: each is found again over real-valued times
at the same length, and none is found below. What z3 leaves undecided is said to be unchecked; what it contradicts is
an `InternalError`, never a verdict.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TypeVar

from kvsan.model.design import Claim
from kvsan.model.proof.bounded import Undecided, bounded
from kvsan.model.proof.certify import certify
from kvsan.model.proof.recheck import Rejected, Unchecked, recheck
from kvsan.model.proof.solver import InternalError, solver
from kvsan.model.proof.times import Times
from kvsan.model.proof.verdict import Proved, Refuted

Decided = TypeVar("Decided", Proved, Refuted)


def confirm(verdict: Decided, *, seconds: float, cap: int) -> Decided:
    """The verdict with its certificate, or with the times of its races. Raises `InternalError`, and
    `MissingSolverError`; `TooManyStatesError` only if the cap is below the one that the verdict was found with.
    """
    solver()
    until = time.monotonic() + seconds
    return _timed(verdict, until, cap) if verdict.findings.races else _certified(verdict, until, cap)


def _certified(verdict: Decided, until: float, cap: int) -> Decided:
    design, findings = verdict.design, verdict.findings
    quiescent = Claim.HOST_QUIESCENT in design.claims and findings.not_quiescent is None
    certificate = certify(design, quiescent=quiescent, cap=cap)
    answer = recheck(design, certificate, seconds=until - time.monotonic(), cap=cap)
    if isinstance(answer, Rejected):
        raise InternalError(f"{design.name}: the search found no race, z3 rejects the certificate ({answer.why})")
    if isinstance(answer, Unchecked):
        return replace(verdict, unchecked=(f"certificate not checked: {answer.why}",))
    return replace(verdict, certificate=certificate)


def _timed(verdict: Decided, until: float, cap: int) -> Decided:
    times: list[Times] = []
    unchecked: list[str] = []
    for race in verdict.findings.races:
        left = until - time.monotonic()
        found = (
            bounded(verdict.design, race.pair, len(race.schedule), race.run_ahead, seconds=left, cap=cap)
            if left > 0
            else Undecided(f"{race.pair}: no time left")
        )
        if isinstance(found, Undecided):
            unchecked.append(f"schedule not checked: {found.why}")
        else:
            times.append(found)
    return replace(verdict, times=tuple(times), unchecked=tuple(unchecked))
