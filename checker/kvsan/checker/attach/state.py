"""The part of the recorder that each line passes: whether it looks, its lock, its queue and its numbers.

`core.Core` is a subclass. In C where that was built (`native`), which this says what is right for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvsan.checker.attach.lines import GET, PUT, Held, Line
from kvsan.checker.attach.native import HOT
from kvsan.checker.live import KvsanHazard

if TYPE_CHECKING:
    from kvsan.checker.attach.sinks import Beside

HERE, ELSEWHERE = 1, 2

if TYPE_CHECKING or HOT is None:

    class State:
        """Fields that hooks read and lines change. Its methods are called under the lock."""

        on: bool
        workers = 0
        """Where those of all schedulers are: 0 as long as nobody has said. With `HERE` nothing carries a token of
        another process (`vllm/scheduler.py`), and hooks in C look for none.
        """
        lock: Any
        batch: int
        """So many lines wait at most before they are worked off."""
        blocked: int
        """With so many waiting a thread that is about to block works them off first."""
        now: Callable[[], int]
        """What time it is, for a line."""
        streams_gone = 0
        """How many streams were destroyed so far."""
        sampling: Any = None
        """Counts an engine's steps, where it tells of them (`torch/sampling.py`)."""
        prefix: str
        thread_name: Callable[[], str]
        sessions = 0
        """How many have begun: what was put in one is nobody's in the next."""
        _count = 0
        _tokens = 0
        _sealed = -1
        fault_text: str | None
        _beside: Beside | None
        _settling: bool
        _shut: bool
        _queue: deque[Line]
        _dead_threads: deque[str]
        _dead_events: deque[str]

        def _ended(self) -> None:
            raise NotImplementedError

        def settle_up(self) -> None:
            raise NotImplementedError

        def fresh_token(self, what: str = "token") -> str:
            raise NotImplementedError

        def mark(self) -> int | None:
            raise NotImplementedError

        def fault(self, where: str, error: BaseException) -> None:
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

        def add_ids(self, code: int, pool: str, ids: Any, by: str) -> None:
            """What happens to the lives of blocks of one pool: neighbours become one line while they wait. A list of
            ids is the line's from here on.
            """
            queue = self._queue
            if queue and type(ids) is list and self._count - 1 > self._sealed:
                last = queue[-1]
                if (
                    type(last) is tuple
                    and last[0] == code
                    and type(last[3]) is list
                    and last[1] == by
                    and last[2] == pool
                ):
                    last[3].extend(ids)
                    return
            self.add((code, by, pool, ids, self.now()))

        def pack_copy(self, *given: Any) -> bool:
            """Whether a copy with lists of ids was packed at once, by C: label, stream, pool and ids read, pool and ids
            written, order, planned, site. Takes the lock.
            """
            return False

        def drop_events(self) -> bool:
            """Whether the ends of events were put among the lines by C."""
            return False

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

        def hand_on(self, what: str) -> str:
            """The calling thread hands on what it knows under a fresh name, which this gives back. Takes the lock."""
            with self.lock:
                token = self.fresh_token(what)
                if self.on:
                    try:
                        self.add((PUT, self.thread_name(), token, self.now()))
                    except KvsanHazard:
                        raise
                    except Exception as error:
                        self.fault("put", error)
            return token

        def hand_on_at(self, what: str) -> tuple[str, int | None]:
            """The same, and the number of the latest op, as `mark` gives it."""
            with self.lock:
                return self.hand_on(what), self.mark()

        def taken(self, token: str) -> None:
            """The calling thread took what was handed on. Takes the lock."""
            if not self.on:
                return
            with self.lock:
                try:
                    self.add((GET, self.thread_name(), token, self.now()))
                except KvsanHazard:
                    raise
                except Exception as error:
                    self.fault("get", error)

    packed_queue: Callable[[], Any] = deque
    """A queue for lines that go to a process beside this one."""
else:
    State = HOT.State
    packed_queue = HOT.Packed
