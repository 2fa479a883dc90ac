"""From one way of writing a trace to another, with nothing lost: JSON lines, gzipped or not, and the binary log.

The output's name says which: `.jsonl`, `.jsonl.gz`, `.kvt`. What is read is told by its first bytes. Keys and header
entries that this version does not know go along; of the spelling only what means the same may change (a default that
was written out is left out).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvsan.checker.trace.header import TraceError
from kvsan.checker.trace.reader import Trace, open_trace
from kvsan.checker.trace.writer import TraceWriter
from kvsan.runtime.binary import Log

SUFFIX = ".kvt"
"""Of a binary log."""

SUFFIXES = (".jsonl", ".jsonl.gz", SUFFIX)


def is_binary(path: str) -> bool:
    return path.endswith(SUFFIX)


def convert(source: str, target: str, *, salvage: bool = False, progress: Callable[[int], None] | None = None) -> int:
    """Writes the trace `source` (`-` is standard input) to `target`; how many ops it has. Raises `TraceError`; then no
    target is left.

    `salvage`: as of `open_trace`. `progress` is called with the number of ops written, every thousand ops.
    """
    if not target.endswith(SUFFIXES):
        raise TraceError(
            target, 0, "does not say by its name what to write", "a name that ends in " + ", ".join(SUFFIXES)
        )
    if source != "-" and Path(target).exists() and Path(target).samefile(source):
        raise TraceError(target, 0, "is the trace that is read", "another file")
    part = Path(target).with_name(f".part.{Path(target).name}")
    try:
        with open_trace(source, salvage=salvage) as trace:
            if progress is not None:
                trace.watched(progress)
            count = (_to_binary if is_binary(target) else _to_lines)(trace, part)
        part.replace(target)
    except OSError as error:
        raise TraceError(target, 0, f"cannot be written ({error.strerror})", "a file in a folder that exists") from None
    finally:
        part.unlink(missing_ok=True)
    return count


def _to_lines(trace: Trace, path: Path) -> int:
    count = 0
    with TraceWriter(path, trace.header) as out:
        for op, more in trace.whole():
            out.write(op, more)
            count += 1
    return count


def _to_binary(trace: Trace, path: Path) -> int:
    with Log(path, header=lambda whole, lost: trace.header.document()) as out:
        out.open()
        for op, more in trace.whole():
            out.write(op, dict(more))
            if out.fault is not None:
                break
        return out.ops
