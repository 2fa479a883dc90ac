"""The sweeps of the engine's truth and of its faults on many cores: `python tests/gpu/sweeps.py SECONDS`.

What `make sweep ARGS="-k 'truth or fault'"` does, spread over processes, one line of JSON a result in
`$OUT/sweeps.jsonl`, and what was not reached in the time is said. Needs no GPU; a GPU machine has the cores.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

EVERY = 1 << 30
"""Pairs of a run that are replayed: all."""


def one(task: tuple[str, str, int]) -> dict[str, Any]:
    what, kind, seed = task
    try:
        if what == "fault":
            from runtime.test_fault_injection import caught

            by, words = caught(kind, seed)  # type: ignore[arg-type]  # one of KINDS
            return {"what": what, "kind": kind, "seed": seed, "by": by, "words": words}
        from runtime.truth import Truth, hold_to_truth

        found = Truth()
        hold_to_truth(seed, found, pairs=EVERY, schedules=20)
        bad = {
            name: len(getattr(found, name))
            for name in ("unexplained", "unshown", "forced", "uncontrolled", "differing", "against_proof")
        }
        return {"what": what, "seed": seed, "bad": bad, "counts": dict(found.counts)}
    except Exception:
        return {"what": what, "kind": kind, "seed": seed, "error": traceback.format_exc()[-600:]}


def main() -> None:
    from runtime.faults import KINDS

    tasks: list[tuple[str, str, int]] = [("fault", kind, seed) for seed in range(200) for kind in KINDS]
    tasks += [("truth", "", seed) for seed in range(500)]
    ends = time.monotonic() + float(sys.argv[1])
    faults: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    counts: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    reached = 0
    with (Path(os.environ.get("OUT", "/tmp")) / "sweeps.jsonl").open("w") as out, multiprocessing.Pool() as pool:
        results = pool.imap_unordered(one, tasks, chunksize=1)
        while reached < len(tasks) and time.monotonic() < ends:
            try:
                found = results.next(timeout=max(0.1, ends - time.monotonic()))
            except multiprocessing.TimeoutError:
                break
            reached += 1
            out.write(json.dumps(found) + "\n")
            if "error" in found or found.get("by") == "nothing" or any(found.get("bad", {}).values()):
                print(json.dumps(found), flush=True)
            if "error" in found:
                bad["error"] += 1
            elif found["what"] == "fault":
                faults[found["kind"]][found["by"]] += 1
            else:
                counts.update(found["counts"])
                bad.update(found["bad"])
        pool.terminate()
    print(json.dumps({"reached": reached, "of": len(tasks), "faults": faults, "truth": counts, "bad": bad}))


if __name__ == "__main__":
    main()
