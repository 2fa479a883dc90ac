"""The part of the recorder that each line passes: whether it looks, its lock, its queue and its numbers.

`core.Core` is a subclass. In C where that was built (`native`), which this says what is right for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvsan.checker.attach.lines import Held, Line
from kvsan.checker.attach.native import HOT

if TYPE_CHECKING or HOT is None:

    class State:
        """Fields that hooks read and lines change. Its methods are called under the lock."""

        on: bool
        lock: Any
        batch: int
        """So many lines wait at most before they are worked off."""
        blocked: int
        """With so many waiting a thread that is about to block works them off first."""
        now: Callable[[], int]
        """What time it is, for a line."""
        streams_gone = 0
        """How many streams were destroyed so far."""
        _count = 0
        _sealed = -1
        _queue: deque[Line]
        _dead_threads: deque[str]
        _dead_events: deque[str]

        def _ended(self) -> None:
            raise NotImplementedError

        def settle_up(self) -> None:
            raise NotImplementedError

        def add(self, line: tuple[Any, ...]) -> int:
            """A line of an op, whose names are known and whose ids are copied. Its number."""
            queue = self._queue
            if self._dead_threads or (self._dead_events and not queue):
                self._ended()
            index = self._count
            self._count = index + 1
            queue.append(line)
            if len(queue) >= self.batch:
                self.settle_up()
            return index

        def hold(self, *given: Any) -> Held:
            """A blocking call begins: the fields of its `Sync`."""
            if len(self._queue) >= self.blocked:
                self.settle_up()
            if self._dead_threads or (self._dead_events and not self._queue):
                self._ended()
            held = Held(self._count, given)
            self._count += 1
            self._queue.append(held)
            if self.batch <= 1:
                self.settle_up()
            return held

    new_lock: Callable[[], Any] = threading.RLock
else:
    State = HOT.State
    new_lock = HOT.Lock
