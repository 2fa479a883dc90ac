"""Four classes of fault, put into the ops of a run by editing them.

Each function yields what one fault makes of the run, for every place where it can be put. Left out is what changes no
edge: a wait for what the stream has waited for already, a record whose stream has done nothing since its last one, a
source in front of which nothing is waited for. The fifth class, a block freed early, is the player's own (`early`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvsan.model.design import Design
from kvsan.model.ops import Access, Get, Op, Poll, Put, Record, Sync, Wait

Fault = tuple[str, list[Op]]


def dropped_waits(ops: Sequence[Op], design: Design) -> Iterator[Fault]:
    """Drop any one wait."""
    work: dict[str, int] = {}
    records: dict[str, tuple[str, int]] = {}
    waited: set[tuple[str, tuple[str, int]]] = set()
    for i, op in enumerate(ops):
        if isinstance(op, Access) and op.on is not None:
            work[op.on] = i
        elif isinstance(op, Record):
            records[op.event] = (op.on, work.get(op.on, -1))
        elif isinstance(op, Wait) and op.event in records:
            key = (op.on, records[op.event])
            if key not in waited and any(isinstance(later, Access) and later.on == op.on for later in ops[i:]):
                yield f"without the wait at op {i}", [*ops[:i], *ops[i + 1 :]]
            waited.add(key)


def moved_records(ops: Sequence[Op], design: Design) -> Iterator[Fault]:
    """Move a record in front of its last producer."""
    for i, op in enumerate(ops):
        if not isinstance(op, Record):
            continue
        for j in range(i - 1, -1, -1):
            before = ops[j]
            if isinstance(before, Record) and before.event == op.event:
                break
            if isinstance(before, Access) and before.on == op.on:
                event, _, number = op.event.partition("#")
                touched = [side[design.pool] for side in (before.reads, before.writes) if design.pool in side]
                if design.event(event).per == "block" and not any(int(number) in blocks for blocks in touched):
                    break  # the work in front of it is none of that block's
                yield f"the record at op {i} in front of op {j}", [*ops[:j], op, *ops[j:i], *ops[i + 1 :]]
                break


def early_publications(ops: Sequence[Op], design: Design) -> Iterator[Fault]:
    """Publish an event before its record: the thread puts the entry first; with one thread, it is polled first."""
    for i, op in enumerate(ops):
        if isinstance(op, Put) and design.threads:
            for j in range(i - 1, -1, -1):
                before = ops[j]
                if before.by == op.by and isinstance(before, Record):
                    yield f"the put at op {i} in front of op {j}", [*ops[:j], op, *ops[j:i], *ops[i + 1 :]]
                if before.by == op.by and isinstance(before, Access | Get):
                    break
        elif isinstance(op, Record) and not design.threads:
            polled = next((j for j, later in enumerate(ops[i:], i)
                           if isinstance(later, Poll | Sync) and later.event == op.event), None)  # fmt: skip
            if polled is not None:
                yield (
                    f"the record at op {i} behind its poll at op {polled}",
                    [*ops[:i], *ops[i + 1 : polled + 1], op, *ops[polled + 1 :]],
                )


def early_reads(ops: Sequence[Op], design: Design) -> Iterator[Fault]:
    """Read the source out of order."""
    works = {work.name: work for work in design.works()}
    waits: dict[str, bool] = {}
    for i, op in enumerate(ops):
        if isinstance(op, Wait):
            waits[op.on] = True
        elif isinstance(op, Access) and op.on is not None:
            work = works[op.label]
            if (
                work.order == "stream"
                and not work.every_step
                and work.after
                and waits.get(op.on)
                and design.pool in op.reads
            ):
                yield f"op {i} in source order any", [*ops[:i], replace(op, order="any"), *ops[i + 1 :]]
            waits[op.on] = False


EDITS = {
    "drop a wait": dropped_waits,
    "move a record": moved_records,
    "publish early": early_publications,
    "read early": early_reads,
}
