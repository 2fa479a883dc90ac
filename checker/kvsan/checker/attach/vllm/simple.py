"""`SimpleCPUOffloadConnector`: a worker thread that submits, a copy thread that copies, a list of what is done.

Seen: the job put in the queue and taken from it; `copy_blocks` where the copy thread finds it; the completion lists,
looked at by the poll and by the flush before preempted blocks are reused. The source order is the one in the copy's
own parameters. The events and waits around the copy are torch's (`attach.torch`).

`copy_blocks` is logged after the call without a lock over it: it may take milliseconds, no other thread issues on the
copy streams, and none can learn of the copy before the event that the same thread records next.

Relied on: `DmaCopyBackend.init` builds `_store_params` and `_load_params` and starts the thread on a `SimpleQueue`
that it takes from its module's `queue`; nobody resizes the ctypes structure in a copy's parameters, since C reads the
order in its memory. Not covered: the disk backend's files; a kernel backend.
"""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

from kvsan.checker.attach.handoff import HandingList
from kvsan.checker.attach.native import HOT, quick
from kvsan.checker.attach.recorder import KvsanHazard
from kvsan.checker.attach.vllm import pools
from kvsan.checker.attach.vllm.engine import Engine, argument, site
from kvsan.checker.attach.vllm.handoff import Plan, Queue
from kvsan.model.ops import Source

_PACKAGE = "vllm.v1.simple_kv_offload"
_ORDERS: dict[int, Source] = {1: "stream", 2: "call", 3: "any"}  # CUmemcpySrcAccessOrder


def install(engine: Engine) -> None:
    engine.when(f"{_PACKAGE}.copy_backend", lambda module: Copies(engine).install(module))
    engine.when(f"{_PACKAGE}.worker", lambda module: _worker(engine, module))
    engine.when(f"{_PACKAGE}.manager", lambda module: _manager(engine, module))


