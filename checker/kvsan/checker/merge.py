"""`kvsan merge`: the logs of several processes as one trace, in an order that agrees with their hand-offs.

Each log keeps its own order, which is the order of its calls. Between logs the times (`t`) decide, except that a
`get` waits until its `put` has been written: clocks of two processes may disagree, but a message does not arrive
before it was sent. What two processes did with no hand-off between stands in an order that is luck, as in the run.

The logs are read twice, a line at a time: once to check them and to see which names and tokens they share, once to
write. Memory is 8 bytes for each name of an event or token, and 8 for each op of a log that uses `planned` (op numbers
change).
"""

from __future__ import annotations

import os
import stat
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvsan.checker.merge_logs import Hashes, Log, find_line, read_log
from kvsan.checker.merge_names import Names, merged_header, name_all
from kvsan.checker.trace import Header, TraceError, TraceWriter, open_trace
from kvsan.checker.trace.keys import clip
from kvsan.checker.trace.reader import document


@dataclass(frozen=True, slots=True)
class Part:
    """One log of a merged trace, and the name that its process has there."""

    file: str
    process: str
    ops: int


@dataclass(frozen=True, slots=True)
class Merged:
    """What was merged, and `notes`: sentences for a person.

    `handoffs`: gets of a token that another process put. Of these, `early` bear a time before the put's, by up to
    `skew`.
    """

    out: str
    ops: int
    parts: tuple[Part, ...]
    handoffs: int
    early: int
    skew: float
    notes: tuple[str, ...]


def merge_traces(paths: Sequence[str], out: str, *, progress: Callable[[int], None] | None = None) -> Merged:
    """Merges the logs into the trace `out` (`-` is standard output). Raises `TraceError`; then `out` is left as it was.

    `progress` is called with the number of ops written, every thousand ops.
    """
    _check_files(paths, out)
    logs = [read_log(path) for path in paths]
    notes: list[str] = []
    names = name_all(logs, notes)
    header = merged_header(logs, names)
    _check_tokens(logs)
    with ExitStack() as stack:
        traces = [stack.enter_context(open_trace(log.path)) for log in logs]
        lines = [iter(islice(trace.lines, log.ops)) for trace, log in zip(traces, logs, strict=True)]
        writer = stack.enter_context(_writer(out, header))
        weaver = _Weaver(logs, names, lines)
        for count, line in enumerate(weaver, 1):
            writer.write_object(line)
            if progress is not None and not count % 1000:
                progress(count)
    return Merged(
        out=out,
        ops=sum(log.ops for log in logs),
        parts=tuple(Part(log.path, name.process, log.ops) for log, name in zip(logs, names, strict=True)),
        handoffs=weaver.handoffs,
        early=weaver.early,
        skew=weaver.skew,
        notes=(*notes, *_notes(logs, names, weaver)),
    )


