"""Holds both checkers to the oracle on one trace: every pair, and the first racing op of every block."""

from __future__ import annotations

from typing import Any

from kvsan.checker import Report, check
from oracle import truth

FENCED = ("RAW", "WAR", "WAW")
First = dict[tuple[str, int], tuple[int, dict[str, int]]]


def pairs_of(report: Report) -> set[tuple[int, int, str, str, int, bool]]:
    """(earlier op, later op, kind, pool, block, reuse)."""
    return {
        (hazard.earlier.op, hazard.later.op, hazard.kind.value, hazard.pool, block, hazard.reuse)
        for hazard in report.hazards
        if hazard.kind in FENCED
        for block in hazard.blocks
    }


def apart_of(report: Report, kind: str) -> set[tuple[int, str, int]]:
    return {
        (hazard.later.op, hazard.pool, block)
        for hazard in report.hazards
        if hazard.kind == kind
        for block in hazard.blocks
    }


def first_of(report: Report) -> First:
    found: First = {}
    for hazard in report.hazards:
        if hazard.kind in FENCED:
            for block in hazard.blocks:
                later, kinds = found.setdefault((hazard.pool, block), (hazard.later.op, {}))
                assert later == hazard.later.op, "a block is reported at one op only"
                assert hazard.kind.value not in kinds, "and once for each kind"
                kinds[hazard.kind.value] = hazard.earlier.op
    return found


def disagreements(header: dict[str, Any], ops: list[dict[str, Any]]) -> list[str]:
    """What the checkers and the oracle see differently, with and without trust in the copy engine; empty if nothing."""
    wrong = []
    for assume in (False, True):
        true = truth(header, ops, assume_stream_order=assume)
        every = check(header, ops, all_pairs=True, assume_stream_order=assume)
        first = check(header, ops, assume_stream_order=assume)
        views: list[tuple[str, Any, Any]] = [
            ("pairs", pairs_of(every), {tuple(pair) for pair in true.pairs}),
            ("batch", apart_of(every, "BATCH"), set(true.batch)),
            ("gen", apart_of(every, "GEN"), set(true.gen)),
            ("first", first_of(first), {block: (op, dict(kinds)) for block, (op, kinds) in true.first().items()}),
            ("first batch", apart_of(first, "BATCH"), earliest(true.batch)),
            ("first gen", apart_of(first, "GEN"), earliest(true.gen)),
            ("verdict", every.verdict.name == "racy", not true.clean),
        ]
        wrong += [
            f"{name} (assume={assume}): ours {ours}, oracle {theirs}" for name, ours, theirs in views if ours != theirs
        ]
    return wrong


def earliest(found: Any) -> set[tuple[int, str, int]]:
    """Of (op, pool, block) the first op of each block."""
    ops: dict[tuple[str, int], int] = {}
    for op, pool, block in sorted(found):
        ops.setdefault((pool, block), op)
    return {(op, pool, block) for (pool, block), op in ops.items()}
