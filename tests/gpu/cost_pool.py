"""Runs of `vllm_cost.py` put together: what *on* adds to a step, over the rounds of all of them.

    python tests/gpu/cost_pool.py results.jsonl … [--only PART_OF_A_NAME]

By windows (their mean step), by windows placed (`vllm_cost.place`, run by run), and by the median step of each window,
each with the 95 % interval of `vllm_cost.interval`. *on over each*: the differences to *off* and to *again*, which are
one state, together; its interval is from 400 draws of whole rounds (seed 0). Runs with clocks inside the hooks are left
out.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from random import Random
from typing import Any

from gpu.vllm_cost import interval, place

STATES = ("on", "off", "again")
KEYS = {"step_us": "windows", "placed_us": "placed", "median_step_us": "median step of each window"}


def rounds(path: Path, only: str) -> list[dict[str, dict[str, float]]]:
    """Of each run in the file: by state, a window's times."""
    out = []
    for line in path.read_text().splitlines():
        run: dict[str, Any] = json.loads(line)
        if "each" not in run or "hot" in run or only not in run["run"]:
            continue
        rows: dict[str, list[dict[str, float]]] = {
            state: [
                {"step_us": mean, "median_step_us": middle, "place": at}
                for mean, middle, at in zip(
                    run["each"][state], run["each_median"][state], run["places"][state], strict=True
                )
            ]
            for state in run["each"]
        }
        place(rows)
        out += [dict(zip(rows, windows, strict=True)) for windows in zip(*rows.values(), strict=True)]
    return out


def told(found: list[dict[str, dict[str, float]]], key: str) -> list[str]:
    def added(this: str, other: str) -> tuple[list[float], list[float]]:
        pairs = [(one[this][key], one[other][key]) for one in found]
        return [one - two for one, two in pairs], [100 * (one / two - 1) for one, two in pairs]

    out = []
    for this, other in (("on", "off"), ("on", "again"), ("again", "off")):
        us, share = added(this, other)
        low, high = interval(us)
        least, most = interval(share)
        out.append(
            f"  {this} over {other}: {statistics.median(us):.0f} µs [{low:.0f}, {high:.0f}], "
            f"{statistics.median(share):.1f} % [{least:.1f}, {most:.1f}]"
        )
    both = [added("on", other) for other in ("off", "again")]
    draws = Random(0)
    middles = [
        tuple(statistics.median([each[unit][i] for each in both for i in at]) for unit in (0, 1))
        for at in [range(len(found)), *(draws.choices(range(len(found)), k=len(found)) for _ in range(400))]
    ]
    (us_all, share_all), drawn = middles[0], list(zip(*middles[1:], strict=True))
    (low, high), (least, most) = ((sorted(unit)[10], sorted(unit)[-11]) for unit in drawn)
    out.append(f"  on over each: {us_all:.0f} µs [{low:.0f}, {high:.0f}], {share_all:.1f} % [{least:.1f}, {most:.1f}]")
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    found = [one for path in options.results for one in rounds(path, options.only)]
    if not found:
        raise SystemExit("no run of `cost` in these files")
    base = statistics.mean(one[state]["step_us"] for one in found for state in ("off", "again"))
    print(f"{len(found)} rounds, a step without kvsan {base:.0f} µs")
    for key, name in KEYS.items():
        print(name, *told(found, key), sep="\n")


if __name__ == "__main__":
    main()
