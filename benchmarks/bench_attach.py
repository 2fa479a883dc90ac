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
from kvsan.checker.attach.torch import Calls, install
from kvsan.checker.options import Options
from kvsan.checker.session import Session

BLOCKS = 100_000
MODES = ("off", "switched off", "recording", "on")


class Setup:
    """A world of stand-ins, hooked as `mode` says."""

    def __init__(self, mode: str, tmp_path: Any) -> None:
        self.world = World()
        more: dict[str, Any] = {"check": False} if mode == "recording" else {}
        self.session = Session(Options(log_path="/dev/null", incident_path=str(tmp_path / "i-%n.jsonl"), **more))
        self.session.recorder.pool("gpu", BLOCKS)
        self.calls: Calls | None = None if mode == "off" else install(self.session, self.world.surface())
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
