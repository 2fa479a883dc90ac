"""What debug mode costs a step: alternating windows in one warm process, and PyTorch's own sanitizer beside it.

A window serves the same prompts to their end, so that the engine is idle where the switch is thrown. `off` is all
hooks in place and the recorder not listening; without `KVSAN=1` not even they are there, and the plugin's own time is
measured by itself. Reported: the median over pairs of neighbouring windows of what `on` adds to a step, with the
interval that holds it with 95 % (order statistics, no assumption on the shape of the noise).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from math import comb
from typing import Any

WARM = 4


def interval(values: list[float], level: float = 0.95) -> tuple[float, float]:
    """The narrowest pair of order statistics that holds the median with this level."""
    ordered, n = sorted(values), len(values)
    cut, tail = 0, 0.0
    while cut < n // 2:
        tail += comb(n, cut) / 2**n
        if 2 * tail > 1 - level:
            break
        cut += 1
    at = max(cut - 1, 0)
    return ordered[at], ordered[n - 1 - at]


class Clock:
    """Times each step of the engine core."""

    def __init__(self, core: Any) -> None:
        self.steps: list[float] = []
        original: Callable[[], Any] = core.step_fn

        def step() -> Any:
            began = time.perf_counter()
            try:
                return original()
            finally:
                self.steps.append(time.perf_counter() - began)

        core.step_fn = step


def cost(options: argparse.Namespace) -> dict[str, Any]:
    from gpu.vllm_acceptance import engine, outcome, prompts, sampling
    from kvsan.checker import session
    from kvsan.checker.attach.vllm import plugin

    llm = engine(options)
    clock = Clock(llm.llm_engine.engine_core.engine_core)
    debug = session.current()
    assert debug is not None
    work, params = prompts(64, options.seed), sampling(32)
    rows: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
    states = ["off", "on"] * (options.windows + WARM)
    for number, state in enumerate(states):
        debug.recorder.on = state == "on"
        clock.steps.clear()
        began = time.perf_counter()
        outputs = llm.generate(work, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        made = sum(len(output.outputs[0].token_ids) for output in outputs)
        if number >= 2 * WARM:
            rows[state].append((1e6 * seconds / len(clock.steps), made / seconds))
    debug.recorder.on = True
    added = [on[0] - off[0] for on, off in zip(rows["on"], rows["off"], strict=True)]
    share = [100 * (on[0] / off[0] - 1) for on, off in zip(rows["on"], rows["off"], strict=True)]
    began = time.perf_counter()
    for _ in range(1000):
        plugin_off(plugin)
    each = 1e3 * (time.perf_counter() - began)
    summary: dict[str, Any] = {
        "windows": len(added),
        "step_us_off": round(statistics.median(row[0] for row in rows["off"]), 1),
        "step_us_on": round(statistics.median(row[0] for row in rows["on"]), 1),
        "added_us": round(statistics.median(added), 1),
        "added_us_interval": [round(value, 1) for value in interval(added)],
        "added_percent": round(statistics.median(share), 2),
        "added_percent_interval": [round(value, 2) for value in interval(share)],
        "tokens_per_s_off": round(statistics.median(row[1] for row in rows["off"])),
        "tokens_per_s_on": round(statistics.median(row[1] for row in rows["on"])),
        "plugin_off_us": round(each, 2),
    }
    found = outcome(options, **summary)
    found["verdict"], found["hazards"], found["why"] = "not asked", {}, []  # half of the run was not seen
    return found


def plugin_off(plugin: Callable[[], None]) -> None:
    """The entry point as a process without `KVSAN` sees it."""
    import os

    kept = os.environ.pop("KVSAN", None)
    try:
        plugin()
    finally:
        if kept is not None:
            os.environ["KVSAN"] = kept


def csan(options: argparse.Namespace) -> dict[str, Any]:
    """The same windows without kvsan, first plain and then with PyTorch's CUDA sanitizer switched on."""
    from gpu.vllm_acceptance import engine, prompts, sampling

    llm = engine(options)
    clock = Clock(llm.llm_engine.engine_core.engine_core)
    work, params = prompts(64, options.seed), sampling(32)
    found: dict[str, Any] = {"mode": "csan", "runner": options.runner, "graphs": options.graphs}

    def window() -> float:
        clock.steps.clear()
        began = time.perf_counter()
        llm.generate(work, params, use_tqdm=False)
        return 1e6 * (time.perf_counter() - began) / len(clock.steps)

    plain = [window() for _ in range(6)][2:]
    found["step_us_plain"] = round(statistics.median(plain), 1)
    try:
        from torch.cuda import _sanitizer

        sanitizer: Any = _sanitizer
        sanitizer.enable_cuda_sanitizer()
        began = time.perf_counter()
        watched: list[float] = []
        while len(watched) < 3 and time.perf_counter() - began < 60:
            watched.append(window())
        found["step_us_csan"] = round(statistics.median(watched), 1)
    except Exception as error:
        found["csan_failed"] = f"{type(error).__name__}: {error}"[:500]
    return found
