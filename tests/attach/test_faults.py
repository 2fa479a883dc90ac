"""A fault inside kvsan: the engine goes on, kvsan turns itself off and says so, the verdict is Incomplete."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attach.stand_ins import World
from attach.test_session import quiet, run, said
from kvsan.checker import tracefile
from kvsan.checker.attach.torch import install
from kvsan.checker.session import Session


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("injected")


def no_space(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


Break = Callable[[Session, pytest.MonkeyPatch], None]


def in_the_check(session: Session, patch: pytest.MonkeyPatch) -> None:
    assert session.check is not None
    patch.setattr(session.check.online, "feed", broken)


def in_the_clocks(session: Session, patch: pytest.MonkeyPatch) -> None:
    assert session.check is not None
    patch.setattr(session.check.online.clocks, "wait", broken)


def in_the_ring(session: Session, patch: pytest.MonkeyPatch) -> None:
    assert session._ring is not None
    patch.setattr(type(session._ring), "take", broken)


def on_the_disk(session: Session, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tracefile, "_write", no_space)
    patch.setattr(tracefile, "FLUSH", 10)


def in_the_header(session: Session, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TRACE, "_write_header", no_space)
    patch.setattr(tracefile, "FLUSH", 10)
    session.recorder.pool("one more", 1)


TRACE = tracefile.TraceFile


@pytest.mark.parametrize("harm", [in_the_check, in_the_clocks, in_the_ring, on_the_disk, in_the_header])
def test_the_engine_goes_on_and_the_verdict_is_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Break
) -> None:
    session = Session(quiet(tmp_path, trace=str(tmp_path / "t.jsonl")))
    run(session, fenced=True)
    harm(session, monkeypatch)
    run(session, fenced=True)
    run(session, fenced=False)  # what it would have found had it been on
    assert not session.recorder.on
    assert "FAULT in kvsan itself" in said(tmp_path)
    assert said(tmp_path).count("FAULT") == 1
    seen = session.close()
    assert seen.verdict.name == "incomplete"
    assert "turned itself off" in getattr(seen.verdict, "why", ("",))[0]
    assert session.recorder.lock.acquire(blocking=False)


def test_hazards_from_before_a_fault_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(quiet(tmp_path))
    run(session, fenced=False)
    in_the_check(session, monkeypatch)
    run(session, fenced=False)
    seen = session.close()
    assert seen.verdict.name == "racy"
    assert "turned itself off" in getattr(seen.verdict, "why", ("",))[0]


def test_a_full_disk_at_the_very_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(quiet(tmp_path, trace=str(tmp_path / "t.jsonl")))
    run(session, fenced=True)
    monkeypatch.setattr(tracefile, "_write", no_space)
    assert session.close().verdict.name == "incomplete"


@pytest.mark.parametrize("where", ["name", "surface"])
def test_a_fault_in_a_hook_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The call is made, exactly once, and its result or its exception is the engine's."""
    session, world = Session(quiet(tmp_path)), World()
    calls = install(session, world.surface())
    made: list[int] = []
    monkeypatch.setattr(world, "call", lambda: made.append(1))
    if where == "name":
        monkeypatch.setattr(calls, "name", broken)
    else:
        monkeypatch.setattr(session.recorder, "now", broken)
    side, event = world.Stream(7), world.Event()
    event.record()
    assert len(made) == 1
    assert not session.recorder.on
    side.wait_event(event)
    side.wait_stream(world.default)
    event.synchronize()
    side.synchronize()
    world.synchronize()
    assert event.query() is True
    assert event.elapsed_time(event) == 1.0
    assert len(made) == 9
    assert session.close().verdict.name == "incomplete"
    assert "__kvsan_wraps__" not in vars(vars(world.Event)["record"])


@pytest.mark.parametrize("call", ["Stream.synchronize", "synchronize", "Event.query", "Event.synchronize"])
def test_a_fault_before_a_blocking_call_does_not_keep_it_from_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    session, world = Session(quiet(tmp_path)), World()
    calls = install(session, world.surface())
    monkeypatch.setattr(calls, "name", broken)
    monkeypatch.setattr(session.recorder, "now", broken)
    made: list[int] = []
    monkeypatch.setattr(world, "call", lambda: made.append(1))
    {
        "Stream.synchronize": world.default.synchronize,
        "synchronize": world.synchronize,
        "Event.query": world.Event().query,
        "Event.synchronize": world.Event().synchronize,
    }[call]()
    assert made == [1]
    assert not session.recorder.on
    session.close()
