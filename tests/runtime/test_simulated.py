"""The simulated machine: never an order that CUDA forbids, every order that it allows, and the same again on demand."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from kvsan.model.ops import Access, Poll  # noqa: E402 - only where torch is
from kvsan.runtime.device import Copy, Device, DeviceError, Kernel  # noqa: E402
from kvsan.runtime.device.policy import (  # noqa: E402
    EAGER,
    EARLY,
    FAIR,
    LATE,
    LAZY,
    POLICIES,
    Policy,
    hold,
    policy,
    starve,
)
from kvsan.runtime.device.schedule import PREFIX, Schedule, ScheduleError  # noqa: E402
from kvsan.runtime.device.simulated import Call as Tried  # noqa: E402
from kvsan.runtime.device.simulated import Simulated  # noqa: E402
from kvsan.runtime.device.versions import FRESH, strays  # noqa: E402
from runtime.device_programs import (  # noqa: E402
    STREAMS,
    Call,
    breach,
    kernel,
    load,
    programs,
    query,
    record,
    rules,
    run,
    seen_orders,
    store,
    sync,
    wait,
    work,
)

SEEDS = st.integers(0, 10_000)
ALL = [*POLICIES.values(), *(starve(name) for name in STREAMS), starve("t", "u")]


def ids(*blocks: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(blocks, np.int64)


def story(device: Simulated) -> list[tuple[object, ...]]:
    """The log as values that compare."""
    return [(t.op.number, t.pool, t.write, t.blocks.tolist(), t.versions.tolist()) for t in device.log]


# ── orders ────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=200, deadline=None)
@given(programs(), SEEDS, st.sampled_from(ALL))
def test_no_order_is_ever_broken(program: list[Call], seed: int, chosen: Policy) -> None:
    device = Simulated(seed=seed, policy=chosen, observe=True)
    trace = run(program, device)
    assert breach(device.log, rules(trace)) is None


@settings(max_examples=200, deadline=None)
@given(programs(), SEEDS, SEEDS, st.sampled_from(ALL))
def test_no_order_is_broken_with_the_host_choices_of_another_run(
    program: list[Call], seed: int, other: int, chosen: Policy
) -> None:
    first = Simulated(seed=seed, observe=True)
    trace = run(program, first)
    again = Simulated(seed=other, policy=chosen, host=str(first.schedule), observe=True)
    assert run(program, again) == trace  # the poll answers are in it
    assert breach(again.log, rules(trace)) is None


@settings(max_examples=200, deadline=None)
@given(programs(), SEEDS)
def test_eager_is_program_order(program: list[Call], seed: int) -> None:
    """But for a source that is read in the order `call`, everything of an op that can run at once runs at once."""
    device = Simulated(seed=seed, policy=EAGER, observe=True)
    run(program, device)
    assert list(strays(device.log)) == []


@settings(max_examples=120, deadline=None)
@given(programs(hosts=("h",), polls=False, length=9), st.data())
def test_a_held_op_of_an_unordered_pair_comes_second(program: list[Call], data: st.DataObject) -> None:
    """With one host thread and no poll answered False, each unordered pair can be turned round, by `hold`."""
    first = Simulated(policy=EAGER, observe=True)
    said = rules(run(program, first))
    if not said.unordered:
        return
    earlier, later = data.draw(st.sampled_from(said.unordered))
    device = Simulated(policy=hold(earlier.op, later.op), host=first.schedule, observe=True)
    run(program, device)
    assert device.forced == []
    assert (later, earlier) in seen_orders(device.log, [(earlier, later)], said)
    met = {stray.op for stray in strays(device.log)}
    assert met & {earlier.op, later.op}


@settings(max_examples=120, deadline=None)
@given(programs(hosts=("h",), length=9), st.data(), SEEDS)
def test_a_held_op_comes_second_under_recorded_polls_too(program: list[Call], data: st.DataObject, seed: int) -> None:
    """The answers until the later op is issued are kept, which is all that the pair depends on."""
    first = Simulated(seed=seed, observe=True)
    trace = run(program, first)
    said = rules(trace)
    if not said.unordered:
        return
    earlier, later = data.draw(st.sampled_from(said.unordered))
    device = Simulated(policy=hold(earlier.op, later.op), host=first.schedule, observe=True)
    again = run(program, device)
    kept = [at for at, op in enumerate(trace) if isinstance(op, Access)][later.op]
    assert again[: kept + 1] == trace[: kept + 1]
    assert device.forced == []
    assert (later, earlier) in seen_orders(device.log, [(earlier, later)], said)
    replayed = Simulated(replay=str(device.schedule), observe=True)
    assert run(program, replayed) == again
    assert story(replayed) == story(device)


@pytest.mark.parametrize("answer", [False, True])
def test_a_later_poll_answered_false_may_forbid_what_the_rules_leave_open(answer: bool) -> None:
    """To the rules a False teaches nothing, but while `f` is incomplete what is behind it has not run, and `e` was
    waited for before that poll. So with that answer op 2 never comes first; `hold` lets the poll answer what it likes.
    """
    program = [
        kernel("s", writes=[0]),
        record("s", "e"),
        kernel("t", writes=[1]),
        record("t", "f"),
        kernel("t", writes=[0]),
        sync("e"),
        query("f"),
    ]
    first = Simulated(policy=EAGER if answer else LAZY)
    trace = run(program, first)
    said = rules(trace)
    assert [(a.op, b.op) for a, b in said.unordered] == [(0, 2)]
    seen = set()
    for seed in range(60):
        device = Simulated(seed=seed, host=first.schedule, observe=True)
        assert run(program, device) == trace
        seen |= seen_orders(device.log, said.unordered, said)
    assert len(seen) == 1 + answer
    device = Simulated(policy=hold(0, 2), host=first.schedule, observe=True)
    assert run(program, device)[-1] == Poll("h", "f", True)
    assert device.forced == []
    assert order_of(device) == [1, 2, 0]


SMALL = {
    "two streams": [kernel("s", writes=[0]), kernel("t", writes=[0])],
    "WAR with a store": [store("t", [0, 1]), kernel("s", writes=[1], parts=2)],
    "the load and the read": [kernel("s", reads=[0, 1], parts=3), load("t", [0, 1])],
    "any on one stream": [kernel("s", writes=[0]), store("s", [0], "any")],
    "any behind a wait": [kernel("s", writes=[0]), record("s"), wait("t"), store("t", [0], "any")],
    "the host's own": [store("t", [0]), work(writes=[0])],
    "call": [load("t", [0], "call"), load("u", [0], "call"), kernel("s", reads=[0])],
    "recorded too late": [wait("t"), kernel("s", writes=[0]), record("s"), store("t", [0])],
    "recorded again": [
        kernel("s", writes=[0]),
        record("s"),
        kernel("s", writes=[1]),
        wait("t"),
        record("s"),
        store("t", [0, 1]),
    ],
    "through a third": [
        kernel("s", writes=[0]),
        record("s"),
        wait("t"),
        record("t", "f"),
        wait("u", "f"),
        load("u", [0]),
        kernel("s", reads=[0]),
    ],
    "dropped": [kernel("s", writes=[0]), record("s"), Call("drop", name="e"), wait("t"), store("t", [0])],
    "behind a sync": [
        kernel("s", writes=[0]),
        record("s"),
        kernel("s", writes=[1]),
        sync(),
        store("t", [0, 1]),
        work(writes=[1]),
    ],
    "three at once": [kernel("s", writes=[0]), load("t", [0]), store("u", [0])],
}


@pytest.mark.parametrize("program", SMALL.values(), ids=SMALL.keys())
def test_every_unordered_pair_is_seen_in_both_orders_and_no_other(program: list[Call]) -> None:
    said = rules(run(program, Simulated()))
    pairs = said.unordered
    assert pairs
    seen = set()
    for seed in range(60):
        for chosen in (FAIR, EARLY, LATE, starve("s"), starve("t"), starve("u")):
            device = Simulated(seed=seed, policy=chosen, observe=True)
            run(program, device)
            seen |= seen_orders(device.log, pairs, said)
            assert breach(device.log, said) is None
    assert seen == {order for a, b in pairs for order in ((a, b), (b, a))}


FENCED = {
    "a wait": [kernel("s", writes=[0, 1], parts=3), record("s"), wait("t"), store("t", [0, 1])],
    "a sync": [store("t", [0, 1]), record("t"), sync(), work(writes=[0, 1])],
    "one stream": [kernel("s", reads=[0, 1], parts=3), load("s", [0, 1]), kernel("s", reads=[0, 1])],
    "a wait, any": [store("t", [0, 1], "any"), record("t"), wait("s"), kernel("s", writes=[0, 1], parts=2)],
    "call": [work(writes=[0]), load("t", [0], "call"), work(writes=[0])],
}


@pytest.mark.parametrize("program", FENCED.values(), ids=FENCED.keys())
def test_a_fence_leaves_nothing_to_see(program: list[Call]) -> None:
    """The silent twins."""
    assert rules(run(program, Simulated())).unordered == []
    for seed in range(40):
        for chosen in ALL:
            device = Simulated(seed=seed, policy=chosen, observe=True)
            run(program, device)
            assert list(strays(device.log)) == []


# ── policies ──────────────────────────────────────────────────────────────────────────────────────────────────────


def order_of(device: Simulated) -> list[int]:
    """The ops in the order of their first part."""
    return list(dict.fromkeys(touch.op.number for touch in device.log))


def test_a_starved_stream_runs_when_nothing_else_can() -> None:
    program = [kernel("t", writes=[0]), *[kernel("s", writes=[1])] * 3, *[kernel("u", writes=[2])] * 3]
    for seed in range(20):
        device = Simulated(seed=seed, policy=starve("t"), observe=True)
        run(program, device)
        assert order_of(device)[-1] == 0
        device = Simulated(seed=seed, policy=starve("t"), observe=True)
        run([program[0], record("t"), program[1], sync(), *program[2:]], device)
        assert order_of(device)[:2] == [1, 0]  # and as far as a sync needs it


def test_lazy_runs_what_a_sync_needs_and_no_more() -> None:
    device = Simulated(policy=LAZY, observe=True)
    for pool in ("gpu", "cpu"):
        device.memory(pool, (1, 3), host=False)
    for name in STREAMS:
        device.stream(name, side=False)
    host = device.host("h")
    host.launch("s", Kernel("a", writes={"gpu": ids(0)}))
    host.record("s", "e")
    host.launch("s", Kernel("b", writes={"gpu": ids(0)}))
    host.wait("t", "e")
    host.launch("u", Kernel("c", writes={"gpu": ids(0)}))
    host.launch("t", Kernel("d", writes={"gpu": ids(0)}))
    host.record("t", "f")
    assert not host.query("f")
    host.sync("f")
    assert host.query("f")
    assert order_of(device) == [0, 3]
    device.close()
    assert order_of(device) == [0, 3, 1, 2]


@pytest.mark.parametrize("chosen", ALL)
def test_a_host_that_only_polls_gets_its_answer(chosen: Policy) -> None:
    device = Simulated(policy=chosen)
    program = [kernel("s", reads=[0], parts=3), record("t"), wait("s"), store("s", [0, 1]), record("s", "f")]
    polls = [query("f")] * 200
    trace = run([*program, *polls], device)
    answers = [op.done for op in trace if isinstance(op, Poll)]
    assert answers[-1]
    assert run([*program, *polls], Simulated(replay=str(device.schedule))) == trace
    assert run([*program, *polls], Simulated(policy=LAZY, host=str(device.schedule))) == trace


@pytest.mark.parametrize(("chosen", "saw"), [(EARLY, FRESH), (LATE, 0)])
def test_an_any_source_is_read_as_early_or_as_late_as_allowed(chosen: Policy, saw: int) -> None:
    for seed in range(20):
        device = Simulated(seed=seed, policy=starve_with(chosen, "s"), observe=True)
        run([kernel("s", writes=[0]), record("s"), wait("t"), store("t", [0], "any")], device)
        assert [t.versions.tolist() for t in device.log if t.op.number == 1 and not t.write] == [[saw]] or saw == 0
        assert {v for t in device.log if t.op.number == 1 and not t.write for v in t.versions.tolist()} == {saw}


def starve_with(chosen: Policy, stream: str) -> Policy:
    return Policy("both", starved=(stream,), sources=chosen.sources)


def test_a_held_op_that_a_sync_needs_says_so() -> None:
    program = [kernel("s", writes=[0]), record("s"), sync(), kernel("t", writes=[0])]
    device = Simulated(policy=hold(0, 1), observe=True)
    run(program, device)
    assert [(one.op, one.why) for one in device.forced] == [(0, "call 2 (sync h e)")]
    ordered = Simulated(policy=hold(0, 1))
    run([kernel("s", writes=[0]), kernel("s", writes=[0])], ordered)
    assert [(one.op, one.why) for one in ordered.forced] == [(0, "op 1 is ordered behind it")]


def test_a_begun_hold_leaves_the_last_part() -> None:
    program = [kernel("s", reads=[0, 1], parts=4), load("t", [0, 1])]
    device = Simulated(policy=hold(0, 1, begun=True), observe=True)
    run(program, device)
    assert [(t.op.number, t.write) for t in device.log] == [(0, False), (1, False), (1, True), (0, False)]
    assert [(s.op, s.version, s.expected) for s in strays(device.log)] == [(0, 1, FRESH), (0, 1, FRESH)]


@pytest.mark.parametrize("text", [*POLICIES, "starve:load", "starve:load,store", "hold:3,7", "hold:3,7,begun"])
def test_a_policy_is_its_name(text: str) -> None:
    assert policy(text).name == text


@pytest.mark.parametrize("text", ["", "unfair", "starve:", "hold:3", "hold:a,b", "hold:1,2,x", "starve:a,"])
def test_what_is_no_policy_is_told_what_is(text: str) -> None:
    with pytest.raises(ValueError, match="is no policy; there are fair, early, late, lazy, eager, starve:STREAM"):
        policy(text)


# ── contents ──────────────────────────────────────────────────────────────────────────────────────────────────────


def torn(seed: int, *, fence: bool, order: str = "stream") -> tuple[set[int], set[int]]:
    """What a kernel of four parts reads of a block while a load replaces its eight layers of 1 by 2, if no fence
    holds the load back; and what the block holds in the end."""
    device = Simulated(seed=seed)
    gpu = device.memory("gpu", (8, 2, 3), host=False)
    cpu = device.memory("cpu", (8, 2, 3), host=True)
    gpu.fill_(1)
    cpu.fill_(2)
    seen: list[Any] = []
    parts = [lambda at=at: seen.append(gpu[2 * at : 2 * at + 2, 0].clone()) for at in range(4)]
    device.stream("s", side=False)
    device.stream("t", side=True)
    host = device.host("main")
    host.launch("s", Kernel("forward", {"gpu": ids(0)}, parts=parts))
    if fence:
        host.record("s", "done")
        host.wait("t", "done")
    host.copy("t", Copy("load", "cpu", ids(0, 1), "gpu", ids(0, 1), order))  # type: ignore[arg-type]
    device.close()
    return set(torch.cat(seen).flatten().tolist()), set(gpu.flatten().tolist())


def test_a_read_is_really_torn() -> None:
    got = [torn(seed, fence=False) for seed in range(80)]
    assert {frozenset(seen) for seen, _ in got} == {frozenset({1}), frozenset({2}), frozenset({1, 2})}
    assert all(end == {2} for _, end in got)


@pytest.mark.parametrize("order", ["stream", "any", "call"])
def test_and_not_behind_a_fence(order: str) -> None:
    assert all(torn(seed, fence=True, order=order) == ({1}, {2}) for seed in range(80))


def test_a_copy_is_torn_within_a_block() -> None:
    """Layers of one block from before and after: the source is overwritten half-way."""
    ends = set()
    for seed in range(150):
        device = Simulated(seed=seed)
        gpu, cpu = (device.memory(pool, (4, 1, 1), host=False) for pool in ("gpu", "cpu"))
        device.stream("s", side=False)
        device.stream("t", side=True)
        host = device.host("main")
        host.copy("t", Copy("store", "gpu", ids(0), "cpu", ids(0)))
        host.launch("s", Kernel("forward", writes={"gpu": ids(0)}, parts=[partial(gpu.fill_, 1)]))
        device.close()
        ends.add(tuple(cpu.flatten().tolist()))
    assert {(0, 0, 0, 0), (1, 1, 1, 1)} < ends
    assert len(ends) > 5


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(["stream", "any", "call"]), SEEDS, st.sampled_from(ALL))
def test_a_copy_in_any_parts_is_a_copy(data: st.DataObject, order: str, seed: int, chosen: Policy) -> None:
    blocks = data.draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), unique_by=lambda pair: pair[1]))
    device = Simulated(seed=seed, policy=chosen)
    gpu, cpu = (device.memory(pool, (3, 9, 2), host=False) for pool in ("gpu", "cpu"))
    gpu.copy_(torch.arange(gpu.numel()).reshape(gpu.shape))
    device.stream("s", side=False)
    host = device.host("main")
    sources, targets = (ids(*(pair[side] for pair in blocks)) for side in (0, 1))
    host.copy("s", Copy("store", "gpu", sources, "cpu", targets, order))  # type: ignore[arg-type]
    sources[:] = 0  # the call has taken them
    host.record("s", "e")
    host.sync("e")
    expected = torch.zeros_like(cpu)
    for source, target in blocks:
        expected[:, target] = gpu[:, source]
    assert torch.equal(cpu, expected)


# ── the same again ────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=200, deadline=None)
@given(programs(), SEEDS, st.sampled_from(ALL))
def test_a_schedule_replays(program: list[Call], seed: int, chosen: Policy) -> None:
    first, twin = (Simulated(seed=seed, policy=chosen, observe=True) for _ in range(2))
    trace = run(program, first)
    assert run(program, twin) == trace
    assert story(first) == story(twin)
    text = str(first.schedule)
    assert str(twin.schedule) == text
    assert Schedule.parse(text) == first.schedule
    again = Simulated(seed=seed + 1, policy=LAZY, replay=text, observe=True)
    assert run(program, again) == trace
    assert story(again) == story(first)
    assert str(again.schedule) == text


@settings(max_examples=100, deadline=None)
@given(programs(), SEEDS, SEEDS, st.sampled_from(ALL))
def test_a_schedule_made_under_recorded_polls_replays(
    program: list[Call], seed: int, other: int, chosen: Policy
) -> None:
    first = Simulated(seed=seed)
    trace = run(program, first)
    second = Simulated(seed=other, policy=chosen, host=first.schedule, observe=True)
    run(program, second)
    again = Simulated(replay=str(second.schedule), observe=True)
    assert run(program, again) == trace
    assert story(again) == story(second)


LONG = [
    call
    for step in range(30)
    for call in (
        wait("s", "load"),
        kernel("s", reads=[0, 1], writes=[2], parts=3),
        record("s", f"done{step}"),
        store("t", [step % 3], "any"),
        record("t", "store"),
        load("u", [(step + 1) % 3]),
        record("u", "load"),
        query(f"done{step - 1}"),
        query("store"),
        query("load"),
    )
]


def test_the_host_choices_of_one_run_allow_many_schedules() -> None:
    first = Simulated(seed=5, observe=True)
    trace = run(LONG, first)
    answers = [poll % 2 for poll in first.schedule.polls]
    assert 5 < sum(answers) < len(answers) - 5, sum(answers)  # both answers are there
    runs = set()
    for seed in range(20):
        device = Simulated(seed=seed, host=str(first.schedule.host), observe=True)
        assert run(LONG, device) == trace
        assert breach(device.log, rules(trace)) is None
        runs.add(str(story(device)))
    assert len(runs) == 20


def test_a_schedule_is_the_same_for_ever() -> None:
    """A string from the day that the format was made. If this fails, old schedules do not replay: make a new prefix."""
    device = Simulated(replay=OLD, observe=True)
    run(LONG[:60], device)
    assert [t.op.number for t in device.log] == [int(number) for number in OLD_ORDER.split()]


def test_the_beginning_of_a_schedule_goes_on_by_policy() -> None:
    whole = Simulated(seed=3, observe=True)
    half = Simulated(seed=3, observe=True)
    run(LONG, whole)
    with pytest.raises(StopError):
        run(LONG, stopping(half))
    begun = half.schedule
    assert not begun.complete
    again = Simulated(seed=3, policy=EAGER, replay=str(begun), observe=True)
    run(LONG, again)
    ran = story(half)
    assert story(again)[: len(ran)] == ran == story(whole)[: len(ran)]
    kept = Simulated(seed=4, host=str(begun))
    run(LONG, kept)
    assert kept.schedule.polls[: len(begun.polls)] == begun.polls


class StopError(Exception):
    """The engine ended in the middle."""


def stopping(device: Simulated) -> Simulated:
    def stop(tried: Tried) -> bool:
        if tried.number == 31:
            raise StopError
        return False

    device._fail = stop
    return device


@pytest.mark.parametrize("keep", ["replay", "host"])
def test_other_calls_than_in_the_schedule_are_an_error_that_says_where(keep: str) -> None:
    first = Simulated(seed=1)
    run(LONG, first)
    old = str(first.schedule)

    def device() -> Simulated:
        return Simulated(replay=old) if keep == "replay" else Simulated(host=old)

    with pytest.raises(ScheduleError, match=r"closed after 299 calls, and the schedule has 300|call|calls"):
        run(LONG[:-1], device())
    with pytest.raises(ScheduleError, match=r"^call 300 \(record h s e\): the schedule ends after 300 calls"):
        run([*LONG, record("s")], device())
    for at in (0, 1, 57, 158, 299):
        changed = [*LONG]
        changed[at] = wait("t", "never")
        with pytest.raises(ScheduleError, match=r"^calls? (\d+)") as caught:
            run(changed, device())
        where = int(str(caught.value).split()[1])
        assert at - 16 <= where <= at + 16


@pytest.mark.parametrize("text", ["", "x", "kvsim2.AAAA", PREFIX, PREFIX + "AAAA", PREFIX + "é", PREFIX + "a b"])
def test_what_is_no_schedule_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"a schedule begins with|not a whole schedule"):
        Simulated(replay=text)


def test_a_cut_schedule_is_an_error() -> None:
    first = Simulated(seed=1)
    run(LONG, first)
    text = str(first.schedule)
    with pytest.raises(ValueError, match="not a whole schedule"):
        Simulated(replay=text[:-8])
    with pytest.raises(ValueError, match="host's choices only"):
        Simulated(replay=str(first.schedule.host))
    with pytest.raises(ValueError, match="one of replay and host"):
        Simulated(replay=text, host=text)


# ── host threads, faults, misuse ──────────────────────────────────────────────────────────────────────────────────


def threaded(device: Simulated) -> list[str]:
    """Two threads take from one queue, in turns."""
    device.memory("gpu", (1, 1), host=False)
    device.stream("s", side=False)
    got: list[str] = []

    def turn(name: str) -> bool:
        device.turns()  # no turn within a turn
        item = device.host(name).get("q")
        if item is not None:
            got.append(f"{name}{item}")
            device.host(name).launch("s", Kernel(f"job {item}", writes={"gpu": ids(0)}))
        return item is not None

    for name in ("a", "b"):
        device.thread(name, lambda name=name: turn(name))  # type: ignore[misc]
    for number in range(10):
        device.host("main").put("q", number)
        device.turns()
    while len(got) < 10:
        device.turns()
    device.close()
    return got


def test_threads_take_turns_by_seed_and_again_by_schedule() -> None:
    runs = set()
    for seed in range(10):
        device = Simulated(seed=seed)
        got = threaded(device)
        assert [int(one[1:]) for one in got] == list(range(10))  # first in, first out
        assert threaded(Simulated(seed=seed)) == got
        assert threaded(Simulated(seed=seed, policy=LAZY)) == got  # not the device's choice
        assert threaded(Simulated(seed=99, host=str(device.schedule))) == got
        assert threaded(Simulated(replay=str(device.schedule))) == got
        runs.add(str(got))
    assert len(runs) > 5


def turns(device: Simulated, times: int) -> None:
    for _ in range(times):
        device.turns()


def test_what_a_turn_raises_comes_out_of_turns() -> None:
    device = Simulated(threads=0.9)

    def turn() -> bool:
        raise DeviceError("no")

    device.thread("copier", turn)
    with pytest.raises(DeviceError, match="no"):
        turns(device, 50)
    device.close()
    device.turns()


def test_a_refused_call_issues_nothing() -> None:
    tried: list[Tried] = []

    def fail(call: Tried) -> bool:
        tried.append(call)
        return call.name == "load" and call.number < 2

    device = Simulated(fail=fail, observe=True)
    gpu, cpu = (device.memory(pool, (1, 2), host=False) for pool in ("gpu", "cpu"))
    cpu.fill_(5)
    device.stream("t", side=True)
    host = device.host("main")
    copy = Copy("load", "cpu", ids(1), "gpu", ids(0), step=4)
    for _ in range(2):
        with pytest.raises(DeviceError, match="refused the copy load on t"):
            host.copy("t", copy)
    host.record("t", "e")
    assert host.query("e")
    assert gpu.sum() == 0
    host.copy("t", copy)
    host.record("t", "e")
    host.sync("e")
    assert gpu.flatten().tolist() == [5, 0]
    assert [(call.number, call.kind, call.by, call.on, call.step) for call in tried] == [
        (number, "copy", "main", "t", 4) for number in range(3)
    ]
    assert [(op.number, op.name, op.by, op.on, op.step) for op in device.ops] == [(0, "load", "main", "t", 4)]


def test_what_a_part_raises_comes_out_of_a_call_and_the_stream_goes_on() -> None:
    def broken() -> None:
        raise RuntimeError("a bug in a kernel")

    device = Simulated(policy=LAZY)
    gpu = device.memory("gpu", (1, 1), host=False)
    device.stream("s", side=False)
    host = device.host("main")
    host.launch("s", Kernel("bad", parts=[broken]))
    host.launch("s", Kernel("good", parts=[lambda: gpu.fill_(3)]))
    host.record("s", "e")
    with pytest.raises(RuntimeError, match="a bug in a kernel"):
        host.sync("e")
    host.sync("e")
    assert gpu.item() == 3


def test_an_event_never_recorded_or_dropped_is_complete() -> None:
    device = Simulated(policy=LAZY)
    device.memory("gpu", (1, 1), host=False)
    device.stream("s", side=False)
    host = device.host("main")
    assert host.query("e")
    host.sync("e")
    host.launch("s", Kernel("work"))
    host.record("s", "e")
    assert not host.query("e")
    host.drop("e")
    assert host.query("e")
    host.sync("e")
    device.close()


def test_misuse_is_an_error_that_says_what_is_there() -> None:
    device = Simulated()
    device.memory("gpu", (2, 4, 3), host=False)
    device.memory("cpu", (1, 4, 3), host=True)
    device.stream("s", side=False)
    host = device.host("main")
    with pytest.raises(ValueError, match="no stream 'x'; there are s"):
        host.record("x", "e")
    with pytest.raises(ValueError, match="no pool 'disk'; there are gpu, cpu"):
        host.copy("s", Copy("store", "gpu", ids(0), "disk", ids(0)))
    with pytest.raises(ValueError, match="pool gpu has blocks 0 to 3, not all of"):
        host.copy("s", Copy("move", "gpu", ids(0), "gpu", ids(4)))
    with pytest.raises(ValueError, match="do not go to"):
        host.copy("s", Copy("store", "gpu", ids(0), "cpu", ids(0)))
    device.memory("flat", (4,), host=False)
    with pytest.raises(ValueError, match="no pool 'flat'; there are gpu, cpu"):
        host.copy("s", Copy("store", "flat", ids(0), "cpu", ids(0)))
    device.close()
    device.close()
    with pytest.raises(ValueError, match="on a closed device"):
        host.record("s", "e")
    with pytest.raises(ValueError, match="threads is a chance"):
        Simulated(threads=0)


def test_the_machine_is_a_device_and_loads_nothing_of_the_checker() -> None:
    device: Device = Simulated()
    assert device.name == "simulated, seed 0, fair"
    code = (
        "import sys, kvsan.runtime.device.simulated\n"
        "print([m for m in sys.modules if m.startswith(('kvsan.checker', 'networkx', 'z3'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


OLD = "kvsim1.eNqzYVZhYGJkZGRmYACSDMxAFiOIxcjIxMAM5DGyAqUYmYWYOFjYBVAQA8tcRsUnjLsZATjZA6A"
OLD_ORDER = (
    "0 0 0 0 1 1 2 2 2 2 3 3 4 4 5 5 6 6 6 6 7 7 8 8 9 9 10 10 11 11 "
    "12 12 12 12 12 12 13 13 14 14 15 15 16 16 17 17 17 17 "
)
