"""The language: a mistake fails where it is written, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvsan.model.design import BlockRef, DesignError, Protocol, got, last_use, newest, next_step, retired, seen
from kvsan.model.design.sound import sound
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


class Half:
    """A protocol under construction, another one beside it, and a rule and a work that can be given anything."""

    def __init__(self) -> None:
        self.p = Protocol("half")
        self.compute, self.load = self.p.streams("compute", "load")
        self.done = self.p.event("done", per="transfer")
        self.jobs = self.p.queue("jobs")
        self.b = self.p.block(owner="none | running | want", data="empty | full")
        self.free = self.p.free(self.b.none)
        self.other = Protocol("other").block(owner="none | lost", pin="off | on")

    def may(self, **more: Any) -> None:
        with self.p.scheduler() as may:
            may(**{"name": "finish", "when": self.b.running, "then": self.b.none, **more})

    def copy(self, **more: Any) -> None:
        with self.p.step():
            self.load.copy_in(**{"when": self.b.want, "then": self.b.running, **more})


TAKES: dict[str, tuple[Callable[[Half], object], str, Callable[[Half], object]]] = {
    "a stream for an event": (
        lambda h: h.copy(after=h.compute),
        r"load: after= takes events .*p\.event.*, one or a list, not stream 'compute'",
        lambda h: h.copy(after=h.done),
    ),
    "a text for an event": (
        lambda h: h.copy(signals="done"),
        r"load: signals= takes events .* not 'done'",
        lambda h: h.copy(signals=(h.done,)),
    ),
    "a text for a queue": (
        lambda h: h.copy(takes="jobs"),
        r"load: takes= takes a queue of this protocol \(p\.queue\(\.\.\.\)\), not 'jobs'",
        lambda h: h.copy(takes=h.jobs),
    ),
    "an event for a poll": (lambda h: h.may(needs=h.done), r"write seen\(done\)", lambda h: h.may(needs=seen(h.done))),
    "a queue for an entry": (
        lambda h: h.may(needs=[h.jobs]),
        r"write got\(jobs\)",
        lambda h: h.may(needs=[got(h.jobs)]),
    ),
    "a fence for what has passed": (
        lambda h: h.may(needs=last_use),
        r"write retired\(last_use\)",
        lambda h: h.may(needs=retired(last_use)),
    ),
    "a fence for a held free": (
        lambda h: h.may(free=newest),
        r"write retired\(newest\)",
        lambda h: h.may(free=retired(newest)),
    ),
    "an event for a fence": (
        lambda h: retired(h.done),  # type: ignore[arg-type]
        r"takes a fence \(newest, last_use or next_step\), not event 'done'",
        lambda h: retired(next_step),
    ),
    "a stream by name": (
        lambda h: h.may(records={"compute": h.done}),
        r"finish: records= maps streams to events .*\{compute: used\}",
        lambda h: h.may(records={h.compute: h.done}),
    ),
    "a list of records": (
        lambda h: h.may(records=[h.done]),
        r"finish: records= maps streams to events",
        lambda h: h.may(records={}),
    ),
    "one work to cancel": (
        lambda h: h.may(cancels="load"),
        r"write cancels=\['load'\]",
        lambda h: h.may(cancels=["load"]),
    ),
    "a facet for a guard": (
        lambda h: h.may(when=h.b.owner),
        r"when= takes a guard .*write b\.owner\.none or b\.owner\.running",
        lambda h: h.may(when=h.b.owner.none),
    ),
    "no guard": (lambda h: h.may(when=None), r"finish: say when=, a guard such as", lambda h: h.may()),
    "a number for a name": (
        lambda h: h.may(name=5),
        r"the name of a rule is a text that is not empty, not 5",
        lambda h: h.may(name="5"),
    ),
    "None for a name": (lambda h: Protocol(None), r"the name of a protocol", lambda h: Protocol("None")),  # type: ignore[arg-type]
    "a list for a facet": (
        lambda h: Protocol("x").block(owner=["none", "running"]),  # type: ignore[arg-type]
        r'owner= takes its values in one text, "none \| running"',
        lambda h: Protocol("x").block(owner="none | running"),
    ),
    "another block's guard": (
        lambda h: h.may(when=h.other.on),
        r"finish: when= asks pin=on, which is of another protocol's block; this one has owner: none \| running \| want",
        lambda h: h.may(when=h.b.full),
    ),
    "another block's value of a facet of the same name": (
        lambda h: h.copy(then=h.other.lost),
        r"load: then= asks owner=lost, which is of another protocol's block",
        lambda h: h.copy(then=h.b.running),
    ),
    "another block's free": (
        lambda h: h.p.free(h.b.none & h.other.off),
        r"p\.free\(\) asks pin=off, which is of another",
        lambda h: h.p.free(h.b.none & h.b.empty),
    ),
}


@pytest.mark.parametrize("kind", TAKES)
def test_a_wrong_argument_says_what_to_write_and_the_right_one_is_taken(kind: str) -> None:
    wrong, says, right = TAKES[kind]
    with pytest.raises(DesignError, match=says):
        wrong(Half())
    right(Half())


@pytest.mark.parametrize("steps", [1.5, True, None, "two", "Any", -1])
def test_a_run_ahead_is_a_number_of_steps_or_any(steps: Any) -> None:
    with pytest.raises(DesignError, match='run_ahead is a number of steps from 0, or "any"'):
        Protocol("x", run_ahead=steps)
    with pytest.raises(DesignError, match="run_ahead"):
        sound(replace(load("vllm-synchronous"), run_ahead=steps))


def test_a_run_ahead_that_is_one() -> None:
    for steps in (0, 3, "any"):
        sound(replace(load("vllm-synchronous"), run_ahead=steps))
        assert Protocol("x", run_ahead=steps).run_ahead == steps


def test_a_protocol_has_one_step() -> None:
    half = Half()
    half.copy(signals=half.done)
    with pytest.raises(DesignError, match="one step"):
        half.copy(name="again")


def test_a_fresh_block_is_free() -> None:
    half = Half()
    half.p.free(half.b.running)
    with pytest.raises(
        DesignError, match=r"first value \(owner=none, data=empty\) and must be free, which is owner=running"
    ):
        half.p.design()
    half.p.free(half.b.empty)
    assert half.p.design().name == "half"


def test_the_pool_of_all_other_blocks_is_taken() -> None:
    p = Protocol("x", pool="other blocks")
    p.free(p.block(owner="none | running").none)
    with pytest.raises(DesignError, match="choose another"):
        p.design()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rules": ("x",)}, r"rules\[0\] is 'x', not Rule"),
        ({"rules": []}, r"rules is \[\], not a tuple"),
        ({"name": None}, "name is None, not a text"),
        ({"free": True}, "free is True, not a guard"),
        ({"facets": ()}, "no facet 'owner'"),
        ({"claims": frozenset({"race-free"})}, "claims.*'race-free', not Claim"),
        ({"free": Protocol("y").block(owner="none | lost").lost}, "no value of owner 'lost'"),
    ],
)
def test_a_design_with_broken_contents_is_refused(changed: dict[str, Any], says: str) -> None:
    design = load("vllm-symmetric-barrier")
    sound(design)
    with pytest.raises(DesignError, match=says):
        sound(replace(design, **changed))
