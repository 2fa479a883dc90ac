"""A process that sees half of a run: what another process may have ordered is possible, never certain."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kvsan.checker import check
from kvsan.checker.elsewhere import FENCED
from kvsan.checker.live import Finding, KvsanHazard, LiveCheck
from kvsan.checker.options import Options
from kvsan.checker.session import Session
from kvsan.checker.trace import from_objects
from kvsan.model.hazard import Hazard
from random_traces import random_trace

Pair = tuple[str, str, int, int, int]


def session(tmp_path: Path, **options: Any) -> Session:
    given = {"log_path": str(tmp_path / "log"), "incident_path": str(tmp_path / "i-%n.jsonl"), **options}
    made = Session(Options(**given))
    made.recorder.pool("gpu", 8)
    return made


def a_step(made: Session, *, finished: bool, apart: bool = True, fenced: bool = False) -> None:
    """A worker's step. Its answer's thread sees the forward done or not; the scheduler may know so, or may not."""
    r = made.recorder
    compute, load = r.stream(0, 0, name="compute"), r.stream(0, 7, name="load")
    if apart:
        r.get("schedule 1", by="main")  # nobody has put it here
    r.access("forward", on=compute, reads={"gpu": [1]}, by="main")
    r.record(compute, "done", by="main")
    if finished:
        r.poll("done", True, by="answers")
    r.put("answer 1", by="answers")
    if apart:
        r.get("schedule 2", by="main")
    if fenced:
        r.wait(load, "done", by="main")
    r.access("load", on=load, writes={"gpu": [1]}, by="main")


@pytest.mark.parametrize(("finished", "apart"), [(True, True), (False, True), (True, False), (False, False)])
def test_what_the_scheduler_may_have_known(tmp_path: Path, finished: bool, apart: bool) -> None:
    made = session(tmp_path)
    a_step(made, finished=finished, apart=apart)
    seen = made.close()
    possible = finished and apart
    assert [found.hazard.possible for found in seen.findings] == [possible]
    assert seen.verdict.name == ("incomplete" if possible else "racy")
    assert made.status() == (0 if possible else 66)
    assert any("kvsan merge" in why for why in getattr(seen.verdict, "why", ())) is possible
    assert ("possible WAR" in (tmp_path / "log").read_text()) is possible
    incident = check(tmp_path / "i-1.jsonl")
    assert [hazard.possible for hazard in incident.hazards] == [possible]


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("finished", [True, False])
def test_a_fenced_step_is_clean_wherever_the_scheduler_is(tmp_path: Path, finished: bool, apart: bool) -> None:
    made = session(tmp_path)
    a_step(made, finished=finished, apart=apart, fenced=True)
    assert made.close().verdict.name == "clean"


@pytest.mark.parametrize("finished", [True, False])
def test_no_halt_for_what_is_only_possible(tmp_path: Path, finished: bool) -> None:
    made = session(tmp_path, halt_on_error=True)
    if finished:
        a_step(made, finished=True)
    else:
        with pytest.raises(KvsanHazard):
            a_step(made, finished=False)


def test_a_hazard_that_turns_out_certain_is_said_again(tmp_path: Path) -> None:
    made = session(tmp_path)
    a_step(made, finished=True)
    r = made.recorder
    r.access("forward", on="compute", reads={"gpu": [2]}, by="main")
    r.access("load", on="load", writes={"gpu": [2]}, by="main")
    seen = made.close()
    assert [(found.hazard.possible, found.blocks) for found in seen.findings] == [(False, 2)]
    assert seen.verdict.name == "racy"
    assert (tmp_path / "log").read_text().count("hazard ") >= 2


# ── against the whole run ─────────────────────────────────────────────────────────────────────────────────────────────


OTHER = "scheduler"


def halves(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]], list[int]]:
    """A random run in which threads tell each other things through another process alone, some of it late; which lines
    are those of this process.
    """
    header, objects = random_trace(seed)
    rng = random.Random(seed)
    threads = sorted({op["by"] for op in objects})
    whole: list[dict[str, Any]] = []
    waits: list[str] = []  # what the other process was told and has not passed on
    for op in objects:
        if op["op"] in ("put", "get"):
            name = f"t{len(whole)}"
            if op["op"] == "put":
                whole.append({"op": "put", "by": op["by"], "token": name})
                waits.append(name)
            elif rng.random() < 0.8:
                whole += [{"op": "get", "by": OTHER, "token": token} for token in waits]
                waits = []
                whole.append({"op": "put", "by": OTHER, "token": name})
                whole.append({"op": "get", "by": rng.choice(threads), "token": name})
            continue
        op.pop("planned", None)
        whole.append(op)
    return header, whole, [at for at, op in enumerate(whole) if op["by"] != OTHER]


def split(hazards: list[Hazard], line: list[int]) -> set[Pair]:
    return {
        (h.kind.value, h.pool, line[h.earlier.op], line[h.later.op], block)
        for h in hazards
        if h.kind in FENCED
        for block in h.blocks
    }


class Every(LiveCheck):
    """Keeps each hazard as it was found."""

    def __init__(self) -> None:
        super().__init__(self._none)
        self.found: list[Hazard] = []
        add = self.findings.add

        def keep(hazard: Hazard) -> Finding | None:
            self.found.append(hazard)
            return add(hazard)

        self.findings.add = keep  # type: ignore[method-assign]

    def _none(self, fresh: list[Finding]) -> None:
        pass


@pytest.mark.parametrize("start", range(0, 1200, 300))
def test_what_is_certain_is_so_in_the_whole_run(start: int) -> None:
    false = certain = possible = 0
    for seed in range(start, start + 300):
        header, whole, ours = halves(seed)
        if not ours:
            continue
        line = list(range(len(whole)))
        truth = split(list(check({**header, "start": "attached"}, whole, all_pairs=True).hazards), line)
        live = Every()
        trace = from_objects({**header, "start": "attached"}, [whole[at] for at in ours])
        for name, size in trace.header.pools.items():
            live.pool(name, size)
        for name, stream in trace.header.streams.items():
            live.stream(name, stream)
        for number, op in enumerate(trace):
            live.take(number, op)
        sure = split([hazard for hazard in live.found if not hazard.possible], ours)
        said = split(live.found, ours)
        assert sure <= truth, f"seed {seed}: {sorted(sure - truth)} is said to be certain"
        false += len(said - truth)
        certain += len(sure)
        possible += len(said - sure)
    assert certain > 100
    assert possible > 10
    assert false > 0, "no order through the other process was tried"
