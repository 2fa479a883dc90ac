"""Puts wrappers in place of an engine's functions and methods, and takes them away again.

Off means not installed: `undo` puts the originals back, so a session that ended costs nothing; `lift` does so for a
while, until `put_back` (what happens meanwhile is not seen, so it is for where the engine is idle). What is wrapped
meanwhile is put in place by `put_back`. A target that is not there is noted in its hook, never an error. Wrapping twice
is refused by looking for our mark, so that a plugin that is loaded twice counts nothing twice.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from kvsan.checker.attach.ledger import Hook

_MARK = "__kvsan_wraps__"
_ABSENT = object()


class Patches:
    """A list of replacements that can be undone, latest first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._placed: list[tuple[Any, str, Any, Any]] = []  # owner, name, what it had of its own, what is there now
        self.lifted = False
        """Whether the originals are in their places."""

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any], hook: Hook | None = None) -> bool:
        """`owner.name = make(original)`. False, and noted in `hook`, if there is no such thing to wrap.

        For a class the attribute is found where it is inherited from and set on `owner` alone; undoing removes it
        there. The original is left under `wrapper.__kvsan_wraps__`.
        """
        original: Any = getattr(owner, name, _ABSENT) if owner is not None else _ABSENT
        if original is _ABSENT:
            if hook is not None:
                hook.missing(f"{_shown(owner)} has no {name}")
            return False
        if getattr(original, _MARK, None) is not None:
            return True
        own = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else original
        wrapper: Any = make(original)
        with contextlib.suppress(AttributeError, TypeError):
            functools.update_wrapper(wrapper, original)
        setattr(wrapper, _MARK, original)
        placed: Any = staticmethod(wrapper) if isinstance(own, staticmethod | classmethod) else wrapper
        try:
            setattr(owner, name, placed)
        except (AttributeError, TypeError) as error:
            if hook is not None:
                hook.missing(str(error))
            return False
        self._keep(owner, name, own, placed)
        return True

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Sets any attribute, to be put back by `undo`."""
        own = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self._keep(owner, name, own, value)

    def on_undo(self, action: Callable[[], None]) -> None:
        """Something else that has to be taken away."""
        self._undo.append(action)

    def lift(self) -> None:
        """Puts the originals back until `put_back`; again: nothing. Where a name was taken from its owner, the wrapper
        stays.
        """
        if not self.lifted:
            self.lifted = True
            for owner, name, own, _ in reversed(self._placed):
                self._restore(owner, name, own)

    def put_back(self) -> None:
        if self.lifted:
            self.lifted = False
            for owner, name, _, placed in self._placed:
                setattr(owner, name, placed)

    def undo(self) -> None:
        self.put_back()  # what is undone is there
        self._placed.clear()
        while self._undo:
            self._undo.pop()()

    def __len__(self) -> int:
        return len(self._undo)

    def _keep(self, owner: Any, name: str, own: Any, placed: Any) -> None:
        """What has just been put in place."""
        self._undo.append(lambda: self._restore(owner, name, own))
        self._placed.append((owner, name, own, placed))
        if self.lifted:
            self._restore(owner, name, own)

    @staticmethod
    def _restore(owner: Any, name: str, own: Any) -> None:
        if own is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _shown(owner: Any) -> str:
    if owner is None:
        return "a module or class that is not there"
    module = getattr(owner, "__module__", None)
    name = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", None) or repr(owner)
    return f"{module}.{name}" if module else str(name)
