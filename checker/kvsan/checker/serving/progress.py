"""What a person sees while a serving run goes on: one line on a terminal, nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kvsan.checker.serving.trial import Progress, Round, Trial


@contextmanager
def showing(trial: Trial, words: str) -> Iterator[Progress | None]:
    """Yields what to tell after each turn, if anybody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.fields[what]}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5) as bar:
        task = bar.add_task("", total=trial.requests, what=words)

        def told(one: Round, hazards: int) -> None:
            speed = one.tokens / one.seconds if one.seconds else 0.0
            bar.update(
                task,
                completed=one.completions,
                what=f"{words} round {one.number + 1}/{trial.rounds}",
                description=f"{speed:,.0f} tokens/s  {one.loads} loads  {one.stores} stores  {hazards} hazards",
            )

        yield told
