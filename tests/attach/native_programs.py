"""Random programs of an engine for `test_native_hooks`: what the hooks see of them, with hooks in C or in Python.

    python -m attach.native_programs 0 100     # what each of these seeds leaves, a line each; hears KVSAN_NATIVE

In one process hooks of both languages can be had: which is decided when a hook is made (`attach.native.quick`), while
the recorder's lock, queue and names are C's wherever C is built. Times are numbers of calls of the clock, so C and
Python must ask it equally often.
"""

from __future__ import annotations

import gc
import itertools
import os
import queue
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from attach.stand_ins import Log, World
from attach.vllm import fake
from attach.vllm.fake import Vllm, attached, output
from kvsan.checker.attach.handoff import HandingList
from kvsan.checker.attach.ledger import Hook
from kvsan.checker.attach.lines import GONE, HELD, NUMBERED, SETTLED, SYNC, TOLD, Held, decoded, encoded
from kvsan.checker.attach.native import HOT
from kvsan.checker.attach.recorder import KvsanHazard, Recorder
from kvsan.checker.attach.torch import Calls, install
from kvsan.checker.attach.vllm import pools
from kvsan.checker.attach.vllm.handoff import Plan, Queue
from kvsan.model.ops import Blocks

Function = Callable[..., Any]


def _python_hook(kind: str, original: Function, slow: Function, recorder: Any, hook: Hook, *more: Any) -> Function:
    return slow


@contextmanager
def hooks_in(language: str) -> Iterator[None]:
    """Hooks that are made inside are C's or Python's."""
    modules: list[Any] = [sys.modules[f"kvsan.checker.attach.{name}"] for name in _MAKERS]
    before = [module.quick for module in modules]
    simple: Any = sys.modules["kvsan.checker.attach.vllm.simple"]
    try:
        if language == "python":
            for module in modules:
                module.quick = _python_hook
            simple.Queue = PythonQueue
        yield
    finally:
        for module, quick in zip(modules, before, strict=True):
            module.quick = quick
        simple.Queue = Queue


class PythonQueue(Queue):
    """With the methods that C has in Python."""

    put, get = Queue._put, Queue._get


_MAKERS = (
    *("torch.calls", "torch.copies", "torch.graphs", "vllm.pools", "vllm.scheduler", "vllm.runners", "vllm.simple"),
)


def shown(line: Any) -> Any:
    """A line as it waits, as what can be compared: what is a list in one and a tuple in the other is one thing."""
    if isinstance(line, Held):
        return ("held", line.index, line.given, line.done, line.told)
    if isinstance(line, list | tuple):
        return tuple(shown(each) for each in line)
    return line


class Handles(dict[int, int]):
    """Handles of current streams by device: `__getitem__` is C's and takes one argument, as PyTorch's own function."""

    def __init__(self, ask: Callable[[int], int]) -> None:
        super().__init__()
        self.ask = ask

    def __missing__(self, device: int) -> int:
        return self.ask(device)


