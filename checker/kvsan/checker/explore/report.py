"""An outcome and a replay, as text and as JSON."""

from __future__ import annotations

import shlex
from typing import Any

from kvsan.checker.explore.found import Finding, Outcome, Progress
from kvsan.checker.explore.run import Run, replay
from kvsan.checker.report.page import Page, count
from kvsan.checker.report.text import FENCED, describe
from kvsan.model.hazard import Hazard, Kind

FORMAT = 1
_COLOUR = {"clean": "green", "racy": "red", "incomplete": "yellow"}


def render(outcome: Outcome, width: int, *, asked: str | None = None, colour: bool = False) -> str:
    """The whole report, without a newline at its end. `asked`: how the design was named."""
    page = Page(width, colour=colour)
    name = outcome.verdict.name
    page.headline(outcome.design.name, [(name, _COLOUR[name])])
    page.line(_extent(outcome), 2)
    for why in outcome.why:
        page.line(f"incomplete: {why}", 2)
    if outcome.never:
        page.line("never in use: " + ", ".join(outcome.never), 2)
    for finding in outcome.findings:
        _finding(page, outcome, finding, shlex.quote(asked or outcome.design.name))
    return str(page)


def _extent(outcome: Outcome) -> str:
    done = outcome.progress
    if done.mode == "random":
        made = f"{count(done.moves, 'choice')} in {done.seconds:.1f} s"
        return f"{count(done.runs, 'random run')} of {outcome.scope}; {made}"
    over = "all runs of" if not outcome.why and not done.waiting else "runs of"
    return (
        f"{over} {outcome.scope}: {count(done.states, 'state')}, {count(done.moves, 'choice')} in {done.seconds:.1f} s"
    )


def _finding(page: Page, outcome: Outcome, finding: Finding, asked: str) -> None:
    run = replay(outcome.design, finding.schedule)
    page.blank()
    unclaimed = "" if finding.claimed else " (the design does not claim that there is none)"
    page.title(f"{finding.pair}{unclaimed}", fg="red" if finding.claimed else "yellow")
    beside = f", the proof's shortest schedule {finding.proof}" if finding.proof is not None else ""
    page.line(f"{count(len(finding.schedule.moves), 'choice')}, {count(finding.length, 'action')}{beside}:", 4)
    _steps(page, run)
    hazard = hazard_of(run, finding)
    if hazard is not None:
        page.blank()
        describe(page, hazard)
    page.blank()
    page.line("replay:", 4)
    page.lines.append(f"    kvsan explore {asked} --replay {finding.schedule}")
    if finding.pair in outcome.traces:
        page.line(f"trace: {outcome.traces[finding.pair]}", 4)


def _steps(page: Page, run: Run) -> None:
    places = len(str(len(run.words)))
    for number, words in enumerate(run.words, 1):
        page.field(str(number).rjust(places), words, 6, places)


def hazard_of(run: Run, finding: Finding) -> Hazard | None:
    """The checker's own report of the pair."""
    for hazard in run.report.hazards:
        earlier = finding.pair.earlier if hazard.kind is Kind.GEN else hazard.earlier.label
        if (hazard.kind, earlier, hazard.later.label) == finding.pair:
            return hazard
    return None


def render_run(run: Run, design: str, width: int, *, colour: bool = False) -> str:
    """A replay: its steps, and what the checker says."""
    page = Page(width, colour=colour)
    name = run.report.verdict.name
    page.headline(design, [(name, _COLOUR[name])])
    chosen = count(len(run.schedule.moves), "choice")
    page.line(f"{chosen}, {count(run.length, 'action')}, {count(len(run.ops), 'op')}", 2)
    if not run.same_design:
        page.line("the schedule was found in another design, or in an earlier state of this one", 2)
    for why in getattr(run.report.verdict, "why", ()):
        page.line(f"not seen: {why}", 2)
    page.blank()
    _steps(page, run)
    shown: set[tuple[str, str | None, str | None]] = set()
    for hazard in run.report.hazards:
        sort = (hazard.kind.value, hazard.earlier.label if hazard.kind in FENCED else None, hazard.later.label)
        if sort not in shown:
            shown.add(sort)
            page.blank()
            describe(page, hazard)
    return str(page)


def document(outcome: Outcome) -> dict[str, Any]:
    """`kvsan explore --format json`."""
    done = outcome.progress
    scope = outcome.scope
    return {
        "kvsan": FORMAT,
        "design": outcome.design.name,
        "verdict": outcome.verdict.name,
        "why": list(outcome.why),
        "interrupted": outcome.interrupted,
        "mode": done.mode,
        "scope": {
            "requests": scope.requests,
            "blocks": scope.blocks,
            "steps": scope.steps,
            "skips": scope.skips,
        },
        "states": done.states if done.mode == "exhaustive" else None,
        "waiting": done.waiting if done.mode == "exhaustive" else None,
        "runs": done.runs if done.mode == "random" else None,
        "choices": done.moves,
        "seconds": round(done.seconds, 3),
        "never": list(outcome.never),
        "races": [
            {
                "kind": finding.pair.kind.value,
                "earlier": None if finding.pair.kind is Kind.GEN else finding.pair.earlier,
                "later": finding.pair.later,
                "claimed": finding.claimed,
                "schedule": str(finding.schedule),
                "choices": len(finding.schedule.moves),
                "actions": finding.length,
                "proof": finding.proof,
                "steps": list(replay(outcome.design, finding.schedule).words),
                "trace": outcome.traces.get(finding.pair),
            }
            for finding in outcome.findings
        ],
    }


def run_document(run: Run, design: str) -> dict[str, Any]:
    """`kvsan explore --replay … --format json`: what `check` says, and the steps."""
    return run.report.document() | {
        "design": design,
        "schedule": str(run.schedule),
        "same_design": run.same_design,
        "steps": list(run.words),
    }


def status(progress: Progress) -> str:
    """One line while it goes on."""
    races = f", {count(len(progress.found), 'race')}" if progress.found else ""
    if progress.mode == "random":
        return f"{progress.runs:,} of {count(progress.of, 'run')}{races}"
    left = "" if progress.left is None else f", about {progress.left:,} to come"
    return f"{count(progress.states, 'state')}{left}, {count(progress.depth, 'choice')} deep{races}"
