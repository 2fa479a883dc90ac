"""`attach.torch`: each call becomes the lines that TRACE.md says, once, and goes away again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from attach.stand_ins import Log, World
from kvsan.checker import access, register_pool, session
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.torch import Calls, Surface, deriving, install
from kvsan.checker.attach.torch.crosscheck import CrossCheck
from kvsan.checker.attach.torch.surface import identity
from kvsan.checker.options import Options
from kvsan.checker.session import Session
from kvsan.model.ops import Access


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def calls(world: World, log: Log) -> Iterator[Calls]:
    made = install(Recorder([log]), world.surface())
    yield made
    made.uninstall()


def test_record_wait_query_and_syncs(world: World, log: Log, calls: Calls) -> None:
    side, event = world.Stream(7), world.Event()
    event.record()
    side.wait_event(event)
    event.query()
    event.done = False
    event.query()
    event.synchronize()
    side.synchronize()
    world.synchronize()
    assert log.shown() == [
        "record default0 e1",
        "wait s1 e1",
        "poll e1 True",
        "poll e1 False",
        "sync e1",
        "sync s1",
        "sync 0",
    ]
    assert log.streams["default0"].kind == "legacy"
    assert log.streams["s1"].kind == "nonblocking"
    assert log.held == []


def test_a_composed_call_is_logged_once(world: World, log: Log, calls: Calls) -> None:
    side = world.Stream(7)
    side.wait_stream(world.default)
    assert log.shown() == ["record default0 e1", "wait s0 e1", "drop e1"]


def test_record_event_names_the_event_that_it_makes(world: World, log: Log, calls: Calls) -> None:
    made = world.default.record_event()
    world.Stream(9).wait_event(made)
    assert log.shown() == ["record default0 e1", "wait s1 e1"]


def test_elapsed_time_shows_both_done(world: World, log: Log, calls: Calls) -> None:
    first, last = world.Event(), world.Event()
    first.elapsed_time(last)
    assert log.shown() == ["poll e1 True", "poll e2 True"]


def test_a_stream_found_done_is_a_sync(world: World, log: Log, calls: Calls) -> None:
    assert world.Stream(7).query()
    assert log.shown() == ["sync s0"]


@pytest.mark.parametrize("what", ["record", "wait", "query"])
def test_a_failed_call_is_no_line(world: World, log: Log, calls: Calls, what: str) -> None:
    world.fails = RuntimeError("CUDA error")
    with pytest.raises(RuntimeError, match="CUDA error"):
        getattr(world.Event(), what)()
    assert log.ops == []


def test_a_failed_sync_leaves_a_line_that_orders_nothing(world: World, log: Log, calls: Calls) -> None:
    event = world.Event()
    event.record()
    world.fails = RuntimeError("CUDA error")
    for call in (event.synchronize, world.default.synchronize, world.synchronize):
        with pytest.raises(RuntimeError):
            call()
    assert log.shown()[1] == "poll e1 False"
    assert [line.split()[0] for line in log.shown()[2:]] == ["put", "put"]


def test_a_new_event_at_an_old_address_is_another(world: World, log: Log, calls: Calls) -> None:
    names = set()
    for _ in range(50):
        event = world.Event()
        event.record()
        del event
        gc.collect()
    names = {line for line in log.shown() if line.startswith("record")}
    assert len(names) == 50
    assert sum(line.startswith("drop") for line in log.shown()) == 49  # the last is noticed at the next line


def test_threads_are_agents_and_never_reused(world: World, log: Log, calls: Calls) -> None:
    def work() -> None:
        world.Event().record()

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert {op.by for op in log.ops if type(op).__name__ == "Record"} == {"h0", "h1", "h2"}


def test_devices_have_their_own_default_streams(world: World, log: Log, calls: Calls) -> None:
    world.Event().record(world.Stream(0, device=0))
    world.Event().record(world.Stream(0, device=1))
    assert {name: stream.device for name, stream in log.streams.items()} == {"default0": 0, "default1": 1}


def test_the_per_thread_default_stream_is_one_a_thread(world: World, log: Log, calls: Calls) -> None:
    shared = world.Stream(2)

    def work() -> None:
        world.Event().record(shared)

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    kinds = {name: stream.kind for name, stream in log.streams.items()}
    assert len(kinds) == 2
    assert set(kinds.values()) == {"per-thread"}


def test_a_recycled_handle_gets_a_new_name(world: World, log: Log, calls: Calls) -> None:
    recorder = calls.recorder
    first = recorder.stream(0, 99, name="load")
    recorder.stream_gone(0, 99)
    assert recorder.stream(0, 99, name="load") != first
    assert recorder.stream(0, 98, name="load") not in (first, recorder.stream(0, 99))


def test_off_means_the_originals(world: World, log: Log) -> None:
    before = {name: vars(world.Event)[name] for name in ("record", "wait", "query", "synchronize")}
    made = install(Recorder([log]), world.surface())
    assert vars(world.Event)["record"] is not before["record"]
    made.uninstall()
    assert {name: vars(world.Event)[name] for name in before} == before
    world.Event().record()
    assert log.ops == []


def test_installed_twice_counts_once(world: World, log: Log) -> None:
    recorder = Recorder([log])
    made = install(recorder, world.surface())
    assert install(recorder, world.surface()) is made
    world.Event().record()
    assert len(log.ops) == 1
    made.uninstall()


def test_nothing_is_logged_while_a_graph_is_captured(world: World, log: Log) -> None:
    class Graph:
        def capture_begin(self) -> None: ...

        def capture_end(self) -> None: ...

    made = install(Recorder([log]), world.surface(graphs=(Graph,)))
    graph = Graph()
    graph.capture_begin()
    world.Event().record()
    graph.capture_end()
    world.Event().record()
    made.uninstall()
    assert len(log.ops) == 1


class Tensor:
    """A tensor as far as blocking goes."""

    def __init__(self, *, is_cuda: bool) -> None:
        self.is_cuda, self.shape = is_cuda, (1,)

    def item(self) -> int:
        return 1

    def cpu(self) -> Tensor:
        return Tensor(is_cuda=False)

    def copy_(self, source: Any, non_blocking: bool = False) -> Tensor:
        return self

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        return self


@pytest.mark.parametrize(
    ("call", "blocks"),
    [
        (lambda device, host: device.item(), True),
        (lambda device, host: host.item(), False),
        (lambda device, host: device.cpu(), True),
        (lambda device, host: device.copy_(host), True),
        (lambda device, host: host.copy_(device, non_blocking=True), False),
        (lambda device, host: device.copy_(device), False),
        (lambda device, host: device.to("cpu"), True),
        (lambda device, host: host.to("cuda:0"), True),
        (lambda device, host: device.to("cpu", non_blocking=True), False),
        (lambda device, host: device.to("cuda"), False),
        (lambda device, host: device.to(float), False),
        (lambda device, host: host.to(device), True),
    ],
)
def test_copies_that_block_are_syncs(world: World, log: Log, call: Any, blocks: bool) -> None:
    kind = type("T", (Tensor,), {name: vars(Tensor)[name] for name in ("item", "cpu", "copy_", "to")})
    made = install(Recorder([log]), world.surface(tensors=(kind,), on_device=lambda tensor: tensor.is_cuda))
    call(kind(is_cuda=True), kind(is_cuda=False))
    made.uninstall()
    assert log.shown() == (["sync default0"] if blocks else [])


def test_what_no_wrapper_saw_is_an_unseen_edge(world: World, log: Log, calls: Calls) -> None:
    check, ledger = calls._crosscheck, calls.recorder.ledger
    check.arm()
    check.wait_call(1, 2)
    assert ledger.edges == 1
    check.stream_sync(7)
    assert log.shown() == ["sync s0"]
    calls.here.busy = 1
    check.wait_call(1, 2)
    check.stream_sync(7)
    assert ledger.edges == 1
    assert len(log.ops) == 1
    calls.here.busy = 0
    check.uninstall()
    check.wait_call(1, 2)
    assert ledger.edges == 1


def test_an_unseen_record_counts_once_somebody_may_rely_on_it(calls: Calls) -> None:
    """The pinned-memory allocator records events that only it looks at: those order nothing that we check."""
    check, ledger, here = calls._crosscheck, calls.recorder.ledger, calls.here
    check.arm()
    check.record_call(5, 0)
    assert ledger.edges == 0, "nobody waits for it"
    here.busy = 1
    check.wait_call(5, 1)
    assert ledger.edges == 1, "a wrapped wait does"
    check.record_call(5, 0)
    check.wait_call(5, 1)
    assert ledger.edges == 1, "recorded by a wrapped call since"
    here.busy = 0
    check.record_call(5, 0)
    assert ledger.edges == 2, "a known event, recorded behind our back"
    check.deletion_call(5)
    check.record_call(5, 0)
    assert ledger.edges == 2, "the handle came back as another event"


def test_the_lock_is_never_held_over_a_blocking_call(world: World, log: Log, calls: Calls) -> None:
    """While one thread blocks in a sync, another can record; and the sync stands before that record."""
    entered, leave = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        assert leave.wait(10)

    event = world.Event()
    event.record()
    world.call = block  # type: ignore[method-assign]
    waiting = threading.Thread(target=event.synchronize)
    waiting.start()
    assert entered.wait(10)
    world.call = lambda: None  # type: ignore[method-assign]
    event.record()
    leave.set()
    waiting.join(10)
    assert [(line, op.by) for line, op in zip(log.shown(), log.ops, strict=True)] == [
        ("record default0 e1", "h0"),
        ("sync e1", "h1"),
        ("record default0 e1", "h0"),
    ]


def test_the_lock_is_held_over_a_non_blocking_call(world: World, log: Log, calls: Calls) -> None:
    """Another thread's line cannot come between a record and its own line."""
    free: list[bool] = []

    def call() -> None:
        def probe() -> None:
            got = calls.recorder.lock.acquire(timeout=0.05)
            free.append(got)
            if got:
                calls.recorder.lock.release()

        thread = threading.Thread(target=probe)
        thread.start()
        thread.join()

    world.call = call  # type: ignore[method-assign]
    event = world.Event()
    event.record()
    event.wait()
    event.query()
    assert free == [False, False, False]


