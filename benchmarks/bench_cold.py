"""What an op costs the live check in the middle of other work: caches full of something else, one op at a time or many.

An engine runs between two lines of debug mode; in a loop over a trace nothing does. Here `SPOIL` bytes are read before
each call, which stands for an engine's own work and is not timed. `make bench ARGS="-k cold"`. Not covered: the hooks,
and how much of the caches a real step takes.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.bench_check import SOURCE
from benchmarks.conftest import Note, pedantic
from benchmarks.spoil import caches
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.checker import open_trace
from kvsan.checker.attach.core import BATCH
from kvsan.checker.live import LiveCheck

SPOIL = 64 << 20
FIRST, OPS = 2_048, 4 * BATCH


def bench_cold_and_hot(benchmark: BenchmarkFixture, note: Note) -> None:
    """The timed part is the hot one; the table has all three."""
    with open_trace(SOURCE) as trace:
        header, ops = trace.header, list(trace)[: FIRST + OPS]
    spoil = caches(SPOIL)

    def took(together: int, cold: bool) -> list[float]:
        """µs an op of each call of `together` ops; wall time, since processor time is too coarse for one op."""
        check = LiveCheck(lambda found: None)
        for name, stream in header.streams.items():
            check.stream(name, stream)
        for name, blocks in header.pools.items():
            check.pool(name, blocks)
        for index in range(FIRST):
            check.take(index, ops[index])
        calls = []
        for first in range(FIRST, FIRST + OPS, together):
            if cold:
                spoil()
            began = time.perf_counter()
            for index in range(first, first + together):
                check.take(index, ops[index])
            calls.append((time.perf_counter() - began) / together * 1e6)
        return calls

    for name, together, cold in (
        ("one after another", BATCH, False),
        ("one at a time, cold", 1, True),
        (f"{BATCH} together, cold", BATCH, True),
    ):
        turns = [took(together, cold) for _ in range(3)]
        means, middles = ([f"{f(turn):.1f}" for turn in turns] for f in (statistics.fmean, statistics.median))
        note(f"the live check, {name}", f"{', '.join(means)} µs an op (median call {', '.join(middles)})")
    pedantic(benchmark, took, BATCH, False, rounds=3)
