"""Every reported hazard can be made to happen, and not with its fence: counterexamples, recorded runs, schedules."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kvsan.checker.judge import check_ops
from kvsan.checker.trace import Header, open_trace
from kvsan.model.designs import load, names
from kvsan.model.hazard import Hazard, Kind
from kvsan.model.ops import Access, Blocks, Op, Record, Stream, Wait
from kvsan.model.proof import Refuted, verify
from kvsan.model.proof.replay import replay

pytest.importorskip("torch")

from kvsan.checker.cli import cli
from kvsan.checker.serving.reenact import reenact, show

TRACES = Path(__file__).parents[1] / "checker/kvsan/checker/data/traces"
RACY = [name for name in names() if isinstance(found := verify(load(name)), Refuted) and found.findings.races]


@pytest.mark.parametrize("name", RACY)
def test_every_race_of_the_proof_comes_true_and_not_with_its_fence(name: str) -> None:
    verdict = verify(load(name))
    assert isinstance(verdict, Refuted)
    for race in verdict.findings.races:
        made = replay(verdict.design, race.schedule.actions)
        hazards = check_ops(Header(dict(made.pools), dict(made.streams)), made.ops, all_pairs=True).hazards
        mine = [h for h in hazards if f"{h.kind} {h.earlier.label} -> {h.later.label}" == str(race.pair)]
        assert mine, race.pair
        assert show(made.ops, made.streams, mine[0]).came_true, race.pair


@pytest.mark.parametrize("name", [name for name in names() if name not in RACY])
def test_a_counterexample_is_there_for_no_design_without_races(name: str) -> None:
    done = CliRunner().invoke(cli, ["replay", name])
    assert done.exit_code == 0
    assert "nothing to replay" in done.output


@pytest.mark.parametrize("name", ["none", "store", "load"])
def test_recorded_runs_of_vllm(name: str) -> None:
    """In none of them was a completion garbled; each sort of hazard garbles a block if its earlier access is late."""
    with open_trace(str(next(TRACES.glob(f"*{name}.jsonl.gz")))) as trace:
        ops = list(trace)
    sorts: dict[Kind, Hazard] = {}
    for hazard in check_ops(trace.header, ops, each_edge=True).hazards:
        sorts.setdefault(hazard.kind, hazard)
    assert set(sorts) >= ({Kind.RAW} if name == "load" else {Kind.RAW, Kind.WAR})
    for hazard in sorts.values():
        assert show(ops, trace.header.streams, hazard).came_true, hazard


def test_a_run_that_nobody_holds_up_reads_what_program_order_says() -> None:
    with open_trace(str(next(TRACES.glob("*none.jsonl.gz")))) as trace:
        ops = list(trace)
    assert reenact(ops, trace.header.streams) == ((), None)


# ── streams that order by themselves ──────────────────────────────────────────────────────────────────────────────────

BLOCK = {"gpu": Blocks.of([0])}


def two(on: str, other: str, *between: Op) -> list[Op]:
    return [Access("h0", on, writes=BLOCK, label="write"), *between, Access("h0", other, reads=BLOCK, label="read")]


@pytest.mark.parametrize("kind", ["blocking", "per-thread", "nonblocking"])
def test_a_legacy_stream_orders_what_it_orders(kind: str) -> None:
    streams = {"legacy": Stream(kind="legacy"), "side": Stream(kind=kind)}  # type: ignore[arg-type]
    for ops in (two("legacy", "side"), two("side", "legacy")):
        wrong, forced = reenact(ops, streams, late=(0, 1, Kind.RAW, "gpu"))
        assert bool(wrong) == (kind == "nonblocking")
        assert (forced is None) == (kind == "nonblocking")


def test_a_source_read_at_any_time_is_read_too_early() -> None:
    ops: list[Op] = [
        Access("h0", "compute", writes=BLOCK, label="write"),
        Record("h0", "compute", "e"),
        Wait("h0", "store", "e"),
        Access("h0", "store", reads=BLOCK, label="store", order="any"),
    ]
    streams = {"compute": Stream(), "store": Stream()}
    (hazard,) = check_ops(Header({"gpu": 1}, streams), ops).hazards
    assert show(ops, streams, hazard).came_true
    ordered = [*ops[:3], Access("h0", "store", reads=BLOCK, label="store")]
    wrong, forced = reenact(ordered, streams, late=(0, 3, Kind.RAW, "gpu"))
    assert wrong == ()
    assert forced is not None


def test_the_command(tmp_path: Path) -> None:
    run = CliRunner().invoke
    done = run(cli, ["replay", "vllm-after-46278"])
    assert done.exit_code == 1
    assert "op 8 read gpu 0: the write of op 18, not the write of op 2" in done.output
    found = run(cli, ["explore", "vllm-after-46278", "--blocks", "1", "--first"])
    schedule = next(word for word in found.output.split() if word.startswith("kx1/"))
    assert run(cli, ["replay", "vllm-after-46278", schedule]).exit_code == 1
    assert run(cli, ["replay", "vllm-symmetric-barrier", schedule]).exit_code == 0
    for given, said in (
        (["no-such-design"], "no design"),
        (["vllm-after-46278", "kx1/nonsense"], "schedule"),
        (["vllm-after-46278", "--pair", "1", "2"], "--pair names two ops of a trace"),
    ):
        done = run(cli, ["replay", *given])
        assert done.exit_code == 2, done.output
        assert said in done.output
        assert done.output.count("\n") == 1
