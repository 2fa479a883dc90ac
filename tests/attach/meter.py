"""Where the host time of kvsan's hooks goes: µs and calls by hook, and inside them by method of the recorder.

For benchmarks alone: it puts clocks around what `Patches` puts in place and around the recorder's methods, and must be
switched on before anything is hooked. The time of a hook is that of its wrapper less that of the engine's function
inside it, so a hook inside another's original counts for itself. Each call pays for the clocks, some 0.3 µs that are
in the figures; threads share the counts and may lose one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from kvsan.checker.attach import handoff
from kvsan.checker.attach.patches import Patches
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.torch.crosscheck import CrossCheck

METHODS = ("access", "record", "wait", "wait_stream", "poll", "put", "get", "alloc", "free", "touch", "seen_done")
CALLBACKS = ("record_call", "wait_call", "stream_sync")
LISTS = ("_give", "_take")


class Meter:
    """Sums by name. `on` is whether they are being kept."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.on = False
        self._clock = clock
        self.hooks: dict[str, list[float]] = {}
        self.methods: dict[str, list[float]] = {}

    def clear(self) -> None:
        for sums in (*self.hooks.values(), *self.methods.values()):
            sums[:] = [0, 0.0]

    def around(self, sums: list[float], function: Callable[..., Any], sign: int) -> Callable[..., Any]:
        """A clock that adds (+1: a wrapper, and counts it) or takes off (-1: the original inside)."""

        clock = self._clock

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return function(*args, **kwargs)
            began = clock()
            try:
                return function(*args, **kwargs)
            finally:
                sums[1] += sign * (clock() - began)
                sums[0] += sign > 0

        return timed

    def rows(self, steps: int) -> dict[str, dict[str, list[float]]]:
        """By hook and by method: calls a step, µs a step."""
        return {
            kind: {
                name: [round(count / steps, 2), round(1e6 * seconds / steps, 1)]
                for name, (count, seconds) in sorted(sums.items(), key=lambda item: -item[1][1])
                if count
            }
            for kind, sums in (("hooks", self.hooks), ("methods", self.methods))
        }


@contextmanager
def metered(clock: Callable[[], float] = perf_counter) -> Iterator[Meter]:
    """What is hooked from here on has clocks."""
    meter = Meter(clock)
    wrap = Patches.wrap

    def clocked(self: Patches, owner: Any, name: str, make: Callable[[Any], Any], hook: Any = None) -> bool:
        sums = meter.hooks.setdefault(f"{getattr(owner, '__name__', owner)}.{name}", [0, 0.0])
        return wrap(
            self, owner, name, lambda original: meter.around(sums, make(meter.around(sums, original, -1)), 1), hook
        )

    kept: list[tuple[Any, str, Any]] = [(Patches, "wrap", wrap)]
    vars_of: list[tuple[Any, tuple[str, ...], dict[str, list[float]]]] = [
        (Recorder, METHODS, meter.methods),
        (CrossCheck, CALLBACKS, meter.hooks),
        (handoff.HandingList, LISTS, meter.hooks),
    ]
    setattr(Patches, "wrap", clocked)  # noqa: B010 - mypy refuses to assign a method
    for owner, names, table in vars_of:
        for name in names:
            original = getattr(owner, name)
            kept.append((owner, name, original))
            setattr(owner, name, meter.around(table.setdefault(f"{owner.__name__}.{name}", [0, 0.0]), original, 1))
    try:
        yield meter
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)
