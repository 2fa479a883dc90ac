"""An engine's turns from outside, and how long its host was blocked in them: for both clocks of `gpu_engine`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def watched(
    engine: Any, host: Any, turn: Callable[[Callable[[], Any]], Any], blocked: Callable[[float], None]
) -> Iterator[None]:
    """While this lasts each turn of the engine is made by `turn`, which is given the engine's own, and `blocked` hears
    the seconds of each `sync` of the host.
    """
    own, sync = engine.turn, host.sync

    def timed(event: str) -> None:
        began = time.perf_counter()
        try:
            sync(event)
        finally:
            blocked(time.perf_counter() - began)

    engine.turn, host.sync = lambda: turn(own), timed
    try:
        yield
    finally:
        del engine.turn, host.sync
