"""`kvsan replay DESIGN --seed S (--hazard N | --schedule STRING)`: a report becomes a run that shows it, beside its
control.

Exit status: 1 the run shows it and the control does not, 0 it cannot be shown so (a race that another interleaving of the
host's threads needs), 2 bad input (no such design, hazard or schedule; a hazard that needs no timing).
"""

from __future__ import annotations

import click

from kvsan.checker.design_file import DesignFileError, load_design
from kvsan.checker.verdict import Exit


@click.command(name="replay", epilog="Example:  kvsan replay vllm-before-46278 --seed 7 --hazard 0")
@click.argument("design")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the run, as for `kvsan run`.")
@click.option("--round", "number", type=int, default=0, show_default=True, help="Which round of it.")
@click.option("--hazard", type=click.IntRange(0), help="Which of its hazards, from 0. Without: they are listed.")
@click.option("--schedule", help="A schedule string of the simulated device (kvsim1.…).")
@click.option("--requests", type=click.IntRange(1), default=500, show_default=True)
@click.option("--concurrency", type=click.IntRange(1), default=64, show_default=True)
@click.option("--run-ahead", type=click.IntRange(0), default=1, show_default=True)
@click.option("--policy", default="fair", show_default=True, help="How the simulated device runs.")
@click.option("--pressure", type=float, default=4.0, show_default=True, help="Wanted blocks by blocks of the pool.")
def replay_command(
    design: str,
    seed: int,
    number: int,
    hazard: int | None,
    schedule: str | None,
    requests: int,
    concurrency: int,
    run_ahead: int,
    policy: str,
    pressure: float,
) -> None:
    """Replay a hazard of a simulated `kvsan run`, or a schedule of one, as a run that shows it.

    The options are those of the run. DESIGN is a name of the catalogue or a Python file that defines one; the file is
    run.

    Exit status: 1 it is shown, 0 it is not, 2 bad input.
    """
    from kvsan.checker.serving.replay import Replayed, by_hazard, by_schedule, title, watched
    from kvsan.checker.serving.trial import Trial
    from kvsan.runtime.device.schedule import ScheduleError

    if hazard is not None and schedule is not None:
        raise click.UsageError("give one of --hazard and --schedule")
    try:
        trial = Trial(
            design=load_design(design),
            requests=requests,
            concurrency=concurrency,
            run_ahead=run_ahead,
            seed=seed,
            policy=policy,
            pressure=pressure,
        )
        found: Replayed
        if schedule is not None:
            found = by_schedule(trial, schedule)
        else:
            run = watched(trial, number)
            hazards = run.report.hazards
            if hazard is None:
                for at, one in enumerate(hazards):
                    click.echo(f"{at:4}  {title(one)}")
                click.echo(f"{len(hazards)} hazards, {len(run.garbled)} of {len(run.done)} completions garbled")
                return
            if hazard >= len(hazards):
                raise click.UsageError(f"there is no hazard {hazard}; the run has {len(hazards)}, numbered from 0")
            found = by_hazard(trial, number, run, hazard)
    except (DesignFileError, ScheduleError, ValueError) as error:
        click.echo(f"kvsan: {error}", err=True)
        raise SystemExit(Exit.BAD_INPUT) from None
    for line in found.lines():
        click.echo(line)
    raise SystemExit(1 if found.shown else 0)
