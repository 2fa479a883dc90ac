"""The hooks in C against the same hooks in Python: random programs of an engine, run once with each, leave the same
lines, the same counts, the same faults and the same answers; and what C holds on to is let go.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import gc
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attach.hurried import hurried
from attach.native_programs import PROGRAMS, STEPS, Machine, Odd, Run, played, untimed
from attach.native_programs import program as long_program
from attach.vllm import fake
from kvsan.checker.attach import native
from kvsan.checker.attach.lines import ALLOC, FREE, TOUCH
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.vllm import pools as marks
from kvsan.checker.attach.vllm.handoff import Plan
from kvsan.checker.attach.vllm.simple import Copies, _order_in_memory
from kvsan.runtime.lines import Lock

HOT = native.HOT
pytestmark = pytest.mark.skipif(HOT is None, reason="the C hooks are not built (make native), or KVSAN_NATIVE=0")
TESTS = Path(__file__).resolve().parent.parent


def test_hooks_are_c_s_and_python_s() -> None:
    """The comparison below compares what it says."""
    for language, kind in (("python", "function"), ("c", "Hook")):
        with Run(language, 1) as run:
            hooked: Any = (run.world.Event.record, run.world.Stream.wait_stream, fake.BlockPool.touch)
            hooked += (fake.OlderRunner._model_forward, fake.NewerRunner.execute_model, fake.Scheduler.schedule)
            assert {type(each).__name__ for each in hooked} == {kind}


@pytest.mark.parametrize("numbers", [(5,), (5, -5, 1 << 40), (5, 1 << 70, 6), (True,), ("x",), (*range(300),), (None,)])
def test_blocks_whose_attributes_lie_in_their_own_memory(numbers: tuple[Any, ...]) -> None:
    """Of usual values and of others, in each order: which are free, and their ids."""
    said: list[Any] = []
    for language in ("python", "c"):
        with Run(language, 512, beside=True, counted=False) as run:
            pool, lines = Machine(run).pool, run.beside.arrived if run.beside is not None else []
            for count in (0, 1, 1 << 70, -1, 0.0, False, True):
                for null in (False, True, 0, 1):
                    blocks: list[Any] = [fake.Block(number) for number in numbers]
                    for block in blocks:
                        block.ref_cnt, block.is_null = count, null
                    pool.unused = list(blocks)
                    pool.touch(blocks)
                    pool.free_blocks(iter(blocks))
                    pool.unused = list(blocks)
                    pool.get_new_blocks(len(blocks))
            run.recorder.settle_up()
            assert run.recorder.fault_text is None
            said.append([line[:4] for line in lines])
    assert said[0] == said[1]
    assert {line[0] for line in said[0]} == {ALLOC, FREE, TOUCH}


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(PROGRAMS, st.sampled_from([1, 3, 512]))
def test_c_and_python_say_the_same(program: list[tuple[str, int, int]], batch: int) -> None:
    in_python, in_c = (played(language, batch, program) for language in ("python", "c"))
    for key, value in in_python.items():
        assert in_c[key] == value, key


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(PROGRAMS, st.sampled_from([1, 2, 3, 512, None]))
def test_the_same_arrives_in_a_process_beside(program: list[tuple[str, int, int]], batch: int | None) -> None:
    """`None`: with the usual clock."""
    given: dict[str, Any] = {"beside": True, "counted": batch is not None}
    in_python, in_c = (played(language, batch or 512, program, **given) for language in ("python", "c"))
    for key, value in in_python.items():
        assert in_c[key] == value, key


@pytest.mark.parametrize("seed", range(60))
def test_the_same_arrives_of_a_long_program(seed: int) -> None:
    batch, steps = long_program(seed)
    counted = seed % 2 == 0
    batch = batch if counted else 512
    in_python, in_c = (played(language, batch, steps, beside=True, counted=counted) for language in ("python", "c"))
    for key, value in in_python.items():
        assert in_c[key] == value, key


def _copies(run: Run) -> tuple[Machine, Any, Any]:
    """Parameters of loads, and what copies with them."""
    machine = Machine(run)
    return machine, machine.backend._load_params, sys.modules["vllm.v1.simple_kv_offload.copy_backend"]


def _calls_of_log(patch: pytest.MonkeyPatch) -> list[Any]:
    """Copies that Python looks at."""
    log, calls = Copies._log, list[Any]()

    def counted(self: Copies, *given: Any) -> None:
        calls.append(given)
        log(self, *given)

    patch.setattr(Copies, "_log", counted)
    return calls


def test_the_usual_copy_is_not_python_s(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _calls_of_log(monkeypatch)
    with Run("c", 512, beside=True, counted=False) as run:
        machine, params, module = _copies(run)
        hook = run.recorder.ledger.hook("simple.copy")
        before = hook.count
        machine.queue.put("job")
        for number in range(1, 4):
            params.attrs.srcAccessOrder = number
            module.copy_blocks([1, 2, 300], [4] * number, params)
        module.copy_blocks([7], [8], machine.backend._store_params)
        module.copy_blocks([], [8], params)
        assert not calls
        assert hook.count - before == 4
        run.recorder.settle_up()
        lines = [line for line in run.beside.arrived if line[0] == 0]  # type: ignore[union-attr]
        assert [(*line[2:5], line[5], line[6], line[7], line[8]) for line in lines] == [
            *(
                ("load", {"cpu": [1, 2, 300]}, {"gpu": [4] * number}, "load", order, True, None)
                for number, order in ((1, "stream"), (2, "call"), (3, "any"))
            ),
            ("store", {"gpu": [7]}, {"cpu": [8]}, "store", "stream", True, None),
        ]
        assert run.recorder.ops == 5


@pytest.mark.parametrize("language", ["c", "python"])
def test_a_copy_is_made_once(monkeypatch: pytest.MonkeyPatch, language: str) -> None:
    """However unusual it is, and whatever kvsan fails at: none is made twice, and none is missing."""
    made: list[Any] = []
    with Run(language, 1) as run:
        _, params, module = _copies(run)
        engine: Any = run.vllm.engine
        monkeypatch.setattr(run.world, "call", lambda: made.append(1))
        odd: list[Any] = [
            *([[1], [2], other] for other in (None, 5, SimpleNamespace(), fake.build_params(3))),
            *([ids, [3], params] for ids in ((1,), range(2), [True], [1 << 70], ["x"], [None], 5, None)),
            *([[3], ids, params] for ids in ((1,), range(2), [], [1 << 70], 5, None)),
            [[1], [2], params],
        ]
        for number, given in enumerate(odd):
            run.recorder.fault_text, run.recorder.on = None, True
            run.see(module.copy_blocks, *given)
            assert len(made) == number + 1, given
        for pool in ("gpu", "gpu@1", "", "g" * 300, "gp\u00fc", None, 5, "gpu"):
            made.clear()
            run.recorder.fault_text, run.recorder.on = None, True
            engine.device_pool = pool
            run.see(lambda: module.copy_blocks([1], [2], params=params))
            run.see(module.copy_blocks, [1], [2], params)
            assert len(made) == 2, pool


@pytest.mark.parametrize("beside", [True, False])
def test_what_a_copy_fails_at_is_the_engine_s_or_a_fault(beside: bool) -> None:
    for language in ("c", "python"):
        with Run(language, 1, beside=beside, counted=False) as run:
            _, params, module = _copies(run)
            run.world.fails = RuntimeError("CUDA error")
            with pytest.raises(RuntimeError, match="CUDA error"):
                module.copy_blocks([1], [2], params)
            run.world.fails = None
            assert run.recorder.ops == 0
            module.copy_blocks([1], [2], params)
            if run.beside is not None:
                run.beside.raises = ValueError("gone")
            else:
                run.recorder._sinks[0].raises = ValueError("a sink")  # type: ignore[attr-defined]
            module.copy_blocks([1], [2], params)
            assert not run.recorder.on
            module.copy_blocks([1], [2], params)
            assert run.recorder.fault_text is not None


def test_off_while_a_copy_is_made() -> None:
    for language in ("c", "python"):
        with Run(language, 512, beside=True, counted=False) as run:
            _, params, module = _copies(run)
            run.world.then = lambda: setattr(run.recorder, "on", False)
            module.copy_blocks([1], [2], params)
            run.world.then = lambda: setattr(run.recorder, "on", True)
            assert run.recorder.ops == 0
            module.copy_blocks([1], [2], params)
            assert run.recorder.ops == 1


@pytest.mark.parametrize("size", [1, 38, 39, 200, 300])
def test_names_of_any_length(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Those that have no place in a line are Python's. Many routes, too."""
    calls, arrived = _calls_of_log(monkeypatch), []
    for language in ("c", "python"):
        with Run(language, 512, beside=True, counted=False) as run:
            calls.clear()
            _, params, module = _copies(run)
            copies = module.queue._copies
            run.vllm.engine.device_pool = "gpu" + "@" * size
            for _ in range(2):
                module.copy_blocks([1], [2], params)
            assert len(calls) == (2 if language == "python" or size > 30 else 1)
            for number in range(12):
                other = fake.build_params(3)
                copies._know(other, "load", "s" * size)
                module.copy_blocks([number], [2], other)
                copies._know(other, "store", "t")
                module.copy_blocks([number], [2], other)
            run.recorder.settle_up()
            arrived.append([line[:-1] for line in run.beside.arrived])  # type: ignore[union-attr]
    assert arrived[0] == arrived[1]
    assert len(arrived[0]) == 26


