"""Accesses derived from torch's ops by address: on CPU tensors, where the host thread itself touches the pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from attach.stand_ins import Log, World
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.regions import Region
from kvsan.checker.attach.torch import Calls, deriving, install
from kvsan.model.ops import Access, Sync

torch = pytest.importorskip("torch")

BLOCKS = 8


class Pool:
    """A pool of 8 blocks of 4 × 2 numbers, and what was derived."""

    def __init__(self, shape: tuple[int, ...] = (BLOCKS, 4, 2), dim: int = 0, device: bool = False) -> None:
        self.log, world = Log(), World()
        self.tensor = torch.zeros(*shape)
        at = self.tensor.data_ptr()
        inside = range(at, at + self.tensor.nbytes)
        self.calls: Calls = install(
            Recorder([self.log]), world.surface(on_device=lambda t: device and t.data_ptr() in inside)
        )
        self.calls.recorder.pool("gpu", BLOCKS)
        self.calls.recorder.regions.add(Region.of(self.tensor, BLOCKS, "gpu", dim))

    def derive(self, call: Callable[[Any], Any]) -> list[Any]:
        """(reads, writes) of each access; a sync as it is; then the unseen copies if there are any."""
        with deriving(self.calls):
            call(self.tensor)
        assert self.calls.recorder.fault_text is None
        out: list[Any] = []
        for op in self.log.ops:
            if isinstance(op, Access):
                out.append((str(op.reads.get("gpu", "")), str(op.writes.get("gpu", ""))))
            elif isinstance(op, Sync):
                out.append("sync")
        if self.calls.recorder.ledger.copies:
            out.append(f"unseen {self.calls.recorder.ledger.copies}")
        return out


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.calls.uninstall()


def ids(*values: int) -> Any:
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda p: p.view(BLOCKS, -1), []),
        (lambda p: p[2:4].transpose(0, 1), []),
        (lambda p: p.zero_(), [("", "0-7")]),
        (lambda p: p[3].fill_(1), [("", "3")]),
        (lambda p: p[2:5].zero_(), [("", "2-4")]),
        (lambda p: p[::3].fill_(1), [("", "0,3,6")]),
        (lambda p: p[1, 2].fill_(1), [("", "1")]),
        (lambda p: p[:, 1].fill_(1), [("", "0-7")]),
        (lambda p: p.view(-1)[9:17].fill_(1), [("", "1-2")]),
        (lambda p: p[1].clone(), [("1", "")]),
        (lambda p: p[5].copy_(p[1]), [("1", "5")]),
        (lambda p: p[1:3].add_(1), [("", "1-2")]),
        (lambda p: p[4] + p[6], [("4,6", "")]),
        (lambda p: torch.cat([p[0:1], p[7:8]]), [("0,7", "")]),
        (lambda p: p.index_select(0, ids(1, 5)), [("1,5", "")]),
        (lambda p: p[2:].index_select(0, ids(1, 3)), [("3,5", "")]),
        (lambda p: p.index_select(1, ids(0)), [("0-7", "")]),
        (lambda p: p.index_copy_(0, ids(6, 2), torch.ones(2, 4, 2)), [("", "2,6")]),
        (lambda p: p.index_fill_(0, ids(3), 1.0), [("", "3")]),
        (lambda p: p[ids(0, 7)], [("0,7", "")]),
        (lambda p: p[ids(-1, 1)], [("1,7", "")]),
        (lambda p: p.__setitem__(ids(4, 5), torch.ones(2, 4, 2)), [("", "4-5")]),
        (lambda p: p[1].sum().item(), [("1", "")]),
        (lambda p: torch.ones(3).add_(1), []),
        (lambda p: torch.ones(8, 4, 2).copy_(p), [("0-7", "")]),
    ],
)
def test_what_an_op_touches(pool: Pool, call: Callable[[Any], Any], expected: list[Any]) -> None:
    assert pool.derive(call) == expected


def test_blocks_behind_another_dimension() -> None:
    """K and V in front: a block has two parts, and both are the block."""
    pool = Pool((2, BLOCKS, 4), dim=1)
    assert pool.derive(lambda p: p[1, 3].fill_(1)) == [("", "3")]
    assert pool.derive(lambda p: p[:, 5:7].fill_(1))[1:] == [("", "5-6")]
    assert pool.derive(lambda p: p[0].fill_(1))[2:] == [("", "0-7")]
    pool.calls.uninstall()


def test_an_index_on_the_device_is_no_guess() -> None:
    """Reading it would stop the device; guessing all blocks would report races that are none."""
    world, log = World(), Log()
    tensor = torch.zeros(BLOCKS, 2)
    index = ids(1, 2)
    calls = install(Recorder([log]), world.surface(on_device=lambda t: t is index))
    calls.recorder.pool("gpu", BLOCKS)
    calls.recorder.regions.add(Region.of(tensor, BLOCKS, "gpu", 0))
    with deriving(calls):
        tensor.index_fill_(0, index, 1.0)
    calls.uninstall()
    assert log.ops == []
    assert calls.recorder.ledger.copies == 1
    assert "index_fill_" in next(iter(calls.recorder.ledger.words))


def test_a_device_pool_is_accessed_on_the_current_stream() -> None:
    pool = Pool(device=True)
    host = torch.ones(4, 2)
    assert pool.derive(lambda p: p[3].copy_(host, non_blocking=True)) == [("", "3")]
    access = pool.log.ops[0]
    assert isinstance(access, Access)
    assert access.on == "default0"
    pool.calls.uninstall()


def test_a_blocking_copy_is_an_access_then_a_sync() -> None:
    pool = Pool(device=True)
    host = torch.ones(4, 2)
    assert pool.derive(lambda p: host.copy_(p[3])) == [("3", ""), "sync"]
    pool.calls.uninstall()


def test_a_kernel_of_someone_else_is_unseen_unless_declared() -> None:
    with torch.library._scoped_library("kvsan_test", "FRAGMENT") as library:
        library.define("paged(Tensor(a!) cache, Tensor table) -> ()")
        library.impl("paged", lambda cache, table: None, "CompositeExplicitAutograd")
        pool = Pool()
        assert pool.derive(lambda p: torch.ops.kvsan_test.paged(p, ids(1))) == ["unseen 1"]
        pool.calls.here.declared = 1
        assert pool.derive(lambda p: torch.ops.kvsan_test.paged(p, ids(1))) == ["unseen 1"]
        pool.calls.uninstall()


@pytest.mark.parametrize("dim", [0, 1])
def test_a_region_that_is_no_pool_is_refused(dim: int) -> None:
    with pytest.raises(ValueError, match="not 7 blocks"):
        Region.of(torch.zeros(4, 4), 7, "gpu", dim)


def test_blocks_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        Region.of(torch.zeros(16).as_strided((4, 4), (2, 1)), 4, "gpu", 0)


@pytest.fixture
def device_pool() -> Iterator[Pool]:
    made = Pool(device=True)
    yield made
    made.calls.uninstall()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda p: p[3].mul_(torch.tensor(2.0)), [("", "3")]),
        (lambda p: p[3].add_(torch.ones(4, 2)), [("", "3")]),
        (lambda p: torch.where(torch.ones(8, 4, 2) > 0, p, torch.tensor(1.0)), [("0-7", "")]),
        (lambda p: p.index_copy_(0, ids(1), torch.ones(1, 4, 2)), [("", "1")]),
        (lambda p: torch.ops.aten.index_put_(p, [ids(1, 2)], torch.ones(2, 4, 2)), [("", "1-2")]),
        (lambda p: torch.ops.aten.index_put_(p, [ids(1, 2)], torch.ones(2, 4, 2), True), [("", "1-2")]),
        (lambda p: p[3].copy_(torch.ones(4, 2)), [("", "3"), "sync"]),
        (lambda p: torch.ops.aten.copy_(p[3], torch.ones(4, 2), True), [("", "3")]),
        (lambda p: p[3, 0, 0].item(), [("3", ""), "sync"]),
        (lambda p: p[1:1].copy_(torch.ones(0, 4, 2)), []),
    ],
)
def test_only_copies_across_the_bus_are_syncs(device_pool: Pool, call: Callable[[Any], Any], expected: Any) -> None:
    assert device_pool.derive(call) == expected


@pytest.mark.parametrize("call", [lambda t: t.t_(), lambda t: t.unsqueeze_(0), lambda t: t.squeeze_()])
def test_a_change_of_shape_is_no_write(pool: Pool, call: Callable[[Any], Any]) -> None:
    assert pool.derive(lambda p: call(p[:, 0])) == []


class Pools:
    """Parts of one tensor, registered under names; what an op on the whole touches of each."""

    def __init__(self, **parts: Any) -> None:
        self.log = Log()
        self.calls: Calls = install(Recorder([self.log]), World().surface())
        for name, part in parts.items():
            self.calls.recorder.pool(name, BLOCKS)
            self.calls.recorder.regions.add(Region.of(part, BLOCKS, name, 0), part)

    def writes(self, call: Callable[[], Any]) -> dict[str, str]:
        before = len(self.log.ops)
        with deriving(self.calls):
            call()
        assert self.calls.recorder.fault_text is None
        found: dict[str, str] = {}
        for op in self.log.ops[before:]:
            assert isinstance(op, Access)
            found |= {pool: str(blocks) for pool, blocks in op.writes.items()}
        return found


@pytest.fixture
def pools() -> Iterator[Callable[..., Pools]]:
    made: list[Pools] = []

    def make(**parts: Any) -> Pools:
        made.append(Pools(**parts))
        return made[-1]

    yield make
    for each in made:
        each.calls.uninstall()


def test_a_tensor_over_several_pools_touches_each(pools: Callable[..., Pools]) -> None:
    both = torch.zeros(3, BLOCKS, 4)
    found = pools(k=both[1], v=both[2])
    assert found.writes(both.zero_) == {"k": "0-7", "v": "0-7"}
    assert found.writes(both[0].zero_) == {}
    assert found.writes(lambda: both.view(-1)[30:45].fill_(1)) == {"k": "0-3"}
    assert found.writes(lambda: both.view(-1)[60:70].fill_(1)) == {"k": "7", "v": "0-1"}


@pytest.mark.parametrize("shape", [(BLOCKS, 2, 4), (BLOCKS, 3, 2, 4)])
def test_interleaved_pools_are_told_apart(pools: Callable[..., Pools], shape: tuple[int, ...]) -> None:
    both = torch.zeros(*shape)
    keys, values = both.unbind(-2)
    found = pools(k=keys, v=values)
    assert found.writes(keys[3].zero_) == {"k": "3"}
    assert found.writes(lambda: values[2:4].fill_(1)) == {"v": "2-3"}
    assert found.writes(both.zero_) == {"k": "0-7", "v": "0-7"}
    assert found.writes(lambda: both[5].fill_(1)) == {"k": "5", "v": "5"}
    assert found.writes(lambda: keys.index_copy_(0, ids(6), torch.ones(1, *keys.shape[1:]))) == {"k": "6"}
    assert found.calls.recorder.ledger.copies == 0


def test_a_view_of_too_many_runs_is_unseen(pools: Callable[..., Pools], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsan.checker.attach.regions.MOST_RUNS", 16)
    both = torch.zeros(BLOCKS, 4, 2, 4)
    found = pools(k=both[:, :, 0], v=both[:, :, 1])
    assert found.writes(both[:, :, 0].zero_) == {}
    assert found.calls.recorder.ledger.copies == 1


def test_new_memory_takes_the_place_of_old(pools: Callable[..., Pools]) -> None:
    """A pool that was freed and another at its address; the same pool again; two parts of one pool."""
    memory = torch.zeros(2, BLOCKS, 4)
    found = pools(k=memory[0], v=memory[1])
    regions = found.calls.recorder.regions
    regions.add(Region.of(memory[0], BLOCKS, "k", 0), memory[0])
    regions.add(Region.of(memory[1], BLOCKS, "k", 0), memory[1])
    assert len(regions) == 3
    regions.add(Region("new", memory.data_ptr(), memory.data_ptr() + 64, 8, 8, (0,), 8, (0,), (1, 64)))
    assert [region.start - memory.data_ptr() for region in regions.find(memory)] == [128, 128, 0]
