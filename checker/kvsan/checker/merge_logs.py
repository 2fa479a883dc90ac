"""The first reading of `kvsan merge`: what one process's log must say before the logs can be woven together.

Names of agents are few and are kept; names of events and tokens may be as many as there are ops, so of those only
64-bit hashes are kept (`Hashes`), and a line that a message must name is looked for again (`find_line`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from kvsan.checker.recent import SPENT_TOKENS, Recent
from kvsan.checker.trace import Header, Trace, open_trace
from kvsan.checker.trace.reader import document
from kvsan.model.ops import Access, Device, Drop, Get, Op, Poll, Put, Record, Sync, Wait

Hashed = npt.NDArray[np.int64]
_NONE: Hashed = np.empty(0, np.int64)


class Hashes:
    """A set of names that keeps their hashes alone: 8 bytes a name.

    Of a million names, two have the same hash in one run of forty million, and not again in the next: Python seeds it.
    """

    __slots__ = ("_fresh", "_sorted")

    def __init__(self, hashes: Hashed = _NONE) -> None:
        self._sorted = hashes  # ascending, each once
        self._fresh: set[int] = set()

    def add(self, name: str) -> None:
        self._fresh.add(hash(name))
        if len(self._fresh) >= 1 << 16:
            self.sorted()

    def sorted(self) -> Hashed:
        """The hashes, ascending, each once."""
        if self._fresh:
            fresh = np.fromiter(self._fresh, np.int64, len(self._fresh))
            self._sorted = np.union1d(self._sorted, fresh)
            self._fresh.clear()
        return self._sorted

    def __contains__(self, name: str) -> bool:
        return self.place(name) is not None

    def place(self, name: str) -> int | None:
        """Where the name's hash stands in `sorted()`."""
        hashes, wanted = self.sorted(), hash(name)
        at = int(hashes.searchsorted(wanted))
        return at if at < len(hashes) and hashes[at] == wanted else None

    def __len__(self) -> int:
        return len(self.sorted())


@dataclass(slots=True)
class Log:
    """One process's log, read once. `early`: tokens that it gets and has not put before."""

    path: str
    header: Header
    ops: int = 0
    threads: dict[str, None] = field(default_factory=dict)
    undeclared: dict[str, None] = field(default_factory=dict)
    synced_devices: dict[Device, None] = field(default_factory=dict)
    recorded: Hashes = field(default_factory=Hashes)
    used: Hashes = field(default_factory=Hashes)
    dropped: Hashes = field(default_factory=Hashes)
    put: Hashes = field(default_factory=Hashes)
    early: Hashes = field(default_factory=Hashes)
    plans: bool = False
    timed: bool = False

    @property
    def streams(self) -> dict[str, None]:
        """Every stream that the log declares, uses or expects."""
        return dict.fromkeys((*self.header.streams, *self.undeclared, *self.header.expects.streams))

    @property
    def devices(self) -> dict[Device, None]:
        """Every device that the log names, 0 if a stream of it is not declared."""
        declared = [stream.device for stream in self.header.streams.values()]
        return dict.fromkeys((*declared, *((0,) if self.undeclared else ()), *self.synced_devices))

    def stream(self, op: Op) -> None:
        on = op.stream if isinstance(op, Sync) else getattr(op, "on", None)
        if on is not None and on not in self.header.streams:
            self.undeclared[on] = None


def read_log(path: str) -> Log:
    """Reads a log to its end and checks every line. A `get` may lack its `put`: another log may have it."""
    with open_trace(path) as strict:
        log = Log(path, strict.header)
        trace = Trace(strict.name, replace(strict.header, attached=True), strict.lines, strict.bytes_read)
        live: set[str] = set()
        spent: Recent[str, bool] = Recent(SPENT_TOKENS)
        for op in trace:
            log.ops += 1
            log.threads[op.by] = None
            log.timed |= op.t is not None
            match op:
                case Put(token=token):
                    live.add(token)
                    log.put.add(token)
                case Get(token=token):
                    if token in live:
                        live.discard(token)
                        spent[token] = True
                    elif not spent.get(token):
                        log.early.add(token)
                case Record(event=event):
                    log.recorded.add(event)
                    log.stream(op)
                case Drop(event=event):
                    log.dropped.add(event)
                case Wait() | Poll() | Sync():
                    if op.event is not None:
                        log.used.add(op.event)
                    if isinstance(op, Sync) and op.device is not None:
                        log.synced_devices[op.device] = None
                    log.stream(op)
                case Access():
                    log.plans |= op.planned is not None
                    log.stream(op)
    for names in (log.recorded, log.used, log.dropped, log.put, log.early):
        names.sorted()
    return log


def find_line(path: str, op: str, tokens: Hashes) -> tuple[int, str]:
    """The first line of a log with a put or get of one of the tokens, and that token."""
    with open_trace(path) as trace:
        for number, raw in enumerate(trace.lines, 2):
            line = document(raw)
            if line["op"] == op and line["token"] in tokens:
                return number, line["token"]
    return 0, ""
