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
from types import SimpleNamespace
from typing import Any

import pytest

from attach.native_programs import Elsewhere
from kvsan.checker.attach.lines import DROP, RECORD
from kvsan.checker.attach.patches import Patches
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.torch.calls import Calls
from kvsan.checker.attach.torch.surface import Surface

OFTEN = 40
KINDS = ("Event", "Unreferred", "stand-in")


class Event:
    """As PyTorch's: a class of Python, whose instances have a dict and can be referred to weakly."""

    def record(self, stream: Any = None) -> None: ...


class Unreferred:
    """One whose instances cannot be referred to weakly."""

    __slots__ = ("__dict__",)

    def record(self, stream: Any = None) -> None: ...


class Unchanged:
    """One that cannot be changed in place, and whose instances have no dict: `torch.Event`."""

    __slots__ = ("__weakref__",)

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
        self.torch = SimpleNamespace(Event=Unchanged)
        surface = Surface(
            (Event, Unreferred),
            (Stream,),
            replaced=((self.torch, "Event"),),
            current_stream=lambda: stream,
            current=lambda: (0, 7),
        )
        self.calls = Calls(self.recorder, surface, Patches())
        self.calls.install()

    def __enter__(self) -> Hooked:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.uninstall()

    def kind(self, name: str) -> Any:
        return self.torch.Event if name == "stand-in" else {"Event": Event, "Unreferred": Unreferred}[name]

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


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_keeps_its_name_however_often_it_is_used(kind: str) -> None:
    with Hooked() as hooked:
        events = [hooked.kind(kind)() for _ in range(OFTEN)]
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


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_at_the_address_of_one_that_has_ended_is_another(kind: str) -> None:
    with Hooked() as hooked:
        successors(hooked, hooked.kind(kind), lambda event: None)
        assert len(hooked.dropped()) == OFTEN


def keep_dict(event: Any) -> Any:
    return vars(event)


def keep_tag(event: Any) -> Any:
    """What the event carries, in its dict or in a place of its own."""
    own = [getattr(event, name) for name in dir(event) if name.startswith("_kvsan_event_")]
    assert own
    return own


KEEP: list[Callable[[Any], Any]] = [keep_dict, keep_tag, copy.copy]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", KEEP)
def test_so_it_is_where_what_the_first_one_carried_lives_on(keep: Callable[[Any], Any], kind: str) -> None:
    with Hooked() as hooked:
        kept = successors(hooked, hooked.kind(kind), keep)
        copies = [each for each in kept if hasattr(each, "record")]
        assert len({hooked.name(each, OFTEN) for each in copies}) == len(copies)


def test_an_event_that_loses_what_it_carries_is_another() -> None:
    with Hooked() as hooked:
        event = Event()
        before = hooked.name(event, OFTEN)
        vars(event).clear()
        assert hooked.name(event, OFTEN) != before
        assert hooked.dropped() == [before]


def test_a_stand_in_has_a_place_for_its_name_beside_its_dict() -> None:
    with Hooked() as hooked:
        event = hooked.torch.Event()
        name = hooked.name(event, OFTEN)
        assert vars(event) == {}
        event.note = "an engine's own"
        assert vars(event) == {"note": "an engine's own"}
        assert weakref.ref(event)() is event
        before = hooked.recorder.event_names.attribute
        delattr(event, before)
        assert hooked.name(event, OFTEN) != name
        assert hooked.dropped() == [name]


def test_a_subclass_of_the_stand_in_names_its_events_too() -> None:
    with Hooked() as hooked:

        class Own(hooked.torch.Event):  # type: ignore[name-defined, misc]
            pass

        events = [kind() for kind in (Own, hooked.torch.Event, Event) for _ in range(3)]
        names = [hooked.name(event) for event in events]
        assert len(set(names)) == len(events)
        assert [hooked.name(event) for event in events] == names
        del events
        gc.collect()
        assert sorted(hooked.dropped()) == sorted(names)


def test_an_event_of_a_stand_in_of_another_session_has_a_name_in_this_one() -> None:
    with Hooked() as first:
        event = first.torch.Event()
        first.name(event)
    with Hooked() as second:
        event_too = second.torch.Event()
        second.recorder.record("compute", event)
        assert second.recorder.event(event) != second.name(event_too, OFTEN)
        assert second.recorder.event(event) == second.recorder.event(event)


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


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_events_go_with_their_session(kind: str) -> None:
    """An event that lives on keeps nothing of it."""
    with Hooked() as hooked:
        event = hooked.kind(kind)()
        hooked.name(event, OFTEN)
        names = weakref.ref(hooked.recorder)
        attribute = hooked.recorder.event_names.attribute
    delattr(event, attribute)
    del hooked
    gc.collect()
    assert names() is None
