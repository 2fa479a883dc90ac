"""What is served: the same for the same seed, prefixes that meet, pools of the pressure asked for."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsan.runtime.language import Group, Model, answers
from kvsan.runtime.workload import Request, Workload, blocks_for, held, requests_of

MODEL = Model((Group("full"), Group("window", 64)), stop_every=97)
SMALL = Workload(requests=120, concurrency=8)


def test_the_seed_says_it_all() -> None:
    assert requests_of(SMALL, MODEL) == requests_of(SMALL, MODEL)
    other = requests_of(Workload(requests=120, concurrency=8, seed=1), MODEL)
    assert not {r.prompt for r in other} & {r.prompt for r in requests_of(SMALL, MODEL)}


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 1 << 32), st.integers(1, 40), st.integers(1, 9), st.integers(0, 3), st.floats(0, 1), st.floats(0, 1)
)
def test_every_request_is_as_it_was_asked_for(
    seed: int, count: int, concurrency: int, systems: int, follow_ups: float, aborts: float
) -> None:
    workload = Workload(count, concurrency, seed, systems, (3, 40), 1.2, follow_ups, (1, 20), (1, 30), 100, aborts, 17)
    requests = requests_of(workload, MODEL)
    assert [request.number for request in requests] == list(range(count))
    for request in requests:
        assert set(request.prompt) <= set(range(17)) | {t for t in request.prompt if t >= 17 and follow_ups}
        assert 1 <= request.new_tokens <= 30
        assert len(request.prompt) + request.new_tokens <= 100
        assert request.abort_after is None or 0 <= request.abort_after < request.new_tokens


def parents(requests: tuple[Request, ...]) -> dict[int, int]:
    """Which earlier request each is the next turn of."""
    wholes = answers(MODEL, [(r.prompt, r.new_tokens) for r in requests])
    by_start = {(*r.prompt, *made): r.number for r, made in zip(requests, wholes, strict=True)}
    found = {}
    for request in requests:
        starts = (request.prompt[:end] for end in range(len(request.prompt) - 1, 0, -1))
        parent = next((by_start[start] for start in starts if start in by_start), None)
        if parent is not None:
            found[request.number] = parent
    return found


def test_later_turns_repeat_the_whole_turn_before_with_its_right_reply() -> None:
    found = parents(requests_of(SMALL, MODEL))
    assert 15 < len(found) < 60
    assert all(child - parent >= SMALL.concurrency for child, parent in found.items())
    assert any(parent in found for parent in found.values())  # a third turn


def test_no_turn_follows_an_aborted_one_and_none_follows_where_none_may() -> None:
    requests = requests_of(Workload(requests=150, concurrency=4, follow_ups=0.8, aborts=0.5), MODEL)
    aborted = {r.number for r in requests if r.abort_after is not None}
    assert 40 < len(aborted) < 110
    assert not aborted & set(parents(requests).values())
    assert not parents(requests_of(Workload(requests=100, concurrency=4, follow_ups=0), MODEL))


def test_system_prompts_are_shared_by_zipfs_law() -> None:
    requests = requests_of(Workload(requests=400, follow_ups=0, zipf=1.0), MODEL)
    shares = [count for _, count in Counter(request.prompt[:16] for request in requests).most_common()]
    assert len(shares) == 4
    assert 400 * 12 / 25 * 0.8 < shares[0] < 400 * 12 / 25 * 1.2  # 1 / (1 + 1/2 + 1/3 + 1/4)
    alone = requests_of(Workload(requests=100, follow_ups=0, system_prompts=0), MODEL)
    assert max(Counter(request.prompt[:4] for request in alone).values()) == 1


def test_pools_of_the_pressure_asked_for() -> None:
    requests = requests_of(SMALL, MODEL)
    pools = [blocks_for(SMALL, MODEL, oversubscribed=times, requests=requests) for times in (0.5, 1, 2, 1000)]
    assert all(low.gpu > high.gpu for low, high in pairwise(pools))
    assert abs(pools[0].gpu - 2 * pools[1].gpu) <= 2
    ends = [len(request.prompt) + request.new_tokens for request in requests]
    assert pools[-1].gpu == 2 * (MODEL.blocks(max(ends)) + 1)  # the longest always fits
    assert blocks_for(SMALL, MODEL, oversubscribed=2) == pools[2]
    roomy, tight = (blocks_for(SMALL, MODEL, host=times, requests=requests).host for times in (1, 10))
    assert roomy // 10 <= tight <= roomy // 10 + 1


def test_the_host_pool_counts_each_content_once() -> None:
    one = Model(block_size=4)
    twice = (Request(0, (1, 2, 3, 4, 5, 6, 7), 2), Request(1, (1, 2, 3, 4, 9, 9, 9, 9), 1))
    assert blocks_for(Workload(requests=2), one, requests=twice).host == 3  # 1-4, 5-reply, 9-9


@pytest.mark.parametrize(
    ("window", "tokens", "blocks"), [(None, 33, 3), (16, 400, 2), (17, 400, 2), (18, 400, 3), (64, 5, 1)]
)
def test_what_a_request_holds(window: int | None, tokens: int, blocks: int) -> None:
    assert held(Model((Group("g", window),)), tokens) == blocks


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 18, 33])
def test_a_window_never_lies_in_more_blocks_than_held(window: int) -> None:
    model = Model((Group("g", window),))
    spans = [last // 16 - model.groups[0].seen_from(last) // 16 + 1 for last in range(200)]
    assert max(spans) == held(model, 200)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"requests": 0}, "requests is 0"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"aborts": 1.5}, "aborts is 1.5"),
        ({"tail_tokens": (5, 4)}, "tail_tokens"),
        ({"new_tokens": (0, 4)}, "new_tokens"),
        ({"longest": 100}, "longest is 100; a first turn may take 192"),
        ({"zipf": -1.0}, "zipf"),
    ],
)
def test_a_workload_that_cannot_be_drawn(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Workload(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("pressure", [{"oversubscribed": 0.0}, {"host": -1.0}])
def test_a_pressure_that_cannot_be(pressure: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="want more than 0"):
        blocks_for(SMALL, MODEL, **pressure)  # type: ignore[arg-type]
