"""Exploring: what is found, on any number of workers, across interruptions, and what is said when it is cut short."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from kvsan.checker.explore import How, Outcome, Pair, Progress, Scope, count, explore, replay, shrink
from kvsan.checker.explore.checkpoint import CheckpointError
from kvsan.checker.explore.explore import renumbered
from kvsan.checker.explore.pct import Walker
from kvsan.checker.explore.search import Search, estimate, run
from kvsan.checker.spread import Processes
from kvsan.model.design import Claim, Protocol
from kvsan.model.designs import load
from kvsan.model.hazard import Kind

WAR = Pair(Kind.WAR, "forward", "load")
WAW = Pair(Kind.WAW, "forward", "load")
TINY = Scope(2, 1, 3)


def told(outcome: Outcome) -> tuple[object, ...]:
    """All of an outcome but the time."""
    done = outcome.progress
    return outcome.verdict, outcome.findings, outcome.never, done.states, done.moves, done.runs, done.depth, done.found


def test_the_race_of_47282_is_found_from_scratch() -> None:
    outcome = explore(load("vllm-after-46278"), TINY)
    assert {finding.pair for finding in outcome.findings} == {WAR, WAW}
    for finding in outcome.findings:
        assert finding.proof is not None
        assert finding.length <= 2 * finding.proof
        assert finding.pair in replay(outcome.design, finding.schedule).races
    assert outcome.verdict.exit == 1


def test_and_with_the_barrier_there_is_none() -> None:
    outcome = explore(load("vllm-symmetric-barrier"), TINY)
    assert outcome.findings == ()
    assert outcome.never == ()
    assert outcome.verdict.exit == 0


def test_what_a_design_does_not_claim_is_told_and_is_no_fault_of_it() -> None:
    outcome = explore(load("vllm-offloading-connector"), TINY)
    assert [(str(finding.pair), finding.claimed) for finding in outcome.findings] == [("GEN store", False)]
    assert outcome.verdict.exit == 0
    design = load("vllm-after-46278")
    assert explore(replace(design, claims=design.claims - {Claim.RACE_FREE}), TINY).verdict.exit == 0


def test_a_limit_is_no_clean_verdict() -> None:
    outcome = explore(load("vllm-symmetric-barrier"), TINY, How(max_states=50))
    assert outcome.verdict.exit == 3
    assert "limit" in outcome.why[0]


def test_a_scope_in_which_nothing_is_touched_is_no_clean_verdict() -> None:
    p = Protocol("late")
    compute = p.stream("compute")
    b = p.block(owner="none | running | older")
    free = p.free(b.none)
    with p.step():
        compute.forward(writes=b.older)
    with p.scheduler() as may:
        may("allocate", when=free, then=b.running)
        may("age", when=b.running, then=b.older)
        may("finish", when=b.older, then=b.none)
    design = p.design()
    assert explore(design, Scope(1, 1, 1)).verdict.exit == 0
    stuck = replace(design, rules=tuple(rule for rule in design.rules if rule.name != "age"))
    for how in (How(), How(runs=5)):
        outcome = explore(stuck, Scope(1, 1, 1), how)
        assert outcome.verdict.exit == 3
        assert outcome.never == ("finish", "forward")


def test_the_first_race_ends_it_if_that_is_asked() -> None:
    whole, first = (explore(load("vllm-after-46278"), TINY, How(first=first)) for first in (False, True))
    assert first.progress.states < whole.progress.states
    assert first.verdict.exit == 1
    assert "--first" not in str(first.why)


# ── workers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", [How(), How(runs=120, seed=3)], ids=["exhaustive", "random"])
def test_the_answer_is_the_same_on_any_number_of_workers(how: How) -> None:
    design = load("vllm-no-store-pin")
    assert told(explore(design, TINY, how)) == told(explore(design, TINY, replace(how, workers=2)))


class Squarer:
    """A worker; one share kills the process that does it, once."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, share: int) -> int:
        if share == 7 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return share * share


