"""What a copy was planned at: the quick look against the rule, block by block."""

from __future__ import annotations

import numpy as np
import pytest

from kvsan.runtime.device import Copy, Ids
from kvsan.runtime.plans import Plans

Lines = list[tuple[int | None, list[int], list[int]]]


class Rule:
    """`plans.py`'s rule in plain Python: one decision and one alloc a block."""

    def __init__(self) -> None:
        self.decided: dict[tuple[str, str, int], int] = {}
        self.born: dict[tuple[str, int], int] = {}

    def of(self, copy: Copy) -> Lines:
        stale: dict[int, list[tuple[int, int]]] = {}
        rest: list[tuple[int, int]] = []
        for pair in zip(copy.sources.tolist(), copy.targets.tolist(), strict=True):
            old = [
                decided
                for pool, block in zip((copy.source, copy.target), pair, strict=True)
                if 0 < (decided := self.decided.get((pool, copy.name, block), 0)) < self.born.get((pool, block), 0)
            ]
            (stale.setdefault(min(old), []) if old else rest).append(pair)
        lines: Lines = [(time >> 1, *_sides(pairs)) for time, pairs in sorted(stale.items())]
        if rest:
            sides = [
                (pool, block) for pair in rest for pool, block in zip((copy.source, copy.target), pair, strict=True)
            ]
            latest = max(self.decided.get((pool, copy.name, block), 0) for pool, block in sides)
            youngest = max(self.born.get(side, 0) for side in sides)
            lines.append((latest >> 1 if latest > youngest else None, *_sides(rest)))
        return lines


def _sides(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [source for source, _ in pairs], [target for _, target in pairs]


@pytest.mark.parametrize("seed", range(60))
def test_against_the_rule(seed: int) -> None:
    """Random allocs, decisions and copies of three names among three pools, one of which says no size; often of the
    same blocks, so that copies of what was decided at once are among them.
    """
    rng = np.random.default_rng(seed)
    plans, rule = Plans(), Rule()
    plans.pool("gpu", 12)
    plans.pool("cpu", 12)
    pools, names, line, whole, parts = ["gpu", "cpu", "slots"], ["store", "load", "fill"], 0, 0, 0
    groups = [rng.permutation(12)[: rng.integers(1, 6)] for _ in range(4)]

    def some() -> Ids:
        if rng.integers(2):
            return groups[rng.integers(len(groups))]
        return rng.permutation(12)[: rng.integers(1, 6)]

    for _ in range(400):
        line += int(rng.integers(1, 3))
        pool, name, blocks = pools[rng.integers(3)], names[rng.integers(3)], some()
        match rng.integers(4):
            case 0:
                plans.alloc(pool, blocks, line)
                rule.born |= {(pool, block): 2 * line for block in blocks.tolist()}
            case 1:
                plans.decide(pool, blocks, name, line)
                rule.decided |= {(pool, name, block): 2 * line + 1 for block in blocks.tolist()}
            case _:
                other = pools[(pools.index(pool) + 1) % 3]
                copy = Copy(name, pool, blocks, other, rng.permutation(12)[: len(blocks)])
                made = [(planned, a.tolist(), b.tolist()) for planned, a, b in plans.of(copy)]
                assert made == rule.of(copy), f"seed {seed}"
                whole, parts = whole + (len(made) == 1), parts + (len(made) > 1)
    assert whole > 5
    assert parts > 5


def test_the_quick_look_is_the_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the quick look answers, what it leaves to the long one has the same answer; and it does answer."""
    rng = np.random.default_rng(3)
    plans, quick = Plans(), 0
    plans.pool("gpu", 40)
    plans.pool("cpu", 40)
    for line in range(1, 2000):
        blocks = rng.permutation(8)[: rng.integers(1, 4)] + 8 * rng.integers(5)
        match rng.integers(4):
            case 0:
                plans.alloc("gpu", blocks, line)
            case 1:
                plans.decide("gpu", blocks, "store", line)
            case _:
                copy = Copy("store", "gpu", blocks, "cpu", blocks)
                found = list(plans.of(copy))
                quick += plans._one(copy) is not None
                with monkeypatch.context() as patched:
                    patched.setattr(plans, "_one", lambda copy: None)
                    long = list(plans.of(copy))
                assert [(p, a.tolist(), b.tolist()) for p, a, b in found] == [
                    (p, a.tolist(), b.tolist()) for p, a, b in long
                ]
    assert 100 < quick < 900
