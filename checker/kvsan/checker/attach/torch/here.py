"""What each thread is in the middle of, so that of nested calls only the outermost is logged."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kvsan.checker.attach.native import HOT

if TYPE_CHECKING:
    from kvsan.checker.attach.torch.graphs import Captured


if TYPE_CHECKING or HOT is None:

    class Here(threading.local):
        """Of each thread: how many wrapped calls and graph captures it is in, how many declared accesses, how many
        `deriving()` and tensor methods, and the graph that it captures.
        """

        busy = 0
        declared = 0
        deriving = 0
        looking = 0
        captured: Captured | None = None

else:
    Here = HOT.Here
