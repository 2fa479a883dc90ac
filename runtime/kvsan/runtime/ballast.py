"""What makes a step of the integer model last as long as a transformer's: its matrix products, no more.

The weights are random, the results are thrown away. Not here: attention, norms, and what moves between several GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Ballast:
    """Makes a step as long as a transformer's of that shape: the matrix products of each layer (QKV, attention's
    output, an MLP of four times the width) in bfloat16, on as many rows as the step has new tokens; on a GPU rounded
    up to a power of two."""

    layers: int = 16
    width: int = 1024


class Matrices:
    """A ballast's weights on a device. A GPU replays it as a CUDA graph, as serving engines do: one launch a step."""

    _LARGEST = 512  # rows of the largest graph; more take several

    def __init__(self, shape: Ballast, device: Any) -> None:
        def weight(rows: int, columns: int) -> Any:
            drawn = torch.randn(rows, columns, device=device, dtype=torch.float32)
            return (drawn * rows**-0.5).to(torch.bfloat16)

        self.width, self.device = shape.width, device
        wide = [(1, 3), (1, 1), (1, 4), (4, 1)]
        self.layers = [[weight(a * shape.width, b * shape.width) for a, b in wide] for _ in range(shape.layers)]
        self.graphs: dict[int, Any] = {}
        if device.type == "cuda":
            self._capture()

    def _capture(self) -> None:
        torch.cuda.synchronize()  # the weights are there, for whatever stream
        rows, memory = 1, None
        while rows <= self._LARGEST:
            with torch.cuda.stream(torch.cuda.Stream()):  # cuBLAS sets itself up outside of the capture
                self._multiply(rows)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory):
                self._multiply(rows)
            self.graphs[rows], memory = graph, graph.pool()
            rows *= 2

    def run(self, rows: int) -> None:
        """Issues the products of one step on the current stream."""
        if not self.graphs:
            self._multiply(rows)
            return
        while rows > 0:
            self.graphs[min(1 << (rows - 1).bit_length(), self._LARGEST)].replay()
            rows -= self._LARGEST

    def _multiply(self, rows: int) -> None:
        x = torch.ones(rows, self.width, device=self.device, dtype=torch.bfloat16)
        for qkv, out, up, down in self.layers:
            x = x + (x @ qkv)[:, : self.width] @ out
            x = x + torch.relu_(x @ up) @ down
            x = x / 2  # no norm: keeps the numbers small
