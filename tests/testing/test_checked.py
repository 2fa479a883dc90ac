"""`checked()`, `allow` and simulated devices together: who hears what, and what fails."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kvsan.checker import access, allow, register_pool
from kvsan.checker.options import Options, OptionsError
from kvsan.checker.report.session import summary
from kvsan.checker.session import Session, current, start, start_if_asked
from kvsan.checker.suppressions import allowance
from kvsan.checker.testing import HazardsFound, NotChecked, checked, simulated_cuda

ROOT = Path(__file__).resolve().parents[2]


def engine(cuda: Any, *, fenced: bool, blocks: tuple[int, ...] = (1, 2)) -> None:
    """A forward reads blocks, then a load on its own stream overwrites them."""
    register_pool(None, 8, "gpu")
    load = cuda.Stream()
    with access("forward", reads={"gpu": blocks}):
        pass
    if fenced:
        load.wait_stream(cuda.current_stream())
    with cuda.stream(load), access("load", writes={"gpu": blocks}):
        pass


def racy(**given: Any) -> None:
    with checked(**given), simulated_cuda(torch=False) as cuda:
        engine(cuda, fenced=False)


# ── checked ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hazard_fails_with_the_report() -> None:
    with pytest.raises(HazardsFound, match="WAR on gpu 1-2") as found:
        racy()
    assert "record an event on default0 after op 0" in str(found.value)
    assert "seed: 0" in str(found.value)
    assert found.value.summary.verdict.name == "racy"


def test_a_clean_run_passes() -> None:
    with checked() as kvsan, simulated_cuda(torch=False) as cuda:
        engine(cuda, fenced=True)
    assert kvsan.summary is not None
    assert kvsan.summary.verdict.name == "clean"


@pytest.mark.parametrize("outside", [True, False])
def test_the_device_may_be_there_before(outside: bool) -> None:
    with simulated_cuda(torch=False) as cuda:
        for _ in range(2):  # and the next one hears it too
            with pytest.raises(HazardsFound), checked():
                engine(cuda, fenced=False)
            with checked() as kvsan:
                engine(cuda, fenced=True)
            assert kvsan.judged().verdict.name == "clean"


def test_each_hears_its_own() -> None:
    with checked() as outer, simulated_cuda(torch=False) as cuda:
        engine(cuda, fenced=True)
        with pytest.raises(HazardsFound), outer.example():
            engine(cuda, fenced=False)
        engine(cuda, fenced=True, blocks=(5,))
    assert outer.judged().verdict.name == "clean"
    assert outer.judged().ops == 2 * 4 + 2  # two records were dropped


def test_a_run_that_saw_nothing_says_so() -> None:
    with pytest.raises(NotChecked, match="no access was logged"), checked():
        pass
    with checked(incomplete="accept") as kvsan:
        pass
    assert kvsan.judged().verdict.name == "incomplete"


def test_who_only_holds_examples_is_not_judged() -> None:
    with checked() as outer, simulated_cuda(torch=False) as cuda, outer.example():
        engine(cuda, fenced=True)


def test_copies_that_went_unseen_are_incomplete() -> None:
    with checked(judge=False) as kvsan, simulated_cuda(torch=False) as cuda:
        engine(cuda, fenced=True)
        kvsan.recorder.unseen(copies=1, what="a copy")
    assert isinstance(kvsan.failure(), NotChecked)
    assert "1 copies were noticed" in str(kvsan.failure())


def test_an_exception_of_the_body_goes_on_with_the_report_as_its_note() -> None:
    def breaks(cuda: Any) -> None:
        engine(cuda, fenced=False)
        raise KeyError("mine")

    with pytest.raises(KeyError) as found, checked(), simulated_cuda(torch=False) as cuda:
        breaks(cuda)
    assert "WAR on gpu 1-2" in found.value.__notes__[0]
    with pytest.raises(KeyError) as found, checked():
        raise KeyError("mine")
    assert not hasattr(found.value, "__notes__")


def test_options_are_those_of_debug_mode(tmp_path: Any) -> None:
    trace = tmp_path / "run.jsonl"
    with pytest.raises(HazardsFound):
        racy(options=Options(log_path=os.devnull, incident=0, trace=str(trace)))
    assert trace.exists()
    with pytest.raises(OptionsError, match="accepted: fail or accept"):
        racy(incomplete="perhaps")


def test_a_child_of_a_watched_process_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reports go where those of a test go: nowhere, and not to `/dev/null.123`."""
    monkeypatch.setenv("KVSAN_FIRST_PROCESS", "1")
    with pytest.raises(HazardsFound):
        racy()
    assert not Path(f"{os.devnull}.{os.getpid()}").exists()


def test_it_is_the_session_that_start_gives() -> None:
    assert current() is None
    with checked(incomplete="accept") as kvsan:
        assert start() is start_if_asked() is current() is kvsan.session
    assert current() is None
    assert start_if_asked() is None


def test_two_torches_in_one_session_are_refused() -> None:
    def again() -> None:
        with simulated_cuda(torch=False):
            pass

    wrong = pytest.raises(RuntimeError, match="one simulated device at a time")
    with checked(incomplete="accept"), simulated_cuda(torch=False), wrong:
        again()


def test_the_replay_holds_seed_answers_and_notes() -> None:
    with checked(seed=5) as kvsan, simulated_cuda(torch=False) as cuda:
        engine(cuda, fenced=True)
        cuda.Stream().record_event().query()
        kvsan.note("schedule", "launch see")
    assert kvsan.replay() == {"seed": "5", "choices": cuda.choices, "schedule": "launch see"}
    assert len(cuda.choices) == 1