class Run:
    """One engine with hooks of one language, and what it saw."""

    def __init__(self, language: str, batch: int, *, beside: bool = False, counted: bool = True) -> None:
        self.language = language
        self.beside = Elsewhere() if beside else None
        self.counted = counted
        self.patch = pytest.MonkeyPatch()
        self.vllm: Vllm
        self.calls: Calls
        self._context: Any = None
        self.saw: list[Any] = []
        self.lines: list[Any] = []
        self.batch = batch

    def __enter__(self) -> Run:
        with hooks_in(self.language):
            self._context = attached(self.patch)
            world = Busy()
            ticks = itertools.count(1)
            # With the usual clock C puts lines in place, the three of a `wait_stream` at once: so a batch that is small
            # may end elsewhere.
            clock: Callable[[], int] = (lambda: next(ticks)) if self.counted else time.perf_counter_ns
            recorder = Recorder([Sink()], clock=clock)
            self.fault: list[str] = []
            # the stand-ins of a run are classes of its own, so that hooks of two runs never meet
            for name in ("BlockPool", "Scheduler", "OlderRunner", "NewerRunner"):
                self.patch.setattr(fake, name, type(name, (getattr(fake, name),), {}))
            modules = fake.MODULES
            for content in modules.values():
                for name in content:
                    if name in ("BlockPool", "Scheduler"):
                        self.patch.setitem(content, name, getattr(fake, name))
            self.patch.setitem(modules["vllm.v1.worker.gpu_model_runner"], "GPUModelRunner", fake.OlderRunner)
            self.patch.setitem(modules["vllm.v1.worker.gpu.model_runner"], "GPUModelRunner", fake.NewerRunner)
            self.patch.setattr(fake, "Recorder", lambda sinks: recorder)
            self.patch.setattr(fake, "World", lambda: world)
            backend = modules["vllm.v1.simple_kv_offload.copy_backend"]
            self.patch.setitem(backend, "copy_blocks", lambda src, dst, params: world.call())
            for pool in ("gpu", "cpu", "gpu@1", "cpu@1"):
                recorder.pool(pool, 64)
            self.raw_handle = 0
            handle: Callable[[int], int] = self._handle
            more: dict[str, Any] = {}
            if not self.counted:  # as PyTorch has it: its own function, one device, events with a place for their name
                handle, more = Handles(self._handle).__getitem__, {"devices": lambda: 1}
                world.Event = type("Event", (world.Event,), {"__slots__": (recorder._events.attribute,)})
            self.calls = install(
                recorder, world.surface(raw=(lambda: 0, handle), current=lambda: (0, handle(0)), **more)
            )
            self.vllm = self._context.__enter__()
            recorder.batch = self.batch
            recorder.blocked = 1 << 30
            self.recorder, self.world = recorder, world
            if self.beside is not None:
                self._go_elsewhere(self.beside)
                return self
            settle = recorder.settle_up

            def keep() -> None:
                waiting = [shown(line) for line in recorder._queue]
                settle()
                if not recorder._queue:
                    self.lines.extend(waiting)

            recorder.settle_up = keep  # type: ignore[method-assign]
            return self

    def _go_elsewhere(self, beside: Elsewhere) -> None:
        """Lines go to a process beside. In Python they wait as they are, and a blocking call is told from its entry on,
        as C has it, which would else be seen by when a batch is full.
        """
        recorder = self.recorder
        recorder.listen((), batch=self.batch, beside=beside)
        if self.language == "python" or HOT is None:
            recorder._queue = deque()
            hold = recorder.hold

            def told(*given: Any) -> Held:
                held = hold(*given)
                held.told = True
                return held

            recorder.hold = told  # type: ignore[method-assign]

    def _handle(self, device: int) -> int:
        stream = self.world.current_stream() if hasattr(self, "world") else None
        return int(getattr(stream, "cuda_stream", 0))

    def __exit__(self, *what: Any) -> None:
        self._context.__exit__(None, None, None)
        self.calls.uninstall()
        self.patch.undo()

    def see(self, call: Function, *args: Any) -> Any:
        """Makes a call as an engine would; what it gives back, or raises, is seen."""
        try:
            found = call(*args)
        except (Exception, Stop) as error:
            self.saw.append((type(error).__name__, str(error)))
            return None
        self.saw.append(_plain(found))
        return found


def _plain(found: Any) -> Any:
    if isinstance(found, list | tuple):
        return tuple(_plain(each) for each in found)
    if hasattr(found, "block_id"):
        return ("block", str(found.block_id))
    return found if isinstance(found, str | int | float | bool | None) else type(found).__name__


