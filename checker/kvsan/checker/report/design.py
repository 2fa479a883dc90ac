"""The report of `kvsan verify` as text, and the words that every report of designs shares, in markdown too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvsan.checker.report.page import Page, clean, count
from kvsan.model.design import Claim, Design, Edge
from kvsan.model.proof import (
    Findings,
    Moment,
    Pair,
    Proved,
    Race,
    Refused,
    Refuted,
    Unknown,
    Verdict,
    words,
)

COLOUR = {"proved": "green", "refuted": "red", "unknown": "yellow", "refused": "yellow"}
MEANING = {
    Claim.RACE_FREE: "no two conflicting accesses can overlap",
    Claim.RIGHT_GENERATION: "an op acts on the owner that it was planned for",
    Claim.PROGRESS: "a block can always become free again",
    Claim.CLOSED_PROGRESS: "the same with nobody else's requests",
    Claim.NO_VACUOUS_WAIT: "no wait or query of an event never recorded",
    Claim.HOST_QUIESCENT: "the host has seen a free block at rest",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A counterexample in words: a heading, what it means, the actions, and what is to be said of some of them."""

    title: str
    meaning: str
    lines: tuple[str, ...]
    marks: Mapping[int, str]
    trace: str | None = None


# ── words that text and markdown share ────────────────────────────────────────────────────────────────────────────────


def scope_words(design: Design) -> str:
    """For what the verdict speaks."""
    ahead = "any run-ahead" if design.run_ahead == "any" else f"a run-ahead of {design.run_ahead}"
    return f"every number of blocks, requests and steps, {ahead}"


def size_words(found: Findings) -> str:
    return f"{count(found.states, 'state')} in {1000 * found.seconds:,.0f} ms"


def claim_rows(verdict: Proved | Refuted) -> Iterator[tuple[str, str, str]]:
    """A claim, whether it holds, and what it means or that nobody claimed it."""
    broken = verdict.findings.broken()
    for claim in Claim:
        claimed = claim in verdict.design.claims
        holds = "yes" if claim not in broken else "NO" if claimed else "no"
        yield str(claim), holds, MEANING[claim] + ("" if claimed else " (not claimed)")


def pair_rows(
    verdict: Proved | Refuted, keepers: Mapping[Pair, Sequence[Edge]] | None
) -> Iterator[tuple[str, str, str]]:
    """An ordered pair, whether it can race, and what keeps it apart."""
    found, on = verdict.findings, {work.name: work.on for work in verdict.design.works()}
    for race in found.races:
        yield str(race.pair), "CAN RACE", f"shortest schedule {len(race.schedule)} actions"
    for pair in found.kept_apart:
        if keepers is None:
            yield str(pair), "kept apart", ""
        else:
            by = ", ".join(edge.name for edge in keepers.get(pair, ()))
            if not by and on[pair.earlier] == on[pair.later]:
                by = f"both on {on[pair.earlier] or 'the host'}"
            yield str(pair), "kept apart", by or "no single edge: several do, or the order of the program"


def counterexamples(verdict: Proved | Refuted, traces: Mapping[str, str]) -> Iterator[Shown]:
    """All that refutes a claim that the design makes."""
    found, claims = verdict.findings, verdict.design.claims
    if Claim.RACE_FREE in claims:
        for race in found.races:
            yield _race(race, traces.get(str(race.pair)))
    if Claim.RIGHT_GENERATION in claims:
        for wrong in found.wrong_generation:
            yield Shown(
                f"wrong generation: {wrong.work}, {count(len(wrong.schedule), 'action')}",
                "it was planned for one owner of the block and runs on the block of the next; no fence mends that",
                words(wrong.schedule),
                {len(wrong.schedule) - 1: "acts on another owner's block"},
                traces.get(f"GEN {wrong.work}"),
            )
    if Claim.PROGRESS in claims and found.stuck is not None:
        yield Shown(
            f"no progress: stuck after {count(len(found.stuck.schedule), 'action')}",
            "from here on the block can never become free again",
            words(found.stuck.schedule),
            {},
        )
    elif Claim.CLOSED_PROGRESS in claims and found.stuck_closed is not None:
        yield Shown(
            f"no progress without other requests: stuck after {count(len(found.stuck_closed.schedule), 'action')}",
            "from here on the block becomes free only if somebody else's request launches a step",
            words(found.stuck_closed.schedule),
            {},
        )
    if Claim.NO_VACUOUS_WAIT in claims:
        for vacuous in found.vacuous:
            yield Shown(
                f"vacuous: {vacuous.at} asks for {vacuous.event}, {count(len(vacuous.schedule), 'action')}",
                "nobody has recorded the event: a wait orders nothing, a query answers that it is done",
                words(vacuous.schedule),
                {len(vacuous.schedule) - 1: "never recorded"},
            )
    if Claim.HOST_QUIESCENT in claims and found.not_quiescent is not None:
        shown = found.not_quiescent
        yield Shown(
            f"not host-quiescent: {count(len(shown), 'action')}",
            "the block is free, and the host has not seen an access to it complete: hand it to no NIC or other process",
            words(shown.actions),
            {shown.earlier: "nobody has seen this complete"},
        )


