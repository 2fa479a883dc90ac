"""The engine on a device that is never late: every design of the catalogue serves, and every answer is right."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from kvsan.model.design import DesignError, Protocol
from kvsan.model.designs import load, names
from kvsan.runtime.engine import Engine, Sizes, StuckError, designs_for
from kvsan.runtime.language import Group, Model
from kvsan.runtime.roles import gpu
from kvsan.runtime.scheduler import EngineError
from kvsan.runtime.serve import garbled, serve
from kvsan.runtime.workload import Workload, blocks_for, requests_of
from runtime.immediate import Immediate

MODEL = Model(groups=(Group("full"), Group("window", 64)), stop_every=40)
WORKLOAD = Workload(requests=24, concurrency=12, seed=3, aborts=0.1)
REQUESTS = requests_of(WORKLOAD, MODEL)
BLOCKS = blocks_for(WORKLOAD, MODEL, oversubscribed=4, requests=REQUESTS)

WRONG_GENERATION = {"vllm-no-store-pin", "vllm-no-store-pin-device-waits"}
"""A store planned for one owner copies the next one's block, on any device: they garble without a race."""


def engine(name: str | None = None, **options: Any) -> Engine:
    sizes = Sizes(BLOCKS.gpu, BLOCKS.host, slots=12, budget=192)
    made = Engine(None if name is None else load(name), Immediate(), MODEL, sizes, **options)
    if not made.stores:
        made.warm(request.prompt for request in REQUESTS)
    return made


@pytest.mark.parametrize("name", names())
def test_every_design_serves(name: str) -> None:
    made = engine(name)
    expected = load(name).expected
    if expected is not None and expected.stuck_closed is not None:
        with pytest.raises(StuckError, match=f"by {name} no other will come back"):
            serve(made, REQUESTS, 12, each_turn=lambda _: made.check())
        return
    done = serve(made, REQUESTS, 12, each_turn=lambda _: made.check())
    assert sorted(done) == [request.number for request in REQUESTS]
    if name not in WRONG_GENERATION:
        assert garbled(MODEL, REQUESTS, done) == []
    moved = made.transfers.loads if made.transfers.gpu_roles.load is not None else made.transfers.stores
    assert moved > 5 or name == "sglang-hicache-write-back", "no transfer: the design was not exercised"
    made.check()


@pytest.mark.parametrize("options", [{"run_ahead": 0}, {"run_ahead": 3}, {"lazy": True}, {"caching": False}])
def test_options_change_no_answer(options: dict[str, Any]) -> None:
    made = engine(**options)
    assert garbled(MODEL, REQUESTS, serve(made, REQUESTS, 12)) == []
    assert made.transfers.stores > 3 or options == {"caching": False}


def test_the_calls_are_the_designs_records_and_waits() -> None:
    """One step's worth, word by word: nothing else is fenced, and nothing less."""
    made = engine("vllm-symmetric-barrier")
    serve(made, REQUESTS, 12)
    calls = made.device.calls  # type: ignore[attr-defined]
    loads = [at for at, call in enumerate(calls) if call[0] == "copy" and call[2] == "load"]
    assert loads
    for at in loads:
        assert calls[at - 1] == ("wait", "load", "compute_done")
        assert [call[:2] for call in calls[at + 1 : at + 2]] == [("record", "load")]
    waits = {call for call in calls if call[0] == "wait"}
    assert waits == {("wait", "load", "compute_done"), ("wait", "store", "compute_done")}


def test_a_design_without_fences_waits_for_nothing() -> None:
    made = engine("vllm-before-46278")
    serve(made, REQUESTS, 12)
    assert not [call for call in made.device.calls if call[0] == "wait"]  # type: ignore[attr-defined]


def test_events_are_given_back() -> None:
    made = engine("vllm-symmetric-barrier")
    serve(made, REQUESTS, 12)
    calls = made.device.calls  # type: ignore[attr-defined]
    fresh = {call[2] for call in calls if call[0] == "record" and "#" in call[2]}
    dropped = {call[1] for call in calls if call[0] == "drop"}
    assert fresh == dropped


# ── what cannot be ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_larger_than_the_pool_is_refused_by_name() -> None:
    made = engine()
    with pytest.raises(EngineError, match=r"request 7 may need \d+ blocks at once and the pool has \d+"):
        made.submit(7, [1] * 4000, 10)
    made.submit(7, [1] * 40, 10)
    with pytest.raises(EngineError, match="request 7 is being served"):
        made.submit(7, [1] * 40, 10)
    with pytest.raises(EngineError, match="at least one"):
        made.submit(8, [], 10)


def test_a_design_that_the_engine_cannot_run_says_why() -> None:
    p = Protocol("bare")
    compute = p.stream("compute")
    step_done = p.event("step_done", per="step")
    b = p.block(owner="none | running")
    p.free(b.owner.none)
    with p.step():
        compute.forward(writes=b.running, signals=step_done)
    with p.scheduler() as may:
        may("get one", when=b.owner.none, then=b.running)
        may("request finished", when=b.running, then=b.owner.none)
    with pytest.raises(DesignError, match="no rule gives a request a block; name it 'allocate'"):
        gpu(p.design())


def test_the_other_pools_take_the_default_designs() -> None:
    assert [one and one.name for one in designs_for(None)] == ["kvsan-default", "host-blocks", None]
    assert [one and one.name for one in designs_for(load("lmcache-staging"))][2] == "lmcache-staging"
    assert [one and one.name for one in designs_for(load("host-blocks"))][:2] == ["kvsan-default", "host-blocks"]
