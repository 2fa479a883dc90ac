"""Reported hazards made to happen on a GPU: a kernel spins in front of the earlier access; with the fence nothing
differs.

    python tests/gpu/test_reenact_cuda.py  # or pytest -m gpu tests/gpu/test_reenact_cuda.py

Prints a line a design. Each of the 36 races spins twice, 50 ms (150 where a write in between hides the read).
"""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from kvsan.checker.judge import check_ops  # noqa: E402 - only where torch is
from kvsan.checker.serving.reenact import Where, show  # noqa: E402
from kvsan.checker.trace import Header  # noqa: E402
from kvsan.model.designs import load, names  # noqa: E402
from kvsan.model.proof import Refuted, verify  # noqa: E402
from kvsan.model.proof.replay import replay  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
RACY = [name for name in names() if (expected := load(name).expected) is not None and expected.races]


def shown(name: str, where: Where = "cuda") -> tuple[str, bool]:
    """Every race that the proof found in the design, and whether all came true and none with its fence."""
    verdict = verify(load(name))
    assert isinstance(verdict, Refuted)
    wrong = []
    for race in verdict.findings.races:
        made = replay(verdict.design, race.schedule.actions)
        hazards = check_ops(Header(dict(made.pools), dict(made.streams)), made.ops, all_pairs=True).hazards
        hazard = next(h for h in hazards if f"{h.kind} {h.earlier.label} -> {h.later.label}" == str(race.pair))
        found = show(made.ops, made.streams, hazard, where)
        if not found.wrong:
            wrong.append(f"{race.pair} did not come true")
        if found.control:
            wrong.append(f"{race.pair} with its fence: {found.control[0]}")
    count = len(verdict.findings.races)
    assert count, "the design has no race"
    words = ", ".join(wrong) or "all came true, none with its fence"
    return f"{name}: {count} {'race' if count == 1 else 'races'}: {words}", not wrong


@pytest.mark.parametrize("name", RACY)
def test_every_race_of_the_proof_comes_true_and_not_with_its_fence(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line, right = shown(name)
    with capsys.disabled():
        print(f"\n{line}", end="", flush=True)
    assert right, line


def main() -> int:
    """Without pytest; 1 if a race was not shown."""
    if not torch.cuda.is_available():
        print("no GPU")
        return 2
    status = 0
    for name in RACY:
        line, right = shown(name)
        print(line, flush=True)
        status |= not right
    return status


if __name__ == "__main__":
    sys.exit(main())
