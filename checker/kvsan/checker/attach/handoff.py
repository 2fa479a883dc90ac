"""Containers that carry host order: a queue and a list whose users hand on what they know.

`HandingQueue` stands in for a `queue.Queue` or `queue.SimpleQueue`; what is put travels with its token. `HandingList`
is a list that some threads append to and others look at (a completion list): whoever first sees an entry takes its
token, and no other's. Blocking calls of the inner queue are made without the recorder's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self, SupportsIndex

from kvsan.checker.attach.ledger import Hook
from kvsan.checker.attach.native import HOT
from kvsan.checker.attach.recorder import KvsanHazard, Recorder
from kvsan.runtime.lines import Lock


class _Parcel(NamedTuple):
    token: str
    item: Any


class HandingQueue:
    """Wraps a queue; everything but put and get is the inner queue's. Items that were in it before stay as they are."""

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        self._inner = inner
        self._recorder = recorder

    def put(self, item: Any, *args: Any, **kwargs: Any) -> None:
        parcel = self._pack(item)
        try:
            self._inner.put(parcel, *args, **kwargs)
        except BaseException:
            self._unpack(parcel)  # no room: nobody else will take its token
            raise

    def put_nowait(self, item: Any) -> None:
        self.put(item, False)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        return self._unpack(self._inner.get(*args, **kwargs))

    def get_nowait(self) -> Any:
        return self._unpack(self._inner.get_nowait())

    def _pack(self, item: Any) -> Any:
        recorder = self._recorder
        if not recorder.on:
            return item
        try:
            return _Parcel(recorder.hand_on("queue"), item)
        except KvsanHazard:
            raise
        except Exception as error:
            recorder.fault("queue", error)
            return item

    def _unpack(self, found: Any) -> Any:
        if type(found) is not _Parcel:
            return found
        try:
            self._recorder.taken(found.token)
        except KvsanHazard:
            raise
        except Exception as error:
            self._recorder.fault("queue", error)
        return found.item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class HandingList(list[Any]):
    """A list of which each entry is handed on to whoever first sees it: by index, by iteration, by taking it out.

    Tokens are kept beside the entries, place by place, under a lock of their own; the recorder is asked outside it.
    What C code does to the list behind the methods (`heapq`) loses the tokens: an unseen edge.
    """

    __slots__ = ("__weakref__", "_before", "_given_hook", "_places", "_recorder", "_seen_hook", "_tokens")

    def __init__(
        self,
        recorder: Recorder,
        items: Iterable[Any] = (),
        *,
        given: Hook | None = None,
        seen: Hook | None = None,
    ) -> None:
        super().__init__(items)
        self._recorder = recorder
        self._given_hook, self._seen_hook = given, seen
        self._places = Lock()
        self._tokens: list[str | None] = [None] * len(self)
        self._before: list[tuple[Any, str | None]] = []
        """In a pause: the entries and their tokens when it began. A thread may have been in a method then."""

    # ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _append(self, item: Any) -> None:
        token = self._give()  # before the entry can be seen
        with self._places:
            if len(self._tokens) != len(self):
                self._align()
            list.append(self, item)
            self._tokens.append(token)

    def extend(self, items: Iterable[Any]) -> None:
        for item in list(items):
            self.append(item)

    def __iadd__(self, items: Iterable[Any]) -> Self:  # type: ignore[misc]
        self.extend(items)
        return self

    def insert(self, at: SupportsIndex, item: Any) -> None:
        token = self._give()
        with self._places:
            self._align()
            super().insert(at, item)
            self._tokens.insert(at, token)

    def __setitem__(self, at: Any, value: Any) -> None:
        many = isinstance(at, slice)
        value = list(value) if many else value
        tokens = [self._give() for _ in value] if many else self._give()
        with self._places:
            self._align()
            super().__setitem__(at, value)
            self._tokens[at] = tokens

    # ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self, at: Any) -> Any:
        with self._places:
            if len(self._tokens) != len(self):
                self._align()
            found = list.__getitem__(self, at)
            tokens = self._tokens[at]
            if tokens is None:  # somebody has looked at it before
                return found
            if type(tokens) is list:
                self._tokens[at] = [None] * len(found)
            else:
                self._tokens[at], tokens = None, [tokens]
        self._take(tokens)
        return found

    def __iter__(self) -> Iterator[Any]:
        at = 0
        while True:
            with self._places:
                self._align()
                if at >= len(self):
                    return
                found, token = super().__getitem__(at), self._tokens[at]
                self._tokens[at] = None
            self._take([token])
            yield found
            at += 1

    def _pop(self, at: SupportsIndex = -1) -> Any:
        with self._places:
            if len(self._tokens) != len(self):
                self._align()
            found = list.pop(self, at)
            token = self._tokens.pop(at)
        if token is not None:
            self._take([token])
        return found

    def copy(self) -> list[Any]:
        return list(self)

    append, __getitem__, pop = (_append, _look, _pop) if HOT is None else (HOT.hand_append, HOT.hand_look, HOT.hand_pop)

    # ── entries that go unseen, or change places ──────────────────────────────────────────────────────────────────

    def clear(self) -> None:
        with self._places:
            super().clear()
            self._tokens.clear()

    def __delitem__(self, at: Any) -> None:
        with self._places:
            self._align()
            super().__delitem__(at)
            del self._tokens[at]

    def remove(self, item: Any) -> None:
        """Who compares entries has seen them, up to the one that goes."""
        with self._places:
            self._align()
            at = super().index(item)
            tokens = self._tokens[: at + 1]
            self._tokens[: at + 1] = [None] * at
            super().__delitem__(at)
        self._take(tokens)

    def reverse(self) -> None:
        with self._places:
            self._align()
            super().reverse()
            self._tokens.reverse()

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """Who sorts sees all."""
        with self._places:
            super().sort(key=key, reverse=reverse)
            tokens, self._tokens = self._tokens, [None] * len(self)
        self._take(tokens)

    # ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _give(self) -> str | None:
        recorder = self._recorder
        if not recorder.on:
            return None
        try:
            if self._given_hook is not None:
                self._given_hook.count += 1
            return recorder.hand_on("list")
        except KvsanHazard:
            raise
        except Exception as error:
            recorder.fault("list", error)
            return None

    def _take(self, tokens: list[str | None]) -> None:
        recorder = self._recorder
        for token in tokens:
            if token is not None:
                try:
                    if self._seen_hook is not None:
                        self._seen_hook.count += 1
                    recorder.taken(token)
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault("list", error)

    def pause(self) -> None:
        """A plain list's methods until `resume`. Tokens of entries that are still there then are theirs."""
        with self._places:
            self._align()
            self._before = list(zip(list.__iter__(self), self._tokens, strict=True))
            self.__class__ = _Paused

    def resume(self) -> None:
        with self._places:
            kept = {id(item): token for item, token in self._before}
            self._tokens = [kept.pop(id(item), None) for item in list.__iter__(self)]
            self._before = []
            self.__class__ = HandingList

    def _align(self) -> None:
        """After something has changed the list by other ways than these, which token is whose is not known."""
        if len(self._tokens) != len(self):
            self._tokens = [None] * len(self)
            self._recorder.ledger.unseen(0, 1, "list changed behind its hand-offs")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(self),)


_CHANGED = (
    *("append", "extend", "__iadd__", "insert", "__setitem__", "__getitem__", "__iter__", "pop", "copy", "clear"),
    *("__delitem__", "remove", "reverse", "sort"),
)

_Paused: Any = type(
    "HandingList", (HandingList,), {"__slots__": (), **{name: getattr(list, name) for name in _CHANGED}}
)
"""A `HandingList` in a pause: a list."""
