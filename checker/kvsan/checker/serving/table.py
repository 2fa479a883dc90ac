"""What came out of a serving run, for people and for programs: garbled completions beside hazards, and what it cost.

A kind of hazard whose absence the design does not claim is named and counts in the verdict: that nobody promised it
makes it no less real (a copy that acts for another owner may be ordered, so that nothing else is reported, and still
bring the wrong bytes), and `kvsan check` says the same of the trace. It is said that the design does not claim it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kvsan.checker.report.page import Page, count
from kvsan.checker.report.text import describe
from kvsan.checker.serving.fences import Fence, fenced
from kvsan.checker.serving.trial import Round, Trial
from kvsan.model.design import Claim

KINDS = ("RAW", "WAR", "WAW", "GEN", "BATCH")
_CLAIM = {
    **dict.fromkeys(("RAW", "WAR", "WAW"), Claim.RACE_FREE),
    "GEN": Claim.RIGHT_GENERATION,
}
"""By which claim a design says that it has none of the kind."""
_COLOUR = {"clean": "green", "racy": "red", "incomplete": "yellow"}


def verdict_of(rounds: Sequence[Round]) -> str:
    """The worst verdict of the rounds; `not checked` if none was."""
    names = {one.summary.verdict.name for one in rounds if one.summary is not None}
    return next((name for name in ("racy", "incomplete", "clean") if name in names), "not checked")


def totals_of(rounds: Sequence[Round]) -> Counter[tuple[str, str, str]]:
    """Blocks by kind and labels, over the rounds."""
    out: Counter[tuple[str, str, str]] = Counter()
    for one in rounds:
        out.update(one.totals)
    return out


def unclaimed(trial: Trial, rounds: Sequence[Round]) -> dict[str, Claim]:
    """The kinds of hazard that blocks of the design's pool had and whose absence the design does not claim."""
    design = trial.design
    if design is None:
        return {}
    kinds = {
        found.hazard.kind.value
        for one in rounds
        if one.summary is not None
        for found in one.summary.findings
        if found.hazard.pool == design.pool
    }
    return {kind: claim for kind, claim in _CLAIM.items() if kind in kinds and claim not in design.claims}


def document(trial: Trial, rounds: Sequence[Round]) -> dict[str, Any]:
    """One line of JSON."""
    design = trial.design
    return {
        "kvsan": 1,
        "run": design.name if design is not None else None,
        "fence": trial.fence,
        "device": trial.device,
        "policy": trial.policy if trial.device == "simulated" else None,
        "seed": trial.seed,
        "run_ahead": trial.run_ahead,
        "verdict": verdict_of(rounds),
        "completions": sum(one.completions for one in rounds),
        "garbled": sum(len(one.garbled) for one in rounds),
        "hazards": [one.first.document() for one in rounds if one.first is not None],
        "totals": [
            {"kind": kind, "earlier": earlier, "later": later, "blocks": blocks}
            for (kind, earlier, later), blocks in sorted(totals_of(rounds).items())
        ],
        "unclaimed": {kind: str(claim) for kind, claim in unclaimed(trial, rounds).items()},
        "interrupted": any(one.interrupted for one in rounds),
        "rounds": [
            {
                "completions": one.completions,
                "garbled": one.garbled,
                "steps": one.steps,
                "tokens": one.tokens,
                "loads": one.loads,
                "stores": one.stores,
                "preemptions": one.preemptions,
                "seconds": round(one.seconds, 3),
                "watched_seconds": round(one.watched, 4),
                "ops": one.summary.ops if one.summary is not None else None,
            }
            for one in rounds
        ],
    }


def run(trial: Trial, rounds: Sequence[Round], width: int, *, colour: bool = False) -> str:
    """The summary of `kvsan run`."""
    page = Page(width, colour=colour)
    _title(page, trial, rounds, trial.fence)
    page.table(
        ["round", "completions", "garbled", *_kinds(rounds), "steps", "loads", "stores", "tokens/s", "watching"],
        [_row(one, _kinds(rounds)) for one in rounds],
        right=tuple(range(1, 8 + len(_kinds(rounds)))),
    )
    _pairs(page, rounds)
    _unclaimed(page, trial, rounds)
    _why(page, rounds)
    first = next((one.first for one in rounds if one.first is not None), None)
    if first is not None:
        page.blank()
        page.line("the first of them:", 2)
        describe(page, first)
    return str(page)


