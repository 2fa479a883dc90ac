"""What would order a hazard's two accesses: the alternatives, weakest first, and what each does to a trace.

Weakest first: what costs no waiting at all, then what only the device waits for, then what hands on knowledge that a
host thread already has, last what blocks a host thread. Each alternative is sufficient by itself; `apply` makes the
change, so that it can be seen (and is tested) that the pair vanishes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kvsan.model.hazard import Fix, Hazard
from kvsan.model.ops import Access, Alloc, Blocks, Free, Get, Op, Put, Record, Sync, Touch, Wait
from kvsan.model.order import Element


def fences(
    earlier: Element,
    later: int,
    what: Access,
    *,
    reads: bool,
    assume_stream_order: bool,
    stream_knows: bool,
    informed: Sequence[str],
) -> tuple[Fix, ...]:
    """Mends a RAW, WAR or WAW: `earlier` must be ordered before op `later`, which is `what`.

    `reads`: the racing part of the later access is its read. `stream_knows`: its stream itself is ordered behind
    `earlier`. `informed`: host threads other than its own that know `earlier` to be complete.

    A source read in `any` order is not held back by a wait of its stream, so it must be given stream order as well. One
    that is over when the call returns is the host thread's own: to give that copy stream order would take from its
    caller what the call promised.
    """
    by, on = what.by, what.on
    floats = reads and what.order == "any" and not assume_stream_order
    out: list[Fix] = []
    if not earlier.agent.is_host:
        after = (earlier.agent.name, earlier.op)
        if floats and stream_knows:
            out.append(Fix(order=True))
        elif on is not None and not (reads and what.order == "call"):
            out.append(Fix(record=after, wait=(on, later), order=floats))
    out.extend(Fix(handoff=(other, by, later)) for other in informed)
    if not earlier.agent.is_host:
        out.append(Fix(record=after, sync=(by, later)))
    return tuple(out)


def pin(pool: str, blocks: Blocks) -> tuple[Fix, ...]:
    """Mends a GEN. No fence does: in whatever order, the access would find the next owner's data."""
    return (Fix(pin=(pool, blocks)),)


def split(pool: str, blocks: Blocks) -> tuple[Fix, ...]:
    """Mends a BATCH: batches on one stream are ordered, the parts of one are not."""
    return (Fix(split=(pool, blocks)),)


def apply(ops: Sequence[Op], hazard: Hazard, fix: Fix) -> tuple[list[Op], list[int]]:
    """The ops with the fix made, and for each old op its new number. Events and tokens added are named `kvsan.fix…`."""
    later = hazard.later.op
    before: dict[int, list[Op]] = {}
    instead: dict[int, Op] = {}
    access = ops[later]
    if not isinstance(access, Access):
        raise ValueError(f"kvsan internal error: op {later} is no access")
    name = _fresh(ops)
    if fix.record:
        on, after = fix.record
        before.setdefault(after + 1, []).append(Record(ops[after].by, on, name))
    if fix.wait:
        before.setdefault(fix.wait[1], []).append(Wait(access.by, fix.wait[0], name))
    if fix.sync:
        before.setdefault(fix.sync[1], []).append(Sync(fix.sync[0], event=name))
    if fix.handoff:
        giver, taker, at = fix.handoff
        before.setdefault(at, []).extend((Put(giver, name), Get(taker, name)))
    if fix.order:
        access = instead[later] = replace(access, order="stream")
    if fix.pin and access.planned is not None:
        for number in range(access.planned + 1, later):
            kept = _without(ops[number], *fix.pin)
            if kept is not ops[number]:
                instead[number] = kept
    if fix.split:
        instead[later], second = _split(access, *fix.split)
        before.setdefault(later + 1, []).insert(0, second)
    return _rebuild(ops, before, instead)


def _rebuild(ops: Sequence[Op], before: dict[int, list[Op]], instead: dict[int, Op]) -> tuple[list[Op], list[int]]:
    out: list[Op] = []
    moved: list[int] = []
    for number in range(len(ops) + 1):
        out.extend(before.get(number, ()))
        if number < len(ops):
            moved.append(len(out))
            out.append(instead.get(number, ops[number]))
    return [
        replace(op, planned=moved[op.planned]) if isinstance(op, Access) and op.planned is not None else op
        for op in out
    ], moved


def _without(op: Op, pool: str, blocks: Blocks) -> Op:
    if isinstance(op, Alloc | Free | Touch) and op.pool == pool:
        gone = set(blocks)
        kept = [block for block in op.blocks if block not in gone]
        if len(kept) < len(op.blocks):
            return replace(op, blocks=Blocks.of(kept))
    return op


def _split(access: Access, pool: str, blocks: Blocks) -> tuple[Access, Access]:
    """The batch with each of `blocks` written at most once and not read as well, and a second batch with the rest."""
    gone = set(blocks)
    seen: set[int] = set()
    first: list[int] = []
    second: list[int] = []
    sources = set(access.reads.get(pool, Blocks(())))
    for block in access.writes[pool]:
        clash = block in gone and (block in seen or block in sources)
        (second if clash else first).append(block)
        seen.add(block)
    rest = [block for block in first if block in gone and first.count(block) > 1]
    if rest:
        raise ValueError("kvsan internal error: a split batch still repeats a block")
    writes = {**access.writes, pool: Blocks.of(first)}
    return (
        replace(access, writes=writes),
        replace(access, reads={}, writes={pool: Blocks.of(dict.fromkeys(second))}, planned=None),
    )


def _fresh(ops: Iterable[Op]) -> str:
    taken = {getattr(op, "event", None) for op in ops} | {getattr(op, "token", None) for op in ops}
    number = 1
    while f"kvsan.fix{number}" in taken:
        number += 1
    return f"kvsan.fix{number}"
