"""What a verdict costs: every design of the catalogue, ten thousand states, all repairs, a certificate by z3.

The goals (150 ms, 0.5 s, 3 s, 15 s) are for one core of a small machine that does nothing else. They are not asserted
here, where a busy machine would fail them; `tests/` asserts what is found, this says how long it took.
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.model.designs import load, names
from kvsan.model.designs._copy_thread import copy_thread
from kvsan.model.proof import Proved, Refuted, diff, redundant, repair, verify


@pytest.mark.parametrize("name", names())
def bench_verify(benchmark: BenchmarkFixture, name: str) -> None:
    """Goal: 150 ms."""
    design = load(name)
    verdict = benchmark(verify, design)
    assert isinstance(verdict, Proved | Refuted)
    benchmark.extra_info["states"] = verdict.findings.states


def bench_verify_10000_states(benchmark: BenchmarkFixture) -> None:
    """Goal: 0.5 s. A copy thread whose events can be polled before they are recorded, in both directions."""
    p, _ = copy_thread("large", title="", reference="", visible_once_queued=["load", "store"])
    design = p.design()
    verdict = benchmark(verify, design)
    assert isinstance(verdict, Refuted)
    assert verdict.findings.states > 10_000
    benchmark.extra_info["states"] = verdict.findings.states


def bench_repair(benchmark: BenchmarkFixture) -> None:
    """Goal: 3 s for all four minimal sets."""
    found = benchmark(repair, load("vllm-after-46278"))
    assert len(found.repairs) == 4
    benchmark.extra_info["searches"] = found.searches


def bench_repair_of_many_sets(benchmark: BenchmarkFixture) -> None:
    found = benchmark(repair, load("vllm-before-46278"))
    assert len(found.repairs) == 12


def bench_redundant(benchmark: BenchmarkFixture) -> None:
    assert len(benchmark(redundant, load("vllm-belt-and-braces")).cores) == 2


def bench_diff(benchmark: BenchmarkFixture) -> None:
    a, b = load("vllm-symmetric-barrier"), load("vllm-after-47653")
    assert len(benchmark(diff, a, b).moved) == 2


@pytest.mark.parametrize("name", ["vllm-symmetric-barrier", "vllm-after-47653", "vllm-after-46278", "copier-deferral"])
def bench_certify(benchmark: BenchmarkFixture, name: str) -> None:
    """Goal: 15 s."""
    pytest.importorskip("z3")
    verdict = benchmark.pedantic(verify, (load(name),), {"certify": True}, rounds=1)  # type: ignore[no-untyped-call]
    assert isinstance(verdict, Proved | Refuted)
    assert not verdict.unchecked
