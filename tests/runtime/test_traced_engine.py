"""The engine that ships, on a traced device: it answers as it does on the bare one, and the lines say what its design
is worth, though nothing is ever late.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from kvsan.checker.judge import check_trace
from kvsan.checker.options import Options
from kvsan.checker.session import Session
from kvsan.checker.summary import Summary
from kvsan.checker.trace import open_trace
from kvsan.model.designs import load
from kvsan.runtime.engine import Engine, Sizes
from kvsan.runtime.language import Group, Model
from kvsan.runtime.serve import serve
from kvsan.runtime.workload import Workload, blocks_for, requests_of
from runtime.immediate import Immediate, ImmediateHost

MODEL = Model(groups=(Group("full"), Group("window", 64)), stop_every=40)
WORKLOAD = Workload(requests=30, concurrency=12, seed=3, aborts=0.1)
REQUESTS = requests_of(WORKLOAD, MODEL)
BLOCKS = blocks_for(WORKLOAD, MODEL, oversubscribed=4, requests=REQUESTS)


class Late(Immediate):
    """Everything is done at once and seen late: an event is complete at the third query since its record."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def host(self, name: str) -> ImmediateHost:
        return LateHost(self, name)


class LateHost(ImmediateHost):
    """Its host threads."""

    device: Late

    def record(self, stream: str, event: str) -> None:
        super().record(stream, event)
        self.device.asked[event] = 1

    def query(self, event: str) -> bool:
        if self.device.asked[event]:
            self.device.asked[event] = (self.device.asked[event] + 1) % 4
        return not self.device.asked[event]

    def sync(self, event: str) -> None:
        super().sync(event)
        self.device.asked[event] = 0


def run(name: str, device: Any) -> dict[int, tuple[int, ...]]:
    made = Engine(load(name), device, MODEL, Sizes(BLOCKS.gpu, BLOCKS.host, slots=12, budget=192))
    if not made.stores:
        made.warm(request.prompt for request in REQUESTS)
    return {number: tuple(done.tokens) for number, done in serve(made, REQUESTS, 12).items()}


def watched(tmp_path: Path, name: str, **more: Any) -> tuple[dict[int, tuple[int, ...]], Summary, Immediate]:
    session = Session(Options(log_path=str(tmp_path / "log.txt"), incident=0, max_reports=1, **more))
    inner = Late()
    answers = run(name, session.watch(inner))
    return answers, session.close(), inner


@pytest.mark.parametrize("name", ["kvsan-default", "vllm-symmetric-barrier", "copier-symmetric", "copier-deferral"])
def test_a_safe_design_is_clean(tmp_path: Path, name: str) -> None:
    bare = Late()
    answers, seen, inner = watched(tmp_path, name)
    assert answers == run(name, bare)
    assert inner.calls == bare.calls
    assert seen.verdict.name == "clean", [found.hazard.document() for found in seen.findings]
    assert seen.coverage.accesses > 50


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("vllm-before-46278", {"RAW"}), ("vllm-after-46278", {"WAR"}), ("vllm-no-store-pin", {"WAR", "GEN"})],
)
def test_an_unsafe_design_is_not(tmp_path: Path, name: str, kinds: set[str]) -> None:
    _, seen, _ = watched(tmp_path, name)
    assert kinds <= {found.hazard.kind.value for found in seen.findings}


def test_the_log_says_the_same(tmp_path: Path) -> None:
    """Written by the log alone and checked afterwards; each line once."""
    path = tmp_path / "t.kvt"
    _, alone, _ = watched(tmp_path, "vllm-after-46278", trace=str(path), check=False)
    _, live, _ = watched(tmp_path, "vllm-after-46278")
    with open_trace(str(path)) as trace:
        report = check_trace(trace, each_edge=True)  # as a live session reports
    assert report.ops == alone.ops == live.ops
    assert {h.kind for h in report.hazards} == {found.hazard.kind for found in live.findings}
    assert sum(len(h.blocks) for h in report.hazards) == sum(found.blocks for found in live.findings)
