"""Random designs: the simple offload protocol with each of its edges there or not, and odd names in every other one."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from kvsan.model.design import (
    Block,
    Design,
    Item,
    Mark,
    Need,
    Retired,
    Seen,
    Submit,
    Work,
    last_use,
    newest,
    now,
    retired,
)
from kvsan.model.design.check import check
from kvsan.model.designs._simple_offload import Awaited, simple_offload

ODD = ["last_use", "fence", "unseen step 1", "step", "host", "load"]
"""Names that the proof, or the design, has for something else too."""
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
    design = p.design()
    odd = dice.sample(ODD, len(ODD)) if dice.random() < 0.5 else []
    return renamed(design, dict(zip((event.name for event in design.events), odd, strict=False)))


def renamed(design: Design, names: Mapping[str, str]) -> Design:
    """The design with other names for its events: the same design, whatever else has that name."""

    def all_of(events: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(event, event) for event in events)

    def item(one: Item) -> Item:
        match one:
            case Work():
                return replace(one, after=all_of(one.after), signals=all_of(one.signals))
            case Mark():
                return replace(one, event=names.get(one.event, one.event))
            case Block(event=str(event)):
                return replace(one, event=names.get(event, event))
            case Submit():
                return replace(one, creates=all_of(one.creates))
        return one

    def need(one: Need) -> Need:
        return Seen(names.get(one.event, one.event)) if isinstance(one, Seen) else one

    rules = tuple(
        replace(
            rule,
            needs=tuple(need(one) for one in rule.needs),
            records=tuple((on, names.get(event, event)) for on, event in rule.records),
        )
        for rule in design.rules
    )
    events = tuple(replace(event, name=names.get(event.name, event.name)) for event in design.events)
    changed = replace(design, events=events, step=tuple(item(one) for one in design.step), rules=rules)
    check(changed)
    return changed
