"""Which of a design's rules and works the engine means when it says "allocate", "preempt" or "load".

A design names its rules in its own words; the engine finds them by the words of `WORDS`, and its works by what they do:
a forward runs in every step, a load is a copy into the pool on another stream, a store one out of it. What is left over
settles a transfer or a free (`store finished`, `reap an aborted load`, `publish`), and is applied wherever it holds. A
design that lacks what an engine cannot do without is refused with the words that are accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsan.model.design import Design, DesignError, Rule, Work

WORDS: dict[str, tuple[str, ...]] = {
    "load": ("allocate for", "prefix hit on the host"),
    "allocate": ("allocate",),
    "hit": ("prefix hit", "prefix-cache hit"),
    "abort": ("abort",),
    "store": ("store a full block", "plan a store", "back up"),
    "keep": ("insert in the radix tree",),
    "finish": ("request finished",),
    "preempt": ("preempt",),
    "slide": ("window slides",),
    "evict": ("evict",),
    "reserve": ("reserve for a store",),
    "read": ("plan a load",),
    "slot": ("take a slot",),
}
"""A role and the words that a rule's name begins with; the first role that fits is the rule's."""


@dataclass(frozen=True, slots=True)
class Roles:
    """`rules`: role → rule. `settles`: the rules without a role, applied as soon as they hold."""

    design: Design
    rules: dict[str, Rule]
    settles: tuple[Rule, ...]
    forwards: tuple[Work, ...]
    load: Work | None
    store: Work | None
    fill: Work | None

    def name(self, role: str, *instead: str) -> str | None:
        """The name of the rule of that role, or of the first of the others that there is."""
        return next((self.rules[one].name for one in (role, *instead) if one in self.rules), None)

    @property
    def forward(self) -> Work | None:
        """The forward that touches the block; the others run beside it."""
        return next((work for work in self.forwards if work.reads is not None or work.writes is not None), None)


def roles(design: Design) -> Roles:
    """Raises `DesignError` if two rules have one role."""
    rules: dict[str, Rule] = {}
    settles: list[Rule] = []
    for rule in design.rules:
        role = next((role for role, words in WORDS.items() if any(rule.name.startswith(word) for word in words)), None)
        if role is None:
            settles.append(rule)
        elif role in rules:
            raise DesignError(f"{design.name}: {rules[role].name!r} and {rule.name!r} are both the engine's {role!r}")
        else:
            rules[role] = rule
    forwards = tuple(item for item in design.step if isinstance(item, Work) and item.every_step)
    compute = {work.on for work in forwards}
    side = [work for work in design.works() if work.on is not None and work.on not in compute]
    into = next((work for work in side if work.writes is not None), None)
    out = next((work for work in side if work.writes is None and work.reads is not None), None)
    fill = next((work for work in design.works() if work.on is None), None)
    load, store = (into, out) if design.pool == "gpu" else (out, into)
    return Roles(design, rules, tuple(settles), forwards, load, store, fill)


def gpu(design: Design) -> Roles:
    """Those of a design for the device's blocks. Raises `DesignError` where the engine could not serve a request."""
    made = roles(design)
    if made.forward is None:
        raise DesignError(
            f"{design.name}: no forward reads or writes the block; write compute.forward(...) in the step"
        )
    for role, why in (("allocate", "gives a request a block"), ("finish", "takes it back")):
        if made.name(role, "keep") is None:
            raise DesignError(f"{design.name}: no rule {why}; name it {' or '.join(map(repr, WORDS[role]))}")
    if design.step_event is None:
        raise DesignError(f'{design.name}: no event per="step" says when the host has a step\'s tokens')
    return made


def host(design: Design) -> Roles:
    """Those of a design for the host pool."""
    made = roles(design)
    for role, why in (("reserve", "takes a block for a store"), ("read", "lets a load read it"), ("evict", "frees it")):
        if role not in made.rules:
            raise DesignError(f"{design.name}: no rule {why}; name it {' or '.join(map(repr, WORDS[role]))}")
    return made


def staging(design: Design) -> Roles:
    """Those of a design for the slots that a load goes through."""
    made = roles(design)
    if "slot" not in made.rules or made.fill is None or made.load is None:
        raise DesignError(
            f"{design.name}: no rule {WORDS['slot'][0]!r}, no work of the host, or no copy out of the slot"
        )
    return made
