"""What `device/cuda.py` stands on, without a GPU: descriptors, the driver's function, event names, host threads.

The driver here is a stand-in for the module `cuda.bindings.driver` whose batched copy is a C function pointer that
moves the bytes; what real CUDA does with the same call is in tests/gpu/test_cuda_device.py.
"""

from __future__ import annotations

import ctypes
import enum
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvsan.model.ops import Source
from kvsan.runtime.device import Copy, DeviceError, DeviceLostError, Ids
from kvsan.runtime.device import batch as batch_module
from kvsan.runtime.device.batch import Batches, Descriptors, Plane, check, runs
from kvsan.runtime.device.events import Events
from kvsan.runtime.device.workers import Workers

SEED = 20261130


def ids(*blocks: int) -> Ids:
    return np.array(blocks, np.int64)


def copy_of(sources: Ids, targets: Ids, order: Source = "stream") -> Copy:
    return Copy("load", "host", sources, "gpu", targets, order)


class Memory:
    """A pool in plain memory, each word with a number of its own."""

    def __init__(self, layers: int, blocks: int, words: int, first: int) -> None:
        self.words = np.arange(first, first + layers * blocks * words, dtype=np.int64).reshape(layers, blocks, words)
        self.plane = Plane(self.words.ctypes.data, layers, blocks, words * 8, host=True)


# ── descriptors ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sources", "targets", "expected"),
    [
        ((3, 4, 5), (7, 8, 9), [(3, 7, 3)]),
        ((3, 5), (7, 8), [(3, 7, 1), (5, 8, 1)]),
        ((3, 4), (7, 9), [(3, 7, 1), (4, 9, 1)]),
        ((3, 4), (8, 7), [(3, 8, 1), (4, 7, 1)]),  # adjacent, but the wrong way round
        ((5, 3, 4), (9, 7, 8), [(3, 7, 3)]),  # pairs have no order among themselves
        ((3, 3), (7, 8), [(3, 7, 1), (3, 8, 1)]),  # one block to two places
        ((0,), (0,), [(0, 0, 1)]),
        ((), (), []),
    ],
)
def test_runs(sources: tuple[int, ...], targets: tuple[int, ...], expected: list[tuple[int, int, int]]) -> None:
    found = np.stack(runs(ids(*sources), ids(*targets)), axis=1)
    assert [tuple(row) for row in found.tolist()] == expected


def test_runs_hold_each_pair_once_whatever_the_ids() -> None:
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    for _ in range(300):
        count = int(rng.integers(0, 40))
        sources, targets = rng.permutation(48)[:count], rng.permutation(48)[:count]
        if rng.random() < 0.5:
            sources, targets = np.sort(sources), np.sort(targets)
        pairs = [
            (s + at, t + at)
            for s, t, n in np.stack(runs(sources, targets), axis=1).tolist()
            for at in range(n)
        ]  # fmt: skip
        assert sorted(pairs) == sorted(zip(sources.tolist(), targets.tolist(), strict=True))


def test_descriptors_are_a_range_a_layer() -> None:
    source, target = Plane(1000, 2, 10, 16, host=True), Plane(5000, 2, 20, 16, host=False)
    made = Descriptors().fill(copy_of(ids(1, 2, 7), ids(4, 5, 0)), source, target)
    assert made.tolist() == [
        [5000 + 64, 5000, 5000 + 320 + 64, 5000 + 320],
        [1000 + 16, 1000 + 112, 1000 + 160 + 16, 1000 + 160 + 112],
        [32, 16, 32, 16],
    ]


def test_descriptor_arrays_are_used_again_and_grow() -> None:
    plane = Plane(0, 16, 4096, 8, host=True)
    descriptors = Descriptors()
    few = descriptors.fill(copy_of(ids(0, 2), ids(0, 2)), plane, plane)
    again = descriptors.fill(copy_of(ids(5, 9), ids(5, 9)), plane, plane)
    assert few.ctypes.data == again.ctypes.data
    every_second = np.arange(0, 4096, 2)
    many = descriptors.fill(copy_of(every_second, every_second), plane, plane)
    assert many.shape == (3, 16 * 2048)


