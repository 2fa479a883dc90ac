"""The platform that `cpu_engine` runs on: simulated streams where torch has CUDA's, and a worker without a model."""

from __future__ import annotations

import types
from typing import Any


def simulate() -> Any:
    """Puts the simulated device where torch has CUDA's."""
    import torch

    from attach.vllm import simulated

    device = simulated.Device()
    made = simulated.stand_ins(device)
    registered = types.SimpleNamespace(cudaHostRegister=lambda *_: types.SimpleNamespace(value=0))
    vars(torch)["Event"] = made["Event"]
    vars(torch.cuda).update(made, cudart=lambda: registered)
    return device


def platform() -> None:
    """An out-of-tree platform whose worker is `cpu_worker.SimWorker`."""
    import torch
    import vllm.platforms as platforms
    from vllm.platforms.interface import Platform, PlatformEnum

    class Simulated(Platform):
        _enum = PlatformEnum.OOT
        device_name = "cpu"
        device_type = "cpu"
        dist_backend = "gloo"

        @classmethod
        def check_and_update_config(cls, vllm_config: Any) -> None:
            vllm_config.parallel_config.worker_cls = "attach.vllm.cpu_worker.SimWorker"
            if not getattr(vllm_config.cache_config, "block_size", None):
                vllm_config.cache_config.block_size = 16

        @classmethod
        def set_device(cls, device: Any) -> None:
            return None

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "simulated"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 1 << 30

        @classmethod
        def is_async_output_supported(cls, enforce_eager: bool | None) -> bool:
            return True

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return False

        @classmethod
        def support_hybrid_kv_cache(cls) -> bool:
            return True

        @classmethod
        def update_block_size_for_backend(cls, vllm_config: Any) -> None:
            return None

        @classmethod
        def Stream(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
            cuda: Any = torch.cuda
            return cuda.Stream(*args, **kwargs)

        @classmethod
        def current_stream(cls) -> Any:
            return torch.cuda.current_stream()

        @classmethod
        def stream(cls, stream: Any) -> Any:
            return torch.cuda.stream(stream)

    platforms.current_platform = Simulated()


def model_info() -> None:
    """What vLLM would learn of the model in a process of its own, seconds each."""
    from dataclasses import fields

    from vllm.model_executor.models import registry

    known: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "is_text_generation_model": True,
        "attn_type": "decoder",
        "default_seq_pooling_type": "LAST",
        "default_tok_pooling_type": "ALL",
        "score_type": "bi-encoder",
    }
    info = registry._ModelInfo(**{field.name: known.get(field.name, False) for field in fields(registry._ModelInfo)})
    registry._LazyRegisteredModel.inspect_model_cls = lambda self: info
