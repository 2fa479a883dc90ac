"""How windows of debug mode's cost are compared: on windows that were made up, without a GPU."""

from __future__ import annotations

import gzip
import json
from argparse import Namespace
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

from gpu.vllm_cost import STATES, differences, keep, place, together


def made(added: float, first: float, seed: int = 5, rounds: int = 60) -> dict[str, list[dict[str, float]]]:
    """Windows whose first of a round takes `first` µs more, and in which `on` adds `added`."""
    rng, orders = Random(seed), list(permutations(STATES))
    rows: dict[str, list[dict[str, float]]] = {state: [] for state in STATES}
    for number in range(rounds):
        base = rng.uniform(2000, 3000)
        for at, state in enumerate(orders[number % len(orders)]):
            step = base + rng.gauss(0, 20) + (first if at == 0 else 0) + (added if state == "on" else 0)
            rows[state].append({"step_us": step, "median_step_us": step, "window_us": step, "place": at})
    place(rows)
    return rows


def width(found: list[float]) -> float:
    return found[2] - found[1]


def test_what_the_first_window_of_a_round_takes_more_is_nobody_s() -> None:
    found = differences(made(50, 200), "on", "off")
    middle, low, high = found["placed_us"]
    assert low < 50 < high
    assert abs(middle - 50) < 15
    assert width(found["placed_us"]) < width(found["step_us"]) / 2


def test_two_states_that_are_the_same_stay_so() -> None:
    for first in (0.0, 200.0):
        found = differences(made(50, first), "again", "off")
        assert found["placed_us"][1] < 0 < found["placed_us"][2]


def test_without_such_a_place_nothing_is_taken_off() -> None:
    found = differences(made(50, 0), "on", "off")
    assert abs(found["placed_us"][0] - found["step_us"][0]) < 15


def test_both_windows_of_off_tell_more_than_one() -> None:
    rows = made(50, 200)
    together(rows, [])
    middle, low, high = differences(rows, "on", "both")["placed_us"]
    assert low < 50 < high
    assert abs(middle - 50) < 15


def test_steps_of_both_are_those_of_the_two() -> None:
    rounds: list[dict[str, Any]] = [
        {state: {"wall": [at, at + 1.0], "kind": ["0", "1"]} for at, state in enumerate(STATES)}
    ]
    together({state: [] for state in STATES}, rounds)
    assert rounds[0]["both"] == {"wall": [1, 2.0, 2, 3.0], "kind": ["0", "1", "0", "1"]}


def test_the_steps_of_a_run_are_kept(tmp_path: Path) -> None:
    rounds: list[dict[str, Any]] = [{"on": {"wall": [1.26, 2.0], "cpu": [1.0, 2.04], "kind": ["0", "1"]}}]
    keep(Namespace(out=str(tmp_path / "results.jsonl"), name="cost"), rounds)
    with gzip.open(tmp_path / "cost.steps.json.gz", "rt") as file:
        assert json.load(file) == [{"on": {"wall": [1.3, 2.0], "cpu": [1.0, 2.0]}}]
    keep(Namespace(out="", name="nowhere"), rounds)
    assert [path.name for path in tmp_path.iterdir()] == ["cost.steps.json.gz"]
