"""Several builds of the C hooks against one another, in one process and in turns: which one costs less where an
engine's own work lies between two calls.

    PYTHONPATH=. python -m benchmarks.builds FOLDER FOLDER… [--turns 300]

Each FOLDER is a checkout in which `scripts/native.py` was run (with the CFLAGS that are in question); its `kvsan` is
imported beside the others'. The order is another one in each turn: with a fixed one the last had some tenth less.
Prints for each call and each way of spoiling what a hook adds to a call that does nothing, µs, medians, a column for
each folder. Give one folder twice to see the noise. Not covered: hooks of vLLM, Linux on x86-64 alone.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import spoil

Call = Callable[[], object]


def imported(folder: Path) -> tuple[Any, dict[str, Call]]:
    """The recorder and the hooked calls of one checkout."""
    for name in [name for name in sys.modules if name.split(".")[0] == "kvsan" or name == "benchmarks.bench_hooks"]:
        del sys.modules[name]
    portions = [str(folder / portion) for portion in ("model", "runtime", "checker")]
    sys.path[:0] = portions
    importlib.invalidate_caches()
    bench = importlib.import_module("benchmarks.bench_hooks")
    del sys.path[: len(portions)]
    if bench.HOT is None or not Path(bench.HOT.__file__).is_relative_to(folder):
        raise SystemExit(f"{folder}: no C hooks there (run its scripts/native.py)")
    event = type("Event", (bench.Event,), dict(vars(bench.Event)))  # classes of its own: each build hooks them
    stream = type("Stream", (bench.Stream,), dict(vars(bench.Stream)))
    recorder, hooked, calls = bench.hooks(event, stream)
    hooked.install()
    return recorder, calls


def added(
    builds: list[tuple[Any, dict[str, Call]]], name: str, before: Call | None, turns: int, rng: Random
) -> list[float]:
    """µs that the hook of call `name` adds in each build."""
    on: list[list[int]] = [[] for _ in builds]
    off: list[int] = []
    for _ in range(turns):
        for at in rng.sample(range(len(builds)), len(builds)):
            recorder, calls = builds[at]
            for times, looks in ((on[at], True), (off, False)):
                recorder.on = looks
                if before is not None:
                    before()
                began = time.perf_counter_ns()
                calls[name]()
                times.append(time.perf_counter_ns() - began)
    nothing = statistics.median(off)
    return [(statistics.median(times) - nothing) / 1e3 for times in on]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=lambda text: Path(text).resolve())
    parser.add_argument("--turns", type=int, default=300)
    options = parser.parse_args()
    builds, rng = [imported(folder) for folder in options.folders], Random(0)
    caches, branches = spoil.caches(), spoil.branches()
    ways: dict[str, Call | None] = {"hot": None, "branches": branches, "caches": caches}
    ways["both"] = lambda: (caches(), branches())
    sums = {way: [0.0] * len(builds) for way in ways}
    for name in builds[0][1]:
        for way, before in ways.items():
            found = added(builds, name, before, options.turns, rng)
            sums[way] = [total + one for total, one in zip(sums[way], found, strict=True)]
            print(f"{name:20} {way:9}", *(f"{one:6.2f}" for one in found), flush=True)
    for way, found in sums.items():
        print(f"{'sum':20} {way:9}", *(f"{one:6.2f}" for one in found))


if __name__ == "__main__":
    main()
