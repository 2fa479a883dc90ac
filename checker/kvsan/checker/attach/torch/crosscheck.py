"""PyTorch's own trace callbacks as the ledger's cross-check: what went by the wrappers.

`torch.cuda._gpu_trace` calls back for every record and wait that goes through PyTorch, whoever makes it. Where in the
call it does so varies, and no lock can be held over call and line, so from there no line is logged. A wait outside a
wrapped call counts as an unseen edge, and so does a record of an event that our wrappers know. A record of any other
event orders nothing until somebody waits for it: PyTorch's pinned-memory allocator records one for every block that it
takes back, and looks at it itself (about one a step in vLLM). Such events are remembered by handle, and a wrapped wait
for one of them counts as an unseen edge. Synchronisation of a stream is the exception. It is called at the
entry of the blocking call, which is where its line belongs (`TRACE.md`), and PyTorch's C++ blocks in many places that
no wrapper reaches (`nonzero`, indexing with a mask): it becomes a `sync` of that stream on the current device.

Every copy between host and device that blocks is one of them: `c10/cuda/CUDAFunctions.h` calls back in
`memcpy_and_sync` and `stream_synchronize`, and `copy_` without `non_blocking` (`aten/src/ATen/native/cuda/Copy.cu`; so
`to`, `cpu`, `tolist` too) and `item` (`CUDAScalar.cu`) go through the first. So with the callbacks armed no tensor
method has to be wrapped for the order that it makes (`calls`).

`uninstall` takes ours out of PyTorch's lists. `pause` stops PyTorch from making calls, if nobody else hears them
(`gputrace`). In some steps of many they are enough, if what blocks is wrapped as well (`sampling`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kvsan.checker.attach.torch import gputrace

if TYPE_CHECKING:
    from kvsan.checker.attach.ledger import Hook
    from kvsan.checker.attach.torch.calls import Calls


class CrossCheck:
    """Counts. Nothing without a GPU build of torch."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._here = calls.here
        self._on = False
        self._trace: ModuleType | None = None
        self._ours: dict[int, bool] = {}
        """Handle of an event → whether a wrapped call recorded it last."""
        self._gone: deque[int] = deque()
        self._going = threading.Lock()
        self.deletion_call: Callable[[int], None] = self._gone.append
        """The handle may come back as another event. Called for each event that ends: no Python is run for it."""
        self._hook: Hook | None = None
        self.alone = 0
        """How often it saw what no wrapper did: an order, or a stream waited for."""
        self._flag: Any = None
        self._callbacks = (self.record_call, self.wait_call, self.deletion_call, self.stream_sync)

    def install(self) -> None:
        self._hook = self._calls.recorder.ledger.hook(
            "torch.gpu_trace", expected=False, version=self._calls.surface.version
        )
        try:
            import torch
            from torch.cuda import _gpu_trace as trace

            if not torch.cuda.is_available():
                self._hook.missing("no GPU")
                return
            trace.register_callback_for_event_record(self.record_call)
            trace.register_callback_for_event_wait(self.wait_call)
            trace.register_callback_for_event_deletion(self.deletion_call)
            trace.register_callback_for_stream_synchronization(self.stream_sync)
            torch._C._activate_gpu_trace()
            self._trace = trace
        except (ImportError, AttributeError) as error:
            self._hook.missing(str(error))
            return
        self._flag = gputrace.armed_flag()
        gputrace.shorten(trace, self, self._callbacks, flag=self._flag)
        self.arm()

    def uninstall(self) -> None:
        self._on = False
        if self._trace is not None:
            gputrace.restore(self._trace, self, self._callbacks, flag=self._flag)
        self._trace = None

    def arm(self) -> None:
        """The callbacks are registered. A test calls it as if they were."""
        self._on = True
        self._calls.relax()

    @property
    def armed(self) -> bool:
        return self._on

    def pause(self) -> bool:
        """Nothing is heard. What events were is not known afterwards. Returns whether PyTorch still makes calls."""
        if self._trace is None:
            return False
        return gputrace.shorten(self._trace, self, self._callbacks, silent=True, flag=self._flag)

    def resume(self) -> None:
        self._ours.clear()
        self._gone.clear()
        if self._trace is not None:
            gputrace.shorten(self._trace, self, self._callbacks, flag=self._flag)

    def doubt(self) -> None:
        """What showed just now may have happened before, where nobody listened."""
        self._calls.recorder.unseen(edges=1, what="orders that no wrapper sees, maybe in steps that were not watched")

    def record_call(self, event: int, stream: int) -> None:
        if self._gone:
            self._forget()
        if self._here.busy:
            self._ours[event] = True
        elif self._on and self._calls.recorder.on:
            if self._ours.get(event):
                self.alone += 1
                self._calls.recorder.unseen(edges=1, what="record of a known event that no wrapper saw")
            else:
                self._ours[event] = False

    def wait_call(self, event: int, stream: int) -> None:
        if self._gone:
            self._forget()
        if self._here.busy:
            if self._ours.get(event, True) or not self._on:
                return
            what = "wait for an event whose record no wrapper saw"
        else:
            what = "wait that no wrapper saw"
        if self._on and self._calls.recorder.on:
            self.alone += 1
            self._calls.recorder.unseen(edges=1, what=what)

    def _forget(self) -> None:
        """Events that have ended. A handle is in `_gone` until it is forgotten, so that nobody is ahead of that."""
        gone, ours = self._gone, self._ours
        with self._going:
            while gone:
                ours.pop(gone[0], None)
                gone.popleft()

    def stream_sync(self, stream: int) -> None:
        recorder = self._calls.recorder
        if self._here.busy or not self._on or not recorder.on:
            return
        self.alone += 1
        try:
            if self._hook is not None:
                self._hook.count += 1
            device = self._calls.surface.device_of(None)
            name = recorder.find_stream(device, stream) or recorder.stream(device, stream)
            recorder.seen_done(stream=name)
        except Exception as error:
            recorder.fault("gpu_trace", error)
