"""The recorder: names, ids, the order of lines, and what a fault in it does."""

from __future__ import annotations

import copy
import gc
import pickle
import queue
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attach.stand_ins import Log
from kvsan.checker.attach.handoff import HandingList, HandingQueue
from kvsan.checker.attach.recorder import KvsanHazard, Recorder
from kvsan.checker.attach.torch.surface import stand_in
from kvsan.checker.index import IdBlocks, blocks_of, ids, index
from kvsan.checker.online import Online
from kvsan.model.ops import Access, Blocks, Get, Op, Put


class Event:
    """Something that can be an event."""


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def recorder(log: Log) -> Recorder:
    made = Recorder([log])
    made.pool("gpu", 100)
    return made


# ── ids ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (np.array([3, 4, 9]), "3-4,9"),
        (np.array([[7, 1], [2, 1]], np.int32), "1-2,7"),
        ([5, 5, 5], "5"),
        (range(2, 6), "2-5"),
        ({8}, "8"),
        (Blocks(((1, 3),)), "1-2"),
        ((i for i in (1, 2)), "1-2"),
    ],
)
def test_ids_come_in_any_shape(given: Any, shown: str) -> None:
    assert str(blocks_of(given, 10)) == shown


@pytest.mark.parametrize("given", [[], np.array([], np.int64), range(0), Blocks(())])
def test_no_ids_are_no_blocks(given: Any) -> None:
    assert blocks_of(given, 10) is None


OUTSIDE = [[10], [-1], [3, 10], np.array([3, -1]), range(8, 11), Blocks(((9, 11),)), np.arange(99), np.full(99, -1)]


@pytest.mark.parametrize("given", OUTSIDE)
@pytest.mark.parametrize("owned", [False, True])
def test_ids_outside_the_pool_are_refused(given: Any, owned: bool) -> None:
    with pytest.raises(ValueError, match="of a pool of 10 blocks"):
        blocks_of(given, 10, owned=owned)


@pytest.mark.parametrize("count", [5, 99])
def test_ids_that_repeat_are_found_in_a_batch(count: int) -> None:
    some = np.arange(count)[::-1]
    for given, repeats in ((some, False), (np.append(some, 3), True)):
        blocks = blocks_of(given, 100, repeats=True, owned=True)
        assert blocks is not None
        assert blocks.repeats is repeats


def test_a_batch_keeps_its_order_and_repeats() -> None:
    blocks = blocks_of(np.array([4, 3, 4]), 10, repeats=True)
    assert blocks is not None
    assert str(blocks) == "4,3-4"
    assert blocks.repeats


def test_an_array_is_copied_and_looked_up_as_it_is() -> None:
    given = np.array([1, 5])
    blocks = blocks_of(given, 10)
    given[:] = 0
    assert blocks == Blocks(((1, 2), (5, 6)))
    assert isinstance(blocks, IdBlocks)
    assert hash(blocks) == hash(blocks_of([1, 5], 10))
    assert index(blocks)[0] is blocks.ids is ids(blocks)


def test_repeats_change_no_verdict() -> None:
    """A forward names a shared prefix once for each request."""
    twice, once = blocks_of([3, 3, 4], 8), Blocks(((3, 5),))
    assert twice is not None
    for blocks in (twice, once):
        online = Online({"gpu": 8})
        online.feed(0, Access("h0", "a", {"gpu": blocks}))
        found = online.feed(1, Access("h0", "b", writes={"gpu": once}))
        assert [(str(h.blocks), h.kind.value) for h in found] == [("3-4", "WAR")]


# ── names and lines ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_access_without_blocks_is_no_line(recorder: Recorder, log: Log) -> None:
    assert recorder.access("x", reads={"gpu": []}) is None
    assert log.ops == []
    assert recorder.mark() is None
    assert recorder.access("x", reads={"gpu": [1]}) == 0
    assert recorder.mark() == 0


def test_an_event_ends_with_its_object_and_order_stays_sound(recorder: Recorder, log: Log) -> None:
    event = Event()
    recorder.record("s", event)
    del event
    gc.collect()
    recorder.put("t")
    assert log.shown() == ["record s e1", "drop e1", "put t"]


