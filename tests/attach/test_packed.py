"""The queue of lines that go to a process beside, in C: what it packs is what `lines.encoded` makes of each line, also
where making it runs code that logs, hands over, starts over or fails.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attach.hurried import hurried
from attach.native_programs import IDS, ODD, Elsewhere, Stop
from attach.vllm.fake import in_thread
from kvsan.checker.attach import native
from kvsan.checker.attach.lines import (
    ACCESS,
    ALLOC,
    FREE,
    GET,
    HELD,
    POLL,
    PUT,
    RECORD,
    SETTLED,
    SYNC,
    TOLD,
    Held,
    decoded,
    encoded,
)
from kvsan.checker.attach.recorder import Recorder

HOT = native.HOT
pytestmark = pytest.mark.skipif(HOT is None, reason="the C hooks are not built (make native), or KVSAN_NATIVE=0")


class Does:
    """A value that does something where its text is made."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action

    def __str__(self) -> str:
        self.action()
        return "does"


def doing(action: Callable[[], Any]) -> Any:
    """Stands where a number or a text is wanted."""
    return Does(action)


def raising(error: BaseException) -> Any:
    def action() -> None:
        raise error

    return Does(action)


def _alone(line: Any) -> Any:
    return decoded(encoded([line]))[0]


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_SIZES = (0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536)
_ODD = st.builds(lambda which, seed: which(random.Random(seed)), st.sampled_from(ODD + IDS), st.integers(0, 1 << 20))
_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.integers(-70000, 70000), st.text(), st.binary(), _ODD)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=20),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner, max_size=20),
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.lists(_VALUES, max_size=14).map(tuple), max_size=6))
def test_lines_are_what_encoded_makes_of_each(lines: list[Any]) -> None:
    packed = HOT.Packed()
    for at, line in enumerate(lines):
        packed.append(line)
        assert len(packed) == at + 1
    taken = packed.take()
    assert repr(decoded(taken)) == repr([_alone(line) for line in lines])  # by their text: not a number is no equal
    assert len(packed) == 0
    assert decoded(packed.take()) == []


@pytest.mark.parametrize("size", _SIZES)
def test_the_bytes_are_msgspec_s(size: int) -> None:
    for value in ("x" * size, b"x" * size, [1] * size, (None,) * size, {str(i): i for i in range(size)}, size):
        packed = HOT.Packed()
        packed.append(value)
        assert packed.take() == b"\xdd\x00\x00\x00\x01" + encoded([value])[1:]


@pytest.mark.parametrize("bits", range(65))
def test_numbers_at_the_edges(bits: int) -> None:
    packed = HOT.Packed()
    numbers = [sign * (1 << bits) + more for sign in (1, -1) for more in (-1, 0, 1)]
    for number in numbers:
        packed.append((number,))
    assert decoded(packed.take()) == [_alone((number,)) for number in numbers]


@pytest.mark.parametrize("done", [None, True, False, 1, 0, "", Does(lambda: None)])
@pytest.mark.parametrize("given_", [(), ("h0", "e", None, None, 3), tuple(range(12)), tuple(range(13)), ("\ud800",)])
def test_blocking_calls(done: Any, given_: tuple[Any, ...]) -> None:
    one, other = Held(7, given_, done), Held(7, given_, done)
    packed = HOT.Packed()
    packed.append(one)
    assert decoded(packed.take()) == [_alone(other)]
    assert one.told == other.told


def test_a_blocking_call_that_is_none() -> None:
    """Fields that are not there, or of another type."""
    packed = HOT.Packed()
    bare: Any = Held.__new__(Held)
    for _ in range(2):
        with pytest.raises(AttributeError):
            packed.append(bare)
    held: Any = Held(0, ("h0", None, None, None, 1))
    held.given = ["h0", 5]
    packed.append(held)
    held.given, held.told, held.done = ("h1",), Does(lambda: None), [0]
    packed.append(held)
    assert decoded(packed.take()) == [[HELD, "h0", 5, None], [SYNC, "h1"]]


def test_what_contains_itself_fails_and_leaves_nothing() -> None:
    packed, line = HOT.Packed(), []  # type: ignore[var-annotated]
    line.append(line)
    packed.append((1,))
    with pytest.raises(RecursionError):
        packed.append(line)
    packed.append((2,))
    assert decoded(packed.take()) == [[1], [2]]


