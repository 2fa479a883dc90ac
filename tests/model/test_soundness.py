"""What once was proved and should not have been, each with a twin that differs in that point alone and is right."""

from __future__ import annotations

import pytest

from kvsan.model.design import BlockRef, Design, DesignError, Protocol, last_use, newest, retired, seen
from kvsan.model.proof import Proved, Refused, Refuted, Unknown, verify
from kvsan.model.proof.graph import TooManyStatesError, explore
from kvsan.model.proof.system import System


def sliding(shared: str) -> Protocol:
    """A load waits for the last load's record of `shared`, and so not for the forwards that still read the block."""
    p = Protocol("x")
    compute, load = p.streams("compute", "load")
    event = p.event(shared)
    load_done, step_done = p.event("load_done", per="transfer"), p.event("step_done", per="step")
    b = p.block(owner="none | running | want_load | loading", data="empty | full")
    free = p.free(b.owner.none)
    with p.step():
        compute.forward(writes=b.running & b.empty, reads=b.running & b.full, then=b.full, signals=step_done)
        load.copy_in(b.want_load, then=b.loading, after=event, signals=[load_done, event])
    with p.scheduler() as may:
        may("allocate", when=free, then=b.running & b.empty)
        may("allocate for a load", when=free, then=b.want_load & b.empty)
        may("load finished", when=b.loading, then=b.running & b.full, needs=seen(load_done))
        may("finish", when=b.running, then=b.owner.none, free=retired(last_use))
        may("slide", when=b.running & b.full, then=b.owner.none)
    return p


def races(design: Design) -> set[str]:
    verdict = verify(design)
    assert isinstance(verdict, Proved | Refuted), verdict
    return {str(race.pair) for race in verdict.findings.races}


@pytest.mark.parametrize("name", ["last_use", "fence", "unseen step 1", "step", "use"])
def test_an_event_may_have_a_name_that_the_proof_uses(name: str) -> None:
    found = verify(sliding(name).design(), certify=True)
    assert isinstance(found, Refuted)
    assert {str(race.pair) for race in found.findings.races} == races(sliding("e").design())


def test_a_name_that_nobody_can_read_is_none() -> None:
    with pytest.raises(DesignError, match="cannot be printed"):
        sliding("\0last_use").design()


def two_jobs(queues: int) -> Protocol:
    """Job a is put before the host knows that the fill is done, job b after it."""
    p = Protocol("x")
    compute, load, store = p.streams("compute", "load", "store")
    filled, a_done, b_done = p.events("filled", "a_done", "b_done", per="transfer")
    jobs = [p.queue(f"jobs{at}") for at in range(queues)]
    copier = p.thread("copier")
    jobs_of = ("none | want | queued | out",) * 2
    b = p.block(owner="none | running | full", a=jobs_of[0], b=jobs_of[1])
    free = p.free(b.owner.none & b.a.none & b.b.none)
    with p.step():
        compute.forward(name="fill", writes=b.owner.running, then=b.owner.full, signals=filled)
        p.submit("submit a", jobs[0], when=b.a.want, then=b.a.queued)
        p.submit("submit b", jobs[-1], when=b.b.want, then=b.b.queued)
    with copier.jobs():
        load.work("A", reads=b.a.queued & (b.b.queued | b.b.out), takes=jobs[0], then=b.a.out, signals=a_done)
        store.work("B", reads=b.b.queued, takes=jobs[-1], then=b.b.out, signals=b_done)
    with p.scheduler() as may:
        may("allocate", when=free, then=b.owner.running)
        may("want a", when=b.owner.full & b.a.none & b.b.none, then=b.a.want)
        may("want b", when=b.owner.full & b.a.queued & b.b.none, then=b.b.want, needs=seen(filled))
        back = b.owner.none & b.b.none & b.a.none
        may("back", when=b.b.out & b.a.out, then=back, needs=[seen(a_done), seen(b_done)])
    return p


def test_one_queue_carries_one_kind_of_job() -> None:
    with pytest.raises(DesignError, match="one queue carries one kind of job; each of submit a, submit b puts"):
        two_jobs(1).design()
    assert races(two_jobs(2).design()) == {"RAW fill -> A"}


