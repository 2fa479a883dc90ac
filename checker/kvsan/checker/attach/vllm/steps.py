"""From `SchedulerOutput`s to the blocks that each forward reads and writes, for either model runner.

A worker is told of a request's blocks once, when it is new, and afterwards of additions alone; this follows the same
messages. The sets of successive steps differ by few blocks, so a count for each block is kept of how many scheduled
requests read it, and only what changed is counted: a step of 64 requests costs some tens of microseconds.

Relied on: the meaning of `scheduled_new_reqs`, `scheduled_cached_reqs` (its `new_block_ids` are appended, or replace
the list for ids in `resumed_req_ids`), `num_scheduled_tokens`, `finished_req_ids`; block 0 is vLLM's null block.
Not covered: rejected draft tokens (with speculative decoding the caller says Incomplete).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvsan.checker.attach.vllm.groups import Group, Ints

_ROWS, _COLUMNS = 64, 64


class Steps:
    """Fed with each step's `SchedulerOutput`, in order."""

    def __init__(self, groups: Sequence[Group], blocks: int) -> None:
        self.groups = tuple(groups)
        self.count = 0
        """How many steps ran a forward."""
        self._readers = np.zeros(blocks, np.int32)
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._table = [np.zeros((_ROWS, _COLUMNS), np.int64) for _ in groups]
        self._known = [np.zeros(_ROWS, np.int64) for _ in groups]
        self._lo = [np.zeros(_ROWS, np.int64) for _ in groups]  # what of each row is counted in `_readers`
        self._hi = [np.zeros(_ROWS, np.int64) for _ in groups]
        self._counted = np.zeros(0, np.int64)

    def feed(self, output: Any) -> tuple[Ints, Ints] | None:
        """Block ids read and written by this step's forward; `None` if it has none. May name a block twice."""
        computed = self._news(output)
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            return None
        self.count += 1
        rows = np.fromiter((self._rows[request] for request in scheduled), np.int64, len(scheduled))
        done = np.fromiter((computed[request] for request in scheduled), np.int64, len(scheduled))
        new = np.fromiter(scheduled.values(), np.int64, len(scheduled))
        self._uncount_others(rows)
        written = []
        for at, group in enumerate(self.groups):
            lo, first, hi = group.ranges(done, new, self._known[at][rows])
            self._recount(at, rows, lo, hi)
            if group.kind == "cross":
                encoded = output.scheduled_encoder_inputs
                first = np.fromiter(
                    (0 if request in encoded else end for request, end in zip(scheduled, hi.tolist(), strict=True)),
                    np.int64,
                    len(rows),
                )
            written.append(self._between(at, rows, first, hi))
        self._counted = rows
        writes = np.concatenate(written) if written else np.zeros(0, np.int64)
        return np.flatnonzero(self._readers[1:]) + 1, writes[writes != 0]

    # ── the messages ──────────────────────────────────────────────────────────────────────────────────────────────

    def _news(self, output: Any) -> dict[str, int]:
        """Takes in what is new; returns how many tokens each named request has computed."""
        for request in output.finished_req_ids:
            self._forget(request)
        computed = {}
        for data in output.scheduled_new_reqs:
            self._replace(data.req_id, data.block_ids)
            computed[data.req_id] = data.num_computed_tokens
        cached = output.scheduled_cached_reqs
        resumed = getattr(cached, "resumed_req_ids", ())
        for request, more, done in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            if request in resumed:
                self._replace(request, more or ())
            elif more is not None:
                row = self._rows[request]
                for at, ids in enumerate(more):
                    self._append(at, row, ids)
            computed[request] = done
        return computed

    def _replace(self, request: str, ids: Sequence[Sequence[int]]) -> None:
        row = self._rows.get(request)
        if row is None:
            row = self._free.pop() if self._free else len(self._rows)
            self._rows[request] = row
            if self._known and row >= len(self._known[0]):
                self._grow_rows()
        for at in range(len(self.groups)):
            self._uncount(at, row)
            self._known[at][row] = 0
            if at < len(ids):
                self._append(at, row, ids[at])

    def _append(self, at: int, row: int, ids: Sequence[int]) -> None:
        if not ids:
            return
        begin = int(self._known[at][row])
        end = begin + len(ids)
        table = self._table[at]
        if end > table.shape[1]:
            wider = np.zeros((table.shape[0], max(end, 2 * table.shape[1])), np.int64)
            wider[:, : table.shape[1]] = table
            table = self._table[at] = wider
        table[row, begin:end] = ids
        self._known[at][row] = end

    def _forget(self, request: str) -> None:
        row = self._rows.pop(request, None)
        if row is None:
            return
        for at in range(len(self.groups)):
            self._uncount(at, row)
            self._known[at][row] = 0
        self._free.append(row)

    def _grow_rows(self) -> None:
        for columns in (self._table, self._known, self._lo, self._hi):
            columns[:] = [np.concatenate((column, np.zeros_like(column))) for column in columns]

    # ── who reads what ────────────────────────────────────────────────────────────────────────────────────────────

    def _uncount(self, at: int, row: int) -> None:
        lo, hi = int(self._lo[at][row]), int(self._hi[at][row])
        if lo != hi:
            np.subtract.at(self._readers, self._table[at][row, lo:hi], 1)
            self._lo[at][row] = self._hi[at][row] = 0

    def _uncount_others(self, rows: Ints) -> None:
        """Rows that the step before had and this one has not."""
        if len(self._counted) == len(rows) and np.array_equal(self._counted, rows):
            return
        for row in np.setdiff1d(self._counted, rows).tolist():
            for at in range(len(self.groups)):
                self._uncount(at, row)

    def _recount(self, at: int, rows: Ints, lo: Ints, hi: Ints) -> None:
        """Only rows whose range moved, and of those only what entered it and what left it."""
        was_lo, was_hi = self._lo[at][rows], self._hi[at][rows]
        moved = np.flatnonzero((was_lo != lo) | (was_hi != hi))
        if not len(moved):
            return
        table, readers = self._table[at], self._readers
        out, into = (lo - was_lo)[moved], (hi - was_hi)[moved]
        one = (out >= 0) & (out <= 1) & (into >= 0) & (into <= 1) & (lo <= was_hi)[moved]  # as a decoding step moves
        left, entered = moved[one & (out == 1)], moved[one & (into == 1)]
        np.subtract.at(readers, table[rows[left], was_lo[left]], 1)
        np.add.at(readers, table[rows[entered], was_hi[entered]], 1)
        for i in moved[~one].tolist():
            row = int(rows[i])
            np.subtract.at(readers, table[row, int(was_lo[i]) : int(was_hi[i])], 1)
            np.add.at(readers, table[row, int(lo[i]) : int(hi[i])], 1)
        self._lo[at][rows], self._hi[at][rows] = lo, hi

    def _between(self, at: int, rows: Ints, first: Ints, end: Ints) -> Ints:
        """The ids at positions `first` to `end` of each row."""
        lengths = end - first
        table = self._table[at]
        if len(lengths) and (lengths == 1).all():  # a step of decoding
            found: Ints = table[rows, first]
            return found
        parts = [
            table[row, lo:hi]
            for row, lo, hi in zip(rows.tolist(), first.tolist(), end.tolist(), strict=True)
            if lo < hi
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)
