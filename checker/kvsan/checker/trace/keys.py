"""The keys of every op line, once: what the fast decoder is made of and what an error message lists.

A line is decoded by msgspec into one struct an op. Only when that fails is it looked at slowly (`explain_line`), to
say what is wrong and what is accepted. Unknown keys are kept out of the way as provenance, unless they look like a
misspelt one: `"ordr": "any"` read as "no order given" would turn a race into a clean trace.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

import msgspec

from kvsan.model.ops import Device, Source

Name = str
Tag = int | str
Pools = dict[str, str]
Number = int | float

_KEYS: dict[str, dict[str, tuple[Any, bool]]] = {
    "access": {
        "on": (Name | None, False),
        "label": (str, True),
        "reads": (Pools, False),
        "writes": (Pools, False),
        "order": (Source, False),
        "batch": (bool, False),
        "planned": (int | None, False),
        "step": (Tag | None, False),
        "owner": (Tag | None, False),
        "site": (str | None, False),
    },
    "record": {"on": (Name, True), "event": (Name, True)},
    "wait": {"on": (Name, True), "event": (Name, True)},
    "sync": {"event": (Name | None, False), "stream": (Name | None, False), "device": (Device | None, False)},
    "poll": {"event": (Name, True), "done": (bool, True)},
    "put": {"token": (Name, True)},
    "get": {"token": (Name, True)},
    "alloc": {"pool": (Name, True), "ids": (str, True)},
    "free": {"pool": (Name, True), "ids": (str, True)},
    "touch": {"pool": (Name, True), "ids": (str, True)},
    "drop": {"event": (Name, True)},
}
_EVERY: dict[str, tuple[Any, bool]] = {"by": (Name, True), "t": (Number | None, False)}
_DEFAULTS: dict[str, Any] = {"order": "stream", "batch": False}

_TYPES = {
    bool: "true or false",
    str: "a string",
    Pools: 'an object of pool: ids, such as {"gpu": "1-4,9"}',
    Source: 'one of "stream", "any", "call"',
    int | None: "a whole number",
    Name | None: "a string",
    Tag | None: "a whole number or a string",
    Device | None: "a number or a string",
    Number | None: "a number",
}


def _struct(op: str, *, strict: bool) -> type[msgspec.Struct]:
    keys = _EVERY | _KEYS[op]
    required: list[Any] = [(key, kind) for key, (kind, must) in keys.items() if must]
    optional: list[Any] = [(key, kind, _DEFAULTS.get(key)) for key, (kind, must) in keys.items() if not must]
    optional = [
        (key, kind, msgspec.field(default_factory=dict)) if kind is Pools else (key, kind, default)
        for key, kind, default in optional
    ]
    return msgspec.defstruct(
        f"{op.capitalize()}Line",
        required + optional,
        kw_only=True,
        tag_field="op",
        tag=op,
        forbid_unknown_fields=strict,
        gc=False,
    )


def _decoder(*, strict: bool) -> msgspec.json.Decoder[Any]:
    union: Any = None
    for op in _KEYS:
        line = _struct(op, strict=strict)
        union = line if union is None else union | line
    return msgspec.json.Decoder(union)


DECODE = _decoder(strict=True).decode
"""The fast way: a line to its struct, whose tag is the op. Refuses what it does not know."""

_LENIENT = _decoder(strict=False).decode
_OUTER = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""One level deep: what a hostile line nests inside stays bytes."""

MAX_UNKNOWN = 100
"""Keys of a line that are provenance, at most."""


class LineError(ValueError):
    """What is wrong with a line and what is accepted instead; the reader adds file and line number."""

    def __init__(self, wrong: str, accepted: str) -> None:
        super().__init__(wrong)
        self.wrong = wrong
        self.accepted = accepted


def accepted_keys(op: str) -> str:
    """`"record" has op, by, on, event` with optional keys in brackets."""
    keys = {"op": (str, True)} | _EVERY | _KEYS[op]
    return f'"{op}" has ' + ", ".join(key if must else f"[{key}]" for key, (_, must) in keys.items())


@cache
def keys_of(op: str) -> frozenset[str]:
    """Every key that a line of this op may have."""
    return frozenset({"op"} | _EVERY.keys() | _KEYS[op].keys())


