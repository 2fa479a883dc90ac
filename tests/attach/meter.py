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

from kvsan.checker.attach import handoff, native
from kvsan.checker.attach.handoff import HandingList
from kvsan.checker.attach.patches import Patches
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.torch.crosscheck import CrossCheck
from kvsan.checker.attach.vllm.handoff import Queue
from kvsan.checker.attach.vllm.simple import Copies

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


class Hot:
    """The same for hooks in C, if they were compiled with `CFLAGS=-DKVSAN_METER`, and clocks around what beside them is
    Python and called in each step. Cheaper by far than `metered`: a hook in C pays 0.1 µs, and no wrapper is put in.
    """

    PARTS = (
        (Recorder, "settle_up"),
        (Copies, "_log"),
        (HandingList, "append"),
        (HandingList, "__getitem__"),
        (HandingList, "pop"),
        (Queue, "put"),
    )

    def __init__(self) -> None:
        self.meter = Meter()
        self._spent: dict[str, list[float]] = {}
        for owner, name in self.PARTS if self.there() else ():
            sums = self.meter.methods.setdefault(f"{owner.__name__}.{name}", [0, 0.0])
            setattr(owner, name, self.meter.around(sums, getattr(owner, name), 1))

    @staticmethod
    def there() -> bool:
        return hasattr(native.HOT, "meter")

    def window(self, *, on: bool) -> None:
        """A window begins or (`on` false) has ended."""
        self.meter.on = on
        if self.there():
            for original, calls, ns in native.HOT.meter():
                if not on and calls:
                    sums = self._spent.setdefault(getattr(original, "__qualname__", str(original)), [0, 0.0])
                    sums[0] += calls
                    sums[1] += ns / 1e9

    def rows(self, steps: int) -> dict[str, list[float]]:
        """Calls a step and µs a step. What is inside a hook in C (`settle_up`) is in that hook's figure too."""
        both = {**self._spent, **self.meter.methods}
        ordered = sorted(both.items(), key=lambda item: -item[1][1])
        return {name: [round(calls / steps, 2), round(1e6 * took / steps, 1)] for name, (calls, took) in ordered}
