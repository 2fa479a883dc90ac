"""How far an exploration goes.

Device timing is no part of it: the happens-before check covers every timing of one issue order.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scope:
    """`requests`: how often a block is handed out, over all blocks (each hand-out is one request's tenancy of one
    block, a prefix hit too). `blocks`: how many there are. `steps`: how many are launched.

    `skips`: a step may also leave out any of the blocks that are due (the engine's batch is full). The design's proof
    has every due block in every step.

    `plain`: nothing is left out that is known to lead to no other race (`player.Player`), for counting.
    """

    requests: int = 2
    blocks: int = 2
    steps: int = 3
    skips: bool = False
    plain: bool = False

    def __post_init__(self) -> None:
        for name, least, value in (
            ("requests", 1, self.requests),
            ("blocks", 1, self.blocks),
            ("steps", 1, self.steps),
        ):
            if value < least:
                raise ValueError(f"{name} is a number from {least}, not {value}")

    def __str__(self) -> str:
        def many(number: int, what: str) -> str:
            return f"{number} {what}{'' if number == 1 else 's'}"

        parts = [many(self.requests, "request"), many(self.blocks, "block"), many(self.steps, "step")]
        return ", ".join(parts) + (", steps may skip blocks" if self.skips else "")
