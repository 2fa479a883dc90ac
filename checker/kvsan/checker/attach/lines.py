"""A line as it waits to be worked off, and as it travels to a process beside the engine's (`beside`).

A line is `(kind, *fields)`: a number of `KINDS` and the fields of that op in their order, but with ids as the hook gave
them (copied) in place of `Blocks`. An access whose `reads` is a name has its blocks from what was told last under that
name (`recorder.tell`). Four more sorts stand among the lines: `Held` is a blocking call; `SETTLED` says what became of
one that had been handed on before it returned; `GONE` that a thread has ended; `TOLD` carries a message. Only ops and
blocking calls are numbered, in the order in which they stand.

On their way lines are MessagePack, which is the cheapest by far: a line of vLLM takes 0.3 µs, where `marshal` takes 0.7
and `pickle` 1.1 (`docs/performance.md`). Arrays of ids travel as the bytes of their int64s, or
of int32s and one byte more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from kvsan.checker.attach.native import HOT, set_up
from kvsan.model.ops import Access, Alloc, Blocks, Drop, Free, Get, Op, Poll, Put, Record, Sync, Touch, Wait

KINDS: tuple[type[Op], ...] = (Access, Record, Wait, Sync, Poll, Put, Get, Alloc, Free, Touch, Drop)
ACCESS, RECORD, WAIT, SYNC, POLL, PUT, GET, ALLOC, FREE, TOUCH, DROP, HELD, SETTLED, GONE, TOLD = range(15)
NUMBERED = HELD
"""Sorts up to this one have a number."""

Line = Any
"""A tuple, a list that was one, or `Held`."""


if TYPE_CHECKING or HOT is None:

    class _Held:
        __slots__ = ("_op", "done", "given", "index", "told")

        def __init__(self, index: int, given: tuple[Any, ...], done: bool | None = None) -> None:
            self.index = index
            self.given = given
            self.done = done
            self.told = False
            self._op: Sync | None = None

else:
    _Held = HOT.Held


class Held(_Held):
    """The line of a blocking call. `done` is whether it has returned (`None`: not yet; false: it failed), `told`
    whether it was handed on while it was out.
    """

    __slots__ = ()

    @property
    def op(self) -> Sync:
        """The call, as if it had returned: the same object each time, by which a sink knows it."""
        made = self._op
        if made is None:
            made = self._op = Sync(*self.given)
        return made


def said(line: Line) -> str:
    """What a line was, for the words of a fault."""
    code = HELD if type(line) is Held else line[0]
    if code < len(KINDS):
        return KINDS[code].__name__.lower()
    return {HELD: "blocking", SETTLED: "blocking", GONE: "the end of a thread"}.get(code, "what a step does")


def encoded(lines: list[Line]) -> bytes:
    """Lines on their way. A `Held` that has not returned is from now on `told`."""
    try:
        return _encode(lines)
    except (ValueError, TypeError, OverflowError, AttributeError):  # text or numbers that have no form there
        return _encode([_plain(_other(line) if type(line) is Held else line) for line in lines])


def decoded(data: bytes | memoryview) -> list[Line]:
    return cast(list[Line], _decode(data))


def _other(value: Any) -> Any:
    """What MessagePack has no form for."""
    if type(value) is Held:
        if value.done:
            return (SYNC, *value.given)
        value.told = value.done is None
        return (HELD, *value.given, value.done)
    if isinstance(value, int):  # of a class of its own
        return int(value)
    if isinstance(value, Blocks):
        return {"runs": value.runs}
    if isinstance(value, range):
        return {"range": (value.start, value.stop, value.step)}
    if isinstance(value, np.ndarray):
        return value.astype(np.int64, copy=False).tobytes()
    if hasattr(value, "item"):  # a number of numpy's or torch's
        return value.item()
    return str(value)


def _plain(value: Any) -> Any:
    """The same in what MessagePack knows: text without what UTF-8 lacks, numbers too large and all else as text."""
    if value is None or isinstance(value, bool | float | bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 64 else str(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return _plain(_other(value))


def ids_of(given: Any) -> Any:
    """Ids as they were before they travelled; others as they are."""
    if type(given) is bytes:
        if len(given) % 8 in (1, 5):
            return np.frombuffer(given, np.int32, len(given) // 4)
        return np.frombuffer(given, np.int64)
    if type(given) is dict:
        if "range" in given:
            return range(*given["range"])
        return Blocks(tuple((lo, hi) for lo, hi in given["runs"]))
    return given


_encode = msgspec.msgpack.Encoder(enc_hook=_other).encode
_decode = msgspec.msgpack.Decoder().decode

set_up(Held, encoded)
