"""The checker against the truth of the simulated machine, where every version of every block is known.

Of each seeded run: what garbled has a reported hazard in its lineage; what is reported comes true when it is replayed,
and not with its fence; where nothing is reported no other timing gives another completion; and what is proved of a
design holds of its runs. A subset here, 500 runs behind `sweep` (`make sweep ARGS="-n0 -s -k truth"`).
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from runtime.truth import Truth, hold_to_truth, one_thread


def held(seeds: range, *, pairs: int, schedules: int) -> Truth:
    one_thread()
    found = Truth()
    for seed in seeds:
        hold_to_truth(seed, found, pairs=pairs, schedules=schedules)
    print(found)
    assert not found.unexplained, found
    assert not found.unshown, found
    assert not found.uncontrolled, found
    assert not found.differing, found
    assert not found.against_proof, found
    return found


def test_a_few_runs() -> None:
    found = held(range(40), pairs=3, schedules=2)
    assert found.counts["garbled completions"] > 2
    assert found.counts["pairs replayed"] > 10
    assert found.counts["runs without a report"] > 10


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(4))
def test_500_runs(part: int) -> None:
    """In four parts, for as many cores. Every pair that is reported is replayed."""
    found = held(range(125 * part, 125 * part + 125), pairs=1 << 30, schedules=20)
    assert found.counts["pairs replayed"] >= 250
