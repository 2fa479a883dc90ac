"""vLLM in a few lines: its modules' and classes' names, and what of their calls the hooks look at."""

from __future__ import annotations

import ctypes
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from attach.stand_ins import Log, World
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.vllm.engine import Engine
from kvsan.checker.attach.vllm.hooks import attach


class FullAttentionSpec(SimpleNamespace):
    """A KV-cache spec; its class's name tells its kind."""

    block_size = 16


class Block:
    """As `KVCacheBlock`."""

    __slots__ = ("block_id", "is_null", "ref_cnt")

    def __init__(self, number: int) -> None:
        self.block_id, self.ref_cnt, self.is_null = number, 0, number == 0


class BlockPool:
    """Hands out blocks in order and takes them back."""

    def __init__(self, blocks: int) -> None:
        self.num_gpu_blocks = blocks
        self.blocks = [Block(number) for number in range(blocks)]
        self.unused = self.blocks[1:]

    def get_new_blocks(self, num_blocks: int) -> list[Block]:
        found, self.unused = self.unused[:num_blocks], self.unused[num_blocks:]
        for block in found:
            block.ref_cnt += 1
        return found

    def free_blocks(self, ordered_blocks: Any) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if not block.ref_cnt and not block.is_null:
                self.unused.append(block)

    def touch(self, blocks: Any) -> None:
        for block in blocks:
            if not block.ref_cnt and not block.is_null:
                self.unused.remove(block)
            block.ref_cnt += 1


class Scheduler:
    """Schedules what it is given."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.kv_cache_manager = SimpleNamespace(block_pool=BlockPool(64))

    def schedule(self, output: Any) -> Any:
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> None:
        return None


class KVBlockZeroer:
    """Zeroes nothing."""

    def zero_block_ids(self, block_ids: list[int]) -> None:
        return None


class _Runner:
    def __init__(self, vllm_config: Any, copies: Any = None) -> None:
        self.vllm_config, self.copies = vllm_config, copies
        self.zeroer = KVBlockZeroer()

    def initialize_kv_cache(self, kv_cache_config: Any) -> None:
        return None


class OlderRunner(_Runner):
    """Submits copies inside `execute_model`; `skips` leaves the forward out."""

    skips = False

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> None:
        if scheduler_output.new_block_ids_to_zero:
            self.zeroer.zero_block_ids(scheduler_output.new_block_ids_to_zero)
        if not self.skips:
            self._model_forward()
        if self.copies is not None:
            self.copies()

    def _model_forward(self) -> None:
        return None


class NewerRunner(_Runner):
    """Submits copies later."""

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None, dummy_run: bool = False) -> None:
        return None


class _Attributes(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint), ("srcAccessOrder", ctypes.c_uint))


class BatchMemcpyParams(NamedTuple):
    """The parameters of copies one way."""

    num_layers: int
    attrs: Any


def build_params(order: int) -> BatchMemcpyParams:
    return BatchMemcpyParams(2, _Attributes(srcAccessOrder=order))


class DmaCopyBackend:
    """Its copy thread takes a turn when it is told to."""

    def init(self, gpu_caches: Any, cpu_caches: Any, device: Any, load_stream: Any, store_stream: Any) -> None:
        self._store_params, self._load_params = build_params(1), build_params(3)
        module: Any = sys.modules["vllm.v1.simple_kv_offload.copy_backend"]
        self._queue = module.queue.SimpleQueue()
        self.copied = 0

    def launch_copy(self, src: Any, dst: Any, is_store: bool, event_idx: int, events_list: Any) -> None:
        self._queue.put((src, dst, self._store_params if is_store else self._load_params, event_idx, events_list))

    def copy_one(self) -> None:
        """A turn of the copy thread."""
        module: Any = sys.modules["vllm.v1.simple_kv_offload.copy_backend"]
        src, dst, params, event_idx, events_list = self._queue.get()
        module.copy_blocks(src, dst, params)
        events_list.append((event_idx, "event"))


class SimpleCPUOffloadWorker:
    """The lists of what is done."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self._load_events: list[Any] = []
        self._store_events: list[Any] = []

    def register_kv_caches(self, kv_caches: Any) -> None:
        self.num_cpu_blocks = 128

    def bind_connector_metadata(self, metadata: Any) -> None:
        return None


