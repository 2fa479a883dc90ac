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
from dataclasses import fields
from operator import attrgetter
from typing import Any, get_args

from kvsan.checker.advice import Advice, HandOrder
from kvsan.checker.clocks import Clocks, Effect
from kvsan.checker.findings import Findings
from kvsan.checker.index import index
from kvsan.checker.lives import Lives
from kvsan.checker.shadow import Found, Shadow
from kvsan.model.hazard import Hazard, Kind
from kvsan.model.ops import (
    Access,
    Alloc,
    Blocks,
    Device,
    Drop,
    Free,
    Get,
    Op,
    Poll,
    Put,
    Record,
    Source,
    Stream,
    Sync,
    Touch,
    Wait,
)

_FIELDS: dict[type[Op], Callable[[Op], tuple[Any, ...]]] = {
    kind: attrgetter(*(field.name for field in fields(kind))) for kind in get_args(Op)
}
_Time = int | float | None


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
        self._rules: dict[type[Op], Callable[..., list[Hazard] | None]] = {  # of an op's number and fields
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
        kind = type(what)
        return self._rules[kind](op, *_FIELDS[kind](what)) or []

    def line(self, op: int, kind: type[Op], given: tuple[Any, ...]) -> list[Hazard] | None:
        """`feed` of `kind(*given)`, all fields given: to make the op would cost as much as to look at it."""
        return self._rules[kind](op, *given)

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

    def _access(
        self,
        op: int,
        by: str,
        on: str | None,
        reads: Mapping[str, Blocks],
        writes: Mapping[str, Blocks],
        label: str,
        order: Source,
        batch: bool,
        planned: int | None,
        step: int | str | None,
        owner: int | str | None,
        site: str | None,
        _: _Time,
    ) -> list[Hazard] | None:
        if on is not None:
            self._hands.stream(op, by, on, changes=True)
        self.findings.remember(op, label, on, by, step, owner, site)
        epoch = op + 1
        issue = self.clocks.issue(epoch, by, on, order)
        read = [(pool, index(blocks)) for pool, blocks in reads.items()]
        written = [(pool, index(blocks)) for pool, blocks in writes.items()]
        found: list[tuple[Kind, str, Found]] = []
        for pool, at in read:
            racing = self.shadows[pool].unordered_writes(at, issue.reads)
            if racing:
                found.append((Kind.RAW, pool, racing))
        for pool, at in written:
            shadow = self.shadows[pool]
            racing = shadow.unordered_reads(at, issue.writes)
            if racing:
                found.append((Kind.WAR, pool, racing))
            racing = shadow.unordered_writes(at, issue.writes)
            if racing:
                found.append((Kind.WAW, pool, racing))
        hazards: list[Hazard] = []
        if found:
            what = Access(by, on, reads, writes, label, order, batch, planned, step, owner, site)
            hazards += self.findings.races(op, what, issue, found)
        if batch:
            hazards += self.findings.batch(op, reads, writes)
        if planned is not None:
            hazards += self.findings.generations(op, planned, (*read, *written))
        if self._lifetime:
            self.findings.note_lifetimes(op, (*read, *written))
        for pool, at in read:
            self.shadows[pool].note_read(at, issue.read_lane, epoch)
        for pool, at in written:
            self.shadows[pool].note_write(at, issue.write_lane, epoch)
        return hazards

    # ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _record(self, op: int, by: str, on: str, event: str, _: _Time) -> None:
        self._hands.stream(op, by, on, changes=True)
        self._hands.event(op, by, event, changes=True)
        self.clocks.record(op, by, on, event)

    def _wait(self, op: int, by: str, on: str, event: str, _: _Time) -> None:
        self._hands.stream(op, by, on, changes=True)
        self._hands.event(op, by, event, changes=False)
        effect = self.clocks.wait(by, on, event)
        if effect is Effect.ORDERED:
            return
        if effect is Effect.UNRECORDED:
            self._unrecorded(op, "wait", on=on, by=by, event=event)
        elif effect is Effect.OWN_STREAM:
            self.advice.warn(op, "own-stream", (on, by), on=on, by=by, event=event)
        else:
            source = self.clocks.agents[self.clocks.events[event].lane].name
            self.advice.warn(op, "redundant-wait", (on, by, source), on=on, by=by, event=event, recorded_on=source)

    def _sync(self, op: int, by: str, event: str | None, stream: str | None, device: Device | None, _: _Time) -> None:
        if event is not None:
            self._observe(op, "sync", by, event)
        elif stream is not None:
            self._hands.stream(op, by, stream, changes=False)
            self.clocks.observe_stream(by, stream)
        else:
            for name in self.clocks.on_device(device):
                self._hands.stream(op, by, name, changes=False)
            self.clocks.observe_device(by, device)

    def _poll(self, op: int, by: str, event: str, done: bool, _: _Time) -> None:
        if done:
            self._observe(op, "poll", by, event)
        else:
            self._hands.event(op, by, event, changes=False)
            if event not in self.clocks.events:
                self._unrecorded(op, "poll", by=by, event=event)

    def _observe(self, op: int, call: str, by: str, event: str) -> None:
        self._hands.event(op, by, event, changes=False)
        if not self.clocks.observe_event(by, event):
            self._unrecorded(op, call, by=by, event=event)

    def _unrecorded(self, op: int, call: str, **where: str) -> None:
        if not self._attached:
            self.advice.warn(op, "never-recorded", (call, where.get("on", ""), where["by"]), call=call, **where)

    def _put(self, _op: int, by: str, token: str, _: _Time) -> None:
        self._hands.put(by, token)
        self.clocks.put(by, token)

    def _get(self, _op: int, by: str, token: str, _: _Time) -> None:
        self._hands.get(by, token)
        found = self.clocks.get(by, token)
        if found is False and self.lost is not None:
            self.lost()
        elif found is None and self.foreign is not None:
            self.foreign()

    def _drop(self, _op: int, _by: str, event: str, _: _Time) -> None:
        self._hands.forget(event)
        self.clocks.drop(event)

    # ── lives ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _alloc(self, op: int, _by: str, pool: str, blocks: Blocks, _: _Time) -> None:
        self.lives[pool].alloc(op, index(blocks))
        self.findings.allocated(op, pool, blocks)

    def _free(self, op: int, _by: str, pool: str, blocks: Blocks, _: _Time) -> None:
        self.lives[pool].free(op, index(blocks))

    def _touch(self, op: int, _by: str, pool: str, blocks: Blocks, _: _Time) -> None:
        self.lives[pool].touch(op, index(blocks))

    # ── sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def touched(self) -> dict[str, dict[str, int]]:
        """For each pool its number of blocks and how many of them were accessed."""
        return {pool: {"blocks": shadow.size, "touched": shadow.touched()} for pool, shadow in self.shadows.items()}

    def nbytes(self) -> int:
        """Bytes of per-block state, over all pools."""
        columns = sum(shadow.nbytes() for shadow in self.shadows.values())
        return columns + sum(life.nbytes() for life in self.lives.values()) + self.findings.nbytes()
