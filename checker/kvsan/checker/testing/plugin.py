"""The pytest plugin: fixture and marker `kvsan`, ini and command line, traces of failures, a line in the summary.

    def test_step(kvsan):               # what the test issues is checked; a hazard fails it, with the report
        ...

    @pytest.mark.kvsan(halt_on_error=True, incomplete="accept")
    def test_other(kvsan): ...

A test fails when its call has ended, with the report and nothing else as its text; if it failed by itself, the report
is a section of that failure. What comes to light later, while fixtures are taken down, is an error of the teardown. A
verdict of Incomplete fails too (`kvsan_incomplete=accept` takes it): a test that was meant to check and saw nothing is
no test.

Where an option is said: `KVSAN_OPTIONS`, then ini (`kvsan_NAME`), then `--kvsan-options`, then markers, the closest
last; the last one counts. What is wrong there is a usage error of pytest, one line.

`--kvsan-trace-dir DIR` keeps, of each test that failed, the trace and a text with the report and what replays it; the
names hold the test and the worker of xdist, so that several processes share a folder.

Relies on nothing: pytest imports this in every run on the machine, so it loads neither numpy, torch nor the rest of
kvsan until a test asks for it (a test looks). Does not cover: child processes of a test, two tests at once in one
process.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvsan.checker.testing.checking import Checked, Settings

OPTIONS = (
    *("halt_on_error", "log_path", "suppressions", "trace", "report", "check", "assume_stream_order"),
    *("incident", "incident_mb", "incident_path", "max_incidents", "max_reports"),
)
"""Those of `KVSAN_OPTIONS` that mean something in a test (a test holds them to `options.Options`)."""

OF_A_PROCESS = {
    "exitcode": "a hazard fails the test",
    "incomplete_exitcode": "say kvsan_incomplete, fail or accept",
    "handle_sigterm": "pytest handles signals",
    "beside": "a test is asked at once",
    "crosscheck": "it is about an engine's steps",
}
"""Those that only a process has, and what to say instead."""

OWN = {
    "incomplete": "what a verdict of Incomplete does to a test: fail (default) or accept",
    "seed": "seed of simulated devices, with the test's name (default 0)",
    "trace_dir": "folder that keeps the trace and the replay of each failure",
}

_FIXTURE = pytest.StashKey["Checked"]()
_WRONG = pytest.StashKey[str]()
_COUNTS = pytest.StashKey["_Counts"]()


# ── options ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvsan", "kvsan: stream ordering on reused KV blocks")
    group.addoption("--kvsan-options", metavar="KEY=VALUE:…", help="options as in KVSAN_OPTIONS")
    for name, text in OWN.items():
        flag = f"--kvsan-{name.replace('_', '-')}"
        group.addoption(flag, dest=f"kvsan_{name}", default=None, help=text)
        parser.addini(f"kvsan_{name}", f"twin of {flag}", default=None)
    for name in (*OPTIONS, *OF_A_PROCESS):
        parser.addini(f"kvsan_{name}", f"option {name} of KVSAN_OPTIONS, for tests", default=None)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "kvsan(option=…): check what the test issues, with options of KVSAN_OPTIONS, incomplete= and seed="
    )
    counts = config.stash[_COUNTS] = _Counts()
    config.pluginmanager.register(_Summary(counts), "kvsan-summary")
    if any(said(config, name) is not None for name in (*OPTIONS, *OF_A_PROCESS, *OWN, "options")):
        _usage(config)
    folder = _folder(config)
    if folder is not None and (wrong := _unusable(folder)):
        raise pytest.UsageError(f"kvsan: {_said_where(config)}: {wrong}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A wrong marker is seen before any test runs; a marked test has the fixture without naming it."""
    for item in items:
        if item.get_closest_marker("kvsan") is not None:
            _usage(config, _markers(item))
            names = getattr(item, "fixturenames", None)
            if names is not None and "kvsan" not in names:
                names.append("kvsan")


def said(config: pytest.Config, name: str) -> Any:
    """What the command line says of an option, else the ini file; `None` if neither does."""
    if name == "options":
        return config.getoption("kvsan_options", None)
    found = config.getoption(f"kvsan_{name}", None) if name in OWN else None
    return config.getini(f"kvsan_{name}") if found is None else found


