"""The command line: `kvsan check | explain | info | merge | convert | demo`; from `design_cli` `verify | repair |
diff | designs`, from `conform_cli` `conform`, from `serving_cli` `run | bisect`, from `explore_cli` `explore`. Thin:
every command calls one function and prints.

Exit status of `check`: `verdict.Exit`. Bad input or usage is 2, with one line on stderr; Ctrl-C is 130; a fault of
our own is 70 and says so, since 1 means "hazards" and nothing else.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

import click

from kvsan.checker.conform_cli import conform_command
from kvsan.checker.design_cli import COMMANDS
from kvsan.checker.explore_cli import explore_command
from kvsan.checker.judge import Report
from kvsan.checker.many import Checker, check_files, files
from kvsan.checker.replay_cli import replay_command
from kvsan.checker.serving_cli import COMMANDS as SERVING
from kvsan.checker.spread import SpreadError
from kvsan.checker.terminal import bar, colour, width, write_json
from kvsan.checker.trace import Trace, TraceError, open_trace
from kvsan.checker.verdict import Exit, worst

INTERNAL_ERROR = 70
INTERRUPTED = 130
_EXTRAS = {"torch": "engine"}
"""Packages that a command may do without until it runs, and the extra that brings them."""
_OUTPUT_FAULTS = {errno.ENOSPC, errno.EBADF, errno.EIO, errno.EDQUOT, errno.EFBIG}

_traces = click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
_format = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)
_assume = click.option(
    "--assume-stream-order",
    is_flag=True,
    help="Trust the copy engine: take source order `any` as `stream`.",
)


def _version() -> str:
    """`unknown` where the folders are on the path and nothing is installed."""
    try:
        return version("kvsan")
    except PackageNotFoundError:
        return "unknown"


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Docs: README.md, docs/limits.md (what a clean verdict does not cover), docs/model.md (designs).",
)
@click.version_option(_version(), prog_name="kvsan")
def cli() -> None:
    """Finds races on reused KV-cache blocks: a sanitizer for stream ordering in LLM serving engines.

    check, explain, info, merge, convert and demo look at recorded runs; verify, repair, diff, designs and explore at
    protocols; conform holds a run against a protocol; run and bisect serve with kvsan's own engine.
    """


@cli.command(name="check", epilog="Example:  kvsan check run.jsonl.gz --format json | jq .totals")
@_traces
@click.option("--all", "all_pairs", is_flag=True, help="Every unordered pair, not each block's first racing op.")
@_assume
@click.option("--lifetime", is_flag=True, help="Also list accesses issued to free blocks (legal in itself).")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes, for many traces.")
@click.option(
    "--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="Where they run."
)
@_format
def check_command(
    traces: tuple[str, ...],
    all_pairs: bool,
    assume_stream_order: bool,
    lifetime: bool,
    workers: int,
    engine: str,
    form: str,
) -> None:
    """Check recorded runs: is every conflicting pair of accesses ordered, whatever the timing?

    TRACE is a file, or a folder with traces.

    Exit status over all traces: 2 bad input, else 1 hazards, else 3 incomplete, else 0.
    """
    exits: list[Exit] = []
    reports: list[Report] = []
    checker = Checker(all_pairs, assume_stream_order, lifetime)
    try:
        for report in _checked(traces, checker, workers, engine):
            if isinstance(report, str):
                click.echo(f"kvsan: {report}", err=True)
                exits.append(Exit.BAD_INPUT)
                continue
            exits.append(report.verdict.exit)
            reports.append(report)
            if form == "json":
                write_json(report.document())
            else:
                from kvsan.checker.report import text

                if len(reports) > 1:
                    click.echo()
                click.echo(text.render(report, width(), colour=colour()))
    except SpreadError as error:
        click.echo(f"kvsan: {error}", err=True)
        raise SystemExit(Exit.BAD_INPUT) from None
    if form == "text" and len(exits) > 1:
        from kvsan.checker.report import text

        bad = exits.count(Exit.BAD_INPUT)
        click.echo(f"\n{len(exits)} traces: " + text.summary(reports) + (f", {bad} unreadable" if bad else ""))
    raise SystemExit(worst(exits))


def _checked(traces: tuple[str, ...], checker: Checker, workers: int, engine: str) -> Iterator[Report | str]:
    """The report of each trace, or what is wrong with it."""
    paths: list[str] = []
    for path in traces:
        try:
            paths += files([path])
        except TraceError as error:
            yield str(error)
    if workers > 1 or engine != "local":
        if "-" in paths:
            raise click.UsageError("stdin cannot be shared out; accepted with --workers or --engine: files")
        yield from check_files(paths, checker, workers=workers, engine=engine)
        return
    for path in paths:
        try:
            with _opened(path) as trace:
                yield checker.of(trace)
        except TraceError as error:
            yield str(error)


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
        found = explain(lambda: _opened(trace), earlier, later, assume_stream_order=assume_stream_order)
    except NoSuchPairError as error:
        raise click.UsageError(str(error)) from None
    except TraceError as error:
        _complain(error)
        raise SystemExit(Exit.BAD_INPUT) from None
    if form == "json":
        write_json(found.document())
    else:
        click.echo(picture.render(found, width(), colour=colour()))


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
            with _opened(path) as trace:
                found = survey(trace)
        except TraceError as error:
            _complain(error)
            bad = True
            continue
        if form == "json":
            write_json(found.document())
        else:
            render(found, width(), colour=colour())
    raise SystemExit(Exit.BAD_INPUT if bad else Exit.CLEAN)


@cli.command(name="merge", epilog="Example:  kvsan merge scheduler.jsonl.gz worker.jsonl.gz -o run.jsonl.gz")
@_traces
@click.option("-o", "--output", required=True, metavar="OUT", help="The merged trace, .jsonl or .jsonl.gz.")
def merge_command(traces: tuple[str, ...], output: str) -> None:
    """Merge the logs of several processes into one trace, in an order that agrees with their hand-offs."""
    from kvsan.checker.merge import merge_traces

    try:
        with bar(traces, bytes_known=False) as move:
            merged = merge_traces(traces, output, progress=None if move is None else lambda ops: move(0, ops))
    except TraceError as error:
        _complain(error)
        raise SystemExit(Exit.BAD_INPUT) from None
    for note in merged.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{output}: {merged.ops:,} ops of {len(traces)} traces", err=True)


@cli.command(name="convert", epilog="Example:  kvsan convert run.kvt run.jsonl.gz")
@click.argument("trace")
@click.argument("output")
@click.option("--salvage", is_flag=True, help="Of a binary log that is damaged or cut off, keep what is whole.")
def convert_command(trace: str, output: str, salvage: bool) -> None:
    """Convert a trace: JSON lines (.jsonl, .jsonl.gz) or the binary log (.kvt), with nothing lost.

    OUTPUT's name says which it will be. check, explain, info and merge read either.
    """
    from kvsan.checker.convert import convert

    try:
        with bar([trace], bytes_known=False) as move:
            count = convert(trace, output, salvage=salvage, progress=None if move is None else lambda ops: move(0, ops))
    except TraceError as error:
        _complain(error)
        raise SystemExit(Exit.BAD_INPUT) from None
    click.echo(f"{output}: {count:,} ops", err=True)


@cli.command(name="demo", epilog="Example:  kvsan demo")
def demo_command() -> None:
    """Check six traces recorded from vLLM 0.23.0 on an H200 and explain the missing fence."""
    from kvsan.checker.demo import run

    run(width(), colour=colour())


for command in (*COMMANDS, explore_command, conform_command, replay_command, *SERVING):
    cli.add_command(command)


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except (click.Abort, KeyboardInterrupt):
        click.echo("kvsan: interrupted", err=True)
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        _drop_stdout()
        raise SystemExit(128 + 13) from None
    except OSError as error:
        if error.errno not in _OUTPUT_FAULTS:
            raise
        click.echo(f"kvsan: the report cannot be written ({error.strerror})", err=True)
        _drop_stdout()
        raise SystemExit(Exit.BAD_INPUT) from None
    except MemoryError:
        click.echo("kvsan: the trace does not fit into memory; accepted: fewer blocks, or no --all", err=True)
        raise SystemExit(Exit.BAD_INPUT) from None
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            _our_fault()
        extra = _EXTRAS[str(error.name)]
        click.echo(f"kvsan: this needs {error.name}; accepted: pip install 'kvsan[{extra}]'", err=True)
        raise SystemExit(Exit.BAD_INPUT) from None
    except Exception:
        _our_fault()


def _our_fault() -> NoReturn:
    """Says so, with the exception that is being handled."""
    traceback.print_exc()
    click.echo(
        "kvsan: internal error: this is a fault of kvsan's, not of what it was given; please report it", err=True
    )
    raise SystemExit(INTERNAL_ERROR) from None


def _drop_stdout() -> None:
    """What is still buffered cannot be written; the interpreter must not try again at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(error: TraceError) -> None:
    click.echo(f"kvsan: {error}", err=True)


@contextmanager
def _opened(path: str) -> Iterator[Trace]:
    """Opens a trace. If the file is long and a person is looking, a bar on stderr shows how far it is read."""
    with open_trace(path) as trace, bar([path]) as move:
        yield trace if move is None else trace.watched(lambda ops: move(trace.bytes_read(), ops))
