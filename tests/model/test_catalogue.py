"""Every design of the catalogue is held to what its file expects, and every counterexample to the checker's
opinion."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsan.checker import Racy, TraceWriter, check
from kvsan.checker.judge import Report
from kvsan.checker.trace.header import Header
from kvsan.model.design import Claim, Design
from kvsan.model.designs import load, names
from kvsan.model.ops import Access, Record
from kvsan.model.proof import Action, Findings, Proved, Refuted, verify, words
from kvsan.model.proof.replay import replay


def findings(design: Design) -> Findings:
    verdict = verify(design)
    assert isinstance(verdict, Proved | Refuted), verdict
    return verdict.findings


def checked(design: Design, actions: tuple[Action, ...], path: Path) -> tuple[Report, int]:
    """The checker's report on a schedule, and its last access."""
    played = replay(design, actions)
    with TraceWriter(path, Header(played.pools, played.streams)) as out:
        for op in played.ops:
            out.write(op)
    last = max(i for i, op in enumerate(played.ops) if isinstance(op, Access))
    return check(path, all_pairs=True), last


@pytest.mark.parametrize("name", names())
def test_a_catalogue_design_is_what_its_file_says(name: str) -> None:
    design = load(name)
    expected = design.expected
    assert expected is not None
    assert design.name == name
    assert design.reference.startswith("https://")
    verdict = verify(design)
    assert type(verdict).__name__.lower() == expected.verdict
    found = findings(design)
    assert {str(race.pair): len(race.schedule) for race in found.races} == dict(expected.races)
    assert {w.work: len(w.schedule) for w in found.wrong_generation} == dict(expected.wrong_generation)
    assert (found.stuck and len(found.stuck.schedule)) == expected.stuck
    assert (found.stuck_closed and len(found.stuck_closed.schedule)) == expected.stuck_closed
    assert (found.not_quiescent is None) == expected.quiescent
    if expected.not_quiescent is not None:
        assert found.not_quiescent is not None
        assert len(found.not_quiescent) == expected.not_quiescent


@pytest.mark.parametrize("name", names())
def test_the_checker_calls_every_counterexample_racy(name: str, tmp_path: Path) -> None:
    design = load(name)
    for race in findings(design).races:
        report, last = checked(design, race.schedule.actions, tmp_path / "race.jsonl")
        assert isinstance(report.verdict, Racy)
        assert any(
            hazard.kind == race.pair.kind
            and hazard.earlier.label == race.pair.earlier
            and (hazard.later.label, hazard.later.op) == (race.pair.later, last)
            for hazard in report.hazards
        ), race.pair


@pytest.mark.parametrize("name", names())
def test_the_checker_sees_the_wrong_generation(name: str, tmp_path: Path) -> None:
    design = load(name)
    for wrong in findings(design).wrong_generation:
        report, last = checked(design, wrong.schedule, tmp_path / "gen.jsonl")
        assert any(hazard.kind == "GEN" and hazard.later.op == last for hazard in report.hazards)


@pytest.mark.parametrize("name", names())
def test_every_edge_of_a_proved_design_is_needed_or_named_spare(name: str) -> None:
    design = load(name)
    if design.expected is None or design.expected.verdict != "proved":
        return
    spare = set()
    for edge in design.edges:
        verdict = verify(design.without(edge))
        if isinstance(verdict, Proved):
            spare.add(edge.name)
        else:
            assert isinstance(verdict, Refuted), edge
            assert Claim.RACE_FREE in verdict.broken, edge
        again = verify(design.without(edge).adding(edge)) if edge.of not in design.queues else verdict
        assert isinstance(again, Proved | Refuted)
    assert spare == set(design.expected.spare)


def test_the_war_of_47282_is_shown_and_not_hidden_behind_the_shorter_waw() -> None:
    races = {str(race.pair): race for race in findings(load("vllm-after-46278")).races}
    war = races["WAR forward -> load"]
    assert list(words(war.schedule.actions)) == [
        "allocate",
        "launch step 1",
        "forward writes the block [step 1]",
        "end of the step",
        "the host sees a step complete (1 so far)",
        "launch step 2",
        "forward reads the block [step 2]",
        "end of the step",
        "request finished",
        "allocate for a load",
        "launch step 3",
        "forward (other blocks)",
        "load writes the block [step 3]",
    ]
    assert war.schedule.earlier == 6
    assert len(races["WAW forward -> load"].schedule) == 9


def test_a_free_block_that_a_forward_still_uses_is_not_host_quiescent() -> None:
    witness = findings(load("vllm-symmetric-barrier")).not_quiescent
    assert witness is not None
    assert [action.label for action in witness.actions] == [
        "allocate",
        "launch a step",
        "forward writes the block",
        "end of the step",
        "request finished",
    ]
    assert isinstance(witness.actions[2].ops[0], Record), "the record in front goes with the forward"


def test_a_fence_on_a_step_that_nobody_launches_holds_the_block_forever() -> None:
    stuck = findings(load("fence-on-next-step")).stuck_closed
    assert stuck is not None
    assert [action.label for action in stuck.schedule] == ["allocate", "request finished"]
