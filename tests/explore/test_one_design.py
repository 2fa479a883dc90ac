"""One `Design` object is proved, run, explored and conformed to; none of the four makes a design of its own.

Object identity is one half. The other: take one edge out of that object, and each of the four says something else.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from kvsan.checker.explore import Player, Schedule, Scope, explore, replay
from kvsan.model.design import Design
from kvsan.model.designs import load, names
from kvsan.model.proof import Proved, Refuted, verify
from kvsan.runtime.engine import Engine, Sizes
from kvsan.runtime.language import Group, Model
from kvsan.runtime.serve import serve
from kvsan.runtime.workload import Workload, blocks_for, requests_of
from runtime.immediate import Immediate

MODEL = Model(groups=(Group("full"), Group("window", 64)), stop_every=40)
WORKLOAD = Workload(requests=30, concurrency=12, seed=3, aborts=0.1)
REQUESTS = requests_of(WORKLOAD, MODEL)
BLOCKS = blocks_for(WORKLOAD, MODEL, oversubscribed=4, requests=REQUESTS)
BARRIER = "load.after(compute_done)"
SCOPE = Scope(2, 1, 3)


def engine(design: Design) -> Engine:
    return Engine(design, Immediate(), MODEL, Sizes(BLOCKS.gpu, BLOCKS.host, slots=12, budget=192))


@pytest.mark.parametrize("name", names())
def test_it_is_the_same_object(name: str) -> None:
    design = load(name)
    verdict = verify(design)
    assert isinstance(verdict, Proved | Refuted)
    assert verdict.design is design
    player = Player(design, SCOPE)
    assert player.design is design
    assert player.issuer.design is design
    assert player.cells.design is design
    made = engine(design)
    assert made.issuer.cells is not None
    pools = (made.transfers.gpu, made.transfers.host, made.transfers.staging)
    used = [pool.cells.design for pool in pools if pool is not None]
    assert any(one is design for one in used)


def waits(design: Design) -> set[tuple[str, str]]:
    """The waits of the engine in a served workload."""
    made = engine(design)
    serve(made, REQUESTS, 12)
    return {(call[1], call[2]) for call in made.device.calls if call[0] == "wait"}  # type: ignore[attr-defined]


def test_one_edge_less_is_one_edge_less_everywhere() -> None:
    whole = load("vllm-symmetric-barrier")
    less = whole.without(BARRIER)
    assert isinstance(verify(whole), Proved)
    assert isinstance(verify(less), Refuted)
    assert explore(whole, SCOPE).verdict.name == "clean"
    assert explore(less, SCOPE).verdict.name == "racy"
    assert waits(whole) - waits(less) == {("load", "compute_done")}
    assert waits(less) <= waits(whole)


def conformity() -> Any:
    return pytest.importorskip("kvsan.checker.conform", reason="conform is not in this tree")


@pytest.mark.parametrize("name", ["vllm-symmetric-barrier", "vllm-after-46278", "copier-symmetric", "record-stream"])
def test_what_is_explored_conforms(name: str) -> None:
    """A run of an explorer is a run of the design for `conform` too, by other code; and of one with an edge more it
    is not."""
    conform_ops = conformity().conform_ops
    from kvsan.checker.explore.pct import Walker
    from kvsan.checker.explore.run import header

    design, scope = load(name), Scope(6, 2, 6)
    walker = Walker(design, scope, 1)
    for number in range(10):
        run = replay(design, Schedule.of(design, 2, walker.walk(number)))
        found = conform_ops(header(design, 2, ""), run.ops, design)
        assert found.refusal is None, (number, str(found.refusal))


def test_one_edge_less_does_not_conform() -> None:
    conform_ops = conformity().conform_ops
    from kvsan.checker.explore.run import header

    whole = load("vllm-symmetric-barrier")
    less = whole.without(BARRIER)
    words = ("allocate.0", "launch", "request-finished.0", "allocate-for-a-load.0", "launch")
    for design, refused in ((whole, False), (less, True)):
        run = replay(design, Schedule.of(design, 1, words))
        assert (conform_ops(header(whole, 1, ""), run.ops, whole).refusal is not None) is refused
