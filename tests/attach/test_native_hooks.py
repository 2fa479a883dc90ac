"""The hooks in C against the same hooks in Python: random programs of an engine, run once with each, leave the same lines,
the same counts, the same faults and the same answers; and what C holds on to is let go.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attach.native_programs import PROGRAMS, Machine, Run, played
from attach.vllm import fake
from kvsan.checker.attach import native

HOT = native.HOT
pytestmark = pytest.mark.skipif(HOT is None, reason="the C hooks are not built (make native), or KVSAN_NATIVE=0")
TESTS = Path(__file__).resolve().parent.parent


def test_hooks_are_c_s_and_python_s() -> None:
    """The comparison below compares what it says."""
    for language, kind in (("python", "function"), ("c", "Hook")):
        with Run(language, 1) as run:
            hooked = (run.world.Event.record, run.world.Stream.wait_stream, fake.BlockPool.touch)
            hooked += (fake.OlderRunner._model_forward, fake.NewerRunner.execute_model, fake.Scheduler.schedule)
            assert {type(each).__name__ for each in hooked} == {kind}


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(PROGRAMS, st.sampled_from([1, 3, 512]))
def test_c_and_python_say_the_same(program: list[tuple[str, int, int]], batch: int) -> None:
    in_python, in_c = (played(language, batch, program) for language in ("python", "c"))
    for key, value in in_python.items():
        assert in_c[key] == value, key


def test_c_and_python_alone_say_the_same() -> None:
    """Two processes: names, lock, queue and lines in Python, too."""
    said = {}
    for asked in ("0", "1"):
        path = os.pathsep.join([str(TESTS), *sys.path])
        done = subprocess.run(
            [sys.executable, "-m", "attach.native_programs", "0", "40"],
            env={**os.environ, "KVSAN_NATIVE": asked, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        said[asked] = done.stdout.splitlines()
    for in_python, in_c in zip(said["0"], said["1"], strict=True):
        assert in_c == in_python