def bisection(trial: Trial, found: Mapping[Fence, Sequence[Round]], width: int, *, colour: bool = False) -> str:
    """The table of `kvsan bisect`."""
    page = Page(width, colour=colour)
    every = [one for rounds in found.values() for one in rounds]
    _title(page, trial, every, "each fence mode in turn")
    kinds = _kinds(every)
    rows = []
    for mode, rounds in found.items():
        done, bad = sum(one.completions for one in rounds), sum(len(one.garbled) for one in rounds)
        by_kind = _by_kind(rounds)
        rows.append(
            [
                mode,
                f"{bad:,}/{done:,}",
                f"{100 * bad / done:.1f} %" if done else "–",
                *(f"{by_kind[kind]:,}" if by_kind[kind] else "–" for kind in kinds),
                verdict_of(rounds),
            ]
        )
    page.table(["fence", "garbled", "rate", *kinds, "verdict"], rows, right=tuple(range(1, 3 + len(kinds))))
    for mode, rounds in found.items():
        if totals_of(rounds):
            page.blank()
            page.line(f"{mode}: {_sentence(totals_of(rounds))}", 2)
    _unclaimed(page, trial, every)
    _why(page, every)
    return str(page)


def _title(page: Page, trial: Trial, rounds: Sequence[Round], how: str) -> None:
    design = trial.design
    name = design.name if design is not None else "the default design"
    verdict = verdict_of(rounds)
    page.lines.append(f"{name}: {page.paint(verdict.upper(), fg=_COLOUR.get(verdict), bold=True)}")
    if design is not None and design.expected is not None and design.expected.verdict == "refuted":
        page.line("an unsafe design: `kvsan verify` refutes it", 2)
    if trial.fence != "none" and design is not None:
        added = [str(edge) for edge in fenced(design, trial.fence).edges if edge not in design.edges]
        page.line(f"fence {trial.fence}: {', '.join(added) or 'nothing that it has not'}", 2)
    where = f"simulated device, policy {trial.policy}" if trial.device == "simulated" else _gpu()
    page.line(
        f"{where}, {count(len(rounds), 'round')} of {count(trial.requests, 'request')}, {trial.concurrency} at a time,"
        f" run-ahead {trial.run_ahead}, pressure {trial.pressure:g}, seed {trial.seed}, {how}",
        2,
    )
    if any(one.interrupted for one in rounds):
        page.line("interrupted: what was seen until then", 2)
    page.blank()


def _gpu() -> str:
    import torch

    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def _kinds(rounds: Sequence[Round]) -> list[str]:
    """The kinds that get a column: the three, and others where there are any."""
    by_kind = _by_kind(rounds)
    return [kind for kind in KINDS if kind in KINDS[:3] or by_kind[kind]]


def _by_kind(rounds: Sequence[Round]) -> Counter[str]:
    out: Counter[str] = Counter()
    for (kind, _, _), blocks in totals_of(rounds).items():
        out[kind] += blocks
    return out


def _row(one: Round, kinds: Sequence[str]) -> list[str]:
    by_kind = _by_kind([one])
    speed = f"{one.tokens / one.seconds:,.0f}" if one.seconds else "–"
    share = f"{100 * one.watched / one.seconds:.1f} %" if one.seconds and one.summary is not None else "–"
    return [
        str(one.number + 1),
        f"{one.completions:,}",
        f"{len(one.garbled):,}",
        *(f"{by_kind[kind]:,}" if by_kind[kind] else "–" for kind in kinds),
        f"{one.steps:,}",
        f"{one.loads:,}",
        f"{one.stores:,}",
        speed,
        share,
    ]


def _sentence(totals: Mapping[tuple[str, str, str], int]) -> str:
    parts = [
        f"{kind} {later if kind == 'GEN' else f'{earlier} → {later}'} on {count(blocks, 'block')}"
        for (kind, earlier, later), blocks in sorted(totals.items(), key=lambda item: -item[1])
    ]
    return ", ".join(parts)


def _pairs(page: Page, rounds: Sequence[Round]) -> None:
    if totals_of(rounds):
        page.blank()
        page.line(_sentence(totals_of(rounds)), 2)


def _unclaimed(page: Page, trial: Trial, rounds: Sequence[Round]) -> None:
    by_claim: dict[Claim, list[str]] = {}
    for kind, claim in unclaimed(trial, rounds).items():
        by_claim.setdefault(claim, []).append(kind)
    for claim, kinds in by_claim.items():
        assert trial.design is not None
        page.blank()
        page.line(
            f"{', '.join(kinds)}: {trial.design.name} does not claim {claim}, so this is nothing that it promised; it"
            " counts in the verdict all the same",
            2,
        )


def _why(page: Page, rounds: Sequence[Round]) -> None:
    reasons = {why for one in rounds if one.summary is not None for why in getattr(one.summary.verdict, "why", ())}
    for why in sorted(reasons):
        page.line(f"not seen: {why}", 2)
