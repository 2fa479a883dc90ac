"""What an edge is for, which can go, and where a weaker one does: the table that a review needs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from kvsan.model.design import Claim
from kvsan.model.designs import load, names
from kvsan.model.proof import Proved, Redundancy, redundant, verify
from kvsan.model.proof.candidates import recording


@cache
def of(name: str) -> Redundancy:
    return redundant(load(name))


def without(found: Redundancy, edge: str) -> set[str]:
    (needed,) = [one for one in found.needed if one.edge.name == edge]
    return {str(pair) for pair in needed.pairs}


def weaker(found: Redundancy, edge: str) -> list[str]:
    return [one.instead.of for one in found.weaker if one.edge.name == edge]


def test_which_edge_protects_which_pair_in_the_symmetric_barrier() -> None:
    found = of("vllm-symmetric-barrier")
    assert not found.spare
    assert without(found, "load.after(compute_done)") == {"WAR forward -> load", "WAW forward -> load"}
    assert without(found, "store.after(compute_done)") == {"RAW forward -> store"}
    assert without(found, "reap an aborted load: needs=seen(load_done)") == {
        "WAW load -> forward",
        "RAW load -> forward",
        "RAW load -> store",
    }
    assert without(found, "store finished: needs=seen(store_done)") == {"WAR store -> forward", "WAR store -> load"}


def test_belt_and_braces_can_lose_either() -> None:
    found = of("vllm-belt-and-braces")
    barrier = "load.after(compute_done)"
    deferrals = {f"{rule}: free=retired(newest)" for rule in ("request finished", "preempt", "window slides past")}
    assert {edge.name for edge in found.spare} == {barrier} | deferrals
    spare = [{edge.name for edge in core} & ({barrier} | deferrals) for core in found.cores]
    assert sorted(spare, key=len) == [{barrier}, deferrals]
    for core in found.cores:
        gone = [edge for edge in found.design.edges if edge not in core]
        assert isinstance(verify(found.design.without(*gone)), Proved)


@pytest.mark.parametrize("name", names())
def test_the_catalogue_names_its_spare_edges(name: str) -> None:
    design = load(name)
    if design.expected is not None and design.expected.verdict == "proved":
        found = redundant(design, weaker=False, cores=False)
        assert {edge.name for edge in found.spare} == set(design.expected.spare)
        assert all(one.pairs for one in found.needed)
        assert {one.edge for one in found.needed} | set(found.spare) == set(design.edges)


def test_the_event_in_front_of_the_forward_is_enough_and_one_a_block_too() -> None:
    found = of("vllm-symmetric-barrier")
    assert weaker(found, "load.after(compute_done)") == ["used", "prev_done"]
    assert weaker(found, "store.after(compute_done)") == ["used", "prev_done"]
    previous = of("vllm-both-wait-previous-step")
    assert weaker(previous, "load.after(prev_done)") == ["used"]
    assert not weaker(of("vllm-per-block-event"), "load.after(used)")


def test_not_if_the_forward_zeroes_the_load_target() -> None:
    """The twin: there the event has to stand behind the wipe."""
    found = of("vllm-zeroing-symmetric")
    assert weaker(found, "load.after(compute_done)") == ["all_zero_done"]
    (weak,) = [one for one in found.weaker if one.instead.of == "all_zero_done"]
    assert weak.record is not None
    mended = recording(found.design, [weak.record]).without(weak.edge).adding(weak.instead)
    assert isinstance(verify(mended), Proved)


def test_a_deferred_block_may_come_back_at_its_last_use() -> None:
    found = of("vllm-after-47653")
    for rule in ("request finished", "preempt", "window slides past"):
        assert weaker(found, f"{rule}: free=retired(newest)") == ["retired(last_use)"]
    stuck = of("fence-on-next-step")
    assert weaker(stuck, "preempt: free=retired(next_step)") == ["retired(last_use)", "retired(newest)"]


@pytest.mark.parametrize(
    "name", ["vllm-symmetric-barrier", "copier-deferral", "layer-wise", "vllm-offloading-connector"]
)
def test_each_weaker_edge_keeps_the_proof(name: str) -> None:
    found = of(name)
    assert found.weaker
    for weak in found.weaker:
        rich = recording(found.design, [weak.record] if weak.record else [])
        assert isinstance(verify(rich.without(weak.edge).adding(weak.instead)), Proved), weak


def test_an_edge_that_only_another_claim_needs_is_needed() -> None:
    found = of("vllm-belt-and-braces")
    assert "preempt: free=retired(newest)" in {edge.name for edge in found.spare}
    p = load("vllm-belt-and-braces")
    claimed = redundant(replace(p, claims=p.claims | {Claim.HOST_QUIESCENT}))
    (preempt,) = [one for one in claimed.needed if one.edge.name == "preempt: free=retired(newest)"]
    assert preempt.pairs == ()
    assert preempt.claims == (Claim.HOST_QUIESCENT,)


def test_nothing_is_said_without_a_verdict() -> None:
    found = redundant(load("vllm-symmetric-barrier"), cap=20)
    assert not any((found.spare, found.needed, found.weaker, found.cores))
