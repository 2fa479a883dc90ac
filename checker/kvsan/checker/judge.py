"""From a trace to a report: feeds the checkers and adds up what they found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsan.checker.advice import Warned
from kvsan.checker.coverage import Coverage
from kvsan.checker.findings import LifetimeNote
from kvsan.checker.online import Online
from kvsan.checker.pairs import Pairs
from kvsan.checker.trace import Trace, from_objects, open_trace
from kvsan.checker.trace.header import Header
from kvsan.checker.verdict import Verdict, verdict
from kvsan.model.hazard import Hazard, Kind
from kvsan.model.ops import Op

FORMAT = 1
_FENCED = (Kind.RAW, Kind.WAR, Kind.WAW)
_Group = tuple[str, str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Report:
    """What `kvsan check` says of one trace. `all_pairs`: `hazards` holds every pair, not each block's first racing
    op.
    """

    trace: str
    verdict: Verdict
    ops: int
    hazards: tuple[Hazard, ...]
    warnings: tuple[Warned, ...]
    coverage: Coverage
    all_pairs: bool = False
    notes: tuple[LifetimeNote, ...] | None = None

    def totals(self) -> dict[_Group, int]:
        """(kind, pool, label of the earlier access, label of the later) → blocks, each counted once a pair of ops."""
        counts: Counter[_Group] = Counter()
        for hazard in self.hazards:
            group = (hazard.kind.value, hazard.pool, hazard.earlier.label, hazard.later.label)
            counts[group] += len(hazard.blocks)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))))

    def document(self) -> dict[str, Any]:
        """The JSON document of `kvsan check --format json`; `report.schema.json` describes it."""
        out: dict[str, Any] = {
            "kvsan": FORMAT,
            "trace": self.trace,
            "verdict": self.verdict.name,
            "why": list(getattr(self.verdict, "why", ())),
            "ops": self.ops,
            "hazards": [hazard.document() for hazard in self.hazards],
            "totals": [
                {"kind": kind, "pool": pool, "earlier": earlier, "later": later, "pairs": pairs}
                for (kind, pool, earlier, later), pairs in self.totals().items()
            ],
            "warnings": [warned.document() for warned in self.warnings],
            "coverage": self.coverage.document(),
        }
        if self.notes is not None:
            out["lifetime"] = [note.document() for note in self.notes]
        return out


def check_trace(
    trace: Trace,
    *,
    all_pairs: bool = False,
    assume_stream_order: bool = False,
    lifetime: bool = False,
    each_edge: bool = False,
) -> Report:
    """Checks a trace to its end. `each_edge`: as a debug session reports (`findings.py`); not with `all_pairs`. Raises
    `TraceError` at the first line that cannot be read.
    """
    return check_ops(
        trace.header,
        trace,
        name=trace.name,
        all_pairs=all_pairs,
        assume_stream_order=assume_stream_order,
        lifetime=lifetime,
        each_edge=each_edge,
    )


def check_ops(
    header: Header,
    ops: Iterable[Op],
    *,
    name: str = "trace",
    all_pairs: bool = False,
    assume_stream_order: bool = False,
    lifetime: bool = False,
    each_edge: bool = False,
) -> Report:
    """`check_trace` for ops that are at hand."""
    options = {"assume_stream_order": assume_stream_order, "possible": header.unseen.edges > 0}
    online = Online(
        header.pools,
        header.streams,
        attached=header.attached,
        lifetime=lifetime,
        every=all_pairs,
        each_edge=each_edge,
        **options,
    )
    pairs = Pairs(header.pools, header.streams, **options) if all_pairs else None
    coverage = Coverage()
    hazards: list[Hazard] = []
    count = 0
    for op in ops:
        coverage.note(op)
        found = online.feed(count, op)
        if pairs is not None:
            found = [*pairs.feed(count, op), *(hazard for hazard in found if hazard.kind not in _FENCED)]
        if found:
            hazards.extend(sorted(found, key=_place))
        count += 1
    coverage.pools = online.touched()
    coverage.hooks = header.hooks
    coverage.unseen = {"copies": header.unseen.copies, "edges": header.unseen.edges}
    coverage.start = "attached" if header.attached else "fresh"
    return Report(
        trace=name,
        verdict=verdict(len(hazards), coverage.missing(header)),
        ops=count,
        hazards=tuple(hazards),
        warnings=tuple(online.advice.all()),
        coverage=coverage,
        all_pairs=all_pairs,
        notes=tuple(online.findings.notes) if lifetime else None,
    )


def check(
    source: str | Path | Mapping[str, Any],
    ops: Iterable[Mapping[str, Any]] | None = None,
    *,
    all_pairs: bool = False,
    assume_stream_order: bool = False,
    lifetime: bool = False,
) -> Report:
    """Checks a trace file, or a header and its ops as JSON objects (`TRACE.md`). Raises `TraceError`."""
    with nullcontext(from_objects(source, ops or ())) if isinstance(source, Mapping) else open_trace(source) as trace:
        return check_trace(trace, all_pairs=all_pairs, assume_stream_order=assume_stream_order, lifetime=lifetime)


def _place(hazard: Hazard) -> tuple[Any, ...]:
    return (hazard.later.op, hazard.pool, hazard.kind.value, hazard.blocks.runs, -hazard.earlier.op)