def _usage(config: pytest.Config, markers: tuple[pytest.Mark, ...] = ()) -> None:
    from kvsan.checker.options import OptionsError
    from kvsan.checker.testing.told import read

    try:
        read(config, markers)
    except OptionsError as error:
        raise pytest.UsageError(f"kvsan: {error}") from None


def _markers(item: pytest.Item) -> tuple[pytest.Mark, ...]:
    return tuple(reversed(list(item.iter_markers("kvsan"))))  # the closest last


# ── a test ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def kvsan(request: pytest.FixtureRequest) -> Iterator[Checked]:
    """The operations of the test, checked. `kvsan.pool(name, blocks)`, `kvsan.recorder`, `kvsan.example()`."""
    from kvsan.checker.testing.checking import checked

    item = request.node
    with checked(judge=False) as made:
        item.stash[_FIXTURE] = made
        yield made
    late = made.failure()
    if _WRONG not in item.stash and late is not None and made.judged().verdict.name == "racy":  # after the call
        pytest.fail(str(late), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    _running.append(_Running(item))
    try:
        return (yield)
    finally:
        _running.pop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    made = item.stash.get(_FIXTURE, None)
    try:
        result = yield
    except (Exception, pytest.fail.Exception) as error:
        item.stash[_WRONG] = f"{type(error).__name__}: {error}"
        wrong = None if made is None else made.failure()
        if wrong is not None and made is not None and made.judged().verdict.name == "racy":
            item.stash[_WRONG] += f"\n{wrong}"
            item.add_report_section("call", "kvsan", str(wrong))
        raise
    wrong = None if made is None else made.failure()
    if wrong is not None:
        item.stash[_WRONG] = str(wrong)
        pytest.fail(str(wrong), pytrace=False)
    return result


class _Running:
    """The test that runs now, as `checking.Host`."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def settings(self) -> Settings:
        from dataclasses import replace

        from kvsan.checker.testing.checking import Settings
        from kvsan.checker.testing.told import read

        config, item = self._item.config, self._item
        told = read(config, _markers(item))
        options, folder = told.options, _folder(config)
        if folder is not None and not options.trace:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:  # it could be made when the run began, or nothing said that it cannot
                pytest.fail(f"kvsan: {_said_where(config)}: {error}; accepted: {_ACCEPTED}", pytrace=False)
            options = replace(options, trace=str(folder / f".{_name(item)}-%p-{next(_serial)}.jsonl.gz"))
        return Settings(options, told.incomplete, f"{told.seed}:{item.nodeid}")

    def began(self, made: Checked) -> None:
        from kvsan.checker.manners import own_path

        made.session.about["test"] = self._item.nodeid
        trace = made.session.options.trace
        if trace and Path(trace).name.startswith(f".{_name(self._item)}-%p-"):
            made.trace = own_path(trace)

    def ended(self, made: Checked, wrong: str | None) -> None:
        item, folder = self._item, _folder(self._item.config)
        if made is item.stash.get(_FIXTURE, None):
            late = made.failure() if made.judged().verdict.name == "racy" else None
            wrong = item.stash.get(_WRONG, None if late is None else str(late))
        seen = made.judged()
        counted = not (seen.idle and made.inner)
        allowed = {found.reason: found.used for found in made.session.allowed()}
        if counted:
            _count(item, seen.verdict.name, allowed)
        if made.trace:
            assert folder is not None
            self._keep(made, wrong, folder, counted)

    def _keep(self, made: Checked, wrong: str | None, folder: Path, counted: bool) -> None:
        """The trace of what failed, under the test's name; the last failing example of hypothesis is its smallest."""
        there = os.path.exists(made.trace)
        if wrong is None or not counted:
            if there:
                os.unlink(made.trace)
            return
        name = _name(self._item)
        lines = [f"test: {self._item.nodeid}", f"process: {os.getpid()}{_worker(' of xdist worker ')}"]
        if there:
            kept = folder / f"{name}.jsonl.gz"
            os.replace(made.trace, kept)
            lines.append(f"trace: {kept} (kvsan check {kept})")
        lines += [f"{key}: {value}" for key, value in made.replay().items()]
        (folder / f"{name}.txt").write_text("\n".join([*lines, "", wrong, ""]), encoding="utf-8")


_running: list[_Running] = []
_serial = count()


def running() -> _Running | None:
    """What `checked()` asks for its settings."""
    return _running[-1] if _running else None


def _folder(config: pytest.Config) -> Path | None:
    where = said(config, "trace_dir")
    if not where:
        return None
    given = config.getoption("kvsan_trace_dir", None) is not None
    return Path(config.invocation_params.dir if given else config.rootpath, where)


_ACCEPTED = "a folder that can be written, or made"


def _said_where(config: pytest.Config) -> str:
    return "--kvsan-trace-dir" if config.getoption("kvsan_trace_dir", None) is not None else "ini kvsan_trace_dir"


def _unusable(folder: Path) -> str:
    """Why no trace could be kept there, before the first test that asks for one makes it; empty if one could."""
    there = next((path for path in (folder, *folder.parents) if os.path.exists(path)), folder)
    if not there.is_dir():
        return f"{there} is no folder; accepted: {_ACCEPTED}"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written; accepted: {_ACCEPTED}"
    return ""


def _worker(before: str) -> str:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return f"{before}{worker}" if worker else ""


def _name(item: pytest.Item) -> str:
    """Of files: what a test is called, made fit for a file system, and told apart by its sum."""
    plain = re.sub(r"[^\w.-]+", "_", item.nodeid)[-100:].strip("_.")
    return f"{plain}-{zlib.crc32(item.nodeid.encode()):08x}{_worker('-')}"


# ── the summary ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Counts:
    """Over all tests, and with xdist over all workers."""

    verdicts: dict[str, int] = field(default_factory=dict)
    allowed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Reason → blocks, tests."""


_PROPERTY = "kvsan"
_WORST = ("racy", "incomplete", "clean")


def _count(item: pytest.Item, verdict: str, allowed: dict[str, int]) -> None:
    """Kept as a property of the test, which xdist brings to where the summary is printed."""
    said = next((json.loads(str(value)) for name, value in item.user_properties if name == _PROPERTY), None)
    if said is not None:
        item.user_properties[:] = [pair for pair in item.user_properties if pair[0] != _PROPERTY]
        verdict = min(verdict, said["verdict"], key=_WORST.index)
        for reason, blocks in said["allowed"].items():
            allowed[reason] = allowed.get(reason, 0) + blocks
    item.user_properties.append((_PROPERTY, json.dumps({"verdict": verdict, "allowed": allowed})))


class _Summary:
    """Adds up what the reports of one run say; registered with its configuration."""

    def __init__(self, counts: _Counts) -> None:
        self._counts = counts

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "teardown" else ():
            if name != _PROPERTY:
                continue
            counts, said = self._counts, json.loads(str(value))
            counts.verdicts[said["verdict"]] = counts.verdicts.get(said["verdict"], 0) + 1
            for reason, blocks in said["allowed"].items():
                before = counts.allowed.get(reason, (0, 0))
                counts.allowed[reason] = (before[0] + blocks, before[1] + 1)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    counts = config.stash[_COUNTS]
    if not counts.verdicts:
        return
    tests = sum(counts.verdicts.values())
    verdicts = ", ".join(f"{counts.verdicts[name]} {name}" for name in _WORST if name in counts.verdicts)
    line = f"kvsan: {tests} {'test' if tests == 1 else 'tests'} checked: {verdicts}"
    if counts.allowed:
        blocks = sum(number for number, _ in counts.allowed.values())
        line += f"; allowed: hazards on {blocks} {'block' if blocks == 1 else 'blocks'}"
    terminalreporter.write_line(line)
    for reason, (blocks, within) in sorted(counts.allowed.items()):
        where = f"{blocks} {'block' if blocks == 1 else 'blocks'}, {within} {'test' if within == 1 else 'tests'}"
        terminalreporter.write_line(f"  allowed ({where}): {reason}")
