"""`Queue` between vLLM's threads, in C and in Python: what is put comes out as it was, and carries who knew what."""

from __future__ import annotations

import gc
import itertools
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from attach.hurried import hurried
from attach.native_programs import PythonQueue, Sink
from attach.stand_ins import Log
from attach.vllm.fake import in_thread
from kvsan.checker.attach import native
from kvsan.checker.attach.recorder import KvsanHazard, Recorder
from kvsan.checker.attach.vllm.handoff import Plan, Queue, Stamped
from kvsan.model.ops import Get, Put

HOT = native.HOT
in_c = pytest.mark.skipif(HOT is None, reason="the C hooks are not built (make native), or KVSAN_NATIVE=0")


class Setup:
    """A queue, its recorder, and what that saw."""

    def __init__(self, kind: type[Queue], inner: Any = None) -> None:
        self.log = Sink()
        self.recorder = Recorder([self.log], clock=itertools.count(1).__next__)
        self.plan = Plan()
        self.inner: Any = queue.SimpleQueue() if inner is None else inner
        self.put, self.get = (self.recorder.ledger.hook(name) for name in ("put", "get"))
        self.queue: Any = kind(self.recorder, self.inner, self.plan, self.put, self.get)

    @property
    def kinds(self) -> list[str]:
        return [type(op).__name__.lower() for op in self.log.ops]


@pytest.fixture(params=[Queue, PythonQueue])
def made(request: pytest.FixtureRequest) -> Setup:
    return Setup(request.param)


class Odd:
    """An item of which nobody may ask anything."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    def __bool__(self) -> bool:
        raise AssertionError

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    __hash__ = None  # type: ignore[assignment]


ITEMS: tuple[Any, ...] = (0, "", (), (1, 2, None), [None], Odd(), KeyError("an error"), Queue, False, float("nan"))


@pytest.mark.parametrize("at", range(len(ITEMS)))
def test_an_item_comes_out_as_it_went_in(made: Setup, at: int) -> None:
    item = ITEMS[at]
    said = made.queue.put(item)
    assert said is None
    assert made.queue.qsize() == 1
    assert made.queue.get() is item
    assert made.kinds == ["put", "get"]
    put, get = made.log.ops
    assert isinstance(put, Put)
    assert isinstance(get, Get)
    assert put.token == get.token
    assert (made.put.count, made.get.count) == (1, 1)


def test_an_item_may_be_stamped_itself(made: Setup) -> None:
    """One queue's items in another, as `Stamped` has them."""
    inside = Stamped("t", None, "item", 0)
    made.queue.put(inside)
    assert made.queue.get() is inside
    assert made.kinds == ["put", "get"]


