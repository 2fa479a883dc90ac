"""Further host threads as threads of the process: queues between them, waking, errors, and a clean end.

A thread calls its turn until there is nothing to do, then sleeps until something is put in a queue. What a turn raises
is kept for `check`, and the thread goes on with the next job; if the turn took no job it would raise again at once, so
the thread sleeps then too. `stop` lets each thread finish what lies in its queues.

Not here: anything of CUDA (`cuda.py` gives `enter`, which a thread calls first).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Any


class Workers:
    """`enter` is called by each thread before its first turn."""

    def __init__(self, enter: Callable[[], None] = lambda: None) -> None:
        self._enter = enter
        self._queues: defaultdict[str, deque[Any]] = defaultdict(deque)
        self._change = Condition()
        self._puts = self._gets = 0
        self._threads: list[Thread] = []
        self._stopping = False
        self._raised: list[BaseException] = []

    def put(self, queue: str, item: Any) -> None:
        """Appends the item and wakes every thread."""
        with self._change:
            self._queues[queue].append(item)
            self._puts += 1
            self._change.notify_all()

    def get(self, queue: str) -> Any:
        """The oldest item, None if there is none."""
        with self._change:
            if not self._queues[queue]:
                return None
            self._gets += 1
            return self._queues[queue].popleft()

    def start(self, name: str, turn: Callable[[], bool]) -> None:
        """Starts a thread. A daemon: a process that ends without `stop` does not wait for it."""
        thread = Thread(target=self._run, args=(turn,), name=f"kvsan {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, turn: Callable[[], bool]) -> None:
        try:
            self._enter()
        except BaseException as error:
            self._keep(error)
            return
        seen = -1
        while True:
            with self._change:
                while self._puts == seen and not self._stopping:
                    self._change.wait()
                seen, gets, stopping = self._puts, self._gets, self._stopping
            try:
                busy = turn()
            except BaseException as error:
                self._keep(error)
                busy = self._gets != gets
            if busy:
                seen = -1
            elif stopping:
                return

    def _keep(self, error: BaseException) -> None:
        with self._change:
            self._raised.append(error)

    def check(self) -> None:
        """Raises the first thing that a turn raised since the last call; it says how many more there were."""
        if not self._raised:
            return
        with self._change:
            raised, self._raised = self._raised, []
        if len(raised) > 1:
            raised[0].add_note(f"{len(raised) - 1} more turns of other threads raised; the next: {raised[1]!r}")
        raise raised[0]

    def stop(self) -> None:
        """Ends the threads when their queues are empty. Then see `check`."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
