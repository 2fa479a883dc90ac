"""`attach.torch` on real streams and events: `pytest -m gpu tests/gpu/test_attach_torch.py`."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvsan.checker import access, register_pool, session
from kvsan.checker.attach.lines import RECORD, decoded
from kvsan.checker.attach.patches import Patches
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.torch import deriving, install
from kvsan.checker.attach.torch.calls import Calls
from kvsan.checker.attach.torch.surface import torch_surface
from kvsan.checker.options import Options
from kvsan.checker.session import Session

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

BLOCKS = 64


@pytest.fixture
def debug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    made = Session(Options(log_path=str(tmp_path / "log"), incident_path=str(tmp_path / "i-%n.jsonl")))
    monkeypatch.setattr(session, "_all", [made])
    install(made)
    yield made
    made.close()
    assert made.recorder.fault_text is None


@pytest.fixture
def pool(debug: Session) -> Any:
    cache = torch.zeros(BLOCKS, 16, device="cuda")
    register_pool(cache, BLOCKS, "gpu")
    return cache


def kinds(debug: Session) -> list[str]:
    assert debug.check is not None
    debug.recorder.settle_up()  # lines wait until many are there
    return [found.hazard.kind.value for found in debug.check.findings.real()]


def record_and_wait(event: Any, side: Any) -> None:
    event.record()
    side.wait_event(event)


FENCES = {
    "torch.cuda.Event": lambda side: record_and_wait(torch.cuda.Event(), side),
    "torch.Event": lambda side: record_and_wait(torch.Event(), side),
    "event.wait(stream)": lambda side: torch.cuda.current_stream().record_event().wait(side),
    "wait_stream": lambda side: side.wait_stream(torch.cuda.current_stream()),
    "synchronize": lambda side: torch.cuda.synchronize(),
    "current_stream().synchronize()": lambda side: torch.cuda.current_stream().synchronize(),
    ".item()": lambda side: torch.ones(1, device="cuda").item(),
    ".cpu()": lambda side: torch.ones(1, device="cuda").cpu(),
    "nonzero, in C++": lambda side: torch.ones(3, device="cuda").nonzero(),
}


@pytest.mark.parametrize("fence", [None, *FENCES])
def test_each_fence_is_heard(debug: Session, pool: Any, fence: str | None) -> None:
    side = torch.cuda.Stream()
    host = torch.ones(4, 16, pin_memory=True)
    with deriving():
        pool[0:4].add_(1)
        if fence is not None:
            FENCES[fence](side)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            pool[2:6].copy_(host, non_blocking=True)
    assert kinds(debug) == (["WAW"] if fence is None else [])
    assert debug.recorder.ledger.edges == 0


@pytest.mark.parametrize("fenced", [True, False])
def test_declared_accesses(debug: Session, pool: Any, fenced: bool) -> None:
    side = torch.cuda.Stream()
    with access("attention", reads={"gpu": [1, 2]}):
        pool.sum()
    if fenced:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), access("load", writes={"gpu": [2]}):
        pool[2].zero_()
    assert kinds(debug) == ([] if fenced else ["WAR"])


def test_a_query_is_a_sync_and_a_false_one_is_none(debug: Session, pool: Any) -> None:
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    with access("attention", reads={"gpu": [1]}):
        torch.cuda._sleep(50_000_000)
    event.record()
    assert event.query() is False
    with torch.cuda.stream(side), access("early", writes={"gpu": [1]}):
        pass
    assert kinds(debug) == ["WAR"]
    while not event.query():
        pass
    with access("attention", reads={"gpu": [2]}):
        pass
    event.record()
    while not event.query():
        pass
    with torch.cuda.stream(side), access("late", writes={"gpu": [2]}):
        pass
    assert kinds(debug) == ["WAR"]


def test_blocks_by_address_on_the_device(debug: Session, pool: Any) -> None:
    index = torch.tensor([7], device="cuda")  # a pageable copy, which blocks: a sync, and no line of what follows
    before = debug.recorder.ops
    with deriving():
        pool[3:5].zero_()
        pool.index_fill_(0, index, 1.0)
    assert debug.recorder.ops == before + 1
    assert debug.recorder.ledger.copies == 1


def test_a_graph_s_capture_is_no_order(debug: Session, pool: Any) -> None:
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        event = torch.cuda.Event()
        event.record()
        pool.add_(1)
    before = debug.recorder.ops
    with access("replay", writes={"gpu": [1]}):
        graph.replay()
    with torch.cuda.stream(side), access("load", writes={"gpu": [1]}):
        pass
    assert debug.recorder.ops == before + 2
    assert kinds(debug) == ["WAW"]


def test_what_goes_by_the_wrappers_is_counted(debug: Session, pool: Any) -> None:
    """An event made before the session, of the C type itself."""
    made = debug.recorder.attachments["torch"]
    raw = type(torch.Event()).__mro__[1]
    assert raw.__name__ == "Event"
    event = raw("cuda")
    event.record()
    assert debug.recorder.ledger.edges == 0  # nobody relies on it yet
    torch.cuda.Stream().wait_event(event)
    assert debug.recorder.ledger.edges == 1
    assert made is debug.recorder.attachments["torch"]


def test_torch_events_are_still_what_they_were(debug: Session) -> None:
    event = torch.Event()
    assert isinstance(event, torch.Event)
    assert isinstance(torch.cuda.Event(), torch.cuda.Event)
    stream = torch.cuda.Stream()
    assert isinstance(stream, torch.Stream)
    event.record(stream)
    stream.synchronize()
    assert event.query()
    del event
    gc.collect()
    debug.recorder.put("t")
    assert debug.recorder.fault_text is None


def test_an_event_ends_without_a_weak_reference(debug: Session) -> None:
    """`torch.cuda.Event` of torch 2.10 to 2.12 leaves weak references dangling: names must not rest on one."""
    for make in (torch.cuda.Event, torch.Event):
        event = make()
        event.record()
        name = debug.recorder.event(event)
        assert weakref.getweakrefcount(event) == 0
        del event
        gc.collect()
        again = [make() for _ in range(64)]  # one of them at the same address
        assert name not in {debug.recorder.event(each) for each in again}
        debug.recorder.put(f"after {name}")
        assert debug.check is not None
        assert name not in debug.check.online.clocks.events, "its drop was not logged"


@pytest.mark.parametrize("given", [True, False])
def test_a_generic_stream_records_an_event(debug: Session, pool: Any, given: bool) -> None:
    """`torch.Stream.record_event` takes an event of its very class; and the stream is one, whichever class names it."""
    side, compute = torch.cuda.Stream(), torch.cuda.current_stream()
    generic = torch.accelerator.current_stream()
    assert isinstance(generic, torch.Stream)
    with access("forward", reads={"gpu": [1]}):
        pass
    event = generic.record_event(torch.Event()) if given else generic.record_event()
    assert isinstance(event, torch.Event)
    side.wait_event(event)
    with torch.cuda.stream(side), access("load", writes={"gpu": [1]}):
        pass
    assert debug.recorder.fault_text is None
    assert kinds(debug) == []
    assert debug.recorder.ledger.edges == 0
    made = debug.recorder.attachments["torch"]
    assert made.name(generic) == made.name(compute)  # type: ignore[attr-defined]


def test_a_generic_stream_waits_and_is_waited_for(debug: Session, pool: Any) -> None:
    side = torch.Stream("cuda")
    with access("forward", reads={"gpu": [1]}):
        pass
    side.wait_stream(torch.accelerator.current_stream())
    with side, access("load", writes={"gpu": [1]}):
        pass
    assert kinds(debug) == []
    other = torch.Stream("cuda")
    with other, access("late", writes={"gpu": [1]}):
        pass
    assert kinds(debug) == ["WAR", "WAW"]  # the forward's read, the load's write: `other` knows of neither
    assert debug.recorder.ledger.edges == 0


class Beside:
    """In place of the process beside."""

    def __init__(self) -> None:
        self.arrived: list[Any] = []

    def pool(self, *_: object) -> None: ...

    stream = follow = pool

    def lines(self, lines: list[Any]) -> None:
        self.arrived += lines

    def packed(self, lines: bytes) -> None:
        self.arrived += decoded(lines)


@pytest.mark.parametrize("many", [2, 6])
def test_a_stream_that_is_another_object_each_time_is_told_by_its_number(many: int) -> None:
    """PyTorch makes one at each look; in C its number and device are read where it keeps them."""
    beside, recorder = Beside(), Recorder([])
    recorder.listen((), batch=512, beside=beside)
    calls = Calls(recorder, torch_surface(), Patches())
    calls.install()
    try:
        streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(many - 1))]
        want = []
        for _ in range(4):
            for stream in streams:
                handle = stream.cuda_stream  # 0 is no external stream's: PyTorch makes one of its own then
                with torch.cuda.stream(stream):
                    external = torch.cuda.ExternalStream(handle) if handle else torch.cuda.current_stream()
                    for each in (torch.cuda.current_stream(), external, None):
                        torch.cuda.Event().record(each)
                        want.append(recorder.find_stream(0, handle))
    finally:
        calls.uninstall()
    recorder.settle_up()
    found = [line[2] for line in beside.arrived if line[0] == RECORD]
    assert found == want
    assert len(set(found)) == many
    assert recorder.fault_text is None


def test_a_closed_session_leaves_no_callback(debug: Session) -> None:
    from torch.cuda import _gpu_trace

    held = [each for each in vars(_gpu_trace).values() if hasattr(each, "callback_list")]
    before = sum(len(each.callback_list) for each in held)
    debug.close()
    assert sum(len(each.callback_list) for each in held) == before - 4


def test_elapsed_time_of_the_stand_in(debug: Session) -> None:
    """The C method takes an end of its very class and of no subclass; vLLM's OffloadingConnector calls it."""
    start, end = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
    with pytest.raises(RuntimeError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    torch.cuda._sleep(20_000_000)
    end.record()
    with pytest.raises(RuntimeError, match="completed"):
        start.elapsed_time(end)
    end.synchronize()
    assert 1 < start.elapsed_time(end) < 1000
    assert debug.recorder.fault_text is None


def test_threads_hammer_a_device(debug: Session, pool: Any) -> None:
    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(500):
                with access("own", writes={"gpu": [seed]}):
                    pool[seed].add_(1)
                event = torch.cuda.Event()
                event.record()
                event.query()
                event.synchronize()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert kinds(debug) == []
    assert debug.summary().verdict.name == "clean"
    assert pool.sum().item() == 8 * 500 * 16
