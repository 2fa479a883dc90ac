"""The engine through everything that goes wrong: pools run out, copies are refused, forwards raise, users go away.

A state machine drives one engine on a simulated device; after each step of it the pools' invariants hold, and at the
end every request that nobody aborted has its right answer and every block is free again.
"""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

pytest.importorskip("torch")

from kvsan.checker.conform import conform_ops
from kvsan.checker.serving.lines import Lines
from kvsan.model.designs import load
from kvsan.model.ops import Access
from kvsan.runtime.device import Kernel
from kvsan.runtime.device.policy import POLICIES, starve
from kvsan.runtime.device.simulated import Call, Simulated
from kvsan.runtime.engine import Engine, Sizes, StuckError
from kvsan.runtime.forward import Batch, Forward
from kvsan.runtime.language import Group, Model, answer
from kvsan.runtime.requests import Completion
from kvsan.runtime.scheduler import EngineError
from kvsan.runtime.tracing import Traced

MODEL = Model(groups=(Group("full"), Group("window", 6)), layers=1, block_size=4, stop_every=9)
SAFE = ("kvsan-default", "vllm-symmetric-barrier", "copier-symmetric", "vllm-offloading-connector", "layer-wise")
POLICY = (*POLICIES.values(), starve("compute"), starve("load", "store"))


class Broken(Forward):
    """A forward that raises as often as it is told to, but never more than `patience` times in a row."""

    raises, in_a_row, patience = 0, 0, 2

    def __call__(self, batch: Batch, out: object, step: int | None = None) -> Kernel:
        if self.raises and self.in_a_row < self.patience:
            self.raises -= 1
            self.in_a_row += 1
            raise RuntimeError("out of memory")
        self.in_a_row = 0
        return super().__call__(batch, out, step)


