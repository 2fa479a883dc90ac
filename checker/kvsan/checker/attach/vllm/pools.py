"""Lives of blocks: `BlockPool.get_new_blocks`, `free_blocks` and `touch` of the pools that were registered.

GPU and CPU pools are objects of one class, told apart by who owns them (`scheduler` and `simple` say `mark`). A block
is free when its last reference goes, which is when a line is written; blocks that keep a reference get none. The null
block never has a line.

These are called some fifteen times a step: a call with the usual arguments is passed on without packing them anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from kvsan.checker.attach import native
from kvsan.checker.attach.lines import ALLOC, FREE, TOUCH
from kvsan.checker.attach.native import quick
from kvsan.checker.attach.recorder import KvsanHazard
from kvsan.checker.attach.vllm.engine import Engine

MARK = "_kvsan_pools"


def mark(engine: Engine, block_pool: Any, pools: Sequence[str]) -> None:
    """From now on the lives of this `BlockPool`'s blocks are lines of these pools."""
    blocks = int(block_pool.num_gpu_blocks)
    for pool in pools:
        engine.register(pool, blocks)
    native.mark(block_pool, MARK, tuple(pools))


def install(engine: Engine) -> None:
    engine.when("vllm.v1.core.block_pool", lambda module: _install(engine, module))


def _install(engine: Engine, module: ModuleType) -> None:
    recorder = engine.recorder
    log = recorder.lives
    pool_class = getattr(module, "BlockPool", None)
    alloc, free = engine.hook("vllm.alloc"), engine.hook("vllm.free")
    touch = engine.hook("vllm.touch", expected=False)

    def get_new_blocks(original: Any) -> Any:
        def wrapper(self: Any, num_blocks: int, *args: Any, **kwargs: Any) -> Any:
            more = args or kwargs
            found = original(self, num_blocks, *args, **kwargs) if more else original(self, num_blocks)
            pools = getattr(self, MARK, None)
            if pools and recorder.on:
                alloc.count += 1
                try:
                    log(ALLOC, pools, [block.block_id for block in found])
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault("vllm.alloc", error)
            return found

        return quick("alloc", original, wrapper, recorder, alloc)

    def free_blocks(original: Any) -> Any:
        def wrapper(self: Any, ordered_blocks: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
            if not recorder.on:
                return original(self, ordered_blocks, *args, **kwargs)
            if not args and not kwargs and type(ordered_blocks) is list and not ordered_blocks:
                free.count += 1  # most calls: of a window that did not move
                return original(self, ordered_blocks)
            pools = getattr(self, MARK, None)
            if not pools:
                return original(self, ordered_blocks, *args, **kwargs)
            free.count += 1
            blocks = list(ordered_blocks)  # often a generator
            done = original(self, blocks, *args, **kwargs) if args or kwargs else original(self, blocks)
            if blocks:
                try:
                    ids = [block.block_id for block in blocks if block.ref_cnt == 0 and not block.is_null]
                    if ids:
                        log(FREE, pools, ids)
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault("vllm.free", error)
            return done

        return quick("free", original, wrapper, recorder, free)

    def touch_blocks(original: Any) -> Any:
        def wrapper(self: Any, blocks: Any, *args: Any, **kwargs: Any) -> Any:
            pools = getattr(self, MARK, None)
            if not pools or not recorder.on:
                return original(self, blocks, *args, **kwargs)
            ids: list[int] = []
            try:
                blocks = blocks if type(blocks) is list or isinstance(blocks, Sequence) else list(blocks)
                flat = blocks if blocks and hasattr(blocks[0], "ref_cnt") else _flat(blocks)
                ids = [block.block_id for block in flat if block.ref_cnt == 0 and not block.is_null]
            except Exception as error:
                recorder.fault("vllm.touch", error)
            done = original(self, blocks, *args, **kwargs) if args or kwargs else original(self, blocks)
            if ids:
                try:
                    touch.count += 1
                    log(TOUCH, pools, ids)
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault("vllm.touch", error)
            return done

        return quick("touch", original, wrapper, recorder, touch)

    engine.wrap(pool_class, "get_new_blocks", get_new_blocks, alloc)
    engine.wrap(pool_class, "free_blocks", free_blocks, free)
    engine.wrap(pool_class, "touch", touch_blocks, touch)


def _flat(blocks: Any) -> Iterable[Any]:
    """Blocks, or as in older versions a sequence of them for each group."""
    for part in blocks:
        if hasattr(part, "ref_cnt"):
            yield part
        else:
            yield from part
