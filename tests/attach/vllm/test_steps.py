"""What a forward reads and writes, against a reading of the messages that takes its time."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvsan.checker.attach.lines import TOLD, decoded, encoded
from kvsan.checker.attach.vllm.decoding import Decoding
from kvsan.checker.attach.vllm.groups import Group, group_of
from kvsan.checker.attach.vllm.steps import Messages, Steps

SIZE, WINDOW, CHUNK = 4, 10, 8
GROUPS = (Group(SIZE, "full"), Group(SIZE, "sliding", WINDOW), Group(SIZE, "chunked", CHUNK), Group(SIZE, "mamba"))


class Slowly:
    """The same rules a token at a time."""

    def __init__(self) -> None:
        self.blocks: dict[str, list[list[int]]] = {}

    def touched(self, name: str, computed: int, new: int) -> tuple[set[int], set[int]]:
        reads, writes = set(), set()
        for group, ids in zip(GROUPS, self.blocks[name], strict=True):
            for at in range(computed, computed + new):
                writes.add(ids[at // SIZE])
                seen = {
                    "full": range(at + 1),
                    "sliding": range(max(0, at - WINDOW + 1), at + 1),
                    "chunked": range(at // CHUNK * CHUNK, at + 1),
                    "mamba": range(max(0, computed - 1), at + 1),
                }[group.kind]
                reads |= {ids[key // SIZE] for key in seen}
        return reads - {0}, writes - {0}


@pytest.mark.parametrize("usual", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_sets_of_random_runs(seed: int, usual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`usual`: mostly steps of the same requests with one token each. All are worked out late, half after a journey."""
    rng, rare = random.Random(seed), 0.1 if usual else 1.0
    if usual:
        monkeypatch.setattr(sys.modules[__name__], "GROUPS", GROUPS[:3])
    messages, steps, slow = Messages(), Steps(GROUPS, 4096), Slowly()
    late: list[tuple[Any, set[int], set[int]]] = []
    short: list[int] = []
    feed = Decoding.feed

    def counted(self: Decoding, computed: list[int]) -> Any:
        found = feed(self, computed)
        short.append(found is not None)
        return found

    monkeypatch.setattr(Decoding, "feed", counted)
    fresh = iter(range(1, 4096))
    done: dict[str, int] = {}
    paused: set[str] = set()
    made = 0
    for _ in range(300 if usual else 60):
        finished = {name for name in done if rng.random() < 0.05 * rare**2}
        news, names, more, resumed = [], [], [], set()
        for name in finished:
            del done[name], slow.blocks[name]
        running = [name for name in done if name not in paused]
        paused = {name for name in done if rng.random() < 0.15 * rare**2}
        many = rng.random() < rare
        tokens = {name: rng.choice((1, 1, 1, 5)) if many else 1 for name in done if name not in paused}
        for name in tokens:
            extra: Any = None
            if name not in running and rng.random() < 0.5:  # preempted meanwhile: all its blocks are new
                resumed.add(name)
                done[name] = 0
                slow.blocks[name] = [[] for _ in GROUPS]
            want = (done[name] + tokens[name] - 1) // SIZE + 1
            missing = want - len(slow.blocks[name][0])
            if missing > 0:
                extra = tuple([next(fresh) for _ in range(missing)] for _ in GROUPS)
                for ids, added in zip(slow.blocks[name], extra, strict=True):
                    ids.extend(added)
            names.append(name)
            more.append(extra)
        while rng.random() < 0.4 * rare:
            made += 1
            name, length, computed = f"r{made}", rng.randrange(1, 40), rng.choice((0, 0, 8))
            count = (computed + length - 1) // SIZE + 1
            slow.blocks[name] = [
                [0 if at < skipped else next(fresh) for at in range(count)] for skipped in (0, 1, 0, 0)[: len(GROUPS)]
            ]
            news.append(SimpleNamespace(req_id=name, block_ids=tuple(slow.blocks[name]), num_computed_tokens=computed))
            done[name], tokens[name] = computed, length
        cached = SimpleNamespace(
            req_ids=names,
            new_block_ids=more,
            num_computed_tokens=[done[name] for name in names],
            resumed_req_ids=resumed,
        )
        message = messages.take(
            SimpleNamespace(
                finished_req_ids=finished,
                scheduled_new_reqs=[copied(new) for new in news],
                scheduled_cached_reqs=cached,
                num_scheduled_tokens=tokens,
                scheduled_encoder_inputs={},
            )
        )
        reads: set[int] = set()
        writes: set[int] = set()
        for name, new in tokens.items():
            read, written = slow.touched(name, done[name], new)
            reads |= read
            writes |= written
            done[name] += new
            if usual and rng.random() < 0.01:
                done[name] = max(0, done[name] - 6)  # what was computed is void
        if message is None:
            assert not tokens
            assert not finished
            continue
        late.append((message, reads, writes))
        while late and rng.random() < 0.7:
            message, reads, writes = late.pop(0)
            if rng.random() < 0.5:
                ((_, _, message),) = decoded(encoded([(TOLD, "steps", message)]))
            found = steps.blocks(message)
            assert set(found[0].tolist()) == reads
            assert set(found[1].tolist()) == writes
    assert sum(short) > 100 if usual else not short


def copied(new: Any) -> Any:
    """The worker keeps its own lists."""
    return SimpleNamespace(**{**vars(new), "block_ids": tuple(list(ids) for ids in new.block_ids)})


def spec(name: str, *bases: str, **fields: Any) -> Any:
    parents = tuple(type(base, (), {}) for base in bases)
    return SimpleNamespace(kv_cache_spec=type(name, parents, fields)())


def test_kinds_are_told_by_what_a_spec_is() -> None:
    assert group_of(spec("FullAttentionSpec", block_size=16, sliding_window=128)) == Group(
        16, "full", 0, "FullAttentionSpec"
    )
    window = group_of(spec("SlidingWindowMLASpec", "SlidingWindowSpec", block_size=16, sliding_window=128), 2)
    assert (window.kind, window.block_size, window.width) == ("sliding", 32, 128)
    assert group_of(spec("MLAAttentionSpec", "FullAttentionSpec", block_size=64)).kind == "full"
    assert group_of(spec("SomethingNewSpec", block_size=16)).kind == "unknown"
    parts = {"a": spec("FullAttentionSpec", block_size=16).kv_cache_spec}
    assert group_of(spec("UniformTypeKVCacheSpecs", block_size=16, kv_cache_specs=parts)).kind == "full"


def test_an_encoder_s_blocks_are_written_when_it_runs() -> None:
    messages, steps = Messages(crosses=True), Steps([Group(16, "cross")], 64)

    def step(inputs: dict[str, Any], new: list[Any], cached: list[str]) -> Any:
        message = messages.take(
            SimpleNamespace(
                finished_req_ids=set(),
                scheduled_new_reqs=new,
                scheduled_cached_reqs=SimpleNamespace(
                    req_ids=cached, new_block_ids=[None] * len(cached), num_computed_tokens=[1] * len(cached)
                ),
                num_scheduled_tokens={"a": 1},
                scheduled_encoder_inputs=inputs,
            )
        )
        assert message is not None
        return steps.blocks(message)

    first = step({"a": [0]}, [SimpleNamespace(req_id="a", block_ids=([5, 6],), num_computed_tokens=0)], [])
    assert [part.tolist() for part in first] == [[5, 6], [5, 6]]
    second = step({}, [], ["a"])
    assert [part.tolist() for part in second] == [[5, 6], []]
    assert second[1].dtype == np.int64
