"""Seeded random traces: every op, stream kind and source order, legal by construction, about half clean.

A `Builder` turns small integers into ops one at a time; an integer that would give an illegal op gives a
legal one or none, so any sequence of integers is a legal trace (`trace_strategies.py` relies on that).

Random accesses alone would race nearly always. A careful builder therefore looks, before each access, at what
would be unordered and first adds what orders it: a wait on an event already recorded, a new record and wait,
a sync, a poll, a hand-off, whichever the integers choose. Clean traces so need the edges that they have, and
a careless builder's races sit among accesses that are ordered.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from oracle import Block, Graph, Op, blocks, remade

CAREFUL, CUT, TRUSTING, CARELESS, WILD = "careful", "cut", "trusting", "careless", "wild"
STYLES = (*(CAREFUL,) * 5, *(CUT,) * 6, *(TRUSTING,) * 4, *(CARELESS,) * 4, WILD)
"""How a trace is ordered: always; always, less one op (`cut`); always, but as if every source were read in
stream order (`trusting`); most of the time; by chance only."""

ORDERING = ("record", "wait", "sync", "poll", "put", "get")
_OPS = (
    *("access " * 30 + "record " * 8 + "wait " * 6 + "life " * 7).split(),
    *("sync poll put " * 3 + "get get drop").split(),
)
_KINDS = (*("nonblocking",) * 3, *("blocking",) * 2, *("legacy",) * 2, "per-thread")
_ORDERS = (None, None, None, "any", "call", "any", "stream", "call")
_DEVICES: tuple[tuple[int | str, int | str], ...] = ((0, 1), (0, "other"), ("cuda:0", "cuda:1"))
_SHAPES = ("write", "read", "copy", "batch", "copy", "update")
_POOLS = ("gpu", "cpu", "gpu.1")

T = TypeVar("T")


class Dice:
    """A source of small decisions; when it runs out, every further decision is 0 (the simplest)."""

    def __init__(self, source: Iterable[int]) -> None:
        self._source: Iterator[int] = iter(source)

    def pick(self, sides: int) -> int:
        """A number below `sides`."""
        return next(self._source, 0) % sides

    def one(self, options: Sequence[T]) -> T:
        """One of `options`."""
        return options[self.pick(len(options))]


class Loose(NamedTuple):
    """An earlier access that a new one would race with, and who has to learn that it is complete."""

    op: int
    node: int
    by_host: bool  # the new access happens outside its stream's order: only its host thread can order it


def random_header(dice: Dice) -> Op:
    """Two to six streams (most of them declared) on two devices, one to three pools."""
    devices = dice.one(_DEVICES)
    streams: dict[str, Op] = {}
    for number in range(2 + dice.pick(5)):
        facts: Op = {}
        if dice.pick(4) == 3 or devices[0] != 0:
            facts["device"] = devices[dice.pick(4) == 3]
        kind = dice.one(_KINDS)
        if kind != "nonblocking" or dice.pick(2):
            facts["kind"] = kind
        streams[f"s{number}"] = facts
    pools = {pool: 2 + dice.pick(7) for pool in _POOLS[: 1 + dice.pick(3)]}
    header: Op = {"kvsan_trace": 1, "pools": pools, "streams": streams}
    if dice.pick(4) == 3:
        header["start"] = "attached"
    return header


class Builder:
    """Makes a legal trace from small integers, one decision after the other."""

    def __init__(self, header: Op, dice: Dice, style: str) -> None:
        self.header, self.style = header, style
        self.flawless = style in (CAREFUL, CUT)  # no hazard of any kind, before the cut
        self.ops: list[Op] = []
        self.graph = Graph(header)
        self.streams = list(header["streams"])
        if dice.pick(4) == 3:
            self.streams.append("undeclared")
        self.devices: list[int | str] = list(
            dict.fromkeys(header["streams"].get(name, {}).get("device", 0) for name in self.streams)
        )
        self.hosts = [f"h{number}" for number in range(1 + dice.pick(3))]
        self.pools: dict[str, int] = header["pools"]
        self.live: set[Block] = set()
        self.life: dict[Block, list[tuple[int, str]]] = {}
        self.names = 0
        if dice.pick(2):
            for pool, size in self.pools.items():
                self._change("alloc", self.hosts[0], pool, list(range(size)))

    # choices ----------------------------------------------------------------------------------------------

    def _emit(self, op: Op) -> None:
        op = {"t": 10 * len(self.ops), **op}
        self.graph.add(op)
        self.ops.append(op)

    def _fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def _event_to_record(self, dice: Dice) -> str:
        """One of four shared events (recorded again and again), or one for this use only."""
        number = dice.pick(8)
        return f"e{number}" if number < 4 else self._fresh("use")

    def _event_to_read(self, dice: Dice) -> str:
        """Mostly one that is recorded; else perhaps one that never was or was dropped."""
        recorded = list(self.graph.event_at)
        if recorded and dice.pick(6) < 5:
            return recorded[-1 - dice.pick(min(4, len(recorded)))]
        return f"e{dice.pick(4)}"

    def _ids(self, dice: Dice, pool: str) -> list[int]:
        """One to four blocks of a pool, sometimes in two ranges."""
        size = self.pools[pool]
        start = dice.pick(size)
        chosen = {(start + step) % size for step in range(1 + dice.pick(3))}
        if dice.pick(4) == 3:
            chosen.add(dice.pick(size))
        return sorted(chosen)

    # steps ------------------------------------------------------------------------------------------------

    def step(self, dice: Dice) -> None:
        """Add one op, with whatever the style makes it need before it; or none, if it would be illegal."""
        what = dice.one(_OPS)
        by = dice.one(self.hosts)
        if what == "access":
            self._access(by, dice)
        elif what == "record":
            on, event = dice.one(self.streams), self._event_to_record(dice)
            self._emit({"op": what, "by": by, "on": on, "event": event})
        elif what == "wait":
            on, event = dice.one(self.streams), self._event_to_read(dice)
            self._emit({"op": what, "by": by, "on": on, "event": event})
        elif what == "sync":
            number = dice.pick(6)
            target: Op = {"event": self._event_to_read(dice)}
            if number in (3, 4):
                target = {"stream": dice.one(self.streams)}
            elif number == 5:
                target = {"device": dice.one(self.devices)}
            self._emit({"op": what, "by": by, **target})
        elif what == "poll":
            self._emit({"op": what, "by": by, "event": self._event_to_read(dice), "done": dice.pick(2) == 0})
        elif what == "put":
            self._emit({"op": what, "by": by, "token": self._fresh("t")})
        elif what == "get":
            put = list(self.graph.token_at)
            if self.header.get("start") == "attached" and dice.pick(4) == 3:
                self._emit({"op": what, "by": by, "token": f"before{dice.pick(3)}"})
            elif put:
                self._emit({"op": what, "by": by, "token": put[-1 - dice.pick(min(4, len(put)))]})
        elif what == "life":
            self._live(by, dice)
        elif self.graph.event_at:
            self._emit({"op": "drop", "by": by, "event": dice.one(list(self.graph.event_at))})

    def _live(self, by: str, dice: Dice) -> None:
        """Free, or allocate or touch: what the first chosen block allows, with the others that it suits."""
        pool = dice.one(list(self.pools))
        chosen = self._ids(dice, pool)
        is_live = (pool, chosen[0]) in self.live
        what = "free" if is_live else "touch" if dice.pick(4) == 3 else "alloc"
        fit = [number for number in chosen if ((pool, number) in self.live) == is_live]
        self._change(what, by, pool, fit)
        if is_live and dice.pick(2):  # handed out again at once: this is how a block gets its next owner
            self._change("alloc", dice.one(self.hosts), pool, fit)

    def _change(self, what: str, by: str, pool: str, numbers: list[int]) -> None:
        for number in numbers:
            self.live.symmetric_difference_update([(pool, number)])
            self.life.setdefault((pool, number), []).append((len(self.ops), what))
        self._emit({"op": what, "by": by, "pool": pool, "ids": spell(numbers)})

    def _access(self, by: str, dice: Dice) -> None:
        where = dice.pick(8)
        shape = dice.one(_SHAPES)
        op: Op = {"op": "access", "by": by, "label": shape}
        if where < 7:
            op["on"] = dice.one(self.streams)
        order = dice.one(_ORDERS)
        if order:
            op["order"] = order
        pool = dice.one(list(self.pools))
        chosen = self._ids(dice, pool)
        reads: dict[str, list[int]] = {}
        writes: dict[str, list[int]] = {}
        if shape in ("read", "copy", "batch", "update"):
            reads[pool] = chosen
        if shape in ("copy", "batch"):
            pool = dice.one(list(self.pools))
            writes[pool] = self._ids(dice, pool)
        elif shape != "read":
            writes[pool] = chosen
        if shape == "batch" and "on" in op:
            op["batch"] = True
            clash = set(reads.get(pool, [])) & set(writes[pool])
            if self.flawless or dice.pick(4):
                writes[pool] = [number for number in writes[pool] if number not in clash]
            elif dice.pick(2):
                writes[pool] = [writes[pool][0], *writes[pool]]
        op["reads"] = {name: spell(numbers) for name, numbers in reads.items() if numbers}
        op["writes"] = {name: spell(numbers) for name, numbers in writes.items() if numbers}
        planned = len(self.ops) - 1 - dice.pick(12)
        if planned >= 0 and dice.pick(4) == 3 and not (self.flawless and self._stale(op, planned)):
            op["planned"] = planned
        if self.flawless or self.style == TRUSTING or (self.style == CARELESS and dice.pick(6)):
            for _ in range(12):
                loose = self._loose(op)
                if not loose:
                    break
                for fix in dice.one(self._fixes(op, dice.one(loose), dice)):
                    self._emit(fix)
            else:
                return  # too much to mend one by one: leave the access out
        self._emit(op)

    # order ------------------------------------------------------------------------------------------------

    def _stale(self, op: Op, planned: int) -> bool:
        """Whether `op` would reach another generation of a block than the planned one."""
        named = blocks(op, "reads") + blocks(op, "writes")
        return any(remade(self.life.get(block, []), planned, len(self.ops)) for block in named)

    def _loose(self, op: Op) -> list[Loose]:
        """The earlier accesses that `op` would race with if it were issued now."""
        graph, order = self.graph, self.graph.order_of(op)
        if self.style == TRUSTING and order != "host":
            order = "stream"
        known_host = graph.closure(graph.before_host(op["by"]))
        known = known_host if order == "host" else graph.closure(graph.before_issue(op["on"], op["by"], True))
        known_read = known if order == "stream" else known_host
        reached = [(touch, True) for block in blocks(op, "reads") for touch in graph.touches.get(block, [])]
        reached += [(touch, False) for block in blocks(op, "writes") for touch in graph.touches.get(block, [])]
        loose: list[Loose] = []
        for touch, reading in reached:
            by_host = order == "host" or (reading and order != "stream")
            nodes = (touch.write,) if reading else (touch.read, touch.write)
            missing = [n for n in nodes if n is not None and not (known_read if reading else known) >> n & 1]
            loose += [Loose(touch.op, node, by_host) for node in missing]
        return loose

    def _fixes(self, op: Op, loose: Loose, dice: Dice) -> list[list[Op]]:
        """Ways to order `loose` before `op`, those with records that exist already first."""
        graph, by, source = self.graph, op["by"], self.ops[loose.op].get("on")
        helper, recorded = dice.one(self.hosts), self._event_to_record(dice)

        def holds(node: int) -> bool:
            return node == loose.node or bool(graph.past[node] >> loose.node & 1)

        fixes: list[list[Op]] = []
        for event in [event for event, node in graph.event_at.items() if holds(node)][-2:]:
            if not loose.by_host:
                fixes += [[{"op": "wait", "by": helper, "on": op["on"], "event": event}]] * 2
            fixes.append([{"op": "sync", "by": by, "event": event}])
            fixes.append([{"op": "poll", "by": by, "event": event, "done": True}])
        for token in [token for token, node in graph.token_at.items() if holds(node)][-2:]:
            fixes.append([{"op": "get", "by": by, "token": token}])
        for other, node in graph.host_at.items():
            if other != by and holds(node):
                fixes.append(self._handoff(other, by))
                if not loose.by_host:
                    fixes.append([{"op": "record", "by": other, "on": op["on"], "event": recorded}])
        if source is not None:
            record: Op = {"op": "record", "by": helper, "on": source, "event": recorded}
            device = graph.device.get(source, 0)
            if not loose.by_host:
                fixes += [[record, {"op": "wait", "by": by, "on": op["on"], "event": recorded}]] * 3
            fixes.append([record, {"op": "sync", "by": by, "event": recorded}])
            blocked = dice.one([{"stream": source}, {"stream": source}, {"device": device}])
            fixes.append([{"op": "sync", "by": helper, **blocked}])
            if helper != by:
                fixes[-1] += self._handoff(helper, by)
        return fixes

    def _handoff(self, giver: str, taker: str) -> list[Op]:
        token = self._fresh("t")
        return [{"op": "put", "by": giver, "token": token}, {"op": "get", "by": taker, "token": token}]


def spell(numbers: Sequence[int]) -> str:
    """Block ids as a range string; runs are joined, the order and repetitions are kept."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in runs)


