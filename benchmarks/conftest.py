"""One table at the end of `make bench`: what is to be compared with what, measured in the same minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

Note = Callable[[str, str], None]
_KEY = pytest.StashKey[list[tuple[str, str]]]()


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Adds a line to the table: a name and what was found."""
    rows = request.config.stash.setdefault(_KEY, [])
    return lambda name, text: rows.append((name, text))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(_KEY, [])
    if rows:
        terminalreporter.section("figures for docs/performance.md")
        for name, text in rows:
            terminalreporter.write_line(f"{name:<58} {text}")


def pedantic(
    benchmark: BenchmarkFixture, call: Callable[..., Any], *args: Any, rounds: int = 1, setup: Any = None
) -> Any:
    """`benchmark.pedantic`, which has no types. `setup` runs before each round, untimed, and may return arguments."""
    run: Any = benchmark.pedantic
    return run(call, args, setup=setup, rounds=rounds)


def interleaved(calls: dict[str, Callable[[], object]], batch: int, rounds: int = 25) -> dict[str, float]:
    """The least processor time of one call in µs, for each.

    They take turns, so that a slow spell of the machine meets all; processor time, so that other processes do not count
    (a long batch would be interrupted more often than a short one).
    """
    best = dict.fromkeys(calls, float("inf"))
    for name, call in _turns(calls, rounds):
        start = time.thread_time()
        for _ in range(batch):
            call()
        best[name] = min(best[name], (time.thread_time() - start) / batch * 1e6)
    return best


def _turns(calls: dict[str, Callable[[], object]], rounds: int) -> Iterator[tuple[str, Callable[[], object]]]:
    for _ in range(rounds):
        yield from calls.items()
