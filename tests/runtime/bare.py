"""Serving with nothing but the kernels: what the tests of `forward.py` share, on a CPU and on a GPU. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from kvsan.runtime.forward import Forward, Row, batch_of
from kvsan.runtime.language import UNKNOWN, Model

LIMIT = 40
"""Positions a slot has room for, unless told."""


class Server:
    """Serves without a scheduler: each request its blocks, drawn at random; those behind a window are lost at once."""

    def __init__(
        self, model: Model, seed: int, slots: int = 4, device: str = "cpu", limit: int = LIMIT, **options: Any
    ) -> None:
        self.model, self.rng = model, np.random.default_rng(seed)
        blocks = slots * len(model.groups) * model.blocks(limit) + 3
        self.pool = torch.from_numpy(self.rng.integers(-(1 << 63), (1 << 63) - 1, model.pool_shape(blocks))).to(device)
        self.tokens = torch.full((slots,), 7, dtype=torch.int64, device=device)
        self.free = self.rng.permutation(blocks).tolist()
        self.tables: list[list[list[int]]] = [[[] for _ in model.groups] for _ in range(slots)]
        self.out = torch.zeros((64, slots), dtype=torch.int64, pin_memory=device != "cpu")
        self.forward = Forward(model, self.pool, self.tokens, **options)
        self.steps = 0

    def row(self, slot: int, first: int, tokens: list[int], samples: bool = True) -> Row:
        for group, table in zip(self.model.groups, self.tables[slot], strict=True):
            while len(table) < self.model.blocks(first + len(tokens)):
                table.append(self.free.pop())
            for behind in range(group.seen_from(first) // self.model.block_size):
                if table[behind] >= 0:
                    self.free.insert(int(self.rng.integers(len(self.free) + 1)), table[behind])
                    table[behind] = -1
        return Row(slot, first, tokens, [list(table) for table in self.tables[slot]], samples)

    def step(self, rows: list[Row]) -> Any:
        kernel = self.forward(batch_of(rows), self.out[self.steps % 64], self.steps)
        for part in kernel.parts:
            part()
        self.steps += 1
        return kernel


def chunked(tokens: list[int], cuts: list[int]) -> list[tuple[int, list[int]]]:
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(tokens)}), len(tokens)]
    return [(low, tokens[low:high]) for low, high in pairwise(edges)]


def serve(
    server: Server,
    requests: list[tuple[list[int], int]],
    cuts: list[int],
    known: bool,
    wait: Callable[[], None] = lambda: None,
) -> list[list[int]]:
    """All requests side by side, one a slot. `known`: the host reads each token before the next step. `wait` waits for
    the device."""
    todo = [chunked(prompt, cuts) for prompt, _ in requests]
    made: list[list[int]] = [[] for _ in requests]
    steps: list[list[int]] = [[] for _ in requests]
    while any(len(steps[slot]) < count for slot, (_, count) in enumerate(requests)):
        rows = []
        if known:
            wait()
        for slot, (prompt, count) in enumerate(requests):
            if todo[slot]:
                first, tokens = todo[slot].pop(0)
                rows.append(server.row(slot, first, tokens, samples=not todo[slot]))
                if todo[slot]:
                    continue
            elif len(steps[slot]) < count:
                last = int(server.out[steps[slot][-1], slot]) if known else UNKNOWN
                rows.append(server.row(slot, len(prompt) + len(steps[slot]) - 1, [last]))
            else:
                continue
            steps[slot].append(server.steps)
        server.step([rows[i] for i in server.rng.permutation(len(rows))])
    wait()
    for slot, at in enumerate(steps):
        made[slot] = [int(server.out[step, slot]) for step in at]
    return made
