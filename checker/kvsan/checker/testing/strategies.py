"""Hypothesis strategies: op streams, workloads, designs, host schedules.

Each draws small numbers and makes something legal of any of them, so that a failure shrinks well: parts go one by one,
and what is left gets simpler without ever becoming illegal. Sizes are bounded by arguments; nothing is filtered out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from kvsan.checker.testing.op_writer import DEFAULT_POOLS, DEFAULT_STREAMS, DEFAULT_THREADS, Writer
from kvsan.checker.testing.random_designs import Dice, drawn_design
from kvsan.model.design import Design
from kvsan.model.ops import Op, Stream

_STEP = st.binary(min_size=6, max_size=16)


def _dice(numbers: bytes) -> Dice:
    """Of bytes; when they run out every further answer is 0, the simplest."""
    source = iter(numbers)
    return Dice(lambda sides: next(source, 0) % sides)


@st.composite
def op_streams(
    draw: st.DrawFn,
    pools: Mapping[str, int] = DEFAULT_POOLS,
    streams: Mapping[str, Stream] | Iterable[str] = DEFAULT_STREAMS,
    threads: Sequence[str] = DEFAULT_THREADS,
    *,
    max_size: int = 40,
    safe: bool = False,
) -> list[Op]:
    """Legal ops on these pools (name → blocks), streams and host threads, as `Online.feed` and `check_trace` take them.

    `max_size`: accesses and other ops that are drawn; with `safe` those that order them come on top, and the result has
    no hazard. Raises `ValueError` if there is no pool, no stream or no thread.
    """
    names = list(streams)
    for what, given in (("pool", list(pools)), ("stream", names), ("thread", list(threads))):
        if not given:
            raise ValueError(f"op_streams: no {what} is given; accepted: one at least")
    writer = Writer(pools, names, threads, safe=safe)
    steps = st.one_of(st.lists(_STEP, max_size=max_size), st.lists(_STEP, min_size=max_size // 2, max_size=max_size))
    for step in draw(steps):
        writer.step(_dice(step))
    return writer.ops


@dataclass(frozen=True, slots=True)
class Request:
    """What a serving engine is asked. Lengths in tokens; `arrival` in engine steps.

    The first `shared` of the `prompt` tokens are those of prefix number `prefix`: requests of one prefix have them in
    common, as far as both go. `tokens` spells the prompt out: equal tokens exactly where requests share a prefix.
    """

    prompt: int
    new: int
    arrival: int = 0
    prefix: int = 0
    shared: int = 0
    number: int = 0

    @property
    def tokens(self) -> list[int]:
        """The prompt as made-up token ids."""
        common = [1_000 * (self.prefix + 1) + at for at in range(self.shared)]
        return common + [1_000_000 * (self.number + 1) + at for at in range(self.prompt - self.shared)]


@st.composite
def workloads(
    draw: st.DrawFn,
    *,
    max_requests: int = 4,
    max_prompt: int = 64,
    max_new: int = 16,
    max_arrival: int = 8,
    prefixes: int = 2,
    block: int = 16,
) -> list[Request]:
    """Requests in the order of their arrival. Prompt lengths and shared prefixes often end at a multiple of `block`
    tokens or one off it, where engines have their mistakes; one request at least.
    """
    near = [n for at in range(block, max_prompt + 1, block) for n in (at - 1, at, at + 1) if 1 <= n <= max_prompt]
    lengths = st.one_of(st.integers(1, max_prompt), *([st.sampled_from(near)] if near else []))
    arrival, out = 0, []
    for number in range(draw(st.integers(1, max_requests))):
        prompt = draw(lengths)
        shared = min(prompt, draw(st.one_of(st.just(0), lengths)))
        if number:
            arrival = min(max_arrival, arrival + draw(st.integers(0, max_arrival)))
        out.append(
            Request(
                prompt,
                draw(st.integers(1, max_new)),
                arrival,
                draw(st.integers(0, prefixes - 1)) if shared else 0,
                shared,
                number,
            )
        )
    return out


@st.composite
def designs(draw: st.DrawFn) -> Design:
    """Small designs in the design language, some of them safe: see `random_designs`."""
    return drawn_design(_dice(draw(st.one_of(st.binary(max_size=60), st.binary(min_size=40, max_size=60)))))


def host_schedules(max_moves: int = 40) -> st.SearchStrategy[list[int]]:
    """What the host does, as numbers: each names one of the moves that are possible when its turn comes
    (`Player.choose`), so that every list is a schedule of every design.
    """
    number = st.integers(0, (1 << 16) - 1)
    return st.one_of(
        st.lists(number, max_size=max_moves), st.lists(number, min_size=max_moves // 2, max_size=max_moves)
    )
