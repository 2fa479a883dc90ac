"""`kvsan replay`: a hazard made to happen, and the same run with its fence beside it.

Exit status: 1 it came true and the control did not, 0 there is nothing to replay (no hazard, a proved design), 2 bad
input, 3 it could not be shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsan.checker.terminal import write_json
from kvsan.checker.verdict import Exit

if TYPE_CHECKING:
    from kvsan.checker.trace import Header
    from kvsan.model.hazard import Hazard
    from kvsan.model.ops import Op

Subject = tuple["Header", "list[Op]", "list[Hazard]"]


@click.command(name="replay", epilog="Example:  kvsan replay run.jsonl.gz; kvsan replay vllm-after-46278")
@click.argument("what", metavar="TRACE|DESIGN")
@click.argument("schedule", required=False)
@click.option("--pair", nargs=2, type=click.IntRange(0), help="Of a trace: the earlier and the later op.")
@click.option("--limit", type=click.IntRange(1), default=4, show_default=True, help="Hazards to replay, one of a sort.")
@click.option("--device", type=click.Choice(["simulated", "cuda"]), default="simulated", show_default=True)
@click.option(
    "--hazard", type=click.IntRange(0), help="Of a design: this hazard of a `kvsan run`, by the options below."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the run.")
@click.option("--round", "number", type=click.IntRange(1), default=1, show_default=True, help="Which round of it.")
@click.option("--requests", type=click.IntRange(1), default=500, show_default=True)
@click.option("--concurrency", type=click.IntRange(1), default=64, show_default=True)
@click.option("--run-ahead", type=click.IntRange(0), default=1, show_default=True)
@click.option("--policy", default="fair", show_default=True)
@click.option("--pressure", type=click.FloatRange(0, min_open=True), default=4.0, show_default=True)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def replay_command(
    what: str,
    schedule: str | None,
    pair: tuple[int, int] | None,
    limit: int,
    device: str,
    hazard: int | None,
    number: int,
    form: str,
    **run: Any,
) -> None:
    """Make a reported hazard happen: the earlier access late, by every rule of CUDA, next to the run with its fence.

    Of a TRACE its hazards, one of each sort, or --pair. Of a DESIGN the shortest counterexamples of the proof, or with
    SCHEDULE (`kx1/…`, what `kvsan explore` prints) that run. On a GPU a kernel spins in front of the late access. With
    --hazard, or a SCHEDULE of the simulated device (`kvsim1.…`), a serving run of the engine is replayed.

    Exit status: 1 it came true and with its fence it did not, 0 nothing to replay, 2 bad input, 3 not shown.
    """
    if hazard is not None or (schedule or "").startswith("kvsim1."):
        raise SystemExit(_serving(what, schedule, hazard, number - 1, run))
    subjects = _subjects(what, schedule, pair)
    exits: list[Exit] = []
    for header, ops, hazards in subjects:
        exits += [_show(header, ops, hazard, device, form) for hazard in hazards[:limit]]
    if not exits and form == "text":
        click.echo(f"{what}: nothing to replay: no hazard that hangs on a moment")
    raise SystemExit(Exit.RACY if Exit.RACY in exits else Exit.INCOMPLETE if exits else Exit.CLEAN)


def _serving(what: str, schedule: str | None, hazard: int | None, number: int, run: dict[str, Any]) -> Exit:
    """A hazard of a serving run, or a whole one by its schedule."""
    from kvsan.checker.design_file import DesignFileError, load_design
    from kvsan.checker.serving.replay import by_hazard, by_schedule, watched
    from kvsan.checker.serving.trial import Trial
    from kvsan.runtime.device.schedule import ScheduleError

    try:
        trial = Trial(design=load_design(what), **run)
        if schedule is not None:
            found = by_schedule(trial, schedule)
        else:
            seen = watched(trial, number)
            if hazard is None or hazard >= len(seen.report.hazards):
                raise _bad(f"{what}: no hazard {hazard}; that run has {len(seen.report.hazards)}, numbered from 0")
            found = by_hazard(trial, number, seen, hazard)
    except (DesignFileError, ScheduleError, ValueError) as error:
        raise _bad(str(error)) from None
    for line in found.lines():
        click.echo(line)
    return Exit.RACY if found.shown else Exit.INCOMPLETE


def _subjects(what: str, schedule: str | None, pair: tuple[int, int] | None) -> list[Subject]:
    from kvsan.checker.design_file import DesignFileError, load_design
    from kvsan.checker.explore import ScheduleError
    from kvsan.checker.trace import TraceError
    from kvsan.model.design import DesignError

    path = Path(what)
    try:
        if path.is_file() and path.suffix != ".py":
            if schedule is not None:
                raise _bad(f"{what} is a trace and has its schedule; accepted: --pair EARLIER LATER")
            return [_of_trace(what, pair)]
        if pair is not None:
            raise _bad("--pair names two ops of a trace; accepted for a design: a schedule of `kvsan explore`")
        design = load_design(what)
        return [_of_schedule(design, schedule)] if schedule is not None else _of_proof(design)
    except (DesignFileError, DesignError, ScheduleError, TraceError) as error:
        raise _bad(str(error)) from None


def _of_trace(path: str, pair: tuple[int, int] | None) -> Subject:
    from kvsan.checker.judge import check_ops
    from kvsan.checker.trace import open_trace

    with open_trace(path) as trace:
        ops = list(trace)
    hazards = list(check_ops(trace.header, ops, name=path, all_pairs=pair is not None, each_edge=pair is None).hazards)
    if pair is not None:
        hazards = [one for one in hazards if (one.earlier.op, one.later.op) == pair]
        if not hazards:
            raise _bad(f"{path}: ops {pair[0]} and {pair[1]} are no hazard; `kvsan check --all` lists those that are")
    return trace.header, ops, _one_of_a_sort(hazards)


def _of_schedule(design: Any, text: str) -> Subject:
    from kvsan.checker.explore import Schedule, replay
    from kvsan.checker.explore.run import header
    from kvsan.checker.judge import check_ops

    played = replay(design, Schedule.parse(text))
    head = header(design, played.schedule.blocks, text)
    report = check_ops(head, played.ops, name=design.name)
    return head, list(played.ops), _one_of_a_sort(report.hazards)


def _of_proof(design: Any) -> list[Subject]:
    from kvsan.checker.judge import check_ops
    from kvsan.checker.trace import Header
    from kvsan.model.proof import Refuted, verify
    from kvsan.model.proof.replay import replay

    verdict = verify(design)
    if not isinstance(verdict, Refuted):
        return []
    out: list[Subject] = []
    for race in verdict.findings.races:
        made = replay(design, race.schedule.actions)
        head = Header(dict(made.pools), dict(made.streams))
        found = check_ops(head, made.ops, name=str(race.pair), all_pairs=True).hazards
        mine = [one for one in found if f"{one.kind} {one.earlier.label} -> {one.later.label}" == str(race.pair)]
        out.append((head, list(made.ops), mine[:1]))
    return out


def _one_of_a_sort(hazards: Sequence[Hazard]) -> list[Hazard]:
    sorts: dict[tuple[str, ...], Hazard] = {}
    for one in hazards:
        if one.kind in ("RAW", "WAR", "WAW"):
            sorts.setdefault((one.kind, one.pool, str(one.earlier.label), str(one.later.label)), one)
    return list(sorts.values())


def _show(header: Header, ops: Sequence[Op], hazard: Hazard, device: str, form: str) -> Exit:
    from kvsan.checker.serving.reenact import show
    from kvsan.runtime.device import DeviceError

    try:
        shown = show(ops, header.streams, hazard, device)  # type: ignore[arg-type]  # click has looked
    except DeviceError as error:
        raise _bad(str(error)) from None
    if form == "json":
        write_json(
            {
                "kvsan": 1,
                "hazard": hazard.document(),
                "came_true": shown.came_true,
                "forced": shown.forced,
                "wrong": [
                    {"op": w.op, "pool": w.pool, "block": w.block, "found": w.found, "expected": w.expected}
                    for w in shown.wrong
                ],
                "control": len(shown.control),
            }
        )
    else:
        for line in _words(shown):
            click.echo(line)
    return Exit.RACY if shown.came_true else Exit.INCOMPLETE


def _words(shown: Any) -> list[str]:
    hazard = shown.hazard
    earlier, later = hazard.earlier, hazard.later
    lines = [f"{hazard.kind} {earlier.label} (op {earlier.op}) -> {later.label} (op {later.op}): {earlier.label} late"]
    for one in shown.wrong[:3]:
        whose = f"op {one.op} read" if one.op >= 0 else "at the end there is in"
        lines.append(f"  {whose} {one.pool} {one.block}: {_write(one.found)}, not {_write(one.expected)}")
    if len(shown.wrong) > 3:
        lines.append(f"  and {len(shown.wrong) - 3} more")
    if not shown.wrong:
        lines.append(f"  not shown: {shown.forced or 'nothing was read or left otherwise'}")
    elif shown.control:
        lines.append(f"  with the fence {hazard.fix[0]}: {len(shown.control)} blocks are wrong all the same")
    else:
        lines.append(f"  control, {hazard.fix[0] if hazard.fix else 'no fence'}: every block as it should be")
    return lines


def _write(op: int) -> str:
    return f"the write of op {op}" if op >= 0 else "what a fresh block holds"


def _bad(text: str) -> SystemExit:
    click.echo(f"kvsan: {text}", err=True)
    return SystemExit(Exit.BAD_INPUT)
