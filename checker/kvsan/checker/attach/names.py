"""Who is who: threads, streams and events as names that stay with one thing and never pass to another.

A thread is known by a thread-local, not by its ident, which the system hands to the next thread. A stream is (device,
handle) until it is destroyed. An event is a Python object: PyTorch makes the CUDA event at the first record, and two
objects never share one, except through IPC, where the caller gives both the same name.

The name of an event hangs on the event itself, as an attribute that dies with it. It is no weak reference where that
can be helped: `torch.cuda.Event` of PyTorch 2.10 to 2.12 takes weak references and never clears them, so that they
point into freed memory, pass for the next event at that address, and crash Python's last garbage collection
(pytorch/pytorch#183403). Objects without attributes (a bare `torch.Event`) have a weak reference; those that have
neither are held, up to `HELD` of them; one that is pushed out is forgotten, and if its engine records it again it gets
a new name.

An engine makes an event for each copy: what hangs on it is made, and ends, without a line of Python run.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, get_args

from kvsan.checker.attach.native import HOT
from kvsan.model.ops import Stream, StreamKind

HELD = 1 << 14
MAX_THREADS = 1 << 14
"""So many threads in the life of a process: a name is never given twice, since its accesses stay its own."""

LEGACY, LEGACY_TOO, PER_THREAD = 0, 1, 2
"""Handles of CUDA that stand for no stream of their own: `cudaStreamLegacy` is 0x1, `cudaStreamPerThread` 0x2."""

_KINDS = get_args(StreamKind)


class _Life:
    """Ends with its thread, as everything does that only a thread-local holds."""

    __slots__ = ("_dead", "_name")

    def __init__(self, name: str, dead: deque[str]) -> None:
        self._name = name
        self._dead = dead

    def __del__(self) -> None:  # any thread, any moment: no lock, no log
        self._dead.append(self._name)


class Threads:
    """Names of host threads. `dead` collects the names of those that have ended."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._local = threading.local()
        self.dead: deque[str] = deque()
        self.names: dict[str, str] = {}
        """Our name → the name that Python knows the thread by."""

    def name(self) -> str:
        try:
            found: str = self._local.name
        except AttributeError:
            found = self._meet()
        return found

    def _meet(self) -> str:
        with self._lock:
            if len(self.names) >= MAX_THREADS:
                raise OverflowError(f"more than {MAX_THREADS} host threads issued work")
            name = f"{self._prefix}h{len(self.names)}"
            self.names[name] = threading.current_thread().name
        self._local.name = name
        self._local.life = _Life(name, self.dead)
        return name


class Streams:
    """Names of streams by (device, handle), and a generation for a handle that comes back."""

    def __init__(self, prefix: str, declare: Callable[[str, Stream], None]) -> None:
        self._prefix = prefix
        self._declare = declare
        self._by_handle: dict[Any, str] = {}
        self.known: dict[str, Stream] = {}

    def find(self, device: int | str, handle: int) -> str | None:
        """The name, if that says enough: the per-thread default stream is another one in each thread."""
        return self._by_handle.get((device, handle))

    def name(self, device: int | str, handle: int, name: str | None, kind: StreamKind | None, thread: str) -> str:
        key: Any = (device, LEGACY if handle == LEGACY_TOO else handle)
        if handle == PER_THREAD:
            key = (device, handle, thread)
        found = self._by_handle.get(key)
        if found is not None:
            return found
        if kind is None:
            kind = "legacy" if key[1] == LEGACY else "per-thread" if handle == PER_THREAD else "nonblocking"
        if kind not in _KINDS:
            raise ValueError(f"{kind!r} is no kind of stream; accepted: {', '.join(_KINDS)}")
        made = self._fresh(name or (f"default{device}" if kind in ("legacy", "per-thread") else f"s{len(self.known)}"))
        self.known[made] = stream = Stream(device, kind)
        self._by_handle[key] = made
        if handle == LEGACY_TOO:
            self._by_handle[(device, handle)] = made
        self._declare(made, stream)
        return made

    def gone(self, device: int | str, handle: int) -> None:
        self._by_handle.pop((device, handle), None)

    def _fresh(self, wish: str) -> str:
        name, number = self._prefix + wish, 2
        while name in self.known:
            name, number = f"{self._prefix}{wish}#{number}", number + 1
        return name


