"""`HandingList`'s methods in C against those in Python: the same answers, errors, tokens and counts, whatever else
happens to the list.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import heapq
import itertools
import pickle
import random
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from attach.hurried import hurried
from attach.stand_ins import Log
from attach.vllm import fake
from kvsan.checker.attach import native
from kvsan.checker.attach.handoff import HandingList
from kvsan.checker.attach.recorder import KvsanHazard, Recorder
from kvsan.model.ops import Get, Put

pytestmark = pytest.mark.skipif(native.HOT is None, reason="the C hooks are not built (make native), or KVSAN_NATIVE=0")


class PythonList(HandingList):
    """With the methods that C has in Python."""

    __slots__ = ()
    append, __getitem__, pop = HandingList._append, HandingList._look, HandingList._pop

    def resume(self) -> None:
        super().resume()
        self.__class__ = PythonList


class Index(int):
    """An int of a class of its own."""


class Indexed:
    """No int at all."""

    def __index__(self) -> int:
        return 1


class Wrong:
    """No index either."""

    def __index__(self) -> int:
        raise ValueError("wrong")


INDICES: tuple[Any, ...] = (
    *(0, 0, 0, 1, -1, -1, -2, 5, -6, 99, -99, 2**62, -(2**63), 2**63, 2**70, -(2**70)),
    *(True, False, Index(1), Index(-1), np.int64(0), Indexed(), Wrong()),
    *(None, "0", 1.0, slice(None), slice(0, 2), slice(-1, None), slice(9, 99), slice(None, None, -1)),
)


class Hazardous(Log):
    """Raises at the line that it is told to."""

    raises: BaseException | None = None

    def take(self, index: int, op: Any) -> None:
        super().take(index, op)
        error, self.raises = self.raises, None
        if error is not None:
            raise error


class Played:
    """A list, its recorder, and what was seen of both."""

    def __init__(self, kind: type[HandingList], hooked: bool) -> None:
        self.log = Hazardous()
        self.recorder = Recorder([self.log], clock=itertools.count(1).__next__)
        hook = self.recorder.ledger.hook
        self.given = hook("given") if hooked else None
        self.seen = hook("seen") if hooked else None
        self.list: Any = kind(self.recorder, [0, 1], given=self.given, seen=self.seen)
        self.saw: list[Any] = []

    def see(self, call: Callable[..., Any], *args: Any) -> None:
        try:
            found = call(*args)
        except Exception as error:
            words = str(error)
            found = type(error), words if "argument" not in words else "arguments"
        self.saw.append(list(found) if isinstance(found, list) else found)

    def end(self) -> Any:
        tokens = [token is not None for token in self.list._tokens]
        ops = [str(op) for op in self.log.ops]
        hooks = [each and each.count for each in (self.given, self.seen)]
        ledger = self.recorder.ledger
        seen = list(list.__iter__(self.list))
        return self.saw, seen, tokens, ops, hooks, ledger.edges, dict(ledger.words), self.recorder.fault_text


def step(played: Played, rng: random.Random, number: int) -> None:
    done, at, kind = played.list, rng.choice(INDICES), rng.randrange(40)
    see = played.see
    if kind < 10:
        see(done.append, number)
    elif kind < 16:
        see(lambda: done[at])
    elif kind < 20:
        see(done.pop, at)
    elif kind < 23:
        see(done.pop)
    elif kind == 23:
        see(*rng.choice(((done.pop, 1, 2), (done.append,), (done.append, 1, 2), (done.__getitem__,))))
    elif kind == 24:
        see(done.extend, [number, number])
    elif kind == 25:
        see(done.insert, at if type(at) is int else 0, number)
    elif kind == 26:
        see(done.__setitem__, at, [number] if isinstance(at, slice) else number)
    elif kind == 27:
        see(done.__delitem__, at)
    elif kind == 28:
        see(done.remove, rng.randrange(5))
    elif kind == 29:
        see(rng.choice((done.reverse, done.sort, done.clear, done.copy)))
    elif kind == 30:
        see(lambda: list(done))
    elif kind == 31:
        see(list.append, done, number)
    elif kind == 32:
        see(list.pop, done)
    elif kind == 33:
        see(list.clear, done)
    elif kind == 34:
        see(rng.choice((heapq.heapify, heapq.heappop)), done)
    elif kind == 36:
        done.pause()
        for _ in range(rng.randrange(4)):
            see(rng.choice((lambda: done.append(number), done.pop, lambda: done[0])))
        done.resume()
    elif kind == 37 and rng.random() < 0.1:
        played.log.raises = rng.choice((KvsanHazard(None, "hazard"), ValueError("a sink")))  # type: ignore[arg-type]
    elif kind == 38:
        played.recorder.on = not played.recorder.on and played.recorder.fault_text is None
    elif kind == 39:
        see(lambda: done == [1] or done.count(number) + len(done))


@pytest.mark.parametrize("seeds", [range(at, at + 50) for at in range(0, 400, 50)])
def test_c_and_python_say_the_same(seeds: range) -> None:
    for seed in seeds:
        ends = []
        for kind in (HandingList, PythonList):
            rng = random.Random(seed)
            played = Played(kind, hooked=seed % 2 == 0)
            for number in range(60):
                step(played, rng, number)
            ends.append(played.end())
        for in_c, in_python in zip(*ends, strict=True):
            assert in_c == in_python, seed


def test_the_methods_are_c_s_and_python_s() -> None:
    for name in ("append", "pop", "__getitem__"):
        assert type(vars(HandingList)[name]).__name__ == "method_descriptor"
        assert type(vars(PythonList)[name]).__name__ == "function"


def test_a_list_of_another_kind() -> None:
    """What C's methods are called on is theirs, or it is an error as ever."""
    hot = native.HOT
    for plain in ([1], type("Mine", (list,), {})([1])):
        for call in (lambda some: hot.hand_append(some, 1), lambda some: hot.hand_look(some, 0), hot.hand_pop):
            with pytest.raises(AttributeError):
                call(plain)
        assert plain == [1]
    for other in ((), None, 5, HandingList):
        with pytest.raises(TypeError):
            hot.hand_append(other, 1)
    bare: Any = HandingList.__new__(HandingList)
    for call in (lambda: bare.append(1), lambda: bare[0], bare.pop):
        with pytest.raises(AttributeError):
            call()