class Odd:
    """An engine's object that misbehaves in the way that its name says."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.done = True

    def __getattr__(self, name: str) -> Any:
        if self.__dict__.get("how") == "raises" and name.startswith(("_kvsan", "kvsan", "ref", "total")):
            raise ValueError("raises")
        raise AttributeError(name)


ANY = SimpleNamespace()


class Answer:
    """What a query gives back: no bool."""

    def __init__(self, truth: Any) -> None:
        self.truth = truth

    def __bool__(self) -> bool:
        if isinstance(self.truth, bool):
            return self.truth
        raise OverflowError("neither")


class Text(str):
    """A name of a class of its own."""


class Plain:
    """Whose text alone travels."""

    def __str__(self) -> str:
        return "plain"


def _nested(depth: int) -> Any:
    return (_nested(depth - 1),) if depth else ()


IDS: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: [rng.randrange(64) for _ in range(rng.choice((0, 1, 15, 16, 17)))],
    lambda rng: list(range(rng.choice((200, 300)))) if rng.random() < 0.2 else [3],
    lambda rng: range(rng.randrange(9), rng.randrange(64), 3),
    lambda rng: Blocks(((1, 3), (7, 9))),
    lambda rng: np.arange(rng.randrange(9)),
    lambda rng: np.arange(rng.randrange(1, 9), dtype=np.int32),
    lambda rng: [np.int64(4), True, 2.0, -1, 1 << 40],
    lambda rng: (5, rng.randrange(1 << 40)),
    lambda rng: [Plain(), "7"],
)
NUMBERS = [
    sign * ((1 << bits) + more)
    for bits in (0, 5, 7, 8, 15, 16, 31, 32, 63, 64)
    for more in (-1, 0, 1)
    for sign in (1, -1)
]
ODD: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: rng.choice(NUMBERS),
    lambda rng: "é" * rng.choice((0, 15, 16, 127, 128)) + "x" * rng.randrange(3),
    lambda rng: "x" * rng.choice((31, 32, 255, 256, 999)),
    lambda rng: rng.choice(("\ud800", "a\udfffb", {"\ud800": 1}, ["\ud800"])),
    lambda rng: b"x" * rng.choice((0, 31, 32, 255, 256, 999)),
    lambda rng: [None] * rng.choice((15, 16, 99)),
    lambda rng: {str(i): i for i in range(rng.choice((0, 15, 16, 99)))},
    lambda rng: rng.choice((np.int64(3), np.float32(0.5), np.bool_(True), Text("t"), Plain(), 1.5, float("inf"), True)),
    lambda rng: rng.choice((None, {1: 2}, {None: 1}, {(1, 2): 3}, {Text("k"): 1}, set(), {3}, Blocks(((1, 2),)))),
    lambda rng: _nested(rng.choice((1, 14, 15, 16, 17, 40))),
    lambda rng: bytearray(b"x"),
    lambda rng: range(3),
)
"""Values that a line may have; not so large that C hands over before `batch` lines wait."""


def odd_event(world: World, how: str) -> Any:
    class Slotted(world.Event):  # type: ignore[name-defined, misc]
        def __setattr__(self, name: str, value: Any) -> None:
            if name.startswith("_kvsan"):
                if how == "refuses":
                    raise AttributeError("refuses")
                if how == "fails":
                    raise OSError("fails")
                if how == "lies":
                    return
                if how == "keeps":
                    super().__setattr__("other", value)
                    return
            super().__setattr__(name, value)

        def __getattribute__(self, name: str) -> Any:
            if (
                how == "typeerror"
                and name.startswith("_kvsan")
                and "written" in object.__getattribute__(self, "__dict__")
            ):
                raise TypeError("typeerror")
            return super().__getattribute__(name)

    return Slotted()


def unused_of(blocks: list[Any]) -> list[Any]:
    return [block for block in blocks if hasattr(type(block), "count")]


class Sink(Log):
    """Raises once what it is told to."""

    raises: Exception | None = None

    def take(self, index: int, op: Any) -> None:
        super().take(index, op)
        error, self.raises = self.raises, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # with its traceback it would keep the engine's event alive


class Stop(BaseException):
    """As what a signal's handler raises."""


class Elsewhere:
    """Stands in for the process beside: what arrives there. A blocking call stands where it was entered, with what
    became of it.
    """

    def __init__(self) -> None:
        self.raises: BaseException | None = None
        self.arrived: list[Any] = []
        self._out: dict[int, list[Any]] = {}
        self._numbered = 0

    def pool(self, name: str, blocks: int) -> None:
        pass

    def stream(self, name: str, stream: Any) -> None:
        pass

    def follow(self, name: str, follower: Any) -> None:
        pass

    def lines(self, given: list[Any]) -> None:
        self._take([line for one in given for line in decoded(encoded([one]))])

    def packed(self, given: bytes) -> None:
        self._take(decoded(given))

    def _take(self, lines: list[Any]) -> None:
        error, self.raises = self.raises, None
        try:
            if error is not None:
                raise error
        finally:
            del error
        for line in lines:
            if line[0] == SETTLED:
                _, index, done = line
                held = self._out.pop(index)
                if held[0] == HELD:
                    held[:] = [SYNC, *held[1:-1]] if done else [*held[:-1], False]
                assert (held[0] == SYNC) == done
                continue
            if line[0] == SYNC or line[0] == HELD:  # settled all the same, in Python
                self._out[self._numbered] = line
            self._numbered += line[0] <= NUMBERED
            self.arrived.append(line)


