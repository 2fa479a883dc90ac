"""What is served: prompts that share prefixes as served traffic does, and how large a pool puts them under pressure.

Prefixes meet in the three ways that recorded traffic has ("KVCache Cache in the Wild", arXiv 2506.02634: reuse is
skewed, and comes from single turns as much as from later ones): a few system prompts of several blocks, some far more
popular than others (Zipf's law); conversations, whose next turn is the whole last one, reply included, and a new
message; and behind both a tail that nobody else has. How often is this workload's choice, not a measurement.
All of it follows from the seed. The replies are the right ones (`language.answers`), so a later turn finds in the
cache what an earlier turn's decoding has left there, if that is right.

Not here: arrival times. Whoever serves keeps `concurrency` requests running and takes the next when one is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import ceil

import numpy as np

from kvsan.runtime.language import Model, answers, prefix_hashes

_TRIES = 8
"""How many earlier requests are looked at for one that leaves room for a next turn."""


@dataclass(frozen=True, slots=True)
class Request:
    """`prompt` wants `new_tokens` more tokens. `abort_after`: its user goes away when that many came; None: stays."""

    number: int
    prompt: tuple[int, ...]
    new_tokens: int
    abort_after: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """What to draw. Lengths are (least, most) in tokens, drawn evenly. Raises ValueError for what cannot be drawn.

    `concurrency`: how many run at once. `system_prompts` prompts, the k-th with a weight of 1 / k ** `zipf`, begin
    every conversation (0: none do). A request is a next turn with probability `follow_ups`, if an earlier request is
    found that was not aborted and leaves room in `longest` tokens, prompt and completion; it never follows one of the
    `concurrency` requests right before it, which may well be running. `aborts`: the probability that a user goes away.
    """

    requests: int = 500
    concurrency: int = 64
    seed: int = 0
    system_prompts: int = 4
    system_tokens: tuple[int, int] = (32, 96)
    zipf: float = 1.0
    follow_ups: float = 0.3
    tail_tokens: tuple[int, int] = (4, 48)
    new_tokens: tuple[int, int] = (8, 48)
    longest: int = 320
    aborts: float = 0.0
    vocabulary: int = 50_000

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, tuple):
                if not 1 <= value[0] <= value[1]:
                    raise ValueError(f"Workload.{one.name} is {value}; want (least, most), 1 or more")
            elif one.name in ("follow_ups", "aborts"):
                if not 0 <= value <= 1:
                    raise ValueError(f"Workload.{one.name} is {value}; want a probability, 0 … 1")
            elif value < (1 if one.name in ("requests", "concurrency", "vocabulary") else 0):
                raise ValueError(
                    f"Workload.{one.name} is {value}; want 0 or more, and of what there must be, 1 or more"
                )
        most = self.tail_tokens[1] + self.new_tokens[1] + (self.system_tokens[1] if self.system_prompts else 0)
        if most > self.longest:
            raise ValueError(
                f"Workload.longest is {self.longest}; a first turn may take {most} tokens: want that or more"
            )


@dataclass(frozen=True, slots=True)
class Blocks:
    """How many blocks a GPU pool and a host pool have."""

    gpu: int
    host: int


def requests_of(workload: Workload, model: Model) -> tuple[Request, ...]:
    """The requests, in the order of their arrival. The model is asked for the replies that later turns repeat."""
    rng = np.random.default_rng(workload.seed)

    def draw(between: tuple[int, int]) -> tuple[int, ...]:
        return tuple(rng.integers(0, workload.vocabulary, rng.integers(between[0], between[1] + 1)).tolist())

    systems = [draw(workload.system_tokens) for _ in range(workload.system_prompts)]
    weights = np.arange(1, len(systems) + 1, dtype=float) ** -workload.zipf
    requests: list[Request] = []
    replies: list[list[int]] = []
    for number in range(workload.requests):
        tail, new_tokens = draw(workload.tail_tokens), int(rng.integers(*workload.new_tokens, endpoint=True))
        earlier = number - workload.concurrency
        if earlier > len(replies):  # of all that are there by now at once: it is the number of calls that costs
            replies += answers(model, [(r.prompt, r.new_tokens) for r in requests[len(replies) :]])
        prompt: tuple[int, ...] = ()
        if rng.random() < workload.follow_ups and earlier > 0:
            room = workload.longest - len(tail) - new_tokens
            for parent in rng.integers(0, earlier, _TRIES).tolist():
                whole = (*requests[parent].prompt, *replies[parent])
                if len(whole) <= room and requests[parent].abort_after is None:
                    prompt = whole
                    break
        if not prompt and systems:
            prompt = systems[int(rng.choice(len(systems), p=weights / weights.sum()))]
        leaves, when = rng.random() < workload.aborts, int(rng.integers(0, new_tokens))
        requests.append(Request(number, (*prompt, *tail), new_tokens, when if leaves else None))
    return tuple(requests)


def blocks_for(
    workload: Workload,
    model: Model,
    *,
    oversubscribed: float = 10.0,
    host: float = 1.0,
    requests: Sequence[Request] | None = None,
) -> Blocks:
    """Pools so small, or large, that what wants to be in them is as many times as much as they hold.

    On the GPU that is what `concurrency` requests of mean length hold at their ends, shared blocks counted for each:
    10.0 is a pool of a tenth of it, 0.5 one of twice. On the host it is every full block of the workload that has a
    content of its own, `host` times as many as the pool has. But a GPU pool always holds the longest request, nothing
    of it given back, and a block a group for the run-ahead. `requests`: the workload's, if they are there already.
    Raises ValueError for a pressure of 0 or less.
    """
    if not (oversubscribed > 0 and host > 0):
        raise ValueError(f"blocks_for: pressures of {oversubscribed} and {host}; want more than 0")
    requests = requests_of(workload, model) if requests is None else requests
    ends = [len(request.prompt) + request.new_tokens for request in requests]
    wanted = min(workload.concurrency, len(ends)) * sum(held(model, end) for end in ends) / len(ends)
    longest = (model.blocks(max(ends)) + 1) * len(model.groups)
    replies = answers(model, [(request.prompt, request.new_tokens) for request in requests])
    contents = {
        content
        for request, reply in zip(requests, replies, strict=True)
        for content in prefix_hashes(model, (*request.prompt, *reply[:-1]), "")  # the last token's KV is never computed
    }
    on_host = len(contents) * len(model.groups) / host
    return Blocks(max(ceil(wanted / oversubscribed), longest), max(ceil(on_host), 1))


def held(model: Model, tokens: int) -> int:
    """The most blocks that a request of so many tokens holds at its end, those behind a window given back."""
    whole = model.blocks(tokens)  # a window of n tokens lies in one block more than n tokens fill, at worst
    return sum(whole if g.window is None else min(whole, model.blocks(g.window - 1) + 1) for g in model.groups)
