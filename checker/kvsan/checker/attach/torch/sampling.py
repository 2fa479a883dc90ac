"""The cross-check in some steps of many, since PyTorch's trace callbacks cost a step of vLLM some 50 µs (`gputrace`).

An engine's steps are alike: an order that goes by the wrappers shows in each step of its kind. So the callbacks are
heard in `watch` steps of each `of`, and in the first `first`. Meanwhile the tensor methods that block are wrapped. If a
window shows something that no wrapper saw, the next one follows at once, and so on until nothing of the kind shows: an
engine that blocks in PyTorch's C++ in each step is heard in each step.

Not covered: what goes by the wrappers between two windows and never in one. Such a wait or record is not counted as an
unseen edge; such a blocking call is an order that is not learnt, and what it ordered may be reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsan.checker.attach.torch.crosscheck import CrossCheck


class Sampling:
    """Counts an engine's steps. Raises `ValueError` for a window that is no part of its turn."""

    def __init__(self, check: CrossCheck, *, watch: int, of: int, first: int) -> None:
        if not 0 < watch < of or first < 1:
            raise ValueError(f"watch={watch} of={of} first={first}; accepted: 0 < watch < of, first from 1 on")
        self._check = check
        self._watch, self._rest = watch, of - watch
        self._left = first
        self._seen = check.alone
        self.watching = True

    def step(self) -> None:
        """A step begins."""
        self._left -= 1
        if self._left < 0:
            self._turn()

    def _turn(self) -> None:
        check = self._check
        if not self.watching:
            check.resume()
            self.watching, self._left, self._seen = True, self._watch - 1, check.alone
        elif check.alone != self._seen:
            self._left, self._seen = self._watch - 1, check.alone
        else:
            check.pause()
            self.watching, self._left = False, self._rest - 1
