"""Host time that debug mode adds to a step of the offload engine: log only, checked beside it and in its process.

A step is what the engine issues for 64 sequences: the allocs, plans and frees, a forward that reads half of the blocks
in scattered order and writes one a sequence, its record, a store and a load with their waits, records and polls, a job
handed to the copy thread. `make bench ARGS="-k tracing"`. Beside it the same calls on a device that does nothing, and
the checker alone on the same ops, made beforehand; all in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.conftest import Note, interleaved
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.checker.live import LiveCheck
from kvsan.checker.options import Options
from kvsan.checker.session import Session
from kvsan.checker.trace import open_trace
from kvsan.model.ops import Op, Stream
from kvsan.runtime.binary import Log
from kvsan.runtime.device import Copy, Device, Ids, Kernel
from kvsan.runtime.tracing import Traced
from runtime.null import NullDevice

SEQUENCES = 64
HOST_BLOCKS = 4096
SETS = 32
"""Different steps, so that no cache knows the next one."""

SIZES = (1_024, 10_000)


class Engine:
    """Issues steps on a device. Fenced as the safe default is: what is timed is a clean run."""

    def __init__(self, device: Device, blocks: int) -> None:
        self.device, self.host, self.copier = device, device.host("host"), device.host("copier")
        for name in ("compute", "store", "load"):
            device.stream(name, side=name != "compute")
        device.memory("gpu", (1, blocks), host=False)
        device.memory("cpu", (1, HOST_BLOCKS), host=True)
        rng = np.random.default_rng(0)
        self.sets = []
        for _ in range(SETS):
            mixed: Ids = rng.permutation(blocks)
            reads, rest = mixed[: blocks // 2], mixed[blocks // 2 :]
            self.sets.append((reads, reads[:SEQUENCES], rest[:4], rest[4:8], reads[64:68], rest[8:24], rng))
        self.slots = [rng.permutation(HOST_BLOCKS)[:16] for _ in range(SETS)]
        self.number = 0

    def step(self) -> None:
        self.number = n = self.number + 1
        host, copier = self.host, self.copier
        reads, writes, taken, freed, stored, loaded, _ = self.sets[n % SETS]
        slots = self.slots[n % SETS]
        host.free("gpu", freed)
        host.alloc("gpu", taken)
        host.plan("gpu", stored, "store")
        host.plan("gpu", loaded, "load")
        host.wait("compute", f"loaded#{n - 1}")
        host.wait("compute", f"stored#{n - 1}")
        host.launch("compute", Kernel("forward", {"gpu": reads}, {"gpu": writes}, step=n))
        host.record("compute", f"done#{n}")
        host.put("stores", n)
        copier.get("stores")
        copier.wait("store", f"done#{n}")
        copier.wait("store", f"loaded#{n - 1}")
        copier.copy("store", Copy("store", "gpu", stored, "cpu", slots[:4], "stream", n))
        copier.record("store", f"stored#{n}")
        host.wait("load", f"done#{n}")
        host.wait("load", f"stored#{n}")
        host.copy("load", Copy("load", "cpu", slots, "gpu", loaded, "stream", n))
        host.record("load", f"loaded#{n}")
        host.query(f"stored#{n - 1}")
        host.query(f"loaded#{n - 1}")
        host.sync(f"done#{n - 1}")
        host.drop(f"done#{n - 2}")
        host.drop(f"stored#{n - 2}")
        host.drop(f"loaded#{n - 2}")


LINES = 22
"""Of a step: a plan has none."""


def session(folder: Path, **more: Any) -> Session:
    return Session(Options(log_path="/dev/null", incident=0, **more))


def recorded(folder: Path, blocks: int) -> Iterator[Op]:
    """The ops of some steps, for the checker alone."""
    path = folder / "made.kvt"
    with Log(path) as log:
        made = Engine(Traced(NullDevice(keep=False), log), blocks)
        for _ in range(SETS * 8):
            made.step()
    with open_trace(path) as trace:
        yield from trace


def alone(folder: Path, blocks: int) -> Callable[[], None]:
    """Feeds a step's ops to the checker at each call."""
    ops = list(recorded(folder, blocks))
    check = LiveCheck(lambda found: None)
    for name in ("compute", "store", "load"):
        check.stream(name, Stream())
    check.pool("gpu", blocks)
    check.pool("cpu", HOST_BLOCKS)
    at = [0]

    def step() -> None:
        first = at[0]
        for index in range(first, first + LINES):
            check.take(index, ops[index % len(ops)])
        at[0] = first + LINES

    assert len(ops) == SETS * 8 * LINES
    return step


@pytest.mark.parametrize("blocks", SIZES)
def bench_tracing_a_step(benchmark: BenchmarkFixture, note: Note, tmp_path: Path, blocks: int) -> None:
    """The timed part is log-only; `extra_info` has all."""
    log = Log(tmp_path / "log.kvt")
    checked = session(tmp_path)
    beside = Session(Options(log_path="/dev/null", incident=0), beside=True)
    both = session(tmp_path, trace=str(tmp_path / "both.kvt"))
    lines = session(tmp_path, trace=str(tmp_path / "lines.jsonl"), check=False)
    calls: dict[str, Callable[[], object]] = {
        "bare": Engine(NullDevice(keep=False), blocks).step,
        "log": Engine(Traced(NullDevice(keep=False), log), blocks).step,
        "checked beside": Engine(beside.watch(NullDevice(keep=False)), blocks).step,
        "checked inside": Engine(checked.watch(NullDevice(keep=False)), blocks).step,
        "both": Engine(both.watch(NullDevice(keep=False)), blocks).step,
        "json lines": Engine(lines.watch(NullDevice(keep=False)), blocks).step,
        "checker alone": alone(tmp_path, blocks),
    }
    times = interleaved(calls, batch=SETS, rounds=15)
    bare = times["bare"]
    added = {name: time - (0 if name == "checker alone" else bare) for name, time in times.items() if name != "bare"}
    benchmark.group = f"a step of {LINES} lines, {blocks:,} blocks"
    benchmark.extra_info.update({f"{name}_us": round(time, 1) for name, time in times.items()})
    note(
        f"tracing, a step of {LINES} lines, {blocks:,} blocks, bare {bare:.1f} µs",
        " | ".join(f"{name} +{time:.1f} µs ({time / LINES:.2f} a line)" for name, time in added.items()),
    )
    benchmark(calls["log"])
    log.close()
    assert log.ops
    for made in (beside, checked, both, lines):
        assert made.recorder.on
        seen = made.close()
        assert not seen.findings
