"""The cross-check in some steps of many, since PyTorch's trace callbacks cost a step of vLLM some 50 µs (`gputrace`).

An engine's steps are alike: an order that goes by the wrappers shows in each step of its kind. So the callbacks are
heard in `watch` steps of each `of`, and in the first `first`. Meanwhile the tensor methods that block are wrapped. If a
window shows something that no wrapper saw, the next one follows at once, and so on until nothing of the kind shows: an
engine that blocks in PyTorch's C++ in each step is heard in each step. What shows for the first time after a gap may
have been in the gap too: it counts as an unseen edge, and hazards are then possible, not certain.

Not covered: what goes by the wrappers in gaps and never in a window. It can only be an order that is not learnt (of an
event that is recorded again behind our back, a wait learns of the older record alone), so a run that is called clean is
clean; but what such a call ordered may be reported as a hazard. `crosscheck=0` hears all steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsan.checker.attach.ledger import Counter

if TYPE_CHECKING:
    from kvsan.checker.attach.torch.crosscheck import CrossCheck


class Sampling(Counter):
    """Counts an engine's steps: `count` is how many are left. Raises `ValueError` for a window that is no part of its
    turn.
    """

    def __init__(self, check: CrossCheck, *, watch: int, of: int, first: int) -> None:
        if not 0 < watch < of or first < 1:
            raise ValueError(f"watch={watch} of={of} first={first}; accepted: 0 < watch < of, first from 1 on")
        self._check = check
        self._watch, self._rest = watch, of - watch
        self.count = first
        self._seen = check.alone
        self._gaps = False
        self.watching = True

    def step(self) -> None:
        """A step begins."""
        self.count -= 1
        if self.count < 0:
            self._turn()

    def _turn(self) -> None:
        check = self._check
        if not self.watching:
            check.resume()
            self.watching, self.count, self._seen = True, self._watch - 1, check.alone
        elif check.alone != self._seen:
            if self._gaps:
                check.doubt()
            self.count, self._seen, self._gaps = self._watch - 1, check.alone, False
        else:
            check.pause()
            self.watching, self.count, self._gaps = False, self._rest - 1, True
