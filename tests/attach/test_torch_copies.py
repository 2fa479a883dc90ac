"""Tensor methods outside `deriving`: what touches a registered pool undeclared is unseen; what blocks is a sync."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from attach.stand_ins import Log, World
from kvsan.checker import access, register_pool, session
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.regions import Region
from kvsan.checker.attach.torch import Calls, deriving, install
from kvsan.checker.options import Options
from kvsan.checker.session import Session

torch = pytest.importorskip("torch")

BLOCKS = 8
Pool = tuple[Any, Calls, Log]


@pytest.fixture
def pool() -> Iterator[Pool]:
    log, tensor = Log(), torch.zeros(BLOCKS, 4)
    calls = install(Recorder([log]), World().surface(tensors=(torch.Tensor,)))
    calls.recorder.pool("gpu", BLOCKS)
    calls.recorder.regions.add(Region.of(tensor, BLOCKS, "gpu", 0), tensor)
    yield tensor, calls, log
    calls.uninstall()


def ids(*values: int) -> Any:
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("call", "unseen"),
    [
        (lambda p: p[5].copy_(torch.ones(4), non_blocking=True), 1),
        (lambda p: torch.ones(8, 4).copy_(p), 1),
        (lambda p: p.index_copy_(0, ids(7), torch.ones(1, 4)), 1),
        (lambda p: p.index_put_((ids(7),), torch.ones(1, 4)), 1),
        (lambda p: p.__setitem__(3, 1.0), 1),
        (lambda p: torch.ones(4).__setitem__(slice(None), p[1]), 1),
        (lambda p: p.zero_(), 1),
        (lambda p: p[1].fill_(2), 1),
        (lambda p: p[1].clone(), 1),
        (lambda p: p.to(torch.float64), 1),
        (lambda p: p[0].tolist(), 1),
        (lambda p: p.to("cpu"), 0),
        (lambda p: p.cpu(), 0),
        (lambda p: p.to(torch.float32), 0),
        (lambda p: p.to("meta"), 0),
        (lambda p: torch.ones(4).copy_(torch.zeros(4)), 0),
        (lambda p: torch.ones(4).zero_(), 0),
        (lambda p: p[1:1].zero_(), 0),
        (lambda p: torch.empty(8, 4, device="meta").copy_(torch.empty(8, 4, device="meta")), 0),
    ],
)
def test_a_copy_that_nobody_logs_is_unseen(pool: Pool, call: Callable[[Any], Any], unseen: int) -> None:
    tensor, calls, log = pool
    call(tensor)
    assert calls.recorder.ledger.copies == unseen
    assert calls.recorder.fault_text is None
    assert log.ops == []


def test_declared_or_derived_it_is_seen(pool: Pool) -> None:
    tensor, calls, log = pool
    calls.here.declared += 1
    tensor.zero_()
    calls.here.declared -= 1
    with deriving(calls):
        tensor[5].copy_(torch.ones(4))
        tensor[5] = 1.0
    assert calls.recorder.ledger.copies == 0
    assert len(log.ops) == 2


def test_the_verdict_of_an_undeclared_copy_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    debug = Session(Options(log_path="/dev/null", incident=0))
    monkeypatch.setattr(session, "_all", [debug])
    install(debug, World().surface(tensors=(torch.Tensor,)))
    cache = torch.zeros(BLOCKS, 4)
    register_pool(cache, BLOCKS, "gpu")
    with access("declared", writes={"gpu": [1]}, on=None):
        cache[1].fill_(1)
    assert debug.summary().verdict.name == "clean"
    cache[5].copy_(torch.ones(4), non_blocking=True)
    assert debug.close().verdict.name == "incomplete"


def test_arguments_go_through_as_they_are(pool: Pool) -> None:
    tensor = torch.zeros(2)
    assert tensor.copy_(other=torch.ones(2)).tolist() == [1.0, 1.0]
    assert tensor.copy_(torch.zeros(2), True).tolist() == [0.0, 0.0]
    with pytest.raises(TypeError):
        tensor.copy_(nothing=1)


def test_tensors_without_memory_are_no_fault(pool: Pool) -> None:
    """A compiler's stand-ins, sparse tensors, those inside `vmap`: with the methods wrapped, and derived."""
    from torch._subclasses import FakeTensorMode

    _, calls, _ = pool

    def use() -> None:
        with FakeTensorMode():
            torch.zeros(3).copy_(torch.ones(3)).zero_()
        torch.eye(3).to_sparse().clone()
        torch.func.vmap(lambda row: row.clone())(torch.ones(2, 3))
        torch.zeros(2).to("meta").zero_()

    use()
    with deriving(calls):
        use()
    assert calls.recorder.fault_text is None
    assert calls.recorder.ledger.copies == 0


class Device:
    """Which tensors are on which device, by identity, and a current stream for each."""

    def __init__(self) -> None:
        self.world, self.log = World(), Log()
        self.at: dict[int, Any] = {}
        self.calls = install(
            Recorder([self.log]),
            self.world.surface(
                tensors=(torch.Tensor,),
                on_device=lambda tensor: id(tensor) in self.at,
                stream_of=lambda what: self.at.get(id(what)) or self.world.Stream(0x70, 9),
            ),
        )

    def tensor(self, stream: Any, *shape: int) -> Any:
        made = torch.ones(*shape)
        self.at[id(made)] = stream
        return made


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.calls.uninstall()


def test_a_sync_is_of_the_stream_of_the_tensors_device(device: Device) -> None:
    one, other = device.world.Stream(0x10, 0), device.world.Stream(0x20, 1)
    first, second, host = device.tensor(one, 1), device.tensor(other, 1), torch.ones(1)
    many: tuple[Callable[[], Any], ...] = (
        second.item,
        second.cpu,
        lambda: host.copy_(second),
        lambda: second.copy_(host),
        first.item,
        lambda: second.copy_(first),
        lambda: second.to("cpu"),
        lambda: host.to(second),
    )
    for call in many:
        call()
    assert [op.split()[1] for op in device.log.shown()] == ["s0", "s0", "s0", "s0", "s1", "s0", "s0"]
    assert {name: stream.device for name, stream in device.log.streams.items()} == {"s0": 1, "s1": 0}


def test_nothing_is_copied_of_an_empty_tensor_or_to_meta(device: Device) -> None:
    empty, full = device.tensor(device.world.Stream(0x10), 0), device.tensor(device.world.Stream(0x10), 2)
    empty.cpu()
    empty.tolist()
    empty.copy_(torch.ones(0))
    empty.to("cpu")
    full.to("meta")
    full.to(torch.empty(2, device="meta"))
    assert device.log.ops == []
    full.to("cpu")
    assert device.log.shown() == ["sync s0"]