class _Weaver:
    """Iterates over the lines of the merged trace, names and op numbers already those of the whole."""

    def __init__(self, logs: Sequence[Log], names: Sequence[Names], lines: Sequence[Iterator[Any]]) -> None:
        self.handoffs = self.early = 0
        self.skew: float = 0
        self.qualified_event = self.foreign_event = ""
        self._logs, self._names, self._lines = logs, names, lines
        self._heads: list[dict[str, Any]] = [{} for _ in logs]
        self._done = [0] * len(logs)  # lines read so far, the head among them
        self._time: list[float] = [-inf] * len(logs)
        self._numbers = [array("Q") for _ in logs]
        self._ready: list[tuple[float, int]] = []
        self._waiting: dict[int, list[int]] = {}  # token -> logs whose head gets it
        self._tokens = Hashes()
        self._owners = self._index_tokens()
        self._written: list[float | None] = [None] * len(self._owners)  # the time of each token's put

    def _index_tokens(self) -> list[int]:
        """The tokens that cross from one log to another, and for each the log that puts it."""
        wanted = np.unique(np.concatenate([log.early.sorted() for log in self._logs]))
        puts = [np.intersect1d(log.put.sorted(), wanted, assume_unique=True) for log in self._logs]
        owners = np.repeat(np.arange(len(puts)), [len(put) for put in puts])
        tokens = np.concatenate(puts)
        order = np.argsort(tokens)
        self._tokens = Hashes(tokens[order])
        found: list[int] = owners[order].tolist()
        return found

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for log in range(len(self._logs)):
            self._advance(log)
        written = 0
        while self._ready:
            _, log = heappop(self._ready)
            line = self._heads[log]
            token = line["token"] if line["op"] == "put" else None
            if self._logs[log].plans:
                self._numbers[log].append(written)
                if line.get("planned") is not None:
                    line["planned"] = self._numbers[log][line["planned"]]
            if "event" in line:
                self._remember(log, line)
            self._names[log].rewrite(line)
            yield line
            written += 1
            if token is not None:
                self._put(log, token)
            self._advance(log)
        if self._waiting:
            raise self._cycle()

    def _advance(self, log: int) -> None:
        """Reads the log's next line; it may be written when it is its turn, or once the token that it gets is there."""
        raw = next(self._lines[log], b"")
        if not raw and self._done[log] == self._logs[log].ops:
            return
        self._done[log] += 1
        try:
            line = self._heads[log] = dict(document(raw))
            what, t = line["op"], line.get("t")
            token = line["token"] if what == "get" else None
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
            raise self._changed(log) from None
        if t is not None:
            self._time[log] = t
        if token is not None:
            place = self._tokens.place(token)
            if place is not None and self._owners[place] != log:
                self.handoffs += 1
                put = self._written[place]
                if put is None:
                    self._waiting.setdefault(place, []).append(log)
                    return
                self._compare(put, self._time[log])
        heappush(self._ready, (self._time[log], log))

    def _put(self, log: int, token: str) -> None:
        place = self._tokens.place(token)
        if place is None:
            return
        self._written[place] = self._time[log]
        for getter in self._waiting.pop(place, ()):
            heappush(self._ready, (self._time[getter], getter))
            self._compare(self._time[log], self._time[getter])

    def _compare(self, put: float, get: float) -> None:
        if 0 < put - get < inf:
            self.early += 1
            self.skew = max(self.skew, put - get)

    def _remember(self, log: int, line: dict[str, Any]) -> None:
        """One name of each sort that a note is about."""
        names = self._names[log]
        if not self.qualified_event and names.events and line["event"] in names.events:
            self.qualified_event = line["event"]
        if not self.foreign_event and names.foreign and line["event"] in names.foreign:
            self.foreign_event = line["event"]

    def _changed(self, log: int) -> TraceError:
        wrong = "is not what it was when it was first read"
        return TraceError(self._logs[log].path, self._done[log] + 1, wrong, "logs that do not change while merged")

    def _cycle(self) -> TraceError:
        """No log can go on: each waits for a token that another one puts further down. Names one such circle."""
        waits = {log: place for place, logs in self._waiting.items() for log in logs}
        path = [min(waits)]
        while (after := self._owners[waits[path[-1]]]) not in path:
            if after not in waits:
                return self._changed(after)
            path.append(after)
        circle = path[path.index(after) :]
        file = [self._logs[log].path for log in circle]
        at = [self._done[log] + 1 for log in circle]
        token = [clip(self._heads[log]["token"], 40) for log in circle]
        wrong = f'gets token "{token[0]}", which {file[1]} puts only after its line {at[1]} has got token "{token[1]}"'
        wrong += " from here" if len(circle) == 2 else f" from {file[2]}, in a circle of {len(circle)} logs"
        return TraceError(file[0], at[0], f"{wrong}: neither can come first", "logs in which every get follows its put")


# ── what makes the input bad ──────────────────────────────────────────────────────────────────────────────────────────


