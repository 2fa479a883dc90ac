"""The command line: `kvsan check | explain | info | merge | demo`, and from `design_cli` `verify | repair | diff |
designs`. Thin: every command calls one function and prints.

Exit status of `check`: `verdict.Exit`. Bad input or usage is 2, with one line on stderr; Ctrl-C is 130; a fault of
our own is 70 and says so, since 1 means "hazards" and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from kvsan.checker.design_cli import COMMANDS
from kvsan.checker.judge import Report, check_trace
from kvsan.checker.trace import Trace, TraceError, open_trace
from kvsan.checker.verdict import Exit, worst

INTERNAL_ERROR = 70
INTERRUPTED = 130
PIPE_WIDTH = 100
LONG_TRACE = 1 << 20
"""Bytes of a file from which on a progress bar is worth its place."""

_traces = click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
_format = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)
_assume = click.option(
    "--assume-stream-order",
    is_flag=True,
    help="Trust the copy engine: take source order `any` as `stream`.",
)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Docs: README.md, docs/limits.md (what a clean verdict does not cover), docs/model.md (designs).",
)
@click.version_option(version("kvsan"), prog_name="kvsan")
def cli() -> None:
    """Finds races on reused KV-cache blocks: a sanitizer for stream ordering in LLM serving engines.

    check, explain, info, merge and demo look at recorded runs; verify, repair, diff and designs at protocols.
    """


@cli.command(name="check", epilog="Example:  kvsan check run.jsonl.gz --format json | jq .totals")
@_traces
@click.option("--all", "all_pairs", is_flag=True, help="Every unordered pair, not each block's first racing op.")
@_assume
@click.option("--lifetime", is_flag=True, help="Also list accesses issued to free blocks (legal in itself).")
@_format
def check_command(
    traces: tuple[str, ...], all_pairs: bool, assume_stream_order: bool, lifetime: bool, form: str
) -> None:
    """Check recorded runs: is every conflicting pair of accesses ordered, whatever the timing?

    Exit status over all traces: 2 bad input, else 1 hazards, else 3 incomplete, else 0.
    """
    exits: list[Exit] = []
    reports: list[Report] = []
    for path in traces:
        try:
            with open_trace(path) as trace, _progress(trace, path) as progress:
                report = check_trace(
                    trace,
                    all_pairs=all_pairs,
                    assume_stream_order=assume_stream_order,
                    lifetime=lifetime,
                    progress=progress,
                )
        except TraceError as error:
            _complain(error)
            exits.append(Exit.BAD_INPUT)
            continue
        exits.append(report.verdict.exit)
        reports.append(report)
        if form == "json":
            _json(report.document())
        else:
            from kvsan.checker.report import text

            if len(reports) > 1:
                click.echo()
            click.echo(text.render(report, _width(), colour=_colour()))
    if form == "text" and len(traces) > 1:
        from kvsan.checker.report import text

        bad = exits.count(Exit.BAD_INPUT)
        click.echo(f"\n{len(traces)} traces: " + text.summary(reports) + (f", {bad} unreadable" if bad else ""))
    raise SystemExit(worst(exits))


@cli.command(name="explain", epilog="Example:  kvsan explain run.jsonl.gz 2096 2137")
@click.argument("trace")
@click.argument("earlier", type=int)
@click.argument("later", type=int)
@_assume
@_format
def explain_command(trace: str, earlier: int, later: int, assume_stream_order: bool, form: str) -> None:
    """Explain one pair of accesses: what is ordered, what is not, and what would order them.

    EARLIER and LATER are op numbers as `kvsan check` prints them (line number after the header, from 0).
    """
    from kvsan.checker.explain import NoSuchPairError, explain
    from kvsan.checker.report import picture

    if trace == "-":
        raise click.UsageError("explain reads the trace twice; accepted: a file")
    try:
        found = explain(lambda: open_trace(trace), earlier, later, assume_stream_order=assume_stream_order)
    except NoSuchPairError as error:
        raise click.UsageError(str(error)) from None
    except TraceError as error:
        _complain(error)
        raise SystemExit(Exit.BAD_INPUT) from None
    if form == "json":
        _json(found.document())
    else:
        click.echo(picture.render(found, _width(), colour=_colour()))


@cli.command(name="info", epilog="Example:  kvsan info run.jsonl.gz")
@_traces
@_format
def info_command(traces: tuple[str, ...], form: str) -> None:
    """Show what a trace holds: agents, ops, pools, who touches what, waits per pair of streams."""
    from kvsan.checker.info import survey
    from kvsan.checker.report.survey import render

    bad = False
    for path in traces:
        try:
            with open_trace(path) as trace:
                found = survey(trace)
        except TraceError as error:
            _complain(error)
            bad = True
            continue
        if form == "json":
            _json(found.document())
        else:
            render(found, _width(), colour=_colour())
    raise SystemExit(Exit.BAD_INPUT if bad else Exit.CLEAN)


@cli.command(name="merge", epilog="Example:  kvsan merge scheduler.jsonl.gz worker.jsonl.gz -o run.jsonl.gz")
@_traces
@click.option("-o", "--output", required=True, metavar="OUT", help="The merged trace, .jsonl or .jsonl.gz.")
def merge_command(traces: tuple[str, ...], output: str) -> None:
    """Merge the logs of several processes into one trace, in an order that agrees with their hand-offs."""
    from kvsan.checker.merge import merge_traces

    try:
        merged = merge_traces(traces, output)
    except TraceError as error:
        _complain(error)
        raise SystemExit(Exit.BAD_INPUT) from None
    for note in merged.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{output}: {merged.ops:,} ops of {len(traces)} traces", err=True)


@cli.command(name="demo")
def demo_command() -> None:
    """Check six traces recorded from vLLM 0.23.0 on an H200 and explain the missing fence."""
    from kvsan.checker.demo import run

    run(_width(), colour=_colour())


for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except (click.Abort, KeyboardInterrupt):
        click.echo("kvsan: interrupted", err=True)
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + 13) from None
    except Exception:
        traceback.print_exc()
        click.echo(
            "kvsan: internal error: this is a fault of kvsan's, not of what it was given; please report it", err=True
        )
        raise SystemExit(INTERNAL_ERROR) from None


def _complain(error: TraceError) -> None:
    click.echo(f"kvsan: {error}", err=True)


def _json(document: Any) -> None:
    click.echo(json.dumps(document, separators=(",", ":"), ensure_ascii=False))


def _width() -> int:
    return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns if sys.stdout.isatty() or _columns() else PIPE_WIDTH


def _columns() -> bool:
    return os.environ.get("COLUMNS", "").isdecimal()


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def _progress(trace: Trace, path: str) -> Iterator[Any]:
    """A bar on stderr while a long file is read, if a person is looking."""
    size = Path(path).stat().st_size if path != "-" else 0
    if not sys.stderr.isatty() or size < LONG_TRACE:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(Path(path).name, total=size)
        yield lambda ops: bar.update(task, completed=trace.bytes_read(), description=f"{ops:,} ops")