@pytest.mark.parametrize("kind", ["with attributes", "without", "torch.Event", "its stand-in", "torch.cuda.Event"])
def test_an_event_s_name_ends_with_it(recorder: Recorder, log: Log, kind: str) -> None:
    """`torch.cuda.Event` of torch 2.10 to 2.12 never clears its weak references: it must have none of ours."""

    class Bare:
        __slots__ = ("__weakref__",)

    make: Callable[[], Any] = {"with attributes": Event, "without": Bare}.get(kind, Event)
    if "torch" in kind or kind == "its stand-in":
        torch = pytest.importorskip("torch")
        make = lambda: torch.Event("cpu")  # noqa: E731
        if kind == "its stand-in":
            made = stand_in(torch.Event, "Event")
            make = lambda: made("cpu")  # noqa: E731
        if kind == "torch.cuda.Event":
            make = torch.cuda.Event if torch.cuda.is_available() else type("Event", (), {})  # a class of Python's
    first = make()
    recorder.record("s", first)
    assert recorder.event(first) == recorder.event(first) == "e1"
    bare = kind in ("without", "torch.Event")
    assert weakref.getweakrefcount(first) == int(bare)
    second = make()
    assert recorder.event(second) == "e2"
    del first
    gc.collect()
    recorder.put("t")
    assert log.shown()[-2:] == ["drop e1", "put t"]
    recorder.record("s", second)
    assert log.shown()[-1] == "record s e2"  # and nothing of the one that lives