# ── what happens while a line is packed ───────────────────────────────────────────────────────────────────────────────


def test_lines_that_come_meanwhile_follow() -> None:
    packed = HOT.Packed()
    inner = Does(lambda: packed.append(("innermost",)))
    packed.append(("before",))
    packed.append(("outer", Does(lambda: [packed.append(("first",)), packed.append(("second", inner))])))
    packed.append(("after",))
    assert [line[0] for line in decoded(packed.take())] == ["before", "outer", "first", "second", "innermost", "after"]


@pytest.mark.parametrize("fails", [False, True])
def test_lines_are_taken_meanwhile(fails: bool) -> None:
    packed, taken = HOT.Packed(), []

    def action() -> None:
        packed.append(("meanwhile", 1))
        taken.extend(decoded(packed.take()))
        packed.append(("meanwhile", 2))
        taken.extend(decoded(packed.take()))
        if fails:
            raise KeyError("fails")

    packed.append(("before", "x" * 99))
    if fails:
        with pytest.raises(KeyError):
            packed.append(("outer", Does(action)))
    else:
        packed.append(("outer", Does(action)))
    assert taken == [["before", "x" * 99]]
    packed.append(("after",))
    outer = [] if fails else [["outer", "does"]]
    assert len(packed) == 3 + len(outer)
    assert decoded(packed.take()) == [*outer, ["meanwhile", 1], ["meanwhile", 2], ["after"]]


def test_lines_are_let_go_meanwhile() -> None:
    packed = HOT.Packed()

    def action() -> None:
        packed.append(("meanwhile",))
        packed.clear()
        assert len(packed) == 0

    packed.append(("before", "x" * (1 << 21)))
    packed.append(("outer", Does(action)))
    packed.append(("after",))
    assert decoded(packed.take()) == [["outer", "does"], ["after"]]


def test_what_fails_meanwhile_is_that_line_alone() -> None:
    packed = HOT.Packed()
    inner = [(1,), (2, raising(KeyError("first"))), (3,), (4, raising(Stop("second"))), (5,)]
    with pytest.raises(KeyError, match="first"):
        packed.append((0, Does(lambda: [packed.append(line) for line in inner])))
    with pytest.raises(Stop, match="outer"):
        packed.append((6, Does(lambda: [packed.append((7,)), raising(Stop("outer")).action()])))
    assert len(packed) == 5
    assert [line[0] for line in decoded(packed.take())] == [0, 1, 3, 5, 7]


def test_what_ends_with_a_line_logs() -> None:
    """The destructor of a value that was let go while lines wait to follow."""
    packed = HOT.Packed()

    class Ends:
        def __str__(self) -> str:
            return "ends"

        def __del__(self) -> None:
            packed.append(("end",))

    packed.append((0, Does(lambda: [packed.append((1, Ends())), packed.append((2,))])))
    gc.collect()
    assert [line[0] for line in decoded(packed.take())] == [0, 1, 2, "end"]


def test_many_kinds_of_things_meanwhile() -> None:
    """Random programs of a queue against a list of what it should have: prints its seed."""
    for seed in range(300):
        rng, number = random.Random(seed), iter(range(10**6))
        packed, whole, taken = HOT.Packed(), [], []  # type: ignore[var-annotated]

        def put(
            depth: int,
            *,
            rng: random.Random = rng,
            number: Any = number,
            packed: Any = packed,
            whole: Any = whole,
            taken: Any = taken,
        ) -> None:
            mine = next(number)
            how = rng.choice(("plain", "odd", "fails", "busy"))

            def action() -> None:
                for _ in range(rng.randrange(4) if depth < 3 else 0):
                    put(depth + 1)
                    if rng.random() < 0.2:
                        taken.extend(decoded(packed.take()))
                if how == "fails":
                    raise KeyError(mine)

            if how != "fails":
                whole.append(mine)
            with contextlib.suppress(KeyError):
                packed.append((mine, "x" * rng.choice((0, 9, 40000)), *(() if how == "plain" else (Does(action),))))

        for _ in range(12):
            put(0)
            if rng.random() < 0.3:
                taken.extend(decoded(packed.take()))
        rest = decoded(packed.take())
        assert sorted(line[0] for line in taken + rest) == sorted(whole), seed
        assert len(packed) == 0, seed


