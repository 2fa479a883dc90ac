"""The hooks that an engine calls most, in C (`checker/native/`) where that was built.

Between an engine's own work each line of Python finds cold caches, so a hook that takes 0.2 µs in a loop takes 7
(`docs/performance.md`). `HOT` is the C module or `None`; what it has, the Python beside it has too, and that is what
runs where it was not built, or with `KVSAN_NATIVE=0`. Tests run on both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvsan.checker.live import KvsanHazard
from kvsan.runtime import lines
from kvsan.runtime.native import found

if TYPE_CHECKING:
    from kvsan.checker.attach.ledger import Hook
    from kvsan.checker.attach.recorder import Recorder

Function = Callable[..., Any]

HOT: Any
HOT, WRONG = found("kvsan.checker.attach._hot", 4)
if lines.IN_C is None:  # which has the lock that C takes
    HOT = None
WRONG = WRONG or lines.WRONG
"""What is wrong with `KVSAN_NATIVE`: a session does not begin then."""


def set_up(held: type, encoded: Callable[[list[Any]], bytes]) -> None:
    """Tells the C module which class the lines of blocking calls have, and what encodes a line that it cannot."""
    if HOT is not None:
        HOT.set_up(KvsanHazard, held, encoded, lines.IN_C.Lock)


def mark(thing: Any, name: str, value: Any) -> None:
    """Puts something of kvsan's on an object of the engine's, of which hooks in C keep what they read (`kept.h`)."""
    setattr(thing, name, value)
    if HOT is not None:
        HOT.marked()


def quick(kind: str, original: Function, slow: Function, recorder: Recorder, hook: Hook, *more: Any) -> Function:
    """A hook that makes the usual call in C and calls `slow`, the same hook in Python, for all others. `slow` where
    there is no C. `more`: what this kind needs, as `Hook` in `hot.c` says.
    """
    if HOT is None:
        return slow
    made: Function = HOT.Hook(kind, original, slow, recorder, hook, hook.name, *more)
    return made


def namer(
    recorder: Recorder,
    device: Function | None,
    handle: Function | None,
    meet: Callable[[tuple[int, int]], str | None],
    other: Callable[[Any], str],
    devices: Callable[[], int] | None = None,
) -> Any:
    """Names of streams for C hooks; `None` where there is no C. `device()` and `handle(device)` say which stream is
    current (`None`: that is not to be had so), `meet` is asked for one that was not met before, `other` for all else;
    `devices()` says how many there are.
    """
    return None if HOT is None else HOT.Namer(recorder, device, handle, meet, other, devices)
