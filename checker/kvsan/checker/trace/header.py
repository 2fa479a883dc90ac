"""The header of a trace: its pools and streams, and what the run promised to show.

Hand-checked key by key, because each mistake here deserves its own sentence. Keys that this version does not know are
provenance: kept, written back, never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec

from kvsan.checker.trace.keys import LineError, show
from kvsan.model.ops import Stream, StreamKind

VERSION = 1
MAX_BLOCKS = 1 << 28
"""A pool's size at most. 268 million blocks of 16 tokens are more than any machine holds; the state of one is 2 GiB."""

KINDS = get_args(StreamKind)


class TraceError(ValueError):
    """A trace that cannot be read: file, line (0 if it is about the file), what is wrong, what is accepted."""

    def __init__(self, file: str, line: int, wrong: str, accepted: str) -> None:
        self.file, self.line, self.wrong, self.accepted = file, line, wrong, accepted
        place = f"{file}:{line}" if line else file
        super().__init__(f"{place}: {wrong}; accepted: {accepted}")


@dataclass(frozen=True, slots=True)
class Expects:
    """What must appear, else the verdict is Incomplete: streams that carry accesses, hooks that fired at least so often."""

    streams: tuple[str, ...] = ()
    hooks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unseen:
    """What the logger noticed and could not log."""

    copies: int = 0
    edges: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """Line 1 of a trace. `pools` maps a pool to its number of blocks; `other` is provenance."""

    pools: Mapping[str, int]
    streams: Mapping[str, Stream] = field(default_factory=dict)
    attached: bool = False
    expects: Expects = Expects()
    hooks: Mapping[str, int] = field(default_factory=dict)
    unseen: Unseen = Unseen()
    other: Mapping[str, Any] = field(default_factory=dict)
    raw_streams: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The header as JSON, with every key that it was read with."""
        streams = {
            name: dict(self.raw_streams.get(name, {})) | {"device": stream.device, "kind": stream.kind}
            for name, stream in self.streams.items()
        }
        out: dict[str, Any] = {"kvsan_trace": VERSION, **self.other, "pools": dict(self.pools), "streams": streams}
        out["start"] = "attached" if self.attached else "fresh"
        if self.expects != Expects():
            out["expects"] = {"streams": list(self.expects.streams), "hooks": dict(self.expects.hooks)}
        if self.hooks:
            out["hooks"] = dict(self.hooks)
        if self.unseen != Unseen():
            out["unseen"] = {"copies": self.unseen.copies, "edges": self.unseen.edges}
        return out


def parse_header(raw: bytes) -> Header:
    """Reads line 1. Raises `LineError`."""
    try:
        obj = msgspec.json.decode(raw)
    except RecursionError:
        raise LineError("is nested too deeply", "a header object") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise LineError("is not JSON", 'a header such as {"kvsan_trace": 1, "pools": {"gpu": 1024}}') from None
    if not isinstance(obj, dict) or "kvsan_trace" not in obj:
        raise LineError("is no header", 'a first line with "kvsan_trace": 1 and "pools"')
    return header_from(obj)


def header_from(obj: Mapping[str, Any]) -> Header:
    """The header that a JSON object states. Raises `LineError`."""
    version = obj.get("kvsan_trace")
    if version is True or version != VERSION:
        raise LineError(f"is of version {show(version)}", f'"kvsan_trace": {VERSION}')
    pools = _object(obj, "pools", required=True)
    for pool, size in pools.items():
        if not _count(size) or size > MAX_BLOCKS:
            raise LineError(
                f'has {show(size)} for the size of pool "{pool}"', f"a number of blocks from 0 to {MAX_BLOCKS}"
            )
    streams = _object(obj, "streams")
    start = obj.get("start", "fresh")
    if start not in ("fresh", "attached"):
        raise LineError(f'has {show(start)} for "start"', '"fresh" or "attached"')
    expects, unseen = _object(obj, "expects"), _object(obj, "unseen")
    names = expects.get("streams", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise LineError(f'has {show(names)} for "expects.streams"', "a list of stream names")
    _only(expects, "expects", ("streams", "hooks"))
    _only(unseen, "unseen", ("copies", "edges"))
    known = {"kvsan_trace", "pools", "streams", "start", "expects", "hooks", "unseen"}
    return Header(
        pools=pools,
        streams={name: _stream(name, stream) for name, stream in streams.items()},
        attached=start == "attached",
        expects=Expects(tuple(names), _counts(expects, "hooks", "expects.hooks")),
        hooks=_counts(obj, "hooks", "hooks"),
        unseen=Unseen(**_counts(obj, "unseen", "unseen")),
        other={key: value for key, value in obj.items() if key not in known},
        raw_streams=streams,
    )


def _stream(name: str, obj: Any) -> Stream:
    if not isinstance(obj, dict):
        raise LineError(f'has {show(obj)} for stream "{name}"', 'an object such as {"device": 0, "kind": "nonblocking"}')
    device, kind = obj.get("device", 0), obj.get("kind", "nonblocking")
    if isinstance(device, bool) or not isinstance(device, int | str):
        raise LineError(f'has {show(device)} for the device of stream "{name}"', "a whole number or a string")
    if kind not in KINDS:
        raise LineError(f'has {show(kind)} for the kind of stream "{name}"', "one of " + ", ".join(KINDS))
    return Stream(device, kind)


def _object(obj: Mapping[str, Any], key: str, *, required: bool = False) -> dict[str, Any]:
    if required and key not in obj:
        raise LineError(f'has no key "{key}"', f'"{key}": an object')
    value = obj.get(key, {})
    if not isinstance(value, dict):
        raise LineError(f'has {show(value)} for "{key}"', "an object")
    return value


def _counts(obj: Mapping[str, Any], key: str, shown: str) -> dict[str, int]:
    counts = _object(obj, key)
    for name, count in counts.items():
        if not _count(count):
            raise LineError(f'has {show(count)} for "{shown}.{name}"', "a count from 0")
    return counts


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _only(obj: Mapping[str, Any], shown: str, names: tuple[str, ...]) -> None:
    for key in obj:
        if key not in names:
            raise LineError(f'has unknown key "{shown}.{key}"', f"{shown} has {', '.join(names)}")
