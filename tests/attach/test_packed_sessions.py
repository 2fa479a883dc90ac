"""A recorder whose lines are packed, where packing one of them calls hooks, ends events, fails, or begins a session."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from attach.native_programs import Elsewhere, Run, Stop
from attach.test_packed import Began, Does, doing, raising
from kvsan.checker.attach import native
from kvsan.checker.attach.lines import ACCESS, ALLOC, DROP, FREE, GONE, NUMBERED, PUT, RECORD, SYNC

pytestmark = pytest.mark.skipif(native.HOT is None, reason="the C hooks are not built (make native), or KVSAN_NATIVE=0")


def _codes(lines: list[Any]) -> list[int]:
    return [line[0] for line in lines]


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_hooks_are_called_while_a_line_is_packed(counted: bool, fails: bool) -> None:
    """With the usual clock their lines are put in place, but not in the middle of another one."""
    with Run("c", 512, beside=True, counted=counted) as run:
        world, recorder = run.world, run.recorder
        one, two = world.Stream(7), world.Stream(9)
        one.wait_stream(two)  # their names are known
        world.Event().record()
        recorder.settle_up()
        began = len(run.beside.arrived)  # type: ignore[union-attr]
        assert run.beside is not None

        def inside() -> None:
            event = world.Event()
            event.record(one)
            event.query()
            event.synchronize()
            one.wait_stream(two)
            del event
            world.Event().record()
            if fails:
                raise KeyError("fails")

        event = world.Event()
        event.record()
        recorder.access("x", reads={"gpu": [1]}, step=doing(inside))
        event.record()
        recorder.settle_up()
        arrived = _codes(run.beside.arrived[began:])
        meanwhile = [RECORD, 4, SYNC, RECORD, 2, DROP, RECORD]
        if fails:
            assert "KeyError" in str(recorder.fault_text)
            assert arrived[:8] == [RECORD, *meanwhile]
        else:
            assert arrived[:10] == [RECORD, ACCESS, *meanwhile, RECORD]
            assert recorder.ops == sum(code <= NUMBERED for code in _codes(run.beside.arrived))
            assert recorder.fault_text is None


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("stays", [True, False])
def test_events_end_while_the_ends_of_others_are_put_in(counted: bool, stays: bool) -> None:
    with Run("c", 512, beside=True, counted=counted) as run:
        world, recorder = run.world, run.recorder
        assert run.beside is not None
        kept: list[Any] = []
        for _ in range(3):

            def inside() -> None:
                for _ in range(3):
                    event = world.Event()
                    event.record()
                    kept.extend([event] if stays else [])
                del event

            event = world.Event()
            event.record()
            recorder.settle_up()
            recorder.free("gpu", [Does(inside)])
            del event
            recorder.settle_up()  # its end comes behind the life, which is packed for it
        kept.clear()
        recorder.settle_up()
        lines = run.beside.arrived
        recorded, ended = ([line[at] for line in lines if line[0] == code] for code, at in ((RECORD, 3), (DROP, 2)))
        assert sorted(ended) == sorted(recorded)
        assert len(recorded) == 12
        assert recorder.ops == len(lines)
        assert recorder.fault_text is None


@pytest.mark.parametrize("beside", [True, False])
def test_a_session_begins_while_a_life_is_packed_for_the_next(beside: bool) -> None:
    began, other = Began(), Elsewhere()
    recorder = began.recorder
    given: dict[str, Any] = {"batch": 512, "beside": other} if beside else {}
    recorder.alloc("gpu", [Does(lambda: recorder.listen((), **given))])
    recorder.free("gpu", [1])
    recorder.settle_up()
    assert recorder.fault_text is None
    assert recorder.ops == 1
    assert _codes(other.arrived) == ([FREE] if beside else [])


@pytest.mark.parametrize("language", ["c", "python"])
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_session_begins_in_a_blocking_call(language: str, counted: bool, fails: bool) -> None:
    """What became of the call is no line of that session, which never had the call."""
    with Run(language, 512, beside=True, counted=counted) as run:
        other, event, world = Elsewhere(), run.world.Event(), run.world
        calls: tuple[Callable[[], Any], ...] = (event.synchronize, world.synchronize)
        for call in calls:

            def start_over() -> None:
                world.then = None
                run.recorder.listen((), batch=512, beside=other)
                run.recorder.put("new")
                world.fails = RuntimeError("CUDA error") if fails else None

            world.then = start_over
            run.see(call)
            world.fails = None
            run.recorder.settle_up()
            assert run.recorder.fault_text is None
        assert _codes(other.arrived) == [PUT, PUT]


def test_what_a_signal_raises_while_a_line_is_packed() -> None:
    """The line is lost, so kvsan is off: later ones would have other numbers there."""
    calls: tuple[Callable[[Any], Any], ...] = (
        lambda recorder: recorder.access("x", reads={"gpu": [1]}, step=raising(Stop())),
        lambda recorder: recorder.tell("x", raising(Stop())),
    )
    for fails in calls:
        began = Began()
        began.recorder.put("a")
        with pytest.raises(Stop):
            fails(began.recorder)
        assert not began.recorder.on
        assert "Stop in the way" in str(began.recorder.fault_text)
        began.recorder.put("b")
        assert _codes(began.arrived()) == [PUT]


@pytest.mark.parametrize("packed", [True, False])
def test_names_that_cannot_be_compared(packed: bool) -> None:
    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            raise KeyError("no")

    began = Began()
    if not packed:
        began.recorder._queue = deque()
    began.recorder.alloc("gpu", [1])
    began.recorder.alloc(Name("gpu"), [2])
    if packed:  # it is one name by what travels
        assert [line[2:4] for line in began.arrived()] == [["gpu", [1, 2]]]
    assert ("KeyError in alloc" in str(began.recorder.fault_text)) == (not packed)
    assert _codes(began.beside.arrived) == [ALLOC]


def test_lines_that_are_let_go_log() -> None:
    """By the end of what they held."""
    for _ in range(5):
        began, other = Began(), Elsewhere()
        recorder = began.recorder

        class Last:
            """Logs when it ends."""

            def __del__(self, recorder: Any = recorder) -> None:
                recorder.put("end")

        recorder.alloc("gpu", [Last()])
        recorder.listen((), batch=512, beside=other)
        recorder.put("new")
        recorder.settle_up()
        assert recorder.fault_text is None
        assert _codes(other.arrived)[-1] == PUT


def test_lives_that_cannot_be_packed() -> None:
    began = Began()
    recorder = began.recorder
    event: Any = Does(lambda: None)
    recorder.record("s", event)
    recorder.alloc("gpu", [raising(KeyError("odd"))])
    del event
    recorder.settle_up()
    assert not recorder.on
    assert "KeyError in alloc" in str(recorder.fault_text)
    assert recorder.waiting == 0


def test_what_is_told_and_cannot_be_packed() -> None:
    began = Began()
    began.recorder.put("a")
    began.recorder.tell("x", raising(KeyError("odd")))
    assert "KeyError in the way" in str(began.recorder.fault_text)
    assert _codes(began.beside.arrived) == [PUT]
    assert GONE not in _codes(began.beside.arrived)
