"""Containers through which vLLM's threads hand things over, with a token for each thing.

`Queue` stands in for a `queue.SimpleQueue`: what is put travels with its token, so the getter takes that very one. In C
where that was built (`native`), which the Python here says what is right for.
Lists of what is done are `HandingList`s: a poll looks at the head, a flush iterates.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsan.checker.attach.ledger import Hook
from kvsan.checker.attach.native import HOT
from kvsan.checker.attach.recorder import KvsanHazard, Recorder

if TYPE_CHECKING or HOT is None:

    class Stamped(NamedTuple):
        """What is put: its token, the op at which it was decided, the thing, and the session (`State.sessions`)."""

        token: str
        planned: int | None
        item: Any
        session: int

    class Plan(threading.local):
        """For the thread that took a job from a queue: the op at which that job was decided."""

        planned: int | None = None

    class _Fields:
        """What a `Queue` has; all else is the inner queue's."""

        def __init__(self, recorder: Recorder, inner: Any, plan: Plan, put: Hook, get: Hook) -> None:
            self._recorder = recorder
            self._inner = inner
            self._plan = plan
            self._put_hook, self._get_hook = put, get

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

else:
    Stamped, Plan, _Fields = HOT.Stamped, HOT.Plan, HOT.Queue


class Queue(_Fields):
    """Wraps a queue. `plan.planned` is set for the getting thread; items are anything, as before."""

    def _put(self, item: Any, *args: Any, **kwargs: Any) -> None:
        recorder = self._recorder
        given = item
        if item is not None and recorder.on:  # None is the word to stop
            try:
                self._put_hook.count += 1
                session = recorder.sessions
                token, planned = recorder.hand_on_at("q")
                given = Stamped(token, planned, item, session)
            except KvsanHazard:
                raise
            except Exception as error:
                recorder.fault("queue", error)
        self._inner.put(given, *args, **kwargs)

    def _get(self, *args: Any, **kwargs: Any) -> Any:
        found = self._inner.get(*args, **kwargs)
        if type(found) is not Stamped:  # the word to stop, or put in a pause
            self._plan.planned = None
            return found
        own = found.session == self._recorder.sessions
        item, self._plan.planned = found.item, found.planned if own else None
        try:
            if not own:
                self._foreign()
                return item
            self._get_hook.count += 1
            self._recorder.taken(found.token)
        except KvsanHazard:
            raise
        except Exception as error:
            self._recorder.fault("queue", error)
        return item

    def _foreign(self) -> None:
        """A job of an earlier session, or of the process that this one was forked from: op and token are theirs."""
        self._recorder.unseen(edges=1, what="a job that was put before this session began")

    put, get = (_put, _get) if HOT is None else (HOT.Queue.put, HOT.Queue.get)

    def put_nowait(self, item: Any) -> None:
        self.put(item, False)

    def get_nowait(self) -> Any:
        return self.get(False)

    def pause(self) -> None:
        """Until `resume` things are put as they are. A thread may be in `get`: that stays, and takes both sorts."""
        vars(self)["put"] = self._inner.put

    def resume(self) -> None:
        vars(self).pop("put", None)
