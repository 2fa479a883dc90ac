"""What a hook of debug mode adds to the engine's call, in a loop, with cold caches, and where none of its branches is
foreseen, in C and in Python.

`make bench ARGS="-k hooks"`. The engine's functions are stand-ins that do nothing. *deaf*: the hook is in place and
finds that it is not to look. Cold, unforeseen: `spoil` runs before each call and is not timed. Each of the two runs
in a process of its own, in turns. Not covered: how much of either a real step does.
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

from benchmarks import spoil
from benchmarks.conftest import Note, pedantic
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.checker.attach.core import BATCH
from kvsan.checker.attach.native import HOT
from kvsan.checker.attach.patches import Patches
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.torch.calls import Calls
from kvsan.checker.attach.torch.surface import Surface

SPOILT, HOT_CALLS = 300, 20_000
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


def calls_of(event_class: Any, stream_class: Any) -> tuple[Any, dict[str, Callable[[], object]]]:
    """A stream, and calls about it and an event."""
    stream, event = stream_class(), event_class()
    return stream, {  # looked up at each call: a hook comes and goes
        "record": lambda: event_class.record(event),
        "record on a stream": lambda: event_class.record(event, stream),
        "synchronize": lambda: event_class.synchronize(event),
        "query": lambda: event_class.query(event),
        "wait_stream": lambda: stream_class.wait_stream(stream, stream),
    }


def hooks() -> tuple[Recorder, Calls, dict[str, Callable[[], object]]]:
    """A recorder, the hooks of `Event` and `Stream`, which are to be installed, and calls of them."""
    stream, calls = calls_of(Event, Stream)
    recorder = Recorder([])
    recorder.listen([], batch=BATCH, beside=Nobody())
    recorder.stream(0, 7, name="compute")
    raw = int, (7).__add__  # device 0, handle 7: in C, as PyTorch's own
    surface = Surface((Event,), (Stream,), current_stream=lambda: stream, current=lambda: (0, 7), raw=raw)
    return recorder, Calls(recorder, surface, Patches()), calls


def measured() -> dict[str, list[float]]:
    """By call: what the hook adds, µs: cold, unforeseen and hot; the same deaf. Unforeseen is nan where `spoil` has no
    code for the machine.
    """
    recorder, hooked, calls = hooks()
    caches = spoil.caches()
    try:
        branches = spoil.branches()
    except RuntimeError:
        branches = None

    def spoilt(call: Callable[[], object], before: Callable[[], object] | None) -> float:
        if before is None:
            return float("nan")
        times = []
        for _ in range(SPOILT):
            before()
            began = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - began)
        return statistics.median(times) / 1e3

    def hot(call: Callable[[], object]) -> float:
        began = time.perf_counter_ns()
        for _ in range(HOT_CALLS):
            call()
        return (time.perf_counter_ns() - began) / HOT_CALLS / 1e3

    def all_of_them() -> dict[str, tuple[float, float, float]]:
        return {name: (spoilt(call, caches), spoilt(call, branches), hot(call)) for name, call in calls.items()}

    before = all_of_them()
    hooked.install()
    watched = all_of_them()
    recorder.on = False
    deaf = all_of_them()
    hooked.uninstall()
    return {
        name: [now - then for state in (watched, deaf) for now, then in zip(state[name], was, strict=True)]
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
            found = [statistics.median(column) for column in zip(*rows, strict=True)]
            texts = [
                f"cold {cold:.1f} µs, unforeseen {new:.1f}, hot {hot:.2f}" for cold, new, hot in (found[:3], found[3:])
            ]
            note(f"hook of {name}, {way}", "; deaf ".join(texts))
    pedantic(benchmark, run, ways.get("C", "0"), rounds=1)


if __name__ == "__main__":
    print(json.dumps(measured()))
