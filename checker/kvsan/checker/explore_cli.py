"""`kvsan explore`: what can a host that follows this design do, and does any of it race?

Exit status: 0 clean (all of the scope, or all of the random runs), 1 racy, 2 bad input, 3 incomplete (a limit was
reached, or no run touched a block), 130 interrupted (what was found is printed all the same).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvsan.checker.design_file import DesignFileError, load_design
from kvsan.checker.terminal import colour, width, write_json
from kvsan.checker.verdict import Exit

if TYPE_CHECKING:
    from kvsan.checker.explore import Outcome, Progress
    from kvsan.model.design import Design

INTERRUPTED = 130


@click.command(name="explore", epilog="Example:  kvsan explore vllm-after-46278 --blocks 2 --first")
@click.argument("name", metavar="DESIGN")
@click.option("--requests", type=click.IntRange(1), help="Hand-outs of a block, over all blocks.  [2; random: 12]")
@click.option("--blocks", type=click.IntRange(1, 1 << 10), help="Blocks.  [3]")
@click.option("--steps", type=click.IntRange(1), help="Steps launched.  [3; random: 16]")
@click.option("--skips", is_flag=True, help="A step may leave out blocks that are due, as a full batch does.")
@click.option("--exhaustive", is_flag=True, help="Every run of the scope (the default).")
@click.option("--random", "runs", type=click.IntRange(1), metavar="N", help="N random runs instead.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random runs.")
@click.option("--first", is_flag=True, help="Stop at the first race.")
@click.option(
    "--max-states", type=click.IntRange(1), default=2_000_000, show_default=True, help="Give up behind so many."
)
@click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes; the answer is the same."
)
@click.option(
    "--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="Where they run."
)
@click.option("--checkpoint", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Goes on from it if it is there, and is kept up to date.")  # fmt: skip
@click.option("--replay", "schedule", metavar="SCHEDULE", help="Play one schedule and show it.")
@click.option("--trace", "out", metavar="DIR", help="Write each race as a trace for `kvsan check`.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="Output format.")  # fmt: skip
def explore_command(
    name: str,
    requests: int | None,
    blocks: int | None,
    steps: int | None,
    skips: bool,
    exhaustive: bool,
    runs: int | None,
    seed: int,
    first: bool,
    max_states: int,
    workers: int,
    engine: str,
    checkpoint: Path | None,
    schedule: str | None,
    out: str | None,
    form: str,
) -> None:
    """Explore what the host of a design may see and do, and check every run for races.

    DESIGN is a name of the catalogue (`kvsan designs`) or a Python file that defines one; the file is run. Device
    timing needs no exploring: the check covers every timing of one order of calls.

    Exit status: 2 bad input, else 1 racy, else 3 incomplete, else 0 clean; 130 interrupted.
    """
    from kvsan.checker.explore import LONG, SMALL, How, explore
    from kvsan.checker.explore.checkpoint import CheckpointError
    from kvsan.checker.explore.report import document, render
    from kvsan.checker.spread import SpreadError
    from kvsan.model.design import DesignError

    if exhaustive and runs is not None:
        raise click.UsageError("--exhaustive and --random are two ways to explore; choose one")
    try:
        design = load_design(name)
    except DesignFileError as error:
        click.echo(f"kvsan: {error}", err=True)
        raise SystemExit(Exit.BAD_INPUT) from None
    if schedule is not None:
        _replay(design, name, schedule, out, form)
    usual = SMALL if runs is None else LONG
    scope = replace(
        usual,
        requests=requests or usual.requests,
        blocks=blocks or usual.blocks,
        steps=steps or usual.steps,
        skips=skips,
    )
    how = How(runs or 0, seed, workers, engine, max_states, first, checkpoint)
    try:
        with _bar() as tell:
            outcome = explore(design, scope, how, tell)
    except (CheckpointError, SpreadError, DesignError) as error:
        click.echo(f"kvsan: {error}", err=True)
        raise SystemExit(Exit.BAD_INPUT) from None
    except OSError as error:
        raise click.UsageError(f"--checkpoint {checkpoint}: {(error.strerror or str(error)).lower()}") from None
    if out is not None:
        outcome = _write(outcome, Path(out))
    if form == "json":
        write_json(document(outcome))
    else:
        click.echo(render(outcome, width(), asked=name, colour=colour()))
    if outcome.interrupted:
        click.echo("kvsan: interrupted", err=True)
        raise SystemExit(INTERRUPTED)
    raise SystemExit(outcome.verdict.exit)


def _replay(design: Design, name: str, text: str, out: str | None, form: str) -> None:
    from kvsan.checker.explore import Schedule, ScheduleError, replay
    from kvsan.checker.explore.report import render_run, run_document

    try:
        run = replay(design, Schedule.parse(text))
    except ScheduleError as error:
        click.echo(f"kvsan: {name}: {error}", err=True)
        raise SystemExit(Exit.BAD_INPUT) from None
    if out is not None:
        with _folder(Path(out)) as folder:
            run.write(folder / f"{run.schedule.design}-replay.jsonl", design)
    if form == "json":
        write_json(run_document(run, design.name))
    else:
        click.echo(render_run(run, design.name, width(), colour=colour()))
    raise SystemExit(run.report.verdict.exit)


def _write(outcome: Outcome, folder: Path) -> Outcome:
    from kvsan.checker.explore import replay
    from kvsan.checker.explore.moves import slugs

    written = {}
    names = slugs(f"{outcome.design.name}-{finding.pair}" for finding in outcome.findings)
    with _folder(folder):
        for finding, name in zip(outcome.findings, names, strict=True):
            path = folder / f"{name}.jsonl"
            replay(outcome.design, finding.schedule).write(path, outcome.design)
            written[finding.pair] = str(path)
    return replace(outcome, traces=written)


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        raise click.UsageError(f"--trace {folder}: {(error.strerror or str(error)).lower()}") from None


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """If a person is looking, one line on stderr shows how far it is."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from kvsan.checker.explore.report import status

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("exploring", total=None)

        def tell(progress: object) -> None:
            from kvsan.checker.explore.found import Progress as Explored

            assert isinstance(progress, Explored)
            if progress.mode == "random":
                done, of = progress.runs, progress.of
            else:
                done, of = progress.states - progress.waiting, progress.states + (progress.left or 0)
            known = progress.mode == "random" or progress.left is not None
            bar.update(task, completed=done, total=of if known else None, description=status(progress))

        yield tell