# ── allow ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_allowed_hazard_is_counted_and_fails_nothing() -> None:
    with checked() as kvsan, simulated_cuda(torch=False) as cuda, allow(reason="known: issue 1"):
        engine(cuda, fenced=False)
    assert kvsan.allowed() == {"known: issue 1": 2}
    assert "allowed: 2 blocks by test_checked.py:" in summary(kvsan.judged())
    assert "(known: issue 1)" in summary(kvsan.judged())


def test_after_it_a_hazard_fails_again() -> None:
    with checked(judge=False) as kvsan, simulated_cuda(torch=False) as cuda:
        with allow(reason="here"):
            engine(cuda, fenced=False)
        assert kvsan.failure() is None
        engine(cuda, fenced=False)  # the same places in code, the same blocks
    assert kvsan.allowed() == {"here": 2}
    assert isinstance(kvsan.failure(), HazardsFound)
    assert kvsan.judged().findings[0].blocks == 2


def test_before_it_a_hazard_fails() -> None:
    with checked(judge=False) as kvsan, simulated_cuda(torch=False) as cuda:
        engine(cuda, fenced=False)
        with allow(reason="too late"):
            pass
    assert isinstance(kvsan.failure(), HazardsFound)


def test_only_what_is_described_is_allowed() -> None:
    for kind, allowed in (("WAR", True), ("WA*", True), ("RAW", False)):
        with checked(judge=False) as kvsan, simulated_cuda(torch=False) as cuda, allow(reason="x", kind=kind):
            engine(cuda, fenced=False)
        assert (kvsan.failure() is None) == allowed


def test_it_holds_for_every_thread() -> None:
    with checked() as kvsan, simulated_cuda(torch=False) as cuda, allow(reason="a copy thread"):
        thread = threading.Thread(target=lambda: engine(cuda, fenced=False))
        thread.start()
        thread.join()
    assert kvsan.allowed() == {"a copy thread": 2}


def test_nested_ones_count_for_the_inner() -> None:
    with checked() as kvsan, simulated_cuda(torch=False) as cuda, allow(reason="outer"):
        with allow(reason="inner", kind="WAR"):
            engine(cuda, fenced=False)
        engine(cuda, fenced=False, blocks=(6,))
    assert kvsan.allowed() == {"inner": 2, "outer": 1}


def test_it_counts_nothing_where_there_is_nothing() -> None:
    with checked() as kvsan, simulated_cuda(torch=False) as cuda, allow(reason="x"):
        engine(cuda, fenced=True)
    assert kvsan.allowed() == {}
    assert "allowed" not in summary(kvsan.judged())


def test_halt_on_error_lets_it_pass() -> None:
    options = Options(log_path=os.devnull, incident=0, halt_on_error=True)
    with checked(options), simulated_cuda(torch=False) as cuda, allow(reason="x"):
        engine(cuda, fenced=False)


@pytest.mark.parametrize("reason", ["", "  "])
def test_a_reason_is_mandatory(reason: str) -> None:
    with pytest.raises(OptionsError, match=r"test_checked.py:\d+ gives no reason; accepted: allow\(reason="):
        allow(reason=reason).__enter__()
    with pytest.raises(TypeError):
        allow()  # type: ignore[call-arg]


def test_a_property_that_there_is_none() -> None:
    with pytest.raises(OptionsError, match='is "later" meant'), allow(reason="x", latr="load"):
        pass


def test_without_a_session_it_does_nothing() -> None:
    with allow(reason="nobody looks"):
        pass


DEBUG = """
from contextlib import nullcontext
from kvsan.checker import allow, session
debug = session.start(session.Options(incident=0))
recorder = debug.recorder
recorder.pool("gpu", 8)
one, two = recorder.stream(0, 0x10, name="compute"), recorder.stream(0, 0x20, name="load")
recorder.access("forward", on=one, reads={"gpu": [1, 2]})
with allow(reason="issue 7") if ALLOWED else nullcontext():
    recorder.access("load", on=two, writes={"gpu": [1, 2]})
"""


@pytest.mark.parametrize("allowed", [True, False])
def test_in_debug_mode(allowed: bool) -> None:
    """The process's own session: it ends as if there had been no hazard, and says so."""
    code = DEBUG.replace("ALLOWED", str(allowed))
    env = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("model", "runtime", "checker"))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if allowed else 66)
    assert ("allowed: 2 blocks by <string>:9: (issue 7)" in done.stderr) == allowed
    assert ("WAR on gpu 1-2" in done.stderr) != allowed


def test_what_needs_no_order_is_allowed_too() -> None:
    """A batch that names a block twice: allowed, then looked at again."""
    session = Session(Options(log_path=os.devnull, incident=0))
    recorder = session.recorder
    recorder.pool("gpu", 4)
    load = recorder.stream(0, 0x10, name="load")
    with session.allowing(allowance("here:1", {"kind": "BATCH"}, "a batch")):
        recorder.access("copy", on=load, writes={"gpu": [1, 1]}, batch=True)
    assert session.summary().verdict.name == "clean"
    assert [line.used for line in session.allowed()] == [1]
    recorder.access("copy", on=load, writes={"gpu": [1, 1]}, batch=True)
    assert session.close().verdict.name == "racy"
