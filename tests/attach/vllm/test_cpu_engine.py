"""vLLM's own engine, without a GPU, with kvsan attached (`cpu_engine`): what is reported, and what its fence removes.

    KVSAN_VLLM=/folder/with/v0.23.0/and/v0.24.0 KVSAN_VLLM_PYTHON=/its/python pytest -m vllm

The folders are `pip install --no-deps --target` of vLLM's wheels; the interpreter has torch and what vLLM needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("KVSAN_VLLM_PYTHON", sys.executable)
FOLDERS = Path(os.environ.get("KVSAN_VLLM", "/nowhere"))

pytestmark = pytest.mark.vllm


def runs(version: str, *options: str, seeds: int = 40) -> list[dict[str, Any]]:
    folder = FOLDERS / f"v{version}"
    if not (folder / "vllm").is_dir():
        pytest.skip(f"vLLM {version} is not there: KVSAN_VLLM names the folder that holds v{version}")
    paths = [str(TESTS), *(str(TESTS.parent / part) for part in ("model", "runtime", "checker"))]
    command = [PYTHON, "-W", "ignore", "-m", "attach.vllm.cpu_engine", "--vllm", str(folder), "--seeds", str(seeds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([*command, *options], capture_output=True, text=True, env=environment, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == seeds, done.stderr[-2000:]
    for run in found:
        assert not run.get("failed"), done.stderr[-2000:]
        assert run["same"] or "--apart" in options, run  # the live check and the trace say the same
        assert not run["why"], run["why"]
    return found


def pairs(found: list[dict[str, Any]]) -> Counter[str]:
    out: Counter[str] = Counter()
    for run in found:
        out.update(run["hazards"].keys())
    return out


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_0_24_0_loads_over_what_a_forward_reads(runner: str) -> None:
    found = pairs(runs("0.24.0", "--runner", runner))
    assert set(found) <= {"WAR forward→load", "WAW forward→load"}
    assert found["WAR forward→load"] >= 3
    assert found["WAW forward→load"] >= 1


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_0_24_0_is_clean_with_the_load_fence(runner: str) -> None:
    found = runs("0.24.0", "--runner", runner, "--fence", "load")
    assert all(run["verdict"] == "clean" for run in found)


def test_processes_apart_and_their_logs_merged() -> None:
    found = pairs(runs("0.24.0", "--apart"))
    assert set(found) <= {"WAR forward→load", "WAW forward→load"}
    assert found["WAR forward→load"] >= 1
    fenced = runs("0.24.0", "--apart", "--fence", "load", seeds=20)
    assert all(run["verdict"] == "clean" for run in fenced)


RAW, WAR, WAW = "RAW forward→store", "WAR forward→load", "WAW forward→load"


@pytest.mark.parametrize(
    ("fence", "expected"),
    [
        ("none", {RAW, WAR, WAW}),
        ("store", {RAW, WAR, WAW}),  # RAW by the source order `any` alone
        ("load", {RAW}),
        ("all", {RAW}),
        ("fixed", set()),
    ],
)
def test_0_23_0_with_each_fence(fence: str, expected: set[str]) -> None:
    assert set(pairs(runs("0.23.0", "--fence", fence, seeds=20))) == expected