def grouped(what: str) -> Protocol:
    p = Protocol("x")
    compute, aux = p.streams("compute", "aux")
    done = p.event("done")
    b = p.block(owner="none | running")
    p.free(b.none)
    with p.step():
        compute.record(done)
        with p.any_order():
            compute.forward(reads=b.running)
            if what == "record":
                compute.record(done)
            if what == "sync":
                p.sync("flush", done)
            if what == "any_order":
                with p.any_order():
                    pass
            aux.work("other", reads=b.running, then=b.none)
    with p.scheduler() as may:
        may("allocate", when=b.none, then=b.running)
    return p


@pytest.mark.parametrize("what", ["record", "sync", "any_order"])
def test_only_work_and_jobs_can_be_in_any_order(what: str) -> None:
    with pytest.raises(DesignError, match=r"inside p.any_order\(\)"):
        grouped(what)
    assert isinstance(verify(grouped("nothing").design()), Proved)


@pytest.mark.parametrize("per", ["block", "transfer", "design"])
def test_a_record_between_the_works_is_for_no_block(per: str) -> None:
    p = Protocol("x")
    compute, load = p.streams("compute", "load")
    used, load_done = p.event("used", per=per), p.event("load_done", per="transfer")  # type: ignore[arg-type]
    b = p.block(owner="none | running | want_load | loading")
    p.free(b.none)
    with p.step():
        compute.forward(reads=b.running)
        compute.record(used)
        load.copy_in(b.want_load, then=b.loading, after=used, signals=load_done)
    with p.scheduler() as may:
        may("load", when=b.none, then=b.want_load)
        may("loaded", when=b.loading, then=b.running, needs=seen(load_done))
        may("finish", when=b.running, then=b.none)
    if per == "design":
        assert isinstance(verify(p.design()), Proved)
    else:
        with pytest.raises(DesignError, match=r"compute.record\(used\): used is an event of one block or transfer"):
            p.design()


def idle(**more: bool) -> Protocol:
    p = Protocol("x")
    compute, done = p.stream("compute"), p.event("done")
    b = p.block(owner="none | running")
    p.free(b.none)
    with p.step():
        compute.forward(reads=b.running if more.get("reads") else None)
        if more.get("sync"):
            compute.record(done)
            p.sync("finish" if more.get("same") else "flush", done)
    with p.scheduler() as may:
        may("allocate", when=b.none, then=b.running)
        may("finish", when=b.running, then=b.none)
    return p


def test_nothing_claimed_or_nothing_touched_proves_nothing() -> None:
    with pytest.raises(DesignError, match=r"p.claims\(\) claims nothing; name at least one of race-free"):
        idle(reads=True).claims()
    assert isinstance(verify(idle(reads=True).design()), Proved)
    found = verify(idle().design())
    assert isinstance(found, Refused)
    assert found.dead == ("any access to the block (no work says reads= or writes=)",)


def test_a_rule_and_a_sync_have_names_of_their_own() -> None:
    with pytest.raises(DesignError, match="a sync and a rule are called 'finish'"):
        idle(reads=True, sync=True, same=True).design()
    edges = idle(reads=True, sync=True).design().edges
    assert len({edge.name for edge in edges}) == len(edges)


def stored(then_saved: bool) -> Protocol:
    """A store that is planned for one owner and runs on the next one's block; it may change what it does not ask."""
    p = Protocol("x")
    compute, store = p.streams("compute", "store")
    done, store_done = p.event("done"), p.event("store_done", per="transfer")
    b = p.block(owner="none | running", data="empty | full | saved", pin="none | want_store | storing")
    free = p.free(b.owner.none)
    with p.step():
        compute.forward(writes=b.running & b.empty, reads=b.running & ~b.empty, then=b.full, signals=done)
        then = b.storing & b.saved if then_saved else b.storing
        store.copy_out(b.want_store, then=then, after=done, signals=store_done)
        compute.forward(name="fence", after=store_done)
    with p.scheduler() as may:
        may("allocate", when=free, then=b.running & b.empty)
        may("store", when=b.running & b.full & b.pin.none, then=b.want_store)
        may("store finished", when=b.storing, then=b.pin.none, needs=seen(store_done))
        may("finish", when=b.running, then=b.owner.none)
    p.claims("right generation")
    return p


