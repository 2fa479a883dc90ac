"""What a step of the language model costs the host: the call that makes its kernel, and its parts on a CPU.

64 requests decode one token each, of 40 … 200 positions, in two groups of four layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.runtime.language import UNKNOWN, Group, Model, answers
from kvsan.runtime.workload import Workload, requests_of

MODEL = Model((Group("full"), Group("window", 64)), layers=4)
ROWS = 64


@pytest.fixture
def step() -> Any:
    """Makes the kernel of a step."""
    torch = pytest.importorskip("torch")
    from kvsan.runtime.forward import Batch, Forward

    rng = np.random.default_rng(0)
    pool = torch.zeros(MODEL.pool_shape(1024), dtype=torch.int64)
    tokens, out = torch.zeros((2, ROWS), dtype=torch.int64)
    forward, one = Forward(MODEL, pool, tokens), np.ones(ROWS, np.int64)
    tables = rng.integers(0, 1024, (2, ROWS, 32))
    batch = Batch(np.arange(ROWS), rng.integers(40, 200, ROWS), one, UNKNOWN * one, one > 0, tables)
    return lambda: forward(batch, out)


def bench_call(benchmark: BenchmarkFixture, step: Any) -> None:
    benchmark(step)


def bench_parts(benchmark: BenchmarkFixture, step: Any) -> None:
    kernel = step()
    benchmark(lambda: [part() for part in kernel.parts])


def bench_answers_of_500_requests(benchmark: BenchmarkFixture) -> None:
    requests = [(request.prompt, request.new_tokens) for request in requests_of(Workload(), MODEL)]
    benchmark(answers, MODEL, requests)
