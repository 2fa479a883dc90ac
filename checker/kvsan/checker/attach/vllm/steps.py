"""From `SchedulerOutput`s to the blocks that each forward reads and writes, for either model runner.

A worker is told of a request's blocks once, when it is new, and afterwards of additions alone; this follows the same
messages. The sets of successive steps differ by few blocks, so a count for each block is kept of how many scheduled
requests read it, and only what changed is counted. The usual step is taken a shorter way (`decoding`).

A message is taken where the step begins (`Messages`), which copies what it says, since the worker goes on with the very
lists, and leaves out what is as it was in the step before. What follows from it is worked out in its turn among the
lines (`Steps`, a `Follower` of the recorder), maybe in another process.

Relied on: the meaning of `scheduled_new_reqs`, `scheduled_cached_reqs` (its `new_block_ids` are appended, or replace
the list for ids in `resumed_req_ids`), `num_scheduled_tokens`, `finished_req_ids`; block 0 is vLLM's null block.
Not covered: rejected draft tokens (with speculative decoding the caller says Incomplete).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kvsan.checker.attach.vllm.decoding import KINDS, Decoding
from kvsan.checker.attach.vllm.groups import Group, Ints
from kvsan.checker.index import IdBlocks

_ROWS, _COLUMNS = 64, 64
Lists = list[list[int]]
_NOBODY: list[str] = []


class Message(NamedTuple):
    """What one `SchedulerOutput` says, copied. `cached`, `scheduled` and `tokens` are `None` where all three are as in
    the message before.
    """

    finished: Sequence[str]
    new: Sequence[tuple[str, Lists, int]]
    cached: list[str] | None
    more: Sequence[tuple[str, Lists]]
    resumed: Sequence[str]
    computed: list[int]
    scheduled: list[str] | None
    tokens: list[int] | None
    encoded: Sequence[str]


class Messages:
    """Takes the messages of one worker, in order. `crosses`: a group attends to an encoder's output."""

    __slots__ = ("_before", "_crosses", "count")

    def __init__(self, *, crosses: bool = False) -> None:
        self.count = 0
        """How many of them had a forward."""
        self._crosses = crosses
        self._before: tuple[list[str], list[str], list[int]] = ([], [], [])

    def take(self, output: Any) -> Message | None:
        """What it says; `None` if that is nothing."""
        cached, scheduled = output.scheduled_cached_reqs, output.num_scheduled_tokens
        names, more, finished, new = cached.req_ids, cached.new_block_ids, output.finished_req_ids, []
        if output.scheduled_new_reqs:
            new = [(one.req_id, _copied(one.block_ids), one.num_computed_tokens) for one in output.scheduled_new_reqs]
        if scheduled:
            self.count += 1
        elif not (finished or new or names):
            return None
        resumed = getattr(cached, "resumed_req_ids", ())
        now = (names, list(scheduled), list(scheduled.values()))
        same = now == self._before
        if not same:
            now = self._before = (list(names), *now[1:])
        return Message(
            list(finished) if finished else _NOBODY,
            new,
            None if same else now[0],
            [(name, _copied(ids)) for name, ids in zip(names, more, strict=True) if ids] if any(more) else (),
            [name for name in names if name in resumed] if resumed else _NOBODY,
            list(cached.num_computed_tokens),
            None if same else now[1],
            None if same else now[2],
            list(output.scheduled_encoder_inputs) if self._crosses else _NOBODY,
        )


