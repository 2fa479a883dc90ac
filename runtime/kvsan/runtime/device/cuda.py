"""The device that serves: one NVIDIA GPU by torch's streams and events and the driver's batched copies.

Streams are torch's own, which are never the legacy default stream: the driver refuses a batch there, and that stream
would order what no design asked it to. A side stream has the lowest priority that the device has (0, which is also the
default; priority orders nothing). torch has `STREAMS` streams a priority and then gives the same ones again; a device
takes none twice, which would order what two names say is unordered. Host pools are pinned by
torch, which may take up to twice their size (it rounds up to a power of two).

Copies are `cuMemcpyBatchAsync` (`batch.py`) if cuda-bindings is installed and the driver has it, else torch's `copy_`,
one call a run of adjacent blocks and layer; which one, the device's name says. `copy_` reads its source in stream
order, so `any` orders more there than it must; for `call` it waits for the stream. That is the one place where a copy
blocks.

CUDA reports an error of a kernel at some later call. It is raised as `DeviceLostError` and not mended.

Not here: which events there are and what waits for what (`issue.py`). Not covered: several GPUs, graph capture, NUMA.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
import torch

from kvsan.runtime.device import Copy, DeviceError, DeviceLostError, Ids, Kernel
from kvsan.runtime.device.batch import LOST, Batches, Descriptors, Plane, check, runs
from kvsan.runtime.device.events import Events
from kvsan.runtime.device.workers import Workers

Copies = Literal["auto", "batch", "copy_"]

STREAMS = 32
"""How many streams of a priority torch has (c10/cuda/CUDAStream.cpp, `kStreamsPerPool`)."""

T = TypeVar("T")


class CudaDevice:
    """The GPU of that ordinal. `copies`: `batch` for the driver's batched copies or an error, `copy_` for torch's.

    The calling thread is the main host thread. Raises `DeviceError` if there is no such GPU.
    """

    def __init__(self, index: int = 0, *, copies: Copies = "auto") -> None:
        if not torch.cuda.is_available():
            raise DeviceError(f"no GPU: torch {torch.__version__} sees no CUDA device; `simulated` runs on any CPU")
        if not 0 <= index < torch.cuda.device_count():
            raise DeviceError(f"no GPU {index}: torch sees {torch.cuda.device_count()}, from 0 on")
        self.index = index
        torch.cuda.set_device(index)
        torch.cuda.synchronize()  # makes the thread's context, which the driver's own functions need
        self.events: Events[Any] = Events(torch.cuda.Event)
        self.batches, self._context, self._why = _batches(index, copies)
        self._streams: dict[str, Any] = {}
        self._pools: dict[str, tuple[Plane, Any]] = {}
        self._hosts: dict[str, CudaHost] = {}
        self.workers = Workers(self._enter)
        self._closed = False

    @property
    def name(self) -> str:
        how = "cuMemcpyBatchAsync" if self.batches else f"copy_ ({self._why})"
        return f"{torch.cuda.get_device_name(self.index)}, {how}"

    def _enter(self) -> None:
        """What a new host thread needs: torch's current device and the driver's current context."""
        torch.cuda.set_device(self.index)
        if self._context is not None:  # `set_device` alone makes none for the device that is current already
            driver, context = self._context
            _ok(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────

    def memory(self, pool: str, shape: tuple[int, ...], *, host: bool) -> Any:
        """Raises `DeviceError` if it does not fit, or if there is a pool of that name."""
        if len(shape) < 2 or min(shape) < 1:
            raise DeviceError(f"pool {pool!r} of shape {shape}; accepted: (layers, blocks, …), each at least 1")
        if pool in self._pools:
            raise DeviceError(f"there is a pool {pool!r} already")
        tensor = self._allocate(f"pool {pool!r}", shape, host=host)
        plane = Plane(tensor.data_ptr(), shape[0], shape[1], prod(shape[2:]) * 8, host)
        self._pools[pool] = plane, tensor.view(shape[0], shape[1], -1)
        return tensor

    def tensor(self, shape: tuple[int, ...], *, host: bool) -> Any:
        """Raises `DeviceError` if it does not fit."""
        return self._allocate("a tensor", shape, host=host)

    def _allocate(self, what: str, shape: tuple[int, ...], *, host: bool) -> Any:
        size = prod(shape) * 8
        if host:
            return self._pinned(what, size).view(shape)
        try:
            tensor = torch.zeros(shape, dtype=torch.int64, device=f"cuda:{self.index}")
        except torch.cuda.OutOfMemoryError as error:
            raise DeviceError(f"{what} of {size:,} bytes does not fit on the GPU: {error}") from error
        torch.cuda.synchronize(self.index)  # our streams are not ordered behind the one that zeroed it
        return tensor

    def _pinned(self, what: str, size: int) -> Any:
        try:
            return torch.zeros(size // 8, dtype=torch.int64, pin_memory=True)
        except RuntimeError as error:
            raise DeviceError(f"{what} of {size:,} bytes cannot be pinned in host memory: {error}") from error

    def plane(self, pool: str) -> Plane:
        """Where the pool's blocks lie."""
        return _named(self._pools, pool, "pool")[0]

    def words(self, pool: str) -> Any:
        """The pool's memory, (layers, blocks, words a block)."""
        return _named(self._pools, pool, "pool")[1]

    # ── streams, hosts, threads ───────────────────────────────────────────────────────────────────────────────────

    def stream(self, name: str, *, side: bool) -> None:
        """Raises `DeviceError` for a name that there is, or if torch has no further stream."""
        if name in self._streams:
            raise DeviceError(f"there is a stream {name!r} already")
        lowest, _ = torch.cuda.Stream.priority_range()
        taken = {one.cuda_stream for one in self._streams.values()}
        for _ in range(STREAMS):
            made = torch.cuda.Stream(self.index, priority=lowest if side else 0)
            if made.cuda_stream not in taken:
                self._streams[name] = made
                return
        raise DeviceError(f"stream {name!r} is one too many: torch has {STREAMS} of a priority")

    def handle(self, stream: str) -> Any:
        """torch's stream of that name."""
        return _named(self._streams, stream, "stream")

    def host(self, name: str) -> CudaHost:
        if name not in self._hosts:
            self._hosts[name] = CudaHost(self, name)
        return self._hosts[name]

    def thread(self, name: str, turn: Callable[[], bool]) -> None:
        """A daemon thread that sleeps when there is nothing to do, until something is put in a queue."""
        self.workers.start(name, turn)

    def turns(self) -> None:
        """Raises what a thread's turn raised."""
        self.workers.check()

    def close(self) -> None:
        """The threads empty their queues first. Raises what a turn raised, `DeviceLostError` if the GPU reports an
        error; in any case the threads are ended."""
        if self._closed:
            return
        self._closed = True
        self.workers.stop()
        try:
            for stream in self._streams.values():
                stream.synchronize()
        except torch.AcceleratorError as error:
            lost("close", error)
        self.workers.check()


