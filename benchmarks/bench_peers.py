"""The same ops given to two others: PyTorch's CUDA sanitizer, and a path query on the happens-before graph in networkx.

The sanitizer's handler (`torch.cuda._sanitizer.EventHandler`) needs no GPU: it is told of kernel launches and of
event calls. It sees one pointer a tensor, so a block is a pointer. It knows no polls, host threads or hand-offs: those
ops are left out, which saves it time and makes it report what is ordered. networkx is asked once for each pair of ops
that share a block and conflict.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import networkx as nx
import pytest
from benchmarks.bench_check import SOURCE
from benchmarks.bench_online import COUNTS, engine
from benchmarks.conftest import Note, interleaved, pedantic
from benchmarks.engine import READERS, id_sets
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.checker import open_trace
from kvsan.checker.online import Online
from kvsan.checker.trace.header import Header
from kvsan.model.ops import Access, Blocks, Drop, Op, Record, Sync, Wait
from kvsan.model.order import Edges, Element, Order

GRAPH_OPS = 2_000


def read() -> tuple[Header, list[Op]]:
    with open_trace(SOURCE) as trace:
        return trace.header, list(trace)


class Sanitizer:
    """PyTorch's handler behind our ops. `errors` counts what it reports."""

    def __init__(self) -> None:
        sanitizer = pytest.importorskip("torch.cuda._sanitizer")
        self.handler: Any = sanitizer.EventHandler()
        self.errors = 0
        self._streams: dict[str, int] = {}
        self._events: dict[str, int] = {}
        self._pools: dict[str, int] = {}

    def feed(self, op: Op) -> None:
        handler = self.handler
        match op:
            case Access(on=str() as on):
                reads, writes = self.pointers(op.reads), self.pointers(op.writes)
                self.launch(self._number(self._streams, on), reads - writes, writes, op.label)
            case Record():
                handler._handle_event_record(self._number(self._events, op.event), self._number(self._streams, op.on))
            case Wait():
                handler._handle_event_wait(self._number(self._events, op.event), self._number(self._streams, op.on))
            case Sync(event=str() as event):
                handler._handle_event_synchronization(self._number(self._events, event))
            case Drop(event=event) if event in self._events:
                handler._handle_event_deletion(self._events.pop(event))

    def launch(self, stream: int, reads: set[int], writes: set[int], label: str) -> None:
        name = ["blocks"]
        names = dict.fromkeys(reads | writes, name)
        self.errors += len(self.handler._handle_kernel_launch(stream, reads, writes, set(), label, names))

    def pointers(self, touched: Any) -> set[int]:
        return {self._number(self._pools, pool) << 32 | block for pool, blocks in touched.items() for block in blocks}

    def _number(self, known: dict[str, int], name: str) -> int:
        return known.setdefault(name, len(known) + 1)


@pytest.mark.parametrize("count", COUNTS)
def bench_write_op(benchmark: BenchmarkFixture, note: Note, count: int) -> None:
    """A write to scattered blocks that four streams have read; all is ordered. The reads are not timed."""
    benchmark.group = f"peers: a write to {count:,} scattered blocks"
    ids = id_sets(count, "scattered")[0].tolist()
    csan = Sanitizer()
    pointers = csan.pointers({"gpu": ids})

    def before() -> None:
        for reader in range(2, 2 + READERS):
            csan.handler._handle_event_wait(1, reader)
            csan.launch(reader, pointers, set(), "forward")
            csan.handler._handle_event_record(reader, reader)
            csan.handler._handle_event_wait(reader, 1)

    def after() -> None:
        csan.handler._handle_event_record(1, 1)

    ours = engine(8, "write").cycle([Access("h", "w", writes={"gpu": Blocks.of(ids)}, label="load", step=1)])
    least = interleaved({"ours": ours}, batch=50)["ours"]
    after()

    def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
        after()
        before()
        return (1, set(), pointers, "load"), {}

    pedantic(benchmark, csan.launch, setup=setup, rounds=10)
    assert not csan.errors
    if benchmark.stats:
        theirs = benchmark.stats["min"] * 1e6
        note(
            f"a write to {count:,} scattered blocks, read by four",
            f"ours {least:.1f} µs, PyTorch's handler {theirs:,.0f} µs ({theirs / least:.0f} times)",
        )


