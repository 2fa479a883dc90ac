"""What a recorded run says when it is checked afterwards, as one line.

    python trace_verdict.py NAME TRACE RESULTS [REPORT…]

Four readings of the trace: a block's first race (`kvsan check`), each edge that a block misses (as a debug session
reports; held against what the session of this run reported), every pair, and every pair with source order `any` taken
as `stream`. Then the load fence is put into the trace: a record on the stream of the forwards and a wait on that of the
load, before every load; what is left is `mended`. REPORTs are those of processes apart.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu.results import emit
from kvsan.checker import check_trace, open_trace
from kvsan.checker.online import Online
from kvsan.model.ops import Access, Op, Record, Wait


def totals(path: str, **options: Any) -> tuple[dict[str, int], Any]:
    with open_trace(path) as trace:
        report = check_trace(trace, **options)
    found: Counter[str] = Counter()
    for (kind, pool, earlier, later), count in report.totals().items():
        found[f"{kind} {earlier}→{later} {pool}"] += count
    return dict(found), report


def fenced(ops: Iterator[Op]) -> Iterator[Op]:
    """The load fence. `planned` speaks of lines, which move: it is left out."""
    compute = "default0"
    for number, op in enumerate(ops):
        if isinstance(op, Access):
            if op.label == "forward" and op.on is not None:
                compute = op.on
            elif op.label == "load" and op.on is not None:
                yield Record(op.by, compute, f"put in {number}")
                yield Wait(op.by, op.on, f"put in {number}")
            yield replace(op, planned=None)
        else:
            yield op


def mended(path: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    with open_trace(path) as trace:
        online = Online(trace.header.pools, trace.header.streams, attached=True, each_edge=True)
        for number, op in enumerate(fenced(iter(trace))):
            for hazard in online.feed(number, op):
                found[f"{hazard.kind.value} {hazard.earlier.label}→{hazard.later.label} {hazard.pool}"] += len(
                    hazard.blocks
                )
    return dict(found)


def main() -> None:
    name, path, results, *reports = sys.argv[1:]
    plain, first = totals(path)
    each, _ = totals(path, each_edge=True)
    every, _ = totals(path, all_pairs=True)
    assumed, _ = totals(path, all_pairs=True, assume_stream_order=True)
    row: dict[str, Any] = {
        "run": f"{name}.check",
        "verdict": first.verdict.name,
        "why": list(getattr(first.verdict, "why", ())),
        "ops": first.ops,
        "plain": plain,
        "each_edge": each,
        "all_pairs": every,
        "assumed": assumed,
        "mended": mended(path),
        "unseen": first.coverage.unseen,
        "labels": labels(path),
    }
    row["loads"], row["stores"] = row["labels"].get("load", 0), row["labels"].get("store", 0)
    if reports:
        row["apart"] = [process(Path(report)) for report in sorted(reports)]
    else:
        row["same"] = live(name, results) == each
    emit(row, results)


def labels(path: str) -> dict[str, int]:
    """How many accesses there were of each label."""
    with open_trace(path) as trace:
        return dict(Counter(op.label for op in trace if isinstance(op, Access)))


def live(name: str, results: str) -> dict[str, int] | None:
    """What the run's own session reported."""
    for line in Path(results).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.get("run") == name and "hazards" in row:
            return dict(row["hazards"])
    return None


def process(path: Path) -> str:
    """One process's own verdict: `incomplete: WAR 24 possible`."""
    document = json.loads(path.read_text(encoding="utf-8"))
    possible = sum(bool(hazard.get("possible")) for hazard in document["hazards"])
    counts: Counter[str] = Counter()
    for row in document["totals"]:
        counts[row["kind"]] += row["pairs"]
    words = " ".join(f"{kind} {count}" for kind, count in sorted(counts.items())) or "none"
    return f"{document['verdict']}: {words}, {possible} of {len(document['hazards'])} sorts only possible"


if __name__ == "__main__":
    main()
