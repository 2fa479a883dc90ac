"""The online checker: takes the ops of an engine one by one and returns the hazards that each completes.

Exact for the ops that it is given: a block is reported at the first op that has an unordered conflicting access to it
before it, with every kind that holds there and for each the latest such access. `BATCH` and `GEN` need no order and
are found beside that, each at its first op for a block. Later races of a block that has raced are left to `pairs.py`,
except with `each_edge`, which a running engine is checked with: then a block is reported once for each edge that it
misses (`findings.py`).

Memory: the columns of `shadow.py` and `lives.py`, the vectors of `clocks.py`, and the bounded words of `findings.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvsan.checker.advice import Advice, HandOrder
from kvsan.checker.clocks import Clocks, Effect
from kvsan.checker.findings import Findings
from kvsan.checker.index import index
from kvsan.checker.lives import Lives
from kvsan.checker.shadow import Found, Shadow
from kvsan.model.hazard import Hazard, Kind
from kvsan.model.ops import Access, Alloc, Drop, Free, Get, Op, Poll, Put, Record, Stream, Sync, Touch, Wait


class Online:
    """`feed` takes op number `op` (from 0, growing) and returns the hazards that it completes.

    `possible` marks what an unseen edge may order (RAW, WAR, WAW) as only possible; `every` reports BATCH and GEN at
    each op, not only at a block's first; `each_edge` reports a race for each kind and pair of streams or threads, not
    only a block's first. `max_tokens` bounds the tokens that wait to be taken; `lost` is called when
    one is taken that was forgotten for it.
    """

    def __init__(
        self,
        pools: Mapping[str, int],
        streams: Mapping[str, Stream] | None = None,
        *,
        attached: bool = False,
        assume_stream_order: bool = False,
        lifetime: bool = False,
        possible: bool = False,
        every: bool = False,
        each_edge: bool = False,
        max_tokens: int | None = None,
    ) -> None:
        self.clocks = Clocks(streams, assume_stream_order=assume_stream_order, max_tokens=max_tokens)
        self.advice = Advice()
        self.shadows = {pool: Shadow(size) for pool, size in pools.items()}
        self.lives = {pool: Lives(size) for pool, size in pools.items()}
        self.findings = Findings(
            self.clocks,
            self.lives,
            assume_stream_order=assume_stream_order,
            possible=possible,
            every=every,
            each_edge=each_edge,
        )
        self._hands = HandOrder(self.advice, max_tokens)
        self.lost: Callable[[], None] | None = None
        self.foreign: Callable[[], None] | None = None
        """Called when a token is taken that was never put here."""
        self._attached = attached
        self._lifetime = lifetime
        self._rules: dict[type, Callable[[int, Any], list[Hazard] | None]] = {
            Access: self._access,
            Record: self._record,
            Wait: self._wait,
            Sync: self._sync,
            Poll: self._poll,
            Put: self._put,
            Get: self._get,
            Drop: self._drop,
            Alloc: self._alloc,
            Free: self._free,
            Touch: self._touch,
        }

    def feed(self, op: int, what: Op) -> list[Hazard]:
        """Raises nothing for any legal op; blocks must be within their pool (the reader sees to it)."""
        return self._rules[type(what)](op, what) or []

    def add_pool(self, name: str, size: int) -> None:
        """A pool that appears while the engine runs."""
        self.shadows[name] = Shadow(size)
        self.lives[name] = Lives(size)
        self.findings.add_pool(name, size)

    def thread_gone(self, name: str) -> None:
        """A host thread that has ended."""
        self._hands.thread_gone(name)
        self.clocks.thread_gone(name)

    # ── accesses ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _access(self, op: int, what: Access) -> list[Hazard] | None:
        if what.on is not None:
            self._hands.stream(op, what.by, what.on, changes=True)
        epoch = op + 1
        issue = self.clocks.access(epoch, what)
        reads = [(pool, index(blocks)) for pool, blocks in what.reads.items()]
        writes = [(pool, index(blocks)) for pool, blocks in what.writes.items()]
        found: list[tuple[Kind, str, Found]] = []
        for pool, at in reads:
            racing = self.shadows[pool].unordered_writes(at, issue.reads)
            if racing:
                found.append((Kind.RAW, pool, racing))
        for pool, at in writes:
            shadow = self.shadows[pool]
            racing = shadow.unordered_reads(at, issue.writes)
            if racing:
                found.append((Kind.WAR, pool, racing))
            racing = shadow.unordered_writes(at, issue.writes)
            if racing:
                found.append((Kind.WAW, pool, racing))
        hazards = self.findings.races(op, what, issue, found) if found else []
        if what.batch:
            hazards += self.findings.batch(op, what)
        if what.planned is not None:
            hazards += self.findings.generations(op, what, what.planned, (*reads, *writes))
        if self._lifetime:
            self.findings.note_lifetimes(op, what, (*reads, *writes))
        for pool, at in reads:
            self.shadows[pool].note_read(at, issue.read_lane, epoch)
        for pool, at in writes:
            self.shadows[pool].note_write(at, issue.write_lane, epoch)
        self.findings.remember(op, what)
        return hazards

    # ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _record(self, op: int, what: Record) -> None:
        self._hands.stream(op, what.by, what.on, changes=True)
        self._hands.event(op, what.by, what.event, changes=True)
        self.clocks.record(op, what.by, what.on, what.event)

    def _wait(self, op: int, what: Wait) -> None:
        self._hands.stream(op, what.by, what.on, changes=True)
        self._hands.event(op, what.by, what.event, changes=False)
        effect = self.clocks.wait(what.by, what.on, what.event)
        if effect is Effect.ORDERED:
            return
        on, by, event = what.on, what.by, what.event
        if effect is Effect.UNRECORDED:
            self._unrecorded(op, "wait", on=on, by=by, event=event)
        elif effect is Effect.OWN_STREAM:
            self.advice.warn(op, "own-stream", (on, by), on=on, by=by, event=event)
        else:
            source = self.clocks.agents[self.clocks.events[event].lane].name
            self.advice.warn(op, "redundant-wait", (on, by, source), on=on, by=by, event=event, recorded_on=source)

    def _sync(self, op: int, what: Sync) -> None:
        if what.event is not None:
            self._observe(op, "sync", what.by, what.event)
        elif what.stream is not None:
            self._hands.stream(op, what.by, what.stream, changes=False)
            self.clocks.observe_stream(what.by, what.stream)
        else:
            for name in self.clocks.on_device(what.device):
                self._hands.stream(op, what.by, name, changes=False)
            self.clocks.observe_device(what.by, what.device)

    def _poll(self, op: int, what: Poll) -> None:
        if what.done:
            self._observe(op, "poll", what.by, what.event)
        else:
            self._hands.event(op, what.by, what.event, changes=False)
            if what.event not in self.clocks.events:
                self._unrecorded(op, "poll", by=what.by, event=what.event)

    def _observe(self, op: int, call: str, by: str, event: str) -> None:
        self._hands.event(op, by, event, changes=False)
        if not self.clocks.observe_event(by, event):
            self._unrecorded(op, call, by=by, event=event)

    def _unrecorded(self, op: int, call: str, **where: str) -> None:
        if not self._attached:
            self.advice.warn(op, "never-recorded", (call, where.get("on", ""), where["by"]), call=call, **where)

    def _put(self, op: int, what: Put) -> None:
        self._hands.put(what.by, what.token)
        self.clocks.put(what.by, what.token)

    def _get(self, op: int, what: Get) -> None:
        self._hands.get(what.by, what.token)
        found = self.clocks.get(what.by, what.token)
        if found is False and self.lost is not None:
            self.lost()
        elif found is None and self.foreign is not None:
            self.foreign()

    def _drop(self, op: int, what: Drop) -> None:
        self._hands.forget(what.event)
        self.clocks.drop(what.event)

    # ── lives ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _alloc(self, op: int, what: Alloc) -> None:
        self.lives[what.pool].alloc(op, index(what.blocks))
        self.findings.remember(op, what)

    def _free(self, op: int, what: Free) -> None:
        self.lives[what.pool].free(op, index(what.blocks))

    def _touch(self, op: int, what: Touch) -> None:
        self.lives[what.pool].touch(op, index(what.blocks))

    # ── sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def touched(self) -> dict[str, dict[str, int]]:
        """For each pool its number of blocks and how many of them were accessed."""
        return {pool: {"blocks": shadow.size, "touched": shadow.touched()} for pool, shadow in self.shadows.items()}

    def nbytes(self) -> int:
        """Bytes of per-block state, over all pools."""
        columns = sum(shadow.nbytes() for shadow in self.shadows.values())
        return columns + sum(life.nbytes() for life in self.lives.values()) + self.findings.nbytes()
