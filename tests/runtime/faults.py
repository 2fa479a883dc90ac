"""Five classes of fault, put into the engine from outside: between it and the device, or in one hold of a free.

Each has sites, counted as the engine runs; `site` says at which one it happens. What is no fault is no site:

- *drop a wait*: of an event whose stream did work that touches blocks since the waiting stream last waited for that
  stream;
- *move a record*: the first record behind a work that touches blocks is made in front of it;
- *free early*: where frees wait for a step, one of a block that this very step used comes back one step early; else a
  transfer that the device has not finished is taken as finished by a rule of the device's pool, without a poll (the
  host pool's rules are another design's);
- *publish early*: a transfer's event is recorded behind the next put of its thread; with one thread, behind its own
  first poll;
- *read early*: a store that waited for something reads its source in order `any`.

Four more draws turn out to be none only in the run's lines (`harmless`): a moved record that nobody asks about before
the next one of that event, or only for the sake of two reads; a transfer taken as finished whose blocks nothing
happens to before a poll says as much; and a block that comes back a step early, of a step that touched it in the plan
and not on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from kvsan.model.design import MAIN, Fence
from kvsan.model.ops import Access, Alloc, Free, Op, Poll, Record, Sync, Touch, Wait
from kvsan.runtime.device import Copy, Ids, Kernel
from kvsan.runtime.engine import Engine

Kind = Literal["drop a wait", "move a record", "free early", "publish early", "read early"]
KINDS: tuple[Kind, ...] = ("drop a wait", "move a record", "free early", "publish early", "read early")


@dataclass
class Fault:
    """`site` -1: nothing is done, sites are counted. `threads`: the design has further threads; `retires`: frees wait
    for steps."""

    kind: Kind
    site: int
    threads: bool
    retires: bool
    sites: int = 0
    done: bool = False
    event: str = ""
    mine: bool = False
    early: tuple[int, int] = (-1, -1)
    work: dict[str, int] = field(default_factory=dict)
    records: dict[str, tuple[str, int]] = field(default_factory=dict)
    waited: set[tuple[str, tuple[str, int]]] = field(default_factory=set)
    fresh: set[str] = field(default_factory=set)

    def here(self) -> bool:
        """One more site; whether it is the one."""
        self.sites += 1
        if self.sites - 1 == self.site:
            self.done = True
            return True
        return False

    def tinker(self, engine: Engine) -> None:
        """Frees of the device's pool that wait for a step."""
        if self.kind != "free early":
            return
        cells = engine.pool.cells
        if not self.retires:
            enabled_of = cells.enabled

            def enabled(*given: Any) -> Ids:
                self.mine = True
                try:
                    return enabled_of(*given)
                finally:
                    self.mine = False

            cells.enabled = enabled  # type: ignore[method-assign, assignment]
            return
        fence_of = cells._fence

        def fence(which: Fence, blocks: Ids) -> Any:
            right = fence_of(which, blocks)
            for at in np.flatnonzero((right == cells.last_use[blocks]) & (right > cells.flight.seen)):
                if self.here():
                    right = right.copy()
                    self.early = (int(blocks[at]), int(right[at]))
                    right[at] -= 1
            return right

        cells._fence = fence  # type: ignore[method-assign, assignment]


def _both_read(passed: Access | None, behind: Sequence[Op], wait: Wait) -> bool:
    """Whether the wait is for a block of its own, which the work that the record was moved past only reads, and so does
    the work that waits: two reads need no order."""
    _, mark, number = wait.event.rpartition("#")
    waiter = next((op for op in behind if isinstance(op, Access) and op.on == wait.on), None)
    if not mark or not wait.event.startswith("used#") or passed is None or waiter is None:
        return False
    return not any(int(number) in op.writes.get("gpu", ()) for op in (passed, waiter))


