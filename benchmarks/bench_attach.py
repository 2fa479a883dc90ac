"""Host time of a hook: off, installed and switched off, recording, checking. `make bench ARGS="-k attach"`.

Off is not installed: the functions are the originals. Goals on a quiet machine: 5 µs for a record, a wait or a query,
25 µs for an access of a thousand scattered ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from attach.stand_ins import World
from kvsan.checker.attach.handoff import HandingList
from kvsan.checker.attach.torch import Calls, install
from kvsan.checker.options import Options
from kvsan.checker.session import Session

BLOCKS = 100_000
COPIES = 20
"""Copies to the device in the preparation of a step of vLLM's older runner, about."""
MODES = ("off", "switched off", "recording", "on")


class Setup:
    """A world of stand-ins, hooked as `mode` says."""

    def __init__(self, mode: str, tmp_path: Any, **surface: Any) -> None:
        self.world = World()
        more: dict[str, Any] = {"check": False} if mode == "recording" else {}
        self.session = Session(Options(log_path="/dev/null", incident_path=str(tmp_path / "i-%n.jsonl"), **more))
        self.session.recorder.pool("gpu", BLOCKS)
        self.calls: Calls | None = None if mode == "off" else install(self.session, self.world.surface(**surface))
        self.session.recorder.on = mode in ("recording", "on")
        self.side = self.world.Stream(7)
        self.event = self.world.Event()
        self.event.record()


@pytest.fixture(params=MODES)
def setup(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Setup]:
    made = Setup(request.param, tmp_path)
    yield made
    made.session.close()


@pytest.mark.parametrize("call", ["record", "wait", "query", "synchronize"])
def bench_a_call(benchmark: Any, setup: Setup, call: str) -> None:
    event, side = setup.event, setup.side
    function = getattr(event, call)
    if call in ("record", "wait"):
        benchmark(function, side)
    else:
        benchmark(function)


@pytest.mark.parametrize("count", [1, 100, 1000, 10_000])
@pytest.mark.parametrize("kind", ["array", "list"])
def bench_an_access(benchmark: Any, tmp_path: Any, kind: str, count: int) -> None:
    setup = Setup("on", tmp_path)
    given = np.random.default_rng(0).permutation(BLOCKS)[:count]
    ids = given if kind == "array" else given.tolist()
    recorder = setup.session.recorder
    benchmark(lambda: recorder.access("forward", on="s", reads={"gpu": ids}))
    assert recorder.on
    setup.session.close()


def bench_a_step(benchmark: Any, tmp_path: Any) -> None:
    """A step of a decode: a forward of a thousand blocks, its event, a wait, a query, one load of sixteen blocks."""
    setup = Setup("on", tmp_path)
    recorder, world = setup.session.recorder, setup.world
    reads = np.random.default_rng(0).permutation(BLOCKS)[:1000]
    loads = np.arange(16) + 5

    def step() -> None:
        recorder.access("forward", on="default0", reads={"gpu": reads}, writes={"gpu": reads[:64]})
        event = world.Event()
        event.record()
        event.wait(setup.side)
        event.query()
        recorder.access("load", on="s1", writes={"gpu": loads})

    benchmark(step)
    assert recorder.on
    setup.session.close()


@pytest.mark.parametrize("mode", MODES)
def bench_a_step_of_vllm(benchmark: Any, tmp_path: Any, mode: str) -> None:
    """What a decoding step of a dozen requests with stores and loads issues, as counted on an H200: 21 ops, of which
    are 1.6 accesses, and copies of its inputs, none of them on a pool. Without vLLM's own hooks; `attach.vllm.cpu_cost`
    has those.
    """
    torch = pytest.importorskip("torch")
    setup = Setup(mode, tmp_path, tensors=(torch.Tensor,))
    recorder, world, handing = setup.session.recorder, setup.world, HandingList(setup.session.recorder)
    reads = np.random.default_rng(0).permutation(BLOCKS)[:400]
    host, device = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    prepared, side, number = world.Event(), setup.side, 0

    def step() -> None:
        nonlocal number
        number += 1
        prepared.synchronize()
        for _ in range(COPIES):
            device.copy_(host, non_blocking=True)
        prepared.record()
        for block in range(4):
            recorder.alloc("gpu", [block])
        recorder.access("forward", on="default0", reads={"gpu": reads}, writes={"gpu": reads[:12]}, step=number)
        if number % 2:
            submitted = world.Event()
            submitted.record()
            side.wait_event(submitted)
            recorder.access("store", on="s7", reads={"gpu": [1, 2, 3]}, writes={"gpu": [7, 8, 9]}, batch=True)
            done = world.Event()
            done.record(side)
            handing.append(done)
            handing[0].query()
            handing.pop()
        copied = world.Event()
        side.wait_stream(world.default)
        copied.record(side)
        copied.synchronize()
        recorder.free("gpu", [1, 2, 3])

    benchmark.pedantic(step, rounds=40, iterations=60, warmup_rounds=2)  # a turn has its share of what is worked off
    assert recorder.on == (mode in ("recording", "on"))
    setup.session.close()
