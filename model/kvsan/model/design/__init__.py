"""How a designer writes an ordering protocol down: frozen data, read by the proof and by the engine.

    from kvsan.model.design import Protocol, last_use, now, retired, seen

`build` is the language, `ir` and `parts` what it makes, `guards` the conditions on a block, `check` what is
refused at definition.
"""

from kvsan.model.design.build import EventRef, Protocol, got, last_use, newest, next_step, now, retired, seen
from kvsan.model.design.guards import Assign, BlockRef, DesignError, Every, Facet, Guard, Is, Some
from kvsan.model.design.ir import Design, Expected
from kvsan.model.design.parts import (
    ANY,
    MAIN,
    Block,
    Claim,
    Edge,
    EdgeKind,
    Event,
    Fence,
    Got,
    Item,
    Mark,
    Need,
    Retired,
    Rule,
    Seen,
    StreamOf,
    Submit,
    Thread,
    Work,
    need_of,
)

__all__ = [
    "ANY",
    "MAIN",
    "Assign",
    "Block",
    "BlockRef",
    "Claim",
    "Design",
    "DesignError",
    "Edge",
    "EdgeKind",
    "Event",
    "EventRef",
    "Every",
    "Expected",
    "Facet",
    "Fence",
    "Got",
    "Guard",
    "Is",
    "Item",
    "Mark",
    "Need",
    "Protocol",
    "Retired",
    "Rule",
    "Seen",
    "Some",
    "StreamOf",
    "Submit",
    "Thread",
    "Work",
    "got",
    "last_use",
    "need_of",
    "newest",
    "next_step",
    "now",
    "retired",
    "seen",
]
