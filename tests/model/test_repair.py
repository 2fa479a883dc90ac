"""Repairs: exactly the minimal sets, each of them a repair and none to spare, cheapest first, progress looked at."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest

from kvsan.model.design import Claim, Design, Edge, EdgeKind, Protocol, newest, retired, seen
from kvsan.model.designs import load, names
from kvsan.model.proof import Proved, Refuted, racy_pairs, repair, verify
from kvsan.model.proof.candidates import Cost, candidates, recording, usual_events
from kvsan.model.proof.counterexample import Counterexample, still
from kvsan.model.proof.minimal import minimal_sets
from kvsan.model.proof.repair import MENDABLE, Repairs
from kvsan.model.proof.system import System
from model.random_designs import random_design


@cache
def mended(name: str) -> Repairs:
    return repair(load(name))


def sets(found: Repairs) -> list[set[str]]:
    return [set(one.names) for one in found.repairs]


DEFERRALS = {f"{rule}: free=retired(newest)" for rule in ("request finished", "preempt", "window slides past")}


# ── the enumeration ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(60))
def test_minimal_sets_against_brute_force(seed: int) -> None:
    """Whatever larger bad set a judge answers with, the result is the minimal good sets."""
    dice = random.Random(seed)
    size = dice.randint(1, 9)
    enough = [dice.randrange(1, 1 << size) for _ in range(dice.randint(0, 5))]

    def good(mask: int) -> bool:
        return any(mask & one == one for one in enough)

    def judge(mask: int) -> list[int] | None:
        if good(mask):
            return None
        bad = []
        for _ in range(dice.randint(1, 3)):
            more = mask
            for at in dice.sample(range(size), size):
                if dice.random() < 0.7 and not good(more | 1 << at):
                    more |= 1 << at
            bad.append(more)
        return bad

    found = list(minimal_sets(size, judge))
    every = [mask for mask in range(1 << size) if good(mask)]
    assert sorted(found) == sorted(m for m in every if not any(o != m and m & o == o for o in every))
    assert [mask.bit_count() for mask in found] == sorted(mask.bit_count() for mask in found)


def test_the_empty_set_may_be_enough_and_nothing_may_be() -> None:
    assert list(minimal_sets(3, lambda mask: None)) == [0]
    assert list(minimal_sets(3, lambda mask: [7])) == []
    with pytest.raises(AssertionError, match="must hold the one"):
        list(minimal_sets(2, lambda mask: [0] if mask else [2]))


# ── the public debate ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_after_46278_is_mended_by_exactly_four_sets() -> None:
    found = mended("vllm-after-46278")
    assert found.complete
    assert sets(found) == [{"load.after(used)"}, {"load.after(prev_done)"}, {"load.after(compute_done)"}, DEFERRALS]
    assert [one.cost for one in found.repairs] == [Cost(0, 0, 0, 1), Cost(0, 0, 0, 2), Cost(0, 0, 0, 3), Cost(0, 0, 6)]
    assert not found.rejected
    assert not any(one.records for one in found.repairs)
    assert found.replays > found.searches, "counterexamples are kept and played again"


def test_45357_missed_exactly_one_deferral() -> None:
    assert {"window slides past: free=retired(newest)"} in sets(mended("vllm-after-45357"))


def test_deferral_does_not_replace_the_store_barrier() -> None:
    found = sets(mended("vllm-deferral-only"))
    assert found == [{"store.after(used)"}, {"store.after(prev_done)"}, {"store.after(compute_done)"}]


def test_before_46278_store_and_load_are_mended_apart() -> None:
    waits = ("compute_done", "prev_done", "used")
    loads = [{f"load.after({event})"} for event in waits] + [DEFERRALS]
    want = {frozenset({f"store.after({event})"} | load) for event in waits for load in loads}
    assert {frozenset(one) for one in sets(mended("vllm-before-46278"))} == want


def test_the_eight_edge_lattice_has_six_minimal_sets() -> None:
    """Against brute force over all 256 designs."""
    bare = load("vllm-before-46278").without("reap an aborted load: needs=seen(load_done)")
    edges = [
        *(Edge(EdgeKind.WAIT, at, of) for at in ("load", "store") for of in ("compute_done", "prev_done")),
        *(
            Edge(EdgeKind.FREE, rule, "retired(newest)")
            for rule in ("request finished", "preempt", "window slides past")
        ),
        Edge(EdgeKind.NEED, "reap an aborted load", "seen(load_done)"),
    ]
    found = repair(bare, among=edges)
    safe = [
        frozenset(chosen)
        for size in range(len(edges) + 1)
        for chosen in combinations(edges, size)
        if not racy_pairs(bare.adding(*chosen))
    ]
    minimal = {one for one in safe if not any(other < one for other in safe)}
    assert len(minimal) == 6
    assert {frozenset(one.edges) for one in found.repairs} == minimal
    assert found.searches < 60, "of 256"


@pytest.mark.parametrize("seed", [3, 11, 17, 23, 31, 42, 47, 60])
def test_random_designs_against_brute_force(seed: int) -> None:
    """Five candidates of a random design: the minimal sets are those that trying all 32 finds."""
    dice = random.Random(seed)
    design = random_design(seed)
    before = verify(design)
    if isinstance(before, Proved):
        return
    assert isinstance(before, Refuted)
    every = [candidate.edge for candidate in candidates(design)]
    likely = [edge for edge in every if racy_pairs(design.adding(edge)) != racy_pairs(design)] or every
    edges = dice.sample(likely, min(4, len(likely)))
    edges += dice.sample([edge for edge in every if edge not in edges], 1)
    mends = set(before.broken) & MENDABLE
    good = []
    for size in range(len(edges) + 1):
        for chosen in combinations(edges, size):
            verdict = verify(design.adding(*chosen))
            if not (isinstance(verdict, Refuted) and mends & set(verdict.broken)):
                good.append(frozenset(chosen))
    minimal = {one for one in good if not any(other < one for other in good)}
    found = repair(design, among=edges)
    assert {frozenset(one.edges) for one in found.repairs} | {frozenset(one.edges) for one in found.rejected} == minimal
    assert bool(minimal) != bool(found.left)


def test_a_pool_without_a_pin_is_mended_by_one() -> None:
    found = mended("vllm-no-store-pin")
    assert sets(found) == [{"free while pin=none"}]
    assert set(found.mends) == {Claim.RACE_FREE, Claim.RIGHT_GENERATION}
    (pinned,) = found.repairs
    assert str(pinned.design.free) == "owner=none & pin=none"


def test_no_fence_mends_a_nic() -> None:
    found = mended("nic-writer-immediate-free")
    assert all(edge.kind is EdgeKind.FREE for one in found.repairs for edge in one.edges)
    assert len(found.repairs) == 1
    assert found.repairs[0].eager


def test_an_event_that_is_missing_is_recorded() -> None:
    found = mended("sglang-hicache-load-back-unfenced")
    assert {"load.after(launched)"} in sets(found), "the event that is there"
    (per_block,) = [one for one in found.repairs if one.names == {"load.after(used_by_compute)"}]
    assert [str(record) for record in per_block.records] == [
        "record used_by_compute on compute behind layer, one a block"
    ]
    assert load("sglang-hicache-load-back-unfenced").events != per_block.design.events
    assert isinstance(verify(per_block.design), Proved)


# ── every design of the catalogue ─────────────────────────────────────────────────────────────────────────────────────


def refuted(name: str) -> bool:
    expected = load(name).expected
    return expected is not None and expected.verdict == "refuted"


@pytest.mark.parametrize("name", [name for name in names() if refuted(name)])
def test_each_repair_mends_and_none_of_its_edges_is_to_spare(name: str) -> None:
    design, found = load(name), mended(name)
    assert found.complete
    assert found.repairs or found.left or found.beyond
    assert [one.cost for one in found.repairs] == sorted(one.cost for one in found.repairs)
    for one in found.repairs[:4]:
        verdict = verify(one.design)
        assert isinstance(verdict, Proved) or set(verdict.broken) <= set(found.beyond)  # type: ignore[union-attr]
        for edge in one.edges:
            rest = [other for other in one.edges if other != edge]
            worse = verify(recording(design, one.records).adding(*rest))
            assert isinstance(worse, Refuted)
            assert set(worse.broken) & set(found.mends), edge


@pytest.mark.parametrize("name", [name for name in names() if not refuted(name)])
def test_a_proved_design_needs_no_repair(name: str) -> None:
    found = mended(name)
    assert not any((found.repairs, found.rejected, found.mends, found.beyond, found.left))
    assert found.complete


@pytest.mark.parametrize("name", names())
def test_recording_events_that_nobody_waits_for_changes_no_verdict(name: str) -> None:
    design = load(name)
    assert racy_pairs(recording(design, usual_events(design))) == racy_pairs(design)


@pytest.mark.parametrize("name", names())
def test_a_candidate_never_adds_a_race(name: str) -> None:
    """What the enumeration rests on: more edges, fewer races."""
    design = load(name)
    rich = recording(design, usual_events(design))
    before = racy_pairs(rich)
    dice = random.Random(name)
    every = candidates(rich)
    for candidate in dice.sample(every, min(6, len(every))):
        assert racy_pairs(rich.adding(candidate.edge)) <= before, candidate.edge


# ── what edges cannot mend ────────────────────────────────────────────────────────────────────────────────────────────


def test_progress_is_not_mended_by_edges_but_by_another_fence() -> None:
    found = mended("fence-on-next-step")
    assert not found.repairs
    assert found.beyond == (Claim.CLOSED_PROGRESS,)
    assert {new.name for _, new in found.swap} == DEFERRALS
    assert Claim.CLOSED_PROGRESS not in MENDABLE


def logged(*, returns: bool) -> Design:
    """A store marks the block for good (or until it is seen done), and nothing keeps the block under it."""
    p = Protocol("logged")
    compute, store = p.streams("compute", "store")
    done, stored = p.event("done"), p.event("stored", per="transfer")
    b = p.block(owner="none | running", data="empty | full", log="no | due | yes")
    p.free(b.owner.none)
    with p.step():
        compute.forward(writes=b.running & b.empty, reads=b.running & b.full, then=b.full, signals=done)
        store.copy_out(b.due, then=b.yes, after=done, signals=stored)
    with p.scheduler() as may:
        may("allocate", when=b.owner.none, then=b.running & b.empty)
        may("store", when=b.running & b.full & b.no, then=b.due)
        may("finish", when=b.running, then=b.owner.none)
        if returns:
            may("stored", when=b.yes, then=b.no, needs=seen(stored))
    return p.design()


def test_a_repair_that_takes_progress_away_is_told_and_not_offered() -> None:
    lost = repair(logged(returns=False))
    assert {"free while log=no"} not in sets(lost)
    assert [(one.edges[0].name, one.why) for one in lost.rejected if len(one.edges) == 1] == [
        ("free while log=no", "breaks progress")
    ]
    kept = repair(logged(returns=True))
    assert {"free while log=no"} in sets(kept)
    assert not kept.rejected


def test_what_stays_is_told_when_nothing_is_enough() -> None:
    found = mended("copier-event-visible-early")
    assert not found.repairs
    assert "RAW load -> forward" in found.left


def test_a_limit_is_told() -> None:
    assert not repair(load("vllm-after-46278"), checks=2).complete
    assert not repair(load("vllm-after-46278"), cap=50).complete


# ── other properties, other edges ─────────────────────────────────────────────────────────────────────────────────────


def test_a_pool_becomes_host_quiescent_by_deferral_alone() -> None:
    design = load("vllm-symmetric-barrier")
    found = repair(replace(design, claims=design.claims | {Claim.HOST_QUIESCENT}))
    assert found.mends == (Claim.HOST_QUIESCENT,)
    assert sets(found) == [DEFERRALS]
    assert repair(design).mends == ()


def test_a_source_read_out_of_order_is_put_in_order() -> None:
    p = Protocol("any")
    compute, store = p.streams("compute", "store")
    done, stored = p.event("done"), p.event("stored", per="transfer")
    step_done = p.event("step_done", per="step")
    b = p.block(owner="none | running", data="empty | full", pin="none | want_store | storing")
    free = p.free(b.owner.none & b.pin.none)
    with p.step():
        compute.forward(writes=b.running & b.empty, reads=b.running & b.full, then=b.full, signals=[done, step_done])
        store.copy_out(b.want_store, then=b.storing, after=done, signals=stored, order="any")
    with p.scheduler() as may:
        may("allocate", when=free, then=b.running & b.empty)
        may("store", when=b.running & b.full & b.pin.none, then=b.want_store)
        may("stored", when=b.storing, then=b.pin.none, needs=seen(stored))
        may("finish", when=b.running, then=b.owner.none, free=retired(newest))
    found = repair(p.design())
    assert {"store: order=stream"} in sets(found)
    assert all(isinstance(verify(one.design), Proved) for one in found.repairs)


# ── counterexamples ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [name for name in names() if refuted(name)])
def test_a_counterexample_is_one_on_its_own_design_and_on_no_mended_one(name: str) -> None:
    design = load(name)
    verdict = verify(design)
    assert isinstance(verdict, Refuted)
    found = mended(name)
    for race in verdict.findings.races:
        shown = Counterexample(race.schedule, race.pair)
        assert still(System(design, race.run_ahead), shown), race.pair
        for one in found.repairs[:3]:
            assert not still(System(one.design, race.run_ahead), shown), (race.pair, one)
    if verdict.findings.not_quiescent is not None:
        assert still(System(design, None if design.run_ahead == "any" else design.run_ahead),
                     Counterexample(verdict.findings.not_quiescent, None))  # fmt: skip


def test_the_same_answer_twice() -> None:
    a, b = mended("vllm-before-46278"), repair(load("vllm-before-46278"))
    assert a.repairs == b.repairs
    assert (a.searches, a.replays) == (b.searches, b.replays)
