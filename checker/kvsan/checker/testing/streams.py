"""A simulated stream and a simulated event: methods, arguments and errors of torch's. `cuda` says what they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsan.checker.testing.timeline import Past

if TYPE_CHECKING:
    from kvsan.checker.testing.cuda import SimulatedCuda

_NOT_RECORDED = "Both events must be recorded before calculating elapsed time."
_NOT_TIMED = "Both events must be created with argument 'enable_timing=True'."
_NOT_DONE = "Both events must be completed before calculating elapsed time."


class SimulatedStream:
    """Stands for `torch.cuda.Stream`. Two objects with one id are one stream, and equal."""

    _cuda: SimulatedCuda
    _refused = 0

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int = 1,
    ) -> None:
        cuda = self._cuda
        if stream_id is None:
            cuda.call()
        self.device_index = cuda.index_of(device) if device_index is None else device_index
        self.device_type = device_type
        self.priority = min(priority, 0)
        self.stream_id = cuda._stream_id(self.device_index, priority) if stream_id is None else stream_id
        self.device = cuda.device_type(self.device_index)
        self.key = (self.device_index, self.stream_id)
        self.cuda_stream = 0 if self.stream_id == 0 else (self.device_index + 1 << 24) + (self.stream_id << 8)
        self._entered: list[Any] = []

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        if event is None:
            event = self._cuda.Event()
        event.record(self)
        return event

    def query(self) -> bool:
        cuda = self._cuda
        cuda.call()
        with cuda._lock:
            if cuda.current_stream(self.device_index) == self:
                cuda._launched(self)  # what was launched on it nobody says
            return cuda.answer(cuda.timeline.all_of(self.key), self)

    def synchronize(self) -> None:
        cuda = self._cuda
        cuda.call()
        with cuda._lock:
            cuda.timeline.finish(cuda.timeline.all_of(self.key))

    def __enter__(self) -> Any:
        entered = self._cuda.stream(self)
        entered.__enter__()
        self._entered.append(entered)
        return self

    def __exit__(self, *what: Any) -> None:
        self._entered.pop().__exit__(*what)

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimulatedStream) and other._cuda is self._cuda and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"<simulated torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class SimulatedEvent:
    """Stands for `torch.cuda.Event`: made lazily, by the first record."""

    _cuda: SimulatedCuda
    _refused = 0

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        self.enable_timing, self.blocking, self.interprocess = enable_timing, blocking, interprocess
        self.cuda_event = 0
        self._device: int | None = None
        self._captured: Past | None = None
        self._tick = 0

    @property
    def device(self) -> Any:
        return None if self._device is None else self._cuda.device_type(self._device)

    def record(self, stream: Any = None) -> None:
        cuda = self._cuda
        stream = cuda.current_stream() if stream is None else stream
        if self._device is None:
            self._device, self.cuda_event = stream.device_index, cuda._next()
        if self._device != stream.device_index:
            raise RuntimeError(
                f"Event device {self._device} does not match recording stream's device {stream.device_index}."
            )
        cuda.call()
        with cuda._lock:
            self._captured, self._tick, self._refused = cuda.timeline.record(stream.key), cuda._next(), 0

    def wait(self, stream: Any = None) -> None:
        cuda = self._cuda
        stream = cuda.current_stream() if stream is None else stream
        if self._captured is None:
            return
        cuda.call()
        with cuda._lock:
            cuda.timeline.wait(stream.key, self._captured)

    def query(self) -> bool:
        cuda = self._cuda
        if self._captured is None:
            return True
        cuda.call()
        return cuda.answer(self._captured, self)

    def synchronize(self) -> None:
        cuda = self._cuda
        if self._captured is None:
            return
        cuda.call()
        with cuda._lock:
            cuda.timeline.finish(self._captured)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds: a tick of the simulation's own count for each call between; it measures nothing."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError(_NOT_TIMED)
        if self._captured is None or end_event._captured is None:
            raise ValueError(_NOT_RECORDED)
        if not (self.query() and end_event.query()):
            raise RuntimeError(_NOT_DONE)
        return float(end_event._tick - self._tick)

    def ipc_handle(self) -> Any:
        raise NotImplementedError("a simulated event has no IPC handle: simulate one process")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: Any) -> Any:
        raise NotImplementedError("a simulated event has no IPC handle: simulate one process")

    def __repr__(self) -> str:
        name = f"{self.cuda_event:#x}" if self.cuda_event else "uninitialized"
        return f"<simulated torch.cuda.Event {name}>"
