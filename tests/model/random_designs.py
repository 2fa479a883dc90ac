"""Random designs: the simple offload protocol with each of its edges there or not."""

from __future__ import annotations

import random

from kvsan.model.design import Design, Retired, last_use, newest, now, retired
from kvsan.model.designs._simple_offload import Awaited, simple_offload

WAITS: tuple[Awaited, ...] = ("compute_done", "prev_done", "used")


def random_design(seed: int) -> Design:
    """Each edge is drawn for itself; transfers wait for little, so that safe and unsafe designs are both common."""
    dice = random.Random(seed)

    def some(odds: float, *events: Awaited) -> list[Awaited]:
        return [event for event in events if dice.random() < odds]

    def free(odds: float) -> Retired | None:
        return dice.choice([retired(newest), retired(last_use)]) if dice.random() < odds else now

    deferring = dice.choice([0.0, 0.7, 1.0])
    early = dice.random() < 0.3
    p, _ = simple_offload(
        f"random-{seed}",
        title="",
        reference="",
        load_after=some(0.3, *WAITS) + some(0.2, "store_done"),
        store_after=some(0.4, *WAITS) + some(0.2, "load_done"),
        forward_after=some(0.4, "loads_done") + some(0.2, "load_done", "store_done"),
        finish=free(deferring),
        preempt=free(deferring),
        slide=free(deferring),
        slide_settled=dice.random() < 0.2,
        runnable_before_load_done=early,
        pinned_while_stored=dice.random() < 0.85,
        hold_aborted_load=dice.random() < 0.85,
        poll_store=dice.random() < 0.85,
        zero_load_target=dice.random() < 0.2,
        load_also_records=some(0.1, "compute_done"),
    )
    return p.design()
