"""With PyTorch's trace callbacks armed: blocking copies are learnt of from them, and no tensor method is wrapped until
a pool lies in memory; the order that is learnt is the one that the wrappers learn. And what a pause takes away.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import pytest

from attach.stand_ins import Log, World
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.torch import Calls, gputrace, install
from kvsan.checker.attach.torch.sampling import Sampling

METHODS = ("item", "cpu", "copy_", "to", "zero_")
SIDE = 0x40


class Tensor:
    """A tensor as far as blocking goes, and as PyTorch's C++ calls back: at each copy that blocks. It was seen to do so
    in torch 2.11.0 on an H200.
    """

    shape = (1,)
    blocks: Callable[[], None]

    def __init__(self, *, is_cuda: bool) -> None:
        self.is_cuda = is_cuda

    def item(self) -> int:
        if self.is_cuda:
            self.blocks()
        return 1

    def cpu(self) -> Any:
        return self._copied(False, False)

    def copy_(self, source: Any, non_blocking: bool = False) -> Any:
        if source.is_cuda != self.is_cuda and not non_blocking:
            self.blocks()
        return self

    def to(self, device: str, non_blocking: bool = False) -> Any:
        return self._copied(device.startswith("cuda"), non_blocking)

    def zero_(self) -> Any:
        return self

    def _copied(self, is_cuda: bool, non_blocking: bool) -> Any:
        if is_cuda == self.is_cuda:
            return self
        if not non_blocking:
            self.blocks()
        return type(self)(is_cuda=is_cuda)


class Armed:
    """A world whose tensors call back, hooked with the callbacks heard or not."""

    def __init__(self, *, armed: bool, pool: bool = False) -> None:
        self.world, self.log, self.armed = World(), Log(), armed
        body = {name: vars(Tensor)[name] for name in METHODS}
        self.kind: Any = type("T", (Tensor,), {**body, "blocks": lambda _: self.blocks()})
        self.before = {name: vars(self.kind)[name] for name in METHODS}
        self.stream = self.world.Stream(SIDE)
        self.calls = install(
            Recorder([self.log]),
            self.world.surface(
                tensors=(self.kind,), on_device=lambda tensor: tensor.is_cuda, stream_of=lambda _: self.stream
            ),
        )
        self.check = self.calls._crosscheck
        if armed:
            self.check.arm()
        if pool:
            self.register()

    def blocks(self) -> None:
        if self.armed:
            self.check.stream_sync(SIDE)

    def register(self) -> None:
        """A region, as of a pool of which no test tensor is a part."""
        region: Any = SimpleNamespace(start=0, end=0, blocks=lambda tensor: [])
        self.calls.recorder.regions.find = lambda tensor: []  # type: ignore[method-assign]
        self.calls.recorder.regions.add(region)

    def wrapped(self) -> bool:
        same = [vars(self.kind)[name] is self.before[name] for name in METHODS if name != "zero_"]
        assert len(set(same)) == 1
        return not same[0]


CALLS: list[Callable[[Any, Any], Any]] = [
    lambda device, host: device.item(),
    lambda device, host: host.item(),
    lambda device, host: device.cpu(),
    lambda device, host: host.cpu(),
    lambda device, host: device.copy_(host),
    lambda device, host: host.copy_(device),
    lambda device, host: host.copy_(device, non_blocking=True),
    lambda device, host: device.copy_(device),
    lambda device, host: device.to("cpu"),
    lambda device, host: host.to("cuda:0"),
    lambda device, host: device.to("cpu", non_blocking=True),
    lambda device, host: device.to("cuda"),
    lambda device, host: device.zero_(),
]


def use(made: Armed, call: Callable[[Any, Any], Any]) -> list[str]:
    """The lines of a call between a record and a poll."""
    event = made.world.Event()
    event.record(made.stream)
    call(made.kind(is_cuda=True), made.kind(is_cuda=False))
    event.query()
    made.calls.uninstall()
    assert made.calls.recorder.fault_text is None
    return made.log.shown()


@pytest.mark.parametrize("call", CALLS)
def test_the_callbacks_learn_what_the_wrappers_learn(call: Callable[[Any, Any], Any]) -> None:
    wrappers = use(Armed(armed=False), call)
    assert use(Armed(armed=True), call) == wrappers
    assert use(Armed(armed=True, pool=True), call) == wrappers, "and both together learn it once"


def test_the_calls_differ() -> None:
    learnt = [len(use(Armed(armed=True), call)) for call in CALLS]
    assert (learnt.count(2), learnt.count(3)) == (7, 6)


def test_a_failed_copy_leaves_the_line_of_its_entry() -> None:
    """The callback stands at the entry. A wrapper would take the line back; that the call failed is not said here."""

    def fails(device: Any, host: Any) -> None:
        made.blocks()
        raise RuntimeError

    made = Armed(armed=True)
    made.kind.item = fails
    with pytest.raises(RuntimeError):
        made.kind(is_cuda=True).item(None)
    assert made.log.shown() == ["sync s0"]
    made.calls.uninstall()


def test_methods_are_wrapped_once_a_pool_lies_in_memory() -> None:
    made = Armed(armed=False)
    assert made.wrapped(), "nobody else would see what blocks"
    made.check.arm()
    assert not made.wrapped()
    made.register()
    assert made.wrapped(), "now it matters what they touch"
    made.calls.uninstall()
    assert not made.wrapped()
    made.register()
    assert not made.wrapped()


def test_a_pool_registered_in_a_pause() -> None:
    made = Armed(armed=True)
    made.calls.pause()
    made.register()
    assert not made.wrapped()
    made.calls.resume()
    assert made.wrapped()
    made.calls.pause()
    assert not made.wrapped()
    made.calls.uninstall()
    assert not made.wrapped()


def test_an_undeclared_copy_is_unseen_from_the_first_pool_on() -> None:
    torch = pytest.importorskip("torch")
    from kvsan.checker.attach.regions import Region

    kind = type("T", (torch.Tensor,), {})
    calls = install(Recorder([Log()]), World().surface(tensors=(kind,)))
    calls._crosscheck.arm()
    pool = torch.zeros(8, 4).as_subclass(kind)
    pool.zero_()
    assert calls.recorder.ledger.copies == 0
    calls.recorder.pool("gpu", 8)
    calls.recorder.regions.add(Region.of(pool, 8, "gpu", 0), pool)
    pool.zero_()
    torch.zeros(4).as_subclass(kind).zero_()
    calls.uninstall()
    assert calls.recorder.ledger.copies == 1


# ── PyTorch's registries ──────────────────────────────────────────────────────────────────────────────────────────────


class Registry:
    """As `torch._utils.CallbackRegistry`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.callback_list: list[Callable[..., None]] = []

    def add_callback(self, callback: Callable[..., None]) -> None:
        self.callback_list.append(callback)

    def fire_callbacks(self, *args: Any) -> None:
        for each in self.callback_list:
            each(*args)


