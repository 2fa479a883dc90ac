"""What debug mode costs a step of vLLM's own engine without a GPU (`cpu_engine`): host µs added, and by hook.

    python -m attach.vllm.cpu_cost --vllm FOLDER [--windows 20] [--meter]

Windows of `on`, `off` and `again` take turns in one warm process, as in `gpu.vllm_cost`. The real model runner is not
there, and so none of its torch calls. Times are processor time, of all threads. Prints a JSON object. `spin_ns`
says how fast the machine was (a turn of an empty Python loop; 20 on a quiet one): divide by it to compare two runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import types
from contextlib import nullcontext
from itertools import permutations
from typing import Any

from attach.meter import Hot, metered
from attach.vllm import cpu_engine
from gpu.vllm_cost import STATES, interval, throw

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
        began = time.process_time()
        done = core.step_fn()
        if done[1]:
            took.append(time.process_time() - began)
        device.pump()
    return 1e6 * statistics.mean(took), len(took)


def spin() -> float:
    """ns of a turn of a Python loop."""
    began, total = time.process_time(), 0
    for number in range(100_000):
        total += number
    return (time.process_time() - began) * 1e4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm")
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--runner", default="v1", choices=("v1", "v2"))
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

    hot = Hot()
    with metered(time.thread_time) if options.meter else nullcontext() as meter:
        debug = session.start(Options(log_path="/dev/null", incident=0))
        hooked = install(debug)
        older, newer = (
            types.SimpleNamespace(GPUModelRunner=cls) for cls in (cpu_worker.OlderRunner, cpu_worker.NewerRunner)
        )
        runners.hook_runner(hooked, older, inside=True)
        runners.hook_runner(hooked, newer, inside=False)
        core = cpu_engine.engine(options.connector)
        speed: list[float] = []
        rows: dict[str, list[float]] = {state: [] for state in STATES}
        orders = list(permutations(rows))
        steps = ops = 0
        for number in range(WARM + options.windows):
            for state in orders[number % len(orders)]:
                throw(debug, state)
                speed.append(spin())
                watched = state == "on" and number >= WARM
                before = debug.recorder.ops
                if meter is not None:
                    meter.on = watched
                if watched:
                    hot.window(on=True)
                took, count = window(core, device, 3 * number + list(rows).index(state))
                if watched:
                    hot.window(on=False)
                if number >= WARM:
                    rows[state].append(took)
                if watched:
                    steps += count
                    ops += debug.recorder.ops - before
        throw(debug, "on")

    def added(this: str, other: str) -> list[float]:
        values = [one - two for one, two in zip(rows[this], rows[other], strict=True)]
        return [round(value, 1) for value in (statistics.median(values), *interval(values))]

    print(
        json.dumps(
            {
                **{f"{state}_us": round(statistics.median(took), 1) for state, took in rows.items()},
                "on_over_again": added("on", "again"),
                "on_over_off": added("on", "off"),
                "again_over_off": added("again", "off"),
                "spin_ns": round(statistics.median(speed), 1),
                "ops_a_step": round(ops / steps, 1),
                "steps": steps,
                "verdict": debug.close().document()["verdict"],
                "fired": {hook.name: round(hook.count / steps, 2) for hook in debug.recorder.ledger.hooks.values()},
                **({"hot": hot.rows(steps)} if hot.there() else {}),
                **({"breakdown": meter.rows(steps)} if meter is not None else {}),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