def explain_line(raw: bytes) -> Any:
    """Decodes a line that the fast decoder refused, or raises `LineError`. If nothing but provenance was odd about it,
    returns it.
    """
    obj = _outer(raw)
    op = _value(obj["op"]) if "op" in obj else None
    if not isinstance(op, str) or op not in _KEYS:
        wrong = 'has no key "op"' if "op" not in obj else f"has unknown op {show(op)}{_hint(op, _KEYS)}"
        raise LineError(wrong, "op is one of " + ", ".join(_KEYS))
    keys = _EVERY | _KEYS[op]
    unknown = obj.keys() - keys.keys() - {"op"}
    if len(unknown) > MAX_UNKNOWN:
        raise LineError(f"has {len(unknown)} unknown keys", f"up to {MAX_UNKNOWN}; {accepted_keys(op)}")
    try:
        line = _LENIENT(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _mistyped(op, keys, obj, unknown, str(error)) from None
    for key in sorted(unknown - _HARMLESS):
        meant = near(key, keys, 0.8)
        if meant is not None:
            raise LineError(f'has unknown key "{clip(key)}": is "{meant}" meant?', accepted_keys(op))
        if len(_HARMLESS) < 1000 and not near(key, _ALL, 0.8):
            _HARMLESS.add(key)
    return line


_ALL = {key for op in _KEYS for key in (*_EVERY, *_KEYS[op])}
_HARMLESS: set[str] = set()
"""Keys met before that are like no key of any op."""


def refuse_doubles(raw: bytes, named: Collection[Any] = ()) -> None:
    """Raises `LineError` if an object of the line has a key twice: JSON readers keep the last one and drop the other,
    and with it an access. `named` holds the objects inside the line, decoded. Quick unless the keys do not add up.
    """
    if raw.count(b'":') == len(_OUTER(raw)) + sum(map(len, named)):
        return
    json.loads(raw, object_pairs_hook=no_doubles)


def no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise LineError(f'has key "{clip(double)}" twice', "each key of an object once")
    return out


def _outer(raw: bytes) -> Mapping[str, msgspec.Raw]:
    try:
        if not raw.isascii():
            raw.decode()
        obj: Mapping[str, msgspec.Raw] = _OUTER(raw)
    except UnicodeDecodeError as why:
        raise LineError(f"is not UTF-8 (byte {why.start})", "one JSON object a line, in UTF-8") from None
    except RecursionError:
        raise LineError("is nested too deeply", "a flat object with the keys of one op") from None
    except msgspec.ValidationError:
        wrong = f"is {_kind(raw)}, not an object"
        raise LineError(wrong, "one JSON object a line, with op, by and the keys of that op") from None
    except msgspec.DecodeError as why:
        raise LineError(f"is not JSON ({why})", "one JSON object a line, in UTF-8") from None
    return obj


def _mistyped(
    op: str, keys: Mapping[str, tuple[Any, bool]], obj: Mapping[str, msgspec.Raw], unknown: Collection[str], why: str
) -> LineError:
    """The first key that is missing or of another type."""
    for key, (kind, must) in keys.items():
        if key in obj:
            try:
                msgspec.json.decode(obj[key], type=kind)
            except (msgspec.DecodeError, RecursionError):
                return LineError(f'has {show(_value(obj[key]))} for "{key}"', f'"{key}" is {_TYPES[kind]}')
        elif must:
            meant = near(key, unknown, 0.6)
            hint = f" (is {show(meant)} meant?)" if meant is not None else ""
            return LineError(f'has no key "{key}"{hint}', accepted_keys(op))
    return LineError(f"cannot be read ({why})", accepted_keys(op))


class _Deep:
    """Stands for a value that is nested too deeply to be decoded."""


def _value(raw: msgspec.Raw) -> Any:
    """A value as far as a message needs it."""
    text = memoryview(raw)
    if len(text) > 1000:
        head = bytes(text[:60]).decode(errors="replace")
        return head if head.startswith('"') else _Deep()
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        return _Deep()
    except msgspec.DecodeError as why:
        return f"({why})"


def show(value: Any) -> str:
    """A value of a bad line, short enough for a one-line message."""
    try:
        text = msgspec.json.encode(value).decode()
    except (RecursionError, TypeError, ValueError, msgspec.MsgspecError):
        text = "a long or deeply nested value"
    return clip(text)


def clip(text: str, length: int = 60) -> str:
    """The start of a long text."""
    return text if len(text) <= length else text[: length - 3] + "..."


def printable(text: str, length: int) -> str:
    """One line for a terminal: what is not printable is spelt out (`\\x1b`), what is too long is cut."""
    text = clip(text, length)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def near(name: str, names: Collection[str], cutoff: float) -> str | None:
    """Which of `names` a misspelt name may stand for. Long ones stand for nothing."""
    if len(name) > 20:
        return None
    found = get_close_matches(name.lower(), [other for other in names if len(other) <= 20], 1, cutoff)
    return found[0] if found else None


def _hint(value: Any, names: Collection[str]) -> str:
    meant = near(value, names, 0.6) if isinstance(value, str) else None
    return f" (is {meant} meant?)" if meant is not None else ""


def _kind(raw: bytes) -> str:
    """What JSON value a line is, by its first character."""
    kinds = {"[": "a list", '"': "a string", "t": "true", "f": "false", "n": "null"}
    return kinds.get(raw.lstrip()[:1].decode(), "a number")