@pytest.fixture
def trace() -> Any:
    return SimpleNamespace(
        records=Registry("CUDA event record"),
        frees=Registry("CUDA memory deallocation"),
        devices=Registry("CUDA device synchronization"),
        other=3,
    )


def heard(trace: Any, *registered: Callable[..., None]) -> None:
    for each in registered:
        trace.records.add_callback(each)


def test_a_registry_of_nobody_runs_no_python(trace: Any) -> None:
    ours: list[int] = []
    heard(trace, ours.append)
    gputrace.shorten(trace, trace, (ours.append,))
    for registry in (trace.frees, trace.devices):
        assert not isinstance(registry.fire_callbacks, MethodType | FunctionType)
    trace.frees.fire_callbacks(7)
    trace.frees.fire_callbacks(7, 8)
    trace.devices.fire_callbacks()
    assert trace.records.fire_callbacks == ours.append, "ours, without a detour"
    trace.records.fire_callbacks(5)
    assert ours == [5]


def test_whoever_registers_is_heard(trace: Any) -> None:
    ours, theirs = [], []  # type: ignore[var-annotated]
    heard(trace, ours.append)
    gputrace.shorten(trace, trace, (ours.append,))
    trace.records.add_callback(theirs.append)
    trace.frees.add_callback(theirs.append)
    trace.records.fire_callbacks(1)
    trace.frees.fire_callbacks(2)
    assert (ours, theirs) == ([1], [1, 2])
    gputrace.shorten(trace, trace, (ours.append,), silent=True)
    trace.records.fire_callbacks(3)
    assert (ours, theirs) == ([1], [1, 2, 3]), "a pause is of ours alone"
    gputrace.shorten(trace, trace, (ours.append,))
    trace.records.fire_callbacks(4)
    assert (ours, theirs) == ([1, 4], [1, 2, 3, 4])
    gputrace.restore(trace, trace, (ours.append,))
    trace.records.fire_callbacks(5)
    assert (ours, theirs) == ([1, 4], [1, 2, 3, 4, 5])