@pytest.mark.parametrize("then_saved", [True, False])
def test_a_plan_is_what_its_guard_asks_about(then_saved: bool) -> None:
    found = verify(stored(then_saved).design())
    assert isinstance(found, Refuted)
    assert [wrong.work for wrong in found.findings.wrong_generation] == ["store"]


def held(hold: bool) -> Protocol:
    """Stores what does not run any more: with `hold` while the free is held, else while a facet value says done."""
    p = Protocol("x")
    compute, store = p.streams("compute", "store")
    store_done, step_done = p.event("store_done", per="transfer"), p.event("step_done", per="step")
    b = p.block(owner="none | running | done", data="empty | full", s="no | busy | yes")
    free = p.free(b.owner.none & ~b.busy)
    with p.step():
        compute.forward(writes=b.running & b.empty, reads=b.running & b.full, then=b.full, signals=step_done)
        store.copy_out(b.full & ~b.running & b.s.no, then=b.busy, signals=store_done)
    with p.scheduler() as may:
        may("allocate", when=free, then=b.running & b.empty & b.s.no, cancels=["store"])
        may("stored", when=b.busy, then=b.s.yes, needs=seen(store_done))
        if hold:
            may("finish", when=b.running, then=b.owner.none, free=retired(newest))
            may("mark", when=b.owner.done, then=b.owner.none)
            may("end", when=b.running, then=b.owner.done, needs=retired(last_use))
        else:
            may("finish", when=b.running, then=b.owner.done)
            may("return", when=b.owner.done, then=b.owner.none, needs=retired(last_use))
    return p


@pytest.mark.parametrize("hold", [True, False])
def test_a_held_block_is_not_running(hold: bool) -> None:
    assert "RAW forward -> store" in races(held(hold).design())


def test_a_guard_or_its_opposite_holds_of_a_held_block() -> None:
    b = Protocol("x").block(owner="none | running", pin="none | storing")
    block = {"owner": "held:none", "pin": "none"}
    for guard in (b.running, b.owner.none, b.running | b.owner.none, b.running & b.pin.none, b.pin.none):
        assert guard.holds(block) != (~guard).holds(block)
        assert guard.holds(block) == (~~guard).holds(block)
    assert (~b.running).holds(block)
    assert (~b.owner.none).holds(block)
    assert not b.running.holds(block)
    assert not b.owner.none.holds(block)


def many_facets(count: int) -> Protocol:
    p = Protocol("x")
    compute = p.stream("compute")
    b = p.block(owner="none | running", **{f"f{i}": " | ".join(f"v{i}_{j}" for j in range(4)) for i in range(count)})
    free = p.free(b.owner.none)
    with p.step():
        compute.forward(writes=b.running)
        compute.work("other", reads=b.running & b.v0_1, then=b.v0_2)
    with p.scheduler() as may:
        may("allocate", when=free, then=b.running)
        may("finish", when=b.running, then=b.owner.none, cancels=["other"])
        for i in range(count):
            for j in range(4):
                may(f"set {i} {j}", when=b.running, then=getattr(b, f"v{i}_{j}"), cancels=["other"])
    return p


def test_the_cap_bounds_the_actions_and_so_the_time() -> None:
    assert isinstance(verify(many_facets(12).design(), cap=4000), Unknown)
    few = System(many_facets(3).design(), None)
    assert len(explore(few, 100_000).states) < 1000
    with pytest.raises(TooManyStatesError):
        explore(few, 1000)
    assert isinstance(verify(many_facets(1).design()), Proved | Refuted)


def test_a_guard_about_more_than_can_be_gone_through_is_refused() -> None:
    p = many_facets(12)
    b = BlockRef(p.design().facets)
    everything = b.running
    for i in range(12):
        everything = everything & getattr(b, f"v{i}_0")
    with p.scheduler() as may:
        may("too much", when=everything, then=b.v0_2)
    with pytest.raises(DesignError, match="33554432 combinations are more than"):
        p.design()
