"""What a pause leaves of the hooks: nothing that an engine runs; and what comes back after it."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from attach.stand_ins import Log
from kvsan.checker.attach.handoff import HandingList
from kvsan.checker.attach.ledger import Hook
from kvsan.checker.attach.patches import Patches
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.vllm.handoff import Plan, Queue


class Base:
    """What an engine has."""

    def call(self) -> str:
        return "base"


class Derived(Base):
    """And inherits."""


def wrapped(original: Any) -> Any:
    def call(self: Any) -> str:
        return f"wrapped {original(self)}"

    return call


def test_lifted_and_put_back() -> None:
    patches, module = Patches(), SimpleNamespace(queue="theirs")
    patches.wrap(Derived, "call", wrapped)
    patches.replace(module, "queue", "ours")
    for _ in range(2):
        patches.lift()
        patches.lift()
        assert (Derived().call(), "call" in vars(Derived), module.queue) == ("base", False, "theirs")
        patches.put_back()
        patches.put_back()
        assert (Derived().call(), Base().call(), module.queue) == ("wrapped base", "base", "ours")
    patches.undo()
    assert (Derived().call(), "call" in vars(Derived), module.queue) == ("base", False, "theirs")


@pytest.mark.parametrize("back", [True, False])
def test_what_is_wrapped_in_a_pause_comes_with_its_end(back: bool) -> None:
    patches = Patches()
    patches.lift()
    patches.wrap(Derived, "call", wrapped)
    assert Derived().call() == "base"
    if back:
        patches.put_back()
        assert Derived().call() == "wrapped base"
    patches.undo()
    assert (Derived().call(), "call" in vars(Derived)) == ("base", False)


def kinds(log: Log) -> list[str]:
    return [type(op).__name__.lower() for op in log.ops]


def test_a_list_in_a_pause_is_a_list() -> None:
    log = Log()
    recorder = Recorder([log])
    handing = HandingList(recorder, [0])
    handing.append([1])
    handing.append([2])
    assert kinds(log) == ["put", "put"]
    handing.pause()
    assert isinstance(handing, HandingList)
    for name in ("append", "pop", "__getitem__", "__iter__", "remove", "sort"):
        assert getattr(type(handing), name) is getattr(list, name)
    handing.append([3])
    assert handing.pop(0) == 0
    assert handing[0] == [1]
    assert kinds(log) == ["put", "put"]
    handing.resume()
    assert list(handing) == [[1], [2], [3]]
    assert kinds(log) == ["put", "put", "get", "get"], "what was put before is known; what was put meanwhile is not"
    handing.append([4])
    handing.pop()
    assert kinds(log)[4:] == ["put", "get"]
    assert recorder.ledger.edges == 0


def test_an_entry_that_came_back_in_a_pause_has_the_token_of_none_but_itself() -> None:
    log = Log()
    handing = HandingList(Recorder([log]))
    one, other = ["same"], ["same"]
    handing.append(one)
    handing.pause()
    handing[0] = other
    handing.resume()
    assert handing[0] is other
    assert kinds(log) == ["put"]


def test_a_getter_that_waits_over_a_pause_gets_the_item() -> None:
    log, plan, got = Log(), Plan(), queue.SimpleQueue[Any]()
    recorder = Recorder([log])
    inner: Any = queue.SimpleQueue()
    queued = Queue(recorder, inner, plan, Hook("put", "q", True), Hook("get", "q", True))

    def take() -> None:
        for _ in range(3):
            got.put(queued.get())

    getter = threading.Thread(target=take)
    getter.start()
    queued.pause()
    assert getattr(queued.put, "__self__", None) is inner, "the engine's thread runs nothing of ours"
    queued.put((1, 2, "put in a pause"))
    assert got.get(timeout=10) == (1, 2, "put in a pause")
    queued.resume()
    queued.put("after")
    assert got.get(timeout=10) == "after"
    assert kinds(log) == ["put", "get"]
    queued.put(None)
    assert got.get(timeout=10) is None
    getter.join(10)


def test_what_was_queued_before_a_pause_comes_out_whole_in_it() -> None:
    log = Log()
    recorder = Recorder([log])
    queued = Queue(recorder, queue.SimpleQueue(), Plan(), Hook("put", "q", True), Hook("get", "q", True))
    queued.put("before")
    queued.pause()
    recorder.on = False  # as whoever pauses says
    assert queued.get() == "before"
    assert kinds(log) == ["put"]
