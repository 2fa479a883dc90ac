"""Batched copies by the driver: `cuMemcpyBatchAsync`, and the descriptors that it is given.

A block of a pool is one range of bytes in each layer. Ids that are adjacent in both pools become one longer range (as
vLLM's `cuda_mem_ops` does), and each range is a descriptor a layer. A batch as a whole is in stream order, its
descriptors have no order among themselves; so their order is ours to choose, and they are sorted by source.

The driver is called through the address that cuda-bindings resolves: its own Python function takes lists of objects,
which costs some 0.3 µs a descriptor, while the driver reads the arrays here as they are. CUDA 12.8 has the function
with an index of what failed, CUDA 13 also one without; a 13 driver still gives the first to whoever asks for 12.8
(vLLM relies on that), so that is asked for first. The call releases the GIL.

Facts of the driver's documentation (`cuMemcpyBatchAsync`, CUDA 12.8 and 13): the stream must not be the legacy default
one; an attributes entry holds for all descriptors behind its index; location hints are for managed and pageable memory
only and are ignored for ours, they are set truthfully all the same. Not documented: what was issued of a batch of which
one descriptor was refused. vLLM saw crashes near 50,000 descriptors (issue 49276): a call has at most `BATCH`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsan.model.ops import Source
from kvsan.runtime.device import Copy, DeviceError, DeviceLostError, Ids

BATCH = 8192
"""Descriptors a call. More are several calls on the same stream, one after the other."""

ORDERS: dict[Source, str] = {"stream": "STREAM", "any": "ANY", "call": "DURING_API_CALL"}
"""`CU_MEMCPY_SRC_ACCESS_ORDER_…` by our word for it."""

REFUSED = frozenset(
    {
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "CUDA_ERROR_INVALID_CONTEXT",
        "CUDA_ERROR_INVALID_HANDLE",
        "CUDA_ERROR_NOT_PERMITTED",
        "CUDA_ERROR_NOT_SUPPORTED",
    }
)
"""Results that are about this call. Any other is an error of work issued earlier, or the device's own."""

LOST = (
    "the CUDA context is unusable from here on: end the process and start a new one. To find the work that failed, run "
    "again with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer"
)

_ARRAYS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_ATTRIBUTES = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_ABIS: dict[int, Any] = {
    12080: ctypes.CFUNCTYPE(ctypes.c_uint, *_ARRAYS, *_ATTRIBUTES, ctypes.c_void_p, ctypes.c_void_p),
    13000: ctypes.CFUNCTYPE(ctypes.c_uint, *_ARRAYS, *_ATTRIBUTES, ctypes.c_void_p),
}
"""By the version asked for: arrays and count, attributes and count, the failed index (12.8 only), the stream."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Where a pool's blocks lie: `layers` planes of `blocks` blocks of `size` bytes, without gaps."""

    base: int
    layers: int
    blocks: int
    size: int
    host: bool

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """The address of each layer."""
        return self.base + np.arange(self.layers, dtype=np.int64) * (self.blocks * self.size)


def check(copy: Copy, source: Plane, target: Plane) -> None:
    """Raises `DeviceError` if the copy's arguments do not fit the pools."""

    def refuse(what: str) -> DeviceError:
        return DeviceError(f"copy {copy.name!r}, {copy.source} to {copy.target}: {what}; nothing was issued")

    if len(copy.sources) != len(copy.targets):
        raise refuse(f"{len(copy.sources)} source blocks and {len(copy.targets)} target blocks; each needs its pair")
    if (source.layers, source.size) != (target.layers, target.size):
        raise refuse(
            f"blocks of {source.layers} × {source.size} bytes, of {target.layers} × {target.size}: must be alike"
        )
    for pool, ids, plane in ((copy.source, copy.sources, source), (copy.target, copy.targets, target)):
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= plane.blocks):
            raise refuse(f"block {int(ids.min())} or {int(ids.max())} of {pool}; it has blocks 0 to {plane.blocks - 1}")
    if copy.order not in ORDERS:
        raise refuse(f"source order {copy.order!r}; accepted: {', '.join(ORDERS)}")


def runs(sources: Ids, targets: Ids) -> tuple[Ids, Ids, Ids]:
    """First source, first target and length of each run of pairs that are adjacent in both pools, in blocks."""
    order = np.argsort(sources, kind="stable")
    sources, targets = sources[order], targets[order]
    breaks = np.flatnonzero((np.diff(sources) != 1) | (np.diff(targets) != 1)) + 1
    starts = np.concatenate((np.zeros(min(len(sources), 1), np.int64), breaks))
    return sources[starts], targets[starts], np.diff(np.append(starts, len(sources)))


