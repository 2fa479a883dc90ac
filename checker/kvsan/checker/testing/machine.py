"""A hypothesis state machine of a design: a safe one passes, of an unsafe one hypothesis finds and shrinks the race.

    from kvsan.model.designs import load
    TestDesign = state_machine(load("vllm-after-47653"), blocks=3).TestCase     # pytest and unittest run it

One rule for each thing that the host may do (`moves.Move`): each scheduler rule of the design with the block that it
is applied to, each poll that may answer "not yet", launching a step, seeing one complete, each other thread's job,
taking what other threads have published. The invariant is that there is no hazard.

    machine = state_machine(design); run_state_machine_as_test(machine, settings=settings(stateful_step_count=20))

A race that needs more steps than `stateful_step_count` (50 by default) is not found: passing is a test, `kvsan design
verify` is the proof.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsan.checker.testing.moves import Move
from kvsan.checker.testing.player import RUN_AHEAD, Player
from kvsan.model.design import Design, Seen

BETWEEN = 4
"""Jobs of other threads within one step at most."""


def state_machine(design: Design, blocks: int = 3, *, run_ahead: int = RUN_AHEAD) -> type[RuleBasedStateMachine]:
    """The machine of a design on `blocks` blocks. `run_ahead`: steps in flight where the design allows any number."""
    probe = Player(design, blocks, run_ahead=run_ahead)
    body: dict[str, Any] = {"__doc__": f"{design.name} on {blocks} blocks.", "__module__": __name__}

    def add(name: str, act: Callable[..., None], when: Callable[[Any], Any], **drawn: Any) -> None:
        act.__name__ = name = _identifier(name, body)
        acts: Any = rule(**drawn)
        body[name] = precondition(when)(acts(act))

    add("launch", _launch, lambda self: self.player.may_launch(), **_of_launch(probe))
    for each in design.rules:
        _scheduler_rule(each.name, bool([n for n in each.needs if isinstance(n, Seen)]), add)
    for job in probe.jobs:
        _job(job, add)
    if any(job.publishes is not None for _, job in probe.jobs.values()):
        add("collect", _plays(Move("collect")), lambda self: self.player.may_collect())
    add("see_step", _plays(Move("see")), lambda self: self.player.may_see())
    if design.step_event is not None:
        add("step_not_yet", _plays(Move("unseen")), lambda self: self.player.may_be_unseen())

    def start(self: Any) -> None:
        self.player = Player(design, blocks, run_ahead=run_ahead)

    def no_hazard(self: Any) -> None:
        self.player.check()

    body["_start"] = initialize()(start)
    body["no_hazard"] = invariant()(no_hazard)
    return type(_identifier(design.name.title().replace("-", ""), {}) + "Machine", (RuleBasedStateMachine,), body)


def _launch(self: Any, order: int = 0, between: list[str] | None = None) -> None:
    self.player.play(Move("launch", order=order, between=tuple(between or ())))


def _of_launch(probe: Player) -> dict[str, Any]:
    drawn: dict[str, Any] = {}
    if probe.orders > 1:
        drawn["order"] = st.integers(0, probe.orders - 1)
    if probe.jobs:
        drawn["between"] = st.lists(st.sampled_from(list(probe.jobs)), max_size=BETWEEN)
    return drawn


def _scheduler_rule(name: str, polls: bool, add: Callable[..., None]) -> None:
    def apply(self: Any, block: int) -> None:
        self.player.play(Move("rule", name, block))

    def not_yet(self: Any, block: int) -> None:
        self.player.play(Move("not-yet", name, block))

    able = st.runner().flatmap(lambda self: st.sampled_from(self.player.able(name)))
    add(name, apply, lambda self: self.player.able(name), block=able)
    if polls:
        unsure = st.runner().flatmap(lambda self: st.sampled_from(self.player.unsure(name)))
        add(f"{name} not yet", not_yet, lambda self: self.player.unsure(name), block=unsure)


def _job(name: str, add: Callable[..., None]) -> None:
    add(f"job {name}", _plays(Move("job", name)), lambda self: self.player.may_do(name))


def _plays(move: Move) -> Callable[[Any], None]:
    def act(self: Any) -> None:
        self.player.play(move)

    return act


def _identifier(name: str, taken: dict[str, Any]) -> str:
    """A method's name: the design's words, with what Python does not take left out."""
    plain = re.sub(r"\W+", "_", name).strip("_") or "rule"
    plain = plain if plain.isidentifier() and not hasattr(RuleBasedStateMachine, plain) else f"do_{plain}"
    found, number = plain, 2
    while found in taken:
        found, number = f"{plain}_{number}", number + 1
    return found
