"""What the terminal can take: its width, whether colour is welcome, a bar while a person waits."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

PIPE_WIDTH = 100
LONG_TRACE = 1 << 20
"""Bytes of a file from which on a progress bar is worth its place."""


def write_json(document: Any) -> None:
    click.echo(json.dumps(document, separators=(",", ":"), ensure_ascii=False))


def width() -> int:
    return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns if sys.stdout.isatty() or _columns() else PIPE_WIDTH


def _columns() -> bool:
    return os.environ.get("COLUMNS", "").isdecimal()


def colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def bar(paths: Sequence[str], *, bytes_known: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """Yields what to call with the bytes read and the number of ops, if there is to be a bar."""
    size = sum(Path(path).stat().st_size for path in paths if Path(path).is_file())
    if not sys.stderr.isatty() or size < LONG_TRACE:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(Path(paths[0]).name, total=size if bytes_known else None)
        yield lambda read, ops: progress.update(task, completed=read, description=f"{ops:,} ops")
