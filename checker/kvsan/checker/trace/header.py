"""The header of a trace: its pools and streams, and what the run promised to show.

Hand-checked key by key, because each mistake here deserves its own sentence. Keys that this version does not know are
provenance: kept, written back, never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec

from kvsan.checker.trace.keys import LineError, clip, near, printable, show
from kvsan.model.ops import Stream, StreamKind

VERSION = 1
MAX_BLOCKS = 1 << 28
"""Blocks of all pools together at most: 268 million of 16 tokens are more than any machine holds, 2 GiB of state."""

MAX_AGENTS = 1 << 13
"""Streams and host threads at most. Each has a vector with one entry for each other: 512 MiB in all at this bound."""

MAX_TEXT = 300
"""Characters that one half of a message may have; the rest of a long name or list is left out."""

KINDS = get_args(StreamKind)
_KNOWN = ("kvsan_trace", "pools", "streams", "start", "expects", "hooks", "unseen")


class TraceError(ValueError):
    """A trace that cannot be read: file, line (0 if it is about the file), what is wrong, what is accepted.

    Its text is one line that is fit for a terminal, whatever the file holds: newlines and escape codes in names are
    spelt out, long names cut. `file` is the name as it was given.
    """

    def __init__(self, file: str, line: int, wrong: str, accepted: str) -> None:
        self.file, self.line = file, line
        self.wrong, self.accepted = printable(wrong, MAX_TEXT), printable(accepted, MAX_TEXT)
        place = printable(file, 4 * MAX_TEXT) + (f":{line}" if line else "")
        super().__init__(f"{place}: {self.wrong}; accepted: {self.accepted}")


@dataclass(frozen=True, slots=True)
class Expects:
    """What must appear, else the verdict is Incomplete: streams that carry accesses, hooks that fired at least so
    often.
    """

    streams: tuple[str, ...] = ()
    hooks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unseen:
    """What the logger noticed and could not log."""

    copies: int = 0
    edges: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """Line 1 of a trace. `pools` maps a pool to its number of blocks; `other` and `more` are provenance.

    `more`: for each stream that has any, its keys that this version does not know.
    """

    pools: Mapping[str, int]
    streams: Mapping[str, Stream] = field(default_factory=dict)
    attached: bool = False
    expects: Expects = Expects()
    hooks: Mapping[str, int] = field(default_factory=dict)
    unseen: Unseen = Unseen()
    other: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The header as JSON, with every key that it was read with."""
        streams = {
            name: {"device": stream.device, "kind": stream.kind, **self.more.get(name, {})}
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
    if raw.startswith(b"\xef\xbb\xbf"):
        raise LineError("starts with a byte order mark", "UTF-8 without one")
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
    _no_misspelt(obj, _KNOWN, "a header")
    pools = _object(obj, "pools", required=True)
    for pool, size in pools.items():
        if not _count(size) or size > MAX_BLOCKS:
            raise LineError(
                f'has {show(size)} for the size of pool "{clip(pool)}"', f"a number of blocks from 0 to {MAX_BLOCKS}"
            )
    if sum(pools.values()) > MAX_BLOCKS:
        raise LineError(f"has pools of {sum(pools.values())} blocks in all", f"up to {MAX_BLOCKS} over all pools")
    streams = _object(obj, "streams")
    if len(streams) > MAX_AGENTS:
        raise LineError(f"has {len(streams)} streams", f"up to {MAX_AGENTS}")
    start = obj.get("start", "fresh")
    if start not in ("fresh", "attached"):
        raise LineError(f'has {show(start)} for "start"', '"fresh" or "attached"')
    expects, unseen = _object(obj, "expects"), _object(obj, "unseen")
    names = expects.get("streams", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise LineError(f'has {show(names)} for "expects.streams"', "a list of stream names")
    _only(expects, "expects", ("streams", "hooks"))
    _only(unseen, "unseen", ("copies", "edges"))
    return Header(
        pools=pools,
        streams={name: _stream(name, stream) for name, stream in streams.items()},
        attached=start == "attached",
        expects=Expects(tuple(names), _counts(expects, "hooks", "expects.hooks")),
        hooks=_counts(obj, "hooks", "hooks"),
        unseen=Unseen(**_counts(obj, "unseen", "unseen")),
        other={key: value for key, value in obj.items() if key not in _KNOWN},
        more={name: more for name, stream in streams.items() if (more := _provenance(stream))},
    )


def _provenance(stream: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in stream.items() if key not in ("device", "kind")}


def _stream(name: str, obj: Any) -> Stream:
    if not isinstance(obj, dict):
        raise LineError(
            f'has {show(obj)} for stream "{clip(name)}"', 'an object such as {"device": 0, "kind": "nonblocking"}'
        )
    _no_misspelt(obj, ("device", "kind"), "a stream")
    device, kind = obj.get("device", 0), obj.get("kind", "nonblocking")
    if isinstance(device, bool) or not isinstance(device, int | float | str):
        raise LineError(f'has {show(device)} for the device of stream "{clip(name)}"', "a number or a string")
    if kind not in KINDS:
        raise LineError(f'has {show(kind)} for the kind of stream "{clip(name)}"', "one of " + ", ".join(KINDS))
    return Stream(device, kind)


def _no_misspelt(obj: Mapping[str, Any], names: tuple[str, ...], what: str) -> None:
    """A promise that is misspelt and read as provenance would not be kept, and nobody would know."""
    for key in sorted(obj.keys() - set(names)):
        meant = near(key, names, 0.85)
        if meant is not None:
            raise LineError(f'has unknown key "{key}": is "{meant}" meant?', f"{what} has {', '.join(names)}")


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
            raise LineError(f'has {show(count)} for "{shown}.{clip(name)}"', "a count from 0")
    return counts


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _only(obj: Mapping[str, Any], shown: str, names: tuple[str, ...]) -> None:
    for key in obj:
        if key not in names:
            raise LineError(f'has unknown key "{shown}.{clip(key)}"', f"{shown} has {', '.join(names)}")
