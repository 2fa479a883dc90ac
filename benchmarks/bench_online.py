"""One access op through `Online.feed`, provenance included, beside a bare numpy gather-and-compare of the same columns.

Three kinds of op: a write that must look at the write column and at four read columns (`engine.Engine.hide`), a read
that must look at the write column, and a write in a run that orders its streams, where one number an agent says that
nothing need be looked at. Then what it costs to make `Blocks` of an array, and one record or wait with its warnings.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from benchmarks.conftest import Note, interleaved, pedantic
from benchmarks.engine import BLOCKS, LAYOUTS, READERS, SETS, Engine, bare, id_sets
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.checker.index import index, runs_of
from kvsan.model.ops import Access, Blocks, Op, Record, Sync, Wait

COUNTS = (256, 1_024, 10_000)
AGENTS = (8, 64)


@functools.cache
def engine(agents: int, kind: str) -> Engine:
    """One for each kind of op: the writes of one would race with the reads of the other."""
    made = Engine(agents)
    if kind != "ordered":
        made.hide()
    return made


@pytest.mark.parametrize("agents", AGENTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", COUNTS)
def bench_access(benchmark: BenchmarkFixture, note: Note, count: int, layout: str, agents: int) -> None:
    """The timed part is the write that must look; `extra_info` has all four, measured in turns."""
    sets = id_sets(count, layout)
    kept = [{"gpu": Blocks.of(ids.tolist())} for ids in sets]
    writes = [Access("h", "w", writes=blocks, label="load", step=1) for blocks in kept]
    reads = [Access("h", "r0", reads=blocks, label="forward", step=1) for blocks in kept]
    columns = [np.ones(BLOCKS, np.int64) for _ in range(1 + READERS)]
    write = engine(agents, "write").cycle(writes)
    times = interleaved(
        {
            "bare": bare(columns, sets, 7, np.full(64, 7, np.int64)),
            "write": write,
            "read": engine(agents, "read").cycle(reads),
            "ordered": engine(agents, "ordered").cycle(writes),
        },
        batch=3 * SETS,
    )
    base = times["bare"]
    benchmark.group = f"access: {count:,} ids, {layout}"
    benchmark.extra_info.update({f"{kind}_us": round(time, 1) for kind, time in times.items()})
    note(
        f"access, {count:,} ids, {layout}, {agents} agents",
        f"bare {base:6.1f} µs | "
        + " | ".join(f"{k} {times[k]:6.1f} ({times[k] / base:.2f})" for k in ("write", "read", "ordered")),
    )
    benchmark(write)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", COUNTS)
def bench_blocks_from_ids(benchmark: BenchmarkFixture, note: Note, count: int, layout: str) -> None:
    """What an engine pays that has an array of ids and keeps no `Blocks`: an array to runs, and runs to an index."""
    benchmark.group = "array of ids to Blocks to index"
    given = np.sort(id_sets(count, layout)[0])
    benchmark(lambda: index(runs_of(given)))
    if benchmark.stats:
        note(f"array to Blocks to index, {count:,} ids, {layout}", f"{benchmark.stats['min'] * 1e6:.1f} µs")


ORDER: dict[str, Op] = {
    "record": Record("h", "r0", "e"),
    "wait that orders": Wait("h", "w", "e"),
    "wait, redundant": Wait("h", "w", "old"),
    "wait for its own stream": Wait("h", "r0", "e"),
    "wait, never recorded": Wait("h", "w", "nothing"),
    "sync of an event": Sync("h2", event="e"),
}


@pytest.mark.parametrize("agents", AGENTS)
@pytest.mark.parametrize("kind", ORDER)
def bench_order_op(benchmark: BenchmarkFixture, note: Note, kind: str, agents: int) -> None:
    """Each op right after an access and a record, so that vectors have moved and are copied and joined."""
    benchmark.group = f"order ops: {agents} agents"
    made = Engine(agents)
    spare = Access("h", "r0", reads={"gpu": Blocks(((1, 2),))})
    made.feed(Record("h", "r1", "old"))
    made.feed(Wait("h", "w", "old"))

    def before() -> None:
        made.feed(spare)
        if kind != "record":
            made.feed(Record("h", "r0", "e"))

    pedantic(benchmark, made.feed, ORDER[kind], setup=before, rounds=10_000)
    if benchmark.stats:
        stats = benchmark.stats
        note(f"{kind}, {agents} agents", f"min {stats['min'] * 1e6:.2f} µs, median {stats['median'] * 1e6:.2f} µs")
