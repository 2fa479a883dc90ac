"""Schedules as text: there and back, across versions of a design, and what is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsan.checker.explore import Schedule, ScheduleError, fingerprint, replay
from kvsan.model.designs import load, names

WAR = (
    "kx1/vllm-after-46278/e5cfda94/1/"
    "allocate.0,launch,launch,request-finished.0,allocate-for-a-load.0,launch"
)  # fmt: skip
"""The write-after-read of vllm #47282. This text is for ever: a change that breaks it breaks everybody's."""


def test_a_schedule_written_down_long_ago_still_replays() -> None:
    run = replay(load("vllm-after-46278"), Schedule.parse(WAR))
    assert run.same_design
    assert {str(pair) for pair in run.races} == {"WAR forward -> load", "WAW forward -> load"}
    assert run.report.verdict.name == "racy"
    assert run.words[0] == "allocate: block 0"


def test_its_control_is_silent() -> None:
    """The same choices with the barrier: nothing races, though the same accesses are made."""
    run = replay(load("vllm-symmetric-barrier"), Schedule.parse(WAR))
    assert run.report.verdict.name == "clean"
    assert not run.races
    assert not run.same_design
    assert run.report.coverage.accesses >= 3


def test_there_and_back() -> None:
    assert str(Schedule.parse(WAR)) == WAR


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "five parts"),
        ("kx1/a/b/1", "five parts"),
        ("kx2/a/b/1/launch", "version 'kx2'"),
        ("kx1/a/b/0/launch", "number of blocks"),
        ("kx1/a/b/x/launch", "number of blocks"),
        ("kx1/a/b/1/launch,,see", "no choice"),
        ("kx1/a/b/1/LAUNCH", "no choice"),
    ],
)
def test_what_is_no_schedule(text: str, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        Schedule.parse(text)


@pytest.mark.parametrize(
    "word", ["allocate.1", "see", "nobody.0", "request-finished.0", "launch-7", "copier:load", "+load"]
)
def test_a_choice_that_there_is_not_is_named(word: str) -> None:
    with pytest.raises(ScheduleError, match=r"choice 1 of 2: .* cannot be chosen here; possible: allocate\.0"):
        replay(load("vllm-after-46278"), Schedule.parse(f"kx1/x/0/1/{word},launch"))


def test_the_fingerprint_is_of_what_a_design_does() -> None:
    design = load("vllm-after-46278")
    assert fingerprint(design) == fingerprint(replace(design, title="another", note="words", claims=frozenset()))
    every = [fingerprint(load(name)) for name in names()]
    assert len(set(every)) == len(every)
    for edge in load("vllm-symmetric-barrier").edges:
        assert fingerprint(load("vllm-symmetric-barrier").without(edge)) != fingerprint(load("vllm-symmetric-barrier"))
