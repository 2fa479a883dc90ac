"""`kvsan run` and `kvsan bisect`: what they say, and with which status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from kvsan.checker.cli import cli

SMALL = ["--requests", "60", "--rounds", "1"]


def test_the_default_is_clean_and_right() -> None:
    done = CliRunner().invoke(cli, ["run", *SMALL, "--format", "json"])
    assert done.exit_code == 0, done.output
    (line,) = done.output.splitlines()
    found = json.loads(line)
    assert (found["verdict"], found["completions"], found["garbled"], found["totals"]) == ("clean", 60, 0, [])


def test_a_bisection_garbles_where_a_fence_is_missing() -> None:
    done = CliRunner().invoke(cli, ["bisect", *SMALL, "--format", "json"])
    assert done.exit_code == 1, done.output
    found = {one["fence"]: one for one in map(json.loads, done.output.splitlines())}
    for fence in ("none", "store"):
        assert found[fence]["garbled"] > 0
        assert {row["kind"] for row in found[fence]["totals"]} == {"WAR", "WAW"}
    for fence in ("load", "all"):
        assert (found[fence]["garbled"], found[fence]["verdict"]) == (0, "clean")


def test_each_round_has_a_trace_that_conforms(tmp_path: Path) -> None:
    folder = tmp_path / "with.dot"
    folder.mkdir()
    done = CliRunner().invoke(cli, ["run", "--requests", "8", "--rounds", "2", "--trace", str(folder / "t.jsonl.gz")])
    assert done.exit_code == 0, done.output
    for name in ("t-1.jsonl.gz", "t-2.jsonl.gz"):
        assert CliRunner().invoke(cli, ["check", str(folder / name)]).exit_code == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--design", "nobodys"], "no design 'nobodys'"),
        (["--policy", "starve:nosuch"], "no stream 'nosuch'"),
        (["--policy", "unfair"], "is no policy"),
        (["--pressure", "nan"], "accepted: 0.01 to 1000"),
        (["--trace", "/nosuch/t.kvt"], "no file can be written there"),
        (["--trace", "t.txt"], "a name that ends in"),
        (["--spin", "5"], "a simulated device needs none"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(given: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, ["run", *SMALL, *given])
    assert done.exit_code == 2
    assert said in done.output
    assert done.output.count("\n") == 1
