"""Containers through which vLLM's threads hand things over, with a token for each thing.

`Queue` stands in for a `queue.SimpleQueue`: what is put travels with its token, so the getter takes that very one.
Lists of what is done are `HandingList`s: a poll looks at the head, a flush iterates.
"""

from __future__ import annotations

import threading
from typing import Any

from kvsan.checker.attach.ledger import Hook
from kvsan.checker.attach.recorder import KvsanHazard, Recorder


class _Stamped(tuple[str, int | None, Any]):
    """What is put: its token, the op at which it was decided, and the thing."""

    __slots__ = ()


class Plan(threading.local):
    """For the thread that took a job from a queue: the op at which that job was decided."""

    planned: int | None = None


class Queue:
    """Wraps a queue. `plan.planned` is set for the getting thread; items are anything, as before."""

    def __init__(self, recorder: Recorder, inner: Any, plan: Plan, put: Hook, get: Hook) -> None:
        self._recorder = recorder
        self._inner = inner
        self._plan = plan
        self._put_hook, self._get_hook = put, get

    def put(self, item: Any, *args: Any, **kwargs: Any) -> None:
        recorder = self._recorder
        given = item
        if item is not None and recorder.on:  # None is the word to stop
            try:
                self._put_hook.count += 1
                token, planned = recorder.hand_on_at("q")
                given = _Stamped((token, planned, item))
            except KvsanHazard:
                raise
            except Exception as error:
                recorder.fault("queue", error)
        self._inner.put(given, *args, **kwargs)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        found = self._inner.get(*args, **kwargs)
        if type(found) is not _Stamped:  # the word to stop, or put in a pause
            self._plan.planned = None
            return found
        token, self._plan.planned, item = found
        try:
            self._get_hook.count += 1
            self._recorder.taken(token)
        except KvsanHazard:
            raise
        except Exception as error:
            self._recorder.fault("queue", error)
        return item

    def put_nowait(self, item: Any) -> None:
        self.put(item, False)

    def get_nowait(self) -> Any:
        return self.get(False)

    def pause(self) -> None:
        """Until `resume` things are put as they are. A thread may be in `get`: that stays, and takes both sorts."""
        vars(self)["put"] = self._inner.put

    def resume(self) -> None:
        vars(self).pop("put", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
