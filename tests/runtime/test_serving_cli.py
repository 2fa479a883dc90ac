"""`kvsan run` and `kvsan bisect`: what they say, and with which status."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from kvsan.checker.cli import cli
from kvsan.checker.serving.table import unclaimed
from kvsan.checker.serving.trial import Trial, play
from kvsan.model.design import Claim
from kvsan.model.designs import load

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


SAYS = "GEN: vllm-offloading-connector does not claim right generation, so this is nothing that it promised;"


def test_what_the_design_does_not_claim_counts_and_is_said() -> None:
    """A known limit: nothing is garbled, and the verdict is racy. A copy for another owner may as well be harm."""
    given = ["run", *SMALL, "--design", "vllm-offloading-connector"]
    done = CliRunner().invoke(cli, given)
    assert done.exit_code == 1, done.output
    text = " ".join(done.output.split())
    assert "vllm-offloading-connector: RACY" in text
    assert SAYS in text
    assert "GEN store on " in text
    done = CliRunner().invoke(cli, [*given, "--format", "json"])
    found = json.loads(done.output)
    assert (found["verdict"], found["unclaimed"]) == ("racy", {"GEN": "right generation"})
    assert {row["kind"] for row in found["totals"]} == {"GEN"}


@pytest.mark.parametrize(
    ("design", "seed", "kinds"),
    [
        ("vllm-offloading-connector", "1", set()),  # nothing happened: nothing is to be said
        ("vllm-no-store-pin", "0", {"GEN"}),  # claimed, and not kept
        ("vllm-after-46278", "0", {"WAR"}),
        ("kvsan-default", "0", set()),
    ],
)
def test_of_what_is_claimed_nothing_is_said(design: str, seed: str, kinds: set[str]) -> None:
    policy = "starve:compute" if "WAR" in kinds else "fair"
    given = ["run", *SMALL, "--design", design, "--seed", seed, "--policy", policy]
    found = json.loads(CliRunner().invoke(cli, [*given, "--format", "json"]).output)
    assert found["unclaimed"] == {}
    assert kinds <= {row["kind"] for row in found["totals"]}
    assert "does not claim" not in CliRunner().invoke(cli, given).output


def test_in_a_bisection_it_is_said_once() -> None:
    done = CliRunner().invoke(cli, ["bisect", *SMALL, "--design", "vllm-offloading-connector", "--policy", "fair"])
    assert " ".join(done.output.split()).count(SAYS) == 1


def test_hazards_of_another_pool_are_not_the_designs() -> None:
    trial = Trial(design=load("vllm-offloading-connector"), requests=60, rounds=1)
    rounds = [play(trial, 0)]
    assert unclaimed(trial, rounds) == {"GEN": Claim.RIGHT_GENERATION}
    assert unclaimed(replace(trial, design=None), rounds) == {}
    of_the_host_pool = replace(load("host-blocks"), claims=frozenset())
    assert unclaimed(replace(trial, design=of_the_host_pool), rounds) == {}


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