def harmless(fault: Fault, clean: Sequence[Op], lines: Sequence[Op]) -> bool:
    """Whether nothing came of it, by the lines of the run without it and with it."""
    at = next((i for i, (one, two) in enumerate(zip(clean, lines, strict=False)) if one != two), None)
    if at is None:
        return True
    behind = lines[at:]
    if fault.kind == "move a record":
        passed = next((op for op in behind if isinstance(op, Access)), None)
        for nth, op in enumerate(behind[1:], 1):
            if isinstance(op, Wait) and op.event == fault.event and _both_read(passed, behind[nth:], op):
                continue
            if isinstance(op, Wait | Poll | Sync) and op.event == fault.event:
                return False
            if isinstance(op, Record) and op.event == fault.event:
                return True
        return True
    if fault.kind == "free early" and fault.retires:
        block, step = fault.early
        return not any(  # an engine may hold a block for a step in which it plans the block and reads none of it
            isinstance(op, Access) and op.step == step and any(block in s.get("gpu", ()) for s in (op.reads, op.writes))
            for op in lines
        )
    if fault.kind == "free early":
        name, number = fault.event.rsplit("#", 1)
        record = next(i for i, op in enumerate(lines) if isinstance(op, Record) and op.event == fault.event)
        copy = next(op for op in reversed(lines[:record]) if isinstance(op, Access))
        mine = {block for side in (copy.reads, copy.writes) if "gpu" in side for block in side["gpu"]}
        known = [op.event for op in lines[: at + 1] if isinstance(op, Sync) or (isinstance(op, Poll) and op.done)]
        if fault.event in known:
            return True  # the host knows it already, by another pool's poll or since it had nothing else to do
        for op in behind:
            kind, _, at_least = op.event.rpartition("#") if isinstance(op, Poll) and op.done else ("", "", "")
            if kind == name and int(at_least) >= int(number):
                return True  # one stream's transfers end in their order
            touched: set[int] = set()
            if isinstance(op, Free | Touch | Alloc) and op.pool == "gpu":
                touched = set(op.blocks)
            elif isinstance(op, Access) and (op.label == copy.label or name == "load_done"):
                touched = {block for side in (op.reads, op.writes) if "gpu" in side for block in side["gpu"]}
            if mine & touched:
                return False
        return True
    return False


class Faulty:
    """A device with the fault."""

    def __init__(self, inner: Any, fault: Fault) -> None:
        self._inner, self._fault = inner, fault
        self._hosts: dict[str, FaultyHost] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def host(self, name: str) -> FaultyHost:
        return self._hosts.setdefault(name, FaultyHost(self._inner.host(name), self._fault, name == MAIN))


class FaultyHost:
    """Its host threads."""

    def __init__(self, inner: Any, fault: Fault, main: bool) -> None:
        self._inner, self._fault, self._main = inner, fault, main
        self._late: Callable[[], None] | None = None  # a work whose record comes first
        self._stream = ""
        self._kept: tuple[str, str] | None = None  # a record that comes too late
        self._next = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _flush(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            late()

    def wait(self, stream: str, event: str) -> None:
        self._flush()
        fault = self._fault
        fault.fresh.add(stream)
        if event in fault.records:
            key = (stream, fault.records[event])
            new = key not in fault.waited and fault.records[event][0] != stream
            fault.waited.add(key)
            if new and fault.kind == "drop a wait" and fault.here():
                return
        self._inner.wait(stream, event)

    def record(self, stream: str, event: str) -> None:
        fault = self._fault
        if self._late is not None and stream == self._stream:
            self._inner.record(stream, event)  # the work comes behind it
            fault.event = event
            self._flush()
            return
        self._flush()
        fault.records[event] = (stream, fault.work.get(stream, 0))
        if self._next:
            self._next = False
            if fault.here():
                self._kept = (stream, event)
                return
        self._inner.record(stream, event)

    def query(self, event: str) -> bool:
        self._flush()
        done = bool(self._inner.query(event)) if not self._unpolled(event) else True
        self._publish(event)
        return done

    def _unpolled(self, event: str) -> bool:
        """The machine is asked all the same, below the log, so that a site is a transfer that is not complete."""
        fault = self._fault
        if fault.kind != "free early" or fault.retires or not fault.mine:
            return False
        record = self._inner._device.inner._records.get(event)
        if record is None or record.done or not fault.here():
            return False
        fault.event = event
        return True

    def sync(self, event: str) -> None:
        self._flush()
        self._inner.sync(event)
        self._publish(event)

    def put(self, queue: str, item: Any) -> None:
        self._flush()
        self._inner.put(queue, item)
        if self._fault.threads and not self._main:
            self._publish(None)

    def _publish(self, event: str | None) -> None:
        kept = self._kept
        if kept is not None and event in (None, kept[1]):
            self._kept = None
            self._inner.record(*kept)

    def launch(self, stream: str, kernel: Kernel) -> None:
        self._flush()
        touches = any(len(ids) for side in (kernel.reads, kernel.writes) for ids in side.values())
        self._issue(stream, lambda: self._inner.launch(stream, kernel), touches)

    def copy(self, stream: str, copy: Copy) -> None:
        self._flush()
        fault = self._fault
        waits = stream in fault.fresh
        if fault.kind == "read early" and copy.order == "stream" and copy.source == "gpu" and waits and fault.here():
            copy = replace(copy, order="any")
        if fault.kind == "publish early" and self._main is not fault.threads:
            self._next = True
        self._issue(stream, lambda: self._inner.copy(stream, copy), bool(len(copy.targets)))

    def _issue(self, stream: str, issue: Callable[[], None], touches: bool) -> None:
        fault = self._fault
        fault.fresh.discard(stream)
        if touches:
            fault.work[stream] = fault.work.get(stream, 0) + 1
            if fault.kind == "move a record" and fault.here():
                self._late, self._stream = issue, stream
                return
        issue()