def test_a_copy_of_an_event_is_another(recorder: Recorder, log: Log) -> None:
    first = Event()
    recorder.record("s", first)
    for other in (copy.copy(first), copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert recorder.event(other) != "e1"
        del other
    assert recorder.event(first) == "e1"
    recorder.put("t")
    assert "drop e1" not in log.shown()


def test_two_recorders_name_an_event_apart(recorder: Recorder) -> None:
    event, other = Event(), Recorder([Log()], prefix="b.")
    assert (recorder.event(event), other.event(event)) == ("e1", "b.e1")
    assert (recorder.event(event), other.event(event)) == ("e1", "b.e1")


def test_events_that_have_no_weak_references_are_held(recorder: Recorder) -> None:
    event: Any = (1, 2)
    with pytest.raises(TypeError):
        weakref.ref(event)
    assert recorder.event(event) == recorder.event(event) != recorder.event((2, 3))


def test_a_pool_again_is_harmless_and_with_another_size_a_fault(recorder: Recorder, log: Log) -> None:
    recorder.pool("gpu", 100)
    assert recorder.fault_text is None
    recorder.pool("gpu", 101)
    assert not recorder.on
    assert log.pools == {"gpu": 100}


def test_a_fault_turns_it_off_for_good(recorder: Recorder, log: Log) -> None:
    recorder.access("x", reads={"none": [1]})
    assert recorder.fault_text is not None
    assert "KeyError in access" in recorder.fault_text
    recorder.access("x", reads={"gpu": [1]})
    recorder.record("s", Event())
    with recorder.blocking(stream="s"):
        pass
    assert log.ops == []


@pytest.mark.parametrize("error", [ValueError, KeyError, AssertionError, RecursionError])
def test_a_fault_in_a_hook_goes_no_further(recorder: Recorder, error: type[Exception]) -> None:
    with recorder.guard("my hook"):
        raise error("boom")
    assert not recorder.on
    assert "my hook" in str(recorder.fault_text)


def test_an_interrupt_is_not_swallowed(recorder: Recorder) -> None:
    with pytest.raises(KeyboardInterrupt), recorder.guard("hook"):
        raise KeyboardInterrupt
    assert recorder.on


def test_eight_threads_lose_no_line() -> None:
    """Every op of every thread, in the order of that thread, numbered without gaps; `Log.take` checks the numbers."""
    log = Log()
    recorder = Recorder([log])
    recorder.pool("gpu", 64)
    each = 2_000
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        dice = random.Random(seed)
        stream = recorder.stream(0, 100 + seed)
        start.wait()
        for number in range(each):
            match dice.randrange(4):
                case 0:
                    recorder.access("x", on=stream, reads={"gpu": [number % 64]}, step=number)
                case 1:
                    recorder.record(stream, Event())
                case 2:
                    with recorder.blocking(stream=stream):
                        pass
                case _:
                    recorder.poll("e", done=False)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.fault_text is None
    lines = [op for op in log.ops if type(op).__name__ != "Drop"]
    assert len(lines) == 8 * each
    assert log.held == []
    for name in {op.by for op in lines}:
        steps = [op.step for op in lines if isinstance(op, Access) and op.by == name]
        assert steps == sorted(steps, key=lambda step: int(str(step)))


# ── hand-offs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [queue.Queue, queue.SimpleQueue])
def test_a_queue_hands_over(recorder: Recorder, log: Log, kind: Any) -> None:
    inner = kind()
    inner.put("old")
    handing = HandingQueue(inner, recorder)
    handing.put("new")
    assert [handing.get(), handing.get_nowait()] == ["old", "new"]
    assert handing.empty()
    assert [type(op) for op in log.ops] == [Put, Get]


def test_a_completion_list_hands_over_to_who_looks(recorder: Recorder, log: Log) -> None:
    done = HandingList(recorder)
    done.append("a")
    done.extend(["b"])
    puts = [op.token for op in log.ops if isinstance(op, Put)]
    assert len(set(puts)) == len(log.ops) == 2
    assert list(done) == ["a", "b"]
    assert done.pop() == "b"
    assert [op.token for op in log.ops[2:] if isinstance(op, Get)] == puts


def test_whoever_looks_takes_what_it_saw_and_no_more(recorder: Recorder, log: Log) -> None:
    done = HandingList(recorder, ["old"])
    same = object()
    done += [same, same, "c", "d"]
    puts = [op.token for op in log.ops if isinstance(op, Put)]
    assert len(puts) == 4

    def taken(look: Callable[[], object]) -> list[int]:
        before = len(log.ops)
        look()
        return [puts.index(op.token) for op in log.ops[before:] if isinstance(op, Get)]

    assert taken(lambda: done[0]) == []
    assert taken(lambda: len(done)) == []
    assert taken(lambda: done[2]) == [1]
    assert taken(lambda: done[2]) == []
    assert taken(lambda: next(iter(done))) == []
    assert taken(lambda: done.pop(3)) == [2]
    assert taken(done.reverse) == []
    assert taken(lambda: done[:2]) == [3]
    assert taken(lambda: list(done)) == [0]
    with pytest.raises(IndexError):
        done[9]
    assert recorder.fault_text is None


def test_a_list_changed_behind_its_methods_is_an_unseen_edge(recorder: Recorder, log: Log) -> None:
    done = HandingList(recorder)
    done.append(1)
    list.append(done, 2)
    assert list(done) == [1, 2]
    assert recorder.ledger.edges == 1
    assert not any(isinstance(op, Get) for op in log.ops)
    done.append(3)
    assert done[2] == 3
    assert sum(isinstance(op, Get) for op in log.ops) == 1


def test_many_threads_at_one_list_raise_nothing(recorder: Recorder, log: Log) -> None:
    done = HandingList(recorder)
    errors: list[BaseException] = []
    got: list[int] = []

    def look() -> None:
        while len(got) < 2000:
            try:
                got.append(done.pop(0))
            except IndexError:
                pass
            except BaseException as error:
                errors.append(error)
                return

    def give() -> None:
        for number in range(1000):
            done.append(number)

    threads = [threading.Thread(target=work) for work in (look, look, give, give)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert recorder.fault_text is None
    assert sum(isinstance(op, Get) for op in log.ops) == sum(isinstance(op, Put) for op in log.ops) == 2000


def test_the_ledger_says_what_is_missing(recorder: Recorder) -> None:
    ledger = recorder.ledger
    copy = ledger.hook("engine.copy", version="1.2")
    ledger.hook("engine.load")
    ledger.hook("engine.odd", expected=False).missing()
    ledger.hook("other.thing").missing("no such module")
    assert len(list(ledger.missing())) == 1  # nothing fired: whatever has no target is said
    copy.fired()
    assert ledger.expects().hooks == {"engine.copy": 1, "engine.load": 1}
    assert list(ledger.missing()) == []  # of an engine that was not run nothing is promised
    ledger.hook("engine.store", version="1.2").missing()
    assert list(ledger.missing()) == ["hook engine.store has no target (version 1.2): target not found"]


class _Halting(Log):
    """Raises a hazard at each op."""

    def take(self, index: int, op: Op) -> None:
        super().take(index, op)
        raise KvsanHazard(None, "a hazard")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [
        lambda recorder: recorder.record("s", "e"),
        lambda recorder: recorder.wait_stream("s", "t"),
        lambda recorder: recorder.poll("e", True),
        lambda recorder: recorder.seen_done(event="e"),
        lambda recorder: recorder.put("token"),
        lambda recorder: recorder.free("gpu", [1]),
    ],
)
def test_a_hazard_reaches_the_engine_wherever_it_is_raised(call: Any) -> None:
    recorder = Recorder([_Halting()])
    recorder.pool("gpu", 4)
    with pytest.raises(KvsanHazard, match="a hazard"):
        call(recorder)
    assert recorder.on
    assert recorder.fault_text is None
