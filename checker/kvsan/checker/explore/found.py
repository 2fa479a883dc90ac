"""What an exploration found, and what that says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvsan.checker.explore.schedule import Schedule
from kvsan.checker.explore.scope import Scope
from kvsan.checker.explore.tracker import Pair
from kvsan.checker.verdict import Clean, Incomplete, Racy, Verdict
from kvsan.model.design import Claim, Design, Submit
from kvsan.model.hazard import Kind

Mode = Literal["exhaustive", "random"]


@dataclass(slots=True)
class Progress:
    """How far it is. `states`: that differ, of an exhaustive search; `moves`: choices made; `waiting`: states that are
    still to be gone on from; `runs`: whole runs, of a random one. `done`: the words and works that were seen in use."""

    mode: Mode
    states: int = 0
    moves: int = 0
    depth: int = 0
    waiting: int = 0
    runs: int = 0
    of: int = 0
    seconds: float = 0.0
    left: int | None = None
    found: dict[Pair, tuple[str, ...]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Finding:
    """A racy pair with a schedule that has it. `length`: its actions up to the race as a proof counts them; `proof`:
    those of the proof's own shortest schedule, if there is a proof. `claimed`: whether the design claims that there is
    none."""

    pair: Pair
    schedule: Schedule
    length: int
    proof: int | None
    claimed: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """`why` is why nothing is said, if nothing is. `never`: rules and works that no run had."""

    design: Design
    scope: Scope
    progress: Progress
    findings: tuple[Finding, ...]
    never: tuple[str, ...]
    why: tuple[str, ...] = ()
    interrupted: bool = False
    traces: Mapping[Pair, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        if any(finding.claimed for finding in self.findings):
            return Racy(self.why)
        return Incomplete(self.why) if self.why else Clean()


def claimed(design: Design, pair: Pair) -> bool:
    """Whether the design says that there is no such hazard."""
    return (Claim.RIGHT_GENERATION if pair.kind is Kind.GEN else Claim.RACE_FREE) in design.claims


def never(design: Design, done: set[str]) -> tuple[str, ...]:
    """What the design has and no run used: rules, and works and jobs that touched no block."""
    want = [rule.name for rule in design.rules]
    want += [work.name for work in design.works() if work.reads is not None or work.writes is not None]
    want += [item.name for item in design.step if isinstance(item, Submit)]
    return tuple(name for name in want if name not in done)