def test_each_item_has_its_own_token_and_its_order(made: Setup) -> None:
    for number in range(5):
        made.queue.put(number)
    assert [made.queue.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    tokens = [op.token for op in made.log.ops if isinstance(op, Put | Get)]
    assert tokens[:5] == tokens[5:]
    assert len(set(tokens)) == 5


def test_the_word_to_stop_is_no_job(made: Setup) -> None:
    made.queue.put("job")
    made.queue.get()
    plans = [made.plan.planned]
    made.queue.put(None)
    assert made.inner.qsize() == 1
    assert made.queue.get() is None
    assert [*plans, made.plan.planned] == [0, None]
    assert made.kinds == ["put", "get"]
    assert (made.put.count, made.get.count) == (1, 1)


def test_a_job_of_another_session_is_nobody_s(made: Setup) -> None:
    """A forked child takes what its parent has put, say: the op at which that was decided is none of its log."""
    for _ in range(3):
        made.queue.put("before")
    made.queue.get()
    plans = [made.plan.planned]
    made.recorder.listen([made.log])
    made.log.ops.clear()
    assert [made.queue.get(), made.queue.get()] == ["before", "before"]
    plans.append(made.plan.planned)
    made.queue.put("after")
    assert made.queue.get() == "after"
    assert [plan is None for plan in (*plans, made.plan.planned)] == [False, True, False]
    assert made.kinds == ["put", "get"]
    assert made.recorder.ledger.edges == 2
    assert dict(made.recorder.ledger.words) == {"a job that was put before this session began": 2}


def test_who_is_off_puts_items_as_they_are(made: Setup) -> None:
    made.recorder.on = False
    made.queue.put("item")
    assert made.inner.get() == "item"
    made.queue.put("item")
    made.recorder.on = True
    assert made.queue.get() == "item"
    assert not made.kinds


def test_off_meanwhile(made: Setup) -> None:
    made.queue.put("item")
    made.recorder.on = False
    assert made.queue.get() == "item"
    assert made.kinds == ["put"]


@pytest.mark.parametrize("turns", range(4))
def test_the_job_of_each_thread(made: Setup, turns: int) -> None:
    """A plan is the thread's that took the job; one that took none has none."""
    plans: list[int | None] = []
    for number in range(3):
        made.queue.put(number)
    made.queue.get()
    in_thread(lambda: plans.append(made.plan.planned))
    in_thread(lambda: plans.extend([made.queue.get() and made.plan.planned, made.plan.planned]))
    assert plans == [None, 1, 1]
    assert made.plan.planned == 0
    for _ in range(turns):
        in_thread(lambda: plans.append(made.plan.planned))
    assert plans[3:] == [None] * turns


def test_two_plans_in_one_thread() -> None:
    one, other = Setup(Queue), Setup(PythonQueue)
    one.recorder.mark()
    for number in range(4):
        one.queue.put(number)
    other.queue.put("other")
    other.queue.get()
    for number in range(4):
        one.queue.get()
        assert (one.plan.planned, other.plan.planned) == (number, 0)
    one.queue.put(None)
    one.queue.get()
    assert (one.plan.planned, other.plan.planned) == (None, 0)


def test_a_plan_ends_with_no_other() -> None:
    """A new one has nothing of one that has ended."""
    stays = Plan()
    stays.planned = 7
    for number in range(50):
        plan = Plan()
        assert plan.planned is None
        plan.planned = number
        assert plan.planned == number
        del plan
    assert stays.planned == 7
    stays.planned = None
    assert stays.planned is None


def test_what_an_inner_queue_refuses(made: Setup) -> None:
    made = Setup(type(made.queue), queue.Queue(1))
    assert made.queue.maxsize == 1
    made.queue.put("first", True, 1)
    puts: tuple[Callable[[], Any], ...] = (
        lambda: made.queue.put("more", False),
        lambda: made.queue.put("more", block=False),
        lambda: made.queue.put(item="more", timeout=0.001),
        lambda: made.queue.put_nowait("more"),
    )
    for put in puts:
        with pytest.raises(queue.Full):
            put()
    assert made.queue.get(True, timeout=1) == "first"
    made.queue.task_done()
    gets: tuple[Callable[[], Any], ...] = (
        lambda: made.queue.get(False),
        lambda: made.queue.get(timeout=0.001),
        made.queue.get_nowait,
    )
    for get in gets:
        with pytest.raises(queue.Empty):
            get()
    wrongs: tuple[Callable[[], Any], ...] = (
        made.queue.put,
        lambda: made.queue.put(1, 2, 3, 4),
        lambda: made.queue.put(1, nothing=2),
        lambda: made.queue.put(1, item=2),
        lambda: made.queue.get(1, 2, 3),
        lambda: made.queue.get(nothing=2),
    )
    for wrong in wrongs:
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(AttributeError, match="nothing"):
        _ = made.queue.nothing
    made.queue.put("still")
    assert made.queue.get() == "still"
    assert made.recorder.fault_text is None


def test_what_an_inner_queue_raises(made: Setup) -> None:
    class Fails:
        error: BaseException = ValueError("theirs")

        def put(self, *args: Any) -> None:
            raise self.error

        get = put

    failing = Setup(type(made.queue), Fails())
    for error in (ValueError("theirs"), KeyboardInterrupt()):
        Fails.error = error
        for call in (lambda: failing.queue.put(1), failing.queue.get):
            with pytest.raises(type(error)):
                call()
    assert failing.recorder.fault_text is None
    assert failing.recorder.on


# ── what kvsan itself does wrong ──────────────────────────────────────────────────────────────────────────────────────


def test_a_fault_in_put_leaves_the_item(made: Setup) -> None:
    made.log.raises = ValueError("a sink")
    made.queue.put("item")
    assert not made.recorder.on
    assert made.queue.get() == "item"
    made.queue.put("more")
    assert made.inner.get() == "more"


def test_a_fault_in_get_gives_the_item(made: Setup) -> None:
    made.queue.put("item")
    made.log.raises = ValueError("a sink")
    assert made.queue.get() == "item"
    assert not made.recorder.on
    assert made.recorder.fault_text is not None


def test_a_hazard_is_the_engine_s(made: Setup) -> None:
    made.log.raises = KvsanHazard(None, "hazard")  # type: ignore[arg-type]
    with pytest.raises(KvsanHazard):
        made.queue.put("item")
    assert made.inner.empty()
    made.queue.put("item")
    made.log.raises = KvsanHazard(None, "hazard")  # type: ignore[arg-type]
    with pytest.raises(KvsanHazard):
        made.queue.get()
    assert made.inner.empty()
    assert made.recorder.on


@pytest.mark.parametrize("name", ["thread_name", "prefix"])
def test_a_recorder_that_lacks_something(made: Setup, name: str) -> None:
    """Named, and the item goes its way."""
    recorder: Any = made.recorder
    if name == "prefix":
        del recorder.prefix
    else:
        recorder.thread_name = None
    in_thread(lambda: made.queue.put("item"))
    assert made.queue.get() == "item"
    assert recorder.fault_text is not None
    assert not recorder.on


# ── threads, signals, forks ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_getter_waits_and_others_run(made: Setup) -> None:
    got: list[Any] = []
    getter = threading.Thread(target=lambda: got.extend(iter(made.queue.get, None)))
    getter.start()
    for number in range(20):
        made.queue.put([number])
        time.sleep(0.0005)
    made.queue.put(None)
    getter.join(10)
    assert got == [[number] for number in range(20)]
    puts, gets = ([op.token for op in made.log.ops if isinstance(op, one)] for one in (Put, Get))
    assert puts == gets


def test_many_threads(made: Setup) -> None:
    got: list[Any] = []

    def put() -> None:
        for number in range(200):
            made.queue.put(number)

    def get() -> None:
        for _ in range(200):
            got.append(made.queue.get())
            assert made.plan.planned is not None

    hurried([put, get, put, get])
    assert sorted(got) == sorted([*range(200), *range(200)])
    puts, gets = ([op.token for op in made.log.ops if isinstance(op, one)] for one in (Put, Get))
    assert sorted(puts) == sorted(gets)
    assert len(set(puts)) == 400


def test_a_queue_inside_another_s_put(made: Setup) -> None:
    class Asks(queue.Queue[Any]):
        """Puts something itself."""

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            if left:
                left.pop()
                made.queue.put("inside")
                asks.queue.put("again")
            super().put(item)

    left, asks = [1, 2, 3], Setup(type(made.queue), Asks())
    asks.queue.put("outside")
    assert [asks.queue.get() for _ in range(asks.inner.qsize())][-1] == "outside"
    assert made.queue.get() == "inside"


def test_a_signal_ends_the_wait(made: Setup) -> None:
    def stop(number: int, frame: Any) -> None:
        raise InterruptedError("a signal")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(InterruptedError, match="a signal"):
            made.queue.get()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    made.queue.put("item")
    assert made.queue.get() == "item"
    assert made.kinds == ["put", "get"]


def test_a_forked_child_has_tokens_of_its_own(made: Setup) -> None:
    made.queue.put("before")
    made.queue.get()
    child = os.fork()
    if not child:
        code = 1
        try:
            log = Log()
            made.recorder.listen([log])
            assert made.plan.planned == 0
            made.queue.put("item")
            assert made.queue.get() == "item"
            tokens = {op.token for op in log.ops if isinstance(op, Put | Get)}
            code = 0 if len(tokens) == 1 and tokens.pop().endswith(f".{os.getpid()}") else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ── pauses, and what is let go ────────────────────────────────────────────────────────────────────────────────────────


def test_in_a_pause_put_is_the_inner_queue_s(made: Setup) -> None:
    made.queue.put("before")
    made.queue.pause()
    assert made.queue.put.__self__ is made.inner
    made.queue.pause()
    made.queue.put("meanwhile")
    made.queue.put_nowait("meanwhile")
    made.queue.resume()
    made.queue.resume()
    made.queue.put("after")
    assert [made.queue.get() for _ in range(4)] == ["before", "meanwhile", "meanwhile", "after"]
    assert made.kinds == ["put", "put", "get", "get"]
    assert made.plan.planned == 1


@pytest.mark.parametrize("inside", [False, True])
def test_what_waits_ends_with_the_queue(inside: bool) -> None:
    """Even if the queue is in it."""
    for kind in (Queue, PythonQueue):
        made = Setup(kind)
        item = Log()
        made.queue.put([item, made.queue if inside else None])
        ends, queued = weakref.ref(item), weakref.ref(made.queue)
        del made, item
        gc.collect()
        assert (ends(), queued()) == (None, None)


def test_nothing_is_kept(made: Setup) -> None:
    made.recorder._sinks = made.recorder._hearers = ()
    marker = object()

    def turns(count: int) -> None:
        for number in range(count):
            for item in (marker, number, None, (marker,)):
                made.queue.put(item)
                made.queue.get()
            made.queue.put(item=marker)
            made.queue.pause()
            made.queue.put(marker)
            made.queue.resume()
            assert made.queue.get() is made.queue.get()
            for call in (lambda: made.queue.get(False), made.queue.put, lambda: made.queue.nothing):
                with pytest.raises((queue.Empty, TypeError, AttributeError)):
                    call()
        made.recorder.settle_up()
        gc.collect()

    turns(50)
    counted: tuple[Callable[[], int], ...] = (
        lambda: sys.getrefcount(marker),
        lambda: sys.getrefcount(made.recorder),
        lambda: sys.getrefcount(made.plan),
        lambda: sys.getrefcount(made.put),
    )
    before, blocks = [each() for each in counted], sys.getallocatedblocks()
    turns(300)
    assert [each() for each in counted] == before
    assert sys.getallocatedblocks() - blocks < 100


# ── the types in C ────────────────────────────────────────────────────────────────────────────────────────────────────


@in_c
def test_the_methods_are_c_s_and_python_s() -> None:
    for name in ("put", "get"):
        assert type(vars(Queue)[name]).__name__ == "method_descriptor"
        assert type(vars(PythonQueue)[name]).__name__ == "function"


@in_c
def test_what_is_put_in_one_language_is_taken_in_the_other() -> None:
    """`put` in C leaves what is not usual to Python."""
    made = Setup(Queue)
    made.queue._put("python")
    made.queue.put("c")
    assert (made.queue.get(), made.plan.planned) == ("python", 0)
    assert (made.queue._get(), made.plan.planned) == ("c", 1)
    assert made.kinds == ["put", "put", "get", "get"]


@in_c
def test_types_that_are_given_something_else() -> None:
    made = Setup(Queue)
    usual: list[Any] = [made.recorder, made.inner, made.plan, made.put, made.get]
    for at, wrong in itertools.product(range(5), (None, 5, object())):
        with pytest.raises((TypeError, AttributeError)):
            Queue(*[*usual[:at], wrong, *usual[at + 1 :]])
    for few in range(5):
        with pytest.raises(TypeError):
            Queue(*usual[:few])
    for name in ("_recorder", "_inner", "_plan", "_put_hook", "_get_hook"):
        with pytest.raises(AttributeError):
            setattr(made.queue, name, None)
    for planned in (-1, "x", 1 << 70, (1 << 63) - 1):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            made.plan.planned = planned  # type: ignore[assignment]
        with pytest.raises((ValueError, TypeError, OverflowError)):
            Stamped("t", planned, None, 0)  # type: ignore[arg-type]
    stamped = Stamped("t", 5, made, 0)
    assert (stamped.token, stamped.planned, stamped.item) == ("t", 5, made)
    assert Stamped("t", None, None, 0).planned is None
    with pytest.raises(TypeError):
        HOT.Queue.put(5, 1)
