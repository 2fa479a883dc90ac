"""The player of a design against its proof; the state machine; the strategies."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from kvsan.checker.online import Online
from kvsan.checker.testing import (
    Move,
    Player,
    Raced,
    Request,
    designs,
    host_schedules,
    op_streams,
    play,
    random_design,
    state_machine,
    workloads,
)
from kvsan.checker.testing.op_writer import DEFAULT_POOLS, DEFAULT_STREAMS
from kvsan.model.design import Design
from kvsan.model.designs import load, names
from kvsan.model.hazard import Hazard, Kind
from kvsan.model.ops import Access, Get, Op, Poll, Put, Record
from kvsan.model.proof import verify
from kvsan.model.proof.verdict import Proved, Refuted

Race = tuple[str, str | None, str | None]


def race(hazard: Hazard) -> Race:
    return (hazard.kind.value, hazard.earlier.label, hazard.later.label)


def played(design: Design, seed: int, moves: int) -> Player:
    dice = random.Random(seed)
    player = Player(design, 3, run_ahead=dice.choice([0, 1, 2, 4]))
    for _ in range(moves):
        if not player.moves():
            break
        player.play(player.choose(dice.randrange(1 << 20)))
    return player


def expected(design: Design) -> set[Race]:
    assert design.expected is not None
    found: set[Race] = set()
    for text, _ in design.expected.races:
        kind, _, labels = text.partition(" ")
        earlier, _, later = labels.partition(" -> ")
        found.add((kind, earlier, later))
    return found


# ── the player ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", names())
def test_the_catalogue(name: str) -> None:
    """A safe design never races; of an unsafe one nothing is found that the proof does not know, and something is."""
    design = load(name)
    found: set[Race] = set()
    generations = set()
    for seed in range(60 if expected(design) else 12):
        player = played(design, seed, 50)
        found |= {race(hazard) for hazard in player.hazards if hazard.kind is not Kind.GEN}
        generations |= {str(hazard.later.label) for hazard in player.hazards if hazard.kind is Kind.GEN}
    assert found <= expected(design)
    assert bool(found) == bool(expected(design))
    assert generations <= {name for name, _ in design.expected.wrong_generation}  # type: ignore[union-attr]


def test_random_designs_agree_with_their_proof() -> None:
    agree(range(25))


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_1000_random_designs_agree_with_their_proof(first: int) -> None:
    agree(range(first, first + 100))


def agree(seeds: range) -> None:
    counts: Counter[bool] = Counter()
    for seed in seeds:
        design = random_design(seed)
        verdict = verify(design)
        assert isinstance(verdict, Proved | Refuted), f"seed {seed}"
        possible = {(r.pair.kind.value, r.pair.earlier, r.pair.later) for r in verdict.findings.races}
        counts[bool(possible)] += 1
        for number in range(3):
            hazards = played(design, number, 60).hazards
            found = {race(hazard) for hazard in hazards if hazard.kind is not Kind.GEN}
            assert found <= possible, f"seed {seed}, play {number}"
    assert min(counts[True], counts[False]) > len(seeds) / 6, f"the drawing says little: {counts}"


def test_random_designs_have_threads_queues_and_more() -> None:
    drawn = [random_design(seed) for seed in range(60)]
    assert any(len(design.threads) == 2 for design in drawn)
    assert any(design.threads for design in drawn)
    assert any(not design.threads for design in drawn)
    assert any(not stream.waits for design in drawn for stream in design.streams)
    assert len({design.run_ahead for design in drawn}) > 2
    assert drawn[7] == random_design(7)


def test_a_schedule_plays_again() -> None:
    for seed in range(10):
        first = played(load("copier-unpinned-when-queued"), seed, 40)
        again = Player(first.design, 3, run_ahead=first.run_ahead)
        for text in first.schedule.split():
            again.play(Move.parse(text))
        assert again.ops == first.ops
        assert [race(hazard) for hazard in again.hazards] == [race(hazard) for hazard in first.hazards]


def test_a_schedule_of_a_race_raises_with_itself() -> None:
    schedule = "rule/allocate/0 launch rule/request%20finished/0 rule/allocate%20for%20a%20load/0 launch"
    with pytest.raises(Raced, match=r"WAW on reused gpu 0[\s\S]*schedule: rule/allocate/0 launch") as found:
        play(load("vllm-after-46278"), schedule + " see")
    assert found.value.schedule == schedule
    assert play(load("vllm-after-46278"), schedule.removesuffix(" launch")).hazards == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("rule/free/0", "possible: launch, rule/allocate/0"),
        ("rule/request%20finished/0", "not possible after 0 moves"),
        ("see", "not possible"),
        ("job/load", "not possible"),
        ("launch/99", "not possible"),
        ("dance", "is no move; accepted: rule/NAME/BLOCK"),
        ("rule/allocate/x", "is no move"),
        ("see/now", "is no move"),
    ],
)
def test_moves_that_are_none(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        play(load("vllm-after-46278"), text)


def test_polls_say_not_yet_only_where_a_device_could() -> None:
    """After a yes for a later record of the stream, or a blocking call, an event is done for good."""
    for seed in range(20):
        player = played(load("vllm-symmetric-barrier"), seed, 60)
        at: dict[str, tuple[str, int]] = {}
        known: dict[str, int] = {}
        for number, op in enumerate(player.ops):
            if isinstance(op, Record):
                at[op.event] = (op.on, number)
            elif isinstance(op, Poll):
                stream, when = at[op.event]
                assert op.done or known.get(stream, -1) < when
                if op.done:
                    known[stream] = max(known.get(stream, -1), when)
    assert any(isinstance(op, Poll) and not op.done for op in player.ops)


def test_hand_offs_are_logged() -> None:
    ops = [op for seed in range(5) for op in played(load("copier-symmetric"), seed, 60).ops]
    assert any(isinstance(op, Put) for op in ops)
    assert any(isinstance(op, Get) for op in ops)
    assert {op.by for op in ops if isinstance(op, Access)} == {"host", "copier"}


def test_a_generation_counts_only_where_it_is_claimed() -> None:
    offloading = load("vllm-offloading-connector")  # says nothing of generations
    assert not [h for seed in range(60) for h in played(offloading, seed, 50).hazards]


# ── the state machine ─────────────────────────────────────────────────────────────────────────────────────────────────

QUICK = settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("name", ["vllm-after-47653", "copier-symmetric", "nic-writer", "lmcache-staging"])
def test_a_safe_design_passes(name: str) -> None:
    run_state_machine_as_test(state_machine(load(name)), settings=QUICK)


@pytest.mark.parametrize("name", ["vllm-after-46278", "nic-writer-immediate-free"])
def test_an_unsafe_design_is_found_and_shrunk(name: str) -> None:
    with pytest.raises(Raced) as found:
        run_state_machine_as_test(state_machine(load(name)), settings=settings(QUICK, max_examples=300))
    assert {race(hazard) for hazard in found.value.hazards} <= expected(load(name))
    assert len(found.value.schedule.split()) <= 8
    with pytest.raises(Raced):
        play(load(name), found.value.schedule)


def test_there_is_a_rule_for_each_thing_that_the_host_may_do() -> None:
    machine: type[RuleBasedStateMachine] = state_machine(load("copier-symmetric"))
    rules = set(vars(machine))
    assert {"launch", "see_step", "step_not_yet", "collect", "job_load", "job_store"} <= rules
    assert {"allocate", "load_finished", "load_finished_not_yet", "request_finished"} <= rules
    assert "allocate_not_yet" not in rules  # it polls nothing


# ── strategies ────────────────────────────────────────────────────────────────────────────────────────────────────────

MANY = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


def hazards_of(ops: list[Op]) -> list[Hazard]:
    online = Online(DEFAULT_POOLS, DEFAULT_STREAMS)
    return [hazard for number, op in enumerate(ops) for hazard in online.feed(number, op)]


@MANY
@given(op_streams(safe=True))
def test_safe_op_streams_have_no_hazard(ops: list[Op]) -> None:
    assert hazards_of(ops) == []


def test_op_streams_race_now_and_then() -> None:
    ops = find(op_streams(), lambda ops: bool(hazards_of(ops)))
    assert len(ops) == 2


@MANY
@given(op_streams(pools={"one": 1}, streams=["a"], threads=["h"]))
def test_op_streams_keep_to_what_is_given(ops: list[Op]) -> None:
    put: set[str] = set()
    free = True
    for op in ops:
        assert op.by == "h"
        assert getattr(op, "on", None) in (None, "a")
        if isinstance(op, Put):
            assert op.token not in put
            put.add(op.token)
        if isinstance(op, Get):
            assert op.token in put
        match type(op).__name__:
            case "Alloc" | "Touch":
                assert free
                free = False
            case "Free":
                assert not free
                free = True


@pytest.mark.parametrize("what", ["pools", "streams", "threads"])
def test_op_streams_of_nothing(what: str) -> None:
    with pytest.raises(ValueError, match="is given; accepted: one at least"):
        find(op_streams(**{what: {} if what == "pools" else []}), lambda ops: True)  # type: ignore[arg-type]


@MANY
@given(workloads(max_requests=3, max_prompt=40, block=8))
def test_workloads(requests: list[Request]) -> None:
    assert 1 <= len(requests) <= 3
    assert [r.arrival for r in requests] == sorted(r.arrival for r in requests)
    for request in requests:
        assert 1 <= request.prompt <= 40
        assert 0 <= request.shared <= request.prompt
        assert len(request.tokens) == request.prompt
    for one in requests:
        for other in requests:
            same = sum(a == b for a, b in zip(one.tokens, other.tokens, strict=False))
            if one is not other:
                assert same == (min(one.shared, other.shared) if one.prefix == other.prefix else 0)


def test_workloads_shrink_to_the_simplest() -> None:
    assert find(workloads(), lambda requests: True) == [Request(1, 1)]


@settings(MANY, max_examples=40)
@given(designs(), host_schedules())
def test_any_numbers_are_a_schedule_of_any_design(design: Design, numbers: list[int]) -> None:
    with contextlib.suppress(Raced):
        play(design, numbers)


def test_designs_shrink_to_a_safe_one() -> None:
    smallest = find(designs(), lambda design: True)
    assert isinstance(verify(smallest), Proved)
    assert find(designs(), lambda design: bool(design.threads)).threads