class Bare(HandingList):
    """With a dict of its own."""


def test_lists_of_two_classes_in_turns() -> None:
    """Where a class has its fields is remembered of one at a time; one may have them elsewhere."""

    class Late(HandingList):
        """Whose fields are found by a look-up."""

        _recorder = property(lambda self: recorder, lambda self, value: None)

    log = Log()
    recorder = Recorder([log])
    lists: list[Any] = [kind(recorder) for kind in (HandingList, Bare, Late, PythonList)]
    for number in range(40):
        for done in lists[number % 4 :] + lists[: number % 4]:
            done.append(number)
            assert done[-1] == number
            if number % 3:
                assert done.pop(0) is not None
            if number % 8 == 1 and type(done) is HandingList:
                done.pause()
                done.append("plain")
                assert done.pop() == "plain"
                done.resume()
    assert len({tuple(done) for done in lists}) == 1
    puts, gets = ([op.token for op in log.ops if isinstance(op, one)] for one in (Put, Get))
    assert puts == gets
    assert len(puts) == 160


@pytest.mark.parametrize("name", ["_recorder", "_places"])
def test_a_field_that_is_not_there(name: str) -> None:
    saw = []
    for kind in (HandingList, PythonList):
        played = Played(kind, hooked=False)
        done = played.list
        done.append(2)
        delattr(done, name)
        for call, *args in ((done.append, 3), (done.__getitem__, -1), (done.__getitem__, 0), (done.pop,)):
            played.see(call, *args)
        saw.append((str(played.saw).replace("PythonList", "HandingList"), list.copy(done)))
    assert saw[0] == saw[1]
    assert "AttributeError" in saw[0][0]


def test_a_copy_is_a_list() -> None:
    """Pickled, copied, and through a weak reference; a list has no other attributes."""
    done: Any = HandingList(Recorder([]), [[0], [1]])
    done.append([2])
    for made in (pickle.loads(pickle.dumps(done)), copy.copy(done), copy.deepcopy(done), done.copy()):
        assert type(made) is list
        assert made == [[0], [1], [2]]
    assert copy.copy(done)[0] is done[0]
    done.pause()
    assert type(copy.copy(done)) is list
    done.resume()
    refers: Any = weakref.ref(done)
    assert refers() is done
    with pytest.raises(AttributeError):
        done.anything = 5


def _is_free(done: Any) -> bool:
    """The lock of its tokens, for others."""
    said: list[bool] = []
    fake.in_thread(lambda: said.append(done._places.acquire(False)))
    return said[0]


@pytest.mark.parametrize("tokens", [None, (), 5, "missing"])
def test_tokens_that_are_no_list(tokens: Any) -> None:
    done: Any = HandingList(Recorder([]), [1])
    if tokens == "missing":
        del done._tokens
    else:
        done._tokens = tokens
    for call in (lambda: done.append(1), lambda: done[0], done.pop):
        with pytest.raises((TypeError, AttributeError)):
            call()
    assert _is_free(done)
    assert len(done) == 1


