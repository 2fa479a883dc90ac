"""Simulated streams and events: the names, errors and answers of torch.cuda, and no answer that no device gives."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsan.checker.testing.cuda import PATIENCE, STREAMS_PER_POOL, SimulatedCuda
from kvsan.checker.testing.timeline import Timeline

# ── the timeline ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_runs_in_order() -> None:
    line = Timeline()
    first, second = line.record("s"), line.record("s")
    assert not line.must_be_done(first)
    line.finish(second)
    assert line.must_be_done(first)


def test_what_waits_runs_after_what_it_waits_for() -> None:
    line = Timeline()
    done = line.record("a")
    line.wait("b", done)
    line.finish(line.record("b"))
    assert line.must_be_done(done)


def test_other_streams_are_not_done() -> None:
    line = Timeline()
    line.finish(line.record("a"))
    assert not line.must_be_done(line.record("b"))


_CALLS = st.lists(
    st.tuples(
        st.sampled_from(["record", "wait", "query", "sync", "stream query"]), st.integers(0, 2), st.integers(0, 3)
    ),
    max_size=40,
)


@settings(deadline=None)
@given(_CALLS, st.integers(0, 1000))
def test_answers_are_those_of_some_device(calls: list[tuple[str, int, int]], seed: int) -> None:
    """Played against a device that is told when to finish each item: the earliest moment that the answers leave."""
    cuda = SimulatedCuda(seed)
    streams, events = [cuda.Stream() for _ in range(3)], [cuda.Event() for _ in range(4)]
    before: dict[int, set[int]] = {}  # item → the items that finish before it, itself too
    last: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    captured: dict[int, set[int]] = {}
    known: set[int] = set()
    for what, on, which in calls:
        event = events[which]
        if what == "record":
            event.record(streams[on])
            item = len(before)
            before[item] = last[on] | {item}
            last[on], captured[which] = before[item], before[item]
        elif what == "wait":
            event.wait(streams[on])
            if which in captured:  # else there is nothing to wait for, and no call
                item = len(before)
                before[item] = last[on] | captured[which] | {item}
                last[on] = before[item]
        elif what == "sync":
            event.synchronize()
            known |= captured.get(which, set())
        else:
            asked = last[on] if what == "stream query" else captured.get(which, set())
            done = streams[on].query() if what == "stream query" else event.query()
            assert done or asked - known, "it says `not yet` of what is known to be done"
            known |= asked if done else set()


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def cuda_never_done(**given: Any) -> SimulatedCuda:
    return SimulatedCuda(choose=lambda: False, **given)


def test_an_event_never_recorded_is_done_and_orders_nothing() -> None:
    cuda = cuda_never_done()
    event = cuda.Event()
    assert event.query()
    event.wait()
    event.synchronize()
    assert "uninitialized" in repr(event)


def test_a_recorded_event_may_be_running_until_something_says_it_is_not() -> None:
    cuda = cuda_never_done()
    event = cuda.current_stream().record_event()
    assert not event.query()
    event.synchronize()
    assert event.query()


def test_recorded_again_it_may_run_again() -> None:
    cuda = cuda_never_done()
    event = cuda.Event()
    event.record()
    event.synchronize()
    event.record()
    assert not event.query()


@pytest.mark.parametrize("how", ["stream", "device", "other stream"])
def test_blocking_calls_finish_what_they_wait_for(how: str) -> None:
    cuda = cuda_never_done()
    side, other = cuda.Stream(), cuda.Stream()
    event = side.record_event()
    other.wait_event(event)
    if how == "stream":
        side.synchronize()
    elif how == "device":
        cuda.synchronize()
    else:
        other.synchronize()
    assert event.query()


def test_a_stream_that_was_not_synchronized_may_be_running() -> None:
    cuda = cuda_never_done()
    side, other = cuda.Stream(), cuda.Stream()
    event = side.record_event()
    other.synchronize()
    assert not event.query()
    assert not side.query()


def test_a_loop_that_polls_ends() -> None:
    cuda = cuda_never_done()
    event = cuda.current_stream().record_event()
    asked = 0
    while not event.query():
        asked += 1
    assert asked == PATIENCE


def test_the_seed_decides_and_choices_give_it_again() -> None:
    def answers(cuda: SimulatedCuda) -> list[bool]:
        return [cuda.Stream().record_event().query() for _ in range(12)]

    one = SimulatedCuda(3)
    first = answers(one)
    assert first == answers(SimulatedCuda(3)) == answers(SimulatedCuda(9, choices=one.choices))
    assert len({tuple(answers(SimulatedCuda(seed))) for seed in range(8)}) > 1


def test_choices_that_are_none() -> None:
    with pytest.raises(ValueError, match="accepted: 0"):
        SimulatedCuda(choices="01x")


def test_elapsed_time_has_the_errors_of_torch() -> None:
    cuda = cuda_never_done()
    plain, start, end = cuda.Event(), cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(plain)
    start.record()
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    end.record()
    with pytest.raises(RuntimeError, match="must be completed"):
        start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) > 0


def test_an_event_belongs_to_one_device() -> None:
    cuda = SimulatedCuda(devices=2)
    event = cuda.Event()
    event.record(cuda.Stream(device=0))
    event.wait(cuda.Stream(device=1))  # that is allowed
    with pytest.raises(RuntimeError, match="Event device 0 does not match recording stream's device 1"):
        event.record(cuda.Stream(device=1))


# ── streams ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_current_streams_are_a_threads_own() -> None:
    cuda = SimulatedCuda()
    side, found = cuda.Stream(), []
    with cuda.stream(side):
        assert cuda.current_stream() == side
        thread = threading.Thread(target=lambda: found.append(cuda.current_stream()))
        thread.start()
        thread.join()
        with cuda.stream(None):
            assert cuda.current_stream() == side
        with cuda.Stream() as inner:
            assert cuda.current_stream() == inner
    assert cuda.current_stream() == cuda.default_stream() == found[0]


def test_a_stream_brings_its_device() -> None:
    cuda = SimulatedCuda(devices=2)
    with cuda.stream(cuda.Stream(device="cuda:1")):
        assert cuda.current_device() == 1
    assert cuda.current_device() == 0
    with cuda.device(1):
        assert cuda.current_stream().device_index == 1


def test_streams_of_a_pool_come_round() -> None:
    cuda = SimulatedCuda()
    made = [cuda.Stream() for _ in range(STREAMS_PER_POOL + 1)]
    assert made[0] == made[-1]
    assert len(set(made)) == STREAMS_PER_POOL
    assert cuda.Stream(priority=-1) not in made


@pytest.mark.parametrize(("device", "error"), [(3, "invalid device ordinal"), ("cpu", "Expected a cuda device")])
def test_devices_that_are_not_there(device: Any, error: str) -> None:
    with pytest.raises((RuntimeError, ValueError), match=error):
        SimulatedCuda(devices=2).Stream(device=device)


def test_a_failing_driver() -> None:
    cuda = SimulatedCuda()
    event = cuda.Event()
    event.record()
    cuda.fails = RuntimeError("CUDA error: an illegal memory access was encountered")
    for call in (event.record, event.query, event.synchronize, event.wait, cuda.synchronize, cuda.Stream):
        with pytest.raises(RuntimeError, match="illegal memory access"):
            call()
