"""What the online checker holds: bytes a block, and the whole process over ten million ops."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.conftest import Note, pedantic
from benchmarks.engine import BLOCKS, READERS
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.checker.online import Online
from kvsan.model.ops import Access, Alloc, Blocks, Drop, Free, Get, Op, Poll, Put, Record, Wait

OPS = 10_000_000
POOL = 1_024
SAMPLES = 10


def rss() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bench_bytes_a_block(benchmark: BenchmarkFixture, note: Note) -> None:
    """A million blocks, each written, read by four streams, freed and allocated again."""
    benchmark.group = "memory"
    every = Blocks(((0, BLOCKS),))
    before = rss()

    def fill() -> Online:
        online = Online({"gpu": BLOCKS})
        ops: list[Op] = [Alloc("h", "gpu", every), Access("h", "w", writes={"gpu": every}), Record("h", "w", "e")]
        for i in range(READERS):
            ops += [Wait("h", f"r{i}", "e"), Access("h", f"r{i}", reads={"gpu": every})]
        for number, op in enumerate([*ops, Free("h", "gpu", every), Alloc("h", "gpu", every)]):
            assert not online.feed(number, op)
        return online

    online = pedantic(benchmark, fill)
    grown = rss() - before
    note(
        f"memory, {BLOCKS:,} blocks, {READERS} reading agents",
        f"{online.nbytes() / BLOCKS:.2f} B a block (bound {16 + 8 * READERS}), resident {grown / BLOCKS:.2f} B a block",
    )


def bench_ten_million_ops(benchmark: BenchmarkFixture, note: Note) -> None:
    """Resident memory, ten samples. Every event and token has a name of its own, as in a run of hours."""
    benchmark.group = "memory"
    online = Online({"gpu": POOL, "cpu": POOL})
    samples: list[int] = []

    def run() -> None:
        number = 0
        for step in range(OPS // STEP_OPS):
            for op in _step(step):
                assert not online.feed(number, op)
                number += 1
            if not (step + 1) % (OPS // STEP_OPS // SAMPLES):
                samples.append(rss())

    pedantic(benchmark, run)
    seconds = benchmark.stats["min"] if benchmark.stats else 0.0
    note(
        f"memory over {OPS // 1_000_000} million ops, {POOL} blocks, MB at each tenth",
        " ".join(f"{sample / 1e6:.1f}" for sample in samples) + f" ({OPS / max(seconds, 1e-9):,.0f} ops/s)",
    )


_BLOCKS = [Blocks(((i, i + 4), (i + 8, i + 10))) for i in range(0, POOL - 16, 16)]


def _step(step: int) -> list[Op]:
    """One step of an engine: a forward, a store behind it, a load into what was freed, the next forward behind that."""
    gpu = _BLOCKS[step % len(_BLOCKS)]
    done, stored, loaded, token = f"d{step}", f"s{step}", f"l{step}", f"t{step}"
    return [
        Alloc("h0", "gpu", gpu),
        Access("h0", "compute", {"gpu": gpu}, {"gpu": gpu}, "forward", step=step),
        Record("h0", "compute", done),
        Put("h0", token),
        Get("h1", token),
        Wait("h1", "store", done),
        Access("h1", "store", {"gpu": gpu}, {"cpu": gpu}, "store", step=step),
        Record("h1", "store", stored),
        Poll("h0", stored, done=True),
        Free("h0", "gpu", gpu),
        Alloc("h0", "gpu", gpu),
        Wait("h1", "load", done),
        Wait("h1", "load", stored),
        Access("h1", "load", {"cpu": gpu}, {"gpu": gpu}, "load", step=step),
        Record("h1", "load", loaded),
        Wait("h0", "compute", loaded),
        Drop("h0", done),
        Drop("h0", stored),
        Drop("h0", loaded),
        Free("h0", "gpu", gpu),
    ]


STEP_OPS = len(_step(0))
