"""How a device of `kvsan.runtime` is bound to a session: which `kvsan.runtime.tracing.Sink` its lines go to.

To the recorder, as every other engine's do: then the session's trace, ring and checker have them. Where nothing is
checked and the trace is a binary log, straight to that: the recorder would make an op of each line for nobody. That is
only done if no other attachment logs to the session, since the two would number lines apart.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from kvsan.checker.attach.core import IDS_BYTES
from kvsan.checker.attach.lines import ALLOC, DROP, FREE, GET, POLL, PUT, RECORD, TOUCH, WAIT, Held, said
from kvsan.checker.attach.recorder import KvsanHazard, Recorder
from kvsan.checker.binaryfile import BinaryTrace
from kvsan.model.ops import Source
from kvsan.runtime.binary import Log
from kvsan.runtime.device import Device, Ids
from kvsan.runtime.lines import IN_C, Lock
from kvsan.runtime.tracing import Sets, Sink, Traced

if TYPE_CHECKING:
    from kvsan.checker.session import Session

ATTACHED = "kvsan.runtime"


class ToRecorder:
    """A `Sink` of the runtime. Streams are known to it by name alone.

    Every line comes with the lock held and all names known, so it goes straight to where the recorder's own methods put
    theirs; what fails is a fault of the recorder, as in them.
    """

    __slots__ = ("__dict__", "lock")  # the extension looks at the lock before every line

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.straight = None if IN_C is None else IN_C.Queue(recorder, self._failed, Held, IDS_BYTES)
        """Where the extension puts lines past the methods here."""
        self.lock: AbstractContextManager[Any] = recorder.lock
        recorder.relocked.append(self._take_lock)
        self.pool, self.mark = recorder.pool, recorder.mark
        self.record, self.wait = _of_two(recorder, RECORD), _of_two(recorder, WAIT)
        self.put, self.get, self.drop = _of_one(recorder, PUT), _of_one(recorder, GET), _of_one(recorder, DROP)
        self.alloc, self.free, self.touch = _of_ids(recorder, ALLOC), _of_ids(recorder, FREE), _of_ids(recorder, TOUCH)

    def _failed(self, where: str, error: BaseException) -> None:
        """A line that the extension made has failed: as in the methods here."""
        if not isinstance(error, Exception) or isinstance(error, KvsanHazard):
            raise error
        self._recorder.fault(where, error)

    def _take_lock(self, lock: AbstractContextManager[Any]) -> None:
        self.lock = lock  # a forked child has another one

    def stream(self, name: str) -> str:
        return self._recorder.stream(0, -1 - len(self._recorder.streams), name=name, kind="nonblocking")

    def access(
        self,
        label: str,
        by: str,
        on: str | None,
        reads: Sets,
        writes: Sets,
        order: Source = "stream",
        batch: bool = False,
        planned: int | None = None,
        step: int | None = None,
        site: str | None = None,
    ) -> None:
        recorder = self._recorder
        if recorder.on:
            try:
                recorder.add_access(label, by, on, reads, writes, order, batch, planned, step, None, site)
            except KvsanHazard:
                raise
            except Exception as error:
                recorder.fault("access", error)

    def copy(
        self,
        label: str,
        by: str,
        on: str,
        source: str,
        sources: Ids,
        target: str,
        targets: Ids,
        order: Source,
        planned: int | None,
        step: int | None,
        site: str | None,
    ) -> None:
        self.access(label, by, on, {source: sources}, {target: targets}, order, True, planned, step, site)

    def poll(self, event: str, done: bool, by: str) -> None:
        recorder = self._recorder
        if recorder.on:
            try:
                recorder.add((POLL, by, event, done, recorder.now()))
            except KvsanHazard:
                raise
            except Exception as error:
                recorder.fault("poll", error)

    def blocking(self, event: str, by: str) -> AbstractContextManager[Any]:
        return self._recorder.blocking(event=event, by=by)


def _of_two(recorder: Recorder, code: int) -> Callable[[str, str, str], None]:
    """A record or a wait."""

    def line(on: str, event: str, by: str) -> None:
        if recorder.on:
            try:
                recorder.add((code, by, on, event, recorder.now()))
            except KvsanHazard:
                raise
            except Exception as error:
                recorder.fault(said((code,)), error)

    return line


def _of_one(recorder: Recorder, code: int) -> Callable[[str, str], None]:
    """A line of a token or an event."""

    def line(name: str, by: str) -> None:
        if recorder.on:
            try:
                recorder.add((code, by, name, recorder.now()))
            except KvsanHazard:
                raise
            except Exception as error:
                recorder.fault(said((code,)), error)

    return line


def _of_ids(recorder: Recorder, code: int) -> Callable[[str, Ids, str], None]:
    """What happens to blocks' lives."""

    def line(pool: str, blocks: Ids, by: str) -> None:
        if recorder.on:
            try:
                recorder.add_life(code, pool, blocks, by)
            except KvsanHazard:
                raise
            except Exception as error:
                recorder.fault(said((code,)), error)

    return line


class ToLog:
    """Lines go to the log alone; pools and streams to the recorder, which makes the header.

    The lock is looked up with each line, so it is a plain attribute. In a forked child it is a new one, since the
    thread that held it is not there; the child has no log, and counts its lines.
    """

    __slots__ = ("__dict__", "__weakref__", "lock")

    def __init__(self, recorder: Recorder, log: Log) -> None:
        self._log = log
        self.straight = log.straight
        self.lock = log.lock = recorder.lock
        self.pool, self.stream = recorder.pool, ToRecorder(recorder).stream
        self.mark, self.blocking, self.access = log.mark, log.blocking, log.access
        self.copy = log.copy
        self.record, self.wait, self.poll, self.drop = log.record, log.wait, log.poll, log.drop
        self.put, self.get = log.put, log.get
        self.alloc, self.free, self.touch = log.alloc, log.free, log.touch
        here = WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: (forked := here()) and forked())

    def _forked(self) -> None:
        self.lock = self._log.lock = Lock()


def watch(session: Session, device: Device, *, sites: bool = False) -> Device:
    """The device, traced. A further one's names begin with its number: `2.gpu`."""
    recorder = session.recorder
    with recorder.lock:
        known = [name for name in recorder.attachments if name.startswith(ATTACHED)]
        others = len(recorder.attachments) - len(known)
        prefix = f"{len(known) + 1}." if known else ""
        trace = session.trace
        sink: Sink
        if isinstance(trace, BinaryTrace) and session.check is None and not others and not recorder.ops:
            sink = ToLog(recorder, trace.log)
            session.ops = lambda: trace.log.ops
            trace.log.on_fault = lambda error: recorder.fault("the binary log", error)
        else:
            sink = ToRecorder(recorder)
        traced = Traced(device, sink, sites=sites, prefix=prefix, suffix=f".{session.pid}")
        recorder.attachments[f"{ATTACHED} {len(known) + 1}"] = traced
        session.about.setdefault("device", device.name)
    return traced
