"""The command line as a person and as CI use it: status, streams, widths, colour, bad usage, interruption."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvsan.checker.demo import recorded

KVSAN = [sys.executable, "-m", "kvsan.checker"]
ONE = {"op": "access", "by": "h", "on": "s", "label": "forward", "writes": {"gpu": "1-3"}}
OTHER = {"op": "access", "by": "h", "on": "t", "label": "load", "writes": {"gpu": "2"}}
POOLS = {"kvsan_trace": 1, "pools": {"gpu": 4}}


def kvsan(*args: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KVSAN, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(env or {})},
        check=False,
    )


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def made(name: str, *ops: dict[str, Any], **header: Any) -> Path:
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in (POOLS | header, *ops)))
        return path

    return made


def test_status_says_the_verdict(write: Any, tmp_path: Path) -> None:
    clean, racy = write("clean", ONE), write("racy", ONE, OTHER)
    incomplete, bad = write("incomplete"), tmp_path / "nowhere.jsonl"
    assert kvsan("check", clean).returncode == 0
    assert kvsan("check", racy).returncode == 1
    assert kvsan("check", incomplete).returncode == 3
    assert kvsan("check", bad).returncode == 2
    assert kvsan("check", clean, incomplete).returncode == 3
    assert kvsan("check", incomplete, racy, clean).returncode == 1
    assert kvsan("check", racy, bad, clean).returncode == 2


def test_one_bad_trace_does_not_keep_the_others(write: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    run = kvsan("check", write("one", ONE), bad, write("two", ONE, OTHER), "--format", "json")
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [line["verdict"] for line in lines] == ["clean", "racy"]
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith(f"kvsan: {bad}:1: ")
    assert "accepted:" in run.stderr


def test_json_is_one_document_a_line(write: Any) -> None:
    run = kvsan("check", write("racy", ONE, OTHER), "--format", "json")
    (line,) = run.stdout.splitlines()
    document = json.loads(line)
    assert document["kvsan"] == 1
    (hazard,) = document["hazards"]
    assert hazard["kind"] == "WAW"
    assert hazard["earlier"] == {"op": 0, "label": "forward", "on": "s", "by": "h"}
    assert hazard["fix"][0] == {"record": {"on": "s", "after_op": 0}, "wait": {"on": "t", "before_op": 1}}
    assert document["totals"] == [{"kind": "WAW", "pool": "gpu", "earlier": "forward", "later": "load", "pairs": 1}]
    assert document["coverage"]["accesses"] == 2


@pytest.mark.parametrize(
    "usage",
    [
        ["check"],
        ["check", "x.jsonl", "--format", "github"],
        ["check", "x.jsonl", "--format", "sarif"],
        ["check", "x.jsonl", "--nonsense"],
        ["explain", "x.jsonl", "1"],
        ["merge", "x.jsonl"],
        ["nonsense"],
    ],
)
def test_bad_usage_is_2(usage: list[str]) -> None:
    run = kvsan(*usage)
    assert run.returncode == 2
    assert run.stdout == ""
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("command", ["check", "explain", "info", "merge", "demo"])
def test_help_shows_an_example(command: str) -> None:
    run = kvsan(command, "--help")
    assert run.returncode == 0
    assert f"Example:  kvsan {command}" in run.stdout


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_lines_fit_the_terminal(width: int) -> None:
    with recorded("store") as path:
        commands = (
            ["check", str(path), "--assume-stream-order"],
            ["explain", str(path), "2096", "2137"],
            ["info", str(path)],
        )
        for command in commands:
            run = kvsan(*command, env={"COLUMNS": str(width)})
            longest = max(len(line) for line in run.stdout.splitlines() if str(path) not in line)
            assert longest <= width, run.stdout


def test_a_pipe_gets_no_colour_and_no_bar() -> None:
    with recorded("store") as path:
        run = kvsan("check", path)
    assert "\x1b" not in run.stdout + run.stderr
    assert run.stderr == ""


def on_a_terminal(*args: str | Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Runs kvsan with both streams on a terminal of 80 columns."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*KVSAN, *map(str, args)],
        stdout=child,
        stderr=child,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **(env or {})},
    )
    os.close(child)
    seen = b""
    while select.select([parent], [], [], 60)[0]:
        try:
            chunk = os.read(parent, 65536)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    os.close(parent)
    return process.wait(60), seen.decode()


def test_a_terminal_gets_colour_unless_told_not_to(write: Any) -> None:
    racy = write("racy", ONE, OTHER)
    status, text = on_a_terminal("check", racy)
    assert status == 1
    assert "\x1b[31m" in text
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in on_a_terminal("check", racy, env=env)[1]


def test_a_long_trace_shows_a_bar_on_a_terminal(write: Any, tmp_path: Path) -> None:
    long = write("long", *([ONE] * 20_000))
    status, text = on_a_terminal("check", long)
    assert status == 0
    assert "ops" in text
    assert "━" in text


def test_escape_codes_in_a_trace_do_not_reach_the_terminal(write: Any) -> None:
    evil = {**OTHER, "label": "\x1b[2Jload\nrm", "on": "t\x07"}
    run = kvsan("check", write("evil", ONE, evil))
    assert run.returncode == 1
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", run.stdout)


def test_explain_says_what_it_cannot_explain(write: Any, tmp_path: Path) -> None:
    trace = write("racy", ONE, {"op": "record", "by": "h", "on": "s", "event": "e"}, OTHER)
    for pair, word in (
        (("2", "0"), "does not come before"),
        (("0", "1"), "op 1 is a record; accepted: an access"),
        (("1", "2"), "op 1 is a record; accepted: an earlier access"),
        (("2", "2"), "op 2 is the same; accepted: an earlier access"),
        (("0", "9"), "past the end; accepted: numbers from 0 to 2"),
        (("x", "1"), "not a valid integer"),
    ):
        run = kvsan("explain", trace, *pair)
        assert run.returncode == 2
        assert word in run.stderr
    assert kvsan("explain", tmp_path / "nowhere", "0", "1").returncode == 2


def test_ctrl_c_is_130(tmp_path: Path) -> None:
    """Interrupted while it waits for a line: it has said that it runs by opening the pipe to read."""
    fifo = tmp_path / "never.jsonl"
    os.mkfifo(fifo)
    # a shell that runs the tests in the background has SIGINT ignored, and children inherit that
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from kvsan.checker.__main__ import main; main()"
    )
    command = [sys.executable, "-c", script, "check", str(fifo)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        with fifo.open("w"):  # returns when the other side is open
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
    assert process.returncode == 130
    assert errors.strip() == "kvsan: interrupted"


def test_without_the_extra_it_says_which(tmp_path: Path) -> None:
    """The base install has numpy alone; 1 would mean hazards."""
    hidden = "import sys; sys.modules['msgspec'] = None; from kvsan.checker.__main__ import main; main()"
    run = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr == "kvsan: the command line needs the package msgspec; accepted: pip install 'kvsan[checker]'\n"


def test_a_report_that_cannot_be_written_is_no_fault_of_ours(write: Any) -> None:
    run = subprocess.run(
        ["bash", "-c", f"{' '.join(KVSAN)} check {write('racy', ONE, OTHER)} > /dev/full"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr == "kvsan: the report cannot be written (No space left on device)\n"


def test_our_own_fault_is_70_and_says_so(write: Any) -> None:
    trace = write("racy", ONE, OTHER)
    script = (
        "import sys; from unittest import mock; from kvsan.checker import cli\n"
        "sys.argv = ['kvsan', 'check', sys.argv[1]]\n"
        "with mock.patch('kvsan.checker.online.Online.feed', side_effect=RuntimeError('boom')): cli.main()"
    )
    run = subprocess.run([sys.executable, "-c", script, trace], capture_output=True, text=True, check=False)
    assert run.returncode == 70
    assert "kvsan: internal error" in run.stderr


def test_a_reader_that_leaves_early_is_no_error_of_ours() -> None:
    with recorded("none") as path:
        command = f"{sys.executable} -m kvsan.checker check {path} --all --format json | head -c 10"
        run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert len(run.stdout) == 10
    assert run.stderr == ""


def test_stdin_is_a_trace() -> None:
    text = "".join(json.dumps(line) + "\n" for line in (POOLS, ONE, OTHER))
    run = subprocess.run([*KVSAN, "check", "-"], input=text, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "WAW" in run.stdout


@pytest.mark.parametrize("given", [["run"], ["bisect"], ["replay", "vllm-after-46278"]])
def test_a_command_that_needs_torch_says_so_where_there_is_none(tmp_path: Path, given: list[str]) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')\n")
    command = [sys.executable, "-m", "kvsan.checker", *given]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "kvsan: this needs torch; accepted: pip install 'kvsan[engine]'\n"
