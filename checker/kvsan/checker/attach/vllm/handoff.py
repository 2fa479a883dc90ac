"""Containers through which vLLM's threads hand things over, with a token for each thing.

`Queue` stands in for a `queue.SimpleQueue`: what is put travels with its token, so the getter takes that very one.
Lists of what is done are `HandingList`s: a poll looks at the head, a flush iterates.
"""

from __future__ import annotations

import threading
from typing import Any

from kvsan.checker.attach.ledger import Hook
from kvsan.checker.attach.recorder import Recorder

_Stamped = tuple[str | None, int | None, Any]


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
        stamped: _Stamped = (None, None, item)
        if item is not None and recorder.on:  # None is the word to stop
            with recorder.guard("queue"):
                self._put_hook.fired()
                token = recorder.fresh_token("q")
                with recorder.lock:
                    recorder.put(token)
                    stamped = (token, recorder.mark(), item)
        self._inner.put(stamped, *args, **kwargs)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        token, self._plan.planned, item = self._inner.get(*args, **kwargs)
        if token is not None:
            with self._recorder.guard("queue"):
                self._get_hook.fired()
                self._recorder.get(token)
        return item

    def put_nowait(self, item: Any) -> None:
        self.put(item, False)

    def get_nowait(self) -> Any:
        return self.get(False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
