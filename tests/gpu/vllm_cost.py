"""What debug mode costs a step: alternating windows in one warm process, and PyTorch's own sanitizer beside it.

A window serves `REQUESTS` new prompts to their end, so that the engine is idle where the switch is thrown; they fit
into the GPU's blocks, so that none is preempted. All windows of a round have prompts of the same lengths and prefixes,
with other ends: their steps do the same. A step is one that ran a forward: steps in which the engine only looks whether
a load has come are many and short, and how many they are depends on what is measured.

Three states take turns, in another order each round: `on`; `off`, the session paused: the originals are back in the
place of all that was hooked; and `again`, which is `off` once more: what `again` adds to `off` is nothing but noise,
and says how much of it the other differences hold. `both` is those two together, against which `on` is told best.
Reported: for each two of them the median over the rounds of what the one adds to the other, with the interval that
holds it with 95 % (order statistics, no assumption on the shape of the noise). The first window of a round takes some
200 µs a step more than the others, which find its prefixes in the GPU's blocks: `placed_us` is a window's time less
what windows of its place in the round are above their round's median, so that the same difference has half the
interval. `steps` compares single steps with those at the same place of their round's windows, in bulk and tail
(`benchmarks/estimate.py`), by wall time and by processor time of the engine's thread.

A window that followed on a throw of the switch took some 45 µs a step more than one that did not, in either state, and
`on` follows on one twice as often: classes have changed then, and Python finds their attributes the slow way until
it has met them some fifty times. A debug session is not thrown, so before each window some prompts are served that do
not count (`settle`), in more steps than that.

What stays in `off`: events and queues that were made as stand-ins (their methods are the originals again, their class
is not), and names that were taken from a module before. An event that is made while the session is paused is PyTorch's
own, and one that is recorded later shows as an unseen edge, which keeps the callbacks on: so the first window is `on`.
PyTorch's trace callbacks are off: armed, PyTorch calls Python
at each allocation and each free of device memory. `alloc_us` is an `empty` and its end, in `on`, in `off` and in `csan`
(a process that never had kvsan); `allocations` is how many a step makes.

`--dissect`: three more states say where it goes. `deaf` has all hooks in place, and each finds that it is not to look;
`bare` is the same without those of tensor methods; `kept` names its lines and lets them go, where `on` hands them to
the process beside.

`--breakdown`: clocks around hooks and recorder (`attach.meter`), which slow down all states; its windows are for µs by
hook alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import permutations
from math import comb
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from benchmarks.estimate import compare, steps_of

STATES = ("on", "off", "again")
PARTS = ("deaf", "bare", "kept")
WARM = 4
REQUESTS, TOKENS = 12, 64
SETTLE_REQUESTS, SETTLE_TOKENS = 6, 64


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
        self.cpu: list[float] = []
        self.empty = 0
        original: Callable[[], Any] = core.step_fn

        def step() -> Any:
            began, cpu = time.perf_counter(), time.thread_time()
            done = original()
            if done[1]:
                self.cpu.append(time.thread_time() - cpu)
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
        rng = Random(seed)
        self.prefixes = [[rng.randrange(10, 32000) for _ in range(512)] for _ in range(24)]

    def work(self, number: int) -> list[Any]:
        """Prompts of a round: each time other ends, of the same lengths behind the same prefixes."""
        shape, ends = Random(f"{self.seed} {number}"), Random(f"{self.seed} {number} {self.served}")
        return [
            {
                "prompt_token_ids": shape.choice(self.prefixes)
                + [ends.randrange(10, 32000) for _ in range(shape.randrange(16, 256))]
            }
            for _ in range(REQUESTS)
        ]

    def settle(self) -> None:
        """Prompts of nobody else's, which are not measured."""
        from gpu.vllm_acceptance import sampling

        rng = Random(f"{self.seed} settles {self.served}")
        work = [
            {"prompt_token_ids": [rng.randrange(10, 32000) for _ in range(rng.randrange(16, 64))]}
            for _ in range(SETTLE_REQUESTS)
        ]
        self.llm.generate(work, sampling(SETTLE_TOKENS), use_tqdm=False)

    def serve(self, number: int) -> dict[str, float]:
        from gpu.vllm_acceptance import sampling

        clock, work = self.clock, self.work(number)
        self.served += 1
        clock.steps.clear()
        clock.cpu.clear()
        clock.empty = 0
        began = time.perf_counter()
        allocations = _allocations()
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
            "allocations": (_allocations() - allocations) / len(clock.steps),
        }


