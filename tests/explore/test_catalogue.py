"""The proof, all runs of a small scope and 200 random runs say the same of every design of the catalogue."""

from __future__ import annotations

import pytest

from kvsan.checker.explore import LONG, How, Outcome, Scope, explore
from kvsan.checker.explore.explore import proved
from kvsan.checker.explore.found import claimed
from kvsan.model.design import Design
from kvsan.model.designs import load, names
from model.random_designs import random_design

TWO_BLOCKS = {"shared-event-trap"}
"""Whose race needs a second block: with one it is not there, which is what the name is for."""


def racy(design: Design) -> bool:
    """Whether the proof says that a hazard is possible that the design claims is not."""
    return any(claimed(design, pair) for pair in proved(design))


def agree(design: Design, outcome: Outcome) -> None:
    proof = proved(design)
    found = {finding.pair: finding for finding in outcome.findings}
    assert found.keys() == proof.keys()
    for pair, finding in found.items():
        assert finding.length <= 2 * proof[pair], (pair, str(finding.schedule))
    assert outcome.verdict.name == ("racy" if racy(design) else "clean")
    assert outcome.never == ()


@pytest.mark.parametrize("name", names())
def test_proof_and_all_runs_agree(name: str) -> None:
    design = load(name)
    scope = Scope(2, 2 if name in TWO_BLOCKS else 1, 2 if name in TWO_BLOCKS else 3)
    agree(design, explore(design, scope))


def test_the_trap_needs_its_second_block() -> None:
    assert explore(load("shared-event-trap"), Scope(2, 1, 3)).verdict.name == "clean"


@pytest.mark.sweep
@pytest.mark.parametrize("name", names())
def test_proof_and_all_runs_agree_in_the_whole_scope(name: str) -> None:
    design = load(name)
    agree(design, explore(design, Scope(2, 2, 3), How(workers=2)))


SOME = ["copier-symmetric", "copier-unpinned-when-queued", "kvsan-default", "lmcache-staging", "vllm-after-45357"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SOME else (pytest.mark.sweep,)) for name in names()]
)
def test_proof_and_200_random_runs_agree(name: str) -> None:
    """Not every pair in 200 runs, but the verdict; and no pair that the proof has not."""
    design = load(name)
    outcome = explore(design, LONG, How(runs=200, seed=0))
    assert outcome.verdict.name == ("racy" if racy(design) else "clean")
    proof = proved(design)
    for finding in outcome.findings:
        assert finding.pair in proof
        assert finding.length <= 2 * proof[finding.pair]


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(60))
def test_proof_and_all_runs_agree_on_random_designs(seed: int) -> None:
    """Every pair that is found is one of the proof's; every one of the proof's is found if its schedule fits."""
    design = random_design(seed)
    proof = proved(design)
    found = {finding.pair for finding in explore(design, Scope(2, 2, 3)).findings}
    assert found <= proof.keys(), seed
    assert {pair for pair in proof.keys() - found if proof[pair] <= 12} == set(), seed


@pytest.mark.sweep
@pytest.mark.parametrize("name", names())
def test_steps_that_skip_blocks_race_no_more_than_the_proof_says(name: str) -> None:
    """The proof has every due block in every step; an engine's batch may be full."""
    design = load(name)
    found = {finding.pair for finding in explore(design, Scope(2, 1, 3, skips=True)).findings}
    assert found <= proved(design).keys()
