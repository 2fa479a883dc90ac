"""`device/cuda.py` on a real GPU: `pytest -m gpu tests/gpu/test_cuda_device.py`.

Order is tested with a spin kernel: what is ordered behind it sees what comes after it, what is not does not. Each such
test has its twin without the wait, which must fail to order. Both ways of copying are held to the same tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from kvsan.model.ops import Source
from kvsan.runtime.device import Copy, DeviceError, Kernel

torch = pytest.importorskip("torch")
cuda = pytest.importorskip("kvsan.runtime.device.cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none"),
]

SEED = 20261130
SPIN = 100_000_000
"""Clock cycles: 50 ms at 2 GHz."""
LAYERS, BLOCKS, WORDS = 3, 64, 8
OLD, NEW = 5, 7


@pytest.fixture(params=["batch", "copy_"])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = cuda.CudaDevice(copies=request.param)
    for name, side in (("compute", False), ("store", True), ("load", True)):
        made.stream(name, side=side)
    yield made
    made.close()


class Pools:
    """A GPU pool and a host pool, with the same number in every word."""

    def __init__(self, device: Any, value: int = OLD, *, layers: int = LAYERS, blocks: int = BLOCKS) -> None:
        self.gpu = device.memory("gpu", (layers, blocks, WORDS), host=False)
        self.host = device.memory("host", (layers, blocks, WORDS), host=True)
        self.gpu.fill_(value)
        self.host.fill_(value)
        torch.cuda.synchronize()


def ids(*blocks: int) -> Any:
    return np.array(blocks, np.int64)


def store(blocks: Any, onto: Any, order: Source = "stream") -> Copy:
    return Copy("store", "gpu", blocks, "host", onto, order)


def load(blocks: Any, onto: Any, order: Source = "stream") -> Copy:
    return Copy("load", "host", blocks, "gpu", onto, order)


def spin(cycles: int = SPIN) -> None:
    torch.cuda._sleep(cycles)


def late_write(pools: Pools, block: int = 1) -> Kernel:
    """Writes NEW into a block after a while."""
    return Kernel("forward", parts=(spin, lambda: pools.gpu[:, block].fill_(NEW)))


# ── copies ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", ["stream", "any", "call"])
def test_copies_of_random_blocks_both_ways(device: Any, order: Source) -> None:
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    pools, host = Pools(device), device.host("main")
    for _ in range(30):
        wanted_gpu = rng.integers(0, 1 << 60, pools.gpu.shape)
        wanted_host = rng.integers(0, 1 << 60, pools.host.shape)
        pools.gpu.copy_(torch.from_numpy(wanted_gpu))
        pools.host.copy_(torch.from_numpy(wanted_host))
        torch.cuda.synchronize()
        count = int(rng.integers(0, BLOCKS // 2))
        sources, targets = rng.permutation(BLOCKS)[:count], rng.permutation(BLOCKS)[:count]
        if rng.random() < 0.5:
            sources, targets = np.sort(sources), np.sort(targets)  # has runs
        host.copy("load", load(sources, targets, order))
        wanted_gpu[:, targets] = wanted_host[:, sources]
        host.record("load", "loaded")
        host.sync("loaded")
        sources, targets = rng.permutation(BLOCKS)[:count], rng.permutation(BLOCKS)[:count]
        host.copy("store", store(sources, targets, order))
        wanted_host[:, targets] = wanted_gpu[:, sources]
        host.record("store", "stored")
        host.sync("stored")
        assert (pools.gpu.cpu().numpy() == wanted_gpu).all()
        assert (pools.host.numpy() == wanted_host).all()


def test_a_copy_of_more_descriptors_than_one_call_takes(device: Any) -> None:
    pools, host = Pools(device, layers=16, blocks=4096), device.host("main")
    every_second = np.arange(0, 4096, 2)
    pools.host.copy_(torch.arange(pools.host.numel()).view_as(pools.host))
    host.copy("load", load(every_second, every_second + 1))
    host.record("load", "loaded")
    host.sync("loaded")
    assert (pools.gpu.cpu()[:, 1::2] == pools.host[:, ::2]).all()
    assert (pools.gpu.cpu()[:, ::2] == OLD).all()


def test_copies_on_the_gpu_and_on_the_host(device: Any) -> None:
    pools, host = Pools(device), device.host("main")
    other = device.memory("other", (LAYERS, BLOCKS, WORDS), host=False)
    more = device.memory("more", (LAYERS, BLOCKS, WORDS), host=True)
    host.copy("load", Copy("move", "gpu", ids(3, 4), "other", ids(8, 9)))
    host.copy("load", Copy("move", "host", ids(3), "more", ids(2)))
    host.record("load", "moved")
    host.sync("moved")
    assert (other.cpu()[:, 8:10] == OLD).all()
    assert (more[:, 2] == OLD).all()
    assert int(other.sum()) == 2 * LAYERS * WORDS * OLD
    assert int(more.sum()) == LAYERS * WORDS * OLD
    assert int(pools.gpu.sum()) == LAYERS * BLOCKS * WORDS * OLD


def test_the_fallback_does_what_the_batches_do() -> None:
    print("seed", SEED)
    left = []
    for copies in ("batch", "copy_"):
        rng = np.random.default_rng(SEED)
        one = cuda.CudaDevice(copies=copies)
        one.stream("load", side=True)
        pools, host = Pools(one), one.host("main")
        pools.host.copy_(torch.from_numpy(rng.integers(0, 1 << 60, pools.host.shape)))
        for _ in range(50):
            count = int(rng.integers(1, 20))
            sources, targets = rng.permutation(BLOCKS)[:count], rng.permutation(BLOCKS)[:count]
            host.copy("load", load(sources, targets) if rng.random() < 0.5 else store(sources, targets))
        one.close()
        left.append((pools.gpu.cpu(), pools.host.clone()))
        assert one.name.startswith(torch.cuda.get_device_name())
        assert ("cuMemcpyBatchAsync" in one.name) == (copies == "batch")
    assert (left[0][0] == left[1][0]).all()
    assert (left[0][1] == left[1][1]).all()


def test_arguments_that_do_not_fit_leave_nothing_behind(device: Any) -> None:
    pools, host = Pools(device), device.host("main")
    for bad in (load(ids(0, 1), ids(0)), load(ids(BLOCKS), ids(0)), load(ids(0), ids(-1))):
        with pytest.raises(DeviceError, match="nothing was issued"):
            host.copy("load", bad)
    with pytest.raises(DeviceError, match="no stream 'side'; there are compute, store, load"):
        host.copy("side", load(ids(0), ids(0)))
    with pytest.raises(DeviceError, match="no pool 'disk'; there are gpu, host"):
        host.copy("load", Copy("load", "disk", ids(0), "gpu", ids(0)))
    host.copy("load", load(ids(), ids()))
    host.record("load", "loaded")
    host.sync("loaded")
    assert (pools.gpu == OLD).all()


def test_the_driver_refuses_the_legacy_default_stream_and_goes_on() -> None:
    one = cuda.CudaDevice(copies="batch")
    one.stream("load", side=True)
    pools, host = Pools(one), one.host("main")
    pools.host.fill_(NEW)
    copy = load(ids(0), ids(0))
    descriptors = host._descriptors.fill(copy, one.plane("host"), one.plane("gpu"))
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE.*may be tried again"):  # noqa: RUF043
        one.batches.issue(copy, one.plane("host"), one.plane("gpu"), descriptors, 0)
    host.copy("load", copy)
    one.close()
    assert (pools.gpu[:, 0] == NEW).all()


# ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fenced", [True, False])
def test_a_store_behind_a_write(device: Any, fenced: bool) -> None:
    pools, host = Pools(device), device.host("main")
    host.launch("compute", late_write(pools))
    host.record("compute", "done")
    if fenced:
        host.wait("store", "done")
    host.copy("store", store(ids(1), ids(2)))
    host.record("store", "stored")
    host.sync("stored")
    assert (pools.host[:, 2] == (NEW if fenced else OLD)).all()


@pytest.mark.parametrize("fenced", [True, False])
def test_a_load_behind_a_read(device: Any, fenced: bool) -> None:
    pools, host = Pools(device), device.host("main")
    pools.host.fill_(NEW)
    seen = torch.zeros_like(pools.gpu[:, 0])
    torch.cuda.synchronize()
    host.launch("compute", Kernel("forward", parts=(spin, lambda: seen.copy_(pools.gpu[:, 1]))))
    host.record("compute", "done")
    if fenced:
        host.wait("load", "done")
    host.copy("load", load(ids(0), ids(1)))
    host.record("load", "loaded")
    host.sync("loaded")
    host.sync("done")
    assert (seen == (OLD if fenced else NEW)).all()


def test_a_wait_is_for_the_latest_record_at_its_call(device: Any) -> None:
    pools, host = Pools(device), device.host("main")
    host.record("compute", "done")
    host.wait("store", "done")
    host.launch("compute", late_write(pools))
    host.record("compute", "done")
    host.copy("store", store(ids(1), ids(2)))
    host.record("store", "stored")
    host.sync("stored")
    assert not host.query("done")
    assert (pools.host[:, 2] == OLD).all()


def test_an_event_never_recorded_orders_nothing_nor_does_a_dropped_one(device: Any) -> None:
    pools, host = Pools(device), device.host("main")
    host.record("compute", "old")
    host.drop("old")
    host.launch("compute", late_write(pools))
    host.record("compute", "done")  # the object that `old` had
    assert device.events.live == 1
    assert device.events.free == 0
    for name in ("never", "old"):
        assert host.query(name)
        host.sync(name)
        host.wait("store", name)
    assert not host.query("done")
    host.copy("store", store(ids(1), ids(2)))
    host.record("store", "stored")
    host.sync("stored")
    assert (pools.host[:, 2] == OLD).all()
    host.sync("done")
    assert host.query("done")


def test_events_are_used_again(device: Any) -> None:
    host = device.host("main")
    for step in range(1000):
        host.record("compute", f"done#{step}")
        host.sync(f"done#{step}")
        host.drop(f"done#{step}")
    assert (device.events.live, device.events.free) == (0, 1)


def test_sync_lets_other_threads_run(device: Any) -> None:
    host, ticks, stop = device.host("main"), [0], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        host.launch("compute", Kernel("forward", parts=(lambda: spin(10 * SPIN),)))
        host.record("compute", "done")
        assert not host.query("done")
        before = ticks[0]
        host.sync("done")
        during = ticks[0] - before
    finally:
        stop.set()
        thread.join()
    assert during > 10_000


def test_streams_and_priorities(device: Any) -> None:
    lowest, highest = torch.cuda.Stream.priority_range()
    assert lowest == max(lowest, highest)
    handles = {name: device.handle(name) for name in ("compute", "store", "load")}
    assert handles["store"].priority == handles["load"].priority == lowest
    raw = [handle.cuda_stream for handle in handles.values()]
    assert len(set(raw)) == 3
    assert not set(raw) & {0, 1, 2}  # legacy by either name, and the per-thread one
    with pytest.raises(DeviceError, match="already"):
        device.stream("load", side=True)


def test_no_stream_is_given_twice() -> None:
    one = cuda.CudaDevice()
    for number in range(cuda.STREAMS):
        one.stream(f"s{number}", side=True)
    with pytest.raises(DeviceError, match="one too many"):
        one.stream("one more", side=True)
    raw = [one.handle(name).cuda_stream for name in one._streams]
    assert len(set(raw)) == len(raw) == 32


# ── when a source is read ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("order", "expected"), [("call", OLD), ("stream", NEW)])
def test_a_source_rewritten_right_after_the_call(device: Any, order: Source, expected: int) -> None:
    pools, host = Pools(device), device.host("main")
    host.launch("load", Kernel("before", parts=(spin,)))
    host.copy("load", load(ids(0), ids(1), order))
    pools.host.fill_(NEW)
    host.record("load", "loaded")
    host.sync("loaded")
    assert (pools.gpu[:, 1] == expected).all()


@pytest.mark.parametrize("direction", ["store", "load"])
@pytest.mark.parametrize("order", ["stream", "any"])
def test_whether_a_source_is_read_before_the_streams_earlier_work(
    device: Any, order: Source, direction: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`stream` never is. `any` may be, and need not: how often it was is printed, for docs/results.md."""
    pools, host = Pools(device, blocks=256), device.host("main")
    blocks = np.arange(256)
    early = 0
    for attempt in range(20):
        old, new = 2 * attempt, 2 * attempt + 1
        pools.gpu.fill_(old)
        pools.host.fill_(old)
        torch.cuda.synchronize()
        source, target = (pools.gpu, pools.host) if direction == "store" else (pools.host, pools.gpu)
        host.launch("compute", Kernel("change", parts=(partial(spin, SPIN // 10), partial(refill, source, new))))
        host.record("compute", "changed")
        host.wait(direction, "changed")
        host.copy(direction, (store if direction == "store" else load)(blocks, blocks, order))
        host.record(direction, "copied")
        host.sync("copied")
        torch.cuda.synchronize()
        found = set(target.cpu().unique().tolist())
        assert found <= {old, new}
        early += old in found
    with capsys.disabled():
        print(f"\nread before the wait: {direction} {order} {device.name}: {early} of 20")
    if order == "stream":
        assert early == 0


def refill(pool: Any, value: int) -> None:
    """On the stream that is current, also for a pool of the host's."""
    pool.copy_(torch.full(pool.shape, value, dtype=pool.dtype, device="cuda"), non_blocking=True)


# ── threads, errors, end ──────────────────────────────────────────────────────────────────────────────────────────────


def test_another_thread_copies(device: Any) -> None:
    pools, main = Pools(device), device.host("main")
    pools.host.copy_(torch.arange(pools.host.numel()).view_as(pools.host))
    copier, names = device.host("copier"), []

    def turn() -> bool:
        job = copier.get("loads")
        if job is None:
            return False
        names.append(threading.current_thread().name)
        copier.copy("load", load(ids(job), ids(job)))
        copier.record("load", f"loaded#{job}")
        copier.put("done", job)
        return True

    device.thread("copier", turn)
    for job in range(BLOCKS):
        main.put("loads", job)
    left = set(range(BLOCKS))
    while left:
        device.turns()
        job = main.get("done")
        if job is not None:
            main.sync(f"loaded#{job}")
            assert (pools.gpu[:, job].cpu() == pools.host[:, job]).all()
            left.remove(job)
    assert set(names) == {"kvsan copier"}


def until_it_raises(call: Callable[[], None]) -> None:
    for _ in range(1_000_000):
        call()


def test_what_a_thread_raises_comes_back_and_close_ends_it(device: Any) -> None:
    Pools(device)
    main, copier, failed = device.host("main"), device.host("copier"), threading.Event()

    def turn() -> bool:
        job = copier.get("loads")
        if job is None:
            return False
        try:
            copier.copy("load", load(ids(job), ids(0)))
        finally:
            failed.set()
        return True

    device.thread("copier", turn)
    main.put("loads", BLOCKS + 1)
    assert failed.wait(30)
    with pytest.raises(DeviceError, match="of host; it has blocks"):
        until_it_raises(device.turns)
    main.put("loads", BLOCKS + 2)
    with pytest.raises(DeviceError, match="of host; it has blocks"):
        device.close()
    device.close()
    assert not any(thread.name == "kvsan copier" for thread in threading.enumerate())


def test_what_a_part_raises_is_not_changed(device: Any) -> None:
    host = device.host("main")

    def part() -> None:
        raise ZeroDivisionError("in a part")

    with pytest.raises(ZeroDivisionError):
        host.launch("compute", Kernel("forward", parts=(part,)))
    ran = []
    host.work(Kernel("host work", parts=(lambda: ran.append(torch.cuda.current_stream()),)))
    assert ran == [torch.cuda.current_stream()]


def test_memory_that_does_not_fit(device: Any) -> None:
    with pytest.raises(DeviceError, match="does not fit on the GPU"):
        device.memory("vast", (1, 1 << 20, 1 << 20), host=False)
    with pytest.raises(DeviceError, match="accepted:"):
        device.memory("flat", (8,), host=True)
    assert device.tensor((8,), host=False).is_cuda
    assert device.tensor((3, 8), host=True).is_pinned()
    pool = device.memory("pool", (2, 3, 4), host=True)
    assert pool.is_pinned()
    assert int(pool.sum()) == 0
    with pytest.raises(DeviceError, match="already"):
        device.memory("pool", (2, 3, 4), host=True)


FAULT = """
import torch
from kvsan.runtime.device import DeviceLostError, Kernel
from kvsan.runtime.device.cuda import CudaDevice
device = CudaDevice()
device.stream("compute", side=False)
host = device.host("main")
bad = torch.zeros(1, device="cuda")
host.launch("compute", Kernel("forward", parts=(lambda: torch._assert_async(bad),)))
try:
    host.record("compute", "done")
    host.sync("done")
except DeviceLostError as error:
    print("lost:", error)
try:
    device.close()
except DeviceLostError as error:
    print("close:", error)
"""


def test_an_error_of_earlier_work_is_lost_and_says_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULT], capture_output=True, text=True, timeout=120, env=dict(os.environ), check=False
    )
    lines = done.stdout.splitlines()
    assert any(line.startswith("lost: ") and "CUDA_LAUNCH_BLOCKING" in line for line in lines), done
    assert any(line.startswith("close: ") for line in lines), done