def _race(race: Race, trace: str | None) -> Shown:
    last = len(race.schedule) - 1
    ahead = "" if race.run_ahead in (None, 1) else f", run-ahead {race.run_ahead}"
    return Shown(
        f"{race.pair}: {count(len(race.schedule), 'action')}{ahead}",
        race.pair.kind.meaning,
        words(race.schedule.actions),
        {race.schedule.earlier: "the earlier access", last: f"not ordered behind {race.schedule.earlier + 1}"},
        trace,
    )


def solver_words(verdict: Proved | Refuted) -> Iterator[str]:
    """What z3 confirmed, and what it left open."""
    if verdict.certificate is not None:
        clauses = verdict.certificate.words()
        yield (
            f"that {' and '.join(verdict.certificate.proves)} follows from {count(len(clauses), 'clause')} that hold at"
            " the start, that every action keeps, and that leave no access unordered:"
        )
        yield from clauses
    for times in verdict.times:
        first, last = times.moments[times.earlier], times.moments[-1]
        yield (
            f"{times.pair}: no schedule of fewer than {len(times)} actions; in one of {len(times)},"
            f" {first.action.of} {_when(first)} and {last.action.of} {_when(last)}"
        )
    yield from verdict.unchecked


def _when(moment: Moment) -> str:
    span, does = (moment.run, "runs from") if moment.read is None else (moment.read, "reads from")
    return f"{does} {span[0]} to {span[1]}" if span is not None else "runs at once"


# ── verify ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_verdict(
    verdict: Verdict,
    keepers: Mapping[Pair, Sequence[Edge]] | None,
    traces: Mapping[str, str],
    width: int,
    *,
    certified: bool = False,
    colour: bool = False,
) -> str:
    """The report of `verify`. `keepers`: which edges keep a pair apart, if that was asked. `certified`: z3 was."""
    page = Page(width, colour=colour)
    head(page, verdict)
    if isinstance(verdict, Proved | Refuted):
        page.blank()
        for name, holds, meaning in claim_rows(verdict):
            page.field(f"{name:<33}{holds:<3}", meaning, 2, 36)
        rows = list(pair_rows(verdict, keepers))
        if rows:
            page.blank()
            page.line("ordered pairs, the earlier issued first", 2)
            wide = max(len(pair) for pair, _, _ in rows)
            for pair, state, by in rows:
                page.field(clean(f"{pair:<{wide}}  {state:<10}"), by, 4, wide + 12)
        for shown in counterexamples(verdict, traces):
            _shown(page, shown)
        if certified:
            page.blank()
            page.line("z3 confirms by another road", 2)
            for line in solver_words(verdict):
                item(page, line)
    if verdict.design.note:
        page.blank()
        page.field("note", verdict.design.note, 2, 4)
    assumptions(page, verdict)
    return str(page)


def head(page: Page, verdict: Verdict) -> None:
    """The verdict in a few lines."""
    name = type(verdict).__name__.lower()
    page.headline(verdict.design.name, [(name, COLOUR[name])])
    if verdict.design.title != verdict.design.name:
        page.line(verdict.design.title, 2)
    if verdict.design.reference:
        page.line(verdict.design.reference, 2)
    match verdict:
        case Proved():
            page.line(f"for {scope_words(verdict.design)}: {size_words(verdict.findings)}", 2)
        case Refuted():
            page.line(f"claimed and not so: {', '.join(verdict.broken)}; {size_words(verdict.findings)}", 2)
        case Unknown():
            page.line(f"nothing is said: {verdict.reason}", 2)
        case Refused():
            page.line(f"can never happen: {', '.join(verdict.dead)}", 2)


def _shown(page: Page, shown: Shown) -> None:
    page.blank()
    page.title(shown.title, fg="red")
    page.line(shown.meaning, 4)
    for at, line in enumerate(shown.lines):
        page.field(f"{at + 1:>3}", line + (f"   <- {shown.marks[at]}" if at in shown.marks else ""), 3, 3)
    if shown.trace is not None:
        page.lines.append(f"    trace: {clean(shown.trace)}")  # in one piece, to be copied


def assumptions(page: Page, verdict: Verdict) -> None:
    """What is printed with every verdict."""
    page.blank()
    page.line("this assumes, and does not show:", 2)
    for fact in verdict.assumptions:
        item(page, fact)


def item(page: Page, text: str) -> None:
    """One of a list."""
    page.field("-", text, 4, 1)