def test_two_sessions_and_what_they_leave(trace: Any) -> None:
    one, two = [], []  # type: ignore[var-annotated]
    before = {name: set(vars(each)) for name, each in vars(trace).items() if name != "other"}
    heard(trace, one.append, two.append)
    gputrace.shorten(trace, one.append, (one.append,))
    gputrace.shorten(trace, two.append, (two.append,))
    gputrace.shorten(trace, one.append, (one.append,), silent=True)
    trace.records.fire_callbacks(1)
    assert (one, two) == ([], [1])
    gputrace.restore(trace, one.append, (one.append,))
    trace.records.fire_callbacks(2)
    assert (one, two) == ([], [1, 2])
    gputrace.restore(trace, two.append, (two.append,))
    trace.records.fire_callbacks(3)
    assert (one, two) == ([], [1, 2])
    assert {name: set(vars(each)) for name, each in vars(trace).items() if name != "other"} == before


# ── a pause ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def armed() -> Iterator[Armed]:
    made = Armed(armed=True)
    yield made
    made.calls.uninstall()


def test_a_pause_puts_the_originals_back(armed: Armed) -> None:
    world, calls = armed.world, armed.calls
    names = [(world.Event, name) for name in ("record", "wait", "query", "synchronize")]
    names += [(world.Stream, name) for name in ("wait_event", "wait_stream", "record_event", "synchronize")]
    hooked = [vars(kind)[name] for kind, name in names]
    calls.pause()
    assert not any(hasattr(vars(kind).get(name), "__kvsan_wraps__") for kind, name in names)
    world.Event().record()
    calls.pause()  # again: nothing
    calls.resume()
    assert [vars(kind)[name] for kind, name in names] == hooked
    world.Event().record()
    assert armed.log.shown() == ["record default0 e1"]


def test_stand_ins_made_before_are_plain_in_a_pause() -> None:
    torch: Any = pytest.importorskip("torch")
    calls: Calls = install(Recorder([Log()]))
    try:
        event = torch.Event("cpu")
        original = type(event).__mro__[1]
        calls.pause()
        for name in ("record", "wait", "query", "synchronize"):
            assert getattr(type(event), name) is getattr(original, name)
        assert torch.Event is original
        calls.resume()
        assert getattr(type(event), "record") is not original.record  # noqa: B009
    finally:
        calls.uninstall()
    assert torch.Event is original


def test_what_events_were_is_not_known_after_a_pause(armed: Armed) -> None:
    """A handle may have come back meanwhile."""
    check, here, ledger = armed.check, armed.calls.here, armed.calls.recorder.ledger
    here.busy = 1
    check.record_call(5, 0)
    here.busy = 0
    check.record_call(6, 0)
    armed.calls.pause()
    armed.calls.resume()
    check.record_call(5, 0)
    here.busy = 1
    check.wait_call(6, 0)
    assert ledger.edges == 0
    check.wait_call(5, 0)
    here.busy = 0
    assert ledger.edges == 1, "recorded behind our back since"


# ── in some steps of many ─────────────────────────────────────────────────────────────────────────────────────────────


class Heard:
    """A cross-check as `Sampling` uses it: what it is told, step by step."""

    def __init__(self) -> None:
        self.alone, self.on = 0, True

    def pause(self) -> None:
        assert self.on
        self.on = False

    def resume(self) -> None:
        assert not self.on
        self.on = True


