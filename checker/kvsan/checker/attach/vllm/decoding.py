"""The usual step, cheaply: the same requests as in the step before, one token each.

Such a step changes what is read and written only where a request has come to its next block or its window leaves one.
For each request it is known at which number of computed tokens that will be; until then a step costs a comparison.
Whatever is not so simple (another kind of group, a request that went back, blocks that are not there) is declined, and
the general way (`steps`) takes over from the state as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvsan.checker.attach.vllm.groups import Group, Ints

if TYPE_CHECKING:
    from kvsan.checker.attach.vllm.steps import Steps

KINDS = frozenset({"full", "sliding", "chunked"})


class Decoding:
    """Successive steps of `requests`, whose rows in the tables of `steps` are `rows`."""

    def __init__(self, steps: Steps, requests: list[str], rows: Ints) -> None:
        self.requests = requests
        self.ones = [1] * len(requests)
        self._steps = steps
        self._rows: list[int] = rows.tolist()
        self._since = np.zeros(len(requests), np.int64)
        self._until = np.zeros(len(requests), np.int64)
        self._written = np.zeros((len(steps.groups), len(requests)), np.int64)
        self._found: tuple[Ints, Ints] | None = None

    def feed(self, computed: Sequence[int]) -> tuple[Ints, Ints] | None:
        """As `Steps.feed`; `None` if it is not so simple. The same arrays again if nothing has changed."""
        done = np.array(computed, np.int64)
        moved = ((done >= self._until) | (done < self._since)).nonzero()[0]
        if len(moved) or self._found is None:
            for at in moved.tolist():
                if not self._move(at, computed[at]):
                    return None
            writes = self._written.ravel()
            self._found = self._steps.read(), writes[writes != 0]
        return self._found

    def _move(self, at: int, done: int) -> bool:
        steps, row = self._steps, self._rows[at]
        until = done + (1 << 40)
        for number, group in enumerate(steps.groups):
            hi = done // group.block_size + 1
            lo, next_lo = _first_read(group, done)
            was_lo, was_hi = steps.counted(number, row)
            if hi > steps.known(number, row) or not was_lo <= lo <= was_hi <= hi:
                return False
            steps.recount(number, row, lo, hi)
            self._written[number, at] = steps.block(number, row, hi - 1)
            until = min(until, hi * group.block_size, next_lo)
        self._since[at], self._until[at] = done, until
        return True


def _first_read(group: Group, done: int) -> tuple[int, int]:
    """The first block that the next token reads, and the number of computed tokens at which that will be another."""
    size, width = group.block_size, group.width
    if group.kind == "sliding":
        lo = max(done - width + 1, 0) // size
        return lo, (lo + 1) * size + width - 1
    if group.kind == "chunked":
        chunk = done // width
        return chunk * width // size, (chunk + 1) * width
    return 0, done + (1 << 40)