def place(rows: dict[str, list[dict[str, float]]]) -> None:
    """Gives each row its `placed_us`: its `step_us` less what windows at its `place` of a round are above their round's
    median, in the middle.
    """
    above: dict[float, list[float]] = {}
    for windows in zip(*rows.values(), strict=True):
        middle = statistics.median(row["step_us"] for row in windows)
        for row in windows:
            above.setdefault(row["place"], []).append(row["step_us"] - middle)
    for row in (row for each in rows.values() for row in each):
        row["placed_us"] = row["step_us"] - statistics.median(above[row["place"]])


def together(rows: dict[str, list[dict[str, float]]], rounds: list[dict[str, Any]]) -> None:
    """A state `both` in each round: the means of its windows `off` and `again`, and the steps of both."""
    pairs = zip(rows["off"], rows["again"], strict=True)
    rows["both"] = [{key: (off[key] + again[key]) / 2 for key in off} for off, again in pairs]
    for one in rounds:
        one["both"] = {key: one["off"][key] + one["again"][key] for key in one["off"]}


def keep(options: argparse.Namespace, rounds: list[dict[str, Any]]) -> None:
    """The steps of all windows, µs, beside the results as `NAME.steps.json.gz`: so runs can be put together later."""
    if not options.out:
        return
    kept = [
        {state: {key: [round(us, 1) for us in of[key]] for key in ("wall", "cpu")} for state, of in one.items()}
        for one in rounds
    ]
    with gzip.open(Path(options.out).with_name(f"{options.name}.steps.json.gz"), "wt") as file:
        json.dump(kept, file)


def by_steps(rounds: list[dict[str, Any]], base: str, mode: str) -> dict[str, Any]:
    """What `mode` adds to a step of `base`: bulk, tail and their sum, µs and percent, by both clocks. A round has each
    state's window: its steps' times by each clock, and their places (`kind`).
    """
    out: dict[str, Any] = {}
    for clock in ("wall", "cpu"):
        found = compare(steps_of(rounds, clock, (base, mode)), 0, 1)
        mean = float(np.mean([value for one in rounds for value in one[base][clock]]))
        for part in ("bulk", "tail", "plain"):
            found[part]["percent"] = [round(100 * x / mean, 2) for x in (found[part]["us"], *found[part]["interval"])]
        out[clock] = found
    return out


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(row[key] for row in rows), 1) for key in rows[0]}


def _allocations() -> int:
    """How many pieces of device memory PyTorch has given out so far."""
    import torch

    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))


def alloc_us() -> float:
    """Host µs of one small tensor on the device and its end, least of some turns."""
    import torch

    def turn(count: int = 2000) -> float:
        began = time.perf_counter()
        for _ in range(count):
            torch.empty(1, device="cuda")
        return 1e6 * (time.perf_counter() - began) / count

    return round(min(turn() for _ in range(10)), 3)


def throw(debug: Any, state: str) -> None:
    """Throws the session into one of the states."""
    recorder = debug.recorder
    leave: Callable[[], None] | None = vars(debug).pop("leave", None)
    if leave is not None:
        leave()
    debug.pause()  # from wherever it was
    if state in ("off", "again"):
        return
    debug.resume()
    if state in ("deaf", "bare"):
        recorder.settle_up()
        recorder.on = False
        calls = recorder.attachments["torch"]
        calls._crosscheck.pause()  # its callbacks are no hooks
        if state == "bare":
            calls._touching.lift()
            calls._blocking.lift()
        debug.leave = lambda: setattr(recorder, "on", True)
    elif state == "kept":
        recorder.settle_up()
        count = recorder.ops
        recorder._hand_over = lambda beside: recorder._queue.clear()

        def heard_again() -> None:  # lines are numbered on the other side too, which has not had these
            recorder.settle_up()
            del recorder._hand_over
            recorder._count = count

        debug.leave = heard_again


def differences(rows: dict[str, list[dict[str, float]]], this: str, other: str) -> dict[str, Any]:
    """What `this` adds to `other`: median and interval over the rounds, in µs and in percent."""
    out: dict[str, Any] = {}
    for key in ("step_us", "placed_us", "median_step_us", "window_us"):
        pairs = [(one[key], two[key]) for one, two in zip(rows[this], rows[other], strict=True)]
        added, share = [one - two for one, two in pairs], [100 * (one / two - 1) for one, two in pairs]
        out[key] = [round(value, 1) for value in (statistics.median(added), *interval(added))]
        out[f"{key}_percent"] = [round(value, 2) for value in (statistics.median(share), *interval(share))]
    return out