class Faults(RuleBasedStateMachine):
    """One engine, badly treated."""

    @initialize(
        name=st.sampled_from(SAFE),
        policy=st.sampled_from(POLICY),
        seed=st.integers(0, 1000),
        gpu=st.integers(12, 24),
        host=st.integers(1, 24),
        run_ahead=st.integers(0, 2),
        lazy=st.booleans(),
    )
    def begin(self, name: str, policy: object, seed: int, gpu: int, host: int, run_ahead: int, lazy: bool) -> None:
        self.refusals = self.in_a_row = 0
        device = Simulated(seed=seed, policy=policy, fail=self.refuse)  # type: ignore[arg-type]
        sizes = Sizes(gpu, host, slots=3, budget=12)
        self.engine = Engine(load(name), device, MODEL, sizes, run_ahead=run_ahead, lazy=lazy, forward=Broken)
        self.wanted: dict[int, tuple[list[int], int]] = {}
        self.done: dict[int, Completion] = {}

    def refuse(self, call: Call) -> bool:
        if call.kind != "copy":
            return False
        refused = self.refusals > 0 and self.in_a_row < 2
        self.refusals -= refused
        self.in_a_row = self.in_a_row + 1 if refused else 0
        return refused

    def took(self, completions: list[Completion]) -> None:
        for completion in completions:
            assert completion.number not in self.done, "a request ended twice"
            self.done[completion.number] = completion

    @rule(head=st.sampled_from([1, 2]), shared=st.integers(0, 3), tail=st.integers(1, 5), new=st.integers(1, 8))
    def submit(self, head: int, shared: int, tail: int, new: int) -> None:
        number = len(self.wanted)
        prompt = [head] * (4 * shared) + [100 + number] * tail
        self.wanted[number] = (prompt, new)
        self.engine.submit(number, prompt, new)

    @rule(prompt=st.integers(60, 200))
    def submit_what_never_fits(self, prompt: int) -> None:
        with pytest.raises(EngineError, match="the pool has"):
            self.engine.submit(10_000, [1] * prompt, 4)

    @rule(count=st.integers(1, 6))
    def turn(self, count: int) -> None:
        for _ in range(count):
            self.took(self.engine.turn())

    @rule(pick=st.integers(0, 20))
    def abort(self, pick: int) -> None:
        going = [number for number in self.wanted if number not in self.done]
        if going and (gone := self.engine.abort(going[pick % len(going)])) is not None:
            self.took([gone])

    @rule(count=st.integers(1, 2))
    def refuse_copies(self, count: int) -> None:
        self.refusals = count

    @rule()
    def a_forward_raises(self) -> None:
        self.engine.kernels.raises = 1  # type: ignore[attr-defined]

    @invariant()
    def pools_hold(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.refusals = 0
        self.took(self.engine.drain())
        self.engine.check()
        assert sorted(self.done) == sorted(self.wanted), "a request was lost"
        for number, (prompt, new) in self.wanted.items():
            right, got = answer(MODEL, prompt, new), self.done[number]
            assert list(got.tokens) == (right[: len(got.tokens)] if got.why == "aborted" else right)
        assert len(self.engine.pool.queue) == len(self.engine.pool), "a block did not come back"
        self.engine.close()


Faults.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestFaults = Faults.TestCase


# ── one at a time ─────────────────────────────────────────────────────────────────────────────────────────────────────


def small(name: str = "kvsan-default", host: int = 8, **options: object) -> Engine:
    device = Simulated(seed=1, **{key: options.pop(key) for key in ("fail",) if key in options})  # type: ignore[arg-type]
    return Engine(load(name), device, MODEL, Sizes(16, host, slots=2, budget=16), **options)  # type: ignore[arg-type]


def test_a_device_that_always_refuses_is_given_up_with_its_words() -> None:
    made = small(fail=lambda call: call.kind == "copy")
    made.submit(0, [1] * 9, 6)
    with pytest.raises(EngineError, match="refused a copy 3 times in a row"):
        made.drain()
    made.check()


def test_a_forward_that_always_raises_is_given_up_with_its_words() -> None:
    made = small(forward=Broken)
    made.kernels.raises = made.kernels.patience = 99  # type: ignore[attr-defined]
    made.submit(0, [1] * 9, 6)
    with pytest.raises(EngineError, match="a step failed 3 times in a row: out of memory"):
        made.drain()
    made.check()


def test_a_full_host_pool_stops_stores_and_nothing_else() -> None:
    device = Simulated(seed=1)
    made = Engine(load("kvsan-default"), device, MODEL, Sizes(16, 1, slots=2, budget=16))
    for number in range(4):
        made.submit(number, [number + 1] * 12, 6)
    assert len(made.drain()) == 4
    assert made.transfers.host_full > 0
    made.check()


def test_a_design_without_progress_is_stuck_and_says_so() -> None:
    """The free waits for a step that nobody launches: its proof says so too (`stuck_closed`)."""
    made = small("fence-on-next-step", caching=False)
    made.submit(0, [1] * 24, 2)
    made.drain_requests()
    made.submit(1, [2] * 24, 2)
    with pytest.raises(StuckError, match="by fence-on-next-step no other will come back"):
        made.drain()


def test_the_same_with_a_fence_that_comes_is_not() -> None:
    made = small("vllm-after-47653", caching=False)
    made.submit(0, [1] * 24, 2)
    made.drain_requests()
    made.submit(1, [2] * 24, 2)
    made.drain()
    assert len(made.pool.queue) == len(made.pool)


def test_aborting_in_mid_load_leaves_nothing_behind() -> None:
    made = small(host=32)
    shared = list(range(1, 9))
    made.submit(0, [*shared, 5], 2)
    made.drain()
    made.submit(1, np.arange(50, 76).tolist(), 2)  # takes the device's blocks
    made.drain()
    made.submit(2, [*shared, 6], 2)
    while made.progress(2) < 0:
        made.turn()
    assert made.scheduler.loading, "it is not being loaded"
    gone = made.abort(2)
    assert gone is not None
    assert gone.why == "aborted"
    made.drain()
    made.check()
    assert len(made.pool.queue) == len(made.pool)


@pytest.mark.parametrize(("name", "verdict"), [("layer-wise", "refused"), ("kvsan-default", "conforms")])
def test_given_up_before_any_forward_wrote_its_blocks(name: str, verdict: str) -> None:
    """A known limit: the step failed and the request is aborted. `layer-wise` has no other way out for its blocks than
    to be stored, so they are, and that is no run of the design; where they may just leave nothing is wrong.
    """
    device = Simulated(seed=1, observe=True)
    lines = Lines(device)
    made = Engine(
        load(name), Traced(device, lines), MODEL, Sizes(16, 8, slots=2, budget=16), forward=Broken, caching=False
    )
    made.submit(0, [1] * 9, 6)
    made.drain()
    made.kernels.raises = 1  # type: ignore[attr-defined]
    made.submit(1, [2] * 9, 6)
    made.turn()
    made.abort(1)
    made.submit(2, [3] * 9, 6)
    made.drain()
    made.check()
    assert len(made.pool.queue) == len(made.pool)
    found = conform_ops(lines.header, lines.ops, load(name))
    assert found.verdict == verdict, found.text()
    assert verdict == "conforms" or "expected a block with store=dirty & data=full" in found.text()


@pytest.mark.parametrize("host", [1, 2, 5, 40])
def test_where_the_design_stores_in_the_step_a_full_host_pool_is_waited_for(host: int) -> None:
    """Of as many blocks at a time as there is room for: no full block is left for a later step."""
    device = Simulated(seed=1, observe=True)
    lines = Lines(device)
    made = Engine(load("layer-wise"), Traced(device, lines), MODEL, Sizes(16, host, slots=2, budget=16))
    wanted = {number: ([number + 1] * 13, 6) for number in range(4)}
    for number, (prompt, new) in wanted.items():
        made.submit(number, prompt, new)
    for done in made.drain():
        assert list(done.tokens) == answer(MODEL, *wanted[done.number])
    made.check()
    found = conform_ops(lines.header, lines.ops, load("layer-wise"))
    assert found.verdict == "conforms", found.text()
    assert made.transfers.host_full == 0
    stores = [op.step for op in lines.ops if isinstance(op, Access) and op.label == "store"]
    assert (len(stores) > len(set(stores))) == (host < 40)
