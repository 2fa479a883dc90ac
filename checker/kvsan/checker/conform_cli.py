"""`kvsan conform TRACE DESIGN`: is a recorded run a run of that design, with at least the order of its proof?

Exit status: 0 it conforms, 1 refused (one line: which op, which rule, work or edge, what was expected), 2 bad input (a
trace or a design that cannot be read, names that cannot be matched), 3 incomplete (the trace shows no work or no rule
of the design, or not what its header promises).
"""

from __future__ import annotations

import click

from kvsan.checker.design_file import DesignFileError, load_design
from kvsan.checker.terminal import bar, write_json
from kvsan.checker.trace import TraceError, open_trace
from kvsan.checker.verdict import Exit


@click.command(name="conform", epilog="Example:  kvsan conform run.jsonl.gz my_design.py --map stream:cuda7=load")
@click.argument("trace")
@click.argument("design")
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="KIND:TRACE=DESIGN",
    help="A name of the trace and what the design calls it. KIND: pool, stream, label, event, thread, queue.",
)
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)
def conform_command(trace: str, design: str, maps: tuple[str, ...], form: str) -> None:
    """Hold a recorded run against a design: is it a run of it, with at least the order that its proof used?

    DESIGN is a name of the catalogue (`kvsan designs`) or a Python file that defines one; the file is run. Streams,
    labels, pool, threads and events are matched by name; --map says what is called differently.

    Exit status: 0 it conforms, 1 refused, 2 bad input, 3 incomplete.
    """
    from kvsan.checker.conform import NamesError, conform, parse_maps

    try:
        asked = parse_maps(maps)
        against = load_design(design)
        with open_trace(trace) as opened, bar([trace]) as move:
            watched = opened if move is None else opened.watched(lambda ops: move(opened.bytes_read(), ops))
            found = conform(watched, against, asked)
    except (NamesError, DesignFileError, TraceError) as error:
        click.echo(f"kvsan: {error}", err=True)
        raise SystemExit(Exit.BAD_INPUT) from None
    if form == "json":
        write_json(found.document())
    else:
        click.echo(found.text())
    raise SystemExit(found.exit)