class Descriptors:
    """Targets, sources and sizes as the driver reads them: one array, used again by each copy of one host thread."""

    def __init__(self) -> None:
        self._arrays = np.empty((3, 256), np.int64)

    def fill(self, copy: Copy, source: Plane, target: Plane) -> npt.NDArray[np.int64]:
        """(3, descriptors): target addresses, source addresses, sizes in bytes. Valid until the next call."""
        first, onto, lengths = runs(copy.sources, copy.targets)
        count = source.layers * len(first)
        if count > self._arrays.shape[1]:
            self._arrays = np.empty((3, 1 << (count - 1).bit_length()), np.int64)
        # The driver is given the address of each row, so a row's descriptors must lie one behind the other.
        out = self._arrays[:, :count]
        by_layer = out.reshape(3, source.layers, len(first))
        np.add(target.starts[:, None], onto * target.size, out=by_layer[0])
        np.add(source.starts[:, None], first * source.size, out=by_layer[1])
        by_layer[2] = lengths * source.size
        return out


class Batches:
    """The driver's function. `driver` is the module `cuda.bindings.driver`, `device` the ordinal of the GPU.

    Raises `DeviceError` if the driver has no such function (before CUDA 12.8).
    """

    def __init__(self, driver: Any, device: int = 0) -> None:
        self._driver, self._device = driver, device
        self._call, self.version = self._resolve()
        self._attributes: dict[tuple[Source, bool, bool], Any] = {}
        self._index = ctypes.c_size_t(0)  # one attributes entry, from descriptor 0 on

    def _resolve(self) -> tuple[Any, int]:
        answers = []
        for version, abi in _ABIS.items():
            result, address, *_ = self._driver.cuGetProcAddress(b"cuMemcpyBatchAsync", version, 0)
            if int(result) == 0 and address:
                return abi(int(address)), version
            answers.append(f"{version}: {getattr(result, 'name', result)}")
        raise DeviceError(f"the driver has no cuMemcpyBatchAsync ({', '.join(answers)}); it comes with CUDA 12.8")

    def attributes(self, order: Source, source: Plane, target: Plane) -> Any:
        """The attributes of such a copy, made once."""
        key = (order, source.host, target.host)
        made = self._attributes.get(key)
        if made is None:
            made = self._driver.CUmemcpyAttributes()
            made.srcAccessOrder = getattr(
                self._driver.CUmemcpySrcAccessOrder, f"CU_MEMCPY_SRC_ACCESS_ORDER_{ORDERS[order]}"
            )  # not an enum.Enum in every version: it has attributes and no items
            made.srcLocHint, made.dstLocHint = self._location(source), self._location(target)
            self._attributes[key] = made
        return made

    def _location(self, plane: Plane) -> Any:
        location = self._driver.CUmemLocation()
        kind = "HOST" if plane.host else "DEVICE"
        location.type = getattr(self._driver.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{kind}")
        location.id = 0 if plane.host else self._device
        return location

    def issue(self, copy: Copy, source: Plane, target: Plane, descriptors: npt.NDArray[np.int64], stream: int) -> None:
        """Issues the copy on a raw stream handle.

        Raises `DeviceError` if the driver refuses the first call, `DeviceLostError` if it reports an earlier error or
        refuses a later call of a copy that needs several: part of the copy is under way then.
        """
        attributes = int(self.attributes(copy.order, source, target).getPtr())
        failed = ctypes.c_size_t(ctypes.c_size_t(-1).value)
        where = (ctypes.byref(failed),) if self.version < 13000 else ()
        total = descriptors.shape[1]
        base = descriptors.__array_interface__["data"][0]
        rows = [base + row * descriptors.strides[0] for row in range(3)]
        for at in range(0, total, BATCH):
            arrays = [row + at * descriptors.itemsize for row in rows]
            count = min(BATCH, total - at)
            result = self._call(*arrays, count, attributes, ctypes.byref(self._index), 1, *where, stream)
            if result:
                raise self._error(copy, result, failed.value, at, total)

    def _error(self, copy: Copy, result: int, failed: int, at: int, total: int) -> RuntimeError:
        try:
            name = self._driver.CUresult(result).name
        except ValueError:
            name = f"error {result}"
        text = f"copy {copy.name!r}, {copy.source} to {copy.target}: cuMemcpyBatchAsync answered {name}"
        if failed < BATCH and self.version < 13000:
            text += f" at descriptor {at + failed} of {total}"
        if name not in REFUSED:
            return DeviceLostError(f"{text}; {LOST}")
        if at:
            return DeviceLostError(f"{text}, after {at} of {total} descriptors had been issued; end the run")
        return DeviceError(f"{text}; the copy was not issued and may be tried again")
