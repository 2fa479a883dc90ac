"""Reported hazards made to happen on a GPU: a kernel spins in front of the earlier access; with the fence nothing
differs.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kvsan.checker.judge import check_ops  # noqa: E402 - only where torch is
from kvsan.checker.serving.reenact import show  # noqa: E402
from kvsan.checker.trace import Header  # noqa: E402
from kvsan.model.designs import load, names  # noqa: E402
from kvsan.model.proof import Refuted, verify  # noqa: E402
from kvsan.model.proof.replay import replay  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
RACY = [name for name in names() if isinstance(found := verify(load(name)), Refuted) and found.findings.races]


@pytest.mark.parametrize("name", RACY)
def test_every_race_of_the_proof_comes_true_and_not_with_its_fence(name: str) -> None:
    verdict = verify(load(name))
    assert isinstance(verdict, Refuted)
    for race in verdict.findings.races:
        made = replay(verdict.design, race.schedule.actions)
        hazards = check_ops(Header(dict(made.pools), dict(made.streams)), made.ops, all_pairs=True).hazards
        hazard = next(h for h in hazards if f"{h.kind} {h.earlier.label} -> {h.later.label}" == str(race.pair))
        shown = show(made.ops, made.streams, hazard, "cuda")
        print(name, race.pair, "came true" if shown.came_true else "not shown", len(shown.wrong), len(shown.control))
        assert not shown.control, race.pair
        assert shown.wrong, race.pair
