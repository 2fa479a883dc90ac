"""What was said for a test, of all the places where the plugin's options can stand; loaded when a test asks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest

from kvsan.checker import options as opts
from kvsan.checker.testing.plugin import OF_A_PROCESS, OPTIONS, said


@dataclass(frozen=True, slots=True)
class Told:
    """What was said for a test."""

    options: opts.Options
    incomplete: Any
    seed: str


def read(config: pytest.Config, markers: tuple[pytest.Mark, ...]) -> Told:
    """Raises `OptionsError`."""
    values: dict[str, object] = {"log_path": os.devnull, "incident": 0.0}
    environment = opts.given(os.environ.get(opts.OPTIONS, ""))
    values |= {key: value for key, value in environment.items() if key in OPTIONS}
    own = {"incomplete": "fail", "seed": "0"}
    for name in (*OPTIONS, *OF_A_PROCESS):
        text = config.getini(f"kvsan_{name}")
        if text is not None:
            _of_a_test(name, f"ini kvsan_{name}")
            values[name] = opts.one(name, str(text), f"ini kvsan_{name}")
    given = config.getoption("kvsan_options", None)
    for name, value in opts.given(given or "", "--kvsan-options").items():
        _of_a_test(name, "--kvsan-options")
        values[name] = value
    own |= {name: str(text) for name in own if (text := said(config, name)) is not None}
    for mark in markers:
        if mark.args:
            raise opts.OptionsError(
                f"marker kvsan has {mark.args[0]!r} without a name; accepted: @pytest.mark.kvsan(option=…)"
            )
        for name, value in mark.kwargs.items():
            text = str(int(value)) if isinstance(value, bool) else str(value)
            if name in own:
                own[name] = text
            else:
                _of_a_test(name, "marker kvsan")
                values[name] = opts.one(name, text, "marker kvsan")
    if own["incomplete"] not in ("fail", "accept"):
        raise opts.OptionsError(f'kvsan_incomplete is "{own["incomplete"]}"; accepted: fail or accept')
    return Told(opts.Options(**values), own["incomplete"], own["seed"])  # type: ignore[arg-type]


def _of_a_test(name: str, where: str) -> None:
    if name in OF_A_PROCESS:
        raise opts.OptionsError(
            f'{where} has "{name}", which is of a process: {OF_A_PROCESS[name]}; accepted: {", ".join(OPTIONS)}'
        )