class _Fields(ctypes.Structure):
    _fields_ = (("srcAccessOrder", ctypes.c_uint),)


class _Small(ctypes.Structure):
    _fields_ = (("srcAccessOrder", ctypes.c_ubyte),)


class _Bits(ctypes.Structure):
    _fields_ = (("srcAccessOrder", ctypes.c_uint, 4),)


class _Swapped(ctypes.BigEndianStructure):
    _fields_ = (("srcAccessOrder", ctypes.c_uint),)


class _Other(_Fields):
    srcAccessOrder = 3  # noqa: N815


class _Inherits(_Fields):
    _fields_ = (("more", ctypes.c_uint),)


def test_where_the_order_is_in_memory() -> None:
    """As a number of C's in a place that stays; all else is asked for each time."""
    fields = _Fields(srcAccessOrder=3)
    address = _order_in_memory((1, fields), fields)
    assert ctypes.c_uint.from_address(address).value == 3
    fields.srcAccessOrder = 1
    assert ctypes.c_uint.from_address(address).value == 1
    for attrs in (_Small(3), _Bits(3), _Swapped(3), _Other(), _Inherits(), SimpleNamespace(), None, 5):
        assert _order_in_memory((attrs,), attrs) == 0
    for params in (SimpleNamespace(attrs=fields), [fields], (_Fields(),), (), None):
        assert _order_in_memory(params, fields) == 0