def bench_trace_ours(benchmark: BenchmarkFixture, note: Note) -> None:
    benchmark.group = "peers: the trace `store`"
    pedantic(benchmark, _feed_ours, setup=lambda: (read(), {}), rounds=5)  # read anew: no index is kept from before
    _per_op(benchmark, note, "trace `store`: ours, online", len(read()[1]))


def bench_trace_sanitizer(benchmark: BenchmarkFixture, note: Note) -> None:
    benchmark.group = "peers: the trace `store`"
    _, ops = read()
    csan = pedantic(benchmark, _feed_sanitizer, ops, rounds=2)
    _per_op(benchmark, note, f"trace `store`: PyTorch's handler ({csan.errors:,} reports)", len(ops))


def bench_trace_start_ours(benchmark: BenchmarkFixture, note: Note) -> None:
    benchmark.group = f"peers: the first {GRAPH_OPS:,} ops of the trace `store`"
    pedantic(benchmark, _feed_ours, setup=lambda: (_start(), {}), rounds=5)
    _per_op(benchmark, note, f"trace `store`, first {GRAPH_OPS:,} ops: ours, online", GRAPH_OPS)


def bench_trace_start_networkx(benchmark: BenchmarkFixture, note: Note) -> None:
    benchmark.group = f"peers: the first {GRAPH_OPS:,} ops of the trace `store`"
    asked = pedantic(benchmark, _ask_networkx, *_start(), rounds=2)
    _per_op(benchmark, note, f"trace `store`, first {GRAPH_OPS:,} ops: networkx ({asked:,} path queries)", GRAPH_OPS)


def _start() -> tuple[Header, list[Op]]:
    header, ops = read()
    return header, ops[:GRAPH_OPS]


def _per_op(benchmark: BenchmarkFixture, note: Note, name: str, ops: int) -> None:
    if benchmark.stats:
        seconds = benchmark.stats["min"]
        note(name, f"{seconds:.3f} s, {seconds / ops * 1e6:,.1f} µs an op")


def _feed_ours(header: Header, ops: list[Op]) -> None:
    online = Online(header.pools, header.streams, attached=header.attached)
    for number, op in enumerate(ops):
        online.feed(number, op)


def _feed_sanitizer(ops: list[Op]) -> Sanitizer:
    csan = Sanitizer()
    for op in ops:
        csan.feed(op)
    return csan


def _ask_networkx(header: Header, ops: list[Op]) -> int:
    """Builds the graph op by op from the rules read as edges; asks for a path from each conflicting earlier access."""
    lattice = Edges()
    order: Order[Any] = Order(lattice, header.streams)
    graph: nx.DiGraph[Any] = nx.DiGraph()
    last_write: dict[tuple[str, int], Element] = {}
    reads_since: dict[tuple[str, int], set[Element]] = {}
    asked = 0
    for number, op in enumerate(ops):
        issued = order.issue(number, op)
        for node in (number, *((issued.read, issued.write) if issued else ())):
            graph.add_edges_from((before, node) for before in lattice.edges.get(node, ()))
        if not isinstance(op, Access) or issued is None:
            continue
        start = ("reads of", number)
        graph.add_edges_from((before, start) for before in issued.reads)
        earlier_of_reads = {last_write[at] for at in _at(op.reads) if at in last_write}
        earlier_of_writes = set()
        for at in _at(op.writes):
            earlier_of_writes |= reads_since.pop(at, set())
            if at in last_write:
                earlier_of_writes.add(last_write[at])
            last_write[at] = issued.write
        for at in _at(op.reads):
            reads_since.setdefault(at, set()).add(issued.read)
        for earlier, later in (
            *((earlier, start) for earlier in earlier_of_reads),
            *((earlier, issued.write) for earlier in earlier_of_writes - {issued.write}),
        ):
            asked += 1
            if later in graph and earlier in graph:
                nx.has_path(graph, earlier, later)
    return asked


def _at(touched: Any) -> Iterator[tuple[str, int]]:
    return ((pool, block) for pool, blocks in touched.items() for block in blocks)