def cost(options: argparse.Namespace) -> dict[str, Any]:
    from attach.meter import metered

    # before vLLM loads its plugins: they put the hooks in place
    with metered() if options.breakdown else nullcontext() as meter:
        return _cost(options, meter)


def _cost(options: argparse.Namespace, meter: Any) -> dict[str, Any]:
    from attach.meter import Hot
    from gpu.vllm_acceptance import engine, outcome
    from kvsan.checker import session
    from kvsan.checker.attach.vllm import plugin

    hot = Hot()
    windows = Windows(engine(options), options.seed)
    debug = session.current()
    assert debug is not None
    states = (*STATES, *(PARTS if options.dissect else ()))
    rows: dict[str, list[dict[str, float]]] = {state: [] for state in states}
    each: list[dict[str, Any]] = []
    orders = list(permutations(rows))  # none is always the first, none always follows the same
    Random(options.seed).shuffle(orders)
    steps = ops = 0
    windows.serve(0)  # events that vLLM makes at their first use and keeps are ones that kvsan knows
    for number in range(WARM + options.windows):
        if number == WARM and options.pin >= 0:
            os.sched_setaffinity(0, {options.pin})  # this thread alone
        if number >= WARM:
            each.append({})
        for at, state in enumerate(orders[number % len(orders)]):
            throw(debug, state)
            windows.settle()
            before = debug.recorder.ops
            if meter is not None:
                meter.on = state == "on" and number >= WARM
            watched = state == "on" and number >= WARM
            if watched:
                hot.window(on=True)
            row = {**windows.serve(number), "place": at}
            if watched:
                hot.window(on=False)
            if number >= WARM:
                rows[state].append(row)
                clock = windows.clock
                times = {"wall": [1e6 * x for x in clock.steps], "cpu": [1e6 * x for x in clock.cpu]}
                each[-1][state] = {**times, "kind": [str(at) for at in range(len(clock.steps))]}
                if state == "on":
                    steps, ops = steps + int(row["steps"]), ops + debug.recorder.ops - before
    alloc = {}
    for state in ("off", "on"):
        throw(debug, state)
        alloc[state] = alloc_us()
    place(rows)
    summary: dict[str, Any] = {"windows": len(rows["on"]), "ops_a_step": round(ops / steps, 1)}
    parts = [(state, "off") for state in states if state in PARTS]
    for this, other in (("on", "off"), ("on", "again"), ("again", "off"), *parts):
        summary[f"{this}_over_{other}"] = differences(rows, this, other)
    keep(options, each)
    together(rows, each)
    summary["on_over_both"] = differences(rows, "on", "both")
    pairs = [
        ("both", "on"),
        ("off", "on"),
        ("again", "on"),
        ("off", "again"),
        *(("off", state) for state in states if state in PARTS),
    ]
    summary["steps"] = {f"{mode}_over_{base}": by_steps(each, base, mode) for base, mode in pairs}
    summary.update({state: medians(rows[state]) for state in rows})
    if meter is not None:
        meter.on = False
        summary["breakdown"] = meter.rows(steps)
    if hot.there():
        summary["hot"] = hot.rows(steps)
    summary["alloc_us"] = alloc
    began = time.perf_counter()
    for _ in range(1000):
        plugin_off(plugin)
    summary["plugin_off_us"] = round(1e3 * (time.perf_counter() - began), 2)
    found = outcome(options)
    summary["saw"] = {key: found[key] for key in ("verdict", "why", "hazards")}  # most of the run was not seen
    for key, name in (("step_us", "each"), ("median_step_us", "each_median"), ("place", "places")):
        summary[name] = {state: [round(row[key], 1) for row in rows[state]] for state in states}
    return {**found, **summary, "verdict": "not asked", "hazards": {}, "why": []}


def plugin_off(plugin: Callable[[], None]) -> None:
    """The entry point as a process without `KVSAN` sees it."""
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
    plain = [windows.serve(number) for number in range(2 * WARM + options.windows)][2 * WARM :]
    found["alloc_us"] = alloc_us()
    found["plain"], found["plain_each"] = medians(plain), [round(row["step_us"], 1) for row in plain]
    try:
        from torch.cuda import _sanitizer

        sanitizer: Any = _sanitizer
        sanitizer.enable_cuda_sanitizer()
        began = time.perf_counter()
        watched: list[dict[str, float]] = []
        while len(watched) < 3 and time.perf_counter() - began < 15:
            watched.append(windows.serve(len(watched)))
        found["csan"], found["csan_windows"] = medians(watched), len(watched)
    except Exception as error:
        found["csan_failed"] = f"{type(error).__name__}: {error}"[:500]
    return found