class CudaHost:
    """One host thread of the device; used in that thread only."""

    def __init__(self, device: CudaDevice, name: str) -> None:
        self.device, self._name = device, name
        self._descriptors = Descriptors()

    @property
    def name(self) -> str:
        return self._name

    def record(self, stream: str, event: str) -> None:
        handle = self.device.handle(stream)
        try:
            self.device.events.record(event, lambda one: one.record(handle))
        except torch.AcceleratorError as error:
            lost(f"record of {event} on {stream}", error)

    def wait(self, stream: str, event: str) -> None:
        handle = self.device.handle(stream)
        try:
            self.device.events.use(event, lambda one: one.wait(handle) is None)
        except torch.AcceleratorError as error:
            lost(f"wait of {stream} for {event}", error)

    def query(self, event: str) -> bool:
        try:
            return self.device.events.use(event, lambda one: bool(one.query()))
        except torch.AcceleratorError as error:
            lost(f"query of {event}", error)

    def sync(self, event: str) -> None:
        """torch releases the GIL while it waits (`torch/csrc/cuda/Event.cpp`), so other host threads go on."""
        with self.device.events.blocked(event) as one:
            if one is None:
                return
            try:
                one.synchronize()
            except torch.AcceleratorError as error:
                lost(f"sync with {event}", error)

    def drop(self, event: str) -> None:
        self.device.events.drop(event)

    def copy(self, stream: str, copy: Copy) -> None:
        handle = self.device.handle(stream)
        source, target = self.device.plane(copy.source), self.device.plane(copy.target)
        check(copy, source, target)
        if not len(copy.sources):
            return
        if self.device.batches is None:
            self._copy_by_torch(handle, copy)
            return
        descriptors = self._descriptors.fill(copy, source, target)
        self.device.batches.issue(copy, source, target, descriptors, handle.cuda_stream)

    def _copy_by_torch(self, handle: Any, copy: Copy) -> None:
        source, target = self.device.words(copy.source), self.device.words(copy.target)
        try:
            with torch.cuda.stream(handle):
                copy_runs(source, target, copy.sources, copy.targets)
            if copy.order == "call":
                handle.synchronize()
        except torch.AcceleratorError as error:
            lost(f"copy {copy.name!r}", error)

    def launch(self, stream: str, kernel: Kernel) -> None:
        try:
            with torch.cuda.stream(self.device.handle(stream)):
                for part in kernel.parts:
                    part()
        except torch.AcceleratorError as error:
            lost(f"kernel {kernel.name!r}", error)

    def work(self, kernel: Kernel) -> None:
        for part in kernel.parts:
            part()

    def put(self, queue: str, item: Any) -> None:
        self.device.workers.put(queue, item)

    def get(self, queue: str) -> Any:
        return self.device.workers.get(queue)

    def alloc(self, pool: str, blocks: Ids) -> None:
        pass

    def free(self, pool: str, blocks: Ids) -> None:
        pass

    def touch(self, pool: str, blocks: Ids) -> None:
        pass

    def plan(self, pool: str, blocks: Ids, work: str) -> None:
        pass


