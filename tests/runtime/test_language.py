"""The integer language model: what a completion is, and that every word in view counts and no other."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsan.runtime.language import Group, Model, answer, answers, mix, prefix_hash, prefix_hashes, signed

MASK = (1 << 64) - 1


# ── the same model, written again in whole numbers, one word at a time ────────────────────────────────────────────────


def slow_mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def slow_key(model: Model, group: int, layer: int, word: int) -> int:
    nth = (group * model.layers + layer) * model.words + word + 1
    return slow_mix((slow_mix((2 * model.seed + 1) & MASK) + nth * 0x9E3779B97F4A7C15) & MASK)


def slow_place(position: int) -> int:
    return slow_mix(((position + 1) * 0x9E3779B97F4A7C15) & MASK)


Cell = tuple[int, int, int, int]  # group, layer, position, word


def cache(model: Model, tokens: Sequence[int]) -> dict[Cell, int]:
    return {
        (group, layer, position, word): slow_mix(
            slow_mix(token ^ slow_place(position)) ^ slow_key(model, group, layer, word)
        )
        for group in range(len(model.groups))
        for layer in range(model.layers)
        for position, token in enumerate(tokens)
        for word in range(model.words)
    }


def in_view(model: Model, cell: Cell, position: int) -> bool:
    window = model.groups[cell[0]].window
    return cell[2] <= position and (window is None or cell[2] > position - window)


def next_token(model: Model, cells: dict[Cell, int], position: int) -> int:
    total = sum(
        slow_mix(word ^ slow_place(cell[2]) ^ slow_key(model, cell[0], cell[1], cell[3]))
        for cell, word in cells.items()
        if in_view(model, cell, position)
    )
    return slow_mix((total & MASK) ^ ((0x9E3779B97F4A7C15 * (model.seed + 1)) & MASK)) & (MASK >> 1)


def slow_answer(model: Model, prompt: Sequence[int], new_tokens: int) -> list[int]:
    made: list[int] = []
    while len(made) < new_tokens and not (made and model.stops(made[-1])):
        tokens = [*prompt, *made]
        made.append(next_token(model, cache(model, tokens), len(tokens) - 1))
    return made


GROUPS = [
    (Group("full"),),
    (Group("window", 1),),
    (Group("full"), Group("window", 3)),
    (Group("wide", 5), Group("narrow", 2)),
]
models = st.builds(
    Model,
    st.sampled_from(GROUPS),
    layers=st.integers(1, 3),
    block_size=st.integers(1, 4),
    words=st.integers(1, 2),
    stop_every=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, MASK),
)
prompts = st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=9)


@given(models, st.lists(st.tuples(prompts, st.integers(0, 5)), max_size=4))
def test_answers_are_those_of_the_slow_model(model: Model, requests: list[tuple[list[int], int]]) -> None:
    assert answers(model, requests) == [slow_answer(model, prompt, count) for prompt, count in requests]


@given(st.lists(st.integers(0, MASK), min_size=1))
def test_mix_is_the_finalizer_and_leaves_its_argument(values: list[int]) -> None:
    before = np.array([signed(value) for value in values])
    given_ = before.copy()
    assert mix(given_).tolist() == [signed(slow_mix(value)) for value in values]
    assert (given_ == before).all()


def test_the_finalizer_is_splitmix64s() -> None:
    """The first outputs of the published generator for seed 1234567, as rosettacode.org lists them."""
    state, made = 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        made.append(int(mix(np.array([signed(state)]))[0]) & MASK)
    assert made == [6457827717110365317, 3203168211198807973, 9817491932198370423]


# ── every word in view counts, and no other ───────────────────────────────────────────────────────────────────────────


@given(models, prompts, st.data())
def test_one_wrong_word_in_view_changes_the_next_token(model: Model, tokens: list[int], data: st.DataObject) -> None:
    cells, last = cache(model, tokens), len(tokens) - 1
    cell = data.draw(st.sampled_from([cell for cell in cells if in_view(model, cell, last)]))
    wrong = cells | {cell: cells[cell] ^ data.draw(st.integers(1, MASK))}
    assert next_token(model, wrong, last) != next_token(model, cells, last)


@given(models, prompts, st.data())
def test_a_wrong_word_out_of_view_changes_nothing(model: Model, tokens: list[int], data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(tokens) - 1))
    cells = cache(model, tokens)
    hidden = {cell: data.draw(st.integers(0, MASK)) for cell in cells if not in_view(model, cell, position)}
    assert next_token(model, cells | hidden, position) == next_token(model, cells, position)


@pytest.mark.parametrize("groups", GROUPS)
def test_blocks_that_changed_places_change_the_next_token(groups: tuple[Group, ...]) -> None:
    model = Model(groups, layers=2)
    tokens = [5] * 8  # the same token everywhere: only the place differs
    cells = cache(model, tokens)
    for cell in [cell for cell in cells if cell[2] == 7]:
        other = (cell[0], cell[1], 6, cell[3])
        if in_view(model, other, 7):
            swapped = cells | {cell: cells[other], other: cells[cell]}
            assert next_token(model, swapped, 7) != next_token(model, cells, 7)


def test_a_token_that_differs_changes_what_comes_after() -> None:
    model, rng = Model((Group("full"), Group("window", 4))), random.Random(7)
    for _ in range(20):
        prompt = [rng.randrange(50_000) for _ in range(30)]
        other = prompt.copy()
        other[rng.randrange(30)] += 1
        assert not set(answer(model, prompt, 10)) & set(answer(model, other, 10))


def test_what_a_window_has_left_behind_does_not_count() -> None:
    model = Model((Group("window", 4),))
    assert answer(model, [1, 2, 3, 4, 5, 6], 8) == answer(model, [9, 9, 3, 4, 5, 6], 8)


def test_equal_prefixes_have_equal_words_and_groups_do_not_share_them() -> None:
    model = Model((Group("a"), Group("b")), layers=2)
    one, two = cache(model, [1, 2, 3]), cache(model, [1, 2, 4])
    assert all((one[cell] == two[cell]) == (cell[2] < 2) for cell in one)
    assert len(set(one.values())) == len(one)


# ── ends, shapes, errors ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_ends_the_completion_and_belongs_to_it() -> None:
    model, free = Model(stop_every=5), Model()
    prompts = [[seed, 1, 2] for seed in range(40)]
    ended = answers(model, [(prompt, 30) for prompt in prompts])
    for made, whole in zip(ended, answers(free, [(prompt, 30) for prompt in prompts]), strict=True):
        assert made == whole[: len(made)]
        assert [model.stops(token) for token in made] == [False] * (len(made) - 1) + [
            len(made) < 30 or made[-1] % 5 == 0
        ]
    assert any(len(made) < 30 for made in ended)
    assert not any(free.stops(token) for token in range(10))


def test_a_longer_completion_begins_with_the_shorter() -> None:
    assert answer(Model(), [1, 2], 9)[:4] == answer(Model(), [1, 2], 4)


def test_a_groups_view_begins_where_no_later_token_looks_back() -> None:
    assert [Group("g", 3).seen_from(position) for position in range(6)] == [0, 0, 0, 1, 2, 3]
    assert Group("g").seen_from(1000) == 0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"groups": ()}, "Model.groups"),
        ({"groups": (Group("a"), Group("a"))}, "of its own name"),
        ({"groups": (Group("a", 0),)}, "window of 'a' is 0"),
        ({"layers": 0}, "layers is 0"),
        ({"block_size": 0}, "block_size is 0"),
        ({"stop_every": 0}, "stop_every is 0"),
    ],
)
def test_a_model_that_cannot_be(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Model(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("prompt", [[], [3, -1]])
def test_a_prompt_that_cannot_be(prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="prompt 1"):
        answers(Model(), [([1], 1), (prompt, 1)])


def test_no_requests_and_no_tokens() -> None:
    assert answers(Model(), []) == []
    assert answers(Model(), [([1], 0), ([2], 0)]) == [[], []]


# ── prefix hashes ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_prefix_hash_is_of_all_tokens_so_far_and_the_group() -> None:
    model = Model(block_size=2)
    one = prefix_hashes(model, [1, 2, 3, 4, 5], "a")
    assert one == prefix_hashes(model, [1, 2, 3, 4, 9], "a")  # a part of a block has none
    assert one[0] == prefix_hash(None, [1, 2], "a")
    assert one[1] == prefix_hash(one[0], np.array([3, 4]), "a")
    others = [prefix_hashes(model, tokens, "a") for tokens in ([1, 2, 4, 3], [2, 1, 3, 4], [3, 4, 1, 2])]
    assert [other[0] == one[0] for other in others] == [True, False, False]
    assert len({one[1], *(other[1] for other in others)}) == 4
    assert not set(one) & set(prefix_hashes(model, [1, 2, 3, 4], "b"))
    assert prefix_hash(0, [1, 2], "a") != prefix_hash(None, [1, 2], "a")


def test_a_prefix_hash_is_the_same_in_every_process() -> None:
    assert prefix_hash(None, [1, 2, 3], "full") == 12048975299763053061
