"""The proof's parts: the transfer functions are the rules, verdicts other than proved and refuted, what is told."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kvsan.model.design import MAIN, Design, Protocol, seen
from kvsan.model.designs import load, names
from kvsan.model.ops import Access
from kvsan.model.order import Order
from kvsan.model.pasts import Agent, Bits
from kvsan.model.proof import Proved, Refused, Refuted, Unknown, verify
from kvsan.model.proof.actions import event_context, event_name
from kvsan.model.proof.graph import explore
from kvsan.model.proof.search import search
from kvsan.model.proof.system import System
from kvsan.model.proof.transfer import Transfers


def toy(**more: object) -> Protocol:
    p = Protocol("toy")
    compute = p.stream("compute")
    b = p.block(owner="none | running | lost")
    p.free(b.none)
    with p.step():
        compute.forward(reads=b.running)
    with p.scheduler() as may:
        may("allocate", when=b.none, then=b.running)
        may("finish", when=b.running, then=b.none)
        if more.get("dead"):
            may("find again", when=b.lost, then=b.running)
        if more.get("leak"):
            may("lose", when=b.running, then=b.lost)
    return p


@pytest.mark.parametrize("design", names())
def test_a_transfer_function_is_what_the_rules_do_to_one_access(design: str) -> None:
    """`Order` over sets, started from pasts that hold the access (bit 0) or not, gives the same bits."""
    system = System(load(design), 1)
    graph = explore(system, 10_000)
    transfers = Transfers(system.design, graph.actions(), system.threads)
    dice = random.Random(design)
    for action in dict.fromkeys(graph.actions()):
        for _ in range(4):
            bits = dice.getrandbits(len(transfers.contexts))
            known = {context: int(bool(bits & transfers.bit[context])) for context in transfers.contexts}
            order: Order[int] = Order(Bits())
            order.suppose(
                {Agent(of, kind == "host"): past for (kind, of), past in known.items() if kind in ("stream", "host")},
                {name: past for context, past in known.items() if (name := event_name(context)) is not None},
                {of: past for (kind, of), past in known.items() if kind == "queue"},
            )
            issued = None
            for number, op in enumerate(action.ops, 1):
                found = order.issue(number, op)
                issued = found if isinstance(op, Access) else issued
            after = {}
            for kind, of in transfers.contexts:
                name = event_name((kind, of))
                if name is not None:
                    after[kind, of] = order.events[name].past if name in order.events else 0
                elif kind == "queue":
                    after[kind, of] = order.handed(of) or 0
                else:
                    after[kind, of] = order.past(Agent(of, kind == "host"))
            after |= {event_context(new): after.get(event_context(old), 0) for new, old in action.copies}
            after |= {event_context(of): 0 for of in action.forgets}
            transfer = transfers.of[action]
            want = sum(transfers.bit[context] for context in transfers.contexts if after[context] & 1)
            assert transfer(bits) == want, action
            if transfer.check is not None and issued is not None:
                assert bool(bits & transfer.check.read_mask) == bool(issued.reads & 1)
                assert bool(bits & transfer.check.write_mask) == bool(issued.writes & 1)


def test_a_design_with_a_rule_that_can_never_happen_is_refused() -> None:
    verdict = verify(toy(dead=True).design())
    assert isinstance(verdict, Refused)
    assert verdict.dead == ("rule 'find again'",)


def test_a_cap_that_is_reached_is_a_verdict_of_its_own() -> None:
    assert isinstance(verify(load("vllm-symmetric-barrier"), cap=100), Unknown)
    assert isinstance(verify(load("vllm-symmetric-barrier"), cap=20), Unknown)


def test_a_block_that_can_get_lost_is_no_progress() -> None:
    verdict = verify(toy(leak=True).design())
    assert isinstance(verdict, Refuted)
    assert verdict.findings.stuck is not None
    assert [action.label for action in verdict.findings.stuck.schedule] == ["allocate", "lose"]


def test_an_unclaimed_property_does_not_refute() -> None:
    p = toy(leak=True)
    p.claims("race-free")
    assert isinstance(verify(p.design()), Proved)


def test_a_query_of_an_event_never_recorded_is_found() -> None:
    found = verify(load("copier-event-visible-early"))
    assert isinstance(found, Refuted)
    assert ("load finished", "load_done") in {(v.at, v.event) for v in found.findings.vacuous}


def test_a_source_read_in_no_order_is_held_against_the_host_alone() -> None:
    """A store with source order `any` races although its stream waits: only the host orders such a read."""

    def design(order: str) -> Design:
        p = Protocol("any")
        compute, store = p.streams("compute", "store")
        done = p.event("done")
        stored = p.event("stored", per="transfer")
        b = p.block(owner="none | running", data="empty | full", pin="none | want_store | storing")
        p.free(b.owner.none & b.pin.none)
        with p.step():
            compute.forward(writes=b.running & b.empty, reads=b.running & b.full, then=b.full, signals=done)
            store.copy_out(b.want_store, then=b.storing, after=done, signals=stored, order=order)  # type: ignore[arg-type]
        with p.scheduler() as may:
            may("allocate", when=b.owner.none & b.pin.none, then=b.running & b.empty)
            may("store", when=b.running & b.full & b.pin.none, then=b.want_store)
            may("stored", when=b.storing, then=b.pin.none, needs=seen(stored))
            may("finish", when=b.running, then=b.owner.none)
        return p.design()

    assert isinstance(verify(design("stream")), Proved)
    racy = verify(design("any"))
    assert isinstance(racy, Refuted)
    assert [str(race.pair) for race in racy.findings.races] == ["RAW forward -> store"]


def test_a_verdict_says_what_it_does_not_cover() -> None:
    told = "\n".join(verify(load("nic-writer")).assumptions)
    assert "collectives" in told
    assert "NIC" in told
    assert "NIC" not in "\n".join(verify(load("vllm-before-46278")).assumptions)
    assert any("thread may take its jobs" in fact for fact in verify(load("copier-symmetric")).assumptions)


def test_designs_are_values() -> None:
    a, b = load("vllm-after-46278"), load("vllm-symmetric-barrier")
    assert hash(a) == hash(load("vllm-after-46278"))
    assert a != b
    mended = a.adding(b.edge("load.after(compute_done)"))
    assert isinstance(verify(mended), Proved)
    assert set(mended.edges) == set(b.edges)
    assert mended.without("load.after(compute_done)").edges == a.edges
    assert MAIN == "host"


def test_without_the_twins_of_other_blocks_the_event_trap_looks_safe() -> None:
    system = System(load("shared-event-trap"), None)
    assert search(system, explore(system, 10_000), 10_000).races
    system._twins = set()
    assert not search(system, explore(system, 10_000), 10_000).races


def test_synchronous_scheduling_is_what_hides_the_races_of_the_first_version() -> None:
    verdict = verify(replace(load("vllm-synchronous"), run_ahead="any"))
    assert isinstance(verdict, Refuted)
    assert {str(r.pair): len(r.schedule) for r in verdict.findings.races} == {
        "RAW forward -> store": 8,
        "WAW forward -> load": 9,
        "WAR forward -> load": 13,
    }
