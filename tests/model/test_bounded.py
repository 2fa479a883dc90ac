"""Races found again over real-valued times: at the length that the search says, none below, and the times are a
schedule that the rules allow.
"""

from __future__ import annotations

import sys
import time
from fractions import Fraction
from types import ModuleType

import pytest

from kvsan.model.design import Design, Protocol, seen
from kvsan.model.designs import load, names
from kvsan.model.hazard import Kind
from kvsan.model.ops import Access
from kvsan.model.order import Issued, Order
from kvsan.model.pasts import Bits
from kvsan.model.proof import InternalError, Pair, Proved, Race, Refuted, Times, verify
from kvsan.model.proof.bounded import bounded, race_within
from kvsan.model.proof.replay import replay
from kvsan.model.proof.solver import solver
from kvsan.model.proof.table import tabulate
from model.random_designs import random_design

times_module: ModuleType = sys.modules["kvsan.model.proof.times"]
SHORT = 15


def races(design: Design) -> tuple[Race, ...]:
    verdict = verify(design)
    assert isinstance(verdict, Proved | Refuted)
    return verdict.findings.races


def cases(*, long: bool) -> list[tuple[str, str]]:
    out = []
    for name in names():
        expected = load(name).expected
        assert expected is not None
        out += [(name, pair) for pair, length in expected.races if (length > SHORT) == long]
    return out


def is_a_schedule(design: Design, times: Times) -> None:
    """Holds the times to the rules, read with whole pasts: what is ordered is in order, and the two overlap."""
    played = replay(design, [moment.action for moment in times.moments])
    accesses = [(n, op) for n, op in enumerate(played.ops) if isinstance(op, Access)]
    runs = [moment for moment in times.moments if moment.run is not None]
    assert len(accesses) == len(runs)
    order: Order[int] = Order(Bits(), played.streams)
    issued: dict[int, Issued[int]] = {}
    for number, op in enumerate(played.ops):
        found = order.issue(number, op)
        if found is not None:
            issued[number] = found
    knows = Bits().knows
    for (number, _), moment in zip(accesses, runs, strict=True):
        assert moment.run is not None
        begin = moment.run[0]
        reads = moment.read[0] if moment.read is not None else begin
        assert begin < moment.run[1]
        assert moment.call <= min(begin, reads)
        for (before, op), other in zip(accesses, runs, strict=True):
            if before >= number:
                break
            assert other.run is not None
            end = other.read[1] if other.read is not None and op.order == "call" else other.run[1]
            if knows(issued[number].writes, issued[before].write):
                assert other.run[1] <= begin
            if knows(issued[number].reads, issued[before].write):
                assert other.run[1] <= reads
            if knows(issued[number].writes, issued[before].read):
                assert end <= begin
    assert times.one_clock == all(a.call < b.call for a, b in zip(times.moments, times.moments[1:], strict=False))
    first, last = times.moments[times.earlier], times.moments[-1]
    assert first.action.touch is not None
    assert last.action.touch is not None
    assert (first.action.touch.work, last.action.touch.work) == (times.pair.earlier, times.pair.later)
    one = first.read if times.pair.kind is Kind.WAR and first.read is not None else first.run
    two = last.read if times.pair.kind is Kind.RAW and last.read is not None else last.run
    assert one is not None
    assert two is not None
    assert one[0] < two[1]
    assert two[0] < one[1]


def found_again(design: Design, race: Race) -> None:
    times = bounded(design, race.pair, len(race.schedule), race.run_ahead, seconds=300)
    assert isinstance(times, Times)
    assert len(times) == len(race.schedule)
    assert times.pair == race.pair
    is_a_schedule(design, times)


@pytest.mark.parametrize(("name", "pair"), cases(long=False))
def test_a_race_is_found_at_the_same_length_and_none_below(name: str, pair: str) -> None:
    found_again(load(name), next(race for race in races(load(name)) if str(race.pair) == pair))


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "pair"), cases(long=True))
def test_a_long_race_is_found_at_the_same_length_and_none_below(name: str, pair: str) -> None:
    found_again(load(name), next(race for race in races(load(name)) if str(race.pair) == pair))


def test_the_times_of_the_first_public_race() -> None:
    verdict = verify(load("vllm-before-46278"), certify=True)
    assert isinstance(verdict, Refuted)
    assert verdict.certificate is None
    assert [times.pair for times in verdict.times] == [race.pair for race in verdict.findings.races]
    lines = verdict.times[0].words()
    assert len(lines) == 8
    assert "forward writes the block, runs" in lines[2]
    assert lines[2].endswith("<- overlap")
    assert "store reads the block, runs" in lines[7]
    assert lines[7].endswith("<- overlap")


