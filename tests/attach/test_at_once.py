"""The usual case of each hook in C, in which a line is put at once (`ops_at_once` in `native/in_place.h`), and all that
sends it the long way. What arrives is the same; a number of five bytes tells which way it came.
"""

from __future__ import annotations

import gc
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from attach.native_programs import Handles, Run, Stop, played, program, untimed
from attach.test_packed import Began
from attach.vllm import fake
from kvsan.checker.attach import native
from kvsan.checker.attach.lines import ALLOC, DROP, FREE, GET, PUT, RECORD, SYNC, TOLD, WAIT
from kvsan.checker.attach.vllm import pools

HOT = native.HOT
pytestmark = pytest.mark.skipif(HOT is None, reason="the C hooks are not built (make native), or KVSAN_NATIVE=0")

WIDE = b"\xce"
"""What a number of four bytes begins with, in MessagePack."""


def test_an_engine_s_usual_steps_say_the_same_in_c_and_python() -> None:
    """Without what is rare, so that most of it is put at once."""
    for seed in range(40):
        rng = random.Random(seed)
        usual = ("record", "wait", "wait_stream", "query", "synchronize", "end", "event", "current", "list", "queue")
        steps = [
            (rng.choice((*usual, "steps", "alloc", "free", "touch", "copy")), rng.randrange(1001), rng.randrange(1001))
            for _ in range(150)
        ]
        in_python, in_c = (played(language, 512, steps, beside=True, counted=False) for language in ("python", "c"))
        for key, value in in_python.items():
            assert in_c[key] == value, (seed, key)


class Bytes:
    """Stands beside, and keeps what arrives as it is."""

    def __init__(self, run: Run) -> None:
        self.given: list[bytes] = []
        assert run.beside is not None
        take = run.beside.packed

        def packed(given: bytes) -> None:
            self.given.append(given)
            take(given)

        run.beside.packed = packed  # type: ignore[method-assign]


def _freed(spoil: Callable[[Run], Any], ids: int = 3) -> tuple[bool, list[Any]]:
    """Whether the ids of blocks that are handed out came at once, and what arrived, after something was done to it."""
    with Run("c", 512, beside=True, counted=False) as run:
        pool = fake.BlockPool(64)
        pools.mark(run.vllm.engine, pool, ("gpu",))
        run.world.Event().record()  # a line is there, and the thread has its name
        kept = spoil(run)
        seen, before = Bytes(run), len(run.beside.arrived)  # type: ignore[union-attr]
        pool.get_new_blocks(ids)
        del kept
        run.recorder.settle_up()
        assert run.recorder.fault_text is None
        raw = b"".join(seen.given)
        lives = [line for line in run.beside.arrived[before:] if line[0] == ALLOC]  # type: ignore[union-attr]
        return WIDE in raw, [untimed(line)[2:] for line in lives]


def test_ids_of_blocks_are_put_at_once() -> None:
    assert _freed(lambda run: None) == (True, [["gpu", [1, 2, 3]]])


def _dead_thread(run: Run) -> None:
    thread = threading.Thread(target=lambda: run.world.Event().record())
    thread.start()
    thread.join()


