"""Which event object a name stands for, when objects are few and names many.

A CUDA event that was never recorded is complete, and a wait for it orders nothing; one that is used again still holds
its old record. So a name gets an object only when it is recorded, and at that same moment the object's new record
replaces the old one: no name ever answers for another name's record. `drop` gives the object back, unless a thread is
blocked on it; then the object is left to that thread and not used again.

Safe for several threads: a look-up and what is done with the object happen under one lock, so that an object cannot
change its name in between. CUDA blocks a record or a wait while the stream's queue is full; every thread waits then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, TypeVar

E = TypeVar("E")


class Events(Generic[E]):
    """`make` makes a new event object, when none is free."""

    def __init__(self, make: Callable[[], E]) -> None:
        self._make = make
        self._recorded: dict[str, E] = {}
        self._free: list[E] = []
        self._blocked: Counter[int] = Counter()
        self._lock = Lock()

    def record(self, name: str, record: Callable[[E], object]) -> None:
        """Calls `record` on the name's object. If that raises, the name stands as it stood."""
        with self._lock:
            handle = self._recorded.get(name)
            fresh = handle is None
            if handle is None:
                handle = self._free.pop() if self._free else self._make()
            record(handle)
            if fresh:
                self._recorded[name] = handle

    def use(self, name: str, call: Callable[[E], bool]) -> bool:
        """What `call` returns for the name's object; true if the name was never recorded. `call` must not block."""
        with self._lock:
            handle = self._recorded.get(name)
            return True if handle is None else call(handle)

    @contextmanager
    def blocked(self, name: str) -> Iterator[E | None]:
        """The name's object for a call that blocks; None if never recorded. Others may go on meanwhile."""
        with self._lock:
            handle = self._recorded.get(name)
            if handle is not None:
                self._blocked[id(handle)] += 1
        try:
            yield handle
        finally:
            if handle is not None:
                with self._lock:
                    self._blocked[id(handle)] -= 1

    def drop(self, name: str) -> None:
        """The name is not recorded any more."""
        with self._lock:
            handle = self._recorded.pop(name, None)
            if handle is not None and not self._blocked[id(handle)]:
                self._free.append(handle)

    @property
    def live(self) -> int:
        """How many names have an object."""
        return len(self._recorded)

    @property
    def free(self) -> int:
        """How many objects wait to be used again."""
        return len(self._free)
