"""`kvsan check` on a real trace, tiled: ops a second and peak memory by length. `--all` on the real traces."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from benchmarks.conftest import Note, pedantic
from benchmarks.tile import tile
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.checker import check

TRACES = Path(__file__).parents[1] / "checker/kvsan/checker/data/traces"
SOURCE = TRACES / "vllm-0.23.0-store.jsonl.gz"

_CHILD = """
import sys, time
from kvsan.checker import check
start, used = time.perf_counter(), time.process_time()
report = check(sys.argv[1], all_pairs=sys.argv[2] == "all")
seconds, used = time.perf_counter() - start, time.process_time() - used
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(report.ops, seconds, used, int(peak) / 1000, sum(report.totals().values()))
"""


def measure(trace: Path, mode: str) -> tuple[int, float, float, float, int]:
    """Ops, seconds, seconds of processor time, peak MB and pairs of one check in a process of its own."""
    done = subprocess.run([sys.executable, "-c", _CHILD, trace, mode], capture_output=True, text=True, check=True)
    ops, seconds, used, peak, pairs = done.stdout.split()
    return int(ops), float(seconds), float(used), float(peak), int(pairs)


@pytest.mark.parametrize(
    ("ops", "suffix", "mode"),
    [
        (100_000, ".jsonl", "first"),
        (1_000_000, ".jsonl", "first"),
        (1_000_000, ".jsonl.gz", "first"),
        (100_000, ".jsonl", "all"),
    ],
)
def bench_tiled(benchmark: BenchmarkFixture, note: Note, tmp_path: Path, ops: int, suffix: str, mode: str) -> None:
    benchmark.group = "check, tiled trace"
    trace = tmp_path / f"tiled{suffix}"
    tile(SOURCE, trace, ops)
    count, seconds, used, peak, pairs = pedantic(benchmark, measure, trace, mode)
    trace.unlink()
    note(
        f"check{' --all' if mode == 'all' else ''}, {count:,} ops, {suffix}",
        f"{count / seconds:,.0f} ops/s, {count / used:,.0f} a processor second ({used:.1f} s), "
        f"peak {peak:.0f} MB, {pairs:,} pairs",
    )


@pytest.mark.parametrize("name", ["none", "none-graphs", "store", "load", "all", "fixed"])
def bench_all_pairs(benchmark: BenchmarkFixture, note: Note, name: str) -> None:
    benchmark.group = "check --all, real traces"
    trace = TRACES / f"vllm-0.23.0-{name}.jsonl.gz"
    report = pedantic(benchmark, partial(check, all_pairs=True), trace, rounds=3)
    if benchmark.stats:
        took = f"{benchmark.stats['min']:.2f} s, {sum(report.totals().values()):,} pairs"
        note(f"check --all, {name}, {report.ops:,} ops", took)
