"""Small host programs for a device: run on a simulated machine, and told to the happens-before rules.

A program is a list of calls. What the rules (`kvsan.model.order`) leave unordered is what the machine may turn round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from kvsan.model.ops import Access, Blocks, Drop, Get, Op, Poll, Put, Record, Source, Sync, Wait
from kvsan.model.order import Order
from kvsan.model.pasts import Bits
from kvsan.runtime.device import Copy, Ids, Kernel
from kvsan.runtime.device.simulated import Simulated
from kvsan.runtime.device.versions import Touch

POOLS = {"gpu": 3, "cpu": 3}
LAYERS = 2
STREAMS = ("s", "t", "u")


@dataclass(frozen=True)
class Call:
    """One call of host thread `by`. `on` is a stream, `name` an event or a token."""

    what: str
    by: str = "h"
    on: str = ""
    name: str = ""
    reads: tuple[str, tuple[int, ...]] = ("gpu", ())
    writes: tuple[str, tuple[int, ...]] = ("gpu", ())
    order: Source = "stream"
    parts: int = 1


def record(on: str, name: str = "e", by: str = "h") -> Call:
    return Call("record", by, on, name)


def wait(on: str, name: str = "e", by: str = "h") -> Call:
    return Call("wait", by, on, name)


def sync(name: str = "e", by: str = "h") -> Call:
    return Call("sync", by, name=name)


def query(name: str = "e", by: str = "h") -> Call:
    return Call("query", by, name=name)


def kernel(on: str, *, reads: Iterable[int] = (), writes: Iterable[int] = (), parts: int = 1, by: str = "h") -> Call:
    """A kernel on blocks of the GPU's pool."""
    return Call("kernel", by, on, "", ("gpu", tuple(reads)), ("gpu", tuple(writes)), parts=parts)


def work(*, reads: Iterable[int] = (), writes: Iterable[int] = (), by: str = "h") -> Call:
    """The host touches blocks of its pool."""
    return Call("work", by, "", "", ("cpu", tuple(reads)), ("cpu", tuple(writes)))


def store(on: str, blocks: Iterable[int], order: Source = "stream", by: str = "h") -> Call:
    """From the GPU's pool to the same blocks of the host's."""
    return Call("copy", by, on, "", ("gpu", tuple(blocks)), ("cpu", tuple(blocks)), order)


def load(on: str, blocks: Iterable[int], order: Source = "stream", by: str = "h") -> Call:
    """From the host's pool to the same blocks of the GPU's."""
    return Call("copy", by, on, "", ("cpu", tuple(blocks)), ("gpu", tuple(blocks)), order)


def run(program: Sequence[Call], device: Simulated) -> list[Op]:
    """Issues the program, and returns it as a trace. Ends with `close`."""
    for pool, blocks in POOLS.items():
        device.memory(pool, (LAYERS, blocks, 2), host=pool == "cpu")
    for name in STREAMS:
        device.stream(name, side=name != "s")
    trace = [_issue(device, call) for call in program]
    device.close()
    return trace


def _issue(device: Simulated, call: Call) -> Op:
    host, by = device.host(call.by), call.by
    match call.what:
        case "record":
            host.record(call.on, call.name)
            return Record(by, call.on, call.name)
        case "wait":
            host.wait(call.on, call.name)
            return Wait(by, call.on, call.name)
        case "sync":
            host.sync(call.name)
            return Sync(by, call.name)
        case "query":
            return Poll(by, call.name, host.query(call.name))
        case "drop":
            host.drop(call.name)
            return Drop(by, call.name)
        case "put":
            host.put("q", call.name)
            return Put(by, call.name)
        case "get":
            host.get("q")
            return Get(by, call.name)
        case "copy":
            pool, ids = call.reads
            target, to = call.writes
            host.copy(call.on, Copy("copy", pool, _ids(ids), target, _ids(to), call.order))
        case _:
            reads, writes = ({pool: _ids(ids)} if ids else {} for pool, ids in (call.reads, call.writes))
            body = Kernel("kernel", reads, writes, [lambda: None] * call.parts)
            if call.what == "work":
                host.work(body)
            else:
                host.launch(call.on, body)
    read, written = ({pool: Blocks.of(ids)} if ids else {} for pool, ids in (call.reads, call.writes))
    return Access(by, call.on or None, read, written, order=call.order, batch=call.what == "copy")


def _ids(blocks: Iterable[int]) -> Ids:
    return np.array(list(blocks), np.int64)


# ── what the rules say, and what ran ──────────────────────────────────────────────────────────────────────────────


class Side(NamedTuple):
    """The reads or the writes of an op, by its number among the accesses."""

    op: int
    write: bool


@dataclass(frozen=True)
class Rules:
    """`before`: the pairs that are ordered. `touches`: the blocks of each side."""

    before: frozenset[tuple[Side, Side]]
    touches: dict[Side, frozenset[tuple[str, int]]]

    @property
    def unordered(self) -> list[tuple[Side, Side]]:
        """The conflicting pairs that are not ordered, the earlier one first."""
        return [
            (a, b)
            for a, mine in self.touches.items()
            for b, other in self.touches.items()
            if a.op < b.op and (a.write or b.write) and mine & other and (a, b) not in self.before
        ]