class SimpleCPUOffloadScheduler:
    """The CPU pool."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.cpu_block_pool = BlockPool(128)


class SingleDirectionOffloadingHandler:
    """Copies with the function that it was given, or with none."""

    def __init__(self, function: Any, gpu_to_cpu: bool) -> None:
        self._swap_blocks_batch, self.gpu_to_cpu = function, gpu_to_cpu
        device = SimpleNamespace(type="cpu")
        self.src_tensors: list[Any] = []
        self.dst_tensors = [SimpleNamespace(shape=(32, 1), device=device)]

    def transfer_async(self, job_id: int, transfer_spec: Any) -> bool:
        if self._swap_blocks_batch is not None:
            self._swap_blocks_batch(0, 0, 0, is_src_access_order_any=not self.gpu_to_cpu)
        return True


class WorkerProc:
    """A worker process with its output queue."""

    use_async_scheduling = True

    def __init__(self) -> None:
        self.outputs: queue.Queue[Any] = queue.Queue()
        self.sent: list[Any] = []

    def handle_output(self, output: Any) -> None:
        self.outputs.put(output)

    def enqueue_output(self, output: Any) -> None:
        self.sent.append(output)


MODULES: dict[str, dict[str, Any]] = {
    "vllm": {"__version__": "9.9"},
    "vllm.platforms": {"current_platform": SimpleNamespace(is_rocm=lambda: False)},
    "vllm.v1.core.block_pool": {"BlockPool": BlockPool},
    "vllm.v1.core.sched.scheduler": {"Scheduler": Scheduler},
    "vllm.v1.worker.gpu_model_runner": {"GPUModelRunner": OlderRunner},
    "vllm.v1.worker.gpu.model_runner": {"GPUModelRunner": NewerRunner},
    "vllm.v1.worker.utils": {"KVBlockZeroer": KVBlockZeroer},
    "vllm.v1.simple_kv_offload.copy_backend": {
        "DmaCopyBackend": DmaCopyBackend,
        "copy_blocks": lambda src, dst, params: None,
        "queue": queue,
    },
    "vllm.v1.simple_kv_offload.worker": {"SimpleCPUOffloadWorker": SimpleCPUOffloadWorker},
    "vllm.v1.simple_kv_offload.manager": {"SimpleCPUOffloadScheduler": SimpleCPUOffloadScheduler},
    "vllm.v1.kv_offload.cpu.gpu_worker": {"SingleDirectionOffloadingHandler": SingleDirectionOffloadingHandler},
    "vllm.v1.executor.multiproc_executor": {"WorkerProc": WorkerProc},
}


class Vllm:
    """The fake vLLM with kvsan attached."""

    def __init__(self, **without: str) -> None:
        self.log, self.world = Log(), World()
        self.recorder = Recorder([self.log])
        self.without = without
        self.engine: Engine

    @property
    def lines(self) -> list[str]:
        return self.log.shown()

    def config(self, connector: str | None = None, backend: str = "uni", ranks: int = 1, **more: Any) -> Any:
        parallel = SimpleNamespace(world_size=ranks, rank=0, distributed_executor_backend=backend)
        transfer = SimpleNamespace(kv_connector=connector, kv_connector_extra_config={})
        return SimpleNamespace(parallel_config=parallel, kv_transfer_config=transfer, **more)

    def runner(self, cls: Any, *args: Any, **more: Any) -> Any:
        made = cls(self.config(**more), *args)
        groups = [SimpleNamespace(kv_cache_spec=FullAttentionSpec())]
        made.initialize_kv_cache(SimpleNamespace(kv_cache_groups=groups, num_blocks=64))
        return made


@contextmanager
def attached(monkeypatch: pytest.MonkeyPatch, **without: str) -> Iterator[Vllm]:
    """`without`: names that are missing in a module, by the last part of the module's name."""
    for name, content in MODULES.items():
        module = ModuleType(name)
        vars(module).update(content)
        for missing in [without.get(name.rpartition(".")[2])]:
            vars(module).pop(missing or "", None)
        monkeypatch.setitem(sys.modules, name, module)
    fake = Vllm()
    fake.engine = attach(fake.recorder, "9.9")
    fake.engine.use_torch(SimpleNamespace(cuda=SimpleNamespace(current_stream=fake.world.current_stream)))
    try:
        yield fake
    finally:
        fake.engine.patches.undo()


def output(new: dict[str, list[int]] | None = None, tokens: dict[str, int] | None = None, **more: Any) -> Any:
    """A `SchedulerOutput`: new requests with their blocks of the one group, all from token 0."""
    requests = [
        SimpleNamespace(req_id=name, block_ids=(ids,), num_computed_tokens=0) for name, ids in (new or {}).items()
    ]
    cached = SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())
    fields: dict[str, Any] = {
        "scheduled_new_reqs": requests,
        "scheduled_cached_reqs": cached,
        "num_scheduled_tokens": tokens or {},
        "total_num_scheduled_tokens": sum((tokens or {}).values()),
        "finished_req_ids": set(),
        "scheduled_encoder_inputs": {},
        "new_block_ids_to_zero": None,
    }
    return SimpleNamespace(**{**fields, **more})


def in_thread(call: Any) -> None:
    """Runs in another thread, to its end."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
