"""Writes a trace: header first, then one line an op, gzip if the name ends so. What `reader` reads back is equal."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

import msgspec

from kvsan.checker.trace.header import Header
from kvsan.model.ops import Access, Blocks, Op

_encode = msgspec.json.Encoder().encode
_DEFAULTS: dict[str, Any] = {"order": "stream", "batch": False}


def op_document(op: Op) -> dict[str, Any]:
    """An op as a JSON object in the keys of `TRACE.md`; what has its default is left out."""
    out: dict[str, Any] = {}
    t = op.t
    if t is not None:
        out["t"] = t
    out["op"] = type(op).__name__.lower()
    for item in fields(op):
        value = getattr(op, item.name)
        if item.name == "t" or value is None or value == _DEFAULTS.get(item.name):
            continue
        if isinstance(value, Blocks):
            out["ids"] = str(value)
        elif isinstance(value, Mapping):
            if value:
                out[item.name] = {pool: str(blocks) for pool, blocks in value.items()}
        else:
            out[item.name] = value
    if isinstance(op, Access):
        out.setdefault("label", "")
    return out


class TraceWriter:
    """A context manager: `with TraceWriter(path, header) as out: out.write(op)`.

    `path` may be a binary file, which stays open.
    """

    def __init__(self, path: str | Path | BinaryIO, header: Header) -> None:
        self._closing = ExitStack()
        if not isinstance(path, str | Path):
            self._file = path
        else:
            self._file = self._closing.enter_context(open(path, "wb"))  # noqa: SIM115 - closed by __exit__
            if str(path).endswith(".gz"):  # no name and no time in it: the same ops give the same bytes
                zipped = gzip.GzipFile(filename="", mode="wb", fileobj=self._file, mtime=0)
                self._file = cast(BinaryIO, self._closing.enter_context(zipped))
        self.write_object(header.document())

    def write(self, op: Op, more: Mapping[str, Any] | None = None) -> None:
        """`more`: further keys of the line."""
        self.write_object({**op_document(op), **more} if more else op_document(op))

    def write_object(self, line: Mapping[str, Any]) -> None:
        """A line that is an object of `TRACE.md` already."""
        self._file.write(_encode(line) + b"\n")

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._closing.close()
