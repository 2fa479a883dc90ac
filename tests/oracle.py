"""Brute-force oracle: what is unordered in a trace, by a method that shares nothing with kvsan.

It reads plain JSON objects (TRACE.md), draws every node and every edge of the happens-before graph, closes
it transitively with Python-int bitsets, and then looks at every pair of accesses to every block. Nothing is
pruned, cached or bounded, so that it is easy to believe; it is for tests, where kvsan is held to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

Op = dict[str, Any]
Block = tuple[str, int]

_CONNECTED = ("blocking", "per-thread")  # the kinds that a legacy stream of their device orders


class Pair(NamedTuple):
    """Two conflicting accesses to a block and no path between them (`reuse`: freed and allocated between)."""

    earlier: int
    later: int
    kind: str
    pool: str
    block: int
    reuse: bool


@dataclass(frozen=True)
class Truth:
    """Everything that is wrong in a trace."""

    pairs: frozenset[Pair]
    batch: frozenset[tuple[int, str, int]]
    gen: frozenset[tuple[int, str, int]]

    @property
    def clean(self) -> bool:
        """Whether there is no hazard of any kind."""
        return not (self.pairs or self.batch or self.gen)

    def first(self) -> dict[Block, tuple[int, dict[str, int]]]:
        """For each racy block the first op where a pair exists, and each kind's latest earlier op there."""
        found: dict[Block, tuple[int, dict[str, int]]] = {}
        for pair in sorted(self.pairs, key=lambda p: (p.later, p.earlier)):
            later, kinds = found.setdefault((pair.pool, pair.block), (pair.later, {}))
            if later == pair.later:
                kinds[pair.kind] = pair.earlier
        return found


class Touch(NamedTuple):
    """One op's access to one block: the nodes at which it reads and writes it, if it does."""

    op: int
    read: int | None
    write: int | None


def ids(text: str) -> list[int]:
    """The block ids of a range string, repetitions kept: `"1-3,2"` is 1, 2, 3, 2."""
    out: list[int] = []
    for part in text.split(","):
        if part:
            low, _, high = part.partition("-")
            out.extend(range(int(low), int(high or low) + 1))
    return out


def blocks(op: Op, key: str) -> list[Block]:
    """Every (pool, block) that `op` names under `key` (`reads` or `writes`), repetitions kept."""
    return [(pool, block) for pool, text in (op.get(key) or {}).items() for block in ids(text)]


