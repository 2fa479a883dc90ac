"""What debug mode costs a step of vLLM's own engine without a GPU (`cpu_engine`): host µs added, and by hook.

    python -m attach.vllm.cpu_cost --vllm FOLDER [--windows 20] [--profile]

Windows alternate in one warm process between `on`, `off` (hooks in place, not listening) and, with `--out`, `out`
(hooks taken away). The real model runner is not there, so its torch calls are not either: `benchmarks/bench_attach.py`
has those. Prints a JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import types
from contextlib import nullcontext
from typing import Any

from attach.meter import metered
from attach.vllm import cpu_engine

WARM = 2
REQUESTS, TOKENS = 12, 48


def requests(core: Any, number: int) -> None:
    import random

    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    rng, prefixes = random.Random(number), random.Random(0)
    shared = [[prefixes.randrange(3, 1000) for _ in range(512)] for _ in range(24)]
    names = EngineCoreRequest.__struct_fields__
    for at in range(REQUESTS):
        prompt = rng.choice(shared) + [rng.randrange(3, 1000) for _ in range(rng.randrange(16, 256))]
        params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
        params.update_from_generation_config({}, None)
        fields: dict[str, Any] = dict.fromkeys(names)
        fields.update(
            request_id=f"w{number}r{at}", prompt_token_ids=prompt, sampling_params=params, arrival_time=0.0, priority=0
        )
        fields = {name: value for name, value in fields.items() if value is not None or name in _NONES}
        core.add_request(*core.preprocess_add_request(EngineCoreRequest(**fields)))


_NONES = ("mm_features", "pooling_params", "lora_request", "cache_salt", "data_parallel_rank")


def window(core: Any, device: Any, number: int) -> tuple[float, int]:
    """µs of a step that ran a forward, mean over the window, and how many."""
    device.seed(number)
    requests(core, number)
    took: list[float] = []
    while core.scheduler.has_requests() or core.batch_queue:
        began = time.perf_counter()
        done = core.step_fn()
        if done[1]:
            took.append(time.perf_counter() - began)
        device.pump()
    return 1e6 * statistics.mean(took), len(took)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm")
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--runner", default="v1", choices=("v1", "v2"))
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--meter", action="store_true", help="clocks around the hooks, which cost too")
    options = parser.parse_args()
    options.connector = "SimpleCPUOffloadConnector"
    device = cpu_engine.load(options)
    cpu_engine.BLOCKS = 2048

    from attach.vllm import cpu_worker
    from kvsan.checker import session
    from kvsan.checker.attach.vllm import runners
    from kvsan.checker.attach.vllm.hooks import install
    from kvsan.checker.options import Options

    with metered() if options.meter else nullcontext() as meter:
        debug = session.start(Options(log_path="/dev/null", incident=0))
        hooked = install(debug)
        older, newer = (
            types.SimpleNamespace(GPUModelRunner=cls) for cls in (cpu_worker.OlderRunner, cpu_worker.NewerRunner)
        )
        runners.hook_runner(hooked, older, inside=True)
        runners.hook_runner(hooked, newer, inside=False)
        core = cpu_engine.engine(options.connector)
        rows: dict[str, list[float]] = {"on": [], "off": []}
        steps = ops = 0
        profile: Any = None
        if options.profile:
            import cProfile

            profile = cProfile.Profile()
        for number in range(WARM + options.windows):
            for state in ("off", "on") if number % 2 else ("on", "off"):
                debug.recorder.on = state == "on"
                watched = state == "on" and number >= WARM
                before = debug.recorder.ops
                if meter is not None:
                    meter.on = watched
                if profile is not None and watched:
                    profile.enable()
                took, count = window(core, device, 2 * number + (state == "on"))
                if profile is not None and watched:
                    profile.disable()
                if number >= WARM:
                    rows[state].append(took)
                if watched:
                    steps += count
                    ops += debug.recorder.ops - before
        debug.recorder.on = True
    if profile is not None:
        import pstats

        pstats.Stats(profile).sort_stats("tottime").print_stats(60)
    added = sorted(on - off for on, off in zip(rows["on"], rows["off"], strict=True))
    print(
        json.dumps(
            {
                "off_us": round(statistics.median(rows["off"]), 1),
                "on_us": round(statistics.median(rows["on"]), 1),
                "added_us": round(statistics.median(added), 1),
                "added_each": [round(value) for value in added],
                "ops_a_step": round(ops / steps, 1),
                "steps": steps,
                "verdict": debug.close().document()["verdict"],
                "fired": {hook.name: round(hook.count / steps, 2) for hook in debug.recorder.ledger.hooks.values()},
                **({"breakdown": meter.rows(steps)} if meter is not None else {}),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
