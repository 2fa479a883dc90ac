"""What the rules cost for one op, for each reading of a past.

The trace is the plain life of an engine: a forward on one stream, a store and a load on two others, each
ordered with an event, and a host thread that polls. `order.py` is written to be read; the online checker
inlines it.
"""

from collections.abc import Callable
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.model.ops import Access, Blocks, Op, Poll, Record, Wait
from kvsan.model.order import Agent, Bits, Edges, Element, Epochs, Lattice, OneBit, Order

STEPS = 500


def engine_trace(steps: int) -> list[Op]:
    ops: list[Op] = []
    for step in range(steps):
        block = {"gpu": Blocks.parse(str(step % 64))}
        done = f"step{step}"
        ops += [
            Access("h0", "compute", reads=block, writes=block, label="forward"),
            Record("h0", "compute", done),
            Wait("h1", "store", done),
            Access("h1", "store", reads=block, label="store"),
            Record("h1", "store", f"stored{step}"),
            Poll("h0", f"stored{step}", done=step % 2 == 0),
            Wait("h1", "load", done),
            Access("h1", "load", writes=block, label="load"),
        ]
    return ops


@pytest.mark.parametrize(
    "lattice",
    [Bits, Epochs, Edges, lambda: OneBit(Element(0, Agent("compute")))],
    ids=["bits", "epochs", "edges", "one-bit"],
)
def bench_rules(benchmark: BenchmarkFixture, lattice: Callable[[], Lattice[Any]]) -> None:
    trace = engine_trace(STEPS)

    def replay() -> None:
        order = Order(lattice())
        for number, op in enumerate(trace):
            order.issue(number, op)

    benchmark.extra_info["ops"] = len(trace)  # for the time of one op
    benchmark(replay)
