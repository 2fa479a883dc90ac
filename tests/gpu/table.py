"""Prints `results.jsonl` of the acceptance runs as a table and writes nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

SKIP = ("hooks", "words", "warnings", "accesses", "ops", "mode", "runner", "fence", "graphs", "connector", "version")


def main() -> None:
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        name = " ".join(str(row.get(key)) for key in ("version", "mode", "runner", "fence") if row.get(key) is not None)
        name += " graphs" if row.get("graphs") else ""
        name += " offloading" if row.get("connector") == "OffloadingConnector" else ""
        print(f"== {name}: {row.get('verdict')}, {row.get('ops')} ops, accesses {row.get('accesses')}")
        for key, value in row.items():
            if key not in SKIP and key != "verdict" and value not in (None, {}, [], ""):
                print(f"   {key}: {value}")
        print("   hooks:", ", ".join(f"{k} {v}" for k, v in (row.get("hooks") or {}).items()))


if __name__ == "__main__":
    main()
