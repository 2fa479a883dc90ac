"""What a step of the language model costs on a GPU, as a table. With PYTHONPATH=model:runtime.

64 requests decode one token each. The host's time for the call and for issuing the parts, with no more than four steps
in flight; the GPU's own time, of steps queued behind a spin; the wall time of a step when all are issued at once.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from kvsan.runtime.ballast import Ballast
from kvsan.runtime.forward import Batch, Forward
from kvsan.runtime.language import UNKNOWN, Group, Model

ROWS, STEPS, QUEUED = 64, 400, 20
FULL, BOTH = (Group("full"),), (Group("full"), Group("window", 64))


def measure(model: Model, blocks: int, ballast: Ballast | None = None, spin: int = 0) -> str:
    rng = np.random.default_rng(0)
    pool = torch.zeros(model.pool_shape(blocks), dtype=torch.int64, device="cuda")
    tokens = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
    out = torch.zeros((8, ROWS), dtype=torch.int64, pin_memory=True)
    forward = Forward(model, pool, tokens, ballast=ballast, spin_cycles=spin)
    one, tables = np.ones(ROWS, np.int64), rng.integers(0, blocks, (len(model.groups), ROWS, 32))
    batch = Batch(np.arange(ROWS), rng.integers(40, 200, ROWS), one, UNKNOWN * one, one > 0, tables)

    def step(i: int) -> tuple[float, float]:
        start = time.perf_counter()
        kernel = forward(batch, out[i % 8], i)
        called = time.perf_counter()
        for part in kernel.parts:
            part()
        return (called - start) * 1e6, (time.perf_counter() - called) * 1e6

    def wall() -> float:
        start = time.perf_counter()
        for i in range(STEPS):
            step(i)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / STEPS * 1e6

    wall()
    host = []
    for i in range(STEPS):
        host.append(step(i))
        if i % 4 == 3:
            torch.cuda.synchronize()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(200_000_000)  # 0.1 s: all of the steps are queued by then
    first.record()
    for i in range(QUEUED):
        step(i)
    last.record()
    torch.cuda.synchronize()
    call, issue = np.median(host, axis=0)
    return f"{call:6.0f} {issue:6.0f} {first.elapsed_time(last) / QUEUED * 1e3:6.0f} {wall():6.0f}"


def main() -> None:
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}; microseconds a step")
    print(f"{'layers groups words blocks ballast   spin':<42}   call  issue    GPU   wall")
    shape = Ballast()
    for groups, layers, words, blocks, ballast, spin in [
        (FULL, 2, 1, 1024, None, 0),
        (BOTH, 4, 1, 1024, None, 0),
        (BOTH, 4, 1, 10_000, None, 0),
        (BOTH, 16, 1, 1024, shape, 0),
        (BOTH, 16, 1, 10_000, shape, 0),
        (FULL, 16, 64, 1024, shape, 0),
        (BOTH, 4, 1, 1024, shape, 2_000_000),
    ]:
        model = Model(groups, layers=layers, words=words)
        name = f"{layers:6} {len(groups):6} {words:5} {blocks:6} {'16x1024' if ballast else '-':>7} {spin:7}"
        print(f"{name:<42} {measure(model, blocks, ballast, spin)}")


if __name__ == "__main__":
    main()
