"""Two context managers that the recorder hands out: around a blocking call, and around a hook's own code."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from kvsan.checker.live import KvsanHazard
from kvsan.model.ops import Op, Poll, Put, Sync

if TYPE_CHECKING:
    from kvsan.checker.attach.core import Core
    from kvsan.checker.attach.lines import Held


class Guard:
    """A fault of kvsan's inside turns kvsan off and goes no further; `KvsanHazard` is meant for the engine."""

    __slots__ = ("_recorder", "_where")

    def __init__(self, recorder: Core, where: str) -> None:
        self._recorder = recorder
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> bool:
        if value is None or isinstance(value, KvsanHazard) or not isinstance(value, Exception):
            return False
        self._recorder.fault(self._where, value)
        return True


class Blocking:
    """Around one blocking call: the line is held at entry, and settled when the call has returned or failed.

    What the thread learns is in force from the entry on. That is no error: until the call returns the thread issues
    nothing, and if it fails what was learnt is taken back. The line of a failed call becomes one that orders nothing
    (a query that said no, or a hand-off that nobody takes), so that later lines keep their numbers.
    """

    __slots__ = ("_given", "_held", "_queue", "_recorder")

    def __init__(
        self, recorder: Core, event: object | None, stream: str | None, device: int | str | None, by: str | None
    ) -> None:
        self._recorder = recorder
        self._given = (event, stream, device, by)
        self._held: Held | None = None
        self._queue: object = None  # another one is another session's

    def __enter__(self) -> None:
        recorder = self._recorder
        if not recorder.on:
            return
        lock = recorder.lock
        lock.acquire()
        try:
            event, stream, device, by = self._given
            name = None if event is None else recorder.event(event)
            self._held = recorder.hold(by or recorder.thread(), name, stream, device, recorder.now())
            self._queue = recorder._queue
        except KvsanHazard:
            raise
        except Exception as error:
            recorder.fault("blocking", error)
        finally:
            lock.release()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        recorder, held = self._recorder, self._held
        if held is None or not recorder.on or recorder._queue is not self._queue:
            return
        recorder.returned(held, done=value is None)


def nothing(index: int, op: Sync) -> Op:
    """A line that orders nothing, in place of a sync that failed or was still blocked at the end."""
    if op.event is not None:
        return Poll(op.by, op.event, False, op.t)
    return Put(op.by, f"failed sync {index}", op.t)