def without(header: Op, ops: Sequence[Op], doomed: int) -> list[Op]:
    """The trace less one ordering op (and, if that is a put, less its gets where they would be illegal)."""
    gone = {doomed}
    if ops[doomed]["op"] == "put" and header.get("start") != "attached":
        token = ops[doomed]["token"]
        gone |= {index for index, op in enumerate(ops) if op["op"] == "get" and op["token"] == token}
    left: list[Op] = []
    moved: list[int] = []  # op -> its index afterwards
    for index, op in enumerate(ops):
        moved.append(len(left))
        if index not in gone:
            kept = dict(op)
            if "planned" in op:  # if that op is gone, then the one before it: the same ops lie between
                kept["planned"] = moved[op["planned"]] - (op["planned"] in gone)
                if kept["planned"] < 0:
                    del kept["planned"]
            left.append(kept)
    return left


def cut(header: Op, ops: list[Op], dice: Dice) -> list[Op]:
    """The trace less one ordering op that the dice choose, if it has any."""
    choices = [index for index, op in enumerate(ops) if op["op"] in ORDERING]
    return without(header, ops, dice.one(choices)) if choices else ops


def random_trace(seed: int, size: int | None = None) -> tuple[Op, list[Op]]:
    """Header and ops of trace number `seed`: `size` ops (a few fewer if one was cut), else 10 to 60."""
    rng = random.Random(seed)
    dice = Dice(iter(lambda: rng.getrandbits(12), -1))
    size = 10 + dice.pick(51) if size is None else size
    style = dice.one(STYLES)
    header = random_header(dice)
    builder = Builder(header, dice, style)
    goal = size + (style == CUT)
    while len(builder.ops) < goal:
        builder.step(dice)
    ops = builder.ops[:goal]
    return header, cut(header, ops, dice) if style == CUT else ops