def copy_runs(source: Any, target: Any, sources: Ids, targets: Ids) -> None:
    """The copy by torch's `copy_`, a call for each run and layer, on the stream that is current.

    Each slice is contiguous: of others torch makes a contiguous temporary first, and of the host's it makes it at once,
    which would read the source before the stream's earlier work.
    """
    starts, onto, lengths = runs(sources, targets)
    for s, t, n in np.stack((starts, onto, lengths), axis=1).tolist():
        for layer in range(source.shape[0]):
            target[layer, t : t + n].copy_(source[layer, s : s + n], non_blocking=True)


def lost(call: str, error: Exception) -> NoReturn:
    """An error that CUDA reports at a call is of some work issued before it."""
    first = str(error).partition("\n")[0]
    raise DeviceLostError(f"{call}: {first}. The work that failed was issued earlier; {LOST}") from error


def _named(known: dict[str, T], name: str, what: str) -> T:
    made = known.get(name)
    if made is None:
        raise DeviceError(f"no {what} {name!r}; there are {', '.join(known) or 'none'}")
    return made


def _ok(answer: tuple[Any, ...], call: str) -> Any:
    result, *values = answer
    if int(result):
        raise DeviceError(f"{call} answered {getattr(result, 'name', result)}")
    return values[0] if values else None


def _batches(index: int, copies: Copies) -> tuple[Batches | None, tuple[Any, Any] | None, str]:
    """The driver's batched copies and the context that threads need for them, or why there are none."""
    if copies == "copy_":
        return None, None, "as asked for"
    if copies not in ("auto", "batch"):
        raise DeviceError(f"copies {copies!r}; accepted: auto, batch, copy_")
    try:
        from cuda.bindings import driver

        made = Batches(driver, index)
        context = _ok(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
        if not int(context):
            raise DeviceError("the driver has no current context, though torch has a device")
    except (ImportError, DeviceError) as error:
        why = "cuda-bindings is not installed: kvsan[gpu]" if isinstance(error, ImportError) else str(error)
        if copies == "batch":
            raise DeviceError(f"no batched copies: {why}") from error
        return None, None, why
    return made, (driver, context), ""