class Graph:
    """The happens-before graph of a trace, built op by op.

    A node's predecessors are older than it, so `past[n]` (its ancestors, a bitset) is final when n is made.
    """

    def __init__(self, header: Op, assume_stream_order: bool = False) -> None:
        self.assume_stream_order = assume_stream_order
        self.edges: list[list[int]] = []  # node -> its direct predecessors
        self.past: list[int] = []  # node -> its ancestors, transitively
        self.device: dict[str, Any] = {}
        self.kind: dict[str, str] = {}
        for name, facts in (header.get("streams") or {}).items():
            self.device[name] = facts.get("device", 0)
            self.kind[name] = facts.get("kind", "nonblocking")
        self.host_at: dict[str, int] = {}  # host thread -> its current node
        self.stream_at: dict[str, int] = {}  # stream -> its last node
        self.barrier_at: dict[str, int] = {}  # legacy stream -> its latest barrier node
        self.event_at: dict[str, int] = {}  # event -> the node of its latest record
        self.token_at: dict[str, int] = {}  # token -> the node of its put
        self.touches: dict[Block, list[Touch]] = {}
        self.count = 0  # ops taken in so far

    # nodes and edges --------------------------------------------------------------------------------------

    def closure(self, before: Iterable[int]) -> int:
        """The nodes `before` and all their ancestors."""
        known = 0
        for node in before:
            known |= self.past[node] | 1 << node
        return known

    def _node(self, before: list[int]) -> int:
        self.edges.append(before)
        self.past.append(self.closure(before))
        return len(self.edges) - 1

    def before_host(self, host: str) -> list[int]:
        """What a new node of `host`'s own program comes after."""
        return [self.host_at[host]] if host in self.host_at else []

    def before_issue(self, stream: str, host: str, barrier: bool) -> list[int]:
        """What a new node comes after that `host` issues on `stream` (`barrier`: an access or a wait)."""
        before = self.before_host(host)
        if stream in self.stream_at:
            before.append(self.stream_at[stream])
        device, kind = self.device.get(stream, 0), self.kind.get(stream, "nonblocking")
        if kind in _CONNECTED:
            before += [node for legacy, node in self.barrier_at.items() if self.device[legacy] == device]
        if kind == "legacy" and barrier:
            before += [
                node
                for other, node in self.stream_at.items()
                if self.kind.get(other) in _CONNECTED and self.device[other] == device
            ]
        return before

    def _host(self, host: str, *before: int) -> int:
        node = self._node(self.before_host(host) + list(before))
        self.host_at[host] = node
        return node

    def _issue(self, stream: str, host: str, barrier: bool, *before: int) -> int:
        node = self._node(self.before_issue(stream, host, barrier) + list(before))
        self.stream_at[stream] = node
        if barrier and self.kind.get(stream) == "legacy":
            self.barrier_at[stream] = node
        return node

    # ops --------------------------------------------------------------------------------------------------

    def order_of(self, op: Op) -> str:
        """Where an access reads: `host` (it is the host's own), `stream`, `any` or `call`."""
        if "on" not in op:
            return "host"
        order: str = op.get("order", "stream")
        return "stream" if order == "any" and self.assume_stream_order else order

    def add(self, op: Op) -> None:
        """Take in the next op of the trace."""
        host, what = op["by"], op["op"]
        if what == "access":
            self._access(op)
        elif what == "record":
            self.event_at[op["event"]] = self._issue(op["on"], host, False)
        elif what == "wait":
            event = op["event"]
            self._issue(op["on"], host, True, *([self.event_at[event]] if event in self.event_at else []))
        elif what == "sync" or (what == "poll" and op["done"]):
            self._host(host, *self._synced(op))
        elif what == "put":
            self.token_at[op["token"]] = self._node(self.before_host(host))
        elif what == "get":
            token = op["token"]
            self._host(host, *([self.token_at[token]] if token in self.token_at else []))
        elif what == "drop":
            self.event_at.pop(op["event"], None)
        elif what not in ("poll", "alloc", "free", "touch"):
            raise ValueError(f"unknown op {what!r}")
        self.count += 1

    def _synced(self, op: Op) -> list[int]:
        """The nodes that a blocking call (or a successful poll) waited for."""
        if "event" in op:
            return [self.event_at[op["event"]]] if op["event"] in self.event_at else []
        if "stream" in op:
            return [self.stream_at[op["stream"]]] if op["stream"] in self.stream_at else []
        return [node for name, node in self.stream_at.items() if self.device.get(name, 0) == op["device"]]

    def _access(self, op: Op) -> None:
        host, order = op["by"], self.order_of(op)
        reads, writes = set(blocks(op, "reads")), set(blocks(op, "writes"))
        if order == "host":
            read = write = self._host(host)
        elif order == "stream":
            read = write = self._issue(op["on"], host, True)
        else:
            read = self._host(host) if order == "call" else self._node(self.before_host(host))
            write = self._issue(op["on"], host, True, read)
        for block in reads | writes:
            touch = Touch(self.count, read if block in reads else None, write if block in writes else None)
            self.touches.setdefault(block, []).append(touch)

    def unordered(self, a: int, b: int) -> bool:
        """Whether there is no path from node `a` to node `b`."""
        return not self.past[b] >> a & 1


def remade(life: list[tuple[int, str]], low: int, high: int) -> bool:
    """Whether a block was freed and then allocated strictly between two ops (touch undoes a free)."""
    freed = False
    for index, what in life:
        if low < index < high:
            if what == "alloc" and freed:
                return True
            freed = what == "free"
    return False


def truth(header: Op, ops: list[Op], assume_stream_order: bool = False) -> Truth:
    """All hazards of a trace."""
    graph = Graph(header, assume_stream_order)
    life: dict[Block, list[tuple[int, str]]] = {}
    batch: set[tuple[int, str, int]] = set()
    gen: set[tuple[int, str, int]] = set()
    for index, op in enumerate(ops):
        graph.add(op)
        if op["op"] in ("alloc", "free", "touch"):
            for number in ids(op["ids"]):
                life.setdefault((op["pool"], number), []).append((index, op["op"]))
        if op["op"] == "access" and op.get("batch"):
            read, written = set(blocks(op, "reads")), Counter(blocks(op, "writes"))
            batch |= {(index, *named) for named, times in written.items() if times > 1 or named in read}
        if op["op"] == "access" and op.get("planned") is not None:
            for named in {*blocks(op, "reads"), *blocks(op, "writes")}:
                if remade(life.get(named, []), op["planned"], index):
                    gen.add((index, *named))
    pairs: set[Pair] = set()
    for (pool, block), touches in graph.touches.items():
        story = life.get((pool, block), [])
        readers = [(touch.op, touch.read) for touch in touches if touch.read is not None]
        writers = [(touch.op, touch.write) for touch in touches if touch.write is not None]
        for kind, earlier, later in (
            ("RAW", writers, readers),
            ("WAR", readers, writers),
            ("WAW", writers, writers),
        ):
            for j, b in later:
                for i, a in earlier:
                    if i >= j:
                        break
                    if graph.unordered(a, b):
                        pairs.add(Pair(i, j, kind, pool, block, remade(story, i, j)))
    return Truth(frozenset(pairs), frozenset(batch), frozenset(gen))
