"""What came of a call: `table.py RESULTS` counts, `table.py --junit FILE STATUS` is the one line of a pytest run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree


def junit(path: str, status: str) -> str:
    """A JSON line. A run that died before it wrote its report has none to show."""
    row: dict[str, object] = {"run": "hooks", "status": int(status)}
    if not Path(path).exists():
        return json.dumps({**row, "failed": "no report was written"})
    cases = list(ElementTree.parse(path).iter("testcase"))
    bad = [f"{case.get('name')}" for case in cases if any(part.tag in ("failure", "error") for part in case)]
    skipped = sum(any(part.tag == "skipped" for part in case) for case in cases)
    row |= {"tests": len(cases), "skipped": skipped, "verdict": "passed" if not bad else "failed"}
    return json.dumps({**row, "failed": bad} if bad else row)


def main() -> None:
    if sys.argv[1] == "--junit":
        print(junit(*sys.argv[2:]))
        return
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    bad = [str(row.get("run")) for row in rows if row.get("failed") or row.get("as_it_must_be") is False]
    print(f"{len(rows)} results, {len(bad)} failed: {', '.join(bad) or 'none'}")


if __name__ == "__main__":
    main()
