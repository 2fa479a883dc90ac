"""`OffloadingConnector`: each transfer on a stream of its own out of a pool, submitted by the worker's main thread.

`transfer_async` is wrapped for the block ids, and inside it the call that copies, for the stream, the source order and
the place of the line between the waits before it and the end event after it (all of them torch's, `attach.torch`).
Streams and events come back from pools under the same identity; a re-record replaces an earlier one.

Relied on: the handler keeps the copying function as `_swap_blocks_batch`, or calls `ops.swap_blocks_batch` or
`ops.swap_blocks` of its module. A copy by a Triton kernel reads its source in stream order, whatever order was asked.
Not covered: lives of the CPU blocks; and `planned`: a store is submitted a step later than it is decided, before the
next owner of its blocks can write them, which a generation alone would call wrong.
"""

from __future__ import annotations

import threading
from types import ModuleType, SimpleNamespace
from typing import Any

from kvsan.checker.attach.vllm.engine import Engine, argument, site
from kvsan.model.ops import Source

_MODULES = ("vllm.v1.kv_offload.cpu.gpu_worker", "vllm.v1.kv_offload.worker.cpu_gpu")


def install(engine: Engine) -> None:
    for name in _MODULES:
        engine.when(name, lambda module: _Handler(engine).install(module))


class _Handler:
    """The handler of one direction. `_open` is the transfer that the calling thread is submitting."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open = threading.local()
        self._transfer = engine.hook("offloading.transfer", expected=False)
        self._step = engine.hook("vllm.connector", expected=False)
        self._copy = engine.hook("offloading.copy")

    def install(self, module: ModuleType) -> None:
        cls = getattr(module, "SingleDirectionOffloadingHandler", None)
        self._engine.wrap(cls, "__init__", self._init, self._copy)
        self._engine.wrap(cls, "transfer_async", self._transfer_async, self._transfer)
        ops = getattr(module, "ops", None)
        if ops is not None:  # versions whose handler calls these by name; the latest keeps the function it chose
            names = [name for name in ("swap_blocks_batch", "swap_blocks") if hasattr(ops, name)]
            wrapped = {name: self._copying(getattr(ops, name)) for name in names}
            self._engine.patches.replace(module, "ops", _Over(ops, wrapped))

    def _init(self, original: Any) -> Any:
        recorder = self._engine.recorder

        def wrapper(handler: Any, *args: Any, **kwargs: Any) -> None:
            original(handler, *args, **kwargs)
            if recorder.on:
                with recorder.guard("offloading.copy"):
                    function = getattr(handler, "_swap_blocks_batch", None)
                    if function is not None and not hasattr(function, "kvsan_copying"):
                        handler._swap_blocks_batch = self._copying(function)
                    self._register(handler)

        return wrapper

    def _register(self, handler: Any) -> None:
        """The CPU pool is as large as the CPU tensors have rows."""
        tensors = [*handler.src_tensors, *handler.dst_tensors]
        rows = {int(tensor.shape[0]) for tensor in tensors if tensor.device.type == "cpu"}
        if rows:
            self._engine.register(self._cpu_pool(), max(rows))

    def _cpu_pool(self) -> str:
        return self._engine.device_pool.replace("gpu", "cpu", 1)

    def _transfer_async(self, original: Any) -> Any:
        recorder = self._engine.recorder
        parameters = [argument(original, name) for name in ("transfer_spec", "spec")]

        def wrapper(handler: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.on:
                return original(handler, *args, **kwargs)
            transfer = None
            with recorder.guard("offloading.transfer"):
                self._transfer.fired()
                self._step.fired()
                given = (get((handler, *args), kwargs) for get in parameters)
                source, target = next(spec for spec in given if spec is not None)
                transfer = SimpleNamespace(
                    store=bool(handler.gpu_to_cpu if hasattr(handler, "gpu_to_cpu") else source.medium() == "GPU"),
                    source=source.block_ids,
                    target=target.block_ids,
                    seen=False,
                )
            self._open.transfer = transfer
            try:
                done = original(handler, *args, **kwargs)
            finally:
                self._open.transfer = None
            if transfer is not None and not transfer.seen and len(transfer.source):
                recorder.unseen(copies=1, what=f"a transfer of OffloadingConnector (vLLM {self._engine.version})")
            return done

        return wrapper

    def _copying(self, function: Any) -> Any:
        """Around the call that copies."""
        recorder = self._engine.recorder
        is_kernel = "triton" in getattr(getattr(function, "func", function), "__module__", "")
        where = site(getattr(function, "func", function))

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            done = function(*args, **kwargs)
            transfer = getattr(self._open, "transfer", None)
            if transfer is not None and not transfer.seen and recorder.on:
                with recorder.guard("offloading.copy"):
                    transfer.seen = True
                    any_order = bool(kwargs.get("is_src_access_order_any", False)) and not is_kernel
                    self._log(transfer, "any" if any_order else "stream", where)
            return done

        wrapper.kvsan_copying = function  # type: ignore[attr-defined]
        return wrapper

    def _log(self, transfer: Any, order: Source, where: str | None) -> None:
        engine = self._engine
        self._copy.fired()
        label = "store" if transfer.store else "load"
        gpu, cpu = engine.device_pool, self._cpu_pool()
        source, target = (gpu, cpu) if transfer.store else (cpu, gpu)
        engine.recorder.access(
            label,
            on=engine.current_stream(label),
            reads={source: transfer.source},
            writes={target: transfer.target},
            order=order,
            site=where,
        )


class _Over:
    """A module with some of its names replaced, for one importer of it."""

    def __init__(self, module: Any, names: dict[str, Any]) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