class Make:
    """Makes it in another process."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self) -> Squarer:
        return Squarer(self.mark)


def test_a_lost_worker_costs_its_share_and_nothing_else(tmp_path: Path) -> None:
    work: Processes[int, int] = Processes(Make(tmp_path / "died"), 2)
    try:
        assert list(work.map(range(20))) == [n * n for n in range(20)]
    finally:
        work.close()
    assert (tmp_path / "died").exists()


# ── interruptions ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Interrupting:
    """Ctrl-C when so many choices were made."""

    def __init__(self, moves: int) -> None:
        self.moves = moves

    def __call__(self, progress: Progress) -> None:
        if progress.moves >= self.moves:
            raise KeyboardInterrupt


@pytest.mark.parametrize("how", [How(), How(runs=200, seed=1)], ids=["exhaustive", "random"])
def test_it_goes_on_where_it_was(how: How, tmp_path: Path) -> None:
    design = load("vllm-after-46278")
    whole = explore(design, TINY, how)
    how = replace(how, checkpoint=tmp_path / "here")
    cut = 0
    for after in (200, 500, 800):
        outcome = explore(design, TINY, how, Interrupting(after))
        cut += outcome.interrupted
        if outcome.interrupted and not outcome.findings:
            assert outcome.verdict.exit == 3
    assert cut >= 2
    assert told(explore(design, TINY, how)) == told(whole)
    assert told(explore(design, TINY, how)) == told(whole)  # and there is nothing left to do


def test_what_was_found_is_kept() -> None:
    outcome = explore(load("vllm-after-46278"), TINY, How(), Interrupting(300))
    assert outcome.interrupted
    assert outcome.verdict.name == "racy"
    assert outcome.why == ("it was interrupted",)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    how = How(checkpoint=tmp_path / "here")
    explore(load("lmcache-staging"), TINY, how)
    with pytest.raises(CheckpointError, match="belongs to another exploration"):
        explore(load("lmcache-staging-unsynced"), TINY, how)
    with pytest.raises(CheckpointError, match="belongs to another exploration"):
        explore(load("lmcache-staging"), Scope(3, 1, 3), how)
    whole = (tmp_path / "here").read_bytes()
    for bad in (b"", b"no checkpoint", whole[:-5], whole[:20] + b"x" + whole[21:]):
        (tmp_path / "here").write_bytes(bad)
        with pytest.raises(CheckpointError):
            explore(load("lmcache-staging"), TINY, how)


# ── random ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_depends_on_its_number_and_the_seed_alone() -> None:
    walker = Walker(load("copier-symmetric"), Scope(6, 2, 6), 5)
    walks = [walker.walk(number) for number in range(12)]
    again = Walker(load("copier-symmetric"), Scope(6, 2, 6), 5)
    assert [again.walk(number) for number in reversed(range(12))] == walks[::-1]
    other = Walker(load("copier-symmetric"), Scope(6, 2, 6), 6)
    assert [other.walk(number) for number in range(12)] != walks


# ── shrinking ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_long_schedule_becomes_a_minimal_one() -> None:
    design, scope = load("vllm-after-46278"), Scope(12, 3, 16)
    walker = Walker(design, scope, 0)
    for number in range(100):
        words = walker.walk(number)
        if WAR in walker.pairs:
            break
    else:
        raise AssertionError("no run had it")
    short = renumbered(shrink(design, 3, words, WAR))
    assert len(short) < len(words)
    assert len(short) <= 8  # of the choices that this run made; other ones have it in 6
    for at in range(len(short)):
        with pytest.raises(ValueError, match="has no WAR"):
            shrink(design, 3, (*short[:at], *short[at + 1 :]), WAR)


def test_blocks_are_numbered_as_they_come() -> None:
    words = ("allocate.2", "launch", "allocate.0", "launch-0-2", "see", "+load", "copier:load")
    assert renumbered(words) == ("allocate.0", "launch", "allocate.1", "launch-0-1", "see", "+load", "copier:load")


# ── how many there are ────────────────────────────────────────────────────────────────────────────────────────────────


def test_schedules_are_counted_exactly() -> None:
    """The sum over states is the number of runs that a walk over all of them has."""
    design, scope = load("lmcache-staging"), Scope(2, 2, 2)
    for plain in (True, False):
        counted = count(design, scope, plain=plain)
        assert counted.schedules == _walked(replace(scope, plain=True) if plain else scope)
    assert count(design, scope, plain=False).states < count(design, scope).states


def _walked(scope: Scope) -> int:
    from kvsan.checker.explore import Player

    player = Player(load("lmcache-staging"), scope)

    def runs() -> int:
        moves, here, total = player.moves(), player.save(), 0
        for move in moves:
            player.load(here)
            player.do(move.word)
            total += move.many * runs()
        return total if moves else 1

    return runs()


def test_a_rule_that_changes_nothing_has_no_end() -> None:
    p = Protocol("round")
    compute = p.stream("compute")
    b = p.block(owner="none | running")
    free = p.free(b.none)
    with p.step():
        compute.forward(writes=b.running)
    with p.scheduler() as may:
        may("allocate", when=free, then=b.running)
        may("look", when=b.running, then=b.running)
        may("finish", when=b.running, then=b.none)
    counted = count(p.design(), Scope(1, 1, 1))
    assert counted.schedules is None
    assert counted.states > 3
    assert explore(p.design(), Scope(1, 1, 1)).verdict.exit == 0  # but the search has


def test_the_estimate_is_of_the_right_size() -> None:
    design, scope = load("vllm-symmetric-barrier"), Scope(2, 2, 2)
    guesses: list[tuple[int, int]] = []

    def tell(search: Search) -> None:
        if search.progress.left is not None:
            guesses.append((search.progress.states, search.progress.left))

    search = Search.new(design, scope)
    run(design, scope, search, tell=tell)
    total = search.progress.states
    late = [states + left for states, left in guesses if states > total / 2]
    assert late
    assert all(total / 2 < guess < 2 * total for guess in late)
    assert estimate([1, 3], 5, 0, 3) is None