def with_order(order: str) -> Design:
    p = Protocol(f"order-{order}")
    compute, store = p.streams("compute", "store")
    done = p.event("done")
    stored = p.event("stored", per="transfer")
    b = p.block(owner="none | running", data="empty | full", pin="none | want_store | storing")
    p.free(b.owner.none & b.pin.none)
    with p.step():
        compute.forward(writes=b.running & b.empty, reads=b.running & b.full, then=b.full, signals=done)
        store.copy_out(b.want_store, then=b.storing, after=done, signals=stored, order=order)  # type: ignore[arg-type]
    with p.scheduler() as may:
        may("allocate", when=b.owner.none & b.pin.none, then=b.running & b.empty)
        may("store", when=b.running & b.full & b.pin.none, then=b.want_store)
        may("stored", when=b.storing, then=b.pin.none, needs=seen(stored))
        may("finish", when=b.running, then=b.owner.none)
    return p.design()


@pytest.mark.parametrize("order", ["any", "call"])
def test_a_source_that_is_read_out_of_stream_order(order: str) -> None:
    found = races(with_order(order))
    assert [str(race.pair) for race in found] == ["RAW forward -> store"]
    found_again(with_order(order), found[0])


def test_a_wide_bound_finds_the_race_too_and_in_no_fewer_actions() -> None:
    z3, table = solver(), tabulate(load("vllm-after-46278"), 1, 10_000)
    pair = Pair(Kind.WAW, "forward", "load")
    for bound in (9, 10, 12):
        times = race_within(z3, table, pair, bound, time.monotonic() + 60, exactly=False)
        assert isinstance(times, Times)
        assert 9 <= len(times) <= bound
        is_a_schedule(load("vllm-after-46278"), times)


@pytest.mark.parametrize("name", ["vllm-symmetric-barrier", "vllm-after-47728", "layer-wise", "copier-symmetric"])
def test_a_safe_design_has_no_race_up_to_a_bound(name: str) -> None:
    verdict = verify(load(name))
    assert isinstance(verdict, Proved)
    z3, table = solver(), tabulate(load(name), 1, 10_000)
    for pair in verdict.findings.kept_apart:
        assert race_within(z3, table, pair, 10, time.monotonic() + 60, exactly=False) is None, pair


def compare(seeds: range, longest: int) -> None:
    for seed in seeds:
        for race in races(random_design(seed)):
            if len(race.schedule) <= longest:
                found_again(random_design(seed), race)


def test_random_designs() -> None:
    compare(range(6), 11)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(2_000, 2_100, 10))
def test_100_random_designs(first: int) -> None:
    compare(range(first, first + 10), 16)


# ── disagreement ──────────────────────────────────────────────────────────────────────────────────────────────────────


class NeverWaits(Order[object]):
    """A wait orders nothing."""

    def wait(self, op: int, what: object) -> None:
        return None


class NeverSees(Order[object]):
    """A poll teaches nothing."""

    def observe_event(self, op: int, by: str, event: str) -> None:
        return None


class Everything(times_module.Names):  # type: ignore[name-defined,misc]
    """Whoever knows anything of a call knows what the compute stream did."""

    def join(self, a: frozenset[object], b: frozenset[object]) -> frozenset[object]:
        return a | b | {("stream", "compute")}


def test_z3_with_a_rule_less_finds_a_shorter_race(monkeypatch: pytest.MonkeyPatch) -> None:
    design = load("vllm-aborted-load-freed")
    race = next(race for race in races(design) if str(race.pair) == "RAW load -> forward")
    monkeypatch.setattr(times_module, "Order", NeverSees)
    with pytest.raises(InternalError, match=r"kvsan internal error: .* z3 finds one of"):
        bounded(design, race.pair, len(race.schedule), race.run_ahead)
    monkeypatch.setattr(times_module, "Order", NeverWaits)
    pair = Pair(Kind.RAW, "forward", "store")  # apart in this design, because the store waits
    assert isinstance(
        race_within(solver(), tabulate(design, 1, 10_000), pair, 10, time.monotonic() + 60, exactly=False), Times
    )


def test_z3_with_a_rule_too_many_finds_no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times_module, "Names", Everything)
    with pytest.raises(InternalError, match=r"kvsan internal error: .* z3 finds no times"):
        verify(load("vllm-before-46278"), certify=True)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_wrong_length_is_contradicted(off: int) -> None:
    race = races(load("vllm-after-46278"))[0]
    with pytest.raises(InternalError):
        bounded(load("vllm-after-46278"), race.pair, len(race.schedule) + off, race.run_ahead)


def test_no_time_is_said() -> None:
    verdict = verify(load("vllm-before-46278"), certify=True, seconds=0)
    assert isinstance(verdict, Refuted)
    assert verdict.times == ()
    assert len(verdict.unchecked) == 3


def test_times_are_whole_numbers_from_zero() -> None:
    race = races(load("vllm-zeroing-previous-step"))[0]
    times = bounded(load("vllm-zeroing-previous-step"), race.pair, 5, 1)
    assert isinstance(times, Times)
    every = {at for m in times.moments for at in (m.call, *(m.run or ()))}
    assert every == {Fraction(number) for number in range(len(every))}