@pytest.mark.parametrize(
    ("sources", "targets", "order", "says"),
    [
        ((0, 1), (0,), "stream", "2 source blocks and 1 target"),
        ((0, 8), (0, 1), "stream", "block 0 or 8 of host; it has blocks 0 to 7"),
        ((0, -1), (0, 1), "stream", "of host"),
        ((0, 1), (0, 4), "stream", "of gpu; it has blocks 0 to 3"),
        ((0,), (0,), "late", "accepted: stream, any, call"),
    ],
)
def test_arguments_that_do_not_fit(sources: Any, targets: Any, order: Any, says: str) -> None:
    big, small = Plane(0, 2, 8, 16, host=True), Plane(0, 2, 4, 16, host=False)
    with pytest.raises(DeviceError, match="nothing was issued") as caught:
        check(copy_of(ids(*sources), ids(*targets), order), big, small)
    assert says in str(caught.value)


def test_arguments_that_fit() -> None:
    big, small = Plane(0, 2, 8, 16, host=True), Plane(0, 2, 4, 16, host=False)
    check(copy_of(ids(0, 7), ids(3, 0)), big, small)
    check(copy_of(ids(), ids()), big, small)
    with pytest.raises(DeviceError, match="alike"):
        check(copy_of(ids(0), ids(0)), big, Plane(0, 3, 8, 16, host=False))


# ── the driver's function ─────────────────────────────────────────────────────────────────────────────────────────────