class Copies:
    """The copy thread and its queue."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._plan = Plan()
        self._known: dict[int, tuple[Any, str, str]] = {}  # id of a copy's parameters → they, direction, stream
        self._pools = ("gpu", "cpu")
        """Of this process's rank."""
        self._routes: Any = None
        """The same as `_known` and `_pools` for C."""
        self._put = engine.hook("simple.submit")
        self._get = engine.hook("simple.take")
        self._copy = engine.hook("simple.copy")

    def install(self, module: ModuleType) -> None:
        engine = self._engine
        backend = getattr(module, "DmaCopyBackend", None)
        engine.wrap(backend, "init", self._init, self._copy)
        engine.wrap(module, "copy_blocks", self._copy_blocks, self._copy)  # imported by name: this name is the one used
        if hasattr(getattr(module, "queue", None), "SimpleQueue"):
            engine.patches.replace(module, "queue", _Queues(self, module.queue))
        else:
            self._put.missing("copy_backend takes its queue from elsewhere")

    def queue(self, inner: Any) -> Queue:
        made = Queue(self._engine.recorder, inner, self._plan, self._put, self._get)
        self._engine.hands(made)
        return made

    def _init(self, original: Any) -> Any:
        engine, recorder = self._engine, self._engine.recorder
        streams = {direction: argument(original, f"{direction}_stream") for direction in ("load", "store")}

        def wrapper(backend: Any, *args: Any, **kwargs: Any) -> Any:
            names = {}
            if recorder.on:
                with recorder.guard("simple.copy"):
                    for direction, stream in streams.items():
                        names[direction] = engine.stream(stream((backend, *args), kwargs), direction)
            done = original(backend, *args, **kwargs)
            with recorder.guard("simple.copy"):
                for direction, name in names.items():
                    params = getattr(backend, f"_{direction}_params")
                    self._know(params, direction, name)
            return done

        return wrapper

    def _know(self, params: Any, direction: str, on: str) -> None:
        self._known[id(params)] = (params, direction, on)
        if self._routes is not None:
            attrs = getattr(params, "attrs", None)
            self._routes.add(params, attrs, _order_in_memory(params, attrs), direction == "load", direction, on)

    def _copy_blocks(self, original: Any) -> Any:
        recorder, where = self._engine.recorder, site(original)

        def issued(src_block_ids: Any, dst_block_ids: Any, params: Any) -> None:
            if recorder.on:
                try:
                    if len(src_block_ids):
                        self._log(src_block_ids, dst_block_ids, params, where)
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault("simple.copy", error)

        def wrapper(src_block_ids: Any, dst_block_ids: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(src_block_ids, dst_block_ids, params, *args, **kwargs)
            issued(src_block_ids, dst_block_ids, params)
            return done

        if HOT is not None:
            self._routes = HOT.Routes(self._plan, self._engine, tuple(_ORDERS.values()), where)
            self._routes.name(*self._pools)
        more = (self._routes, issued)
        return quick("copy_blocks", original, wrapper, recorder, self._copy, None, None, None, more)

    def _log(self, sources: Any, targets: Any, params: Any, where: str | None) -> None:
        recorder = self._engine.recorder
        known = self._known.get(id(params))
        order = _ORDERS.get(int(params.attrs.srcAccessOrder))
        if known is None or order is None:
            recorder.unseen(copies=1, what="copy_blocks with parameters that DmaCopyBackend.init did not build")
            return
        self._copy.count += 1
        _, direction, on = known
        gpu = self._engine.device_pool
        if gpu != self._pools[0]:
            self._pools = (gpu, gpu.replace("gpu", "cpu", 1))
            if self._routes is not None:
                self._routes.name(*self._pools)
        target, source = self._pools if direction == "load" else self._pools[::-1]
        planned = self._plan.planned
        if recorder.pack_copy(direction, on, source, sources, target, targets, order, planned, where):
            return
        with recorder.lock:
            who, read, written = recorder.thread_name(), {source: sources}, {target: targets}
            recorder.add_access(direction, who, on, read, written, order, True, planned, None, None, where)


def _order_in_memory(params: Any, attrs: Any) -> int:
    """The address of `params.attrs.srcAccessOrder`, for who keeps `attrs`; 0 if it is no number of C's in a place that
    stays: in a structure that nobody replaces, as its parameters are a tuple.
    """
    if not isinstance(attrs, ctypes.Structure) or not isinstance(params, tuple):
        return 0
    own = vars(type(attrs))
    offset = getattr(own.get("srcAccessOrder"), "offset", None)
    if offset is None or ("srcAccessOrder", ctypes.c_uint) not in own.get("_fields_", ()):
        return 0
    return ctypes.addressof(attrs) + int(offset) if any(each is attrs for each in params) else 0


class _Queues:
    """What `copy_backend` knows as the module `queue`."""

    def __init__(self, copies: Copies, module: Any) -> None:
        self._copies = copies
        self._module = module

    def SimpleQueue(self, *args: Any, **kwargs: Any) -> Queue:  # noqa: N802 - the name that is asked for
        return self._copies.queue(self._module.SimpleQueue(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _worker(engine: Engine, module: ModuleType) -> None:
    recorder = engine.recorder
    cls = getattr(module, "SimpleCPUOffloadWorker", None)
    setup = engine.hook("simple.worker", expected=False, group="simple-setup")
    asked = engine.hook("simple.asked", expected=False)
    step = engine.hook("vllm.connector", expected=False)
    append, seen = engine.hook("simple.publish"), engine.hook("simple.look")

    def init(original: Any) -> Any:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if recorder.on:
                with recorder.guard("simple.publish"):
                    for name in ("_load_events", "_store_events"):
                        found: Any = getattr(self, name, None)
                        if type(found) is list:
                            handed = HandingList(recorder, found, given=append, seen=seen)
                            setattr(self, name, handed)
                            engine.hands(handed)
                        else:
                            append.missing(f"SimpleCPUOffloadWorker has no list {name}")

        return wrapper

    def register_kv_caches(original: Any) -> Any:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.on:
                with recorder.guard("simple.worker"):
                    setup.fired()
                    engine.device_pool = engine.pool_of_rank("gpu", self.vllm_config.parallel_config)
            done = original(self, *args, **kwargs)
            if recorder.on:
                with recorder.guard("simple.worker"):
                    blocks: Any = getattr(self, "num_cpu_blocks", None)
                    name = engine.pool_of_rank("cpu", self.vllm_config.parallel_config)
                    if blocks:
                        engine.register(name, int(blocks))
            return done

        return wrapper

    def bind_connector_metadata(original: Any) -> Any:
        def wrapper(self: Any, metadata: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(metadata, "load_gpu_blocks", None) or getattr(metadata, "store_gpu_blocks", None):
                asked.count += 1  # from here on copies are due, and forwards: a hook that stays silent has missed them
                step.count += 1
            return original(self, metadata, *args, **kwargs) if args or kwargs else original(self, metadata)

        return quick("bound", original, wrapper, recorder, asked, None, None, None, step)

    engine.wrap(cls, "__init__", init, append)
    engine.wrap(cls, "register_kv_caches", register_kv_caches, setup)
    engine.wrap(cls, "bind_connector_metadata", bind_connector_metadata, asked)


def _manager(engine: Engine, module: ModuleType) -> None:
    recorder = engine.recorder
    setup = engine.hook("simple.scheduler", expected=False, group="simple-setup")

    def init(original: Any) -> Any:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if recorder.on:
                with recorder.guard("simple.scheduler"):
                    setup.fired()
                    pools.mark(engine, self.cpu_block_pool, engine.pools("cpu", self.vllm_config.parallel_config))

        return wrapper

    engine.wrap(getattr(module, "SimpleCPUOffloadScheduler", None), "__init__", init, setup)