if TYPE_CHECKING or HOT is None:

    class _Tag(partial[None]):
        """The name of an event, on that event: a call that notes the end of that name, made when the tag ends. That is
        at any moment in any thread, so it takes no lock and runs no line of ours. A copy of the event would share the
        tag, so it knows whose it is.
        """

        __slots__ = ("key", "name")

        key: int
        name: str

        __del__ = partial.__call__

        def __reduce__(self) -> tuple[Any, ...]:
            return type(None), ()  # an event that is pickled leaves it behind

        def drop(self) -> None:
            """It hangs nowhere, and its end is nobody's."""
            self.__setstate__((_nothing, (), None, None))  # type: ignore[attr-defined]  # not in typeshed

    def _nothing() -> None: ...

    class _Names:
        """Names of events that carry theirs."""

        _prefix: str
        attribute: str
        _serial: int
        _end: Callable[[str], None]
        dead: Any
        """A deque of names, or in C this object: as long as there are any, with an `append`."""
        _names: dict[int, tuple[Any, str]]
        _held: OrderedDict[int, tuple[Any, str]]

        def _otherwise(self, event: object) -> str | None:
            raise NotImplementedError

        def _refer(self, event: object, name: str) -> None:
            raise NotImplementedError

        def name(self, event: object) -> str:
            tag = getattr(event, self.attribute, None)
            if type(tag) is _Tag and tag.key == id(event):
                return tag.name
            if self._names or self._held:
                found = self._otherwise(event)
                if found is not None:
                    return found
            name = self.fresh()
            tag = _Tag(self._end, name)
            tag.key, tag.name = id(event), name
            try:
                setattr(event, self.attribute, tag)
                kept = getattr(event, self.attribute, None) is tag
            except (AttributeError, TypeError):
                kept = False
            except BaseException:  # no line names it
                tag.drop()
                raise
            if not kept:
                tag.drop()
                self._refer(event, name)
            return name

        def fresh(self) -> str:
            """A name for an event that is no Python object here."""
            self._serial += 1
            return f"{self._prefix}e{self._serial}"

        def take_dead(self) -> list[str]:
            """Names of events whose objects are gone since the last call."""
            out = []
            while self.dead:
                out.append(self.dead.popleft())
            return out

else:
    _Names = HOT.Names


class Events(_Names):
    """Names of events by object identity. `dead` collects the names of those that are gone (see `take_dead`)."""

    _made = count()

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.attribute = f"_kvsan_event_{next(self._made)}"  # each recorder has names of its own
        self._serial = 0
        self._names = {}  # id → (weak reference, name)
        self._held = OrderedDict()
        self.dead = self
        if HOT is None:
            self.dead = deque()
            self._end = self.dead.append

    def _otherwise(self, event: object) -> str | None:
        """The name of an event that cannot carry it."""
        found = self._names.get(id(event))
        if found is not None and found[0]() is event:
            return found[1]
        held = self._held.get(id(event))
        return None if held is None else held[1]

    def _refer(self, event: object, name: str) -> None:
        key = id(event)

        def gone(reference: Any) -> None:  # any thread, any moment: no lock, no log
            found = self._names.get(key)
            if found is not None and found[0] is reference:
                del self._names[key]
            self.dead.append(name)

        try:
            self._names[key] = (weakref.ref(event, gone), name)
        except TypeError:
            self._held[key] = (event, name)
            if len(self._held) > HELD:
                self.dead.append(self._held.popitem(last=False)[1][1])
