"""Several builds of the C hooks against one another, in one process and in turns: which one costs less where an
engine's own work lies between two calls.

    PYTHONPATH=. python -m benchmarks.builds FOLDER FOLDER… [--turns 300]

Each FOLDER is a checkout in which `scripts/native.py` was run (with the CFLAGS that are in question); its `kvsan` is
imported beside the others'. In each turn all are called once, and the call without a hook, in another order: with a
fixed one the last had some tenth less. Prints for each call and each way of spoiling what a hook adds, µs, medians, a
column for each folder; `between`: nothing is spoiled but by the other builds' calls. Give a copy of a folder, too, to
see the noise, up to a quarter: only differences within a run mean something. Not covered: hooks of vLLM. x86-64 Linux.
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


def imported(folder: Path) -> tuple[dict[str, Call], dict[str, Call]]:
    """Calls of one checkout: hooked, and not."""
    for name in [name for name in sys.modules if name.split(".")[0] == "kvsan" or name == "benchmarks.bench_hooks"]:
        del sys.modules[name]
    portions = [str(folder / portion) for portion in ("model", "runtime", "checker")]
    sys.path[:0] = portions
    importlib.invalidate_caches()
    bench: Any = importlib.import_module("benchmarks.bench_hooks")
    del sys.path[: len(portions)]
    if bench.HOT is None or not Path(bench.HOT.__file__).is_relative_to(folder / "checker"):
        raise SystemExit(f"{folder}: no C hooks there (run its scripts/native.py; KVSAN_NATIVE is not to be 0)")
    event, stream = (type(cls.__name__, (cls,), dict(vars(cls))) for cls in (bench.Event, bench.Stream))
    _, plain = bench.calls_of(event, stream)
    _, hooked, calls = bench.hooks()
    hooked.install()
    return calls, plain


def added(calls: list[Call], plain: Call, before: Call | None, turns: int, rng: Random) -> list[float]:
    """µs that each call takes longer than the plain one."""
    all_of_them = [plain, *calls]
    times: list[list[int]] = [[] for _ in all_of_them]
    for _ in range(turns):
        for at in rng.sample(range(len(all_of_them)), len(all_of_them)):
            call = all_of_them[at]
            if before is not None:
                before()
            began = time.perf_counter_ns()
            call()
            times[at].append(time.perf_counter_ns() - began)
    nothing, *found = (statistics.median(column) for column in times)
    return [(one - nothing) / 1e3 for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=lambda text: Path(text).resolve())
    parser.add_argument("--turns", type=int, default=300)
    options = parser.parse_args()
    if options.turns < 1:
        parser.error("--turns: a number from 1 on")
    builds, rng = [imported(folder) for folder in options.folders], Random(0)
    caches, branches = spoil.caches(), spoil.branches()
    ways: dict[str, Call | None] = {"between": None, "branches": branches, "caches": caches}
    ways["both"] = lambda: (branches(), caches())
    sums = {way: [0.0] * len(builds) for way in ways}
    for name, plain in builds[0][1].items():
        for way, before in ways.items():
            found = added([calls[name] for calls, _ in builds], plain, before, options.turns, rng)
            sums[way] = [total + one for total, one in zip(sums[way], found, strict=True)]
            print(f"{name:20} {way:9}", *(f"{one:6.2f}" for one in found), flush=True)
    for way, found in sums.items():
        print(f"{'sum':20} {way:9}", *(f"{one:6.2f}" for one in found))


if __name__ == "__main__":
    main()
