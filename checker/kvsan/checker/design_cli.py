"""`kvsan verify | repair | diff | designs`: is an ordering protocol right, before it is built?

Exit status: 0 proved, 1 refuted (a claim that the design makes does not hold), 2 bad input (no such design, a design
file that raises, a design with a rule that can never happen), 3 unknown. Over several designs the worst: 2, 1, 3, 0.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvsan.checker.design_file import DesignFileError, load_design
from kvsan.checker.terminal import colour, width, write_json
from kvsan.checker.verdict import Exit, worst

if TYPE_CHECKING:
    from kvsan.model.proof import Action, Verdict

_form = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="Output format; markdown is fit for a comment on a pull request.",
)


@click.command(name="verify", epilog="Example:  kvsan verify my_design.py vllm-symmetric-barrier")
@click.argument("designs", nargs=-1, required=True, metavar="DESIGN...")
@_form
@click.option("--quick", is_flag=True, help="Leave out which edge keeps which pair apart.")
@click.option("--certify", is_flag=True, help="Have z3 confirm the verdict by another road.")
@click.option("--trace", "out", metavar="DIR", help="Write each counterexample as a trace for `kvsan check`.")
def verify_command(designs: tuple[str, ...], form: str, quick: bool, certify: bool, out: str | None) -> None:
    """Prove a design for every number of blocks, requests and steps, or show the shortest schedule that breaks it.

    DESIGN is a name of the catalogue (`kvsan designs`) or a Python file that defines one; the file is run.

    Exit status: 2 bad input, else 1 refuted, else 3 unknown, else 0 proved.
    """
    from kvsan.checker.report import design as text
    from kvsan.checker.report import design_document, design_markdown
    from kvsan.model.proof import Proved, Refuted, keepers

    exits: list[Exit] = []
    taken: set[str] = set()
    shown = 0
    for name in designs:
        verdict = _verdict(name, certify=certify)
        if verdict is None:
            exits.append(Exit.BAD_INPUT)
            continue
        exits.append(_exit(verdict))
        certified = isinstance(verdict, Proved | Refuted) and bool(
            verdict.certificate or verdict.times or verdict.unchecked
        )
        traces = _traces(verdict, Path(out), taken) if out is not None else {}
        kept = None
        if isinstance(verdict, Proved | Refuted) and not quick:
            kept = keepers(verdict.design, verdict.findings.kept_apart)
        if form == "json":
            write_json(design_document.verified(verdict, kept or {}, traces, certified=certified))
        elif form == "markdown":
            _next(shown)
            click.echo(design_markdown.verdict(verdict, kept, traces, certified=certified))
        else:
            _next(shown)
            click.echo(text.render_verdict(verdict, kept, traces, width(), certified=certified, colour=colour()))
        shown += 1
    raise SystemExit(worst(exits))


@click.command(name="repair", epilog="Example:  kvsan repair vllm-after-46278")
@click.argument("design")
@_form
def repair_command(design: str, form: str) -> None:
    """List every smallest set of edges that mends a design, cheapest first, and the edges that it does not need.

    Exit status: that of `verify`, whether or not it can be mended.
    """
    from kvsan.checker.report import design_changes as text
    from kvsan.checker.report import design_document, design_markdown
    from kvsan.model.proof import redundant, repair

    verdict = _verdict(design)
    if verdict is None:
        raise SystemExit(Exit.BAD_INPUT)
    found, spare = repair(verdict.design), redundant(verdict.design)
    if form == "json":
        write_json(design_document.repaired(verdict, found, spare))
    elif form == "markdown":
        click.echo(design_markdown.repairs(verdict, found, spare))
    else:
        click.echo(text.render_repairs(verdict, found, spare, width(), colour=colour()))
    raise SystemExit(_exit(verdict))


@click.command(name="diff", epilog="Example:  kvsan diff vllm-symmetric-barrier my_design.py --format markdown")
@click.argument("before")
@click.argument("after")
@_form
def diff_command(before: str, after: str, form: str) -> None:
    """Compare two designs: which pairs lost or gained protection and through which edge, what may now overlap.

    Exit status: that of `verify AFTER`; 2 if either is bad input.
    """
    from kvsan.checker.report import design_changes as text
    from kvsan.checker.report import design_document, design_markdown
    from kvsan.model.proof import diff

    verdicts = [_verdict(name) for name in (before, after)]
    a, b = verdicts
    if a is None or b is None:
        raise SystemExit(Exit.BAD_INPUT)
    found = diff(a.design, b.design)
    if form == "json":
        write_json(design_document.compared(found))
    elif form == "markdown":
        click.echo(design_markdown.difference(found))
    else:
        click.echo(text.render_difference(found, width(), colour=colour()))
    raise SystemExit(_exit(found.b))


@click.command(name="designs", epilog="Example:  kvsan designs --format json | jq .design")
@_form
def designs_command(form: str) -> None:
    """List the catalogue: public protocols, one readable file each, and the verdict expected of it."""
    from kvsan.checker.report import design_changes as text
    from kvsan.checker.report import design_document, design_markdown
    from kvsan.model.designs import load, names

    every = [load(name) for name in names()]
    if form == "json":
        for design in every:
            write_json(design_document.listed(design))
    elif form == "markdown":
        click.echo(design_markdown.listed(every))
    else:
        click.echo(text.render_list(every, width(), colour=colour()))


COMMANDS = (verify_command, repair_command, diff_command, designs_command)


def _verdict(name: str, *, certify: bool = False) -> Verdict | None:
    """None: bad input, and said so in one line. Without z3 a verdict that was to be certified is one all the same."""
    from kvsan.model.design import DesignError
    from kvsan.model.proof import MissingSolverError, Refused, verify

    try:
        design = load_design(name)
        try:
            verdict = verify(design, certify=certify)
        except MissingSolverError as error:
            click.echo(f"kvsan: {name}: not certified: {error}", err=True)
            verdict = verify(design)
    except DesignFileError as error:
        click.echo(f"kvsan: {error}", err=True)
        return None
    except DesignError as error:
        click.echo(f"kvsan: {name}: {error}", err=True)
        return None
    if isinstance(verdict, Refused):
        click.echo(
            f"kvsan: {name}: {', '.join(verdict.dead)} can never happen, so a proof would be about less than it says",
            err=True,
        )
        return None
    return verdict


def _exit(verdict: Verdict) -> Exit:
    return {
        "Proved": Exit.CLEAN,
        "Refuted": Exit.RACY,
        "Unknown": Exit.INCOMPLETE,
        "Refused": Exit.BAD_INPUT,
    }[type(verdict).__name__]


def _traces(verdict: Verdict, folder: Path, taken: set[str]) -> dict[str, str]:
    """Writes each counterexample of a claim that is a hazard; returns where, by pair (or `GEN work`). `taken`: the file
    names of this run so far."""
    from kvsan.checker.trace import TraceWriter
    from kvsan.checker.trace.header import Header
    from kvsan.model.design import Claim
    from kvsan.model.proof import Proved, Refuted
    from kvsan.model.proof.replay import replay

    if not isinstance(verdict, Proved | Refuted):
        return {}
    found, claims = verdict.findings, verdict.design.claims
    schedules: dict[str, tuple[Action, ...]] = {}
    if Claim.RACE_FREE in claims:
        schedules |= {str(race.pair): race.schedule.actions for race in found.races}
    if Claim.RIGHT_GENERATION in claims:
        schedules |= {f"GEN {wrong.work}": wrong.schedule for wrong in found.wrong_generation}
    out = {}
    for name, actions in schedules.items():
        played = replay(verdict.design, actions)
        path = folder / _file_name(f"{_slug(verdict.design.name)}-{_slug(name)}", taken)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TraceWriter(path, Header(played.pools, played.streams)) as trace:
                for op in played.ops:
                    trace.write(op)
        except OSError as error:
            raise click.UsageError(f"--trace {folder}: {(error.strerror or str(error)).lower()}") from None
        out[name] = str(path)
    return out


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:80]


def _file_name(stem: str, taken: set[str]) -> str:
    """A name that no other trace of this run has, on a disk that ignores case too."""
    name, number = f"{stem}.jsonl", 1
    while name.lower() in taken:
        number += 1
        name = f"{stem}-{number}.jsonl"
    taken.add(name.lower())
    return name


def _next(shown: int) -> None:
    if shown:
        click.echo()
