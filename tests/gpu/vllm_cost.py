"""What debug mode costs a step: alternating windows in one warm process, and PyTorch's own sanitizer beside it.

A window serves `REQUESTS` new prompts to their end, so that the engine is idle where the switch is thrown; they fit
into the GPU's blocks, so that none is preempted. A step is one that ran a forward: steps in which the engine only looks
whether a load has come are many and short, and how many they are depends on what is measured. `off` is all
hooks in place and the recorder not listening. The same windows without kvsan are served after the session was closed
(hooks taken away), and by `csan` in a process that never had it. Reported: the median over pairs of neighbouring
windows of what `on` adds to a step, with the interval that holds it with 95 % (order statistics, no assumption on the
shape of the noise).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from math import comb
from typing import Any

WARM = 4
REQUESTS, TOKENS = 12, 64


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
    """Times each step of the engine core that ran a forward."""

    def __init__(self, core: Any) -> None:
        self.steps: list[float] = []
        self.empty = 0
        original: Callable[[], Any] = core.step_fn

        def step() -> Any:
            began = time.perf_counter()
            done = original()
            if done[1]:
                self.steps.append(time.perf_counter() - began)
            else:
                self.empty += 1
            return done

        core.step_fn = step


class Windows:
    """Serves windows and keeps what each took."""

    def __init__(self, llm: Any, seed: int) -> None:
        self.llm, self.seed, self.served = llm, seed, 0
        self.clock = Clock(llm.llm_engine.engine_core.engine_core)

    def serve(self) -> dict[str, float]:
        from gpu.vllm_acceptance import prompts, sampling

        clock = self.clock
        work = prompts(24 * (self.served + 1), self.seed)[-REQUESTS:]  # the shared prefixes, other ends
        self.served += 1
        clock.steps.clear()
        clock.empty = 0
        began = time.perf_counter()
        outputs = self.llm.generate(work, sampling(TOKENS), use_tqdm=False)
        seconds = time.perf_counter() - began
        made = sum(len(output.outputs[0].token_ids) for output in outputs)
        return {
            "step_us": 1e6 * statistics.mean(clock.steps),
            "window_us": 1e6 * seconds / len(clock.steps),
            "median_step_us": 1e6 * statistics.median(clock.steps),
            "tokens_per_s": made / seconds,
            "steps": len(clock.steps),
            "empty": clock.empty,
        }


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(row[key] for row in rows), 1) for key in rows[0]}


def cost(options: argparse.Namespace) -> dict[str, Any]:
    from gpu.vllm_acceptance import engine, outcome
    from kvsan.checker import session
    from kvsan.checker.attach.vllm import plugin

    windows = Windows(engine(options), options.seed)
    debug = session.current()
    assert debug is not None
    rows: dict[str, list[dict[str, float]]] = {"on": [], "off": []}
    for number in range(WARM + options.windows):
        for state in ("off", "on") if number % 2 else ("on", "off"):  # neither is always the first
            debug.recorder.on = state == "on"
            row = windows.serve()
            if number >= WARM:
                rows[state].append(row)
    debug.recorder.on = True
    summary: dict[str, Any] = {"windows": len(rows["on"])}
    for key in ("step_us", "median_step_us", "window_us"):
        pairs = [(on[key], off[key]) for on, off in zip(rows["on"], rows["off"], strict=True)]
        added, share = [on - off for on, off in pairs], [100 * (on / off - 1) for on, off in pairs]
        summary[f"added_{key}"] = [round(value, 1) for value in (statistics.median(added), *interval(added))]
        summary[f"added_{key}_percent"] = [round(value, 2) for value in (statistics.median(share), *interval(share))]
    summary["off"], summary["on"] = medians(rows["off"]), medians(rows["on"])
    began = time.perf_counter()
    for _ in range(1000):
        plugin_off(plugin)
    summary["plugin_off_us"] = round(1e3 * (time.perf_counter() - began), 2)
    found = outcome(options)
    summary["saw"] = {key: found[key] for key in ("verdict", "why", "hazards")}  # half of the run was not seen
    bare = [windows.serve() for _ in range(options.windows // 2)]  # `outcome` has closed the session
    summary["closed"], summary["closed_each"] = medians(bare), [round(row["step_us"], 1) for row in bare]
    summary["each"] = {state: [round(row["step_us"], 1) for row in rows[state]] for state in rows}
    return {**found, **summary, "verdict": "not asked", "hazards": {}, "why": []}


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
    from gpu.vllm_acceptance import engine

    windows = Windows(engine(options), options.seed)
    found: dict[str, Any] = {"mode": "csan", "runner": options.runner, "graphs": options.graphs}
    plain = [windows.serve() for _ in range(2 * WARM + options.windows)][2 * WARM :]
    found["plain"], found["plain_each"] = medians(plain), [round(row["step_us"], 1) for row in plain]
    try:
        from torch.cuda import _sanitizer

        sanitizer: Any = _sanitizer
        sanitizer.enable_cuda_sanitizer()
        began = time.perf_counter()
        watched: list[dict[str, float]] = []
        while len(watched) < 3 and time.perf_counter() - began < 15:
            watched.append(windows.serve())
        found["csan"], found["csan_windows"] = medians(watched), len(watched)
    except Exception as error:
        found["csan_failed"] = f"{type(error).__name__}: {error}"[:500]
    return found
