"""Writes a trace: header first, then one line an op, gzip if the name ends so. What `reader` reads back is equal."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
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
    """A context manager: `with TraceWriter(path, header) as out: out.write(op)`. `path` may be a binary file."""

    def __init__(self, path: str | Path | BinaryIO, header: Header) -> None:
        self._file: BinaryIO
        self._owns = isinstance(path, str | Path)
        if isinstance(path, str | Path):
            # mtime 0: the same ops give the same bytes
            self._file = (
                cast(BinaryIO, gzip.GzipFile(path, "wb", mtime=0)) if str(path).endswith(".gz") else Path(path).open("wb")
            )
        else:
            self._file = path
        self._file.write(_encode(header.document()) + b"\n")

    def write(self, op: Op) -> None:
        self._file.write(_encode(op_document(op)) + b"\n")

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._owns:
            self._file.close()
