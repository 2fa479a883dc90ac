"""What a line of debug mode costs the engine's thread in the middle of other work: caches full of something else.

`bench_tracing.py` issues steps in a loop, so each line finds everything near. An engine issues a line and goes on to
something else; what counts then is how many cache lines of code, objects and dicts a line touches. Here the calls of a
decode step are issued on a device that does nothing, and before each of them `SPOIL` bytes are read, which is not timed
and empties the caches of the core (not those that all cores share). The calls are those of the default design at 64
sequences (`gpu_engine.py cost` logs 5.1 lines a step): two records, the wait for the step before, a drop, a forward
that reads and writes as many blocks as there; every other step two polls, every fourth a free and an alloc, every
eighth a store.

All modes do a step in turn, in another order each round. A call's figure is the median over steps, for the bulk, and
the mean, in which what is rare is too (a segment, a batch that is handed over, where the engine waits for the process
beside: steps without work come ten times as fast as real ones), each less those without debug mode. `python` are the
same without the extension, whose medians the others are to be compared with.
`make bench ARGS="-k lines"`.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest
from benchmarks.conftest import Note
from benchmarks.spoil import caches
from benchmarks.switching import Nothing
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.checker.options import Options
from kvsan.checker.session import Session
from kvsan.runtime import lines, plans, tracing
from kvsan.runtime.device import Copy, Device, Kernel
from kvsan.runtime.tracing import Traced
from runtime.null import NullDevice

SPOIL = 8 << 20
"""Bytes: four times the second-level cache of a server's core."""

ROUNDS = 400
WARM = 40
SIZES = {1_024: (640, 128), 10_000: (7_936, 128)}
"""GPU blocks, and how many of them a forward reads and writes."""

Call = Callable[[], object]


class Engine:
    """The calls of decode steps on a device."""

    def __init__(self, device: Device, blocks: int) -> None:
        self.host = device.host("host")
        for name in ("compute", "store", "load"):
            device.stream(name, side=name != "compute")
        device.memory("gpu", (1, blocks), host=False)
        device.memory("cpu", (1, blocks), host=True)
        rng = np.random.default_rng(0)
        self.reads, self.writes = SIZES[blocks]
        self.sets = [rng.permutation(blocks) for _ in range(8)]
        self.number = 0

    def step(self) -> Iterator[Call]:
        """What there is to do in turn. What a call is given is made right before it, as in an engine."""
        self.number = n = self.number + 1
        host, ids = self.host, self.sets[n % 8]
        done, before = f"step_done#{n}", f"step_done#{n - 1}"
        kernel = Kernel("forward", {"gpu": ids[: self.reads].copy()}, {"gpu": ids[: self.writes].copy()}, step=n)
        yield lambda: host.launch("compute", kernel)
        yield lambda: host.record("compute", "compute_done")
        yield lambda: host.record("compute", done)
        yield lambda: host.sync(before)
        yield lambda: host.drop(before)
        if n % 2:
            yield lambda: host.query("stored")
            yield lambda: host.query("loaded")
        if n % 4 == 1:
            taken = ids[-4:].copy()
            yield lambda: host.free("gpu", taken)
            yield lambda: host.alloc("gpu", taken)
        if n % 8 == 2:
            stored, slots = ids[:4].copy(), ids[4:8].copy()
            copy = Copy("store", "gpu", stored, "cpu", slots, "stream", n)
            yield lambda: host.plan("gpu", stored, "store")
            yield lambda: host.wait("store", "compute_done")
            yield lambda: host.copy("store", copy)
            yield lambda: host.record("store", "stored")
            yield lambda: host.wait("compute", "stored")


LINES = (8 * 5 + 4 * 2 + 2 * 2 + 4) / 8
"""Of a step: a plan has none."""


@contextmanager
def engines(folder: Path, blocks: int) -> Iterator[dict[str, Engine]]:
    """An engine in each mode; `python` are those without the extension, if there is one."""
    quiet: dict[str, Any] = {"log_path": "/dev/null", "incident": 0}
    sessions: list[Session] = []

    def watched(session: Session) -> Engine:
        sessions.append(session)
        return Engine(session.watch(NullDevice(keep=False)), blocks)

    def made() -> Iterator[tuple[str, Engine]]:
        trace = str(folder / f"{len(sessions)}.kvt")
        yield "nothing", Engine(Traced(NullDevice(keep=False), Nothing()), blocks)
        yield "log", watched(Session(Options(check=False, trace=trace, **quiet)))
        yield "check", watched(Session(Options(**quiet), beside=True))

    out = {"bare": Engine(NullDevice(keep=False), blocks), **dict(made())}
    if lines.IN_C is not None:
        with pytest.MonkeyPatch.context() as patch:
            for module in (plans, tracing):
                patch.setattr(module, "IN_C", None)
            out |= {f"{mode}, python": engine for mode, engine in made()}
    try:
        yield out
    finally:
        seen = [(session.recorder.on, session.close().findings) for session in sessions]
    assert all(on and not found for on, found in seen)


def took(modes: dict[str, Engine], rounds: int, spoil: int) -> dict[str, list[list[float]]]:
    """µs of each call of each step, by mode."""
    read, dice = caches(spoil), random.Random(0)
    out: dict[str, list[list[float]]] = {mode: [] for mode in modes}
    order = list(modes)
    for _ in range(rounds):
        dice.shuffle(order)
        for mode in order:
            times, calls = [], modes[mode].step()
            while True:
                read()
                call = next(calls, None)
                if call is None:
                    break
                began = perf_counter_ns()
                call()
                times.append((perf_counter_ns() - began) / 1e3)
            out[mode].append(times)
    return out


def added(times: dict[str, list[list[float]]], bare: str = "bare") -> dict[str, dict[str, float]]:
    """µs a step that each mode adds: by medians of the calls of each place in the eight sorts of step, and by means."""

    def of(mode: str, middle: Callable[[list[float]], float]) -> float:
        sorts = [times[mode][WARM:][at::8] for at in range(8)]
        return sum(middle([step[at] for step in steps]) for steps in sorts for at in range(len(steps[0]))) / 8

    return {
        mode: {"median": of(mode, statistics.median) - of(bare, statistics.median),
               "mean": of(mode, statistics.fmean) - of(bare, statistics.fmean)}
        for mode in times
        if mode != bare
    }  # fmt: skip


@pytest.mark.parametrize("blocks", SIZES)
def bench_lines_cold(benchmark: BenchmarkFixture, note: Note, tmp_path: Path, blocks: int) -> None:
    """The timed part is a step of the log, hot; `extra_info` has the cold ones."""
    with engines(tmp_path, blocks) as modes:
        for name, spoil in (("cold", SPOIL), ("hot", 64)):
            found = added(took(modes, ROUNDS + WARM, spoil))
            benchmark.extra_info[name] = found
            for mode, one in found.items():
                note(
                    f"lines, {name}, {blocks:,} blocks: {mode}",
                    f"+{one['median']:.1f} µs a step ({one['median'] / LINES:.2f} a line), mean +{one['mean']:.1f} µs",
                )
        benchmark(lambda: [call() for call in modes["log"].step()])
