"""Containers that carry host order: a queue and a list whose users hand on what they know.

`HandingQueue` stands in for a `queue.Queue` or `queue.SimpleQueue`; what is put travels with its token. `HandingList`
is a list that one thread appends to and another looks at (a completion list): whoever looks first takes the tokens of
what is there. Blocking calls of the inner queue are made without the recorder's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, SupportsIndex

from kvsan.checker.attach.recorder import Recorder


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
        if not self._recorder.on:
            return item
        token = self._recorder.fresh_token("queue")
        self._recorder.put(token)
        return _Parcel(token, item)

    def _unpack(self, found: Any) -> Any:
        if type(found) is not _Parcel:
            return found
        self._recorder.get(found.token)
        return found.item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class HandingList(list[Any]):
    """A list whose `append` and `extend` hand over to whoever looks at it next."""

    def __init__(self, recorder: Recorder, items: Any = ()) -> None:
        super().__init__(items)
        self._recorder = recorder
        self._tokens: list[str] = []

    def append(self, item: Any) -> None:
        self._give()
        super().append(item)

    def extend(self, items: Any) -> None:
        self._give()
        super().extend(items)

    def pop(self, index: SupportsIndex = -1) -> Any:
        found = super().pop(index)
        self._take()
        return found

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self._take()
        return found

    def __iter__(self) -> Iterator[Any]:
        self._take()
        return super().__iter__()

    def _give(self) -> None:
        if self._recorder.on:
            token = self._recorder.fresh_token("list")
            self._recorder.put(token)
            self._tokens.append(token)

    def _take(self) -> None:
        while self._tokens:
            self._recorder.get(self._tokens.pop(0))
