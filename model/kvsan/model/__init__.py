"""What order means and what a hazard is: the part of kvsan that depends on nothing.

Start reading at `ops` (what a host can issue), then `order` (which accesses are known to be complete for what is
issued next) and `hazard` (which two accesses may not be unordered). Standard library only.
"""

from kvsan.model.hazard import Fix, Hazard, Kind, Life, Site
from kvsan.model.ops import (
    Access,
    Alloc,
    Blocks,
    Drop,
    Free,
    Get,
    Op,
    Poll,
    Put,
    Record,
    Stream,
    Sync,
    Touch,
    Wait,
)
from kvsan.model.order import Issued, Order
from kvsan.model.pasts import Agent, Bits, Edges, Element, Epochs, Lattice, OneBit

__all__ = [
    "Access",
    "Agent",
    "Alloc",
    "Bits",
    "Blocks",
    "Drop",
    "Edges",
    "Element",
    "Epochs",
    "Fix",
    "Free",
    "Get",
    "Hazard",
    "Issued",
    "Kind",
    "Lattice",
    "Life",
    "OneBit",
    "Op",
    "Order",
    "Poll",
    "Put",
    "Record",
    "Site",
    "Stream",
    "Sync",
    "Touch",
    "Wait",
]
