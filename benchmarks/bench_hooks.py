"""What a hook of debug mode adds to the engine's call, in a loop and with cold caches, in C and in Python.

`make bench ARGS="-k hooks"`. The engine's functions are stand-ins that do nothing. *deaf*: the hook is in place and
finds that it is not to look. Cold: 64 MiB are read before each call, which stands for an engine's own work and is not
timed. Each of the two runs in a process of its own, in turns. Not covered: how much of the caches a real step takes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.conftest import Note, pedantic
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.checker.attach.core import BATCH
from kvsan.checker.attach.native import HOT
from kvsan.checker.attach.patches import Patches
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.torch.calls import Calls
from kvsan.checker.attach.torch.surface import Surface

SPOIL = 64 << 20
COLD, HOT_CALLS = 300, 20_000
ROOT = Path(__file__).resolve().parents[1]


class Stream:
    """The current one."""

    cuda_stream, device_index = 7, 0

    def wait_stream(self, stream: Any) -> None:
        """Nothing to do."""


class Event:
    """One that is always done."""

    def record(self, stream: Any = None) -> None:
        """Nothing to do."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing to do."""


class Nobody:
    """In place of the process beside: takes what it is given."""

    def _nothing(self, *_: Any) -> None: ...

    pool = stream = follow = lines = packed = _nothing


def measured() -> dict[str, list[float]]:
    """By call: what the hook adds, µs: cold, hot, deaf and cold, deaf and hot."""
    stream, event, other = Stream(), Event(), np.zeros(SPOIL, np.uint8)
    recorder = Recorder([])
    recorder.listen([], batch=BATCH, beside=Nobody())
    recorder.stream(0, 7, name="compute")
    raw = int, (7).__add__  # device 0, handle 7: in C, as PyTorch's own
    surface = Surface((Event,), (Stream,), current_stream=lambda: stream, current=lambda: (0, 7), raw=raw)
    calls: dict[str, Callable[[], object]] = {  # looked up at each call: a hook comes and goes
        "record": lambda: Event.record(event),
        "record on a stream": lambda: Event.record(event, stream),
        "synchronize": lambda: Event.synchronize(event),
        "query": lambda: Event.query(event),
        "wait_stream": lambda: Stream.wait_stream(stream, stream),
    }

    def cold(call: Callable[[], object]) -> float:
        times = []
        for _ in range(COLD):
            other[::64].sum()
            began = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - began)
        return statistics.median(times) / 1e3

    def hot(call: Callable[[], object]) -> float:
        began = time.perf_counter_ns()
        for _ in range(HOT_CALLS):
            call()
        return (time.perf_counter_ns() - began) / HOT_CALLS / 1e3

    def all_of_them() -> dict[str, tuple[float, float]]:
        return {name: (cold(call), hot(call)) for name, call in calls.items()}

    before = all_of_them()
    hooked = Calls(recorder, surface, Patches())
    hooked.install()
    watched = all_of_them()
    recorder.on = False
    deaf = all_of_them()
    hooked.uninstall()
    return {
        name: [watched[name][0] - was[0], watched[name][1] - was[1], deaf[name][0] - was[0], deaf[name][1] - was[1]]
        for name, was in before.items()
    }


def bench_hooks(benchmark: BenchmarkFixture, note: Note) -> None:
    """The timed part is one process with what is built."""

    def run(native: str) -> dict[str, list[float]]:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_hooks"],
            env={**os.environ, "KVSAN_NATIVE": native, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            capture_output=True,
            text=True,
            check=True,
        )
        found: dict[str, list[float]] = json.loads(done.stdout)
        return found

    ways = {"C": "1", "Python": "0"} if HOT is not None else {"Python": "0"}
    turns = [(way, run(native)) for _ in range(3) for way, native in ways.items()]
    for name in turns[0][1]:
        for way in ways:
            rows = [found[name] for each, found in turns if each == way]
            cold, hot, deaf, deaf_hot = (statistics.median(column) for column in zip(*rows, strict=True))
            note(f"hook of {name}, {way}", f"cold {cold:.1f} µs, hot {hot:.2f}; deaf {deaf:.1f}, {deaf_hot:.2f}")
    pedantic(benchmark, run, ways.get("C", "0"), rounds=1)


if __name__ == "__main__":
    print(json.dumps(measured()))
