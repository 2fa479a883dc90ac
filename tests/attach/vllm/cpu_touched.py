"""Which cache lines debug mode touches in a step of vLLM's own engine without a GPU (`cpu_engine`), and the engine does
not: what its hooks cost where all caches are full of the engine. `docs/performance.md` says what a line costs.

    python -m attach.vllm.cpu_touched --vllm FOLDER [--steps 25,31,43] [--by-function]

Steps of a window of `cpu_cost` are single-stepped (`benchmarks.stepping`, which needs capstone), some 40 s each. Prints
a JSON object for each: lines of code and of data, and jumps that were taken (calls and returns are some), by hook, with
`--by-function` by function too. A hook's are those that it was the first to touch or take. Not there: what PyTorch does
for a hook (the current stream is a look into a dict), and stand-ins for its events; streams carry their names, where
PyTorch's are known by their number.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import signal
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from benchmarks.stepping import LINE, Places, Stretch, stepped

WARM = 3
OURS = "_hot."


def child(options: argparse.Namespace) -> None:
    """The engine: `SIGUSR1` around each of the steps."""
    from attach.vllm import cpu_cost, cpu_engine
    from attach.vllm.simulated import LEGACY
    from gpu.vllm_cost import throw

    options.connector, options.window, options.runner = "SimpleCPUOffloadConnector", 128, "v1"
    device = cpu_engine.load(options)
    cpu_engine.BLOCKS = 2048

    from attach.vllm import cpu_worker
    from kvsan.checker import session
    from kvsan.checker.attach import torch as attached
    from kvsan.checker.attach.torch import surface
    from kvsan.checker.attach.vllm import runners
    from kvsan.checker.attach.vllm.hooks import install
    from kvsan.checker.options import Options

    found = surface.torch_surface

    def in_c() -> surface.Surface:
        """The current stream in C, as PyTorch tells it."""
        raw: Any = (int, {0: LEGACY}.__getitem__)
        return dataclasses.replace(found(), raw=raw, current=lambda: (0, LEGACY), devices=[1].__len__)

    setattr(attached, "torch_surface", in_c)  # noqa: B010 - mypy refuses to assign a function
    debug = session.start(Options(log_path="/dev/null", incident=0))
    hooked = install(debug)
    for cls, inside in ((cpu_worker.OlderRunner, True), (cpu_worker.NewerRunner, False)):
        runners.hook_runner(hooked, types.SimpleNamespace(GPUModelRunner=cls), inside=inside)
    core: Any = cpu_engine.engine(options.connector)
    throw(debug, "on")
    for turn in range(WARM + 1):
        last = turn == WARM
        if turn == 1:
            carry_names(debug.recorder, device.chains)
        device.seed(0)
        cpu_cost.requests(core, 0)
        step = 0
        gc.collect()
        gc.disable()
        while core.scheduler.has_requests() or core.batch_queue:
            watched = last and step in options.steps
            if watched:
                os.kill(os.getpid(), signal.SIGUSR1)
            core.step_fn()
            device.pump()
            if watched:
                os.kill(os.getpid(), signal.SIGUSR1)
            step += 1
        gc.enable()
    sys.stdout.flush()
    os._exit(0)


def carry_names(recorder: Any, handles: Iterable[int]) -> None:
    """Each stream carries its name, as `torch/calls.py` has it: asked for once, and known from then on."""
    import torch

    stream: Any = torch.cuda.Stream
    names = {handle: recorder.attachments["torch"]._meet((0, handle)) for handle in handles}
    stream._kvsan_name = property(lambda self: (recorder, recorder.streams_gone, names[self.cuda_stream]))


def hooks_of(stretch: Stretch, places: Places) -> list[str | None]:
    """For each instruction the hook in which it is: the first function of ours that was called; None where it is the
    engine's, or the engine's own function inside a hook (which is called by `PyObject_Vectorcall` from ours).
    """
    inside: list[tuple[str | None, int]] = []
    out: list[str | None] = []
    ours_before, function_before = False, ""
    for at, stack in zip(stretch.code, stretch.stack, strict=True):
        while inside and stack > inside[-1][1]:
            inside.pop()
        file, function = places.function(at)
        ours = OURS in file
        hook = inside[-1][0] if inside else None
        if hook is None and ours:
            inside.append((function, stack))
        elif hook is not None and ours_before and function == "PyObject_Vectorcall" != function_before:
            inside.append((None, stack))
        out.append(inside[-1][0] if inside else None)
        ours_before, function_before = ours, function
    return out


def told(stretch: Stretch, by_function: bool) -> dict[str, Any]:
    """What a step touched."""
    places = Places(stretch.maps)
    hooks = hooks_of(stretch, places)
    touched: dict[str, tuple[set[int], dict[int, int]]] = {sort: (set(), {}) for sort in ("code", "data", "jumps")}

    def touch(sort: str, what: int, number: int) -> None:
        engine, kvsan = touched[sort]
        engine.add(what) if hooks[number] is None else kvsan.setdefault(what, number)

    for number, at in enumerate(stretch.code):
        for line in stretch.lines(number):
            touch("code", line, number)
        if number + 1 < len(hooks) and stretch.code[number + 1] != at + stretch.sizes[at]:
            touch("jumps", at, number)
    for at, number in zip(stretch.data, stretch.by, strict=True):
        touch("data", at // LINE, number)
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    functions: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sort, (engine, kvsan) in touched.items():
        for what, number in kvsan.items():
            if what not in engine:
                hook, function = hooks[number] or "", places.function(stretch.code[number])[1]
                rows[hook][sort] += 1
                functions[hook][f"{function} ({sort})"] += 1
    total = {sort: sum(row[sort] for row in rows.values()) for sort in touched}
    ordered = sorted(rows, key=lambda hook: -rows[hook].total())
    out: dict[str, Any] = {**total, "instructions": sum(hook is not None for hook in hooks), "of": len(stretch.code)}
    out["hooks"] = {hook: dict(rows[hook]) for hook in ordered}
    if by_function:
        out["functions"] = {hook: dict(functions[hook].most_common()) for hook in ordered}
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm")
    parser.add_argument("--steps", default="25,31,43", type=lambda text: [int(step) for step in text.split(",")])
    parser.add_argument("--by-function", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    again = [sys.executable, "-W", "ignore", "-m", "attach.vllm.cpu_touched", *sys.argv[1:], "--child"]
    for stretch in stepped(again, {**os.environ, "PYTHONHASHSEED": "0"}):
        print(json.dumps(told(stretch, options.by_function), indent=1))


if __name__ == "__main__":
    main()
