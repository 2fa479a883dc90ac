"""Five classes of fault, put into the ops of a run by editing them.

Each function yields what one fault makes of the run, for every place where it can be put. Left out is what changes no
edge: a wait for a record that the stream has waited for already, a record whose stream has done nothing since its last
one, a source that nobody orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvsan.model.design import Design
from kvsan.model.ops import Access, Free, Get, Op, Poll, Put, Record, Sync, Wait

Fault = tuple[str, list[Op]]


def dropped_waits(ops: Sequence[Op], design: Design) -> Iterator[Fault]:
    """Drop any one wait."""
    records: dict[str, int] = {}
    waited: set[tuple[str, str, int]] = set()
    for i, op in enumerate(ops):
        if isinstance(op, Record):
            records[op.event] = i
        elif isinstance(op, Wait) and op.event in records:
            key = (op.on, op.event, records[op.event])
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
    recorded: set[str] = set()
    for i, op in enumerate(ops):
        if isinstance(op, Record):
            recorded.add(op.event.rsplit("#", 1)[0])
        if isinstance(op, Access) and design.pool in op.reads:
            work = works[op.label]
            if work.order == "stream" and work.on is not None and set(work.after) & recorded:
                waited = [later for later in ops[:i] if isinstance(later, Wait) and later.on == op.on]
                if waited:
                    yield f"op {i} in source order any", [*ops[:i], replace(op, order="any"), *ops[i + 1 :]]


def early_frees(ops: Sequence[Op], design: Design) -> Iterator[Fault]:
    """A free in front of the polls right before it, which it needed."""
    for i, op in enumerate(ops):
        if isinstance(op, Free):
            j = i
            while j and isinstance(ops[j - 1], Poll | Get) and ops[j - 1].by == op.by:
                j -= 1
            if j < i:
                yield f"the free at op {i} in front of op {j}", [*ops[:j], op, *ops[j:i], *ops[i + 1 :]]


EDITS = {
    "drop a wait": dropped_waits,
    "move a record": moved_records,
    "publish early": early_publications,
    "read early": early_reads,
}