class Began:
    """A recorder with a process beside."""

    def __init__(self, batch: int = 512, clock: Callable[[], int] = lambda: 5) -> None:
        self.recorder, self.beside = Recorder(clock=clock), Elsewhere()
        self.recorder.pool("gpu", 64)
        self.recorder.listen((), batch=batch, beside=self.beside)
        assert type(self.recorder._queue) is HOT.Packed

    def arrived(self) -> list[Any]:
        self.recorder.settle_up()
        return self.beside.arrived


@pytest.mark.parametrize("batch", [1, 2, 3, 512])
def test_numbers_are_places_among_the_lines(batch: int) -> None:
    """Of lines that are logged while another one is packed, too."""
    began = Began(batch)
    recorder = began.recorder
    numbers: list[Any] = []

    def access(name: str, step: Any = None) -> None:
        at = len(numbers)
        numbers.append(None)
        numbers[at] = (recorder.access(name, reads={"gpu": [1]}, step=step), name)

    def inside() -> None:
        access("c")
        recorder.alloc("gpu", [3])
        access("d", Does(lambda: access("e")))

    access("a")
    access("b", Does(inside))
    recorder.free("gpu", [Does(lambda: recorder.free("gpu", [4])), 5])
    access("f")
    named = [line[5] if line[0] == 0 else line[0] for line in began.arrived()]
    assert [(at, name) for at, name in enumerate(named) if isinstance(name, str)] == sorted(numbers)
    assert sorted(name for name in named if isinstance(name, str)) == list("abcdef")
    assert named.count(ALLOC) == 1
    assert recorder.ops == len(named)
    assert recorder.fault_text is None


CLOCKS = [pytest.param(lambda: 5, id="its own"), pytest.param(time.perf_counter_ns, id="the usual")]
"""With the usual clock lines are put in place."""


@pytest.mark.parametrize("clock", CLOCKS)
def test_lives_that_come_while_others_are_packed(clock: Callable[[], int]) -> None:
    began = Began(clock=clock)
    recorder = began.recorder
    recorder.free("gpu", [Does(lambda: recorder.alloc("gpu", [1])), 2])
    recorder.touch("gpu", [3])
    recorder.touch("gpu", [4])
    lines = [(line[0], line[3]) for line in began.arrived()]
    assert lines == [(FREE, ["does", 2]), (ALLOC, [1]), (9, [3, 4])]
    assert recorder.ops == 3
    assert recorder.waiting == 0


@pytest.mark.parametrize("clock", CLOCKS)
def test_lives_merge_only_where_nothing_lies_between(clock: Callable[[], int]) -> None:
    began = Began(clock=clock)
    recorder = began.recorder
    recorder.pool("cpu", 64)

    def two(between: Callable[[], Any]) -> int:
        recorder.settle_up()
        began.beside.arrived.clear()
        recorder.alloc("gpu", [1])
        between()
        recorder.alloc("gpu", [2])
        return sum(line[0] == ALLOC for line in began.arrived())

    assert two(lambda: None) == 1
    assert two(lambda: recorder.alloc("gpu", [])) == 1
    assert two(recorder.mark) == 2
    assert two(recorder.settle_up) == 2
    assert two(lambda: recorder.alloc("cpu", [1])) == 3
    assert two(lambda: recorder.free("gpu", [1])) == 2
    assert two(lambda: recorder.alloc("gpu", range(3, 5))) == 3
    assert two(lambda: recorder.alloc("gpu", [3], by="h9")) == 3
    assert two(lambda: in_thread(lambda: recorder.alloc("gpu", [3]))) == 3
    assert two(lambda: recorder.tell("x", 1)) == 2
    assert two(lambda: recorder.put("x")) == 2


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("seed", range(12))
def test_lives_are_the_same_as_numbers_and_as_anything(seed: int, clock: Callable[[], int]) -> None:
    """Numbers of any size, sets of any size, what is no number, in turns: neighbours are one line all the same."""
    rng, began = random.Random(seed), Began(clock=clock)
    recorder = began.recorder
    want: list[Any] = []
    for _ in range(80):  # in all less than what is handed on at once
        code, pool, by = rng.choice((ALLOC, FREE)), rng.choice(("gpu", "pool é")), rng.choice(("h0", "h" * 60))
        size = rng.choice((1, 2, 15, 16, 17, 255, 256, 257))
        top = rng.choice((1 << 7, 1 << 8, 1 << 16, 1 << 32, 1 << 62, 1 << 80 if rng.random() < 0.2 else 9))
        ids: list[Any] = [rng.randrange(-40, top) for _ in range(size)]
        if rng.random() < 0.1:
            ids[0] = rng.choice((True, "x", 1.5, None, Does(lambda: None)))
        line = _alone((code, by, pool, list(ids), 0))
        if want and tuple(want[-1][:3]) == (code, by, pool):
            want[-1][3].extend(line[3])
        else:
            want.append([code, by, pool, list(line[3])])
        recorder.add_ids(code, pool, ids, by)
    assert [list(line[:4]) for line in began.arrived()] == want
    assert recorder.ops == len(want)
    assert recorder.fault_text is None


