"""What each thread is in the middle of, so that of nested calls only the outermost is logged."""

from __future__ import annotations

import threading


class Here(threading.local):
    """Of each thread: how many wrapped calls and graph captures it is in, and how many declared accesses."""

    busy = 0
    declared = 0
