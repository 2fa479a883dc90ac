"""The happens-before graph of a stretch of a trace, to say *why* two accesses are ordered.

Nodes are ops (for an access: its element), edges lead from what was known to what learnt it; `kvsan.model.order`
draws them, read with `Edges`. networkx finds the shortest way from an access to what a later op relied on. This is
for explaining one pair: a graph of a million ops takes half a gigabyte, which is why nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import networkx as nx

from kvsan.model.ops import Access, Op, Stream
from kvsan.model.order import Edges, Element, Issued, Order

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
        targets = issued.reads if reads else issued.writes
        best: list[Node] | None = None
        for target in sorted(targets, key=str):
            if earlier in self.graph and target in self.graph and nx.has_path(self.graph, earlier, target):
                found = nx.shortest_path(self.graph, earlier, target)
                best = found if best is None or len(found) < len(best) else best
        if best is None:
            return None
        numbers = [node.op if isinstance(node, Element) else node for node in best]
        return [*dict.fromkeys([*numbers, later])]