_GROWS = (*range(1, 20), 100, 150, 300, 65_000, 1000, 1)
"""So many ids at once: in all more than 15, 255 and 65,535, and more than there is room for at first."""


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("odd", [None, 1.5, True, "x", Does(lambda: None), 1 << 80])
def test_a_line_of_lives_grows(clock: Callable[[], int], odd: Any) -> None:
    """With what is no number in the middle, too. It is one line with the first time, behind one and before another."""
    began = Began(clock=clock)
    recorder, want, rng = began.recorder, [], random.Random(3)
    recorder.put("before")
    times = [time.perf_counter_ns()]  # and when the first ids are in
    for count in _GROWS:
        ids: list[Any] = [rng.randrange(-(1 << 40), 1 << rng.choice((6, 8, 16, 31, 32, 33, 63))) for _ in range(count)]
        if odd is not None and count in (2, 18, 150, 1000):
            ids[1] = odd
        want += _alone(ids)
        recorder.add_ids(ALLOC, "gpu", ids, "h0")
        if count == 1:
            times.append(time.perf_counter_ns())
            recorder.add_ids(ALLOC, "gpu", [], "h0")
    assert (recorder.ops, recorder.waiting) == (2, 2)
    recorder.put("after")
    before, line, after = began.arrived()
    assert (before[2], line[:4], after[2]) == ("before", [ALLOC, "h0", "gpu", want], "after")
    assert line[4] == 5 if clock is not time.perf_counter_ns else times[0] <= line[4] <= times[1]


@pytest.mark.parametrize("clock", CLOCKS)
def test_lives_that_must_not_merge(clock: Callable[[], int]) -> None:
    """Names that are as long or begin the same; and what was handed over or let go before is no neighbour."""
    began = Began(clock=clock)
    recorder, arrived = began.recorder, began.beside.arrived
    names = [(pool, by) for pool in ("g", "g1", "g2", "é") for by in ("h1", "h10", "h2")]
    sorts = [(code, *name) for code in (ALLOC, FREE) for name in names]
    for code, pool, by in sorts:
        recorder.add_ids(code, pool, [1], by)
        recorder.add_ids(code, pool, [Does(lambda: None)], by)
        recorder.add_ids(code, pool, [2], by)
    assert [(line[0], line[2], line[1]) for line in began.arrived()] == sorts
    assert all(line[3] == [1, "does", 2] for line in arrived)
    arrived.clear()
    odd: tuple[list[Any], ...] = ([1], [2], ["x"], [1 << 70])
    for ids in odd:  # what is handed over is as long as what comes next
        recorder.alloc("gpu", [1])
        recorder.settle_up()
        recorder.alloc("gpu", ids)
        recorder.mark()
        recorder.alloc("gpu", ids)
        recorder.put("between")
        recorder.alloc("gpu", ids)
        recorder._queue.clear()
        recorder.alloc("gpu", ids)
        recorder.settle_up()
    assert [line[3] for line in arrived] == [each for ids in odd for each in ([1], _alone(ids))]


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("does", ["takes", "clears", "logs", "begins", "merges", "fails"])
def test_what_happens_while_ids_of_one_line_are_made_plain(clock: Callable[[], int], does: str) -> None:
    began, other, counts = Began(clock=clock), Elsewhere(), [1, 2, 3]
    recorder = began.recorder
    ran: list[int] = []

    def action() -> None:
        if ran:  # it may be made plain again
            return
        ran.append(1)
        if does == "begins":
            recorder.listen((), batch=512, beside=other)
        if does != "merges":
            recorder.put("inside")
        for number in counts:
            recorder.alloc("gpu", [number])
        if does != "merges":
            recorder.free("gpu", [9])
        if does == "takes":
            recorder.settle_up()
        if does == "clears":
            recorder._queue.clear()
        if does == "fails":
            raise KeyError("fails")

    recorder.alloc("gpu", [0])
    recorder.alloc("gpu", [5, Does(action), 6])
    recorder.free("gpu", [10])
    lines = [line[3] if line[0] in (ALLOC, FREE) else line[2] for line in began.arrived()]
    more = [5, "does", 6]
    behind = ["inside", counts, [9, 10]]
    want = {
        "takes": [[0], "inside", counts, [9], more, [10]],
        "clears": [more, [10]],
        "logs": [[0, *more], *behind],
        "begins": [],
        "merges": [[0, *more], counts, [10]],
        "fails": [[0], "inside", counts, [9]],
    }
    assert lines == want[does]
    assert (recorder.fault_text is None) == (does != "fails")
    assert recorder.waiting == 0
    if does in ("takes", "logs", "merges"):
        assert recorder.ops == len(lines)
    if does == "begins":
        assert recorder.ops == len(other.arrived)