@pytest.mark.parametrize("attrs", [SimpleNamespace(), _Small(), _Bits(), _Swapped()])
def test_an_order_that_changes(attrs: Any) -> None:
    for language in ("c", "python"):
        with Run(language, 512, beside=True, counted=False) as run:
            _, _, module = _copies(run)
            params = fake.BatchMemcpyParams(2, attrs)
            module.queue._copies._know(params, "load", "load")
            for number in (1, 3, 2):
                attrs.srcAccessOrder = number
                module.copy_blocks([1], [2], params)
            attrs.srcAccessOrder = 4
            module.copy_blocks([1], [2], params)
            run.recorder.settle_up()
            assert [line[6] for line in run.beside.arrived] == ["stream", "any", "call"]  # type: ignore[union-attr]
            assert run.recorder.ledger.copies == 1


def test_routes_that_are_given_something_else() -> None:
    plan, engine, orders = Plan(), SimpleNamespace(), ("a", "b", "c")
    routes = HOT.Routes(plan, engine, orders, None)
    for wrong in ((), (None, engine, orders, None), (plan, engine, ("a", "b"), None), (plan, engine, (1, 2, 3), None)):
        with pytest.raises(TypeError):
            HOT.Routes(*wrong)
    for call in (routes.add, routes.name, lambda: routes.add(1, 2, 3, 4, 5, 6), lambda: routes.name("gpu", 5)):
        with pytest.raises(TypeError):
            call()
    recorder = Recorder([])
    for more in (None, (routes,), (None, print), [routes, print]):
        with pytest.raises(TypeError, match="copy_blocks"):
            HOT.Hook("copy_blocks", print, print, recorder, HOT.Counter(), "w", None, None, None, more)


