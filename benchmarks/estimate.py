"""What a mode adds to a step, from the times of single steps: the bulk, the tail, and what was timed by itself.

A step's time is its work, the machine's mood, the mode, and now and then something that has to do with neither (another
process, a collection, an interrupt). The mean over blocks has all of them in its interval. Here they are told apart:

1. what a watcher does rarely (hands a batch to the process beside, a segment to its writer) was timed by itself and is
   not in a step's time; it comes back as what one costs, times how many a step there are when the mode is always on;
2. from each step's time the middle one of its sort of step is taken (`kind`: what the engine did), and from that the
   middle one of all modes' steps of the same round, so that slow spells of the machine fall on all modes;
3. what is left is cut at Tukey's fences (a quartile and 1.5 times the quartiles' distance) of all modes together, and
   the difference of means divided by the share that was not cut, since the others would have hidden what they had more
   (one step of Huber's estimate of location, 1964). That is the bulk; the rest of the plain difference is the tail.

Bulk and tail add up to the plain difference of means, so nothing is left out: the bulk says what lines cost, to a tenth
of what the plain mean can say, and the tail says whether something that is rare and dear is more frequent in one mode,
with the wide interval that such a question has. All intervals hold 95 %: percentiles of a bootstrap of whole rounds.

Does not cover: what a mode does to the steps of the others (each round has all of them in a new order).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLED = 4000
SORTED = 40
"""Steps that a sort has at least, else it is one with the others: its middle one must not be made of a few steps."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """One element a step: `us` its time, `kind` and `mode` numbers of its sort and its mode, `round` when it was."""

    us: Floats
    kind: npt.NDArray[np.int64]
    mode: npt.NDArray[np.int64]
    round: npt.NDArray[np.int64]


def _centred(values: Floats, groups: npt.NDArray[np.int64]) -> Floats:
    """Each less the median of its group."""
    out = values.copy()
    for group in np.unique(groups):
        which = groups == group
        out[which] -= np.median(values[which])
    return out


def residuals(steps: Steps) -> Floats:
    """What sort of step and round leave."""
    counts = np.bincount(steps.kind)
    kinds = np.where(counts[steps.kind] < SORTED, len(counts), steps.kind)
    return _centred(_centred(steps.us, kinds), steps.round)


def fences(values: Floats) -> tuple[float, float]:
    low, high = np.percentile(values, [25, 75]).tolist()
    return float(low - 1.5 * (high - low)), float(high + 1.5 * (high - low))


def compare(steps: Steps, base: int, mode: int) -> dict[str, Any]:
    """What `mode` adds to a step of `base`, in µs: `bulk`, `tail` and their sum `plain`, each with its interval."""
    left = residuals(steps)
    low, high = fences(left)
    inside = np.clip(left, low, high)
    rounds, where = np.unique(steps.round, return_inverse=True)

    def sums(values: Floats, of: int) -> Floats:
        made: Floats = np.bincount(where, np.where(steps.mode == of, values, 0.0), len(rounds)).astype(np.float64)
        return made

    counts = {of: sums(np.ones(len(left)), of) for of in (base, mode)}
    drawn = np.random.default_rng(0).integers(len(rounds), size=(RESAMPLED, len(rounds)))

    def spread(values: Floats) -> dict[str, Any]:
        parts = {of: sums(values, of) for of in (base, mode)}
        found = parts[mode].sum() / counts[mode].sum() - parts[base].sum() / counts[base].sum()
        again = np.zeros(RESAMPLED)
        for of, sign in ((mode, 1), (base, -1)):
            again += sign * parts[of][drawn].sum(1) / np.maximum(counts[of][drawn].sum(1), 1)
        ends = np.percentile(again, [2.5, 97.5]).tolist()
        return {"us": round(float(found), 2), "interval": [round(end, 2) for end in ends]}

    kept = float(np.mean((left == inside)[(steps.mode == base) | (steps.mode == mode)]))
    bulk = inside / kept
    beyond = {of: round(float(np.mean((left != inside)[steps.mode == of])), 4) for of in (base, mode)}
    return {
        "bulk": spread(bulk),
        "tail": spread(left - bulk),
        "plain": spread(left),
        "beyond": [beyond[base], beyond[mode]],
        "n": int(counts[mode].sum()),
    }


def steps_of(lines: Sequence[dict[str, Any]], clock: str, modes: Sequence[str]) -> Steps:
    """The steps of `gpu_engine.py cost`'s lines of rounds, by that clock: `wall` or `cpu`."""
    us, kinds, which, rounds = [], [], [], []
    known: dict[str, int] = {}
    for number, line in enumerate(lines):
        for at, mode in enumerate(modes):
            one = line[mode]
            us += one[clock]
            kinds += [known.setdefault(kind, len(known)) for kind in one["kind"]]
            which += [at] * len(one[clock])
            rounds += [number] * len(one[clock])
    return Steps(np.array(us, np.float64), np.array(kinds), np.array(which), np.array(rounds))
