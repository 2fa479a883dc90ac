"""Reads a trace line by line: from a file (plain, gzip or a binary log, told apart by the first bytes), from stdin, or
from objects.

Memory is bounded by the longest line (refused beyond `MAX_LINE`) and by the tokens still to be taken, never by the
length of the trace. Whatever is wrong with the input is one `TraceError`. The reader checks what one line and the
tokens before it can show; whether the accesses are ordered is the checker's business.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import msgspec

from kvsan.checker.recent import SPENT_TOKENS, Recent
from kvsan.checker.trace.binary import BinaryLog, not_whole, seekable
from kvsan.checker.trace.header import MAX_AGENTS, Header, TraceError, header_from, parse_header
from kvsan.checker.trace.keys import DECODE, LineError, accepted_keys, clip, explain_line, keys_of, refuse_doubles
from kvsan.checker.trace.line import Line
from kvsan.checker.trace.writer import op_document
from kvsan.model.ops import Access, Alloc, Blocks, Drop, Free, Get, Op, Poll, Put, Record, Sync, Touch, Wait
from kvsan.runtime.binary import MAGIC

MAX_LINE = 64 << 20
"""Bytes. A forward that names a million scattered blocks twice is 16 MB."""

MAX_HEADER = 4 << 20
"""Bytes of line 1."""

MAX_BLANK = 1000
"""Blank lines at the end of a file."""

MAX_IDS = 1 << 24
"""Ids named in one line and pool at most, counting repeats: as many as there may be blocks."""

MAX_RANGES = 1 << 21
"""Ranges in one list of ids: twice a million scattered blocks. Each takes 130 bytes once read."""

CACHED_IDS = 1 << 12
"""Characters up to which a list of ids is remembered."""

_GZIP = b"\x1f\x8b"
Raw = bytes | Mapping[str, Any] | Line


class Trace:
    """A header and its ops, to be iterated once: as ops, or as the `lines` after the header (`Raw`).

    `name` is what messages call it; `bytes_read()` is for a progress bar.
    """

    def __init__(
        self,
        name: str,
        header: Header,
        lines: Iterable[Raw],
        bytes_read: Callable[[], int],
    ) -> None:
        self.name = name
        self.header = header
        self.bytes_read = bytes_read
        self.lines = lines
        self._watch: Callable[[int], None] | None = None

    def watched(self, watch: Callable[[int], None]) -> Trace:
        """The same trace; `watch` is called with the number of ops read, every thousand ops."""
        self._watch = watch
        return self

    def __iter__(self) -> Iterator[Op]:
        return (op for op, _ in self._both())

    def whole(self) -> Iterator[Line]:
        """The ops with the keys that this version does not know, to be written again."""
        for op, raw in self._both():
            if isinstance(raw, Line):
                yield Line(op, raw.more)
            else:
                known = keys_of(type(op).__name__.lower())
                yield Line(op, {key: value for key, value in document(raw).items() if key not in known})

    def _both(self) -> Iterator[tuple[Op, Raw]]:
        builder = _Builder(self.header)
        number = 1
        for raw in self.lines:
            number += 1
            if self._watch is not None and not number % 1000:
                self._watch(number - 1)
            try:
                yield builder.build(number - 2, raw), raw
            except LineError as error:
                raise TraceError(self.name, number, error.wrong, error.accepted) from None


def document(raw: Raw) -> Mapping[str, Any]:
    """A line as a JSON object, as it stands."""
    if isinstance(raw, Line):
        return {**op_document(raw.op), **raw.more}
    decoded: Mapping[str, Any] = msgspec.json.decode(raw) if isinstance(raw, bytes) else raw
    return decoded


@contextmanager
def open_trace(path: str | Path, *, salvage: bool = False) -> Iterator[Trace]:
    """Opens a trace file (`-` is stdin). Raises `TraceError`, here or while the ops are read.

    `salvage`: of a binary log that is damaged or cut off, the ops before that; its header says that they are not all.
    """
    name = str(path)
    with _open(name) as file:
        try:
            start = file.peek(1)[:1]
        except OSError as error:
            raise TraceError(name, 0, f"cannot be read ({error.strerror})", "a readable trace file") from None
        if start == MAGIC[:1]:
            with seekable(file) as whole:
                log = BinaryLog(name, whole, salvage=salvage)
                yield Trace(name, not_whole(log.header) if log.left_out else log.header, log.lines(), log.bytes_read)
            return
        zipped = start == _GZIP[:1]  # no JSON text starts so, and a pipe may hold no second byte yet
        if name.endswith(".gz") and not zipped:
            wrong = "is not gzip, though it is named so" if start else "is empty"
            raise TraceError(name, 0, wrong, "a gzip file that starts with the bytes 1f 8b")
        # not buffered once more: that would read ahead, and find a fault at the end before the lines in front of it
        data = gzip.GzipFile(fileobj=file) if zipped else file
        first = next(_lines(name, data, MAX_HEADER), None)
        if first is None:
            raise TraceError(name, 0, "is empty", 'a header such as {"kvsan_trace": 1, "pools": {"gpu": 1024}}')
        try:
            header = parse_header(first)
        except LineError as error:
            raise TraceError(name, 1, error.wrong, error.accepted) from None
        yield Trace(name, header, _lines(name, data, MAX_LINE, 1), file.tell if file.seekable() else lambda: 0)


@contextmanager
def _open(name: str) -> Iterator[io.BufferedReader]:
    if name == "-":
        if sys.stdin is None:
            raise TraceError(name, 0, "is standard input, which is closed", "a trace file, .jsonl or .jsonl.gz")
        stdin = cast(Any, sys.stdin.buffer)
        yield stdin if hasattr(stdin, "peek") else io.BufferedReader(stdin)
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115 - closed below
    except IsADirectoryError:
        raise TraceError(name, 0, "is a folder", "a trace file, .jsonl or .jsonl.gz") from None
    except FileNotFoundError:
        raise TraceError(name, 0, "does not exist", "a trace file, .jsonl or .jsonl.gz") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise TraceError(name, 0, f"cannot be read ({why})", "a readable trace file") from None
    with file:
        yield file


def from_objects(header: Mapping[str, Any], ops: Iterable[Mapping[str, Any]], name: str = "trace") -> Trace:
    """A trace from JSON objects, checked as a file would be. Raises `TraceError`, here or while the ops are read."""
    try:
        return Trace(name, header_from(header), ops, lambda: 0)
    except LineError as error:
        raise TraceError(name, 1, error.wrong, error.accepted) from None


def _lines(name: str, data: io.BufferedIOBase, longest: int, number: int = 0) -> Iterator[bytes]:
    """The lines after line `number`, each of at most `longest` bytes."""
    blank = 0
    while True:
        number += 1
        try:
            line = data.readline(longest + 1)
        except EOFError:
            raise TraceError(name, number, "is cut off (the gzip stream ends early)", "a whole file") from None
        except (OSError, zlib.error) as error:
            raise TraceError(name, number, f"cannot be read ({error})", "an undamaged file") from None
        if not line:
            return
        if len(line) > longest:
            raise TraceError(name, number, f"is longer than {longest >> 20} MiB", "one JSON object a line")
        if line.isspace():
            blank = blank or number
            if number - blank < MAX_BLANK:
                continue
        if blank:  # at the end of a file they are harmless; inside, they would shift every op's number
            raise TraceError(name, blank, "is blank", "one JSON object a line")
        yield line


_cached = lru_cache(maxsize=64)(Blocks.parse)


def _blocks(text: str) -> Blocks:
    """An engine names the same blocks again and again; long lists are too large to be kept for that."""
    if len(text) <= CACHED_IDS:
        return _cached(text)
    if text.count(",") >= MAX_RANGES:
        raise ValueError(f"more than {MAX_RANGES} ranges in one line")
    return Blocks.parse(text)


class _Builder:
    """Turns a decoded line into an op, and checks names and ranges against the header and the tokens so far."""

    def __init__(self, header: Header) -> None:
        self._pools = header.pools
        self._attached = header.attached
        self._threads: set[str] = set()
        self._streams = set(header.streams)
        self._live: set[str] = set()
        self._spent: Recent[str, bool] = Recent(SPENT_TOKENS)

    def build(self, index: int, raw: Raw) -> Op:
        line: Any
        if isinstance(raw, Line):
            return self._look(index, raw.op)
        text = raw if isinstance(raw, bytes) else msgspec.json.encode(raw)
        try:
            line = DECODE(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            line = explain_line(text)
        kind = type(line).__struct_config__.tag
        if text is raw:
            refuse_doubles(text, (line.reads, line.writes) if kind == "access" else ())
        if line.by not in self._threads:
            self.meet(self._threads, line.by)
        return _BUILD[kind](self, line, index)

    def _look(self, index: int, op: Op) -> Op:
        """An op that needs no decoding meets the same checks."""
        if op.by not in self._threads:
            self.meet(self._threads, op.by)
        if isinstance(op, Alloc | Free | Touch):
            if self.blocks(op.pool, op.blocks).repeats:
                raise LineError("names a block twice", "each block once")
            return op
        _BUILD[type(op).__name__.lower()](self, op, index)
        return op

    def meet(self, known: set[str], name: str) -> None:
        """A host thread or a stream that was not seen before."""
        if len(self._threads) + len(self._streams) >= MAX_AGENTS:
            raise LineError("names one stream or host thread too many", f"up to {MAX_AGENTS} in one trace")
        known.add(name)

    def access(self, line: Any, index: int) -> Access:
        if line.on is not None and line.on not in self._streams:
            self.meet(self._streams, line.on)
        if not line.reads and not line.writes:
            raise LineError("is an access that neither reads nor writes", accepted_keys("access"))
        if line.planned is not None and not 0 <= line.planned < index:
            raise LineError(f'has {line.planned} for "planned"', f"the number of an earlier op (this is op {index})")
        reads = {pool: self.blocks(pool, ids) for pool, ids in line.reads.items()}
        writes = {pool: self.blocks(pool, ids) for pool, ids in line.writes.items()}
        if not line.batch:
            for blocks in (*reads.values(), *writes.values()):
                if blocks.repeats:
                    raise LineError("names a block twice", 'each block once; repeated ids only in a "batch": true')
        return Access(
            line.by,
            line.on,
            reads,
            writes,
            line.label,
            line.order,
            line.batch,
            line.planned,
            line.step,
            line.owner,
            line.site,
            line.t,
        )

    def record(self, line: Any, index: int) -> Record:
        if line.on not in self._streams:
            self.meet(self._streams, line.on)
        return Record(line.by, line.on, line.event, line.t)

    def wait(self, line: Any, index: int) -> Wait:
        if line.on not in self._streams:
            self.meet(self._streams, line.on)
        return Wait(line.by, line.on, line.event, line.t)

    def sync(self, line: Any, index: int) -> Sync:
        given = [key for key in ("event", "stream", "device") if getattr(line, key) is not None]
        if len(given) != 1:
            raise LineError(
                f"is a sync with {' and '.join(given) or 'nothing to wait for'}", "exactly one of event, stream, device"
            )
        if line.stream is not None and line.stream not in self._streams:
            self.meet(self._streams, line.stream)
        return Sync(line.by, line.event, line.stream, line.device, line.t)

    def put(self, line: Any, index: int) -> Put:
        if line.token in self._live or self._spent.get(line.token):
            raise LineError(f'puts token "{clip(line.token)}" a second time', "a token is put once")
        self._live.add(line.token)
        return Put(line.by, line.token, line.t)

    def get(self, line: Any, index: int) -> Get:
        if line.token in self._live:
            self._live.discard(line.token)
            self._spent[line.token] = True
        elif not self._spent.get(line.token) and not self._attached:
            raise LineError(
                f'gets token "{clip(line.token)}", which was never put, or was taken long ago',
                f"a token put before it and, if taken before, among the latest {SPENT_TOKENS} that were "
                '(several processes: "kvsan merge" first), or "start": "attached"',
            )
        return Get(line.by, line.token, line.t)

    def blocks(self, pool: str, ids: str | Blocks) -> Blocks:
        size = self._pools.get(pool)
        if size is None:
            known = ", ".join(self._pools) or "it has none"
            raise LineError(f'names pool "{clip(pool)}"', f"a pool of the header: {known}")
        try:
            blocks = _blocks(ids) if isinstance(ids, str) else ids
        except ValueError as error:
            raise LineError(f'has bad ids for pool "{clip(pool)}": {error}', 'ranges such as "1-4,9"') from None
        if blocks.end > size:
            accepted = f"ids from 0 to {size - 1}" if size else "no id, since that pool is empty"
            raise LineError(f'names block {blocks.end - 1} of pool "{clip(pool)}"', accepted)
        if len(blocks) > MAX_IDS:
            raise LineError(f'names {len(blocks)} blocks of pool "{clip(pool)}"', f"up to {MAX_IDS} in one line")
        return blocks

    def life(self, line: Any, index: int) -> Alloc | Free | Touch:
        blocks = self.blocks(line.pool, line.ids)
        if blocks.repeats:
            raise LineError("names a block twice", "each block once")
        return _LIFE[type(line).__struct_config__.tag](line.by, line.pool, blocks, line.t)


_LIFE: dict[Any, type[Alloc] | type[Free] | type[Touch]] = {"alloc": Alloc, "free": Free, "touch": Touch}
_BUILD: dict[Any, Callable[[_Builder, Any, int], Op]] = {
    "access": _Builder.access,
    "record": _Builder.record,
    "wait": _Builder.wait,
    "sync": _Builder.sync,
    "poll": lambda _, line, __: Poll(line.by, line.event, line.done, line.t),
    "put": _Builder.put,
    "get": _Builder.get,
    "alloc": _Builder.life,
    "free": _Builder.life,
    "touch": _Builder.life,
    "drop": lambda _, line, __: Drop(line.by, line.event, line.t),
}
