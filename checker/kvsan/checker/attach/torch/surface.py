"""What is hooked, as one value: the classes and functions of torch, or stand-ins of a few lines.

The name of a stream comes from (device, handle). What kind it is: handle 0 is the legacy default stream of its device
(torch's default stream), 2 the calling thread's own; PyTorch's pool streams are non-blocking; a stream from elsewhere
(`ExternalStream`) is asked, through `cudaStreamGetFlags` of the runtime that is loaded. If that cannot be asked, it is
taken as non-blocking and an unseen edge is counted, since it may be a blocking one.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsan.checker.attach.recorder import Recorder
from kvsan.model.ops import StreamKind

_NON_BLOCKING = 1
NAME = "_kvsan_name"
"""Where a stream object keeps (recorder, streams that were destroyed so far, its name)."""
_STAND_IN = "_kvsan_stands_in"
_DRIVER = "cuEventElapsedTime"


@dataclass(frozen=True, slots=True)
class Surface:
    """`replaced` are event classes that cannot be changed in place, `replaced_streams` stream classes, `handed_out`
    functions that return streams of those: `(module, name)` each.
    """

    events: Sequence[type] = ()
    streams: Sequence[type] = ()
    replaced: Sequence[tuple[Any, str]] = ()
    replaced_streams: Sequence[tuple[Any, str]] = ()
    handed_out: Sequence[tuple[Any, str]] = ()
    synchronize: Sequence[tuple[Any, str]] = ()
    tensors: Sequence[type] = ()
    graphs: Sequence[type] = ()
    current_stream: Callable[[], Any] = field(default=lambda: None)
    stream_of: Callable[[Any], Any] | None = None
    """The current stream of a tensor's device or of a device; without it `current_stream()`."""
    current: Callable[[], tuple[int, int]] | None = None
    """(device, handle) of the current stream, where that is to be had without making an object."""
    raw: tuple[Callable[[], int], Callable[[int], int]] | None = None
    """What `current` is made of: the current device, and the handle of its current stream."""
    devices: Callable[[], int] | None = None
    """How many devices there are: where there is one, hooks in C do not ask which is current."""
    device_of: Callable[[Any], Any] = field(default=lambda device: 0 if device is None else device)
    on_device: Callable[[Any], bool] = field(default=lambda tensor: False)
    external: tuple[type, ...] = ()
    version: str = ""


def torch_surface() -> Surface:
    """The torch that is installed."""
    import torch

    cuda = torch.cuda

    def device_of(device: Any) -> Any:
        if device is None:
            return cuda.current_device()
        if isinstance(device, int):
            return device
        index: int | None = torch.device(device).index
        return cuda.current_device() if index is None else index

    raw = _raw_stream(torch)
    return Surface(
        events=(cuda.Event,),
        streams=(cuda.Stream,),
        replaced=((torch, "Event"),) if hasattr(torch, "Event") else (),
        replaced_streams=((torch, "Stream"),) if hasattr(torch, "Stream") else (),
        handed_out=((torch.accelerator, "current_stream"),) if hasattr(torch, "accelerator") else (),
        synchronize=((cuda, "synchronize"),),
        tensors=(torch.Tensor,),
        graphs=(cuda.CUDAGraph,) if hasattr(cuda, "CUDAGraph") else (),
        current_stream=cuda.current_stream,
        stream_of=lambda what: cuda.current_stream(getattr(what, "device", what)),
        device_of=device_of,
        on_device=lambda tensor: bool(tensor.is_cuda),
        external=(cuda.ExternalStream,),
        current=None if raw is None else _current(*raw),
        raw=raw,
        devices=getattr(torch._C, "_cuda_getDeviceCount", None),
        version=str(torch.__version__),
    )


def _raw_stream(torch: Any) -> tuple[Callable[[], int], Callable[[int], int]] | None:
    """What TorchInductor's code asks for the current stream, unless torch's streams are somebody's stand-ins."""
    device = getattr(torch._C, "_cuda_getDevice", None)
    handle = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if device is None or handle is None or torch.cuda.current_stream.__module__ != torch.cuda.__name__:
        return None

    return device, handle


def _current(device: Callable[[], int], handle: Callable[[int], int]) -> Callable[[], tuple[int, int]]:
    def current() -> tuple[int, int]:
        where = device()
        return where, handle(where)

    return current


def stand_in(original: Any, name: str, keeps: str | None = None) -> Any:
    """A subclass that can be changed where the original cannot, and that takes the original's instances for its own.
    `keeps`: an attribute that its instances have a place of their own for, beside their dict. Raises `TypeError` if the
    original cannot have subclasses.
    """

    made: Any = original  # the class made below; until then none of its instances can be asked about

    class Meta(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, value: object) -> bool:  # a subclass of the stand-in is a class of its own
            return isinstance(value, original) if cls is made else bool(super().__instancecheck__(value))

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, original) if cls is made else bool(super().__subclasscheck__(other))

    body: dict[str, Any] = {"__module__": original.__module__, "__doc__": original.__doc__, _STAND_IN: True}
    if keeps is not None:
        more = (("__dict__", original.__dictoffset__), ("__weakref__", original.__weakrefoffset__))
        body["__slots__"] = (keeps, *(slot for slot, there in more if not there))
    if hasattr(original, "elapsed_time"):

        def elapsed_time(self: Any, end_event: Any) -> Any:
            """The original takes an end of its very class and of no subclass."""
            if isinstance(end_event, made) and type(end_event) is not original and self.device.type == "cuda":
                return _elapsed(original, self, end_event)
            return original.elapsed_time(self, end_event)

        body["elapsed_time"] = elapsed_time
    if hasattr(original, "record_event"):
        body["record_event"] = _record_event(original)
    made = Meta(name, (original,), body)
    return made


