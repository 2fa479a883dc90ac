"""The report of `kvsan check` as text: the verdict, a table of what raced, one hazard of each sort in full, what was
seen.

Hazards are shown once for each sort (kind, pool, the two labels and streams): the thousandth block of the same
missing fence tells a person nothing. `--format json` lists them all.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvsan.checker.coverage import Coverage
from kvsan.checker.judge import Report
from kvsan.checker.report.page import Page, clean, count, short
from kvsan.model.hazard import Hazard, Kind, Site

SHOWN = 6
FENCED = (Kind.RAW, Kind.WAR, Kind.WAW)
UNSEEN = "edges went unseen (header: unseen.edges), so an order may exist that was not logged"
_COLOUR = {"clean": "green", "racy": "red", "incomplete": "yellow"}
_Sort = tuple[str, str, str, str]


def render(report: Report, width: int, *, colour: bool = False) -> str:
    """The whole report, without a newline at its end."""
    page = Page(width, colour=colour)
    name = report.verdict.name
    page.lines.append(f"{clean(report.trace)}: {page.paint(name.upper(), fg=_COLOUR[name], bold=True)}")
    seen = report.coverage
    page.line(
        f"{count(report.ops, 'op')}, {count(seen.accesses, 'access', 'accesses')} on "
        f"{count(sum(1 for at in seen.streams.values() if at['Access']), 'stream')}, "
        f"{count(len(seen.threads), 'host thread')}",
        2,
    )
    for why in getattr(report.verdict, "why", ()):
        page.line(f"not seen: {why}", 2)
    _ledger(page, seen)
    if report.hazards:
        _hazards(page, report)
    if report.notes:
        page.blank()
        page.line(
            f"accesses issued to blocks that were free ({count(len(report.notes), 'place')}, legal in itself):", 2
        )
        for note in report.notes[:SHOWN]:
            where = f"{note.pool} {short(str(note.blocks))}"
            page.line(f"op {note.access.op}: {note.access} touches {where}, freed at op {note.freed}", 4)
    if report.warnings:
        page.blank()
        page.line(f"{count(len(report.warnings), 'warning')}:", 2)
        for warned in report.warnings:
            page.line(f"{warned.kind}: {warned}", 4)
    return str(page)


def _ledger(page: Page, seen: Coverage) -> None:
    """What the trace says of its hooks, if it says anything: a verdict is worth what was hooked."""
    fired = [f"{name} {number:,}" for name, number in seen.hooks.items() if number]
    silent = [name for name, number in seen.hooks.items() if not number]
    if fired:
        page.line("hooks that fired: " + ", ".join(fired), 2)
    if silent:
        page.line("hooks that never fired: " + ", ".join(silent), 2)
    if any(seen.unseen.values()):
        copies, edges = seen.unseen.get("copies", 0), seen.unseen.get("edges", 0)
        page.line(f"unseen: {count(copies, 'copy', 'copies')}, {count(edges, 'edge')}", 2)


def _hazards(page: Page, report: Report) -> None:
    sorts: dict[_Sort, list[Hazard]] = {}
    for hazard in report.hazards:
        sorts.setdefault(_sort(hazard), []).append(hazard)
    rows = [
        [kind, pool, earlier, later, f"{sum(len(h.blocks) for h in found):,}", f"{found[0].later.op}"]
        for (kind, pool, earlier, later), found in sorts.items()
    ]
    unit = "pairs" if report.all_pairs else "blocks"
    page.blank()
    page.table(["kind", "pool", "earlier", "later", unit, "first at op"], rows, right=(4, 5))
    if not report.all_pairs:
        page.line("each block at its first racing op; --all counts every pair", 2)
    for number, found in enumerate(sorts.values()):
        if number == SHOWN:
            page.blank()
            page.line(f"and {count(len(sorts) - SHOWN, 'more sort')} of hazard (--format json lists all)", 2)
            break
        page.blank()
        describe(page, next((hazard for hazard in found if hazard.reuse), found[0]))


def describe(page: Page, hazard: Hazard, but: str = UNSEEN) -> None:
    """One hazard in full: the two accesses, what is ordered, the life between, what would mend it."""
    page.title(headline(hazard), fg="red")
    page.line(hazard.kind.meaning, 4)

    def put(name: str, text: str) -> None:
        page.field(name, text, 4, 7, fg="cyan")

    if hazard.kind is Kind.GEN:
        put("planned", f"at op {hazard.earlier.op}, for the generation that block then had")
    elif hazard.kind is not Kind.BATCH:
        put("earlier", place(hazard.earlier))
    put("later", place(hazard.later))
    if hazard.reuse:
        put("life", life(hazard))
    if hazard.kind in FENCED:
        put("ordered", known(hazard))
    for number, fix in enumerate(hazard.fix):
        put("or" if number else "fix", str(fix))
    if hazard.possible:
        put("but", but)


def headline(hazard: Hazard) -> str:
    """`WAR on reused gpu 55`."""
    possible = "possible " if hazard.possible else ""
    reused = "reused " if hazard.reuse and hazard.kind is not Kind.GEN else ""
    return f"{possible}{hazard.kind.value} on {reused}{hazard.pool} {short(str(hazard.blocks), 30)}"


def place(site: Site) -> str:
    """`op 2096: forward on compute, step 70, issued by h0 (runner.py:120)`."""
    text = f"op {site.op}: {site}"
    if site.owner is not None:
        text += f", for {site.owner}"
    if site.on is not None and site.by is not None:
        text += f", issued by {site.by}"
    elif site.by is not None:
        text += f" ({site.by})"
    return text + (f" ({site.site})" if site.site else "")


def life(hazard: Hazard) -> str:
    again = f"allocated again at op {hazard.allocated}" if hazard.allocated is not None else "allocated again"
    owners = (
        "it was planned for another owner" if hazard.kind is Kind.GEN else "the two accesses belong to different owners"
    )
    return f"freed at op {hazard.freed}, {again}: {owners}"


def known(hazard: Hazard) -> str:
    """What *is* ordered already, which is what tells a missing fence from a stale one."""
    who = hazard.earlier.on if hazard.earlier.on is not None else hazard.earlier.by
    what = "source read" if hazard.kind is Kind.RAW and any(fix.order for fix in hazard.fix) else "access"
    if hazard.known is None:
        return f"the later {what} is ordered behind nothing of {who}"
    step = "" if hazard.known.step is None else f", step {hazard.known.step}"
    here = "" if hazard.earlier.step is None else f"; the earlier access is in step {hazard.earlier.step}"
    return f"the later {what} is ordered behind {who} up to op {hazard.known.op} ({hazard.known.label}{step}){here}"


def _sort(hazard: Hazard) -> _Sort:
    return (hazard.kind.value, hazard.pool, _short(hazard.earlier), _short(hazard.later))


def _short(site: Site) -> str:
    if site.on is None and site.by is None:
        return f"op {site.op}"
    return f"{site.label or '?'} on {site.on}" if site.on is not None else f"{site.label or '?'} by {site.by}"


def summary(reports: Iterable[Report]) -> str:
    """One line over several traces."""
    names = [report.verdict.name for report in reports]
    return ", ".join(f"{names.count(name)} {name}" for name in ("racy", "incomplete", "clean") if name in names)
