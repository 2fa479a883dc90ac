"""What all hooks of one process share: the recorder, the patches, the names of pools and streams, the version.

Pools: `gpu` and `cpu`, or with several ranks `gpu@0`, `gpu@1`, …: block ids are the scheduler's and the same on each
rank, the memory is each rank's own, so the scheduler's frees and allocs are lines of every rank's pool.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import ref

from kvsan.checker.attach.handoff import HandingList
from kvsan.checker.attach.ledger import Hook
from kvsan.checker.attach.patches import Patches
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.torch import stream_name
from kvsan.checker.attach.vllm.handoff import Queue
from kvsan.checker.attach.vllm.imports import WhenLoaded

COVERED = ("SimpleCPUOffloadConnector", "OffloadingConnector")
"""Connectors whose transfers are seen."""

NEEDED = {
    "SimpleCPUOffloadConnector": ("vllm.v1.simple_kv_offload.copy_backend", "vllm.v1.simple_kv_offload.worker"),
    "OffloadingConnector": (
        "vllm.v1.kv_offload.cpu.gpu_worker",
        "vllm.v1.kv_offload.worker.cpu_gpu",
    ),
}
"""Modules that a worker with this connector must have loaded: all of the first, one of the second."""


class Engine:
    """One process of vLLM, as kvsan sees it."""

    __slots__ = ("__dict__", "__weakref__", "device_pool", "suspects")  # the two that are looked at in each step

    def __init__(self, recorder: Recorder, version: str) -> None:
        self.recorder = recorder
        self.version = version
        self.patches = Patches()
        self.loaded = WhenLoaded()
        self.patches.on_undo(self.loaded.stop)
        self._standing = Patches()
        """What stays in a pause."""
        self.patches.on_undo(self._standing.undo)
        self.absent: list[str] = []
        self._handed: list[ref[HandingList | Queue]] = []
        self.suspects: tuple[str, ...] | None = None
        """Fields of this version's `SchedulerOutput` that speak of blocks and are not understood."""
        self.device_pool = "gpu"
        """The pool of this process's own rank, once a runner has begun a step."""
        self._torch: Any = None

    def pause(self) -> None:
        """vLLM's own functions, and the methods of its queues and lists, are back until `resume`, but for what must
        know of objects that are made meanwhile (`stays`). Whoever pauses tells the recorder.
        """
        self.patches.lift()
        for each in self._containers():
            each.pause()

    def resume(self) -> None:
        """Everything is in place again. What happened meanwhile is not known, and nobody counts it."""
        for each in self._containers():
            each.resume()
        self.patches.put_back()

    def hands(self, container: HandingList | Queue) -> None:
        """A container of vLLM's that carries order."""
        self._handed.append(ref(container))

    def _containers(self) -> list[HandingList | Queue]:
        return [found for each in self._handed if (found := each()) is not None]

    def step(self) -> None:
        """A step of a worker begins."""
        sampling = self.recorder.sampling
        if sampling is not None:
            sampling.step()

    # ── hooks ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def hook(self, name: str, *, expected: bool = True, group: str | None = None) -> Hook:
        return self.recorder.ledger.hook(name, expected=expected, group=group, version=self.version)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any], hook: Hook, *, stays: bool = False) -> bool:
        """As `Patches.wrap`; a target that is not there makes the hook one that was expected."""
        found = (self._standing if stays else self.patches).wrap(owner, name, make, hook)
        if not found:
            hook.expected = True
            self.absent.append(hook.name)
        return found

    def when(self, module: str, action: Callable[[ModuleType], None]) -> None:
        """Calls `action(module)` once vLLM has loaded it. A fault of ours in it turns kvsan off, not vLLM."""

        def guarded(loaded: ModuleType) -> None:
            with self.recorder.guard(f"hooks of {module}"):
                action(loaded)

        self.loaded.call(module, guarded)

    def require(self, vllm_config: Any, *, worker: bool) -> None:
        """Says in the ledger what this configuration uses and no hook covers."""
        note = self.recorder.ledger.note
        for connector in connectors(vllm_config):
            if connector not in COVERED:
                note(f"transfers of {connector} are not covered (vLLM {self.version})")
            elif worker:
                missing = [name for name in NEEDED[connector] if name not in self.loaded.done]
                if missing and (connector == "SimpleCPUOffloadConnector" or len(missing) == len(NEEDED[connector])):
                    note(f"hooks of {connector} have no target: vLLM {self.version} has no {missing[0]}")
        if getattr(vllm_config, "speculative_config", None) is not None:
            note("speculative decoding: what the drafter reads and writes is not covered")
        if getattr(getattr(vllm_config, "parallel_config", None), "use_ubatching", False):
            note("micro-batches on two streams are not covered")
        if _rocm():
            note("source orders of copies are not covered on ROCm")

    # ── pools and streams ─────────────────────────────────────────────────────────────────────────────────────────

    def pools(self, kind: str, parallel_config: Any) -> tuple[str, ...]:
        """The names of the `gpu` or `cpu` pools of all ranks that one scheduler serves."""
        ranks = int(getattr(parallel_config, "world_size", 1) or 1)
        return tuple(_pool(kind, rank, parallel_config) for rank in range(ranks))

    def pool_of_rank(self, kind: str, parallel_config: Any) -> str:
        """The pool of the rank that this process is."""
        return _pool(kind, int(getattr(parallel_config, "rank", 0) or 0), parallel_config)

    def register(self, pool: str, blocks: int) -> None:
        """The first to say how large a pool is decides; one who says more is noted."""
        known = self.recorder.pools.get(pool)
        if known is None:
            self.recorder.pool(pool, blocks)
        elif blocks > known:
            self.recorder.ledger.note(f"pool {pool} has {known} blocks in one part of vLLM and {blocks} in another")

    def stream(self, stream: Any, name: str | None = None) -> str:
        """The name of a torch stream; `name` is a wish, heard if the stream has none yet."""
        return stream_name(self.recorder, stream, name)

    def use_torch(self, torch: Any) -> None:
        """Another torch than the one that is installed: a stand-in."""
        self._torch = torch

    def current_stream(self, name: str | None = None) -> str:
        """The stream that the calling thread launches on."""
        calls: Any = self.recorder.attachments.get("torch")
        found = None if calls is None else calls.known_current()
        if found is not None:
            return str(found)
        if self._torch is None:
            import torch

            self._torch = torch
        return self.stream(self._torch.cuda.current_stream(), name)


