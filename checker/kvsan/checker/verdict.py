"""The verdict on a run: Clean, Racy or Incomplete, and nothing maps Incomplete to Clean.

In a trace racy goes before incomplete (a hazard seen is a hazard, whatever was missed), and incomplete before clean.
Over several traces the exit status is that of the worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
    """Exit status of `kvsan check`; over several traces BAD_INPUT, else RACY, else INCOMPLETE, else CLEAN."""

    CLEAN = 0
    RACY = 1
    BAD_INPUT = 2
    INCOMPLETE = 3


@dataclass(frozen=True, slots=True)
class Clean:
    """Every conflicting pair was ordered, and all that was promised was seen."""

    name = "clean"
    exit = Exit.CLEAN


@dataclass(frozen=True, slots=True)
class Racy:
    """At least one hazard. `why` says what was not seen besides, if anything."""

    why: tuple[str, ...] = ()
    name = "racy"
    exit = Exit.RACY


@dataclass(frozen=True, slots=True)
class Incomplete:
    """No hazard, in a run that does not show what it had to: `why`."""

    why: tuple[str, ...]
    name = "incomplete"
    exit = Exit.INCOMPLETE


Verdict = Clean | Racy | Incomplete


def verdict(hazards: int, missing: Sequence[str]) -> Verdict:
    if hazards:
        return Racy(tuple(missing))
    return Incomplete(tuple(missing)) if missing else Clean()


def worst(exits: Sequence[Exit]) -> Exit:
    """The exit status over several traces."""
    for status in (Exit.BAD_INPUT, Exit.RACY, Exit.INCOMPLETE):
        if status in exits:
            return status
    return Exit.CLEAN
