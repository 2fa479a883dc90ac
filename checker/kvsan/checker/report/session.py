"""A live session in words: the banner, one report as it is found, the summary with its ledger."""

from __future__ import annotations

from kvsan.checker.live import MAX_FINDINGS, Finding
from kvsan.checker.report.page import Page, count, short
from kvsan.checker.report.text import describe, place
from kvsan.checker.summary import Summary

WIDTH = 100
UNSEEN = "edges went unseen here or were made by another process, so an order may exist that was not logged"
LINES = 12
"""Hooks, warnings and suppressions that are listed each; more are counted."""


def finding(found: Finding, pid: int, number: int) -> str:
    """One report, as it is printed when it is found."""
    page = Page(WIDTH)
    page.lines.append("=" * 18)
    page.lines.append(f"kvsan[{pid}]: hazard {number}")
    describe(page, found.hazard, UNSEEN)
    page.lines.append("=" * 18)
    return str(page)


def summary(seen: Summary) -> str:
    """The verdict, then all that it rests on."""
    page = Page(WIDTH)
    page.lines.append(f"kvsan: {seen.name}: {seen.verdict.name.upper()}")
    coverage = seen.coverage
    carried = {name: at["Access"] for name, at in coverage.streams.items() if at["Access"]}
    page.line(
        f"{count(seen.ops, 'op')}, {count(coverage.accesses, 'access', 'accesses')} on "
        f"{count(len(carried), 'stream')}, {count(len(coverage.threads), 'host thread')}",
        2,
    )
    for why in getattr(seen.verdict, "why", ()):
        page.line(f"not seen: {why}", 2)
    if seen.findings:
        rows = []
        for found in seen.findings:
            h = found.hazard
            kind = f"possible {h.kind.value}" if h.possible else h.kind.value
            rows.append([kind, h.pool, place_of(h.earlier), place_of(h.later), f"{found.blocks:,}", f"{found.ops:,}"])
        page.blank()
        page.table(["kind", "pool", "earlier", "later", "blocks", "ops"], rows, right=(4, 5))
        if any(found.others for found in seen.findings):
            page.line(f"the last row counts all sorts beyond the first {MAX_FINDINGS:,}; its hazard is one of them", 2)
    for found in seen.suppressed:
        line = found.suppressed
        how = "allowed" if line is not None and line.scoped else "suppressed"
        page.line(f"{how}: {count(found.blocks, 'block')} by {line}", 2)
    for line in seen.unused[:LINES]:
        page.line(f"unused suppression: {line}", 2)
    for warned in seen.warnings[:LINES]:
        page.line(f"warning: {warned.kind}: {warned}", 2)
    if len(seen.warnings) > LINES:
        page.line(f"and {count(len(seen.warnings) - LINES, 'more warning')}", 2)
    _ledger(page, seen)
    for path in seen.incidents:
        page.line(f"incident written: {path} (kvsan check {path})", 2)
    return str(page)


def place_of(site: object) -> str:
    """`forward on compute`."""
    return place(site).partition(": ")[2].partition(",")[0]  # type: ignore[arg-type]


def _ledger(page: Page, seen: Summary) -> None:
    coverage, ledger = seen.coverage, seen.ledger
    carried = ", ".join(f"{name} {at['Access']:,}" for name, at in coverage.streams.items() if at["Access"])
    page.line(f"accesses: {short(carried, 300) or 'none'}", 2)
    for pool, counts in coverage.pools.items():
        page.line(f"pool {pool}: {counts['touched']:,} of {counts['blocks']:,} blocks touched", 2)
    fired = [f"{hook.name} {hook.count:,}" for hook in ledger.hooks.values() if hook.count]
    silent = [hook.name for hook in ledger.hooks.values() if not hook.count and hook.absent is None]
    absent = [hook.name for hook in ledger.hooks.values() if hook.absent is not None]
    if fired:
        page.line("hooks that fired: " + ", ".join(fired), 2)
    if silent:
        page.line("hooks that never fired: " + ", ".join(silent), 2)
    if absent:
        page.line("hooks without a target: " + ", ".join(absent), 2)
    what = ", ".join(f"{name} ({number:,})" for name, number in ledger.words.items())
    page.line(
        f"unseen: {count(ledger.copies, 'copy', 'copies')}, {count(ledger.edges, 'edge')}"
        + (f": {what}" if what else ""),
        2,
    )
