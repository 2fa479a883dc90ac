"""`clocks.py` inlines the rules of `order.py` over numpy: after every op both know the same of every agent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from kvsan.checker.clocks import Clocks, Effect
from kvsan.checker.online import Online
from kvsan.checker.trace import from_objects
from kvsan.model import Access, Agent, Epochs, Op, Order, Record, Stream, Sync, Wait
from random_traces import random_trace
from trace_strategies import traces


def same_after_every_op(header: dict[str, Any], objects: list[dict[str, Any]], *, assume: bool) -> None:
    trace = from_objects(header, objects)
    ops = list(trace)
    online = Online(trace.header.pools, trace.header.streams, assume_stream_order=assume)
    epochs = Epochs()
    order = Order(epochs, trace.header.streams, assume_stream_order=assume)
    for number, op in enumerate(ops):
        online.feed(number, op)
        order.issue(number, op)
        for agent in online.clocks.agents:
            ours = online.clocks.past_of(agent)
            theirs = {other: epochs.epoch(order.past(agent), other) for other in epochs.agents}
            assert ours == {other: epoch for other, epoch in theirs.items() if epoch}, (
                f"{agent} after op {number}: {op}"
            )


@pytest.mark.parametrize("start", range(0, 600, 100))
def test_seeded(start: int) -> None:
    for seed in range(start, start + 100):
        header, objects = random_trace(seed)
        same_after_every_op(header, objects, assume=bool(seed % 2))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_any(trace: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    same_after_every_op(*trace, assume=False)


def test_vectors_grow_with_the_agents() -> None:
    """More agents than the first width, met one by one, with events and barriers from when vectors were narrower."""
    streams = {"legacy": Stream(kind="legacy"), "b0": Stream(kind="blocking")}
    clocks, epochs = Clocks(streams), Epochs()
    order = Order(epochs, streams)
    ops: list[Op] = [Access("h", "legacy"), Record("h", "legacy", "early")]
    for number in range(100):
        ops += [Access(f"t{number}", f"s{number}"), Record(f"t{number}", f"s{number}", f"e{number}")]
    ops += [Wait("h", "s99", f"e{number}") for number in range(100)]
    ops += [Wait("h", "s0", "early"), Access("h", "b0"), Sync("h", event="e50")]
    for number, op in enumerate(ops):
        order.issue(number, op)
        match op:
            case Access():
                clocks.access(number + 1, op)
            case Record():
                clocks.record(number, op.by, op.on, op.event)
            case Wait():
                clocks.wait(op.by, op.on, op.event)
            case Sync(event=str() as event):
                clocks.observe_event(op.by, event)
    assert len(clocks.agents) > 64
    for agent in (Agent("s99"), Agent("s0"), Agent("b0"), Agent("h", is_host=True)):
        theirs = {other: epochs.epoch(order.past(agent), other) for other in epochs.agents}
        assert clocks.past_of(agent) == {other: epoch for other, epoch in theirs.items() if epoch}


def test_a_wait_says_what_it_did() -> None:
    clocks = Clocks()
    assert clocks.wait("h", "t", "e") is Effect.UNRECORDED
    clocks.access(1, Access("h", "s"))
    clocks.record(1, "h", "s", "e")
    assert clocks.wait("h", "s", "e") is Effect.OWN_STREAM
    assert clocks.wait("h", "t", "e") is Effect.ORDERED
    assert clocks.wait("h", "t", "e") is Effect.REDUNDANT


def test_epochs_do_not_overflow_beside_a_lane() -> None:
    """64-bit epochs: a checker that counts in 16 bits fails after 65,536 barriers (a known bug of a peer)."""
    online = Online({"gpu": 4}, {"s": Stream(), "t": Stream()})
    blocks = from_objects(
        {"kvsan_trace": 1, "pools": {"gpu": 4}},
        [{"op": "access", "by": "h", "on": s, "label": s, "writes": {"gpu": "1"}} for s in ("s", "t")],
    )
    far = (1 << 47) - 5
    first, second = blocks
    assert online.feed(far, first) == []
    (hazard,) = online.feed(far + 1, second)
    assert (hazard.earlier.op, hazard.later.op) == (far, far + 1)
