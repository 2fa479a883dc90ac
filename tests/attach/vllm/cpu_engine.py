"""vLLM's unmodified engine core, scheduler, block pools, connector, offload worker and copy thread, without a GPU.

    python -m attach.vllm.cpu_engine --vllm FOLDER [--seeds 40] [--window 128] [--fence none|load|…] [--runner v1|v2]

prints one JSON line a seed: hazards by kind, counts, the ledger's verdict. A fresh process a seed: vLLM keeps state in
its modules. What is simulated is in `simulated` (streams, events, the copy queue) and `cpu_worker` (the model).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import types
from collections import Counter
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
BLOCKS = 192


def prepare(folder: str | None) -> None:
    """Before anything of vLLM is imported."""
    for path in (folder, str(TESTS)):
        if path and path not in sys.path:
            sys.path.insert(0, path)
    os.environ.update(
        VLLM_USE_SIMPLE_KV_OFFLOAD="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        HF_HUB_OFFLINE="1",
        VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        VLLM_NO_USAGE_STATS="1",
        VLLM_PLUGINS="",
    )


def drive_copies(device: Any) -> None:
    """The copy thread's queue, and the driver's batched copy under it."""
    from vllm.v1.simple_kv_offload import copy_backend, cuda_mem_ops

    from attach.vllm import simulated

    copy_backend.queue = types.SimpleNamespace(SimpleQueue=lambda: simulated.SeededQueue(device))

    def copy(dst: Any, src: Any, sizes: Any, count: int, attrs: Any, *rest: Any) -> int:
        device.chains[rest[-1]].add()
        return 0

    cuda_mem_ops._resolve_batch_memcpy = lambda: copy


def config_folder() -> str:
    folder = Path(tempfile.mkdtemp(prefix="kvsan-sim-"))
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(shape))
    return str(folder)


def engine(connector: str, *, apart: bool = False) -> Any:
    """`apart`: the worker in a process of its own."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    args = EngineArgs(
        model=config_folder(),
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        max_model_len=1024,
        block_size=16,
        num_gpu_blocks_override=BLOCKS,
        max_num_seqs=16,
        max_num_batched_tokens=1024,
        enable_prefix_caching=True,
        async_scheduling=True,
        disable_hybrid_kv_cache_manager=False,
        distributed_executor_backend="mp" if apart else "uni",
        seed=0,
        kv_transfer_config=KVTransferConfig(
            kv_connector=connector, kv_role="kv_both", kv_connector_extra_config={"cpu_bytes_to_use": 1 << 21}
        ),
    )
    executor = MultiprocExecutor if apart else UniProcExecutor
    return EngineCore(args.create_engine_config(), executor, log_stats=False)


def requests(core: Any, seed: int, count: int) -> list[Any]:
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    rng = random.Random(seed)
    prefixes = [[rng.randrange(3, 1000) for _ in range(rng.choice((256, 384)))] for _ in range(4)]
    made = []
    for number in range(count):
        prompt = rng.choice(prefixes) + [rng.randrange(3, 1000) for _ in range(rng.randrange(8, 160))]
        params = SamplingParams(max_tokens=rng.randrange(8, 48), temperature=0.0)
        params.update_from_generation_config({}, 2)
        fields: dict[str, Any] = {
            "request_id": f"r{number}",
            "prompt_token_ids": prompt,
            "mm_features": None,
            "sampling_params": params,
            "pooling_params": None,
            "arrival_time": 0.0,
            "lora_request": None,
            "cache_salt": None,
            "data_parallel_rank": None,
        }
        names = EngineCoreRequest.__struct_fields__
        made.append(EngineCoreRequest(**{name: value for name, value in fields.items() if name in names}))
    return made


def serve(core: Any, device: Any, seed: int, count: int, aborts: float) -> int:
    """Random arrivals and aborts until nothing is left; returns the number of steps."""
    rng = random.Random(~seed)
    waiting, live = requests(core, seed, count), []
    steps = 0
    while waiting or core.scheduler.has_requests() or core.batch_queue:
        while waiting and rng.random() < 0.3:
            request = waiting.pop()
            live.append(request.request_id)
            core.add_request(*core.preprocess_add_request(request))
        if live and rng.random() < aborts:
            core.abort_requests([live.pop(rng.randrange(len(live)))])
        if core.scheduler.has_requests() or core.batch_queue:
            core.step_fn()
        device.pump()
        steps += 1
        if steps > 5000:
            raise RuntimeError("the engine does not come to an end")
    return steps


def load(options: argparse.Namespace) -> Any:
    """All imports, once: they take seconds. Returns the device, to be seeded for each run."""
    prepare(options.vllm)
    from attach.vllm import cpu_platform

    device = cpu_platform.simulate()
    cpu_platform.platform()
    cpu_platform.model_info()
    from vllm.config import KVTransferConfig  # noqa: F401
    from vllm.engine.arg_utils import EngineArgs  # noqa: F401
    from vllm.v1.core.sched import async_scheduler  # noqa: F401
    from vllm.v1.engine.core import EngineCore  # noqa: F401

    from attach.vllm import cpu_worker

    cpu_worker.WINDOW, cpu_worker.RUNNER = options.window, options.runner
    if options.connector == "SimpleCPUOffloadConnector":
        drive_copies(device)
    return device


def run(options: argparse.Namespace, device: Any, seed: int) -> dict[str, Any]:
    from attach.vllm import cpu_worker
    from attach.vllm.cpu_attach import attached

    device.seed(seed)
    cpu_worker.SEED = seed
    if options.apart:
        cpu_worker.SimWorker.pump = staticmethod(device.pump)

    with attached(cpu_worker, options) as report:
        core = engine(options.connector, apart=options.apart)
        steps = serve(core, device, seed, options.requests, options.aborts)
        if options.apart:
            core.model_executor.shutdown()
    document = report()
    pairs: Counter[str] = Counter()
    for hazard in document["hazards"]:
        pairs[f"{hazard['kind']} {hazard['earlier']['label']}→{hazard['later']['label']}"] += 1
    return {
        "seed": seed,
        "steps": steps,
        "verdict": document["verdict"],
        "why": [*document["why"], *document["faults"]],
        "live": {"verdict": document["live"]["verdict"], "why": document["live"]["why"]},
        "same": document["live"]["totals"] == document["totals"],
        "ops": document["ops"],
        "hazards": dict(pairs),
        "hooks": document["coverage"]["hooks"],
        "unseen": document["coverage"]["unseen"],
        "warnings": Counter(warning["kind"] for warning in document["warnings"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--fence", default="none", choices=("none", "store", "load", "all", "fixed"))
    parser.add_argument("--runner", default="v1", choices=("v1", "v2"))
    parser.add_argument("--connector", default="SimpleCPUOffloadConnector")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--aborts", type=float, default=0.02)
    parser.add_argument("--apart", action="store_true", help="the worker in a process of its own")
    parser.add_argument("--trace")
    options = parser.parse_args()
    device = load(options)
    for seed in range(options.first, options.first + options.seeds):
        child = os.fork()  # after the imports
        if not child:
            print(json.dumps(run(options, device, seed)), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print(json.dumps({"seed": seed, "failed": status}), flush=True)


if __name__ == "__main__":
    main()