def test_what_aligns_may_change_the_list() -> None:
    """`_align` is Python's, and another thread or a collection may come in it."""
    calls: tuple[Callable[[Any], Any], ...] = (
        lambda some: some[2],
        lambda some: some.pop(),
        lambda some: some.append(1),
    )
    for call in calls:

        class Shrinks(HandingList):
            def _align(self) -> None:
                list.clear(self)
                super()._align()

        done: Any = Shrinks(Recorder([]), [1, 2, 3])
        list.append(done, 4)
        with contextlib.suppress(IndexError, RuntimeError):
            call(done)
        assert _is_free(done)


# ── threads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _while_held(done: Any, call: Callable[[], Any], inside: Callable[[], Any]) -> None:
    """`call` waits for the list in another thread while `inside` happens to it."""
    with done._places:
        thread = threading.Thread(target=call)
        thread.start()
        for _ in range(200):  # until it waits there, or long enough
            time.sleep(0.0005)
        inside()
    thread.join()


@pytest.mark.parametrize("kind", [HandingList, PythonList])
@pytest.mark.parametrize("name", ["look", "pop", "append"])
def test_tokens_that_change_hands_while_a_call_waits(kind: type[HandingList], name: str) -> None:
    """`sort` puts other tokens in the place of the list's own. Each is taken once, by whoever came first."""
    log = Log()
    done: Any = kind(Recorder([log]))
    done.append(1)
    done.append(2)
    call = {"look": lambda: done[0], "pop": done.pop, "append": lambda: done.append(3)}[name]
    _while_held(done, call, done.sort)
    assert len(done._tokens) == len(done)
    rest = list(done)
    puts, gets = ([op.token for op in log.ops if isinstance(op, one)] for one in (Put, Get))
    assert sorted(puts) == sorted(gets)
    assert rest == {"look": [1, 2], "pop": [1], "append": [1, 2, 3]}[name]
    assert done._recorder.ledger.edges == 0


@pytest.mark.parametrize("name", ["look", "pop", "append"])
def test_a_pause_begins_and_ends_while_a_call_waits(name: str) -> None:
    log = Log()
    done: Any = HandingList(Recorder([log]))
    done.append([1])
    call = {"look": lambda: done[0], "pop": done.pop, "append": lambda: done.append([3])}[name]
    _while_held(done, call, lambda: [done.pause(), list.append(done, [2]), done.resume()])
    assert len(done._tokens) == len(done)
    list(done)
    puts, gets = ([op.token for op in log.ops if isinstance(op, one)] for one in (Put, Get))
    assert sorted(puts) == sorted(gets)


def test_many_threads() -> None:
    """Each token is taken once at most, and those that are not are of entries that went unseen."""
    log = Log()
    done: Any = HandingList(Recorder([log]))
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for number in range(300):
            try:
                kind = rng.randrange(12)
                if kind < 5:
                    done.append(number)
                elif kind < 7:
                    done.pop(rng.randrange(-2, 2))
                elif kind < 9:
                    done[rng.randrange(-3, 3)]
                elif kind == 9:
                    done.sort()
                elif kind == 10:
                    done.insert(0, number)
                else:
                    done.reverse()
            except IndexError:
                pass
            except BaseException as error:
                errors.append(error)

    hurried([partial(work, seed) for seed in range(4)])
    assert not errors
    assert len(done._tokens) == len(done)
    list(done)
    puts, gets = (Counter(op.token for op in log.ops if isinstance(op, one)) for one in (Put, Get))
    assert puts == gets
    assert set(puts.values()) == {1}
    assert done._recorder.ledger.edges == 0


def test_nothing_is_kept() -> None:
    recorder = Recorder([])
    done: Any = HandingList(recorder, given=recorder.ledger.hook("given"), seen=recorder.ledger.hook("seen"))
    marker = object()

    def turns(count: int) -> None:
        for i in range(count):
            done.append(marker)
            done.append(i)
            for at in (0, -1, 99, 2**70, True, slice(0, 1)):
                with contextlib.suppress(IndexError):
                    done[at]
            list.append(done, marker)
            done[0]
            while done:
                done.pop(-1)
            with contextlib.suppress(IndexError):
                done.pop()
        recorder.settle_up()
        gc.collect()

    turns(50)
    before, references = sys.getallocatedblocks(), (sys.getrefcount(marker), sys.getrefcount(recorder))
    turns(300)
    assert sys.getallocatedblocks() - before < 60
    assert (sys.getrefcount(marker), sys.getrefcount(recorder)) == references