class Busy(World):
    """Something may happen inside a call of the driver."""

    then: Callable[[], None] | None = None

    def call(self) -> None:
        super().call()
        if self.then is not None:
            self.then()


class Machine:
    """A program: a list of small steps, each with numbers that choose among what there is."""

    def __init__(self, run: Run) -> None:
        self.run, world = run, run.world
        self.streams = [world.Stream(handle) for handle in (0, 7, 9)]
        self.events: list[Any] = [world.Event()]
        self.pool = fake.BlockPool(64)
        pools.mark(run.vllm.engine, self.pool, ("gpu",))
        self.unmarked = fake.BlockPool(64)
        self.several = fake.BlockPool(64)
        pools.mark(run.vllm.engine, self.several, ("gpu@0", "gpu@1"))
        self.taken: list[Any] = []
        self.older = run.vllm.runner(fake.OlderRunner)
        self.newer = run.vllm.runner(fake.NewerRunner)
        self.scheduler = fake.Scheduler(run.vllm.config())
        self.requests: tuple[dict[str, list[int]], ...] = ({}, {})
        """Of each runner, with their blocks."""
        self.handing: Any = HandingList(run.recorder)
        self.inner: Any = queue.SimpleQueue()
        kind, hook = PythonQueue if run.language == "python" else Queue, run.vllm.engine.hook
        self.plan = Plan()
        self.queue = kind(run.recorder, self.inner, self.plan, hook("put"), hook("get"))
        self.backend = fake.DmaCopyBackend()
        with hooks_in(run.language):
            self.backend.init({}, {}, None, world.Stream(11), world.Stream(13))
        self.number = 0

    def do(self, step: tuple[str, int, int]) -> None:
        name, a, b = step
        getattr(self, f"do_{name}")(a, b)

    def event(self, at: int) -> Any:
        return self.events[at % len(self.events)]

    def stream(self, at: int) -> Any:
        return self.streams[at % len(self.streams)]

    def do_event(self, a: int, b: int) -> None:
        self.events.append(self.run.world.Event())

    def do_odd_event(self, a: int, b: int) -> None:
        how = ("refuses", "lies", "keeps", "fails", "typeerror")[a % (5 if b % 4 == 0 else 3)]
        self.events.append(odd_event(self.run.world, how))

    def do_end(self, a: int, b: int) -> None:
        if len(self.events) > 1:
            self.events.pop(a % len(self.events))
            gc.collect(0)

    def do_record(self, a: int, b: int) -> None:
        event = self.event(a)
        self.run.see(*((event.record,) if b % 3 == 0 else (event.record, self.stream(b))))

    def do_record_by_name(self, a: int, b: int) -> None:
        self.run.see(lambda: self.event(a).record(stream=self.stream(b)))

    def do_wait(self, a: int, b: int) -> None:
        event = self.event(a)
        self.run.see(*((event.wait,) if b % 3 == 0 else (event.wait, self.stream(b))))

    def do_wait_stream(self, a: int, b: int) -> None:
        self.run.see(self.stream(a).wait_stream, self.stream(b))

    def do_wait_event(self, a: int, b: int) -> None:
        self.run.see(self.stream(a).wait_event, self.event(b))

    def do_record_event(self, a: int, b: int) -> None:
        stream = self.stream(a)
        if b % 3:
            self.run.see(stream.record_event, self.event(b))
        else:
            self.run.see(lambda: self.events.append(stream.record_event()))

    def do_query(self, a: int, b: int) -> None:
        event = self.event(a)
        event.done = (True, False, 1, 0, None, Answer(True), Answer(False), Answer(None))[b % (8 if a % 5 == 0 else 5)]
        self.run.see(lambda: event.query() is event.done)

    def do_synchronize(self, a: int, b: int) -> None:
        self.run.see(self.event(a).synchronize)

    def do_wrong(self, a: int, b: int) -> None:
        event, stream = self.event(a), self.stream(b)
        calls = [event.query, event.synchronize, stream.wait_event, stream.wait_stream, event.record]
        try:
            calls[a % 5](1, 2, 3, 4)
        except TypeError:
            self.run.saw.append("TypeError")

    def do_failing(self, a: int, b: int) -> None:
        world = self.run.world
        world.fails = RuntimeError("CUDA error")
        try:
            (self.do_record, self.do_wait, self.do_query, self.do_synchronize, self.do_wait_stream)[a % 5](a, b)
        finally:
            world.fails = None

    def do_stream_gone(self, a: int, b: int) -> None:
        self.run.see(self.run.recorder.stream_gone, 0, self.stream(a).cuda_stream)

    def do_current(self, a: int, b: int) -> None:
        self.run.world.set_stream(self.stream(a))

    def do_thread(self, a: int, b: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading, "excepthook", lambda given: None)
            fake.in_thread(lambda: [step(a % 4, b) for step in (self.do_record, self.do_alloc)])

    def do_mark(self, a: int, b: int) -> None:
        self.run.recorder.mark()

    def do_alloc(self, a: int, b: int) -> None:
        pool = (self.pool, self.pool, self.several, self.unmarked)[b % 4]
        found = self.run.see(pool.get_new_blocks, a % 4)
        if pool is self.pool and found:
            self.taken.extend(found)

    def do_free(self, a: int, b: int) -> None:
        some = [self.taken.pop() for _ in range(min(a % 4, len(self.taken)))]
        self.run.see(self.pool.free_blocks, (some, iter(some), tuple(some), [*some, self.pool.blocks[0]])[b % 4])

    def do_free_by_name(self, a: int, b: int) -> None:
        some = [self.taken.pop() for _ in range(min(a % 4, len(self.taken)))]
        self.run.see(lambda: self.pool.free_blocks(ordered_blocks=some))

    def do_touch(self, a: int, b: int) -> None:
        some = self.pool.unused[: a % 3] + self.taken[: b % 3]
        self.taken.extend(some)
        self.run.see(self.pool.touch, (some, tuple(some), some)[b % 3])

    def do_odd_blocks(self, a: int, b: int) -> None:
        """Blocks whose counts are no int, or cannot be had; lists that change while they are read."""
        listed: list[Any] = []
        counts = (0, 0.0, False, None, 2**70, "0", Answer(True), Answer(None))

        class Block:
            is_null = (False, 0, "", True, Answer(None))[b % (5 if a % 3 == 0 else 4)]
            count = counts[a % 3 if b % 3 else a % 8]

            @property
            def block_id(self) -> Any:
                if a % 5 == 4:
                    listed.clear()
                return 5

            @property
            def ref_cnt(self) -> Any:
                return self.count

            @ref_cnt.setter
            def ref_cnt(self, value: Any) -> None:
                return None

        ill = (Odd("raises"), SimpleNamespace(ref_cnt=0), SimpleNamespace(ref_cnt=0, is_null=False), object())
        blocks: list[Any] = [Block() for _ in range(3)]
        if b % 7 == 6:
            blocks.insert(a % 3, ill[a % 4])
        listed.extend(blocks)
        pool = self.pool
        unused, pool.unused = pool.unused, list(unused_of(blocks))
        calls = (pool.touch, pool.free_blocks, lambda some: pool.get_new_blocks(len(some)))
        self.run.see(calls[b % 2], listed) if b % 4 else self.run.see(calls[2], blocks)
        pool.unused = unused

    def do_groups(self, a: int, b: int) -> None:
        """As older versions touch: a sequence of blocks for each group."""
        self.run.see(self.pool.touch, [self.pool.unused[: a % 3], ()])

    def do_hazard(self, a: int, b: int) -> None:
        """The line after next is one of a hazard, with `halt_on_error`, or one that a sink fails at."""
        if a % 4 == 0 and self.run.beside is not None:
            self.run.beside.raises = OSError("gone") if b % 4 else Stop("a signal")
        elif a % 4 == 0:
            sink: Any = self.run.recorder._sinks[0]
            sink.raises = KvsanHazard(None, "hazard") if b % 4 else ValueError("a sink")  # type: ignore[arg-type]

    def do_inside(self, a: int, b: int) -> None:
        """Something happens inside an engine's call."""
        run, world = self.run, self.run.world

        def action() -> None:
            run.world.then = None
            if a % 9 == 0:
                run.recorder.fault("inside", ValueError("off"))
            elif a % 9 == 1:
                run.calls.patches.undo()
            elif a % 9 == 2:
                run.calls.pause()
                run.calls.resume()
            elif a % 9 == 3:
                run.recorder.streams_gone += 1
            elif a % 9 == 4:
                self.events.clear()
                self.events.append(world.Event())
                gc.collect(0)
            elif a % 9 == 5:
                run.vllm.engine.patches.lift()
            elif a % 9 == 6:
                run.vllm.engine.patches.put_back()
            else:
                self.do_alloc(1, b)
                self.do_record(a, b)

        world.then = action
        (self.do_record, self.do_wait, self.do_query, self.do_synchronize, self.do_wait_stream, self.do_copy)[b % 6](
            a, b
        )
        world.then = None

    def do_schedule(self, a: int, b: int) -> None:
        given: Any = SimpleNamespace(total_num_scheduled_tokens=(0, 3, True, Answer(True))[a % 4])
        if b % 11 == 10:
            given = (SimpleNamespace(), Odd("raises"), SimpleNamespace(total_num_scheduled_tokens=Answer(None)))[a % 3]
        self.run.see(self.scheduler.schedule, given)
        self.run.see(self.scheduler.update_from_output, given, SimpleNamespace())

    def do_step(self, a: int, b: int) -> None:
        """A step of a runner: `b` says who is new, who goes on, who grew and who is finished."""
        rng = random.Random(a * 1009 + b)
        runner, requests = (self.older, self.newer)[a % 2], self.requests[a % 2]
        usual = bool(requests) and b % 4 != 0
        new: dict[str, list[int]] = {}
        finished: set[str] = set()
        if not usual:
            if requests and rng.random() < 0.4:
                finished = {rng.choice(sorted(requests))}
                for name in finished:
                    del requests[name]
            for _ in range(rng.randrange(3)):
                self.number += 1
                new[f"r{self.number}"] = [1 + self.number % 60, 2 + self.number % 60]
        names = list(requests)
        if rng.random() < 0.1:
            rng.shuffle(names)
        more: list[Any] = [([3 + b % 40],) if rng.random() < 0.2 else None for _ in names]
        for name, ids in zip(names, more, strict=True):
            requests[name].extend(ids[0] if ids else [])
        tokens = {name: 1 if usual or rng.random() < 0.8 else 4 for name in [*names, *new]}
        scheduled = output(new, tokens, finished_req_ids=finished)
        resumed = {names[0]: requests[names[0]]} if names and rng.random() < 0.05 else {}
        for name, ids in resumed.items():
            more[names.index(name)] = (ids,)
        scheduled.scheduled_cached_reqs = SimpleNamespace(
            req_ids=names,
            new_block_ids=more if rng.random() < 0.95 else tuple(more),
            num_computed_tokens=[2] * len(names),
            resumed_req_ids=set(resumed),
        )
        requests.update(new)
        if rng.random() < 0.05:
            scheduled.new_block_ids_to_zero = [4]
        if runner is self.older:
            runner.skips = b % 13 == 12
        elif b % 7 == 6:
            self.run.see(lambda: runner.execute_model(scheduled, dummy_run=True))
        if b % 9 == 4:
            self.run.see(lambda: runner.execute_model(scheduler_output=scheduled))
        else:
            self.run.see(runner.execute_model, scheduled)

    def do_steps(self, a: int, b: int) -> None:
        """Some, as an engine makes them."""
        for i in range(4):
            self.do_step(a, 4 * b + i)

    def do_odd_step(self, a: int, b: int) -> None:
        """A `SchedulerOutput` of which a part is not what it should be."""
        if a % 4:
            return
        runner = (self.older, self.newer)[a // 4 % 2]
        scheduled = output({}, {"a": 1})
        name = ("num_scheduled_tokens", "scheduled_cached_reqs", "scheduled_new_reqs", "finished_req_ids")[b % 4]
        odd: Any = (None, Odd("raises"), [ANY], Answer(None), {}, 5)[b // 4 % 6]
        if b % 5 == 4:
            vars(scheduled).pop(name)
        elif b % 5 == 3:
            setattr(scheduled.scheduled_cached_reqs, ("req_ids", "new_block_ids", "num_computed_tokens")[b % 3], odd)
        else:
            setattr(scheduled, name, odd)
        self.run.see(runner.execute_model, Odd("raises") if b % 31 == 30 else scheduled)

    def do_list(self, a: int, b: int) -> None:
        handing = self.handing
        self.run.see(handing.append, a)
        if b % 3 == 0:
            self.run.see(handing.pop)
        elif b % 3 == 1:
            self.run.see(handing.pop, 0)
        else:
            self.run.see(lambda: handing[0])

    def do_queue(self, a: int, b: int) -> None:
        put, get, see = self.queue.put, self.queue.get, self.run.see
        item = a if b % 4 else None
        if b % 7 == 0:
            see(*((put,), (put, item, True, None, 1), (put, item, False, None))[a % 3])
        elif b % 7 == 1:
            see(lambda: (put(item=item), put(item, block=True), put(item, wrong=1))[a % 3])
        elif b % 7 == 2:
            self.queue.pause()
            see(self.queue.put, item)
            self.queue.resume()
        else:
            see(put, item)
        if not self.inner.empty():
            see(*((get,), (get, False), (get, True, 5), (get, 1, 2, 3))[a % 4 if b % 5 == 0 else 0])
            see(lambda: self.plan.planned)
        elif b % 3 == 0:
            see(get, False)

    def do_copy(self, a: int, b: int) -> None:
        """A job is put, and taken by the same thread or another."""
        backend, rng, see = self.backend, random.Random(a * 1009 + b), self.run.see
        params = backend._store_params if b % 2 else backend._load_params
        before, params.attrs.srcAccessOrder = params.attrs.srcAccessOrder, rng.choice((1, 2, 3, 3, 3, 3))
        sources, targets = ([rng.randrange(64) for _ in range(rng.choice((1, 2, 16, 20)))] for _ in range(2))
        see(backend.launch_copy, sources, targets, b % 2, 0, [])
        if not backend._queue.empty():
            if a % 3:
                see(backend.copy_one)
            else:
                fake.in_thread(lambda: see(backend.copy_one))
        params.attrs.srcAccessOrder = before

    def do_odd_copy(self, a: int, b: int) -> None:
        """What is not usual about one."""
        copy_blocks: Any = sys.modules["vllm.v1.simple_kv_offload.copy_backend"].copy_blocks
        engine, params, see = self.run.vllm.engine, self.backend._load_params, self.run.see
        rng = random.Random(a * 1009 + b)
        if b % 9 == 0:
            see(lambda: copy_blocks([1], [2], params=params))
        elif b % 9 == 1:
            see(copy_blocks, [1], [2], rng.choice((fake.build_params(3), SimpleNamespace(), None)))
        elif b % 9 == 2:
            engine.device_pool = rng.choice(("gpu@1", "gpu", "".join(("g", "pu"))))
            see(copy_blocks, [1], [2], params)
        elif b % 9 == 3:
            see(copy_blocks, rng.choice(([], (), (1, 2), range(2), np.arange(2))), rng.choice(([3], (3,), [])), params)
        elif b % 9 == 4:
            params.attrs.srcAccessOrder = rng.choice((0, 4, 1 << 31))
            see(copy_blocks, [1], [2], params)
            params.attrs.srcAccessOrder = 3
        elif b % 9 == 5 and self.run.beside is not None:
            see(copy_blocks, rng.choice(IDS)(rng), rng.choice(IDS)(rng), params)
        elif b % 9 == 6:
            see(*((copy_blocks, [1], [2], params, 4), (copy_blocks, 5, [1], params))[a % 2])
        else:
            self.run.world.fails = RuntimeError("CUDA error")
            see(copy_blocks, [1], [2], params)
            self.run.world.fails = None

    def do_settle_up(self, a: int, b: int) -> None:
        self.run.see(self.run.recorder.settle_up)

    def do_wait_long(self, a: int, b: int) -> None:
        """A blocking call, in the middle of which lines are handed over, or others come."""
        run, world = self.run, self.run.world

        def action() -> None:
            world.then = None
            if a % 3:
                self.do_record(a, b)
            if a % 4:
                run.recorder.settle_up()
            if a % 5 == 0:
                world.fails = RuntimeError("CUDA error")

        world.then = action
        if b % 2:
            self.do_synchronize(a, b)
        else:
            run.see(world.synchronize)
        world.then = world.fails = None

    def do_odd_lines(self, a: int, b: int) -> None:
        """Lines with all that an engine may give, where they are not looked at before they have travelled."""
        recorder, rng = self.run.recorder, random.Random(a * 1009 + b)
        if self.run.beside is None:
            return
        pool, ids, odd = rng.choice(("gpu", "cpu", Text("gpu"))), rng.choice(IDS)(rng), rng.choice(ODD)(rng)
        for _ in range(rng.choice((1, 1, 2))):
            kind = rng.randrange(8)
            if kind < 2:
                reads, writes = {pool: ids}, {"cpu": rng.choice(IDS)(rng)} if a % 2 else None
                self.run.see(lambda r=reads, w=writes: recorder.access("x", reads=r, writes=w, step=odd))
            elif kind == 2:
                self.run.see(lambda: recorder.tell("odd", odd))
            elif kind == 3:
                self.run.see(lambda: recorder.seen_done(stream=odd))
            elif kind == 4:
                self.run.see(lambda: recorder.poll("e", odd, by=rng.choice((None, "h9"))))
            else:
                life = (recorder.alloc, recorder.free, recorder.touch)[kind - 5]
                by = rng.choice((None, "h9"))
                self.run.see(lambda life=life, by=by: [life(pool, ids, by=by) for _ in range(2)])

    def do_off(self, a: int, b: int) -> None:
        if a % 20 == 0:
            self.run.see(lambda: self.run.recorder.fault("a test", ValueError("off")))

    def end(self) -> dict[str, Any]:
        """All that can be compared."""
        recorder = self.run.recorder
        self.run.see(recorder.settle_up)
        self.run.see(recorder.settle_up)
        if self.run.beside is not None:
            arrived = self.run.beside.arrived
            self.run.lines.extend(arrived if self.run.counted else map(untimed, arrived))
        log: Any = recorder._sinks[0] if recorder._sinks else SimpleNamespace(ops=[])
        prefix = f".{os.getpid()}"
        return {
            "saw": self.run.saw,
            "lines": [_without(prefix, shown(line)) for line in self.run.lines],
            "ops": [str(op).replace(prefix, "") for op in log.ops],
            "count": recorder.ops,
            "fault": recorder.fault_text,
            "on": recorder.on,
            "counts": dict(recorder.ledger.counts()),
            "unseen": (recorder.ledger.copies, recorder.ledger.edges, dict(recorder.ledger.words)),
            "notes": list(recorder.ledger.notes),
            "steps": [told.messages.count for told in _told(self)],
            "before": [told.messages._before for told in _told(self)],
            "open": [told.open for told in _told(self)],
        }


def _without(prefix: str, line: Any) -> Any:
    return tuple(each.replace(prefix, "") if isinstance(each, str) else each for each in line)


def untimed(line: list[Any]) -> list[Any]:
    """A line as it travelled, without its time."""
    if line[0] in (SYNC, HELD):
        return [*line[:5], *line[6:]]
    return line if line[0] in (GONE, TOLD) else line[:-1]


def _told(machine: Machine) -> list[Any]:
    return [
        told for each in (machine.older, machine.newer) if (told := getattr(each, "_kvsan_steps", None)) is not None
    ]


def played(
    language: str, batch: int, program: list[tuple[str, int, int]], *, beside: bool = False, counted: bool = True
) -> dict[str, Any]:
    names = itertools.count(1)
    runners = sys.modules["kvsan.checker.attach.vllm.runners"]
    before, runners._names = runners._names, names  # type: ignore[attr-defined]
    try:
        with Run(language, batch, beside=beside, counted=counted) as run:
            machine = Machine(run)
            for step in program:
                machine.do(step)
            return machine.end()
    finally:
        runners._names = before  # type: ignore[attr-defined]


STEPS = sorted(name[3:] for name in dir(Machine) if name.startswith("do_"))
PROGRAMS = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1000), st.integers(0, 1000)), max_size=40)


RARE = {"off", "odd_step", "inside", "hazard", "odd_blocks", "odd_event", "odd_lines", "failing", "stream_gone"}


def program(seed: int, size: int = 60) -> tuple[int, list[tuple[str, int, int]]]:
    """A batch and a program; only in some is what is rare at all, so that others get far."""
    rng = random.Random(seed)
    steps = [step for step in STEPS if step not in RARE or rng.random() < 0.4]
    return rng.choice((1, 3, 512)), [(rng.choice(steps), rng.randrange(1001), rng.randrange(1001)) for _ in range(size)]


def main() -> None:
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        batch, steps = program(seed)
        print(seed, played("as it is", batch, steps))
        print(seed, played("as it is", batch, steps, beside=True))
        print(seed, played("as it is", 512, steps, beside=True, counted=False))


if __name__ == "__main__":
    main()
