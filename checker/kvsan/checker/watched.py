"""How a device of `kvsan.runtime` is bound to a session: which `kvsan.runtime.tracing.Sink` its lines go to.

To the recorder, as every other engine's do: then the session's trace, ring and checker have them. Where nothing is
checked and the trace is a binary log, straight to that: the recorder would make an op of each line for nobody. That is
only done if no other attachment logs to the session, since the two would number lines apart.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.binaryfile import BinaryTrace
from kvsan.runtime.binary import Log
from kvsan.runtime.device import Device
from kvsan.runtime.tracing import Traced

if TYPE_CHECKING:
    from kvsan.checker.session import Session

ATTACHED = "kvsan.runtime"


class ToRecorder:
    """A `Sink` of the runtime: the recorder's own methods. Streams are known to it by name alone."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.pool, self.mark, self.blocking = recorder.pool, recorder.mark, recorder.blocking
        self.access, self.record, self.wait, self.poll = recorder.access, recorder.record, recorder.wait, recorder.poll
        self.put, self.get, self.drop = recorder.put, recorder.get, recorder.drop
        self.alloc, self.free, self.touch = recorder.alloc, recorder.free, recorder.touch

    @property
    def lock(self) -> AbstractContextManager[Any]:
        return self._recorder.lock  # another one in a forked child

    def stream(self, name: str) -> str:
        return self._recorder.stream(0, -1 - len(self._recorder.streams), name=name, kind="nonblocking")


class ToLog(ToRecorder):
    """Lines go to the log alone; pools and streams to the recorder, which makes the header."""

    def __init__(self, recorder: Recorder, log: Log) -> None:
        super().__init__(recorder)
        self.mark, self.blocking = log.mark, log.blocking  # type: ignore[assignment]
        self.access, self.record, self.wait, self.poll = log.access, log.record, log.wait, log.poll  # type: ignore[assignment]
        self.put, self.get, self.drop = log.put, log.get, log.drop  # type: ignore[assignment]
        self.alloc, self.free, self.touch = log.alloc, log.free, log.touch  # type: ignore[assignment]


def watch(session: Session, device: Device, *, sites: bool = False) -> Device:
    """The device, traced. A further one's names begin with its number: `2.gpu`."""
    recorder = session.recorder
    with recorder.lock:
        known = [name for name in recorder.attachments if name.startswith(ATTACHED)]
        others = len(recorder.attachments) - len(known)
        prefix = f"{len(known) + 1}." if known else ""
        trace = session.trace
        sink: ToRecorder
        if isinstance(trace, BinaryTrace) and session.check is None and not others and not recorder.ops:
            sink = ToLog(recorder, trace.log)
            session.ops = lambda: trace.log.ops
            trace.log.lock = recorder.lock
            trace.log.on_fault = lambda error: recorder.fault("the binary log", error)
        else:
            sink = ToRecorder(recorder)
        traced = Traced(device, sink, sites=sites, prefix=prefix, suffix=f".{session.pid}")
        recorder.attachments[f"{ATTACHED} {len(known) + 1}"] = traced
        session.about.setdefault("device", device.name)
    return traced
