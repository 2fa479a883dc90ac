"""What a host may choose, as short words: the alphabet of a schedule.

    allocate.0         the rule "allocate" on block 0
    launch             a step begins; `launch-0-2`: without blocks 0 and 2, though they are due
    +load              of the step's items that may come next: this one
    +end               nothing of the step is left to do, and it ends; only where a thread could still change that
    copier:store       the host thread takes its oldest entry for this job and does it
    see                the host learns that the oldest step it has not seen is complete

A step runs on by itself where nothing is open. Names are those of the design, in small letters and with a dash for
what is no letter or number, so that a schedule can be read and still be tried on a design that was mended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from kvsan.model.design import Design, Item, Mark, Rule, Thread, Work

LAUNCH, SEE, END = "launch", "see", "+end"


def slug(name: str) -> str:
    """The name in the letters of a schedule."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"


def slugs(names: Iterable[str]) -> list[str]:
    """One for each name, all different: where two would be the same, the later one gets a number."""
    out: list[str] = []
    for name in names:
        made, number = slug(name), 1
        while made in out:
            number += 1
            made = f"{slug(name)}-{number}"
        out.append(made)
    return out


class Words:
    """A design's words for its moves, and back."""

    def __init__(self, design: Design) -> None:
        self.design = design

    @cached_property
    def rules(self) -> dict[str, Rule]:
        """Rules by word."""
        return dict(zip(slugs(rule.name for rule in self.design.rules), self.design.rules, strict=True))

    @cached_property
    def rule_words(self) -> list[str]:
        return list(self.rules)

    @cached_property
    def items(self) -> list[str]:
        """The word of each item of the step."""
        return ["+" + word for word in slugs(item_name(item) for item in self.design.step)]

    @cached_property
    def jobs(self) -> dict[str, tuple[Thread, Work]]:
        """Jobs of other threads by word."""
        out: dict[str, tuple[Thread, Work]] = {}
        for thread, name in zip(self.design.threads, slugs(t.name for t in self.design.threads), strict=True):
            for job, word in zip(thread.jobs, slugs(job.name for job in thread.jobs), strict=True):
                out[f"{name}:{word}"] = (thread, job)
        return out


def item_name(item: Item) -> str:
    """How a person calls an item of the step."""
    return f"record {item.event} on {item.on}" if isinstance(item, Mark) else item.name
