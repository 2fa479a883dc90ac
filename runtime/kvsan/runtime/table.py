"""A design's guards and assignments as arrays over block states, so that a pool of blocks is one integer each.

A block's state is its facet values, numbered in mixed radix. Each facet has one value more than the design names:
*held*, while a free waits for its fence (`kvsan.model.design.parts.Retired`). A guard becomes a truth value for each
state, an assignment the state that comes after. Nothing is decided here: the tables are `Guard.holds`, evaluated once
a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt

from kvsan.model.design import Assign, Design, DesignError, Every, Guard, Is, Some, Submit, Work

HELD = "(held)"
"""The value of a facet while its free is held; no guard names it."""

STATES = 1 << 16
"""How many states a block may have: a table of each guard is kept."""

Truth = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int32]


class Table:
    """Raises `DesignError` if the facets have more than `STATES` combinations."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self._values = [(*facet.values, HELD) for facet in design.facets]
        self._names = [facet.name for facet in design.facets]
        self.states = prod(len(values) for values in self._values)
        if self.states > STATES:
            raise DesignError(f"{design.name}: a block has {self.states} states; an engine runs at most {STATES}")
        radix = [prod(len(values) for values in self._values[at + 1 :]) for at in range(len(self._values))]
        self._radix = dict(zip(self._names, radix, strict=True))
        self._guards: dict[Guard, Truth] = {}
        self._assigns: dict[tuple[Assign, bool], Codes] = {}

    @property
    def start(self) -> int:
        """A fresh block's state."""
        return self.code(self.design.start)

    def code(self, block: Mapping[str, str]) -> int:
        """The number of the state with these facet values."""
        return sum(
            values.index(block[name]) * self._radix[name]
            for name, values in zip(self._names, self._values, strict=True)
        )

    def facets(self, code: int) -> dict[str, str]:
        """The facet values of a state."""
        return {
            name: values[code // self._radix[name] % len(values)]
            for name, values in zip(self._names, self._values, strict=True)
        }

    @cached_property
    def _digits(self) -> dict[str, Codes]:
        """For each facet the number of its value, state by state."""
        codes = np.arange(self.states, dtype=np.int32)
        return {
            name: codes // self._radix[name] % len(values)
            for name, values in zip(self._names, self._values, strict=True)
        }

    def truth(self, guard: Guard | None) -> Truth:
        """Whether the guard holds, for each state; no guard holds of none."""
        if guard is None:
            return np.zeros(self.states, bool)
        made = self._guards.get(guard)
        if made is None:
            made = self._guards[guard] = self._evaluate(guard)
        return made

    def _evaluate(self, guard: Guard) -> Truth:
        if isinstance(guard, Is):
            values = self._values[self._names.index(guard.facet)]
            holds = [value in guard.values or (guard.other and value not in guard.domain) for value in values]
            return np.array(holds, bool)[self._digits[guard.facet]]
        assert isinstance(guard, Every | Some)
        combine = np.logical_and if isinstance(guard, Every) else np.logical_or
        out: Truth = combine.reduce([self._evaluate(part) for part in guard.parts])
        return out

    def after(self, then: Assign, *, hold: bool = False) -> Codes:
        """The state after `then`, for each state. `hold`: its facets are held instead."""
        key = (then, hold)
        made = self._assigns.get(key)
        if made is None:
            made = np.arange(self.states, dtype=np.int32)
            for name, value in then:
                made += self._step(name, HELD if hold else value)
            self._assigns[key] = made
        return made

    def returned(self, then: Assign) -> Codes:
        """The state when a hold of `then` ends: what was set in the meantime stays."""
        made = np.arange(self.states, dtype=np.int32)
        for name, value in then:
            held = self._digits[name] == self._values[self._names.index(name)].index(HELD)
            made += np.where(held, self._step(name, value), 0)
        return made

    def _step(self, name: str, value: str) -> Codes:
        """From each state to the one that differs in this facet alone."""
        to = self._values[self._names.index(name)].index(value)
        made: Codes = (to - self._digits[name]) * np.int32(self._radix[name])
        return made

    # ── questions that more than one part asks ────────────────────────────────────────────────────────────────────

    @cached_property
    def free(self) -> Truth:
        """Whether the allocator may hand the block out."""
        return self.truth(self.design.free)

    def reads(self, work: Work) -> Truth:
        """Whether the work reads the block."""
        return self.truth(work.reads)

    def writes(self, work: Work) -> Truth:
        """Whether the work writes the block."""
        return self.truth(work.writes)

    def due(self, work: Work) -> Truth:
        """Whether the work touches the block."""
        return self.reads(work) | self.writes(work)

    @cached_property
    def wanted(self) -> Truth:
        """Whether some copy or job of the block is decided and not yet issued."""
        out = np.zeros(self.states, bool)
        for truth in self.planned.values():
            out |= truth
        return out

    @cached_property
    def planned(self) -> dict[str, Truth]:
        """For each work that does not run in every step: whether it is decided for the block and not yet issued."""
        out = {work.name: self.due(work) for work in self.design.works() if not work.every_step}
        for item in self.design.step:
            if isinstance(item, Submit):
                for job in (job for thread in self.design.threads for job in thread.jobs if job.takes == item.queue):
                    out[job.name] = out[job.name] | self.truth(item.when)
        return out
