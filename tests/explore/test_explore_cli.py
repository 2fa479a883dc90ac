"""`kvsan explore`: status, formats, replays, traces; `kvsan check` of folders and with workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvsan.checker.cli import cli

SMALL = ("--blocks", "1")


def kvsan(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args])


def explored(*args: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(kvsan("explore", *args, "--format", "json").stdout)
    return document


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (("vllm-after-46278", *SMALL), 1),
        (("vllm-symmetric-barrier", *SMALL), 0),
        (("vllm-symmetric-barrier", *SMALL, "--max-states", 20), 3),
        (("vllm-after-46278", "--random", 60), 1),
        (("lmcache-staging", "--random", 60), 0),
        (("no-such-design",), 2),
        (("vllm-after-46278", "--random", 10, "--exhaustive"), 2),
        (("vllm-after-46278", "--blocks", 0), 2),
        (("vllm-after-46278", "--replay", "nonsense"), 2),
        (("vllm-after-46278", "--replay", "kx1/x/0/1/see"), 2),
        (("vllm-after-46278", *SMALL, "--checkpoint", "/nowhere/at/all"), 2),
    ],
)
def test_status(args: tuple[object, ...], status: int) -> None:
    result = kvsan("explore", *args)
    assert result.exit_code == status, result.output
    if status == 2:
        assert result.stdout == ""
        assert "Traceback" not in result.stderr


def test_a_race_is_shown_step_by_step_and_replays(tmp_path: Path) -> None:
    text = kvsan("explore", "vllm-after-46278", *SMALL, "--trace", tmp_path / "out").stdout
    assert "WAR forward -> load" in text
    assert "the proof's shortest schedule 13" in text
    assert "request finished: block 0" in text
    commands = [line.split() for line in text.splitlines() if line.strip().startswith("kvsan explore")]
    assert len(commands) == 2
    for command in commands:
        again = kvsan(*command[1:])
        assert again.exit_code == 1
        assert "RACY" in again.stdout
    traces = sorted((tmp_path / "out").iterdir())
    assert [trace.name for trace in traces] == [
        "vllm-after-46278-war-forward-load.jsonl",
        "vllm-after-46278-waw-forward-load.jsonl",
    ]
    assert kvsan("check", *traces).exit_code == 1
    assert kvsan("check", tmp_path / "out").exit_code == 1


def test_json() -> None:
    found = explored("vllm-after-46278", *SMALL)
    assert found["verdict"] == "racy"
    assert [(race["kind"], race["proof"]) for race in found["races"]] == [("WAW", 9), ("WAR", 13)]
    assert found["scope"] == {"requests": 2, "blocks": 1, "steps": 3, "skips": False}
    assert found["never"] == []
    run = explored("vllm-symmetric-barrier", "--replay", found["races"][0]["schedule"])
    assert run["verdict"] == "clean"
    assert run["same_design"] is False


def test_a_design_file_is_explored_by_the_name_that_it_was_given(tmp_path: Path) -> None:
    file = tmp_path / "my design.py"
    file.write_text(
        "from kvsan.model.designs import load\n"
        "DESIGN = load('vllm-symmetric-barrier').without('load.after(compute_done)')\n"
    )
    result = kvsan("explore", file, *SMALL)
    assert result.exit_code == 1
    assert f"kvsan explore '{file}' --replay" in result.stdout


def test_workers_and_checkpoints_change_no_answer(tmp_path: Path) -> None:
    def timeless(document: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in document.items() if key != "seconds"}

    alone = timeless(explored("vllm-no-store-pin", *SMALL))
    assert timeless(explored("vllm-no-store-pin", *SMALL, "--workers", 2)) == alone
    for _ in range(2):
        assert timeless(explored("vllm-no-store-pin", *SMALL, "--checkpoint", tmp_path / "here")) == alone


def test_ctrl_c_keeps_what_was_found_and_goes_on(tmp_path: Path) -> None:
    here = tmp_path / "here"
    command = [sys.executable, "-m", "kvsan.checker", "explore", "vllm-no-store-pin", "--requests", "4", "--steps", "5"]
    process = subprocess.Popen(
        [*command, "--workers", "2", "--checkpoint", str(here), "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    deadline = time.monotonic() + 60
    while not here.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    first = here.stat().st_size
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    found = json.loads(out)
    assert found["interrupted"]
    assert here.stat().st_size >= first


# ── kvsan check ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_folders_and_workers(tmp_path: Path) -> None:
    kvsan("explore", "vllm-after-46278", *SMALL, "--trace", tmp_path / "a" / "b")
    (tmp_path / "a" / "bad.jsonl").write_text("{}\n")
    (tmp_path / "a" / "notes.txt").write_text("no trace\n")
    (tmp_path / "none").mkdir()
    one = kvsan("check", tmp_path / "a", tmp_path / "none", "--format", "json")
    two = kvsan("check", tmp_path / "a", tmp_path / "none", "--format", "json", "--workers", 2)
    assert one.exit_code == two.exit_code == 2
    assert one.stdout == two.stdout
    assert one.stderr == two.stderr
    assert len(one.stdout.splitlines()) == 2
    assert "folder without traces" in one.stderr
    assert kvsan("check", "-", "--workers", 2).exit_code == 2
