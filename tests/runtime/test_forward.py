"""A step's kernel on a CPU: chunks, tables, run-ahead and parts, against the right answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsan.runtime.language import UNKNOWN, Group, Model, answer, mix

torch = pytest.importorskip("torch")

from kvsan.runtime.forward import Ballast, Forward, Row, batch_of  # noqa: E402 - only where torch is
from runtime.bare import Server, serve  # noqa: E402

BOTH = (Group("full"), Group("window", 5))


models = st.builds(
    Model,
    st.sampled_from([(Group("full"),), (Group("window", 1),), BOTH, (Group("w", 9), Group("v", 4), Group("full"))]),
    layers=st.integers(1, 3),
    block_size=st.integers(1, 5),
    words=st.integers(1, 2),
    seed=st.integers(0, 1 << 64),
)
prompts = st.lists(st.integers(0, 50_000), min_size=1, max_size=28)
requests_ = st.lists(st.tuples(prompts, st.integers(1, 8)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(
    models, requests_, st.lists(st.integers(1, 27), max_size=3), st.booleans(), st.integers(0, 99), st.integers(1, 7)
)
def test_the_kernels_give_the_right_answer(
    model: Model, requests: list[tuple[list[int], int]], cuts: list[int], known: bool, seed: int, parts: int
) -> None:
    """On a pool full of garbage, in blocks anywhere, in any chunks, with tokens that only the device knows."""
    server = Server(model, seed, parts=parts)
    assert serve(server, requests, cuts, known) == [answer(model, prompt, count) for prompt, count in requests]


@pytest.mark.parametrize("parts", range(1, 10))
def test_a_kernel_has_its_parts(parts: int) -> None:
    server = Server(Model(BOTH, layers=3), 1, parts=parts)
    kernel = server.step([server.row(0, 0, [1, 2, 3])])
    assert parts + 2 <= len(kernel.parts) <= parts + 4


def test_reads_and_writes_are_what_the_kernel_touches() -> None:
    model = Model(BOTH, layers=2, block_size=4)
    server = Server(model, 3)
    server.step([server.row(0, 0, list(range(13)))])
    before = server.pool.clone()
    kernel = server.step([server.row(0, 13, [1, 2, 3, 4]), server.row(2, 0, [5])])
    changed = (server.pool != before).any(3).any(2).any(0).nonzero().ravel().tolist()
    full, window = server.tables[0]
    new = [table[0] for table in server.tables[2]]
    assert kernel.writes["gpu"].tolist() == sorted([*full[3:], *window[3:], *new]) == changed
    assert kernel.reads["gpu"].tolist() == sorted([*full, *window[3:], *new])  # position 16 sees 12 … 16
    assert (kernel.name, kernel.step) == ("forward", 1)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.data())
def test_one_wrong_word_that_is_read_changes_the_token_and_another_does_not(seed: int, data: st.DataObject) -> None:
    model = Model(BOTH, layers=2, block_size=4)
    prompt = data.draw(st.lists(st.integers(0, 9), min_size=2, max_size=20))
    right = answer(model, prompt, 3)
    server = Server(model, seed)
    server.step([server.row(0, 0, prompt)])
    row = server.row(0, len(prompt), [UNKNOWN])
    group, position = data.draw(st.integers(0, 1)), data.draw(st.integers(0, len(prompt) - 1))
    block = server.tables[0][group][position // 4]
    seen = position >= model.groups[group].seen_from(len(prompt))
    if block >= 0:
        server.pool[data.draw(st.integers(0, 1)), block, position % 4] ^= 1 << data.draw(st.integers(0, 62))
    server.step([row])
    server.step([server.row(0, len(prompt) + 1, [UNKNOWN])])
    got = [int(server.out[step, 0]) for step in range(3)]
    assert got[0] == right[0]
    assert [a == b for a, b in zip(got[1:], right[1:], strict=True)] == [not seen] * 2


@pytest.mark.parametrize("part", range(1, 4))
def test_a_block_that_is_torn_between_two_parts_is_noticed_until_the_last_read(part: int) -> None:
    model = Model(layers=2, block_size=4)
    server = Server(model, 5, parts=2)
    server.step([server.row(0, 0, [1, 2, 3, 4, 5])])
    kernel = server.forward(batch_of([server.row(0, 5, [UNKNOWN])]), server.out[1])
    for i, do in enumerate(kernel.parts):
        if i == part:
            server.pool[:, server.tables[0][0][0]] = 0
        do()
    assert (int(server.out[1, 0]) == answer(model, [1, 2, 3, 4, 5], 2)[1]) == (part == 3)


def test_the_batch_may_be_written_once_the_call_has_returned() -> None:
    server = Server(Model(block_size=4), 1)
    batch = batch_of([server.row(0, 0, [1, 2, 3])])
    kernel = server.forward(batch, server.out[0])
    for array in (batch.slots, batch.first, batch.count, batch.tokens, batch.tables):
        array[...] = 99
    for part in kernel.parts:
        part()
    assert int(server.out[0, 0]) == answer(server.model, [1, 2, 3], 1)[0]


def test_a_row_that_samples_nothing_leaves_its_slots_token() -> None:
    server = Server(Model(), 1)
    server.step([server.row(1, 0, [1, 2], samples=False), server.row(2, 0, [3])])
    assert server.out[0].tolist() == [7, 7, answer(server.model, [3], 1)[0], 7]


def test_a_step_without_rows() -> None:
    server = Server(Model(BOTH), 1)
    batch = batch_of([server.row(0, 0, [1])])
    none = np.empty(0, np.int64)
    kernel = server.forward(type(batch)(none, none, none, none, none.astype(bool), batch.tables), server.out[0])
    for part in kernel.parts:
        part()
    assert server.out[0].tolist() == [7] * 4
    assert kernel.reads["gpu"].tolist() == kernel.writes["gpu"].tolist() == []


def test_a_new_token_that_its_own_chunk_leaves_behind_needs_no_block() -> None:
    model = Model((Group("window", 3),), block_size=2)
    server = Server(model, 2)
    row = server.row(0, 0, [1, 2, 3, 4, 5, 6, 7])
    table = [-1, -1, *row.tables[0][2:]]
    kernel = server.step([Row(0, 0, row.tokens, [table])])
    assert kernel.writes["gpu"].tolist() == sorted(table[2:])
    assert int(server.out[0, 0]) == answer(model, list(range(1, 8)), 1)[0]


@pytest.mark.parametrize("block", [-1, 10_000])
def test_a_block_in_view_that_is_not_there_is_named(block: int) -> None:
    server = Server(Model(BOTH, block_size=4), 2)
    row = server.row(3, 0, list(range(14)))
    row.tables[1][2] = block  # type: ignore[index]
    before = server.pool.clone()
    says = rf"slot 3 has block {block} of group 'window' for positions from 8; want one of 0 … \d+, as position 13"
    with pytest.raises(ValueError, match=says):
        server.step([row])
    assert (server.pool == before).all()


def test_ballast_changes_nothing_but_time() -> None:
    server = Server(Model(BOTH), 1, ballast=Ballast(layers=2, width=8))
    assert serve(server, [([1, 2, 3], 4)], [], False) == [answer(server.model, [1, 2, 3], 4)]


def test_what_cannot_be_built() -> None:
    model = Model(layers=2)
    tokens = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="want a CUDA device"):
        Forward(model, torch.zeros(model.pool_shape(3), dtype=torch.int64), tokens, spin_cycles=1)
    with pytest.raises(ValueError, match=r"a pool of \(2, 3, 16, 2\)"):
        Forward(model, torch.zeros((2, 3, 16, 2), dtype=torch.int64), tokens)


def test_torch_mixes_as_numpy_does() -> None:
    values = np.random.default_rng(0).integers(-(1 << 63), (1 << 63) - 1, 10_001, endpoint=True)
    assert (mix(torch.from_numpy(values)).numpy() == mix(values)).all()
