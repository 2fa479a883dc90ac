"""A bounded memory of the latest entries, in two generations: what a bound on memory may forget, it forgets here.

What a trace says twice lives here: a token taken again after `SPENT_TOKENS` others is refused as never put, not
guessed.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

SPENT_TOKENS = 1 << 12
"""How many tokens that were taken once are remembered at least, so that several threads may take the same one."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Remembers at least the latest `bound` entries and at most twice as many. Reading does not refresh."""

    __slots__ = ("_bound", "_new", "_old")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._new: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __setitem__(self, key: K, value: V) -> None:
        self._new[key] = value
        if len(self._new) >= self._bound:
            self._old, self._new = self._new, {}

    def get(self, key: K) -> V | None:
        found = self._new.get(key)
        return self._old.get(key) if found is None else found

    def __len__(self) -> int:
        return len(self._new) + len(self._old)
