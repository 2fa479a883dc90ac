"""The rules: each rule's own counter-example, and four readings of a past that must agree."""

from __future__ import annotations

import pytest

from kvsan.checker.trace import from_objects
from kvsan.model import (
    Access,
    Agent,
    Bits,
    Blocks,
    Drop,
    Edges,
    Element,
    Epochs,
    Get,
    OneBit,
    Op,
    Order,
    Poll,
    Put,
    Record,
    Stream,
    Sync,
    Wait,
)
from random_traces import random_trace

B = {"gpu": Blocks.of([1])}
STREAMS = {
    "s": Stream(),
    "t": Stream(),
    "far": Stream(device=1),
    "legacy": Stream(kind="legacy"),
    "blocking": Stream(kind="blocking"),
    "per-thread": Stream(kind="per-thread"),
}


def ordered(*ops: Op) -> bool:
    """Whether the last access (its write, if it has one) is ordered behind the first access."""
    bits = Bits()
    order = Order(bits, STREAMS)
    first, *_, last = [issued for number, op in enumerate(ops) if (issued := order.issue(number, op)) is not None]
    write = isinstance(ops[-1], Access) and bool(ops[-1].writes)
    return bits.knows(last.writes if write else last.reads, first.write)


def w(on: str | None, by: str = "h") -> Access:
    return Access(by, on, writes=B)


def r(on: str | None, by: str = "h", order: str = "stream") -> Access:
    return Access(by, on, reads=B, order=order)  # type: ignore[arg-type]


E, T = "e", "token"
RACY: dict[str, tuple[Op, ...]] = {
    "two streams": (w("s"), w("t")),
    "another thread learns nothing of a sync": (w("s"), Record("h", "s", E), Sync("h", event=E), w("t", by="g")),
    "issuing teaches the host nothing": (w("s"), w("t")),
    "any reads the source out of stream order": (w("s"), r("s", order="any")),
    "call reads the source out of stream order": (w("s"), r("s", order="call")),
    "any is not held back by a wait of its stream": (
        w("s"),
        Record("h", "s", E),
        Wait("h", "t", E),
        r("t", order="any"),
    ),
    "host after an asynchronous copy": (w("s"), w(None)),
    "work after the record": (Record("h", "s", E), w("s"), Wait("h", "t", E), w("t")),
    "wait before the record": (w("s"), Wait("h", "t", E), Record("h", "s", E), w("t")),
    "re-recorded elsewhere before the wait": (
        w("s"),
        Record("h", "s", E),
        Record("h", "t", E),
        Wait("h", "far", E),
        w("far"),
    ),
    "false poll": (w("s"), Record("h", "s", E), Poll("h", E, done=False), w("t")),
    "sync of the other device": (w("s"), Sync("h", device=1), w("t")),
    "learnt after the put": (
        w("s"),
        Record("h", "s", E),
        Put("h", T),
        Sync("h", event=E),
        Get("g", T),
        w("t", by="g"),
    ),
    "dropped before the wait": (w("s"), Record("h", "s", E), Drop("h", E), Wait("h", "t", E), w("t")),
    "legacy and a non-blocking stream": (w("legacy"), w("s")),
    "a record on the legacy stream is no barrier": (
        w("blocking"),
        Record("h", "legacy", E),
        Wait("h", "s", E),
        w("s"),
    ),
}
ORDERED: dict[str, tuple[Op, ...]] = {
    "one stream": (w("s"), w("s")),
    "one stream, two threads": (w("s"), w("s", by="g")),
    "event": (w("s"), Record("h", "s", E), Wait("h", "t", E), w("t")),
    "event across devices": (w("s"), Record("h", "s", E), Wait("h", "far", E), w("far")),
    "wait binds to the record before a later one": (
        w("s"),
        Record("h", "s", E),
        Wait("h", "t", E),
        Record("h", "far", E),
        w("t"),
    ),
    "later record on the same stream covers more": (
        w("s"),
        Record("h", "s", E),
        Record("h", "s", E),
        Wait("h", "t", E),
        w("t"),
    ),
    "sync": (w("s"), Record("h", "s", E), Sync("h", event=E), w("t")),
    "poll": (w("s"), Record("h", "s", E), Poll("h", E, done=True), w("t")),
    "sync of the stream": (w("s"), Sync("h", stream="s"), w("t")),
    "sync of the device": (w("s"), Sync("h", device=0), w("t")),
    "any after the host saw it done": (w("s"), Sync("h", stream="s"), r("t", order="any")),
    "call after the host saw it done": (w("s"), Sync("h", stream="s"), r("t", order="call")),
    "hand-off": (w("s"), Sync("h", stream="s"), Put("h", T), Get("g", T), w("t", by="g")),
    "host to host": (w(None), Put("h", T), Get("g", T), w(None, by="g")),
    "host to its own launch": (w(None), w("s")),
    "edge stays after drop": (w("s"), Record("h", "s", E), Wait("h", "t", E), Drop("h", E), w("t")),
    "legacy after blocking": (w("blocking"), w("legacy")),
    "blocking after legacy": (w("legacy"), w("blocking")),
    "per-thread after legacy": (w("legacy"), w("per-thread")),
    "blocking through legacy to per-thread": (w("blocking"), Access("h", "legacy"), w("per-thread")),
    "a wait on the legacy stream is a barrier": (w("blocking"), Wait("h", "legacy", "never"), w("per-thread")),
}


