"""What exploring costs: random schedules a minute, all runs of the small scope, and how much is merged.

Goals: 2,000 random host schedules of the small scope a minute and core; all runs of it in 5 minutes on two cores; the
write-after-read of vllm #47282 found from scratch in 5 s. They are for a machine that does nothing else, and are not
asserted.
"""

from __future__ import annotations

import pytest
from benchmarks.conftest import Note, pedantic
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.checker.explore import LONG, SMALL, How, Pair, Scope, count, explore
from kvsan.checker.explore.pct import Walker
from kvsan.model.designs import load
from kvsan.model.hazard import Kind

RUNS = 50


@pytest.mark.parametrize("name", ["kvsan-default", "copier-symmetric"])
@pytest.mark.parametrize("scope", [SMALL, LONG], ids=["small", "long"])
def bench_random_schedules(benchmark: BenchmarkFixture, note: Note, name: str, scope: Scope) -> None:
    """Goal: 2,000 a minute and core in the small scope."""
    walker = Walker(load(name), scope, 0)
    walked = benchmark(walker, (0, RUNS))
    assert not walked.found
    assert benchmark.stats is not None
    minute = 60 * RUNS / benchmark.stats["min"]
    note(f"random schedules of {name}, {scope}", f"{minute:,.0f} a minute and core")


def bench_war_of_47282(benchmark: BenchmarkFixture) -> None:
    """Goal: 5 s, with the schedule made short and checked."""
    outcome = pedantic(benchmark, explore, load("vllm-after-46278"), SMALL, How(max_states=2_000), rounds=2)
    assert Pair(Kind.WAR, "forward", "load") in {finding.pair for finding in outcome.findings}


@pytest.mark.parametrize(
    ("name", "workers"), [("kvsan-default", 1), ("kvsan-default", 2), ("copier-symmetric", 1), ("copier-symmetric", 2)]
)
def bench_exhaustive(benchmark: BenchmarkFixture, note: Note, name: str, workers: int) -> None:
    """Goal: 5 minutes on two cores."""
    how = How(workers=workers)
    outcome = pedantic(benchmark, explore, load(name), SMALL, how)
    assert outcome.verdict.name == "clean"
    done = outcome.progress
    note(f"all runs of {name}, {SMALL}, {workers} workers", f"{done.states:,} states, {done.seconds:.0f} s")


@pytest.mark.parametrize("name", ["kvsan-default", "copier-symmetric"])
def bench_reduction(benchmark: BenchmarkFixture, note: Note, name: str) -> None:
    """Host schedules by plain enumeration against what a search visits; counted, not walked."""
    scope = Scope(2, 2, 2)
    counted = pedantic(benchmark, count, load(name), scope)
    outcome = explore(load(name), scope)
    assert counted.schedules is not None
    note(
        f"host schedules of {name}, {scope}",
        f"{counted.schedules:,}; searched {outcome.progress.states:,} states, {outcome.progress.moves:,} choices",
    )