class Steps:
    """A `Follower`: fed with each message of a worker, in order. `pool` is that of its blocks."""

    def __init__(self, groups: Sequence[Group], blocks: int, pool: str = "gpu") -> None:
        self.groups = tuple(groups)
        self.pool = pool
        self._readers = np.zeros(blocks, np.int32)
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._table = [np.zeros((_ROWS, _COLUMNS), np.int64) for _ in groups]
        self._known = [np.zeros(_ROWS, np.int64) for _ in groups]
        self._lo = [np.zeros(_ROWS, np.int64) for _ in groups]  # what of each row is counted in `_readers`
        self._hi = [np.zeros(_ROWS, np.int64) for _ in groups]
        self._counted = np.zeros(0, np.int64)
        self._before: tuple[list[str], list[str], list[int]] = ([], [], [])
        self._decoding: Decoding | None = None
        self._simple = all(group.kind in KINDS for group in groups)

    # ── the messages ──────────────────────────────────────────────────────────────────────────────────────────────

    def feed(self, message: Message | Sequence[Any]) -> tuple[dict[str, IdBlocks], dict[str, IdBlocks]]:
        """What the message's forward reads and writes; the arrays are nobody else's to change."""
        reads, writes = self.blocks(message)
        return {self.pool: IdBlocks(reads)}, {self.pool: IdBlocks(writes)}

    def blocks(self, message: Message | Sequence[Any]) -> tuple[Ints, Ints]:
        """Block ids read and written by the message's forward. May name a block twice, and may be the very arrays of
        the step before.
        """
        message = Message(*message)
        if message.scheduled is None:
            before = self._before
            message = message._replace(cached=before[0], scheduled=before[1], tokens=before[2])
        else:
            self._before = (message.cached or [], message.scheduled, message.tokens or [])
        if message.finished or message.new or message.resumed:
            self._decoding = None
        self._news(message)
        usual = self._decoding
        if (
            usual is not None
            and usual.ones == message.tokens
            and usual.requests == message.scheduled
            and usual.requests == message.cached
        ):
            found = usual.feed(message.computed)
            if found is not None:
                return found
        rows, found = self._in_general(message)
        scheduled = message.scheduled
        self._decoding = Decoding(self, scheduled, rows) if self._simple and scheduled else None
        return found

    def _in_general(self, message: Message) -> tuple[Ints, tuple[Ints, Ints]]:
        scheduled, cached, tokens = message.scheduled or [], message.cached or [], message.tokens or []
        count = len(scheduled)
        if not count:
            return np.zeros(0, np.int64), (np.zeros(0, np.int64), np.zeros(0, np.int64))
        computed = {request: done for request, _, done in message.new}
        computed.update(zip(cached, message.computed, strict=True))
        rows = np.fromiter((self._rows[request] for request in scheduled), np.int64, count)
        done = np.fromiter((computed[request] for request in scheduled), np.int64, count)
        new = np.array(tokens, np.int64)
        self._uncount_others(rows)
        written = []
        for at, group in enumerate(self.groups):
            lo, first, hi = group.ranges(done, new, self._known[at][rows])
            self._recount(at, rows, lo, hi)
            if group.kind == "cross":
                encoded = message.encoded
                first = np.fromiter(
                    (0 if request in encoded else end for request, end in zip(scheduled, hi.tolist(), strict=True)),
                    np.int64,
                    count,
                )
            written.append(self._between(at, rows, first, hi))
        self._counted = rows
        writes = np.concatenate(written) if written else np.zeros(0, np.int64)
        return rows, (self.read(), writes[writes != 0])

    # ── for `decoding` ────────────────────────────────────────────────────────────────────────────────────────────

    def read(self) -> Ints:
        """The blocks that somebody reads."""
        found: Ints = self._readers[1:].nonzero()[0]
        found += 1
        return found

    def counted(self, at: int, row: int) -> tuple[int, int]:
        """What of a row is counted as read, as positions."""
        return int(self._lo[at][row]), int(self._hi[at][row])

    def known(self, at: int, row: int) -> int:
        """How many blocks a row has."""
        return int(self._known[at][row])

    def block(self, at: int, row: int, position: int) -> int:
        return int(self._table[at][row, position])

    def recount(self, at: int, row: int, lo: int, hi: int) -> None:
        """From now on `lo` to `hi` of a row are read, neither of them less than before."""
        was_lo, was_hi = self.counted(at, row)
        ids, readers = self._table[at][row], self._readers
        for position in range(was_lo, lo):
            readers[ids[position]] -= 1
        for position in range(was_hi, hi):
            readers[ids[position]] += 1
        self._lo[at][row], self._hi[at][row] = lo, hi

    # ── what is new ───────────────────────────────────────────────────────────────────────────────────────────────

    def _news(self, message: Message) -> None:
        for request in message.finished:
            self._forget(request)
        for request, lists, _ in message.new:
            self._replace(request, lists)
        more = dict(message.more)
        for request in message.resumed:
            self._replace(request, more.pop(request, ()))
        for request, lists in more.items():
            row = self._rows[request]
            for at, ids in enumerate(lists):
                self._append(at, row, ids)

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


def _copied(lists: Sequence[Sequence[int]]) -> Lists:
    return [list(ids) for ids in lists]
