"""Hypothesis strategies for traces: the class of `random_traces`, built so that a failure shrinks well.

Each op comes from a byte string of its own; the builder makes something legal of any bytes. Hypothesis can
therefore take out whole ops, and make each smaller, without ever leaving the set of legal traces, and zero is
the simplest choice everywhere (an access, host thread 0, stream 0, block 0, in stream order).
"""

from __future__ import annotations

from hypothesis import strategies as st

from oracle import Op
from random_traces import CAREFUL, CARELESS, CUT, TRUSTING, WILD, Builder, Dice, cut, random_header

_STEP = st.binary(min_size=8, max_size=20)
_STEPS = st.one_of(  # growing lengths, for enough long traces; drawn alike, so that the first can shrink them
    st.lists(_STEP, max_size=40),
    st.lists(_STEP, min_size=8, max_size=40),
    st.lists(_STEP, min_size=20, max_size=40),
)


@st.composite
def traces(draw: st.DrawFn, style: str | None = None) -> tuple[Op, list[Op]]:
    """A legal trace as (header, ops); `style` fixes how it is ordered (`careful`: it has no hazard)."""
    chosen = style or draw(st.sampled_from([WILD, CAREFUL, CUT, TRUSTING, CAREFUL, CARELESS]))
    start = Dice(draw(st.binary(max_size=24)))
    header = random_header(start)
    builder = Builder(header, start, chosen)
    for step in draw(_STEPS):
        builder.step(Dice(step))
    ops = builder.ops
    if chosen == CUT:
        ops = cut(header, ops, Dice([draw(st.integers(0, 60))]))
    return header, ops
