"""Both checkers and the oracle see the same: on 5,000 seeded traces, and on whatever hypothesis thinks of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from agreement import disagreements
from random_traces import random_trace
from trace_strategies import traces

CHUNK = 250


@pytest.mark.parametrize("start", range(0, 5_000, CHUNK))
def test_seeded_traces(start: int) -> None:
    for seed in range(start, start + CHUNK):
        wrong = disagreements(*random_trace(seed))
        assert not wrong, f"seed {seed}: {wrong}"


@pytest.mark.sweep
@pytest.mark.parametrize("start", range(5_000, 105_000, 5_000))
def test_many_seeded_traces(start: int) -> None:
    for seed in range(start, start + 5_000):
        wrong = disagreements(*random_trace(seed))
        assert not wrong, f"seed {seed}: {wrong}"


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(200))
def test_long_traces(seed: int) -> None:
    wrong = disagreements(*random_trace(seed, size=400))
    assert not wrong, f"seed {seed}: {wrong}"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_any_trace(trace: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    assert not disagreements(*trace)
