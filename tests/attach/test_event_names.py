"""Names of events that are used again and again, and of others that come to lie where they have lain.

What an event is called is asked of the event each time. To find it by its address would save a quarter of a record's
cost, and needs somebody who says when the event has ended: a weak reference must not be it (`names.py`), and what the
event carries may live on without it.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from attach.native_programs import Elsewhere
from kvsan.checker.attach.lines import DROP, RECORD
from kvsan.checker.attach.patches import Patches
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.torch.calls import Calls
from kvsan.checker.attach.torch.surface import Surface

OFTEN = 40


class Event:
    """As PyTorch's: a class of Python, whose instances have a dict and can be referred to weakly."""

    def record(self, stream: Any = None) -> None: ...


class Unreferred:
    """One whose instances cannot be referred to weakly."""

    __slots__ = ("__dict__",)

    def record(self, stream: Any = None) -> None: ...


class Stream:
    """The current one."""

    cuda_stream, device_index = 7, 0


class Hooked:
    """Events whose records are logged."""

    def __init__(self) -> None:
        self.beside, stream = Elsewhere(), Stream()
        self.recorder = Recorder([])
        self.recorder.listen((), batch=512, beside=self.beside)
        surface = Surface((Event, Unreferred), (Stream,), current_stream=lambda: stream, current=lambda: (0, 7))
        self.calls = Calls(self.recorder, surface, Patches())
        self.calls.install()

    def __enter__(self) -> Hooked:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.uninstall()

    def name(self, event: Any, times: int = 1) -> str:
        """What its records are logged under, which is one name."""
        before = len(self.lines())
        for _ in range(times):
            event.record()
        names = [line[3] for line in self.lines()[before:] if line[0] == RECORD]
        assert len(names) == times
        (name,) = set(names)
        assert isinstance(name, str)
        return name

    def lines(self) -> list[Any]:
        self.recorder.settle_up()
        assert self.recorder.fault_text is None
        return self.beside.arrived

    def dropped(self) -> list[str]:
        return [line[2] for line in self.lines() if line[0] == DROP]


@pytest.mark.parametrize("kind", [Event, Unreferred])
def test_an_event_keeps_its_name_however_often_it_is_used(kind: type) -> None:
    with Hooked() as hooked:
        events = [kind() for _ in range(OFTEN)]
        names = [hooked.name(event, OFTEN) for event in events]
        assert len(set(names)) == OFTEN
        assert [hooked.name(event) for event in reversed(events)] == names[::-1]
        assert hooked.dropped() == []


def successors(hooked: Hooked, kind: type, keep: Callable[[Any], Any]) -> list[Any]:
    """Events, one after the other, each of which has a name of its own; some lie where another one has lain."""
    names, addresses, kept = list[str](), list[int](), []
    for _ in range(OFTEN):
        event = kind()
        names.append(hooked.name(event, OFTEN))
        addresses.append(id(event))
        kept.append(keep(event))
        assert hooked.name(event) == names[-1]
        del event
    assert len(set(names)) == OFTEN
    if len(set(addresses)) == OFTEN:
        pytest.skip("no event came to lie where one had lain")
    return kept


@pytest.mark.parametrize("kind", [Event, Unreferred])
def test_an_event_at_the_address_of_one_that_has_ended_is_another(kind: type) -> None:
    with Hooked() as hooked:
        successors(hooked, kind, lambda event: None)
        assert len(hooked.dropped()) == OFTEN


def keep_dict(event: Any) -> Any:
    return vars(event)


def keep_tag(event: Any) -> Any:
    return list(vars(event).values())


KEEP: list[Callable[[Any], Any]] = [keep_dict, keep_tag, copy.copy]


@pytest.mark.parametrize("kind", [Event, Unreferred])
@pytest.mark.parametrize("keep", KEEP)
def test_so_it_is_where_what_the_first_one_carried_lives_on(keep: Callable[[Any], Any], kind: type) -> None:
    with Hooked() as hooked:
        kept = successors(hooked, kind, keep)
        copies = [each for each in kept if isinstance(each, kind)]
        assert len({hooked.name(each, OFTEN) for each in copies}) == len(copies)


def test_an_event_that_loses_what_it_carries_is_another() -> None:
    with Hooked() as hooked:
        event = Event()
        before = hooked.name(event, OFTEN)
        vars(event).clear()
        assert hooked.name(event, OFTEN) != before
        assert hooked.dropped() == [before]


def test_an_event_that_comes_back_from_its_end_keeps_its_name() -> None:
    back = []

    class Returning(Event):
        def __del__(self) -> None:
            back.append(self)

    with Hooked() as hooked:
        event = Returning()
        before = hooked.name(event, OFTEN)
        del event
        assert hooked.name(back[0], OFTEN) == before


def test_names_of_events_go_with_their_session() -> None:
    """An event that lives on keeps nothing of it."""
    event = Event()
    with Hooked() as hooked:
        hooked.name(event, OFTEN)
        names = weakref.ref(hooked.recorder)
    vars(event).clear()
    del hooked
    gc.collect()
    assert names() is None
