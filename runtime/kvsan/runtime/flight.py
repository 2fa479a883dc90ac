"""What is in flight: steps launched that the host has not seen, and which blocks still refer to an event object."""

from __future__ import annotations

from collections import Counter, deque

Saved = tuple[int, int, tuple[str | None, ...], Counter[str], Counter[str]]


class Flight:
    """`launched` counts steps from 1 on; `seen` is how many of them the host knows complete. Steps are seen in
    order.
    """

    def __init__(self) -> None:
        self.launched = 0
        self.seen = 0
        self._events: deque[str | None] = deque()
        self._users: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()

    @property
    def unseen(self) -> int:
        """Steps in flight, as far as the host knows."""
        return self.launched - self.seen

    @property
    def oldest(self) -> str | None:
        """The completion event of the oldest step not seen; None if it records none."""
        return self._events[0] if self._events else None

    def launch(self) -> int:
        """A step begins; its number."""
        self.launched += 1
        self._events.append(None)
        return self.launched

    def recorded(self, event: str) -> None:
        """The completion event of the step that was launched last."""
        self._events[-1] = event

    def see(self) -> str | None:
        """The oldest unseen step is known complete; its event."""
        self.seen += 1
        return self._events.popleft()

    @property
    def unseen_events(self) -> tuple[str | None, ...]:
        """The completion event of each step not seen, the oldest first."""
        return tuple(self._events)

    def save(self) -> Saved:
        """All that changes, as it is now."""
        return self.launched, self.seen, tuple(self._events), Counter(self._users), Counter(self._numbers)

    def load(self, saved: Saved) -> None:
        """As it was at `save`."""
        self.launched, self.seen = saved[:2]
        self._events = deque(saved[2])
        self._users, self._numbers = Counter(saved[3]), Counter(saved[4])

    def fresh(self, name: str) -> str:
        """The name of a new event object."""
        self._numbers[name] += 1
        return f"{name}#{self._numbers[name]}"

    def use(self, event: str, blocks: int = 1) -> None:
        """So many more blocks refer to the event object."""
        self._users[event] += blocks

    def leave(self, event: str) -> bool:
        """A block refers to it no more; whether that was the last."""
        self._users[event] -= 1
        if self._users[event] > 0:
            return False
        del self._users[event]
        return True