@pytest.mark.parametrize("name", RACY)
def test_no_order(name: str) -> None:
    assert not ordered(*RACY[name])


@pytest.mark.parametrize("name", ORDERED)
def test_order(name: str) -> None:
    assert ordered(*ORDERED[name])


def test_a_call_read_is_the_hosts_own_and_complete_when_the_call_returns() -> None:
    bits = Bits()
    order = Order(bits, STREAMS)
    copied = order.issue(0, Access("h", "s", reads=B, order="call"))
    rewritten = order.issue(1, w(None))
    assert copied is not None
    assert rewritten is not None
    assert copied.read.agent == Agent("h", is_host=True)
    assert bits.knows(rewritten.writes, copied.read)
    assert not bits.knows(rewritten.writes, copied.write)


def test_events_have_generations() -> None:
    order = Order(Bits(), STREAMS)
    for number in range(3):
        order.issue(number, Record("h", "s", E))
    assert order.events[E].generation == 3
    order.issue(3, Drop("h", E))
    order.issue(4, Record("h", "t", E))
    assert (order.events[E].generation, order.events[E].on) == (1, "t")


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_the_four_readings_agree(start: int) -> None:
    for seed in range(start, start + 100):
        _readings_agree(seed)


def _readings_agree(seed: int) -> None:
    header, objects = random_trace(seed)
    trace = from_objects(header, objects)
    ops = list(trace)
    bits, epochs, edges = Bits(), Epochs(), Edges()
    by_bits = Order(bits, trace.header.streams)
    by_epochs = Order(epochs, trace.header.streams)
    by_edges = Order(edges, trace.header.streams)
    elements: list[Element] = []
    seen = []
    for number, op in enumerate(ops):
        one, two, three = (
            by_bits.issue(number, op),
            by_epochs.issue(number, op),
            by_edges.issue(number, op),
        )
        if one is None or two is None or three is None:
            continue
        for element in elements:
            for a, b, c in ((one.reads, two.reads, three.reads), (one.writes, two.writes, three.writes)):
                known = bits.knows(a, element)
                assert known == epochs.knows(b, element), f"seed {seed}: epochs at op {number}"
                assert known == edges.knows(c, element), f"seed {seed}: edges at op {number}"
        elements += dict.fromkeys((one.read, one.write))
        seen.append((number, one))
    for element in elements[:: max(1, len(elements) // 4)]:
        single = OneBit(element)
        by_bit = Order(single, trace.header.streams)
        issued = {number: by_bit.issue(number, op) for number, op in enumerate(ops)}
        for number, one in seen:
            bit = issued[number]
            assert bit is not None
            assert single.knows(bit.writes, element) == bits.knows(one.writes, element), (
                f"seed {seed}: bit at op {number}"
            )
            assert single.knows(bit.reads, element) == bits.knows(one.reads, element), (
                f"seed {seed}: bit at op {number}"
            )
