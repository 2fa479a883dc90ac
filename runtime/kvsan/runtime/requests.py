"""A request while the engine serves it, and what it ends as."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]

EMPTY = -1
"""In a block table: a block that the window has slid past."""


class State(StrEnum):
    """Where a request stands. A request that was preempted waits again."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Completion:
    """What came out: the tokens behind the prompt, in order. `why`: it has its tokens, it sampled the token that ends a
    text, or somebody aborted it."""

    number: int
    tokens: tuple[int, ...]
    why: Literal["length", "stop", "aborted"]


@dataclass(eq=False, slots=True)
class Active:
    """A request that was submitted.

    `tokens`: the prompt and what the host has seen of the answer. `computed`: tokens whose KV was launched.
    `in_flight`: steps that sample for it and were not seen. `tables`: block ids of each group by block index;
    `digests`: their prefix hashes, of which `registered` can be found. `awaited`: blocks that a load brings.
    """

    number: int
    prompt: int
    new_tokens: int
    tokens: list[int]
    slot: int
    tables: list[list[int]]
    state: State = State.WAITING
    computed: int = 0
    in_flight: int = 0
    aborted: bool = False
    registered: int = 0
    digests: list[list[int]] = field(default_factory=list)
    awaited: list[int] = field(default_factory=list)

    @property
    def answer(self) -> tuple[int, ...]:
        """The tokens behind the prompt that the host has seen."""
        return tuple(self.tokens[self.prompt :])

    @property
    def sampled(self) -> int:
        """Tokens of the answer, those in flight included."""
        return len(self.tokens) - self.prompt + self.in_flight

    @property
    def blocks(self) -> list[int]:
        """Every block that it uses, of all groups."""
        return [block for table in self.tables for block in table if block != EMPTY]

    def todo(self, budget: int) -> int:
        """How many tokens the next step computes for it: a piece of its prompt, or one. Its last token may still be in
        flight; the device has it."""
        left = len(self.tokens) + self.in_flight - self.computed
        if left <= 0 or self.sampled >= self.new_tokens:
            return 0
        return min(left, budget)
