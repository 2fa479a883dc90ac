"""PyTorch's own trace callbacks as the ledger's cross-check: what went by the wrappers.

`torch.cuda._gpu_trace` calls back for every record and wait that goes through PyTorch, whoever makes it. Where in the
call it does so varies, and no lock can be held over call and line, so from there no line is logged. A wait outside a
wrapped call counts as an unseen edge, and so does a record of an event that our wrappers know. A record of any other
event orders nothing until somebody waits for it: PyTorch's pinned-memory allocator records one for every block that it
takes back, and looks at it itself (about one a step in vLLM). Such events are remembered by handle, and a wrapped wait
for one of them counts as an unseen edge. Synchronisation of a stream is the exception. It is called at the
entry of the blocking call, which is where its line belongs (`TRACE.md`), and PyTorch's C++ blocks in many places that
no wrapper reaches (`nonzero`, indexing with a mask): it becomes a `sync` of that stream on the current device.

There is no way to disarm the callbacks once armed; `uninstall` takes ours out of PyTorch's lists.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsan.checker.attach.torch.calls import Calls


class CrossCheck:
    """Counts. Nothing without a GPU build of torch."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._on = False
        self._trace: ModuleType | None = None
        self._ours: set[int] = set()  # handles of events that a wrapped call recorded last
        self._foreign: set[int] = set()  # of those recorded where no wrapper saw it

    def install(self) -> None:
        hook = self._calls.recorder.ledger.hook("torch.gpu_trace", expected=False, version=self._calls.surface.version)
        try:
            import torch
            from torch.cuda import _gpu_trace as trace

            if not torch.cuda.is_available():
                hook.missing("no GPU")
                return
            trace.register_callback_for_event_record(self.record_call)
            trace.register_callback_for_event_wait(self.wait_call)
            trace.register_callback_for_event_deletion(self.deletion_call)
            trace.register_callback_for_stream_synchronization(self.stream_sync)
            torch._C._activate_gpu_trace()
            self._trace = trace
        except (ImportError, AttributeError) as error:
            hook.missing(str(error))
            return
        self._on = True

    def uninstall(self) -> None:
        self._on = False
        ours = (self.record_call, self.wait_call, self.deletion_call, self.stream_sync)
        for registry in list(vars(self._trace).values()) if self._trace is not None else ():
            held = getattr(registry, "callback_list", None)
            if isinstance(held, list) and any(each in held for each in ours):  # a new list: another thread may be in it
                registry.callback_list = [each for each in held if each not in ours]
        self._trace = None

    def record_call(self, event: int, stream: int) -> None:
        if not self._on or not self._calls.recorder.on:
            return
        if self._calls.here.busy:
            self._ours.add(event)
            self._foreign.discard(event)
        elif event in self._ours:
            self._calls.recorder.unseen(edges=1, what="record of a known event that no wrapper saw")
        else:
            self._foreign.add(event)

    def wait_call(self, event: int, stream: int) -> None:
        if not self._on or not self._calls.recorder.on:
            return
        if not self._calls.here.busy:
            self._calls.recorder.unseen(edges=1, what="wait that no wrapper saw")
        elif event in self._foreign:
            self._calls.recorder.unseen(edges=1, what="wait for an event whose record no wrapper saw")

    def deletion_call(self, event: int) -> None:
        """The handle may come back as another event."""
        self._ours.discard(event)
        self._foreign.discard(event)

    def stream_sync(self, stream: int) -> None:
        calls = self._calls
        here = calls.here
        if not self._on or not calls.recorder.on or here.busy:
            return
        with calls.recorder.guard("gpu_trace"):
            calls.recorder.ledger.hook("torch.gpu_trace", expected=False).fired()
            name = calls.recorder.stream(calls.surface.device_of(None), stream)
            calls.recorder.seen_done(stream=name)

    def arm(self) -> None:
        """For tests: as if the callbacks had been registered."""
        self._on = True
