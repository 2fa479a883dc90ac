"""How far a device that nobody has may have come: which queries may answer yes, which must.

A stream runs what was issued on it in order; what waits for an event runs after all that the event captured. So a set
of finished work is possible if with each item it holds the item's whole past: the order of `kvsan.model.order`, seen
from the device. A query chooses: "yes" finishes the past of what it asks about, for good; "not yet" decides nothing
about later. Any sequence of answers given so is one that some timing of a real device gives.

Does not cover: how long anything takes, and orders that no event and no stream makes (stream priority orders nothing).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

Past = Mapping[Hashable, int]
"""Stream → how many of its items, from the first on."""


class Timeline:
    """The items issued on each stream, what each had to wait for, and what has finished."""

    def __init__(self) -> None:
        self._issued: dict[Hashable, int] = {}
        self._pasts: dict[Hashable, dict[Hashable, int]] = {}
        self._done: dict[Hashable, int] = {}

    def issue(self, stream: Hashable) -> None:
        """One more item (a launch, a record, a wait) on the stream."""
        count = self._issued[stream] = self._issued.get(stream, 0) + 1
        self._pasts.setdefault(stream, {})[stream] = count

    def record(self, stream: Hashable) -> Past:
        """What an event that is recorded now captures."""
        self.issue(stream)
        return dict(self._pasts[stream])

    def wait(self, stream: Hashable, captured: Past) -> None:
        """Later items of the stream run after what was captured."""
        past = self._pasts.setdefault(stream, {})
        for other, count in captured.items():
            past[other] = max(past.get(other, 0), count)
        self.issue(stream)

    def all_of(self, stream: Hashable) -> Past:
        """All that the stream was given."""
        return dict(self._pasts.get(stream, {}))

    def streams(self) -> tuple[Any, ...]:
        """All that were given something."""
        return tuple(self._pasts)

    def must_be_done(self, past: Past) -> bool:
        """Whether an earlier answer or a blocking call says that it has finished."""
        return all(self._done.get(stream, 0) >= count for stream, count in past.items())

    def finish(self, past: Past) -> None:
        """It has finished, and with it all that came before."""
        for stream, count in past.items():
            self._done[stream] = max(self._done.get(stream, 0), count)
