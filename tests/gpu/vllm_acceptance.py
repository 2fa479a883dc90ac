"""One configuration of a real vLLM on a GPU, with kvsan attached: prints one JSON line of what it found and saw.

    KVSAN=1 python vllm_acceptance.py accept --runner v1 --fence none [--graphs] [--requests 80] [--trace FILE]
    KVSAN=1 python vllm_acceptance.py cost   --windows 24        # the switch thrown between windows of a warm process
    KVSAN=1 python vllm_acceptance.py soak   --seconds 300       # aborts, preemptions, a killed copy thread, memory
    KVSAN=1 python vllm_acceptance.py fault                      # kvsan itself breaks: the server has to go on
    KVSAN=1 python vllm_acceptance.py mp --trace run-%p.jsonl.gz # worker and scheduler in processes of their own

The workload is the one of the recorded traces: a 16-layer random-weight Llama shape, half of its layers with a window
of 128 tokens, 1,024 GPU blocks, asynchronous scheduling. `run_vllm.sh` brings vLLM there and runs the lot.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[2]))  # benchmarks

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32000,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 8,
}


def environment(options: argparse.Namespace) -> None:
    """Before vLLM is imported."""
    os.environ.update(
        VLLM_USE_SIMPLE_KV_OFFLOAD="1",
        VLLM_USE_FLASHINFER_SAMPLER="0",
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="1" if options.mode == "mp" else "0",
        VLLM_USE_V2_MODEL_RUNNER="1" if options.runner == "v2" else "0",
        VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    )
    given = {"exitcode": "0", "incident": "0", "max_reports": "2"}
    if options.trace:
        given["trace"] = options.trace
    os.environ.setdefault("KVSAN_OPTIONS", ":".join(f"{key}={value}" for key, value in given.items()))


def model_folder() -> str:
    folder = Path("/tmp/kvsan-model")
    folder.mkdir(exist_ok=True)
    new = folder / f".config.{os.getpid()}"
    new.write_text(json.dumps(SHAPE))
    new.replace(folder / "config.json")  # whole: other runs begin and read at the same time
    return str(folder)


def engine(options: argparse.Namespace) -> Any:
    from vllm import LLM
    from vllm.config import KVTransferConfig

    if options.fence != "none":
        from gpu import fences

        fences.install(options.fence)
    extra: dict[str, Any] = {"cpu_bytes_to_use": options.cpu_gib << 30}
    more: dict[str, Any] = {"enforce_eager": True}
    if options.graphs:
        sizes = [1, 2, 4, 8, 16, 24, 32, 48, 64]
        compilation = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
        more = {"enforce_eager": False, "compilation_config": compilation}
    if options.mode == "mp":
        more["distributed_executor_backend"] = "mp"
    return LLM(
        model=model_folder(),
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=2048,
        num_gpu_blocks_override=1024,
        max_num_seqs=64,
        gpu_memory_utilization=0.08,
        kv_cache_memory_bytes=2 << 30,  # no profiling: several of these share one GPU
        enable_prefix_caching=True,
        async_scheduling=True,
        disable_hybrid_kv_cache_manager=False,
        attention_backend="TRITON_ATTN",
        seed=0,
        kv_transfer_config=KVTransferConfig(
            kv_connector=options.connector, kv_role="kv_both", kv_connector_extra_config=extra
        ),
        **more,
    )


def prompts(count: int, seed: int = 0) -> list[Any]:
    rng = random.Random(seed)
    prefixes = [[rng.randrange(10, 32000) for _ in range(512)] for _ in range(24)]
    return [
        {"prompt_token_ids": rng.choice(prefixes) + [rng.randrange(10, 32000) for _ in range(rng.randrange(16, 256))]}
        for _ in range(count)
    ]


def sampling(tokens: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=tokens, detokenize=False)


def outcome(options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Ends the session: what it found and what it saw."""
    from kvsan.checker import session
    from kvsan.checker.attach import native

    debug = session.current()
    out: dict[str, Any] = {"run": options.name, "mode": options.mode, "runner": options.runner, "fence": options.fence}
    out.update(more)
    out["graphs"], out["connector"] = options.graphs, options.connector
    if debug is None:
        return {**out, "verdict": "no session"}
    document = debug.close().document()
    totals: Counter[str] = Counter()
    for row in document["totals"]:
        totals[f"{row['kind']} {row['earlier']}→{row['later']} {row['pool']}"] += row["pairs"]
    streams = document["coverage"]["streams"]
    return {
        **out,
        "verdict": document["verdict"],
        "why": document["why"],
        "hazards": dict(totals),
        "ops": document["ops"],
        "accesses": {name: counts["access"] for name, counts in streams.items() if counts.get("access")},
        "hooks": {name: count for name, count in document["coverage"]["hooks"].items() if count},
        "unseen": document["coverage"]["unseen"],
        "words": debug.recorder.ledger.words,
        "warnings": Counter(warning["kind"] for warning in document["warnings"]),
        "fault": debug.recorder.fault_text,
        "native": native.HOT is not None,
        "version": debug.about.get("engine_version"),
    }


def accept(options: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    llm = engine(options)
    started = time.perf_counter()
    outputs = llm.generate(prompts(options.requests, options.seed), sampling(options.tokens), use_tqdm=False)
    seconds = time.perf_counter() - started
    made = sum(len(output.outputs[0].token_ids) for output in outputs)
    return outcome(
        options, startup=round(started - began, 1), seconds=round(seconds, 2), tokens_per_s=round(made / seconds)
    )


def main() -> None:
    from gpu import results, vllm_cost, vllm_soak

    modes: dict[str, Any] = {"accept": accept, "mp": accept, "cost": vllm_cost.cost, "csan": vllm_cost.csan}
    modes.update(soak=vllm_soak.soak, fault=vllm_soak.fault)
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=sorted(modes))
    parser.add_argument("--runner", default="v1", choices=("v1", "v2"))
    parser.add_argument("--fence", default="none", choices=("none", "store", "load", "all", "fixed"))
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--connector", default="SimpleCPUOffloadConnector")
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--breakdown", action="store_true", help="cost: clocks around the hooks")
    parser.add_argument("--dissect", action="store_true", help="cost: three more states, between on and off")
    parser.add_argument("--pin", type=int, default=-1, help="cost: the engine's thread stays on this processor")
    parser.add_argument("--cpu-gib", type=int, default=4)
    parser.add_argument("--trace", default="")
    parser.add_argument("--out", default="", help="each result is appended here")
    parser.add_argument("--name", default="run")
    parser.add_argument("--samples", default="", help="soak: the memory of the process, as it goes, is appended here")
    options = parser.parse_args()
    environment(options)
    try:
        found = modes[options.mode](options)
    except BaseException as error:
        found = {**vars(options), "failed": f"{type(error).__name__}: {error}"[:2000]}
        results.emit({"run": options.name, **found}, options.out)
        raise
    found["max_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    results.emit({"run": options.name, **found}, options.out)


if __name__ == "__main__":
    main()