def test_c_and_python_alone_say_the_same() -> None:
    """Two processes: names, lock, queue and lines in Python, too."""
    said = {}
    for asked in ("0", "1"):
        path = os.pathsep.join([str(TESTS), *sys.path])
        done = subprocess.run(
            [sys.executable, "-m", "attach.native_programs", "0", "40"],
            env={**os.environ, "KVSAN_NATIVE": asked, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        said[asked] = done.stdout.splitlines()
    for in_python, in_c in zip(said["0"], said["1"], strict=True):
        assert in_c == in_python


# ── what is let go ────────────────────────────────────────────────────────────────────────────────────────────────────


def _quiet(run: Run) -> None:
    """Lines go nowhere, and no run is kept of them."""
    vars(run.recorder).pop("settle_up")
    run.recorder._sinks = run.recorder._hearers = ()
    run.recorder.batch = 32


_CALLS = [name for name in STEPS if name not in ("stream_gone", "thread", "off", "inside", "end", "hazard", "list")]


def _kept(language: str, name: str) -> int:
    """How many blocks of memory more there are after 1200 calls than after 600."""
    with Run(language, 32) as run:
        machine = Machine(run)
        _quiet(run)
        events, pools = machine.events[:], (machine.pool, machine.several, machine.unmarked)

        def turns(count: int) -> int:
            for i in range(count):
                getattr(machine, f"do_{name}")(i % 101, i % 89)
                if i % 50 == 0:  # a program is not long enough to fill up on these
                    machine.events[:] = events
                    machine.taken.clear()
                    for pool in pools:
                        pool.unused = pool.blocks[1:]
                    run.saw.clear()
                    run.recorder.fault_text, run.recorder.on = None, True
            run.recorder.settle_up()
            run.saw.clear()
            gc.collect()
            return sys.getallocatedblocks()

        turns(600)
        before = turns(0)
        return turns(600) - before


@pytest.mark.parametrize("name", _CALLS)
def test_many_calls_keep_nothing(name: str) -> None:
    """More than the hooks in Python do: those of requests that go on are kept. What other tests left in this process
    comes and goes meanwhile; what calls keep is kept each time.
    """
    more: list[tuple[int, int]] = []
    while len(more) < 4 and all(in_c - in_python >= 120 for in_c, in_python in more):
        more.append((_kept("c", name), _kept("python", name)))
    in_c, in_python = more[-1]
    assert in_c - in_python < 120, f"blocks of memory more after 600 calls, in C and in Python: {more}"


def test_what_was_hooked_is_collected() -> None:
    def once() -> list[weakref.ref[Any]]:
        with Run("c", 3) as run:
            machine = Machine(run)
            for i in range(3):
                machine.do_record(i, 1)
                machine.do_step(i, 1)
                machine.do_list(i, i)
                machine.do_query(i, i)
                machine.do_queue(i, i)
                machine.do_copy(i, i)
            seen = (run.recorder, run.calls, run.world.Event, machine.queue, machine.handing, run.vllm.engine)
            return [weakref.ref(each) for each in seen]

    alive = once()
    gc.collect()
    assert [each() for each in alive] == [None] * 6


@pytest.mark.parametrize("recorder_stays", [True, False])
def test_hooks_that_are_called_while_they_are_collected(recorder_stays: bool) -> None:
    """An object whose end is no part of the collection's first round calls hooks of what is being cleared."""
    called: list[Any] = []
    stays: list[Any] = []

    def once() -> None:
        with Run("c", 3) as run:
            machine = Machine(run)
            machine.do_record(0, 1)
            _quiet(run)
            if recorder_stays:
                stays.append(run.recorder)
            gc.collect()  # what is older is cleared first
            for owner, name in (
                (run.world.Event, "record"),
                (run.world.Event, "synchronize"),
                (run.world.Stream, "wait_stream"),
                (fake.OlderRunner, "execute_model"),
                (fake.BlockPool, "touch"),
            ):
                hook = vars(owner)[name]

                class Last:
                    """No object of the collector's."""

                    __slots__ = ()
                    call: Any = hook
                    given: Any = (machine.events[0], machine.stream(1), machine.older, machine.pool)
                    rests: Any = ((), (machine.streams[0],), ([],), (SimpleNamespace(),))
                    keep: ClassVar[list[Any]] = []

                    def __del__(self) -> None:
                        for one in self.given:
                            for rest in self.rests:
                                try:
                                    type(self).call(one, *rest)
                                except Exception as error:
                                    called.append(type(error))
                                else:
                                    called.append(None)

                Last.keep.extend([Last, Last(), run.calls, hook, *([] if recorder_stays else [run.recorder])])

    for _ in range(5):
        once()
        gc.collect()
    assert called


# ── locks and threads ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_lock_is_reentrant_and_keeps_others_out() -> None:
    lock = Lock()
    said: list[Any] = []
    with lock, lock:
        assert lock.acquire(False)
        lock.release()
        fake.in_thread(lambda: said.append((lock.acquire(False), lock.acquire(timeout=0.001), lock.acquire(timeout=0))))
        fake.in_thread(lambda: said.append(_raised(lock.release)))
    assert said == [(False, False, False), RuntimeError]
    assert _raised(lock.release) is RuntimeError
    fake.in_thread(lambda: said.append(lock.acquire(timeout=1)))  # a thread that ends with it
    assert said[-1] is True
    assert not lock.acquire(False)
    for odd in (float("nan"), float("inf"), -2.0, 1e300):
        assert _raised(lambda odd=odd: lock.acquire(True, odd)) in (ValueError, OverflowError)
    assert _raised(lambda: lock.acquire(False, 1)) is ValueError


def test_a_lock_waits_as_long_as_python_s() -> None:
    lock = Lock()
    assert lock.acquire(timeout=threading.TIMEOUT_MAX)
    assert _raised(lambda: lock.acquire(timeout=threading.TIMEOUT_MAX * 2)) is OverflowError


def test_who_waits_for_a_lock_gets_it() -> None:
    """Though the one that lets it go takes it again at once; and one that gives up waiting takes it from nobody."""
    lock, got, stop = Lock(), [], threading.Event()

    def waits(number: int) -> None:
        with lock:
            got.append(number)

    def gives_up() -> None:
        while not stop.is_set():
            if lock.acquire(timeout=1e-5):
                lock.release()

    threads = [threading.Thread(target=waits, args=(number,)) for number in range(4)]
    other = threading.Thread(target=gives_up)
    with lock:
        for thread in (*threads, other):
            thread.start()
        time.sleep(0.02)
        assert got == []
    ends = time.monotonic() + 30
    while len(got) < 4 and time.monotonic() < ends:
        with lock:
            time.sleep(0)
    stop.set()
    for thread in (*threads, other):
        thread.join(30)
    assert sorted(got) == [0, 1, 2, 3]
    assert lock.acquire(False)
    lock.release()


def _raised(call: Any) -> type[BaseException] | None:
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def test_no_count_is_lost_between_threads() -> None:
    lock, total = Lock(), [0]

    def work() -> None:
        for _ in range(2000):
            with lock, lock:
                total[0] = _next(total[0])

    hurried([work] * 4)
    assert total == [8000]


def _next(number: int) -> int:
    return number + 1


def test_a_signal_s_exception_ends_the_wait_for_a_lock() -> None:
    """A hook that waits for another thread is interrupted as Python's is: the engine's call is not made."""
    with Run("c", 3) as run:
        held, leave, made = threading.Event(), threading.Event(), []

        def hold() -> None:
            with run.recorder.lock:
                held.set()
                leave.wait(30)

        def stop(number: int, frame: Any) -> None:
            raise InterruptedError("a signal")

        run.world.then = lambda: made.append(1)
        event = run.world.Event()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(30)
        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(InterruptedError, match="a signal"):
                event.record()
        finally:
            signal.signal(signal.SIGALRM, before)
            leave.set()
            thread.join()
        assert not made
        assert run.recorder.on
        event.record()
        assert made == [1]


def test_a_forked_child_has_a_lock_of_its_own() -> None:
    with Run("c", 3) as run:
        held, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with run.recorder.lock:
                held.set()
                leave.wait(30)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(30)
        child = os.fork()
        if not child:
            code = 1
            try:
                run.recorder.listen(())
                run.world.Event().record()
                code = 0 if run.recorder.ops == 1 else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        leave.set()
        thread.join()


def test_the_lock_is_changed_inside_a_call() -> None:
    """As `listen` does."""
    with Run("c", 3) as run:
        event = run.world.Event()
        for call in (event.record, event.wait, event.query, event.synchronize):
            old = run.recorder.lock
            run.world.then = lambda: run.recorder.listen(())
            call()
            run.world.then = None
            assert run.recorder.lock is not old
            fake.in_thread(lambda old=old: (old.acquire(timeout=5), old.release()))
            assert old.acquire(False)
            assert run.recorder.on
        event.record()
        assert run.recorder.ops == 1  # a blocking call that was out then is none of what is heard from then on


def test_threads_come_and_go() -> None:
    """What is of a thread ends with it, also where a call is never ended there."""
    with Run("c", 3) as run:
        seen: list[Any] = []
        here: Any = run.calls.here

        def work() -> None:
            seen.append((here.busy, here.captured))
            here.busy, here.captured = 3, object()
            run.world.Event().record()  # a part of another call
            here.busy = 0
            run.world.Event().record()

        for _ in range(50):
            fake.in_thread(work)
        assert set(seen) == {(0, None)}
        run.recorder.settle_up()
        assert run.recorder.ledger.counts()["torch.Event.record"] == 50
        assert here.busy == 0


def test_many_sessions_leave_no_slots_behind() -> None:
    """In the thread in which they end."""
    for _ in range(3):
        heres = [HOT.Here() for _ in range(100)]
        for each in heres:
            each.captured = marker = Odd("marker")
        gone = weakref.ref(marker)
        del heres, each, marker
        gc.collect()
        assert gone() is None


def test_a_thread_comes_back_while_it_ends() -> None:
    """A destructor of a thread's own data calls hooks, with another state of Python's, when what is ours has ended."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "pthread_key_create"):
        pytest.skip("no pthread_key_create to be found")
    with Run("c", 3) as run:
        event, here, seen = run.world.Event(), run.calls.here, []

        def back(_: Any) -> None:
            seen.append(("back", here.busy))
            here.busy = 2
            event.record()  # a part of another call
            here.busy = 0
            event.record()

        def work() -> None:
            here.busy = 1
            event.record()
            library.pthread_setspecific(key, ctypes.c_void_p(1))
            seen.append(("work", here.busy))

        destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(back)
        key = ctypes.c_uint()
        assert library.pthread_key_create(ctypes.byref(key), destructor) == 0
        for _ in range(20):
            fake.in_thread(work)
        for _ in range(500):  # `join` does not wait for it
            if len(seen) == 40:
                break
            time.sleep(0.01)
        library.pthread_key_delete(key)
        assert sorted(seen) == [("back", 0)] * 20 + [("work", 1)] * 20
        run.recorder.settle_up()
        assert run.recorder.ledger.counts()["torch.Event.record"] == 20
        assert run.recorder.fault_text is None


# ── what others do with functions ─────────────────────────────────────────────────────────────────────────────────────


class Pickled(fake.BlockPool):
    """Found by its name."""


def test_a_hook_is_copied_pickled_and_referred_to_as_a_function_is() -> None:
    with Run("c", 3) as run:
        hook = HOT.Hook("touch", fake.BlockPool.touch, len, run.recorder, run.recorder.ledger.hook("x"), "x")
        functools.update_wrapper(hook, Pickled.touch)
        hook.__module__, hook.__qualname__ = __name__, "Pickled.touch"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Pickled, "touch", hook, raising=False)
            assert copy.copy(hook) is hook
            assert copy.deepcopy({"a": [hook]})["a"][0] is hook
            assert pickle.loads(pickle.dumps(hook)) is hook
            bound: Any = Pickled(4).touch
            assert copy.deepcopy(bound).__func__ is hook
        assert list(inspect.signature(hook).parameters) == ["self", "blocks"]
        referred = weakref.ref(hook)
        assert referred() is hook
        del hook, bound
        gc.collect()
        assert referred() is None
        bare = HOT.Hook("touch", len, len, run.recorder, run.recorder.ledger.hook("x"), "x")
        with pytest.raises(AttributeError):
            copy.copy(bare)


def test_a_name_that_asks_another_recorder_costs_no_number_of_an_event() -> None:
    """A thread's name is known for one recorder at a time: what is asked in the middle may be another's."""
    saw = []
    for language in ("as it is", "python"):
        with Run(language, 512, beside=True, counted=False) as run:
            machine, other = Machine(run), Recorder([], prefix="other")

            class Asks(run.world.Stream):  # type: ignore[name-defined, misc]
                def __getattribute__(self, name: str) -> Any:
                    if name == "cuda_stream":
                        other.hand_on("x")  # noqa: B023
                    return super().__getattribute__(name)

            machine.streams[1].wait_stream(Asks(21))
            run.recorder.settle_up()
            assert run.beside is not None
            saw.append([untimed(list(line)) for line in run.beside.arrived])
    assert saw[0] == saw[1]
    assert len(saw[0]) == 3


class Interrupts:
    """A block whose count is asked for when a signal comes."""

    block_id, is_null = 3, False

    @property
    def ref_cnt(self) -> int:
        raise KeyboardInterrupt


@pytest.mark.parametrize("language", ["as it is", "python"])
def test_what_a_signal_s_handler_raises_while_a_hook_looks_is_the_engine_s(language: str) -> None:
    with Run(language, 512, counted=False) as run:
        pool = fake.BlockPool(4)
        marks.mark(run.vllm.engine, pool, ("gpu",))
        with pytest.raises(KeyboardInterrupt):
            pool.touch((Interrupts(),))
        assert run.recorder.fault_text is None
