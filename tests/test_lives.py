"""`lives.py` is `hazard.Life` in columns: the same answers for every block after every alloc, free and touch."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvsan.checker.index import index
from kvsan.checker.lives import Lives, Marks
from kvsan.model.hazard import Life
from kvsan.model.ops import Blocks


@pytest.mark.parametrize("seed", range(20))
def test_columns_equal_lives(seed: int) -> None:
    rng = random.Random(seed)
    size = 12
    lives, models = Lives(size), [Life() for _ in range(size)]
    frees: dict[int, int] = {}
    for op in range(200):
        chosen = Blocks.of(sorted(rng.sample(range(size), rng.randint(1, 5))))
        what = rng.choice(("alloc", "free", "touch"))
        {"alloc": lives.alloc, "free": lives.free, "touch": lives.touch}[what](op, index(chosen))
        for block in chosen:
            model = models[block]
            models[block] = {"alloc": model.alloc, "free": model.freed, "touch": model.touch}[what](op)
            frees[block] = op if what == "free" else frees.get(block, -1)
        for planned in (rng.randint(0, op), op):
            found = lives.reborn_since(planned, index(Blocks(((0, size),))))
            ours = set() if found is None else set(found.tolist())
            assert ours == {b for b in range(size) if models[b].reused_since(planned)}, f"seed {seed}, op {op}"
        free = lives.free_blocks(index(Blocks(((0, size),))))
        assert (set() if free is None else set(free.tolist())) == {b for b in range(size) if models[b].free}
        for block in range(size):
            if models[block].free:
                assert lives.freed_at(block) == frees[block]


def test_after_a_billion_ops_old_stamps_become_never_and_new_ones_hold() -> None:
    lives = Lives(4, limit=100)
    every = index(Blocks(((0, 4),)))
    lives.free(10, index(Blocks.of([0])))
    lives.alloc(12, index(Blocks.of([0])))
    lives.free(90, index(Blocks.of([1])))
    lives.alloc(120, index(Blocks.of([1])))  # beyond the limit: stamps are moved down by 50
    lives.free(130, index(Blocks.of([2])))
    found = lives.reborn_since(80, every)
    assert found is not None
    assert found.tolist() == [1]
    assert lives.between(1) == (90, 120)
    assert lives.between(0) == (None, None), "too old to be remembered: no reuse is claimed"
    assert lives.reborn_since(95, every) is None
    assert lives.freed_at(2) == 130


def test_marks_are_a_bit_a_block() -> None:
    marks = Marks(1000)
    some = np.array([0, 7, 8, 9, 999])
    assert marks.fresh(some).all()
    assert marks.nbytes() == 0
    marks.mark(some)
    assert not marks.fresh(some).any()
    assert marks.fresh(np.array([1, 6, 10, 998])).all()
    assert marks.nbytes() == 125