SPOILS: dict[str, Callable[[Run], Any]] = {
    "its own clock": lambda run: setattr(run.recorder, "now", lambda: 5),
    "nothing waits": lambda run: run.recorder.settle_up(),
    "a batch is full": lambda run: setattr(run.recorder, "batch", 1),
    "the next line fills it": lambda run: setattr(run.recorder, "batch", len(run.recorder._queue) + 1),
    "a thread has ended": _dead_thread,
    "the lock is held": lambda run: run.recorder.lock.acquire(),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_what_stands_in_the_way_sends_them_the_long_way(spoil: str) -> None:
    """With the same lines."""
    at_once, lives = _freed(SPOILS[spoil])
    assert lives == [["gpu", [1, 2, 3]]]
    assert not at_once


def test_names_of_events_count_on() -> None:
    """Over nines, where another has counted meanwhile, and where they begin otherwise."""
    with Run("c", 512, beside=True, counted=False) as run:
        names: Any = run.recorder._events
        events = [run.world.Event() for _ in range(230)]
        for event in events[:120]:
            event.record()
        assert names.name(run.world.Event()).endswith("e121")
        names._serial = 998
        for event in events[120:200]:
            event.record()
        names._prefix = "".join(("p", "q."))
        for event in events[200:]:
            event.record()
        run.recorder.settle_up()
        said = [line[3] for line in run.beside.arrived if line[0] == RECORD]  # type: ignore[union-attr]
        prefix = said[0].removesuffix("e1")
        assert said[:120] == [f"{prefix}e{number}" for number in range(1, 121)]
        assert said[120:200] == [f"{prefix}e{number}" for number in range(999, 1079)]
        assert said[200:] == [f"pq.e{number}" for number in range(1079, 1109)]
        assert [names.name(event) for event in events] == said


@pytest.mark.parametrize("handles", [(7, 0, 9, 7, 0), (0, 7), (1, 2, 3, 4, 5, 6, 1, 2), (1 << 63, 7, (1 << 64) - 1, 7)])
def test_the_current_stream_that_c_tells(handles: tuple[int, ...]) -> None:
    """What was not met is not taken for what was, whatever stands where none was met yet."""
    began, current = Began(clock=time.perf_counter_ns), dict[int, int]()
    namer = HOT.Namer(
        *(began.recorder, lambda: 0, current.__getitem__, lambda key: f"s{key[1]}", lambda stream: "other", lambda: 1)
    )
    hook = HOT.Hook(
        *("record", lambda event: None, lambda event: None, began.recorder, HOT.Counter(), "r", HOT.Here()),
        *(namer, began.recorder._events),
    )
    event = type("Event", (), {})()
    for handle in handles * 3:
        current[0] = handle
        hook(event)
        hook(event)
    assert [line[2] for line in began.arrived() if line[0] == RECORD] == [f"s{h}" for h in handles * 3 for _ in (0, 1)]
    current.clear()  # PyTorch raises
    hook(event)
    assert "KeyError" in str(began.recorder.fault_text)


def test_the_handle_is_asked_for_again_where_its_stream_was_destroyed() -> None:
    began, met = Began(clock=time.perf_counter_ns), {(0, 7): "a"}
    namer = HOT.Namer(
        *(began.recorder, lambda: 0, {0: 7}.__getitem__, lambda key: met[key], lambda stream: "other", lambda: 1)
    )
    hook = HOT.Hook(
        *("record", lambda event: None, lambda event: None, began.recorder, HOT.Counter(), "r", HOT.Here()),
        *(namer, began.recorder._events),
    )
    event = type("Event", (), {})()
    for name in ("a", "b"):
        met[0, 7] = name
        began.recorder.streams_gone += 1
        for _ in range(3):
            hook(event)
    assert [line[2] for line in began.arrived() if line[0] == RECORD] == ["a"] * 3 + ["b"] * 3


@pytest.mark.parametrize("count", [0, 1, 15, 16, 255, 256, 257, 400])
@pytest.mark.parametrize("computed", [0, 127, 1 << 16, (1 << 32) - 1, 1 << 32, -1, 1 << 70, True])
def test_how_far_requests_are_is_said_whatever_it_is(count: int, computed: Any) -> None:
    """Of so many requests that go on."""
    told: list[list[str]] = []
    for language in ("python", "c"):
        with Run(language, 512, beside=True, counted=False) as run:
            runner = run.vllm.runner(fake.OlderRunner)
            names = [f"r{i}" for i in range(count)]
            for _ in range(4):
                scheduled = fake.output({}, dict.fromkeys(names, 1) or {"x": 1})
                cached = scheduled.scheduled_cached_reqs
                cached.req_ids, cached.new_block_ids = names, [None] * count
                cached.num_computed_tokens = [computed] * count
                run.see(runner.execute_model, scheduled)
            run.recorder.settle_up()
            # names of runners count on
            told.append([re.sub(r"steps\d+", "steps", str(untimed(line))) for line in run.beside.arrived])  # type: ignore[union-attr]
    assert told[0] == told[1]
    assert len(told[0]) >= 4


def _threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_lines_of_threads_that_run_at_the_same_time_are_whole() -> None:
    with Run("c", 64, beside=True, counted=False) as run:
        pool = fake.BlockPool(64)
        pools.mark(run.vllm.engine, pool, ("gpu",))
        streams = [run.world.Stream(handle) for handle in (1, 2)]

        def work(number: int) -> None:
            rng = random.Random(number)
            for _ in range(400):
                event = run.world.Event()
                event.record(rng.choice(streams))
                rng.choice((event.query, event.synchronize, lambda: streams[0].wait_stream(streams[1])))()

        _threads(6, work)
        run.recorder.settle_up()
        assert run.recorder.fault_text is None
        arrived = run.beside.arrived  # type: ignore[union-attr]
        codes = [line[0] for line in arrived]
        waits = codes.count(WAIT)
        assert codes.count(RECORD) == 2400 + waits
        assert codes.count(SYNC) + codes.count(4) + waits == 2400
        recorded = set[str]()
        for line in arrived:  # a name is recorded before anything else is said of it, and never again after its end
            if line[0] == RECORD:
                recorded.add(line[3])
            elif line[0] == WAIT:
                assert line[3] in recorded
            elif line[0] == DROP:
                recorded.discard(line[2])


def _tokens(lines: list[Any]) -> Iterator[tuple[int, str]]:
    for line in lines:
        if line[0] in (PUT, GET):
            yield line[0], line[2]


def test_tokens_of_a_forked_child_have_its_number() -> None:
    with Run("c", 512, beside=True, counted=False) as run:
        recorder = run.recorder
        recorder.hand_on("a")
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(writes, recorder.hand_on("a").encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writes)
        with os.fdopen(reads) as given:
            assert given.read().endswith(f".{child}")
        assert recorder.hand_on("a").endswith(f".{os.getpid()}")


def test_the_programs_that_are_compared_are_not_all_alike() -> None:
    """A control: seeds choose batches and steps."""
    assert len({(batch, tuple(steps)) for batch, steps in map(program, range(20))}) == 20
    assert {batch for batch, _ in map(program, range(20))} == {1, 3, 512}


def test_blocks_that_are_handed_out_and_freed_one_after_another_are_one_line_each() -> None:
    with Run("c", 512, beside=True, counted=False) as run:
        pool = fake.BlockPool(64)
        pools.mark(run.vllm.engine, pool, ("gpu", "cpu"))
        run.world.Event().record()
        found = pool.get_new_blocks(2)
        pool.free_blocks(found)
        run.recorder.settle_up()
        lives = [untimed(line) for line in run.beside.arrived if line[0] in (ALLOC, FREE)]  # type: ignore[union-attr]
        assert [line[0:1] + line[2:] for line in lives] == [
            *([ALLOC, "gpu", [1, 2]], [ALLOC, "cpu", [1, 2]]),
            *([FREE, "gpu", [1, 2]], [FREE, "cpu", [1, 2]]),
        ]


def test_numbers_that_are_wide_fit_where_little_room_is_left() -> None:
    """Found under ASAN: 256 of nine bytes each, where one request got blocks and what waits is about to grow."""
    with Run("c", 100_000, beside=True, counted=False) as run:
        runner, names = run.vllm.runner(fake.OlderRunner), [f"r{i}" for i in range(256)]
        run.world.Event().record()
        for number in range(60):
            scheduled = fake.output({}, dict.fromkeys(names, 1))
            cached = scheduled.scheduled_cached_reqs
            cached.req_ids, cached.num_computed_tokens = names, [(1 << 33) + number] * 256
            cached.new_block_ids = [([5] * 600,), *[None] * 255]
            runner.execute_model(scheduled)
        run.recorder.settle_up()
        assert run.recorder.fault_text is None
        told = [line[2][5] for line in run.beside.arrived if line[0] == TOLD]  # type: ignore[union-attr]
        assert told == [[(1 << 33) + number] * 256 for number in range(60)]


def test_a_token_as_long_as_it_gets() -> None:
    with Run("c", 512, beside=True, counted=False) as run:
        run.recorder.prefix, run.recorder._tokens = "p" * 39, 10**18
        assert run.recorder.hand_on("w" * 39) == "p" * 39 + "w" * 39 + f"{10**18 + 1}.{os.getpid()}"


def _forwards(language: str, error: type[BaseException] | None) -> tuple[Any, ...]:
    """What is seen of forwards of which in the third PyTorch raises where it is asked for its current stream."""
    with Run(language, 512, beside=True, counted=False) as run:
        runner, raises = run.vllm.runner(fake.OlderRunner), False
        handle = run._handle

        def ask(device: int) -> int:
            if raises and error is not None:
                raise error("no stream")
            return handle(device)

        next(each for each in gc.get_objects() if type(each) is Handles and each.ask == handle).ask = ask
        for number in range(4):
            raises = number == 2
            run.see(runner.execute_model, fake.output({}, {"a": 1}))
        run.recorder.settle_up()
        return run.saw, run.recorder.fault_text, run.recorder.ledger.counts()["vllm.forward"]


@pytest.mark.parametrize("error", [None, ValueError, Stop])
def test_a_forward_counts_where_its_stream_is_not_told(error: type[BaseException] | None) -> None:
    in_python, in_c = (_forwards(language, error) for language in ("python", "c"))
    assert in_python == in_c
    assert (in_c[1] is not None) == (error is ValueError)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_a_runner_raises_where_kvsan_asks_it_is_raised(error: type[BaseException]) -> None:
    for language in ("python", "c"):
        with Run(language, 512, beside=True, counted=False) as run:

            class Odd(fake.OlderRunner):
                def __getattr__(self, name: str) -> Any:
                    raise error(name)

            with pytest.raises(error):
                Odd.__new__(Odd)._model_forward()
            assert run.recorder.fault_text is None


def test_a_lock_that_was_taken_while_pytorch_was_asked_is_waited_for() -> None:
    """The line of a forward does not go in between a call of another thread and its line."""
    with Run("c", 512, beside=True, counted=False) as run:
        runner, lock = run.vllm.runner(fake.OlderRunner), run.recorder.lock
        handles = next(each for each in gc.get_objects() if type(each) is Handles and each.ask == run._handle)
        runner.execute_model(fake.output({}, {"a": 1}))
        ask, held, waits, threads = handles.ask, threading.Event(), threading.Event(), list[threading.Thread]()

        def holder() -> None:
            with lock:
                held.set()
                waits.wait(0.2)
                said.append(len(run.recorder._queue))

        def asked(device: int) -> int:
            if not threads:
                threads.append(threading.Thread(target=holder))
                threads[0].start()
                held.wait()
                said.append(len(run.recorder._queue))
            return ask(device)

        said: list[int] = []
        handles.ask = asked
        runner.execute_model(fake.output({}, {"a": 1}))
        threads[0].join()
        assert said[0] == said[1] < len(run.recorder._queue)


@pytest.mark.parametrize("before", [0, 1])
def test_what_ends_while_kept_things_are_forgotten_may_ask_for_others(before: int) -> None:
    """Found as a crash: what is kept then stayed half of it."""
    with Run("c", 512, beside=True, counted=False) as run:
        run.world.Event().record()
        first, second, third, other = (fake.BlockPool(64) for _ in range(4))
        for pool in (first, second, third, other):
            pools.mark(run.vllm.engine, pool, ("gpu",))

        class Name(str):
            def __del__(self) -> None:
                third.get_new_blocks(1)

        for _ in range(before):
            HOT.marked()
            other.get_new_blocks(1)
        first._kvsan_pools = ("gpu", Name("cpu"))  # type: ignore[attr-defined]
        HOT.marked()
        first.get_new_blocks(1)
        first._kvsan_pools = ("gpu",)  # type: ignore[attr-defined]
        HOT.marked()
        second.get_new_blocks(1)
        third.get_new_blocks(1)
        assert run.recorder.fault_text is None
