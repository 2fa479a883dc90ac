"""Many traces, checked by many: files are shared out, and the reports come back in the order of the files.

A folder stands for the traces in it, in the order of their names. Which worker checks which file changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvsan.checker.judge import Report, check_trace
from kvsan.checker.spread import Spread, spread
from kvsan.checker.trace import Trace, TraceError, open_trace

SUFFIXES = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks a file: its report, or what is wrong with it in one line."""

    all_pairs: bool
    assume_stream_order: bool
    lifetime: bool

    def __call__(self, path: str) -> Report | str:
        try:
            with open_trace(path) as trace:
                return self.of(trace)
        except TraceError as error:
            return str(error)

    def of(self, trace: Trace) -> Report:
        """The report of a trace that is open."""
        return check_trace(
            trace,
            all_pairs=self.all_pairs,
            assume_stream_order=self.assume_stream_order,
            lifetime=self.lifetime,
        )


def files(paths: Sequence[str]) -> list[str]:
    """The traces that are meant: a folder's, or the file itself. Raises `TraceError` for a folder that has none."""
    out: list[str] = []
    for path in paths:
        if path == "-" or not Path(path).is_dir():
            out.append(path)
            continue
        here = sorted(str(file) for file in Path(path).rglob("*") if file.name.endswith(SUFFIXES) and file.is_file())
        if not here:
            raise TraceError(path, 0, "is a folder without traces", "a folder with .jsonl or .jsonl.gz files")
        out += here
    return out


def check_files(paths: Sequence[str], checker: Checker, *, workers: int, engine: str) -> Iterator[Report | str]:
    """The report of each file, in order. Raises `SpreadError`."""
    work: Spread[str, Report | str] = spread(partial(_same, checker), workers, engine)
    try:
        yield from work.map(paths)
    finally:
        work.close()


def _same(checker: Checker) -> Checker:
    return checker
