"""What may run at the same time: for each pair of works whether the later one can be issued while nothing orders it
behind the earlier one.

The same search as for races, with another question: every work counts, whatever it does and for whichever block.
Works of another block are there as waits and records of shared events; what another block's own events order is not
known of it, so for two blocks the answer errs on the side of "may". What never may, never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kvsan.model.design import Design
from kvsan.model.proof.actions import Action
from kvsan.model.proof.graph import explore
from kvsan.model.proof.search import search
from kvsan.model.proof.system import System
from kvsan.model.proof.transfer import Check, Transfers
from kvsan.model.proof.verify import CAP

May = Literal["never", "other blocks", "same block"]
"""The two never overlap; only while they work on different blocks; even on the same one."""

_OTHER = "of another block: "


@dataclass(frozen=True, slots=True)
class Overlap:
    """The matrix: (work issued earlier, work issued later) → whether they may overlap."""

    works: tuple[str, ...]
    may: Mapping[tuple[str, str], May]


def overlap(design: Design, *, cap: int = CAP) -> Overlap:
    """Raises `TooManyStatesError`."""
    system = System(design, None if design.run_ahead == "any" else design.run_ahead, others=True)
    graph = explore(system, cap)
    names = [work.name for work in design.works()]
    order = {work.name: work.order for work in design.works()}

    def ask(action: Action, check: Check) -> Check:
        """Every access is taken for a write of its own work, so that any two conflict."""
        early = order[check.work] == "any" and check.reads
        name = check.work if action.touch is not None else _OTHER + check.work
        mask = check.read_mask if early else check.write_mask
        return replace(check, work=name, reads=False, writes=True, write_mask=mask)

    transfers = Transfers(design, graph.actions(), system.threads, ask)
    found = search(system, graph, cap, transfers=transfers, works=[*names, *(_OTHER + name for name in names)])
    pairs = {(pair.earlier, pair.later) for pair in found.races}
    may: dict[tuple[str, str], May] = {}
    for earlier in names:
        for later in names:
            if (earlier, later) in pairs:
                may[earlier, later] = "same block"
            elif (earlier, _OTHER + later) in pairs or (_OTHER + earlier, later) in pairs:
                may[earlier, later] = "other blocks"
            else:
                may[earlier, later] = "never"
    return Overlap(tuple(names), may)
