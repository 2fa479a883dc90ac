"""Threads that take turns as often as Python lets them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence


def hurried(works: Sequence[Callable[[], None]]) -> None:
    """Runs each in a thread of its own, all at once, to their ends."""
    threads = [threading.Thread(target=work) for work in works]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