def test_lives_without_memory() -> None:
    """Each allocation fails in turn: the ids go in whole, or an error comes and the line is as it was."""
    testing = pytest.importorskip("_testcapi")
    for ids in (list(range(250)), [Does(lambda: None), 1 << 70], list(range(10**9, 10**9 + 6000))):
        for at in range(1, 60):
            began = Began(clock=time.perf_counter_ns)
            recorder = began.recorder
            want: list[Any] = []
            for part in ([1, 2], ids, [3]):
                try:
                    testing.set_nomemory(at, at + 1)
                    recorder.add_ids(ALLOC, "gpu", list(part), "h0")
                except MemoryError:
                    continue
                finally:
                    testing.remove_mem_hooks()
                want += _alone(part)
            lines = began.arrived()
            assert [id for line in lines for id in line[3]] == want, at
            assert len(lines) <= 1, at


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="garbage is collected between bytecodes there")
@pytest.mark.parametrize("more", [0, 40])
def test_garbage_is_collected_where_lives_become_a_line(more: int) -> None:
    """What ends then makes lines: none comes into the one that is being made, and none is written past its end."""
    began = Began(clock=time.perf_counter_ns)
    recorder = began.recorder
    called: list[int] = []

    def collected(phase: str, info: Any) -> None:
        if phase == "start" and not called:
            called.append(1)
            recorder.put("t")
            for _ in range(more):
                recorder.add_ids(ALLOC, "gpu", list(range(200)), "h0")

    keep = [[number] for number in range(3000)]
    before = gc.get_threshold()
    recorder.add_ids(ALLOC, "gpu", [1, 2, 3], "h0")
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        recorder.add_ids(ALLOC, "gpu", [1 << 70], "h0")
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*before)
    assert len(keep) == 3000
    lines = began.arrived()
    assert recorder.ops == len(lines)
    assert sum(len(line[3]) for line in lines if line[0] == ALLOC) == 4 + 200 * more * len(called)
    assert recorder.fault_text is None


def test_a_session_begins_where_a_call_is_about_to_block() -> None:
    """What waits is worked off first, and in that a signal's handler may begin another one, with none beside."""
    recorder = Recorder()

    class Handled(Elsewhere):
        def packed(self, given: bytes) -> None:
            recorder.listen(())

    class Event:
        def synchronize(self) -> int:
            return 7

    recorder.listen((), batch=512, beside=Handled())
    recorder.blocked = 1
    namer = HOT.Namer(recorder, None, None, lambda key: None, lambda stream: "s0")
    hook = HOT.Hook(
        *("synchronize", Event.synchronize, Event.synchronize, recorder, HOT.Counter(), "w", HOT.Here(), namer),
        recorder._events,
    )
    recorder.put("t")
    assert hook(Event()) == 7
    assert recorder.fault_text is None


