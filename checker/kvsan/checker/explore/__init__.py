"""Explores what a design's host may see and do, each run checked by the happens-before check.

Which rule on which block, when a step is launched and seen, which of the items in any order comes first, when other
threads act: that is chosen here. What the device does when is not, since the check covers every timing of one order of
calls.
"""

from kvsan.checker.explore.count import Counted, count
from kvsan.checker.explore.explore import LONG, SMALL, How, explore
from kvsan.checker.explore.found import Finding, Outcome, Progress
from kvsan.checker.explore.player import NoSuchMoveError, Player
from kvsan.checker.explore.run import Run, replay
from kvsan.checker.explore.schedule import Schedule, ScheduleError, fingerprint
from kvsan.checker.explore.scope import Scope
from kvsan.checker.explore.shrink import shrink
from kvsan.checker.explore.tracker import Pair

__all__ = [
    "LONG",
    "SMALL",
    "Counted",
    "Finding",
    "How",
    "NoSuchMoveError",
    "Outcome",
    "Pair",
    "Player",
    "Progress",
    "Run",
    "Schedule",
    "ScheduleError",
    "Scope",
    "count",
    "explore",
    "fingerprint",
    "replay",
    "shrink",
]
