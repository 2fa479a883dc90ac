"""A device that issues nothing: it writes down what the issue code of the engine tells it, and answers polls as told.

Relies on `timeline`: a poll says "not yet" only where a device could.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kvsan.checker.testing.timeline import Past, Timeline
from kvsan.model.ops import Alloc, Blocks, Drop, Free, Get, Op, Poll, Put, Record, Sync, Touch, Wait
from kvsan.runtime.device import Ids


class Tape:
    """A device that writes down what it is told. Polls answer `answer` where both answers are possible."""

    name = "tape"

    def __init__(self, emit: Callable[[Op], None], turns: Callable[[], None]) -> None:
        self.emit, self.turns = emit, turns
        self.answer = True
        self.only: str | None = None
        self.queues: dict[str, deque[tuple[str, Any]]] = {}
        self.timeline = Timeline()
        self.captured: dict[str, Past] = {}
        self.tokens = 0

    def memory(self, pool: str, shape: tuple[int, ...], *, host: bool) -> Any:
        raise NotImplementedError("a play has no memory")

    def tensor(self, shape: tuple[int, ...], *, host: bool) -> Any:
        raise NotImplementedError("a play has no memory")

    def host(self, name: str) -> TapeHost:
        return TapeHost(self, name)

    def stream(self, name: str, *, side: bool) -> None: ...

    def thread(self, name: str, turn: Callable[[], bool]) -> None: ...

    def close(self) -> None: ...

    def may_be_running(self, event: str) -> bool:
        past = self.captured.get(event)
        return past is not None and not self.timeline.must_be_done(past)


class TapeHost:
    """One host thread of it."""

    def __init__(self, tape: Tape, name: str) -> None:
        self._tape, self.name = tape, name

    def record(self, stream: str, event: str) -> None:
        self._tape.captured[event] = self._tape.timeline.record(stream)
        self._tape.emit(Record(self.name, stream, event))

    def wait(self, stream: str, event: str) -> None:
        self._tape.timeline.wait(stream, self._tape.captured.get(event, {}))
        self._tape.emit(Wait(self.name, stream, event))

    def query(self, event: str) -> bool:
        done = self._tape.answer or not self._tape.may_be_running(event)
        if done:
            self._tape.timeline.finish(self._tape.captured.get(event, {}))
        self._tape.emit(Poll(self.name, event, done))
        return done

    def sync(self, event: str) -> None:
        self._tape.timeline.finish(self._tape.captured.get(event, {}))
        self._tape.emit(Sync(self.name, event))

    def drop(self, event: str) -> None:
        self._tape.captured.pop(event, None)
        self._tape.emit(Drop(self.name, event))

    def copy(self, stream: str, copy: Any) -> None:
        raise NotImplementedError("a play issues accesses only")

    def launch(self, stream: str, kernel: Any) -> None:
        raise NotImplementedError("a play issues accesses only")

    def work(self, kernel: Any) -> None:
        raise NotImplementedError("a play issues accesses only")

    def put(self, queue: str, item: Any) -> None:
        tape = self._tape
        tape.tokens += 1
        token = f"{queue}#{tape.tokens}"
        tape.queues.setdefault(queue, deque()).append((token, item))
        tape.emit(Put(self.name, token))

    def get(self, queue: str) -> Any:
        tape = self._tape
        waiting = tape.queues.get(queue)
        if not waiting or (tape.only is not None and queue != tape.only):
            return None
        token, item = waiting.popleft()
        tape.emit(Get(self.name, token))
        return item

    def alloc(self, pool: str, blocks: Ids) -> None:
        self._tape.emit(Alloc(self.name, pool, Blocks.of(blocks.tolist())))

    def free(self, pool: str, blocks: Ids) -> None:
        self._tape.emit(Free(self.name, pool, Blocks.of(blocks.tolist())))

    def touch(self, pool: str, blocks: Ids) -> None:
        self._tape.emit(Touch(self.name, pool, Blocks.of(blocks.tolist())))

    def plan(self, pool: str, blocks: Ids, work: str) -> None: ...
