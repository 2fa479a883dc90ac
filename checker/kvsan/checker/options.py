"""`KVSAN_OPTIONS`: how a debug session is told what to do, in the manner of the sanitizers.

`key=value:key=value`; a value that holds a colon stands in quotes. An unknown key or a value of the wrong sort is an
error that lists what is known, never a default: an option that is misspelt and ignored is how a check is switched off
by accident.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches

SWITCH, OPTIONS = "KVSAN", "KVSAN_OPTIONS"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class OptionsError(ValueError):
    """An option that cannot be understood. The text is one line: what is wrong, what is accepted."""


WATCHED = 16
"""Steps of `crosscheck` that are watched."""


@dataclass(frozen=True, slots=True)
class Options:
    """What each is for stands in `HELP`. `%p` in a path is the process id, `%n` the number of the incident
    (put before the suffix if it is missing).
    """

    halt_on_error: bool = False
    exitcode: int = 66
    incomplete_exitcode: int = 0
    log_path: str = "stderr"
    suppressions: str = ""
    trace: str = ""
    report: str = ""
    check: bool = True
    beside: bool = True
    crosscheck: int = 512
    assume_stream_order: bool = False
    incident: float = 10.0
    incident_mb: int = 64
    incident_path: str = "kvsan-incident-%p-%n.jsonl.gz"
    max_incidents: int = 4
    max_reports: int = 20
    handle_sigterm: bool = True


HELP = {
    "halt_on_error": "raise KvsanHazard in the engine's thread at a hazard; from a thread that is not the main one "
    "the process is sent SIGTERM too",
    "exitcode": "exit status of a process with hazards; 0 leaves the status alone",
    "incomplete_exitcode": "exit status of a process whose verdict is Incomplete; 0 leaves it alone",
    "log_path": "where reports go: stderr, stdout or a path",
    "suppressions": "a file of hazards that are known, each with a reason",
    "trace": "write every op to this file, .jsonl, .jsonl.gz or .kvt (binary, at the least cost)",
    "report": "write the summary as JSON to this file",
    "check": "check while the engine runs; 0 with trace= only records",
    "beside": "check in a process of its own beside the engine's, which costs the engine least; 0 in the engine's "
    "process; halt_on_error does so too",
    "crosscheck": "PyTorch's own trace callbacks are heard in 16 of so many steps of an engine whose steps are known; "
    "0: in all",
    "assume_stream_order": "take source order `any` as `stream`",
    "incident": "seconds of ops that are kept and written when a hazard is found; 0 for none",
    "incident_mb": "megabytes that those ops may take",
    "incident_path": "where incidents are written",
    "max_incidents": "so many incidents are written at most",
    "max_reports": "so many reports are printed at most; the rest are counted",
    "handle_sigterm": "print the summary on SIGTERM, then do what was done before",
}


def parse(text: str) -> Options:
    """Reads the value of `KVSAN_OPTIONS`. Raises `OptionsError`."""
    return Options(**given(text))  # type: ignore[arg-type]


def given(text: str, where: str = OPTIONS) -> dict[str, object]:
    """What the text sets, by key; `where` is what an error calls it. Raises `OptionsError`."""
    out: dict[str, object] = {}
    for part in _split(text, where):
        key, equals, value = part.partition("=")
        _known(key, where)
        if not equals:
            raise OptionsError(f'{where} has "{key}" without a value; accepted: {key}=…')
        if key in out:
            raise OptionsError(f'{where} has "{key}" twice; accepted: each key once')
        out[key] = one(key, value, where)
    return out


def one(key: str, value: str, where: str = OPTIONS) -> object:
    """The value of one option, read from text. Raises `OptionsError`."""
    _known(key, where)
    return _value(key, value, getattr(Options(), key), where)


def _known(key: str, where: str) -> None:
    if key not in HELP:
        near = get_close_matches(key, HELP, 1, 0.6)
        meant = f': is "{near[0]}" meant?' if near else ""
        raise OptionsError(f'{where} has unknown key "{key}"{meant}; accepted: {", ".join(HELP)}')


def switched_on(environment: Mapping[str, str] | None = None) -> bool:
    """Whether `KVSAN` asks for a session. Raises `OptionsError` for a value that says neither yes nor no."""
    value = (os.environ if environment is None else environment).get(SWITCH, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise OptionsError(f'{SWITCH} is "{value}"; accepted: 1 or 0')


def from_environment(environment: Mapping[str, str] | None = None) -> Options:
    return parse((os.environ if environment is None else environment).get(OPTIONS, ""))


def shown(options: Options) -> str:
    """What differs from the defaults, as it would be written."""
    default = Options()
    parts = []
    for item in fields(Options):
        value = getattr(options, item.name)
        if value != getattr(default, item.name):
            parts.append(f"{item.name}={int(value) if isinstance(value, bool) else value}")
    return ":".join(parts)


def _value(key: str, value: str, default: object, where: str) -> object:
    low = value.strip().lower()
    if isinstance(default, bool):
        if low in _TRUE or low in _FALSE[1:]:
            return low in _TRUE
        raise OptionsError(f'{where} has {key}="{value}"; accepted: 0 or 1')
    if isinstance(default, int | float):
        try:
            number = type(default)(low)
        except ValueError:
            number = type(default)(-1)
        top = 255 if key.endswith("exitcode") else 1e9
        least = 1 if key == "incident_mb" else 0
        if key == "crosscheck" and 0 < number <= WATCHED:
            number = -1
        if not least <= number <= top:
            what = "an exit status from 0 to 255" if top == 255 else f"a number from {least}"
            what += "; incident=0 keeps none" if least else ""
            what = f"0, or a number above {WATCHED}" if key == "crosscheck" else what
            raise OptionsError(f'{where} has {key}="{value}"; accepted: {what}')
        return number
    if not value:
        raise OptionsError(f'{where} has "{key}" without a value; accepted: {key}=…')
    return value


def _split(text: str, where: str) -> list[str]:
    """At colons, but not within quotes; the quotes go."""
    parts, part, quote = [], "", ""
    for char in text.strip():
        if quote:
            quote, part = ("", part) if char == quote else (quote, part + char)
        elif char in "'\"":
            quote = char
        elif char == ":":
            parts.append(part)
            part = ""
        else:
            part += char
    if quote:
        raise OptionsError(f"{where} has a quote that is not closed; accepted: key=value:key='a value with :'")
    return [part.strip() for part in (*parts, part) if part.strip()]