class Result(enum.IntEnum):
    """`CUresult`, as much as is needed."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class Order(enum.IntEnum):
    """`CUmemcpySrcAccessOrder`."""

    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1
    CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2
    CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3


class LocationType(enum.IntEnum):
    """`CUmemLocationType`, as much as is needed."""

    CU_MEM_LOCATION_TYPE_DEVICE = 1
    CU_MEM_LOCATION_TYPE_HOST = 2


class Attributes(SimpleNamespace):
    """`CUmemcpyAttributes`."""

    def getPtr(self) -> int:  # noqa: N802 (the name of cuda-bindings)
        return id(self)


class Driver:
    """Has the function of the versions given. `fail`: which call (from 1) answers what, at which descriptor."""

    CUresult, CUmemcpySrcAccessOrder, CUmemLocationType = Result, Order, LocationType
    CUmemcpyAttributes, CUmemLocation = Attributes, SimpleNamespace

    def __init__(self, *versions: int, fail: tuple[int, int, int] | None = None) -> None:
        self.versions, self.fail = versions, fail
        self.calls: list[tuple[int, int, int]] = []  # descriptors, attributes, stream
        self.made: list[Any] = []

    def cuGetProcAddress(self, symbol: bytes, version: int, flags: int) -> tuple[Result, int, int]:  # noqa: N802
        assert (symbol, flags) == (b"cuMemcpyBatchAsync", 0)
        if version not in self.versions:
            return Result.CUDA_ERROR_NOT_FOUND, 0, 1
        call = self.old if version == 12080 else self.new
        self.made.append(batch_module._ABIS[version](call))
        return Result.CUDA_SUCCESS, ctypes.cast(self.made[-1], ctypes.c_void_p).value or 0, 0

    def old(self, to: int, of: int, sizes: int, count: int, attrs: int, at: int, n: int, bad: int, stream: int) -> int:
        result = self.new(to, of, sizes, count, attrs, at, n, stream)
        if result and self.fail is not None:
            ctypes.c_size_t.from_address(bad).value = self.fail[2]
        return result

    def new(self, to: int, of: int, sizes: int, count: int, attrs: int, at: int, n: int, stream: int) -> int:
        assert (ctypes.c_size_t.from_address(at).value, n) == (0, 1)
        self.calls.append((count, attrs, stream))
        if self.fail is not None and self.fail[0] == len(self.calls):
            return self.fail[1]
        table = [(ctypes.c_uint64 * count).from_address(address) for address in (to, of, sizes)]
        for target, source, size in zip(*table, strict=True):
            ctypes.memmove(target, source, size)
        return 0


VERSIONS = pytest.mark.parametrize("versions", [(12080,), (12080, 13000), (13000,)])


@VERSIONS
def test_a_batch_copies_what_it_says(versions: tuple[int, ...]) -> None:
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    driver = Driver(*versions)
    batches, descriptors = Batches(driver), Descriptors()
    assert batches.version == versions[0]
    for _ in range(20):
        source, target = Memory(3, 64, 5, 1), Memory(3, 48, 5, 10_000)
        wanted = target.words.copy()
        sources, targets = rng.permutation(64)[:30], rng.permutation(48)[:30]
        wanted[:, targets] = source.words[:, sources]
        one = copy_of(sources, targets)
        batches.issue(one, source.plane, target.plane, descriptors.fill(one, source.plane, target.plane), 77)
        assert (target.words == wanted).all()
    assert {stream for *_, stream in driver.calls} == {77}


def test_attributes_say_order_and_place_and_are_made_once() -> None:
    batches = Batches(Driver(12080), device=3)
    host, gpu = Plane(0, 1, 1, 8, host=True), Plane(0, 1, 1, 8, host=False)
    load = batches.attributes("any", host, gpu)
    assert load.srcAccessOrder is Order.CU_MEMCPY_SRC_ACCESS_ORDER_ANY
    assert (load.srcLocHint.type, load.dstLocHint.type) == (2, 1)
    assert load.dstLocHint.id == 3
    assert batches.attributes("any", host, gpu) is load
    store = batches.attributes("stream", gpu, host)
    assert store.srcAccessOrder is Order.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    assert batches.attributes("call", gpu, host).srcAccessOrder is Order.CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL


def test_a_long_copy_is_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "BATCH", 7)
    driver = Driver(12080)
    source, target = Memory(2, 20, 3, 1), Memory(2, 20, 3, 500)
    one = copy_of(np.arange(0, 20, 2), np.arange(1, 20, 2))
    Batches(driver).issue(one, source.plane, target.plane, Descriptors().fill(one, source.plane, target.plane), 1)
    assert [count for count, *_ in driver.calls] == [7, 7, 6]
    assert (target.words[:, 1::2] == source.words[:, ::2]).all()


@VERSIONS
def test_a_refusal_may_be_tried_again(versions: tuple[int, ...]) -> None:
    driver = Driver(*versions, fail=(1, 1, 2))
    source, target = Memory(1, 8, 1, 1), Memory(1, 8, 1, 50)
    one = copy_of(ids(0, 2, 4), ids(0, 2, 4))
    batches, made = Batches(driver), Descriptors().fill(one, source.plane, target.plane)
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE") as caught:
        batches.issue(one, source.plane, target.plane, made, 1)
    assert ("at descriptor 2 of 3" in str(caught.value)) == (versions[0] == 12080)
    batches.issue(one, source.plane, target.plane, made, 1)
    assert target.words[0, ::2].ravel().tolist() == [1, 3, 5, 56]


def test_what_may_not_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Memory(1, 8, 1, 1), Memory(1, 8, 1, 50)
    one = copy_of(ids(0, 2, 4), ids(0, 2, 4))
    made = Descriptors().fill(one, source.plane, target.plane)
    with pytest.raises(DeviceLostError, match=r"ILLEGAL_ADDRESS.*start a new one.*CUDA_LAUNCH_BLOCKING"):
        Batches(Driver(12080, fail=(1, 700, 0))).issue(one, source.plane, target.plane, made, 1)
    with pytest.raises(DeviceLostError, match="answered error 12345"):
        Batches(Driver(12080, fail=(1, 12345, 0))).issue(one, source.plane, target.plane, made, 1)
    monkeypatch.setattr(batch_module, "BATCH", 2)
    with pytest.raises(DeviceLostError, match="after 2 of 3 descriptors had been issued"):
        Batches(Driver(12080, fail=(2, 1, 0))).issue(one, source.plane, target.plane, made, 1)


def test_a_driver_without_the_function() -> None:
    with pytest.raises(DeviceError, match=r"12080: CUDA_ERROR_NOT_FOUND, 13000: .*CUDA 12\.8"):
        Batches(Driver())


# ── events by name ────────────────────────────────────────────────────────────────────────────────────────────────────


class Handle:
    """An event object: which record it holds. `made` counts them."""

    made = 0

    def __init__(self) -> None:
        self.record = ""
        Handle.made += 1


@pytest.fixture
def events() -> Events[Handle]:
    Handle.made = 0
    return Events(Handle)


def recorded(events: Events[Handle], name: str) -> None:
    events.record(name, lambda handle: setattr(handle, "record", name))


def answers(events: Events[Handle], name: str) -> str | None:
    """The record that a call with this name would be about."""
    found: list[str | None] = [None]

    def look(handle: Handle) -> bool:
        found[0] = handle.record
        return True

    events.use(name, look)
    return found[0]


def test_a_name_without_a_record_is_complete(events: Events[Handle]) -> None:
    assert events.use("never", lambda handle: False)
    with events.blocked("never") as handle:
        assert handle is None
    events.drop("never")
    assert events.live == events.free == 0


def test_an_object_used_again_answers_for_its_new_name_only(events: Events[Handle]) -> None:
    for step in range(100):
        recorded(events, f"done#{step}")
        recorded(events, f"load#{step}")
        assert answers(events, f"done#{step}") == f"done#{step}"
        events.drop(f"done#{step}")
        assert answers(events, f"done#{step}") is None
        if step:
            events.drop(f"load#{step - 1}")
    assert Handle.made == 3
    assert (events.live, events.free) == (1, 2)


def test_a_second_record_replaces_the_first_on_the_same_object(events: Events[Handle]) -> None:
    recorded(events, "done")
    recorded(events, "done")
    assert Handle.made == 1


def test_a_record_that_fails_leaves_the_name_as_it_was(events: Events[Handle]) -> None:
    with pytest.raises(ZeroDivisionError):
        events.record("done", lambda handle: 1 // 0)
    assert answers(events, "done") is None


def test_an_object_that_a_thread_waits_for_is_not_used_again(events: Events[Handle]) -> None:
    recorded(events, "done#1")
    with events.blocked("done#1") as handle:
        events.drop("done#1")
        recorded(events, "done#2")
        assert handle is not None
        assert handle.record == "done#1"
    assert Handle.made == 2
    events.drop("done#2")
    recorded(events, "done#3")
    assert Handle.made == 2


# ── further host threads ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_thread_takes_the_jobs_in_order_and_ends_when_they_are_done() -> None:
    entered: list[str] = []
    workers = Workers(lambda: entered.append(threading.current_thread().name))
    done: list[int] = []

    def turn() -> bool:
        job = workers.get("jobs")
        if job is not None:
            done.append(job)
        return job is not None

    workers.start("copier", turn)
    for job in range(500):
        workers.put("jobs", job)
    workers.stop()
    workers.check()
    assert done == list(range(500))
    assert entered == ["kvsan copier"]
    assert not any(thread.name == "kvsan copier" for thread in threading.enumerate())


def test_a_sleeping_thread_wakes_at_a_put() -> None:
    workers, asleep, seen = Workers(), threading.Event(), threading.Event()

    def turn() -> bool:
        if workers.get("jobs") is not None:
            seen.set()
            return True
        asleep.set()
        return False

    workers.start("copier", turn)
    assert asleep.wait(30)
    assert not seen.is_set()
    workers.put("jobs", 1)
    assert seen.wait(30)
    workers.stop()


def test_what_a_turn_raises_is_raised_by_the_next_check_and_the_other_jobs_are_done() -> None:
    workers, done = Workers(), []

    def turn() -> bool:
        job = workers.get("jobs")
        if job in (1, 3):
            raise DeviceError(f"job {job}")
        if job is not None:
            done.append(job)
        return job is not None

    for job in range(6):
        workers.put("jobs", job)
    workers.start("copier", turn)
    workers.stop()
    with pytest.raises(DeviceError, match="job 1") as caught:
        workers.check()
    assert caught.value.__notes__ == ["1 more turns of other threads raised; the next: DeviceError('job 3')"]
    workers.check()
    assert done == [0, 2, 4, 5]


def test_a_turn_that_always_raises_ends_too() -> None:
    workers = Workers()

    def turn() -> bool:
        raise RuntimeError("broken before it took a job")

    workers.put("jobs", 1)
    workers.start("copier", turn)
    workers.stop()
    with pytest.raises(RuntimeError, match="broken"):
        workers.check()


def test_a_thread_that_cannot_begin_says_so() -> None:
    def enter() -> None:
        raise DeviceError("no context")

    workers = Workers(enter)
    workers.start("copier", lambda: False)
    workers.stop()
    with pytest.raises(DeviceError, match="no context"):
        workers.check()


# ── torch without a GPU ───────────────────────────────────────────────────────────────────────────────────────────────


def test_copy_by_runs_equals_a_copy_by_index() -> None:
    torch = pytest.importorskip("torch")
    from kvsan.runtime.device.cuda import copy_runs

    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    for _ in range(50):
        source, target = Memory(3, 40, 2, 1), Memory(3, 40, 2, 1000)
        sources, targets = rng.permutation(40)[:25], rng.permutation(40)[:25]
        wanted = target.words.copy()
        wanted[:, targets] = source.words[:, sources]
        copy_runs(torch.from_numpy(source.words), torch.from_numpy(target.words), sources, targets)
        assert (target.words == wanted).all()


def test_no_gpu_is_an_error_that_says_so() -> None:
    torch = pytest.importorskip("torch")
    from kvsan.runtime.device.cuda import CudaDevice

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match="sees no CUDA device; `simulated` runs on any CPU"):
        CudaDevice()
