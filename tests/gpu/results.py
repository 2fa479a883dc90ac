"""One line a result: all of it into a file as soon as it is there, and a short one on stdout for who watches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

SHORT = 160


def emit(row: Mapping[str, Any], path: str = "") -> None:
    """Appends the row to `path`, whole, and prints `RESULT` with what matters of it."""
    if path:
        with open(path, "a", encoding="utf-8") as out:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    print("RESULT " + json.dumps(short(row), ensure_ascii=False), flush=True)


def short(row: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"run": row.get("run"), "verdict": row.get("verdict")}
    for key, value in row.items():
        if key in ("hazards", "each_edge", "plain", "all_pairs", "assumed", "mended"):
            out[key] = by_kind(value)
        elif key == "accesses":
            out[key] = " ".join(f"{stream} {count}" for stream, count in value.items())
        elif key == "unseen" and not any(value.values()):
            continue
        elif key in SAID and value not in (None, [], {}, ""):
            out[key] = value if isinstance(value, int | float | bool) else str(value)[:SHORT]
    if out.get("assumed") == out.get("all_pairs"):
        out.pop("assumed", None)
    return out


SAID = (
    *("failed", "fault", "unseen", "why", "same", "apart", "answered", "as_it_must_be", "sent", "finished", "aborted"),
    *("preempted", "loads", "stores", "copy_thread_killed", "grew_mb", "tokens_per_s", "added_step_us"),
    *("added_step_us_percent", "tests", "status"),
)


def by_kind(hazards: Mapping[str, int]) -> str:
    """`RAW 2922 WAR 14`, from labels as `RAW forward→store gpu`; what is not as in vLLM's two labels is spelt out."""
    counts: Counter[str] = Counter()
    for name, count in hazards.items():
        kind, labels, _ = name.split(" ", 2)
        usual = labels in ("forward→store", "forward→load")
        counts[kind if usual else f"{kind} {labels}"] += count
    return " ".join(f"{kind} {count}" for kind, count in sorted(counts.items())) or "none"
