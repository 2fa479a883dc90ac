"""`benchmarks/gpu_engine.py throughput`, small and on the simulated device: are its windows what they are meant to be?

Only what was moved is looked at; the times mean nothing here.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from kvsan.runtime.workload import held

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_engine.py"


@pytest.fixture(scope="module")
def benchmark_file() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_engine", FILE)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def ran(benchmark_file: Any, out: Path, *more: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status and the lines."""
    status = benchmark_file.main(
        ["throughput", "--device", "simulated", "--words", "1", "--seconds", "600", "--out", str(out), *more]
    )
    return status, [json.loads(line) for line in out.read_text().splitlines()]


def test_in_the_healthy_pool_every_design_loads_and_stores_the_same_and_preempts_nobody(
    benchmark_file: Any, tmp_path: Path
) -> None:
    status, lines = ran(
        benchmark_file, tmp_path / "out.jsonl", "--pools", "healthy", "--sequences", "4", "--rounds", "1"
    )
    assert status == 0
    windows = {line["design"]: line["a_window"] for line in lines if line.get("summary")}
    assert windows.keys() == benchmark_file.DESIGNS.keys()
    for counted in windows.values():
        assert counted["loads"][0] > 0
        assert counted["stores"][0] > 0
        assert counted["preemptions"] == [0, 0, 0]
    for same in ("tokens", "stored_blocks"):
        assert len({tuple(counted[same]) for counted in windows.values()}) == 1, same
    loaded = [counted["loaded_blocks"][0] for counted in windows.values()]
    assert max(loaded) < 1.2 * min(loaded)


def test_the_conversations_still_come_from_the_host_many_rounds_later(benchmark_file: Any, tmp_path: Path) -> None:
    more = ("--pools", "healthy", "--sequences", "4", "--rounds", "8", "--designs", "none")
    status, lines = ran(benchmark_file, tmp_path / "out.jsonl", *more)
    assert status == 0
    rounds = [line["none"] for line in lines if "round" in line]
    assert len(rounds) == 8
    assert min(one["loaded_blocks"] for one in rounds) > 0.8 * max(one["loaded_blocks"] for one in rounds)


def test_in_the_small_pool_there_are_preemptions_and_loads(benchmark_file: Any, tmp_path: Path) -> None:
    more = ("--pools", "10x", "--sequences", "10", "--rounds", "1", "--designs", "none")
    status, lines = ran(benchmark_file, tmp_path / "out.jsonl", *more)
    assert status == 0
    assert lines[-1]["a_window"]["preemptions"][0] > 0
    assert lines[-1]["a_window"]["loads"][0] > 0


def test_a_window_that_is_not_what_it_is_meant_for_is_said(benchmark_file: Any, tmp_path: Path) -> None:
    """Four requests at a time and a pool that always holds the longest one: nobody is preempted."""
    more = ("--pools", "10x", "--sequences", "4", "--rounds", "1", "--designs", "none")
    status, lines = ran(benchmark_file, tmp_path / "out.jsonl", *more)
    assert status == 1
    assert lines[-1]["not_as_meant"] == "no preemptions"


@pytest.mark.parametrize(
    ("pressure", "second", "says"),
    [
        ("healthy", {}, ""),
        ("healthy", {"loads": 0}, "round 2: no loads"),
        ("healthy", {"stores": 0}, "round 2: no stores"),
        ("healthy", {"preemptions": 3}, "round 2: 3 preemptions"),
        ("10x", {"preemptions": 3}, ""),
        ("10x", {}, "no preemptions"),
    ],
)
def test_what_a_window_is_not_meant_for(benchmark_file: Any, pressure: str, second: dict[str, int], says: str) -> None:
    first = {"loads": 5, "stores": 7, "preemptions": 0}
    assert benchmark_file.otherwise(pressure, [first, {**first, **second}]) == says


@pytest.mark.parametrize("pressure", ["healthy", "10x"])
def test_what_the_gpu_holds(benchmark_file: Any, pressure: str) -> None:
    """In the healthy pool what runs has room to spare, and one window's conversations do not all stay."""
    requests = benchmark_file.conversations(pressure, 64, 0)
    gpu, host = benchmark_file.pools(pressure, 64)
    model = benchmark_file.small_model()
    whole = [held(model, len(one.prompt) + one.new_tokens) for one in requests]
    running = 64 * sum(whole) / len(whole)
    assert (gpu > 1.9 * running) if pressure == "healthy" else (gpu < 0.11 * running)
    assert gpu < sum(whole) < host


def test_the_conversations_come_back_with_new_messages(benchmark_file: Any) -> None:
    first, other, again = (benchmark_file.conversations("healthy", 4, number) for number in (0, 1, 3))
    for one, two in zip(first, again, strict=True):
        alike = next(at for at, (a, b) in enumerate(zip(one.prompt, two.prompt, strict=False)) if a != b)
        assert alike >= len(one.prompt) - 64
        assert one.new_tokens == two.new_tokens
    assert [one.prompt for one in first] != [one.prompt for one in other]