def steps(count: int, alone_in: Callable[[int], bool], **options: int) -> str:
    check: Any = Heard()
    sampling = Sampling(check, **options)
    out = ""
    for number in range(count):
        sampling.step()
        check.alone += check.on and alone_in(number)
        out += "+" if check.on else "."
    return out


def test_the_callbacks_are_heard_at_first_and_then_in_windows() -> None:
    assert steps(19, lambda _: False, watch=2, of=6, first=4) == "++++....++....++...."[:19]


def test_an_engine_that_blocks_in_each_step_is_heard_in_each() -> None:
    assert steps(20, lambda _: True, watch=2, of=6, first=4) == "+" * 20
    assert steps(18, lambda number: number < 7, watch=2, of=6, first=4) == "++++++++++....++.."


@pytest.mark.parametrize("options", [{"watch": 0}, {"watch": 512}, {"first": 0}])
def test_a_window_that_is_none_is_refused(options: dict[str, int], armed: Armed) -> None:
    with pytest.raises(ValueError, match="accepted"):
        armed.calls.sample(**options)


@pytest.mark.parametrize("call", CALLS)
def test_what_blocks_is_learnt_in_a_window_and_between(call: Callable[[Any, Any], Any]) -> None:
    wrappers = use(Armed(armed=False), call)
    for watching in (True, False):
        made = Armed(armed=True)
        made.calls.sample(watch=1, of=2, first=1)
        assert made.wrapped()
        assert made.calls.sampling is not None
        for _ in range(1 if watching else 2):
            made.calls.sampling.step()
        assert made.calls.sampling.watching == watching
        made.armed = watching
        assert use(made, call) == wrappers


def test_what_the_wrappers_see_keeps_no_window_open(armed: Armed) -> None:
    check, device = armed.check, armed.kind(is_cuda=True)
    armed.calls.sample()
    for call in (device.item, device.cpu, armed.world.Event().record):
        call()
    assert check.alone == 0
    armed.blocks()  # in PyTorch's C++
    check.wait_call(1, 2)
    assert check.alone == 2


def test_a_pause_between_windows_hears_nothing_afterwards(armed: Armed) -> None:
    calls = armed.calls
    calls.sample(watch=1, of=3, first=1)
    assert calls.sampling is not None
    calls.sampling.step()
    calls.sampling.step()
    resumed: list[int] = []
    armed.check.resume = lambda: resumed.append(1)  # type: ignore[method-assign]
    calls.pause()
    calls.resume()
    assert not resumed
    calls.sampling.step()
    assert not resumed
    calls.sampling.step()
    assert resumed == [1]


def test_pytorch_makes_calls_as_long_as_somebody_listens(trace: Any) -> None:
    flag, ours, theirs = SimpleNamespace(value=True), [], []  # type: ignore[var-annotated]
    callbacks = (ours.append,)
    heard(trace, *callbacks)
    assert gputrace.shorten(trace, trace, callbacks, flag=flag)
    assert flag.value
    assert not gputrace.shorten(trace, trace, callbacks, silent=True, flag=flag)
    assert not flag.value
    trace.frees.add_callback(theirs.append)
    assert flag.value, "somebody else"
    assert gputrace.shorten(trace, trace, callbacks, silent=True, flag=flag)
    gputrace.restore(trace, trace, callbacks, flag=flag)
    assert flag.value, "whoever comes later relies on it"
    assert gputrace.shorten(trace, trace, callbacks, silent=True), "without the flag it cannot be stopped"


def test_the_flag_is_pytorch_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether this torch has it; nothing is armed here, and then it is not to be had."""
    torch = pytest.importorskip("torch")
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    flag = ctypes.c_bool.in_dll(library, gputrace._FLAG)
    if flag.value:
        pytest.skip("armed by another test of this process")
    monkeypatch.setattr(gputrace, "_found", [])
    assert gputrace.armed_flag() is None
    flag.value = True
    try:
        found = gputrace.armed_flag()
        found.value = False
        assert not flag.value
        assert gputrace.armed_flag() is found, "cleared by one session, it is there for another"
    finally:
        flag.value = False
