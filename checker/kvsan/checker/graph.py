"""The happens-before graph of a stretch of a trace, to say *why* two accesses are ordered.

Nodes are ops (for an access: its element), edges lead from what was known to what learnt it; `kvsan.model.order`
draws them, read with `Edges`. networkx finds the shortest way from an access to what a later op relied on. This is
for explaining one pair: a graph of a million ops takes half a gigabyte, which is why nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import networkx as nx

from kvsan.model.ops import Access, Op, Stream
from kvsan.model.order import Issued, Order
from kvsan.model.pasts import Edges, Element

Node = Element | int
Past = frozenset[Node]


class HappensBefore:
    """The graph over `ops` (number, op). What happened before the first of them is not known to it."""

    def __init__(
        self, ops: Iterable[tuple[int, Op]], streams: Mapping[str, Stream], *, assume_stream_order: bool = False
    ) -> None:
        lattice = Edges()
        order: Order[Past] = Order(lattice, streams, assume_stream_order=assume_stream_order)
        self.issued: dict[int, Issued[Past]] = {}
        for number, op in ops:
            issued = order.issue(number, op)
            if isinstance(op, Access) and issued is not None:
                self.issued[number] = issued
        self.graph: nx.DiGraph[Node] = nx.DiGraph()
        self.graph.add_nodes_from(lattice.edges)
        self.graph.add_edges_from((before, node) for node, past in lattice.edges.items() for before in past)

    def path(self, earlier: Element, later: int, *, reads: bool) -> list[int] | None:
        """The ops through which access `later` knows `earlier`, both included; `None` if it does not.

        `reads`: whether it is the reads of `later` that matter, which a copy may do out of stream order.
        """
        issued = self.issued[later]
        targets = (issued.reads if reads else issued.writes) & self.graph.nodes
        end = Element(later, (issued.read if reads else issued.write).agent)
        if earlier not in self.graph or not targets:
            return None
        if earlier.agent == end.agent and not (reads and issued.reads != issued.writes):
            return [earlier.op, later]  # one stream, in stream order: no event is needed, whatever there is besides
        self.graph.add_edges_from((target, _END) for target in targets)
        try:
            way = nx.shortest_path(
                self.graph, earlier, _END, weight=lambda a, b, _: _weight(a, end if b == _END else b)
            )
        except nx.NetworkXNoPath:
            return None
        finally:
            self.graph.remove_node(_END)
        return [*dict.fromkeys(_number(node) for node in _without_repeats([*way[:-1], end]))]


_END = -1
"""Stands for the later op, whose own node says more than it relied on."""


def _weight(a: Node, b: Node) -> int:
    """Stream order needs no explanation: it is preferred to any way round by events."""
    return 0 if isinstance(a, Element) and isinstance(b, Element) and a.agent == b.agent else 1


def _without_repeats(way: Sequence[Node]) -> list[Node]:
    """Of several accesses of one agent in a row the first and the last."""
    out: list[Node] = []
    for node in way:
        row = len(out) > 1 and all(_weight(a, b) == 0 for a, b in ((out[-2], out[-1]), (out[-1], node)))
        if row:
            out.pop()
        out.append(node)
    return out


def _number(node: Node) -> int:
    return node.op if isinstance(node, Element) else node