def test_streams_are_met_while_a_forward_s_line_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is on the stream that was current, though the names that are known were others in the middle."""
    began, current = Began(clock=time.perf_counter_ns), [0]
    recorder = began.recorder
    namer = HOT.Namer(recorder, lambda: 0, lambda device: current[0], lambda key: f"s{key[1]}", lambda stream: "other")

    def meet(numbers: Any) -> None:
        for current[0] in (*numbers, 0):
            namer.name(None)

    messages = type("Messages", (), {"count": 1})()
    told = type("Told", (), {"hook": HOT.Counter(), "messages": messages, "name": "steps", "open": True})()
    runner = type("Runner", (), {"_kvsan_steps": told})()
    more = (None, None, 0, 0, None, None)
    hook = HOT.Hook(
        "forward", lambda runner: None, lambda runner: None, recorder, HOT.Counter(), "w", None, namer, None, more
    )
    meet(range(1, 4))

    def ended() -> None:
        recorder._dead_threads.clear()
        meet(range(10, 14))

    monkeypatch.setattr(recorder, "_ended", ended)
    recorder._dead_threads.append("h9")
    hook(runner)
    assert not recorder._dead_threads
    assert [line[2] for line in began.arrived()] == ["s0"]


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_copy_is_the_line_that_python_makes(clock: Callable[[], int]) -> None:
    began = Began(clock=clock)
    recorder = began.recorder
    want: list[Any] = []
    usual = ("load", "stream 7", "cpu", [1, 300, 70_000], "gpu", [2, 3, 1 << 40], "any", 12, "engine.py:7")
    odd: list[tuple[int, Any]] = [
        *((0, name) for name in ("é", "l" * 300, None, 5)), *((1, name) for name in ("s" * 39, "s" * 40, "é")),
        *((at, ids) for at in (3, 5) for ids in ([-1], list(range(20)), list(range(70_000)), [1 << 70], ["x"])),
        *((at, name) for at in (2, 4) for name in ("p" * 40, "é")), (7, None), (7, "x"), (8, None), (8, "w" * 999),
    ]  # fmt: skip
    for at, value in [(0, "load"), *odd]:
        given = (*usual[:at], value, *usual[at + 1 :])
        label, on, source, sources, target, targets, order, planned, site = given
        line = (ACCESS, recorder.thread_name(), on, {source: sources}, {target: targets}, label, order, True, planned)
        want.append(_alone((*line, None, None, site, 0))[:12])
        recorder.alloc("gpu", [at])  # one that waits goes in before it
        want.append((ALLOC, recorder.thread_name(), "gpu", [at], 0)[:4])
        want[-2:] = want[:-3:-1]
        assert recorder.pack_copy(*given)
    arrived = [line[:12] if line[0] == ACCESS else line[:4] for line in began.arrived()]
    assert [list(line) for line in arrived] == [list(line) for line in want]
    assert recorder.ops == len(want)
    assert not recorder.pack_copy(*usual[:3], (1, 2), *usual[4:])


@pytest.mark.parametrize("clock", CLOCKS)
def test_what_is_handed_on_has_its_place(clock: Callable[[], int]) -> None:
    """The token, and the op at which it was: alone, and as Python has it."""
    began = Began(clock=clock)
    recorder = began.recorder
    assert recorder.mark() is None
    tokens = []
    for number in range(3):
        token, planned = recorder.hand_on_at("q")
        assert planned == 2 * number
        tokens.append(token)
        recorder.taken(token)
    assert [tuple(line[:3]) for line in began.arrived()] == [
        (code, recorder.thread_name(), token) for token in tokens for code in (PUT, GET)
    ]
    assert [token.split("q")[1] for token in tokens] == [f"{number}.{os.getpid()}" for number in (1, 2, 3)]
    recorder.prefix = "é" * 50
    assert recorder.hand_on("w" * 99) == f"{recorder.prefix}{'w' * 99}4.{os.getpid()}"
    recorder.on = False
    assert recorder.hand_on_at("q")[1] == 6


def test_another_session_begins_while_a_line_is_packed() -> None:
    """The queue is let go in the middle of its own work."""
    began, other = Began(), Elsewhere()
    recorder = began.recorder

    def start_over() -> None:
        recorder.listen((), batch=512, beside=other)
        recorder.put("new")
        gc.collect()

    for _ in range(3):
        recorder.put("old")
        recorder.access("x", reads={"gpu": [1]}, step=doing(start_over))
        gc.collect()
    recorder.settle_up()
    assert [line[0] for line in other.arrived] == [PUT]
    assert began.beside.arrived == []
    assert recorder.fault_text is None


@pytest.mark.parametrize("error", [KeyError("odd"), MemoryError(), RecursionError()])
def test_a_line_that_cannot_be_packed_turns_kvsan_off(error: Exception) -> None:
    """What was logged before arrives."""
    began = Began()
    recorder = began.recorder
    recorder.put("a")
    recorder.free("gpu", [1])
    recorder.access("x", reads={"gpu": [1]}, step=raising(error))
    recorder.put("b")
    assert not recorder.on
    assert type(error).__name__ in str(recorder.fault_text)
    assert [line[0] for line in began.beside.arrived] == [PUT, FREE]
    assert recorder.waiting == 0


@pytest.mark.parametrize("error", [OSError("gone"), Stop("a signal")])
def test_a_hand_over_that_fails(error: BaseException) -> None:
    began = Began()
    recorder = began.recorder
    recorder.put("a")
    recorder.alloc("gpu", [1])
    began.beside.raises = error
    if isinstance(error, Stop):
        with pytest.raises(Stop):
            recorder.settle_up()
    else:
        recorder.settle_up()
    assert not recorder.on
    assert "the way to the process that checks" in str(recorder.fault_text)
    recorder.put("b")
    assert (recorder.waiting, began.arrived()) == (0, [])


def test_calls_that_return_and_fail() -> None:
    began = Began()
    recorder = began.recorder
    settles: tuple[Callable[[], None], ...] = (lambda: None, recorder.settle_up)
    for settle in settles:
        for fails in (False, True):
            try:
                with recorder.blocking(event="e"):
                    settle()
                    recorder.put("inside")
                    if fails:
                        raise KeyError("fails")
            except KeyError:
                pass
            settle()
    lines = [(line[0], *line[5:]) if line[0] in (SYNC, HELD) else line[0] for line in began.arrived()]
    assert lines == [(SYNC, 5), PUT, (HELD, 5, False), PUT] * 2
    assert recorder.ops == 8


# ── memory, locks, processes ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["take", "clear"])
def test_the_memory_of_a_huge_line_is_given_back(way: str) -> None:
    packed = HOT.Packed()
    for size in (100, 1 << 19, 5 << 20):
        packed.append((b"x" * size,))
        assert sys.getsizeof(packed) > size
        getattr(packed, way)()
        assert (size < 1 << 20) == (sys.getsizeof(packed) > size)
        packed.append((1,))
        assert decoded(packed.take()) == [[1]]


def test_nothing_is_kept() -> None:
    packed, ends = HOT.Packed(), Does(lambda: None)

    def turns(count: int) -> None:
        for i in range(count):
            packed.append((RECORD, f"h{i}", "s", i, [ends, {"a": (i,)}]))
            packed.append(Held(i, ("h0", "é", None, None, 10**9 + i)))
            packed.append((TOLD, "x", Does(lambda: packed.append((SETTLED, 0, True)))))
            with contextlib.suppress(KeyError):
                packed.append((POLL, raising(KeyError("x"))))
            if i % 7 == 0:
                packed.take()
        packed.take()
        gc.collect()

    turns(100)
    before, references = sys.getallocatedblocks(), sys.getrefcount(ends)
    turns(500)
    assert sys.getallocatedblocks() - before < 60
    assert sys.getrefcount(ends) == references


def test_a_recorder_with_lines_that_wait_is_collected() -> None:
    """Where what waits leads back to it."""
    began = Began()
    odd: Any = Does(lambda: None)
    odd.back = began.recorder
    began.recorder.alloc("gpu", [odd])
    gone = weakref.ref(began.recorder), weakref.ref(odd)
    del began, odd
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_without_memory() -> None:
    """Each allocation fails in turn: the line goes in whole, or an error comes and nothing of it is there."""
    testing = pytest.importorskip("_testcapi")
    for lines in ([(1, "x" * 20000, "ü")], [(1, b"x" * 70000, [2] * 9)], [(0, 1.5), (1, "\ud800"), (2, 1 << 70)]):
        for at in range(1, 60):
            packed, failed = HOT.Packed(), []
            packed.append(("before",))
            for line in lines:
                testing.set_nomemory(at, at + 1)
                try:
                    packed.append(line)
                except MemoryError:
                    failed.append(line)
                finally:
                    testing.remove_mem_hooks()
            try:
                testing.set_nomemory(at, at + 1)
                taken = packed.take()
            except MemoryError:
                testing.remove_mem_hooks()
                taken = packed.take()
            finally:
                testing.remove_mem_hooks()
            assert decoded(taken) == [["before"], *(_alone(line) for line in lines if line not in failed)]


def test_threads_that_log_at_once() -> None:
    began = Began(batch=16)
    recorder = began.recorder

    def work() -> None:
        for i in range(200):
            recorder.access("x", reads={"gpu": [i % 64]}, step=doing(lambda: recorder.put("t")) if i % 3 else i)
            recorder.free("gpu", [i % 64])

    hurried([work] * 4)
    lines = began.arrived()
    counts = [sum(line[0] == code for line in lines) for code in (0, PUT)]
    assert counts == [800, 4 * sum(i % 3 > 0 for i in range(200))]
    assert sum(len(line[3]) for line in lines if line[0] == FREE) == 800
    assert recorder.ops == sum(line[0] <= HELD for line in lines)
    assert recorder.fault_text is None


def test_threads_without_the_lock() -> None:
    """As nobody should: no line is torn."""
    packed = HOT.Packed()
    switch = sys.getswitchinterval()
    threads = [
        threading.Thread(target=lambda: [packed.append((i, 1.5, Does(lambda: None))) for i in range(300)])
        for _ in range(4)
    ]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        taken = [line for _ in range(300) for line in decoded(packed.take())]
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    taken += decoded(packed.take())
    assert sorted(line[0] for line in taken) == sorted(4 * list(range(300)))


def test_a_forked_child_has_a_queue_of_its_own() -> None:
    """Also where a line is in the middle of being packed."""
    began, said = Began(), []

    def fork() -> None:
        child = os.fork()
        if not child:
            code = 1
            try:
                other = Elsewhere()
                began.recorder.listen((), batch=512, beside=other)
                began.recorder.put("child")
                began.recorder.settle_up()
                code = 0 if [line[0] for line in other.arrived] == [PUT] else 2
            finally:
                os._exit(code)
        said.append(os.waitpid(child, 0)[1])

    began.recorder.put("before")
    began.recorder.access("x", reads={"gpu": [1]}, step=doing(fork))
    assert said == [0]
    assert [line[0] for line in began.arrived()] == [PUT, 0]


# ── what tried to break it ────────────────────────────────────────────────────────────────────────────────────────────


def test_an_id_that_looks_like_a_line_and_holds_itself() -> None:
    ids: list[Any] = []
    ids.append((ALLOC, "h0", "gpu", ids, 1))
    queue = HOT.Packed()
    with pytest.raises(RecursionError):
        queue.append((ALLOC, "h0", "gpu", ids, 1))
    assert len(queue) == 0


def test_an_id_of_a_number_s_own_class_is_a_number() -> None:
    number = type("Number", (int,), {})(4)
    queue = HOT.Packed()
    queue.append((ALLOC, "h0", "gpu", [number, 1 << 70], 1))
    assert decoded(queue.take())[0][3] == _alone((ALLOC, "h0", "gpu", [number, 1 << 70], 1))[3] == [4, str(1 << 70)]


def test_garbage_that_is_collected_where_the_list_of_those_that_wait_is_made() -> None:
    queue = HOT.Packed()
    outer, inner = (PUT, "h0", "outer", 1), (PUT, "h0", "inner", 2)
    before = gc.get_threshold()

    class Ends:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            queue.append(inner)

    def action() -> None:
        gc.disable()
        gc.collect()
        kept: list[Any] = [[] for _ in range(500)]  # no list is to be had from those that are free
        Ends()
        gc.set_threshold(1)
        gc.enable()
        queue.append(outer)
        gc.disable()
        gc.set_threshold(*before)
        del kept

    try:
        queue.append((PUT, "h0", doing(action), 0))
        gc.collect()
    finally:
        gc.set_threshold(*before)
        gc.enable()
    assert [line[2] for line in decoded(queue.take())] == ["does", "outer", "inner"]
