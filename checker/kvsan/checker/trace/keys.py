"""The keys of every op line, once: what the fast decoder is made of and what an error message lists.

A line is decoded by msgspec into one struct an op. Only when that fails is it looked at slowly (`explain_line`), to say what is
wrong and what is accepted. Unknown keys are kept out of the way as provenance, unless they look like a misspelt one:
`"ordr": "any"` read as "no order given" would turn a race into a clean trace.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Literal

import msgspec

from kvsan.model.ops import Source

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
    "sync": {"event": (Name | None, False), "stream": (Name | None, False), "device": (Tag | None, False)},
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
    Pools: "an object of pool: ids, such as {\"gpu\": \"1-4,9\"}",
    Source: 'one of "stream", "any", "call"',
    int | None: "a whole number",
    Name | None: "a string",
    Tag | None: "a whole number or a string",
    Number | None: "a number",
}


def _struct(op: str) -> type[msgspec.Struct]:
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
        forbid_unknown_fields=True,
        gc=False,
    )


LINES: dict[str, type[msgspec.Struct]] = {op: _struct(op) for op in _KEYS}
_union: Any = None
for _line in LINES.values():
    _union = _line if _union is None else _union | _line
DECODE = msgspec.json.Decoder(_union)


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


def explain_line(raw: bytes, error: Exception) -> Any:
    """Decodes a line that the fast decoder refused, or raises `LineError`. Returns the line if only unknown keys were odd."""
    try:
        obj = msgspec.json.decode(raw)
    except RecursionError:
        raise LineError("is nested too deeply", "a flat object with the keys of one op") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        raise LineError(f"is not JSON ({why})", "one JSON object a line, in UTF-8") from None
    if not isinstance(obj, dict):
        raise LineError(f"is {_kind(obj)}, not an object", "one JSON object a line, with op, by and the keys of that op")
    op = obj.get("op")
    if not isinstance(op, str) or op not in _KEYS:
        wrong = 'has no key "op"' if "op" not in obj else f"has unknown op {show(op)}{_near(op, _KEYS)}"
        raise LineError(wrong, "op is one of " + ", ".join(_KEYS))
    keys = _EVERY | _KEYS[op]
    for key, (kind, must) in keys.items():
        if key not in obj:
            if must:
                unknown = [k for k in obj if k not in keys and k != "op"]
                near = get_close_matches(key, unknown, 1)
                hint = f" (is {show(near[0])} meant?)" if near else ""
                raise LineError(f'has no key "{key}"{hint}', accepted_keys(op))
            continue
        try:
            msgspec.convert(obj[key], kind)
        except msgspec.ValidationError:
            raise LineError(f'has {show(obj[key])} for "{key}"', f'"{key}" is {_TYPES[kind]}') from None
    for key in set(obj) - set(keys) - {"op"}:
        near = get_close_matches(key, keys, 1, cutoff=0.75)
        if near:
            raise LineError(f'has unknown key "{key}": is "{near[0]}" meant?', accepted_keys(op))
    try:
        return msgspec.convert({key: obj[key] for key in obj if key == "op" or key in keys}, LINES[op])
    except msgspec.ValidationError:
        raise LineError(f"cannot be read ({error})", accepted_keys(op)) from None


def show(value: Any) -> str:
    """A value of a bad line, short enough for a one-line message."""
    try:
        text = msgspec.json.encode(value).decode()
    except (RecursionError, msgspec.EncodeError):
        text = "a deeply nested value"
    return text if len(text) <= 60 else text[:57] + "..."


def _near(value: Any, names: Any) -> str:
    near = get_close_matches(value, names, 1) if isinstance(value, str) else []
    return f" (is {near[0]} meant?)" if near else ""


def _kind(value: Any) -> str:
    kinds: dict[Any, Literal["a list", "a string", "a number", "true or false", "null"]] = {
        list: "a list",
        str: "a string",
        int: "a number",
        float: "a number",
        bool: "true or false",
    }
    return kinds.get(type(value), "null")