def _check_files(paths: Sequence[str], out: str) -> None:
    seen: dict[tuple[int, int], str] = {}
    for path in paths:
        if path == "-":
            raise TraceError(path, 0, "is standard input, and merge reads each log twice", "a file")
        about = _stat(path)
        if about is None:
            continue  # `open_trace` has the words for it
        if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
            raise TraceError(path, 0, "is not a regular file, and merge reads each log twice", "a file")
        if seen.setdefault((about.st_dev, about.st_ino), path) != path or paths.count(path) > 1:
            raise TraceError(path, 0, "is given twice", "each process's log once")
    if "\0" in out:
        raise TraceError(out, 0, "cannot be a file's name", "a file for the merged trace")
    about = _stat(out)
    if about is not None and (about.st_dev, about.st_ino) in seen:
        raise TraceError(out, 0, "is one of the logs to be merged", "another file for the merged trace")


def _stat(path: str) -> os.stat_result | None:
    with suppress(OSError, ValueError):
        return os.stat(path)
    return None


def _check_tokens(logs: Sequence[Log]) -> None:
    """A token is put once over all logs, and what is got was put by somebody."""
    puts = np.concatenate([log.put.sorted() for log in logs])
    every, counts = np.unique(puts, return_counts=True)
    if len(every) < len(puts):
        twice = Hashes(every[counts > 1])
        first, second = [log for log in logs if np.isin(log.put.sorted(), twice.sorted()).any()][:2]
        line, token = find_line(first.path, "put", twice)
        again, _ = find_line(second.path, "put", Hashes(np.array([hash(token)], np.int64)))
        wrong = f'puts token "{clip(token)}", which {first.path}:{line} puts too'
        raise TraceError(second.path, again, wrong, "a token is put once, by one process")
    if any(log.header.attached for log in logs):
        return
    for log in logs:
        others = [other.put.sorted() for other in logs if other is not log]
        lost = np.setdiff1d(log.early.sorted(), np.concatenate([np.empty(0, np.int64), *others]))
        if len(lost):
            line, token = find_line(log.path, "get", Hashes(lost))
            wrong = f'gets token "{clip(token)}", which no log puts before'
            raise TraceError(log.path, line, wrong, 'the log that puts it too, or "start": "attached"')


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _writer(out: str, header: Header) -> Iterator[TraceWriter]:
    """Writes beside `out` and moves it there at the end, so that a merge that fails leaves nothing half done."""
    if out == "-":
        with TraceWriter(sys.stdout.buffer, header) as writer:
            yield writer
        return
    target = Path(os.path.realpath(out))
    in_place = target.exists() and not target.is_file()  # a pipe or a device: nothing to be moved there
    part = target if in_place else target.with_name(f".{os.getpid()}.{target.name}")
    try:
        with TraceWriter(part, header) as writer:
            yield writer
        if not in_place:
            part.replace(target)
    except BrokenPipeError:
        raise
    except OSError as error:  # of the writer: what goes wrong with a log is a `TraceError` by now
        wrong = f"cannot be written ({error.strerror})"
        raise TraceError(out, 0, wrong, "a file in a folder that exists and may be written") from None
    finally:
        if not in_place:
            part.unlink(missing_ok=True)


def _notes(logs: Sequence[Log], names: Sequence[Names], weaver: _Weaver) -> Iterator[str]:
    many = np.unique(np.concatenate([name.events.sorted() for name in names])).size
    if many:
        example = f"{weaver.qualified_event}, ..." if many > 1 else weaver.qualified_event
        yield f"{_events(many)} recorded in several logs ({example}): taken for different events, one a process"
    shared = np.unique(np.concatenate([name.foreign.sorted() for name in names])).size
    if shared:
        example = f"{weaver.foreign_event}, ..." if shared > 1 else weaver.foreign_event
        yield f"{_events(shared)} recorded in one log and waited for in another ({example}): taken for IPC events"
    started = {log.header.attached for log in logs}
    if len(started) > 1:
        yield "one log was attached in mid-run, so the whole is: tokens and events without an origin are no error"
    for log in logs:
        if log.ops and not log.timed:
            yield f"{log.path} has no times: its ops stand as early as their hand-offs allow"
    if weaver.early:
        yield (
            f"{weaver.early} of {weaver.handoffs} hand-offs bear a time before that of their put, by up to "
            f"{weaver.skew:,.0f} ns: the clocks disagree, and the order follows the hand-offs"
        )


def _events(count: int) -> str:
    return f"{count:,} event{'s' if count > 1 else ''}"