def _record_event(original: Any) -> Callable[..., Any]:
    """`torch.Stream.record_event` for a stand-in: the original takes an event of its very class and of no subclass
    (`torch/csrc/Stream.cpp`), and makes one where it is given none, which would go by the wrappers.
    """

    def record_event(self: Any, event: Any = None) -> Any:
        if event is None:
            event = sys.modules["torch"].Event(self.device, enable_timing=False)  # as the original makes it
        if not hasattr(type(event), _STAND_IN):
            return original.record_event(self, event)
        event.record(self)
        return event

    return record_event


def as_stand_in(made: Any, stream: Any) -> Any:
    """A `torch.Stream` that C++ has handed out, as one of the stand-in `made`. Others are returned as they are."""
    if type(stream) is not made.__mro__[1]:
        return stream
    return made(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def _elapsed(kind: Any, start: Any, end: Any) -> float:
    """Milliseconds between two events, asked of CUDA as `kind.elapsed_time` would ask."""
    first, last = int(start.event_id or 0), int(end.event_id or 0)
    if not first or not last:
        raise RuntimeError("Both events must be recorded before calculating elapsed time.")
    if not (kind.query(start) and kind.query(end)):
        raise RuntimeError("Both events must be completed before calculating elapsed time.")
    milliseconds, code = ctypes.c_float(), -1
    for library, function in (*((path, "cudaEventElapsedTime") for path in _runtimes()), ("libcuda.so.1", _DRIVER)):
        with contextlib.suppress(OSError, AttributeError):
            call = getattr(ctypes.CDLL(library), function)
            code = int(call(ctypes.byref(milliseconds), ctypes.c_void_p(first), ctypes.c_void_p(last)))
            if code == 0:
                return float(milliseconds.value)
    raise RuntimeError(f"CUDA error {code}: no elapsed time (were both events made with enable_timing=True?)")


def identity(stream: Any) -> tuple[Any, int]:
    """(device, handle) of a `torch.cuda.Stream`, a `torch.Stream` or a stand-in."""
    handle = getattr(stream, "cuda_stream", None)
    if handle is None:
        with contextlib.suppress(RuntimeError):  # a backend whose streams have none
            handle = getattr(stream, "native_handle", None)
    if handle is None and _is_cuda(stream):  # an older torch: the number of a `torch.Stream` is not the handle
        same = {name: getattr(stream, name) for name in ("stream_id", "device_index", "device_type")}
        handle = sys.modules["torch"].cuda.Stream(**same).cuda_stream
    if handle is None:
        handle = stream.stream_id
    index = getattr(stream, "device_index", None)
    if index is None:
        device = stream.device
        index = getattr(device, "index", device)
    return index or 0, int(handle)


def _is_cuda(stream: Any) -> bool:
    return getattr(getattr(stream, "device", None), "type", None) == "cuda"


def stream_name(
    recorder: Recorder, stream: Any, name: str | None = None, *, external: tuple[type, ...] | None = None
) -> str:
    """The recorder's name for a stream object; `name` is heard the first time. It is kept on the object if that lets
    it, for as long as no stream has been destroyed.
    """
    kept = getattr(stream, NAME, None)
    if kept is not None and kept[0] is recorder and kept[1] == recorder.streams_gone:
        return str(kept[2])
    device, handle = identity(stream)
    found = recorder.find_stream(device, handle)
    if found is not None:
        with contextlib.suppress(AttributeError, TypeError):
            setattr(stream, NAME, (recorder, recorder.streams_gone, found))
        return found
    kind: StreamKind | None = None
    if external is None:
        torch = sys.modules.get("torch")
        external = (torch.cuda.ExternalStream,) if torch is not None else ()
    if external and isinstance(stream, external) and handle > 2:
        flags = _flags(handle)
        if flags is None:
            recorder.unseen(edges=1, what="external stream whose kind cannot be asked")
        else:
            kind = "nonblocking" if flags & _NON_BLOCKING else "blocking"
    return recorder.stream(device, handle, name=name, kind=kind)


def _runtimes() -> set[str]:
    """Paths of the CUDA runtimes that this process has loaded."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return {line.split(maxsplit=5)[5].strip() for line in maps if "libcudart" in line}
    except (OSError, IndexError):
        return set()


def _flags(handle: int) -> int | None:
    """The flags of a stream, asked of the CUDA runtime that this process has loaded."""
    flags = ctypes.c_uint()
    for path in _runtimes():
        with contextlib.suppress(OSError, AttributeError):
            if ctypes.CDLL(path).cudaStreamGetFlags(ctypes.c_void_p(handle), ctypes.byref(flags)) == 0:
                return int(flags.value)
    return None