def rules(trace: Sequence[Op]) -> Rules:
    """Reads the trace with the happens-before rules."""
    bits = Bits()
    order = Order(bits)
    sides: list[tuple[Side, int, int]] = []  # what it is checked against, and what it becomes
    before: set[tuple[Side, Side]] = set()
    touches: dict[Side, frozenset[tuple[str, int]]] = {}
    number = 0
    for line, op in enumerate(trace):
        issued = order.issue(line, op)
        if not isinstance(op, Access):
            continue
        assert issued is not None
        new = []
        for write, past, element in ((False, issued.reads, issued.read), (True, issued.writes, issued.write)):
            side = Side(number, write)
            blocks = op.writes if write else op.reads
            touches[side] = frozenset((pool, block) for pool, ids in blocks.items() for block in ids)
            before |= {(other, side) for other, _, bit in sides if past & bit}
            new.append((side, past, bits.bit(element)))
        sides += new
        number += 1
    return Rules(frozenset(before), touches)


def spans(log: Sequence[Touch]) -> dict[tuple[Side, str, int], tuple[int, int]]:
    """The first and last place in the log at which each side touched each block."""
    out: dict[tuple[Side, str, int], tuple[int, int]] = {}
    for at, touch in enumerate(log):
        for block in touch.blocks.tolist():
            key = Side(touch.op.number, touch.write), touch.pool, block
            out[key] = out.get(key, (at, at))[0], at
    return out


def breach(log: Sequence[Touch], said: Rules) -> str | None:
    """Where the log is against the rules, or lacks something."""
    ran = spans(log)
    for side, blocks in said.touches.items():
        if any((side, pool, block) not in ran for pool, block in blocks):
            return f"{side} did not touch all of {sorted(blocks)}"
    whole: dict[Side, tuple[int, int]] = {}
    for (side, _, _), (first, last) in ran.items():
        old = whole.get(side, (first, last))
        whole[side] = min(first, old[0]), max(last, old[1])
    for a, b in said.before:
        if a in whole and b in whole and whole[a][1] >= whole[b][0]:
            return f"{a} is ordered before {b}, and ran at {whole[a]}, the other at {whole[b]}"
    return None


def seen_orders(log: Sequence[Touch], pairs: Iterable[tuple[Side, Side]], said: Rules) -> set[tuple[Side, Side]]:
    """Of each pair, the orders that this run showed for some common block: (a, b) if a was complete before b began."""
    ran = spans(log)
    out = set()
    for a, b in pairs:
        for pool, block in said.touches[a] & said.touches[b]:
            mine, other = ran[a, pool, block], ran[b, pool, block]
            if mine[1] < other[0]:
                out.add((a, b))
            if other[1] < mine[0]:
                out.add((b, a))
    return out


# ── strategies ────────────────────────────────────────────────────────────────────────────────────────────────────


def programs(
    *, hosts: Sequence[str] = ("h", "g"), polls: bool = True, streams: Sequence[str] = STREAMS, length: int = 14
) -> st.SearchStrategy[list[Call]]:
    """Programs of up to `length` calls. A token is put before it is taken, once."""
    by, on, name = st.sampled_from(hosts), st.sampled_from(streams), st.sampled_from(("e", "f"))
    ids = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True).map(tuple)
    order: st.SearchStrategy[Source] = st.sampled_from(("stream", "any", "call"))
    launches = st.one_of(
        st.builds(store, on, ids, order, by),
        st.builds(load, on, ids, order, by),
        st.builds(
            lambda on, r, w, parts, by: kernel(on, reads=r, writes=w, parts=parts, by=by),
            on,
            ids,
            ids,
            st.integers(0, 3),
            by,
        ),
    )
    accesses = st.one_of(launches, launches, st.builds(lambda r, w, by: work(reads=r, writes=w, by=by), ids, ids, by))
    orders: list[st.SearchStrategy[Call]] = [
        st.builds(record, on, name, by),
        st.builds(wait, on, name, by),
        st.builds(sync, name, by),
        st.builds(lambda name, by: Call("drop", by, name=name), name, by),
    ]
    if polls:
        orders.append(st.builds(query, name, by))
    if len(hosts) > 1:
        orders.append(st.builds(lambda by: Call("hand", by), by))
    one = st.one_of(accesses, accesses, *orders).map(lambda call: (call,))
    fenced = st.builds(
        lambda a, b, on, to, name, by: (replace(a, on=on), record(on, name, by), wait(to, name, by), replace(b, on=to)),
        launches,
        launches,
        on,
        on,
        name,
        by,
    )
    calls = st.lists(st.one_of(one, one, one, fenced), min_size=2, max_size=length)
    return calls.map(lambda made: _handed([call for calls in made for call in calls][:length], hosts))


def _handed(calls: Iterable[Call], hosts: Sequence[str]) -> list[Call]:
    out: list[Call] = []
    for number, call in enumerate(calls):
        if call.what != "hand":
            out.append(call)
            continue
        other = hosts[1 - hosts.index(call.by)]
        out += [Call("put", call.by, name=f"k{number}"), Call("get", other, name=f"k{number}")]
    return out
