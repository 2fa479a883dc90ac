"""What kvsan puts on objects of the engine's: hooks in C keep what they read of it, and hear where it changes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from attach.vllm import fake
from attach.vllm.fake import Vllm, attached
from kvsan.checker.attach.vllm import pools
from kvsan.model.ops import Alloc


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vllm]:
    with attached(monkeypatch) as made:
        yield made


def pools_of(vllm: Vllm, block_pool: Any) -> list[str]:
    """The pools in which a block that it hands out has a line."""
    before = len(vllm.log.ops)
    block_pool.free_blocks(block_pool.get_new_blocks(1))
    return [op.pool for op in vllm.log.ops[before:] if isinstance(op, Alloc)]


def mark(vllm: Vllm, block_pool: Any, *names: str) -> None:
    assert vllm.engine is not None
    pools.mark(vllm.engine, block_pool, names)


def test_a_pool_that_is_marked_later_is_one_from_then_on(vllm: Vllm) -> None:
    block_pool = fake.BlockPool(8)
    assert pools_of(vllm, block_pool) == []
    mark(vllm, block_pool, "gpu")
    assert pools_of(vllm, block_pool) == ["gpu"]
    assert pools_of(vllm, block_pool) == ["gpu"]


def test_a_pool_that_is_marked_again_is_another(vllm: Vllm) -> None:
    block_pool = fake.BlockPool(8)
    for names in (["gpu"], ["gpu", "gpu@1"], ["cpu"]):
        mark(vllm, block_pool, *names)
        assert pools_of(vllm, block_pool) == names


def test_more_pools_than_are_kept(vllm: Vllm) -> None:
    many = {f"gpu@{number}": fake.BlockPool(8) for number in range(5)}
    for name, block_pool in many.items():
        mark(vllm, block_pool, name)
    for _ in range(3):
        assert [pools_of(vllm, block_pool) for block_pool in many.values()] == [[name] for name in many]


def test_a_pool_where_another_one_has_lain_is_not_that_one(vllm: Vllm) -> None:
    addresses = set()
    for number in range(40):
        block_pool = fake.BlockPool(8)
        addresses.add(id(block_pool))
        assert pools_of(vllm, block_pool) == []
        if number % 2:
            mark(vllm, block_pool, "gpu")
            assert pools_of(vllm, block_pool) == ["gpu"]
        del block_pool
        gc.collect()
    if len(addresses) == 40:
        pytest.skip("none came to lie where another had lain")


def test_a_pool_to_which_nothing_can_refer_weakly_is_looked_at_each_time(vllm: Vllm) -> None:
    methods = {name: vars(fake.BlockPool)[name] for name in ("__init__", "get_new_blocks", "free_blocks", "touch")}
    slots = ("_kvsan_pools", "blocks", "num_gpu_blocks", "unused")
    plain: Any = type("Plain", (), {"__slots__": slots, **methods})
    block_pool = plain(8)
    assert pools_of(vllm, block_pool) == []
    mark(vllm, block_pool, "gpu")
    assert pools_of(vllm, block_pool) == ["gpu"]
    mark(vllm, block_pool, "cpu")
    assert pools_of(vllm, block_pool) == ["cpu"]


def test_what_is_kept_does_not_keep_the_engine_s_object(vllm: Vllm) -> None:
    ended = []

    class Ends(fake.BlockPool):
        def __del__(self) -> None:
            ended.append(self.num_gpu_blocks)

    block_pool = Ends(8)
    mark(vllm, block_pool, "gpu")
    assert pools_of(vllm, block_pool) == ["gpu"]
    del block_pool
    gc.collect()
    assert ended == [8]
