"""The language: a mistake fails where it is written, with what to write instead."""

from __future__ import annotations

import pytest

from kvsan.model.design import BlockRef, DesignError, Protocol, last_use, newest, retired, seen
from kvsan.model.designs import load


def block() -> BlockRef:
    return Protocol("x").block(owner="none | running | want_load | loading", data="empty | full", pin="none | storing")


def test_guards_combine_and_print() -> None:
    b = block()
    guard = b.running & b.empty | ~b.pin.none
    assert str(guard) == "owner=running & data=empty | pin=storing"
    assert guard.holds({"owner": "none", "data": "full", "pin": "storing"})
    assert not guard.holds({"owner": "running", "data": "full", "pin": "none"})
    assert not (~guard).holds({"owner": "running", "data": "empty", "pin": "none"})
    assert hash(b.running) == hash(block().running)


def test_an_unknown_name_names_the_nearest() -> None:
    b = block()
    with pytest.raises(DesignError, match="did you mean 'running'"):
        b.runing  # noqa: B018
    with pytest.raises(DesignError, match="no value of owner 'wantload'; did you mean 'want_load'"):
        b.owner.wantload  # noqa: B018
    with pytest.raises(DesignError, match=r"several facets: write b.owner.none or b.pin.none"):
        b.none  # noqa: B018
    with pytest.raises(DesignError, match="did you mean 'vllm-after-46278'"):
        load("vllm-after-46277")
    with pytest.raises(DesignError, match=r"no edge .*; did you mean 'load.after\(compute_done\)'"):
        load("vllm-symmetric-barrier").without("load.after(compute_don)")


def test_python_booleans_on_guards_say_what_to_write() -> None:
    b = block()
    for mistake in (lambda: b.running and b.empty, lambda: b.running or b.empty, lambda: not b.running):
        with pytest.raises(DesignError, match="write a & b"):
            mistake()
    with pytest.raises(DesignError, match="a facet"):
        bool(b.owner)


def test_a_false_poll_cannot_enable() -> None:
    e = Protocol("x").event("e")
    with pytest.raises(DesignError, match="not"):
        ~seen(e)


def simple(**rule: object) -> Protocol:
    p = Protocol("x")
    compute, load_ = p.streams("compute", "load")
    done = p.event("done", per="transfer")
    b = p.block(owner="none | running | want_load | loading")
    p.free(b.none)
    with p.step():
        compute.forward(reads=b.running)
        load_.copy_in(b.want_load, then=b.loading, signals=done)
    with p.scheduler() as may:
        may("load", when=b.none, then=b.want_load)
        may("loaded", when=b.loading, then=b.running, needs=seen(done))
        may("finish", when=b.running, then=b.none, free=retired(newest) if rule.get("held") else None)
        if rule.get("drop"):
            may("drop", when=b.want_load, then=b.none, cancels=["load"] if rule.get("says") else [])
        if rule.get("twice"):
            may("finish", when=b.running, then=b.none)
    return p


def test_a_rule_that_drops_pending_work_must_say_so() -> None:
    with pytest.raises(DesignError, match="drops 'load', which is due while owner=want_load"):
        simple(drop=True).design()
    assert simple(drop=True, says=True).design().rules[-1].cancels == ("load",)


def test_names_are_unique_and_fences_need_an_event_of_the_step() -> None:
    with pytest.raises(DesignError, match="two rules are called 'finish'"):
        simple(twice=True).design()
    with pytest.raises(DesignError, match="per='step'"):
        simple(held=True).design()


def test_a_nic_cannot_wait_for_an_event() -> None:
    p = Protocol("x")
    compute, nic, done = p.stream("compute"), p.nic("nic"), p.event("done")
    b = p.block(owner="none | want")
    p.free(b.none)
    with p.step():
        compute.record(done)
        nic.copy_in(b.want, then=b.none, after=done)
    with pytest.raises(DesignError, match="nic cannot wait"):
        p.design()


def test_an_event_that_nobody_records_is_no_edge() -> None:
    p = Protocol("x")
    compute, done = p.stream("compute"), p.event("done")
    b = p.block(owner="none | running")
    p.free(b.none)
    with p.step():
        compute.forward(reads=b.running, after=done)
    with pytest.raises(DesignError, match="nobody records done"):
        p.design()


def test_wrong_arguments() -> None:
    p = Protocol("x")
    with pytest.raises(DesignError, match=r"retired\(\) takes"):
        retired("newest")  # type: ignore[arg-type]
    assert str(retired(last_use)) == "retired(last_use)"
    with pytest.raises(DesignError, match="belongs in"):
        p.stream("s").forward()
    with pytest.raises(DesignError, match="no claim 'race free'; did you mean 'race-free'"):
        p.claims("race free")
    with pytest.raises(DesignError, match="run_ahead"):
        Protocol("x", run_ahead=-1)
    with pytest.raises(DesignError, match="takes events of this protocol"), p.step():
        p.stream("t").forward(after=["done"])  # type: ignore[list-item]