def test_real_torch_is_hooked_and_put_back() -> None:
    torch = pytest.importorskip("torch")
    log = Log()
    names = [
        (torch, "Event"),
        (torch, "Stream"),
        (torch.cuda, "synchronize"),
        (torch.Tensor, "item"),
        (torch.cuda.Event, "record"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    made = install(Recorder([log]))
    try:
        assert torch.tensor(3).item() == 3
        assert torch.tensor([1]).to(torch.float32).tolist() == [1.0]
        event = torch.Event("cpu")
        assert isinstance(event, torch.Event)
        assert isinstance(event, before[0])
        assert isinstance(before[0]("cpu"), torch.Event)
    finally:
        made.uninstall()
    assert [getattr(owner, name) for owner, name in names] == before
    assert log.ops == []


def cpu_stream(torch: Any) -> Any:
    return torch.Stream(stream_id=3, device_index=0, device_type=0)


@pytest.mark.parametrize("hooked", [True, False])
def test_a_generic_stream_records_an_event_of_the_stand_in(hooked: bool) -> None:
    """`torch.Stream.record_event` takes an event of its very class; without a GPU the backend refuses after that."""
    torch: Any = pytest.importorskip("torch")
    raw = torch.Event("cpu")
    made = install(Recorder([Log()])) if hooked else None
    try:
        for event in (torch.Event("cpu"), raw):
            with pytest.raises(RuntimeError, match="doesn't support events"):
                cpu_stream(torch).record_event(event)
            with pytest.raises(RuntimeError, match="doesn't support events"):
                cpu_stream(torch).record_event(event=event)
        with pytest.raises(RuntimeError, match="doesn't support events"):
            cpu_stream(torch).record_event()
    finally:
        if made is not None:
            made.uninstall()
            assert made.recorder.fault_text is None


def test_the_stand_ins_are_what_they_stand_for() -> None:
    torch: Any = pytest.importorskip("torch")
    class_before, handed_out = torch.Stream, torch.accelerator.current_stream
    before = cpu_stream(torch)
    made = install(Recorder([Log()]))
    try:
        stream = cpu_stream(torch)
        assert type(stream) is not class_before
        assert isinstance(stream, class_before)
        assert isinstance(before, torch.Stream)
        assert (stream == before, hash(stream) == hash(before)) == (True, True)
        assert (stream.stream_id, stream.device) == (before.stream_id, before.device)

        class Mine(torch.Stream):  # type: ignore[misc]
            pass

        assert not isinstance(stream, Mine)
        assert not issubclass(class_before, Mine)
        assert isinstance(Mine(stream_id=3, device_index=0, device_type=0), torch.Stream)
        assert not isinstance(3, torch.Stream)
    finally:
        made.uninstall()
    assert (torch.Stream, torch.accelerator.current_stream) == (class_before, handed_out)
    assert isinstance(stream, torch.Stream)


class HandedOut:
    """What C++ hands out streams by."""

    def __init__(self, torch: Any) -> None:
        self.current_stream: Any = lambda: torch_stream(torch)


def torch_stream(torch: Any) -> Any:
    return torch._C.Stream(stream_id=3, device_index=0, device_type=0)


@pytest.mark.parametrize("hooked", [True, False])
def test_a_stream_that_is_handed_out_is_one_of_the_stand_in(hooked: bool) -> None:
    torch: Any = pytest.importorskip("torch")
    there: Any = HandedOut(torch)
    surface = Surface(replaced_streams=((torch, "Stream"),), handed_out=((there, "current_stream"),))
    made = install(Recorder([Log()]), surface) if hooked else None
    try:
        assert (type(there.current_stream()) is torch.Stream) is True  # whichever it is now
        assert there.current_stream() == torch_stream(torch)
    finally:
        if made is not None:
            made.uninstall()
    assert type(there.current_stream()) is torch.Stream


@pytest.mark.parametrize("kind", ["cuda", "cpu", "old cuda"])
def test_a_generic_stream_has_the_identity_of_the_stream_that_it_is(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Its `stream_id` is no handle: by that name one stream would be two, and what is in order race."""
    torch: Any = pytest.importorskip("torch")

    class Generic:
        stream_id, device_index, device_type = 35, 1, 1
        device = torch.device("cuda:1" if "cuda" in kind else "cpu")

        if kind != "old cuda":

            @property
            def native_handle(self) -> int:
                if kind == "cpu":
                    raise RuntimeError("Backend doesn't support getting stream native handle.")
                return 0x7000

    class Same:
        def __init__(self, *, stream_id: int, device_index: int, device_type: int) -> None:
            assert (stream_id, device_index, device_type) == (35, 1, 1)
            self.cuda_stream = 0x7000

    monkeypatch.setattr(torch.cuda, "Stream", Same)
    assert identity(Generic()) == (1, 35 if kind == "cpu" else 0x7000)


@pytest.mark.parametrize("closed", [True, False])
def test_the_trace_callbacks_are_taken_back(monkeypatch: pytest.MonkeyPatch, closed: bool) -> None:
    torch: Any = pytest.importorskip("torch")
    from torch.cuda import _gpu_trace

    held = [each for each in vars(_gpu_trace).values() if hasattr(each, "callback_list")]
    before = [list(each.callback_list) for each in held]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_activate_gpu_trace", lambda: None)
    made = install(Recorder([Log()]))
    other = CrossCheck(made)  # of another session, say
    other.install()
    assert sum(len(each.callback_list) for each in held) == sum(map(len, before)) + 8
    made.uninstall()
    assert sum(len(each.callback_list) for each in held) == sum(map(len, before)) + 4
    if closed:
        other.uninstall()
        assert [list(each.callback_list) for each in held] == before
    else:
        _gpu_trace.EventDeletionCallbacks.fire_callbacks(1)  # those that stay are heard
        other.uninstall()


class Graph:
    """A CUDA graph of which only the calls are there."""

    fails = False

    def capture_begin(self, pool: Any = None) -> None:
        if self.fails:
            raise RuntimeError("capture")

    def capture_end(self) -> None:
        if self.fails:
            raise RuntimeError("capture")

    def replay(self) -> None: ...


@pytest.fixture
def debug(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    made = Session(Options(log_path="/dev/null", incident=0))
    monkeypatch.setattr(session, "_all", [made])
    kind = type("G", (Graph,), {name: vars(Graph)[name] for name in ("capture_begin", "capture_end", "replay")})
    world.Graph = kind
    install(made, world.surface(graphs=(kind,)))
    register_pool(None, 8, "gpu")
    yield made
    made.close()


def captured(world: World) -> Any:
    """A graph of two accesses."""
    graph = world.Graph()
    graph.capture_begin(pool=None)
    with access("one", reads={"gpu": [1]}, writes={"gpu": [2]}):
        pass
    with access("two", writes={"gpu": [2, 4]}, order="any", batch=True):
        world.Event().record()
    graph.capture_end()
    return graph


def heard(debug: Session) -> Log:
    log = Log()
    debug.recorder.listen([log])
    return log


def test_a_graph_is_one_access_at_each_replay(world: World, debug: Session) -> None:
    log, graph = heard(debug), captured(world)
    assert log.ops == [], "at capture nothing is launched"
    graph.replay()
    with world.on(world.Stream(7)):
        graph.replay()
    first, second = log.ops
    assert isinstance(first, Access)
    assert isinstance(second, Access)
    assert (str(first.reads["gpu"]), str(first.writes["gpu"]), first.on) == ("1", "2,4", "default0")
    assert (first.label, second.on) == ("graph: one, two", "s1")
    world.Event().record()
    assert len(log.ops) == 3, "after the capture calls are logged again"
    assert debug.recorder.ledger.copies == 0


def test_a_graph_that_touches_nothing_is_replayed_and_no_more(world: World, debug: Session) -> None:
    graph, log, ledger = world.Graph(), heard(debug), debug.recorder.ledger
    lines = []
    for ids in ([], [1], []):
        graph.capture_begin()
        with access("a", writes={"gpu": ids}):
            pass
        graph.capture_end()
        graph.replay()
        graph.replay()
        lines.append(len(log.ops))
    assert lines == [0, 2, 2]
    assert (ledger.copies, ledger.hook("torch.CUDAGraph.replay").count) == (0, 6)


def test_what_the_host_does_during_a_capture_is_done_then(world: World, debug: Session) -> None:
    log, graph = heard(debug), world.Graph()
    graph.capture_begin()
    with access("fill", writes={"gpu": [1]}, on=None):
        pass
    graph.capture_end()
    graph.replay()
    assert len(log.ops) == 1


def test_a_declared_replay_is_what_it_was_declared(world: World, debug: Session) -> None:
    log, graph = heard(debug), captured(world)
    with access("forward", reads={"gpu": [5]}):
        graph.replay()
    assert [getattr(op, "label", "") for op in log.ops] == ["forward"]


def test_a_graph_in_a_graph_is_part_of_it(world: World, debug: Session) -> None:
    log, inner, outer = heard(debug), captured(world), world.Graph()
    outer.capture_begin()
    inner.replay()
    outer.capture_end()
    assert log.ops == []
    outer.replay()
    assert [getattr(op, "label", "") for op in log.ops] == ["graph: one, two"]


def test_a_graph_from_before_is_unseen(world: World, debug: Session) -> None:
    world.Graph().replay()
    assert debug.recorder.ledger.copies == 1
    captured(world).replay()
    assert debug.recorder.ledger.copies == 1


@pytest.mark.parametrize("at", ["begin", "end"])
def test_a_capture_that_fails_is_over(world: World, debug: Session, at: str) -> None:
    log, graph = heard(debug), world.Graph()
    if at == "end":
        graph.capture_begin()
    graph.fails = True
    with pytest.raises(RuntimeError, match="capture"):
        getattr(graph, f"capture_{at}")()
    world.Event().record()
    assert len(log.ops) == 1


def test_deriving_is_kept_for_the_replay(world: World, debug: Session) -> None:
    torch = pytest.importorskip("torch")
    cache = torch.zeros(8, 4)
    calls: Any = debug.recorder.attachments["torch"]
    calls.surface = world.surface(on_device=lambda tensor: tensor.data_ptr() >= cache.data_ptr())
    register_pool(cache, 8, "gpu")
    log, graph = heard(debug), world.Graph()
    graph.capture_begin()
    with deriving(calls):
        cache[3].fill_(1)
    graph.capture_end()
    assert log.ops == []
    graph.replay()
    (op,) = log.ops
    assert isinstance(op, Access)
    assert (str(op.writes["gpu"]), op.on) == ("3", "default0")


def test_an_unseen_copy_in_a_graph_is_one_at_each_replay(world: World, debug: Session) -> None:
    graph = world.Graph()
    calls: Any = debug.recorder.attachments["torch"]
    graph.capture_begin()
    calls.unseen("copy")
    graph.capture_end()
    assert debug.recorder.ledger.copies == 0
    graph.replay()
    graph.replay()
    assert debug.recorder.ledger.copies == 2


def test_a_second_session_says_that_it_hears_nothing(world: World, debug: Session) -> None:
    other = Session(Options(log_path="/dev/null", incident=0))
    install(other, world.surface())
    register_pool(None, 8, "gpu")
    other.recorder.pool("gpu", 8)
    other.recorder.access("x", writes={"gpu": [1]})
    assert other.close().verdict.name == "incomplete"
    debug.recorder.access("x", writes={"gpu": [1]})
    assert debug.close().verdict.name == "clean"
    third = Session(Options(log_path="/dev/null", incident=0))
    install(third, world.surface())
    third.recorder.pool("gpu", 8)
    third.recorder.access("x", writes={"gpu": [1]})
    assert third.close().verdict.name == "clean", "the hooks were put back before"


def test_arguments_may_be_named(world: World, log: Log, calls: Calls) -> None:
    side, event = world.Stream(7), world.Event()
    event.record(stream=side)
    world.default.wait_event(event=event)
    event.elapsed_time(end_event=event)
    world.synchronize(device=0)
    assert [line.split()[0] for line in log.shown()] == ["record", "wait", "poll", "poll", "sync"]
