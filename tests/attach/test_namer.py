"""Names of streams in C: by device and handle, by PyTorch's own number for a stream, and of the current one."""

from __future__ import annotations

import time
from typing import Any

import pytest

from attach.test_packed import Began
from kvsan.checker.attach import native
from kvsan.checker.attach.lines import RECORD, WAIT

HOT = native.HOT
pytestmark = pytest.mark.skipif(HOT is None, reason="the C hooks are not built (make native), or KVSAN_NATIVE=0")


def test_a_stream_that_is_another_object_each_time_has_its_name() -> None:
    """As PyTorch's current one: by device and handle, and Python is asked for those that are not known so."""
    began = Began(clock=time.perf_counter_ns)
    recorder, met, asked = began.recorder, {(0, 7): "s7", (1, 7): "s9"}, list[Any]()

    def other(stream: Any) -> str:
        asked.append(stream)
        return "other"

    namer = HOT.Namer(recorder, None, None, met.get, other)

    class Stream:
        def __init__(self, **fields: Any) -> None:
            vars(self).update(fields)

    hook = HOT.Hook(
        *("wait_stream", lambda on, other: None, lambda on, other: None, recorder, HOT.Counter(), "w", HOT.Here()),
        *(namer, recorder._events),
    )
    odd = (
        Stream(cuda_stream="7", device_index=0),
        Stream(cuda_stream=7),
        Stream(cuda_stream=8, device_index=0),
        Stream(),
    )
    for _ in range(3):
        hook(Stream(cuda_stream=7, device_index=0), Stream(cuda_stream=7, device_index=1))
    assert asked == []
    for stream in odd:
        hook(stream, Stream(cuda_stream=7, device_index=1))
    assert asked == list(odd)
    met[0, 7] = "s70"
    recorder.streams_gone += 1
    hook(Stream(cuda_stream=7, device_index=0), Stream(cuda_stream=7, device_index=1))
    waits = [line[2] for line in began.arrived() if line[0] == WAIT]
    assert waits == ["s7"] * 3 + ["other"] * 4 + ["s70"]
    assert {line[2] for line in began.beside.arrived if line[0] == RECORD} == {"s9"}


class _Numbered(HOT.State if HOT is not None else object):  # type: ignore[misc]
    """As a `torch.cuda.Stream`: its number and device stand in its own memory, and C tells its handle."""

    if HOT is not None:
        stream_id, device_index, cuda_stream = HOT.State.batch, HOT.State.blocked, HOT.State.now

    @classmethod
    def made(cls, number: int, handle: int, device: int = 0) -> Any:
        made = cls()
        made.stream_id, made.device_index, made.cuda_stream = number, device, handle
        return made


def _waits(kind: Any, streams: Any, gone_before: Any = ()) -> list[str]:
    """The names that streams have, each waiting for one of another class."""
    began = Began(clock=time.perf_counter_ns)
    recorder = began.recorder
    namer = HOT.Namer(recorder, None, None, MET.get, lambda stream: "other")
    hook = HOT.Hook(
        *("wait_stream", lambda on, other: None, lambda on, other: None, recorder, HOT.Counter(), "w", HOT.Here()),
        *(namer, recorder._events),
    )
    other = type("Stream", (), {"cuda_stream": 99, "device_index": 0})
    for at, numbers in enumerate(streams):
        recorder.streams_gone += at in gone_before
        hook(kind.made(*numbers), other())
    return [line[2] for line in began.arrived() if line[0] == WAIT]


MET = {(device, handle): f"s{device}.{handle}" for device in (0, 1) for handle in (*range(10, 30), 99)}


def test_a_stream_of_pytorch_is_known_by_its_number() -> None:
    """Its handle is not asked again once that is known: here it says another one later, and nobody hears of it."""
    known = [(3, 13), (3, 13), (4, 14), (4, 14), (3, 16, 1), (3, 16, 1)]
    later = [(3, 20), (4, 20), (3, 20, 1), (4, 20, 1)]
    assert _waits(_Numbered, known + later) == [
        *("s0.13", "s0.13", "s0.14", "s0.14", "s1.16", "s1.16"),
        *("s0.13", "s0.14", "s1.16", "s1.20"),
    ]


def test_numbers_of_streams_are_forgotten_when_a_stream_was_destroyed() -> None:
    streams = [(3, 13), (3, 13), (3, 14), (3, 14), (3, 14)]
    assert _waits(_Numbered, streams, gone_before={3}) == ["s0.13"] * 3 + ["s0.14"] * 2


def test_more_streams_than_there_is_room_for_have_their_names() -> None:
    streams = [(number, number + 10) for number in (0, 1, 2, 3, 4, 5, 0, 5, 4, 3, 2, 1, 0)]
    assert _waits(_Numbered, streams) == [f"s0.{handle}" for _, handle in streams]


def test_streams_whose_handle_is_told_in_python_are_asked_each_time() -> None:
    """A subclass may say another handle than its number stands for; so may one whose fields are no numbers in place."""

    class Told(_Numbered):
        @property
        def cuda_stream(self) -> Any:
            return self.now

        @cuda_stream.setter
        def cuda_stream(self, value: Any) -> None:
            self.now = value

    class Elsewhere(_Numbered):
        stream_id = 3

        @classmethod
        def made(cls, number: int, handle: int, device: int = 0) -> Any:
            made = cls()
            made.device_index, made.cuda_stream = device, handle
            return made

    class Asked(_Numbered):
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    for kind in (Told, Elsewhere, Asked):
        streams = [(3, 13), (3, 13), (3, 14), (4, 14)]
        assert _waits(kind, streams) == ["s0.13", "s0.13", "s0.14", "s0.14"], kind


@pytest.mark.parametrize(("devices", "asked"), [(1, 1), (2, 4), (0, 4), (None, 4), ("1", 4), (ValueError, 4)])
def test_which_device_is_current_is_not_asked_where_there_is_one(devices: Any, asked: int) -> None:
    began, calls, counts = Began(clock=time.perf_counter_ns), list[str](), list[str]()

    def device() -> int:
        calls.append("device")
        return 0

    def count() -> Any:
        counts.append("count")
        if devices is ValueError:
            raise devices
        return devices

    given = () if devices is None else (count,)
    namer = HOT.Namer(began.recorder, device, lambda device: 7, lambda key: f"s{key}", lambda stream: "other", *given)
    assert [namer.name(None) for _ in range(4)] == ["s(0, 7)"] * 4
    assert len(calls) == asked
    assert len(counts) == (devices is not None)
