"""Debug mode's lines in C (`runtime/native/lines.c`), if there is such an extension: `IN_C`, or `None`.

Between an engine's own work a line finds cold caches, and Python code of ours costs some 10 µs a line there
(`benchmarks/bench_lines.py`). What the extension does is what `tracing`, `binary` and `plans` do in Python, which stay
the reference: they take over whatever is out of the ordinary, and all of it where there is no extension
(`KVSAN_NATIVE=0`). `LogState`, `SegmentState` and `HeldState` are what the log's classes are made of, so that both find
it in the same place.

Relies on: `VERSION` changing here and there whenever the one can do no longer with the other. Does not cover: engines,
which load none of this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kvsan.runtime import native
from kvsan.runtime.device import Copy, DeviceError, Ids, Kernel

VERSION = 2

IDS = np.dtype("<i8")


def _as_ids(given: Any) -> Ids:
    return np.require(given, np.int64, ["C", "A"])


class LogState:
    """What a line touches of a log: nothing of its own in Python."""

    __slots__ = ()

    _out: set[Any]

    def _reap(self) -> None:
        """Settles the latest blocking call if it has returned, and else puts it where all are that are out: C leaves
        that to whoever next looks.
        """

    def _calls_out(self) -> list[Any]:
        """Blocking calls that are out, or have just returned (`returned`)."""
        return list(self._out)


class SegmentState:
    """What a piece of the log's ring holds."""

    __slots__ = ("extra", "lines", "out", "size", "used", "words")


class HeldState:
    """Where a blocking call's line is."""

    __slots__ = ("at", "segment")
    returned = False
    """It has returned, and is not settled yet: in C alone."""


Lock: Callable[[], Any] = threading.RLock
"""A reentrant lock, which C takes without a call where there is C."""

IN_C: Any
IN_C, WRONG = native.found("kvsan.runtime._lines", VERSION)
"""`WRONG` is what is wrong with `KVSAN_NATIVE`, for a session to say."""
if IN_C is not None:
    IN_C.set_up(np.ndarray, IDS, _as_ids, DeviceError, time.perf_counter_ns, Kernel, Copy)
    LogState, SegmentState, HeldState = IN_C.LogState, IN_C.Segment, IN_C.Held  # type: ignore[misc]
    Lock = IN_C.Lock
