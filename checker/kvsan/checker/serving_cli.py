"""`kvsan run` and `kvsan bisect`: kvsan's own engine serves in debug mode, on a simulated device or on a GPU.

Exit status: 0 clean and every completion right, 1 hazards or a garbled completion, 2 bad input, 3 incomplete, 130
after Ctrl-C with what was seen until then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from kvsan.checker.terminal import colour, width, write_json
from kvsan.checker.verdict import Exit

if TYPE_CHECKING:
    from kvsan.checker.serving.fences import Fence
    from kvsan.checker.serving.trial import Round, Trial

INTERRUPTED = 130

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--device", type=click.Choice(["simulated", "cuda"]), default="simulated", show_default=True),
    click.option("--requests", type=click.IntRange(1), default=500, show_default=True, help="Requests a round."),
    click.option("--rounds", type=click.IntRange(1), default=3, show_default=True),
    click.option("--concurrency", type=click.IntRange(1), default=64, show_default=True, help="Requests at a time."),
    click.option(
        "--run-ahead",
        type=click.IntRange(0),
        default=1,
        show_default=True,
        help="Steps that the host launches before it looks at one; 0 waits for each.",
    ),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True),
    click.option(
        "--pressure",
        type=click.FloatRange(0, min_open=True),
        default=4.0,
        show_default=True,
        help="How many times the device's pool the requests at a time want; 0.5 is a healthy pool.",
    ),
    click.option("--lazy", is_flag=True, help="Store blocks near eviction, not each full one."),
    click.option(
        "--spin",
        type=click.IntRange(0),
        default=0,
        help="cuda: clock cycles that a forward spins between its writes and its reads, to stretch the window.",
    ),
    click.option("--no-check", is_flag=True, help="The production engine alone: only completions are looked at."),
    click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True),
)


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(name="run", epilog="Example:  kvsan run --design vllm-after-46278 --policy starve:compute")
@click.option("--design", "name", default="kvsan-default", show_default=True, help="A catalogue name, or a file.")
@click.option(
    "--fence",
    type=click.Choice(["none", "store", "load", "all"]),
    default="none",
    show_default=True,
    help="Transfers that wait for the forward besides what the design says.",
)
@click.option("--policy", default="fair", show_default=True, help="simulated: fair, early, late, lazy, starve:STREAM…")
@click.option("--trace", default="", metavar="FILE", help="Write each round's log: .jsonl, .jsonl.gz or .kvt (binary).")
@_with_options
def run_command(name: str, fence: str, policy: str, trace: str, form: str, **given: Any) -> None:
    """Serve a workload with kvsan's own engine in debug mode: is a completion wrong, and is a fence missing?

    Every completion is compared with the right one, and every op is checked; the two are independent. The engine gets
    its fences from the design alone.

    Exit status: 0 clean, 1 hazards or a garbled completion, 2 bad input, 3 incomplete, 130 after Ctrl-C.
    """
    from kvsan.checker.serving import table

    trial = _trial(name, policy, given, fence=fence, trace=trace)
    rounds = _play(trial, list(range(trial.rounds)), [fence])
    if form == "json":
        write_json(table.document(trial, rounds))
    else:
        click.echo(table.run(trial, rounds, width(), colour=colour()))
    raise SystemExit(_exit(rounds))


@click.command(name="bisect", epilog="Example:  kvsan bisect --design vllm-before-46278")
@click.option("--design", "name", default="vllm-after-46278", show_default=True, help="A catalogue name, or a file.")
@click.option(
    "--policy", default="starve:compute", show_default=True, help="simulated: an adversary, since it is to garble."
)
@_with_options
def bisect_command(name: str, policy: str, form: str, **given: Any) -> None:
    """Serve the same workload in the four fence modes (none, store, load, all): which one mends it?

    One table: how many completions are garbled, and which hazards there are, in each mode.

    Exit status: that of the mode `none`; 2 bad input, 130 after Ctrl-C.
    """
    from kvsan.checker.serving import table
    from kvsan.checker.serving.fences import MODES, fenced
    from kvsan.model.design import DesignError

    trial = _trial(name, policy, given)
    found: dict[Fence, list[Round]] = {}
    for mode in MODES:
        try:
            fenced(trial.design, mode)  # type: ignore[arg-type]  # a trial of the command line has a design
        except DesignError as error:
            click.echo(f"kvsan: no mode {mode}: {error}", err=True)
            continue
        if any(one.interrupted for rounds in found.values() for one in rounds):
            break
        found[mode] = _play(replace(trial, fence=mode), list(range(trial.rounds)), [mode])
    if form == "json":
        for mode, rounds in found.items():
            write_json(table.document(replace(trial, fence=mode), rounds))
    else:
        click.echo(table.bisection(trial, found, width(), colour=colour()))
    if any(one.interrupted for rounds in found.values() for one in rounds):
        raise SystemExit(INTERRUPTED)
    raise SystemExit(_exit(found["none"]))


COMMANDS = (run_command, bisect_command)


def _trial(name: str, policy: str, given: dict[str, Any], **more: Any) -> Trial:
    """What the options ask for. Ends the process with status 2 and one line if it cannot be."""
    from kvsan.checker.design_file import DesignFileError, load_design
    from kvsan.checker.serving.fences import fenced
    from kvsan.checker.serving.trial import Trial, refusal
    from kvsan.model.design import DesignError

    check = not given.pop("no_check")
    try:
        design = load_design(name)
        trial = Trial(design=design, policy=policy, check=check, **given, **more)
        fenced(design, trial.fence)
    except DesignFileError as error:
        raise _bad(str(error)) from None
    except DesignError as error:
        raise _bad(f"{name}: {error}") from None
    if (why := refusal(trial)) is not None:
        raise _bad(why)
    return trial


def _bad(text: str) -> SystemExit:
    click.echo(f"kvsan: {text}", err=True)
    return SystemExit(Exit.BAD_INPUT)


def _play(trial: Trial, numbers: list[int], words: list[str]) -> list[Round]:
    """The rounds, as far as they go. What the engine or the device cannot do is said in one line, with status 2."""
    from kvsan.checker.serving.progress import showing
    from kvsan.checker.serving.trial import play
    from kvsan.model.design import DesignError
    from kvsan.runtime.device import DeviceError, DeviceLostError
    from kvsan.runtime.scheduler import EngineError

    out: list[Round] = []
    with showing(trial, " ".join(words)) as progress:
        for number in numbers:
            try:
                out.append(play(trial, number, progress))
            except (DesignError, DeviceError, DeviceLostError, EngineError) as error:
                raise _bad(f"{trial.design.name if trial.design else 'run'}: round {number}: {error}") from None
            if out[-1].interrupted:
                break
    return out


def _exit(rounds: list[Round]) -> int:
    if any(one.interrupted for one in rounds):
        return INTERRUPTED
    if any(one.garbled or (one.summary is not None and one.summary.findings) for one in rounds):
        return Exit.RACY
    if any(one.summary is not None and one.summary.verdict.exit is Exit.INCOMPLETE for one in rounds):
        return Exit.INCOMPLETE
    return Exit.CLEAN