def connectors(vllm_config: Any) -> list[str]:
    """Names of the KV connectors of a configuration, those inside a `MultiConnector` too."""
    config = getattr(vllm_config, "kv_transfer_config", None)
    name = getattr(config, "kv_connector", None)
    if not name:
        return []
    if name != "MultiConnector":
        return [name]
    inside = (getattr(config, "kv_connector_extra_config", None) or {}).get("connectors", ())
    return [str(part.get("kv_connector")) for part in inside]


def place(function: Any, name: str) -> int:
    """Where the parameter `name` stands in a function's signature; beyond all arguments if it has none."""
    try:
        return list(inspect.signature(function).parameters).index(name)
    except (ValueError, TypeError):
        return sys.maxsize


def argument(function: Any, name: str, default: Any = None) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """What a call of `function` gives to its parameter `name`, wherever that stands in this version's signature.

    The signature is looked at once; the result is called with a call's `args` (with `self`) and `kwargs`.
    """
    at = place(function, name)

    def get(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > at:
            return args[at]
        return kwargs.get(name, default)

    return get


def site(function: Any) -> str | None:
    """Where a function of vLLM is, for a report."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    _, _, inside = code.co_filename.rpartition("/vllm/")
    return f"vllm/{inside}:{code.co_firstlineno} {getattr(function, '__qualname__', '')}".rstrip()


def _pool(kind: str, rank: int, parallel_config: Any) -> str:
    ranks = int(getattr(parallel_config, "world_size", 1) or 1)
    replicas = int(getattr(parallel_config, "data_parallel_size", 1) or 1)
    name = kind if ranks == 1 else f"{kind}@{rank}"
    return name if replicas == 1 else f"{name}.dp{getattr(parallel_config, 'data_parallel_rank', 0)}"


def _rocm() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_rocm())
