"""CUDA graphs: what is declared or derived while one is captured is launched when it is replayed.

Nothing is logged at capture. At each replay there is one access with the union of what the graph touches, on the
stream that is current, in stream order: nothing of a graph is read before the stream reaches it, and a batch in it is
not looked at for blocks named twice. A replay inside `with access(…)` is what that says, and one inside the capture of
another graph becomes part of it. Copies that went unseen at capture are counted at each replay, and the replay of a
graph that was captured before kvsan was there is an unseen copy.

An engine that declares nothing in its graphs pays one look a replay: that a graph touches nothing is kept on it.

What the host itself touches during a capture (`on=None`) takes place there, and is logged there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from kvsan.checker.attach.native import quick
from kvsan.checker.attach.recorder import KvsanHazard, Recorder
from kvsan.checker.index import Ids, blocks_of

if TYPE_CHECKING:
    from kvsan.checker.attach.ledger import Hook
    from kvsan.checker.attach.torch.calls import Calls

Function = Callable[..., Any]
LABELS_SHOWN = 4
_KEPT = "_kvsan_empty"


class Captured:
    """What one graph touches."""

    def __init__(self) -> None:
        self._labels: dict[str, None] = {}
        self._unseen: dict[str, None] = {}
        self._reads: dict[str, Ids] = {}
        self._writes: dict[str, Ids] = {}

    def add(
        self, recorder: Recorder, label: str, reads: Mapping[str, Any] | None, writes: Mapping[str, Any] | None
    ) -> None:
        """One access. Ids are copied."""
        self._labels[label] = None
        for given, into in ((reads, self._reads), (writes, self._writes)):
            for pool, ids in (given or {}).items():
                blocks = blocks_of(ids, recorder.pools[pool], repeats=True)
                if blocks is not None:
                    _join(into, pool, [np.arange(low, high, dtype=np.int64) for low, high in blocks.runs])

    def unseen(self, what: str) -> None:
        """A copy of the graph that cannot be said."""
        self._unseen[what] = None

    def include(self, other: Captured) -> None:
        """Another graph, launched while this one is captured."""
        self._labels |= other._labels
        self._unseen |= other._unseen
        for more, into in ((other._reads, self._reads), (other._writes, self._writes)):
            for pool, ids in more.items():
                _join(into, pool, [ids])

    @property
    def empty(self) -> bool:
        """Nothing to say at a replay."""
        return not (self._reads or self._writes or self._unseen)

    def log(self, recorder: Recorder, on: str) -> None:
        """One launch, under the recorder's lock."""
        shown = list(self._labels)[:LABELS_SHOWN] + ["…"] * (len(self._labels) > LABELS_SHOWN)
        recorder.access(f"graph: {', '.join(shown)}", on=on, reads=self._reads, writes=self._writes)
        for what in self._unseen:
            recorder.unseen(copies=1, what=what)


def _join(into: dict[str, Ids], pool: str, more: list[Ids]) -> None:
    known = into.get(pool)
    into[pool] = np.unique(np.concatenate(more if known is None else [known, *more]))


class Graphs:
    """Makes the wrappers."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._known: WeakKeyDictionary[Any, Captured] = WeakKeyDictionary()

    def begin(self, original: Function, hook: Hook) -> Function:
        here = self._calls.here

        def capture_begin(graph: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = original(graph, *args, **kwargs)
            hook.fired()
            if here.captured is None:
                here.busy += 1
                here.captured = Captured()
            return result

        return capture_begin

    def end(self, original: Function, hook: Hook) -> Function:
        here = self._calls.here

        def capture_end(graph: Any, /, *args: Any, **kwargs: Any) -> Any:
            captured = here.captured
            hook.fired()
            if captured is not None:  # whether or not it succeeds, nothing is captured any more
                here.busy = max(0, here.busy - 1)
                here.captured = None
            with self._calls.recorder.guard("capture_end"):
                self._keep(graph, None)
            result = original(graph, *args, **kwargs)
            if captured is not None:
                with self._calls.recorder.guard("capture_end"):
                    self._keep(graph, captured)
            return result

        return capture_end

    def replay(self, original: Function, hook: Hook) -> Function:
        recorder, here = self._calls.recorder, self._calls.here

        def replay(graph: Any, /, *args: Any, **kwargs: Any) -> Any:
            if recorder.on and getattr(graph, _KEPT, None) is self:
                hook.count += 1
                return original(graph, *args, **kwargs) if args or kwargs else original(graph)
            if not recorder.on or (here.busy and here.captured is None):
                return original(graph, *args, **kwargs)
            with recorder.lock:
                result = original(graph, *args, **kwargs)
                if recorder.on:
                    hook.count += 1
                    try:
                        self._replayed(graph)
                    except KvsanHazard:
                        raise
                    except Exception as error:
                        recorder.fault("replay", error)
            return result

        return quick("replay", original, replay, recorder, hook, None, None, None, self)

    def _keep(self, graph: Any, captured: Captured | None) -> None:
        """What the graph touches; `None`: that is not known. That it touches nothing is kept on the graph."""
        with contextlib.suppress(AttributeError):
            delattr(graph, _KEPT)
        self._known.pop(graph, None)
        if captured is None:
            return
        self._known[graph] = captured
        if captured.empty:
            with contextlib.suppress(AttributeError, TypeError):
                setattr(graph, _KEPT, self)

    def _replayed(self, graph: Any) -> None:
        calls = self._calls
        captured, outer = self._known.get(graph), calls.here.captured
        if calls.here.declared:
            return
        if captured is None:
            captured = Captured()
            captured.unseen("replay of a CUDA graph whose capture no wrapper saw")
        if outer is not None:
            outer.include(captured)
        else:
            captured.log(calls.recorder, calls.name(None))
