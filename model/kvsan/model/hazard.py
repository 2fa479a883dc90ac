"""What may not be unordered: conflict, reuse, and what a report of it holds.

Two accesses to one block conflict if at least one writes. A conflicting pair whose earlier access is not in the past
of the later one (`kvsan.model.order`) is a hazard, named as Vulkan's synchronization validation and the textbooks
name it: the later access first. Two more need no order at all: `BATCH` (parts of one batched copy that touch the same
block) and `GEN` (an access planned for one generation of a block and issued to another).

Use after free is not a hazard by itself: an engine that runs ahead frees blocks whose last reader is still in flight.
What matters is that the next owner is ordered behind it. `Life` is how that is seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvsan.model.ops import Blocks


class Kind(StrEnum):
    """The hazards."""

    RAW = "RAW"
    WAR = "WAR"
    WAW = "WAW"
    BATCH = "BATCH"
    GEN = "GEN"

    @property
    def meaning(self) -> str:
        """One line for a person."""
        return _MEANING[self]


_MEANING = {
    Kind.RAW: "the later access reads a block that an earlier write may still be filling",
    Kind.WAR: "the later access overwrites a block that an earlier read may still be reading",
    Kind.WAW: "the later access writes a block that an earlier write may still overwrite",
    Kind.BATCH: "copies of one batch touch the same block, and a batch has no order inside",
    Kind.GEN: "the access was planned for one generation of the block and issued to another",
}


def conflict(earlier_writes: bool, later_writes: bool) -> Kind | None:
    """The kind of hazard that an unordered pair would be: `None` for two reads."""
    if later_writes:
        return Kind.WAW if earlier_writes else Kind.WAR
    return Kind.RAW if earlier_writes else None


@dataclass(frozen=True, slots=True)
class Life:
    """A block's life as far as reuse needs it: three op stamps (op number + 1, 0 for never).

    `since`: its latest alloc, touch or free. `free`: whether that left it free. `reborn`: the free that the block's
    latest alloc ended. Whoever acted before `reborn` acted on an earlier generation.
    """

    since: int = 0
    free: bool = False
    reborn: int = 0

    def alloc(self, op: int) -> Life:
        """A new generation; if the block was free, all from before that free is history."""
        return Life(op + 1, False, self.since if self.free else self.reborn)

    def freed(self, op: int) -> Life:
        return Life(op + 1, True, self.reborn)

    def touch(self, op: int) -> Life:
        """The same generation comes back: the free before it ended nothing."""
        return Life(op + 1, False, self.reborn)

    def reused_since(self, op: int) -> bool:
        """Freed and then allocated again, both after op `op`."""
        return self.reborn > op + 1


@dataclass(frozen=True, slots=True)
class Site:
    """One access of a report. `op` is its 0-based line after the header; what a bounded log has lost is `None`."""

    op: int
    label: str | None = None
    on: str | None = None
    by: str | None = None
    step: int | str | None = None
    owner: int | str | None = None
    site: str | None = None

    def document(self) -> dict[str, Any]:
        base: dict[str, Any] = {"op": self.op, "label": self.label, "on": self.on, "by": self.by}
        more = {"step": self.step, "owner": self.owner, "site": self.site}
        return base | {key: value for key, value in more.items() if value is not None}

    def __str__(self) -> str:
        where = f"on {self.on}" if self.on is not None else "by the host itself"
        step = "" if self.step is None else f", step {self.step}"
        return f"{self.label or 'access'} {where}{step}"


@dataclass(frozen=True, slots=True)
class Fix:
    """One way to mend a hazard: all the parts that are given, together.

    `record`/`wait`: record an event on a stream right after an op, let a stream wait for it right before another.
    `sync`: let a host thread block on that event instead. `handoff`: a put by one thread and a get by another, right
    before an op. `order`: give the later access source order `stream`. `pin`: keep the blocks from being freed until
    the access is issued. `split`: issue these blocks' second copies as a batch of their own.
    """

    record: tuple[str, int] | None = None
    wait: tuple[str, int] | None = None
    sync: tuple[str, int] | None = None
    handoff: tuple[str, str, int] | None = None
    order: bool = False
    pin: tuple[str, Blocks] | None = None
    split: tuple[str, Blocks] | None = None

    def document(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.record:
            out["record"] = {"on": self.record[0], "after_op": self.record[1]}
        if self.wait:
            out["wait"] = {"on": self.wait[0], "before_op": self.wait[1]}
        if self.sync:
            out["sync"] = {"by": self.sync[0], "before_op": self.sync[1]}
        if self.handoff:
            out["handoff"] = {"from": self.handoff[0], "to": self.handoff[1], "before_op": self.handoff[2]}
        if self.order:
            out["order"] = "stream"
        for name, value in (("pin", self.pin), ("split", self.split)):
            if value:
                out[name] = {"pool": value[0], "blocks": str(value[1])}
        return out

    def __str__(self) -> str:
        parts = []
        if self.record and self.wait:
            parts.append(
                f"record an event on {self.record[0]} after op {self.record[1]}, "
                f"wait for it on {self.wait[0]} before op {self.wait[1]}"
            )
        if self.record and self.sync:
            parts.append(
                f"record an event on {self.record[0]} after op {self.record[1]}, "
                f"let {self.sync[0]} synchronize with it before op {self.sync[1]}"
            )
        if self.handoff:
            giver, taker, op = self.handoff
            parts.append(f"hand over from {giver} to {taker} (queue, lock, message) before op {op}")
        if self.order:
            parts.append("give the later copy source order `stream`")
        if self.pin:
            parts.append(f"pin {self.pin[0]} {self.pin[1]} until the access is issued, or flush it before the free")
        if self.split:
            parts.append(f"issue the second copy of {self.split[0]} {self.split[1]} as a later batch")
        return ", and ".join(parts)


@dataclass(frozen=True, slots=True)
class Hazard:
    """A report: blocks of one pool, the two accesses, what happened between them, what would order them.

    `known` is the latest access of the earlier one's stream (or host thread) that the later one *is* ordered behind.
    `freed` and `allocated` are the ops between which the blocks changed hands (`reuse`). `possible`: edges went
    unseen, so an order may exist that was not logged. `fix` is weakest first.
    """

    kind: Kind
    pool: str
    blocks: Blocks
    earlier: Site
    later: Site
    known: Site | None = None
    freed: int | None = None
    allocated: int | None = None
    possible: bool = False
    fix: tuple[Fix, ...] = ()

    @property
    def reuse(self) -> bool:
        return self.freed is not None

    def document(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "kind": self.kind.value,
            "pool": self.pool,
            "blocks": str(self.blocks),
            "reuse": self.reuse,
            "earlier": self.earlier.document(),
            "later": self.later.document(),
            "known": None if self.known is None else self.known.document(),
            "fix": [fix.document() for fix in self.fix],
        }
        if self.freed is not None:
            out["life"] = {"freed": self.freed, "allocated": self.allocated}
        if self.possible:
            out["possible"] = True
        return out
