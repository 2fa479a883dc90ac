"""The reports of `kvsan repair | diff | designs` as text."""

from __future__ import annotations

from collections.abc import Sequence

from kvsan.checker.report.design import COLOUR, assumptions, head, item
from kvsan.checker.report.page import Page, clean, count
from kvsan.model.design import Design, Edge
from kvsan.model.proof import Difference, Proved, Redundancy, Refused, Refuted, Repairs, Unknown, Verdict
from kvsan.model.proof.diff import RACY, Changed

SHOWN = 8
"""So many repairs are shown; `--format json` has them all."""

ORDER = (
    "Order: first what does not block the host, then what keeps the forward from waiting, then what holds fewer blocks"
    " back, then what makes copies wait for less. A cost is a vector; where a pool is ample or copies are rare, choose"
    " otherwise."
)


def changed_words(one: Changed) -> str:
    """Through which edge a pair's state changed."""
    if one.through:
        return ", or ".join(edge.name for edge in one.through)
    if one.together:
        return "the changed edges together"
    return "no edge: see the other changes"


def state_words(found: Difference, one: Changed, arrow: str) -> str:
    """`kept apart -> can race in 13 actions`."""
    races = {r.pair: r for v in (found.a, found.b) if isinstance(v, Proved | Refuted) for r in v.findings.races}
    words = [
        f"{state} in {count(len(races[one.pair].schedule), 'action')}" if state == RACY else state
        for state in (one.before, one.after)
    ]
    return f" {arrow} ".join(words)


def render_repairs(verdict: Verdict, found: Repairs, spare: Redundancy, width: int, *, colour: bool = False) -> str:
    page = Page(width, colour=colour)
    head(page, verdict)
    page.blank()
    _repairs(page, found)
    _redundant(page, spare)
    assumptions(page, verdict)
    return str(page)


def repairs_head(found: Repairs) -> str:
    """What the list of repairs is, in a sentence."""
    if not found.mends and not found.beyond:
        return "nothing to mend: every claim holds" if found.complete else "no verdict, so nothing to mend"
    what = ", ".join(found.mends)
    if not found.mends:
        return f"no edge mends {', '.join(found.beyond)}: more edges can only take progress away"
    if not found.repairs:
        return f"no set of edges mends {what}" + ("" if found.complete else " so far (given up)")
    sets = count(len(found.repairs), "minimal set")
    listed = f"{sets} of edges {'mends' if len(found.repairs) == 1 else 'mend'} {what}, cheapest first"
    return listed + ("" if found.complete else "; the list is not complete (given up)")


def _repairs(page: Page, found: Repairs) -> None:
    page.line(repairs_head(found), 2)
    for number, one in enumerate(found.repairs[:SHOWN], 1):
        page.blank()
        for at, edge in enumerate(one.edges):
            page.field(f"{number}." if at == 0 else "", f"+ {edge.name}", 2, 3)
        for record in one.records:
            page.line(f"needs: {record}", 7)
        page.line(f"cost: {one.cost.words()}", 7)
        for why in one.why:
            page.line(f"{why}", 7)
        if one.eager:
            page.line("retired(last_use) is enough, and returns blocks sooner", 7)
    if len(found.repairs) > SHOWN:
        page.blank()
        page.line(f"and {len(found.repairs) - SHOWN} more (--format json lists all)", 2)
    if len(found.repairs) > 1:
        page.blank()
        page.line(ORDER, 2)
    for rejected in found.rejected[:SHOWN]:
        page.blank()
        page.field("not", f"{' and '.join(e.name for e in rejected.edges)}: {rejected.why}", 2, 3)
    for old, new in found.swap:
        page.line(f"instead of {old.name}: {new.name}", 4)
    if found.beyond and found.mends:
        page.line(f"beyond edges: {', '.join(found.beyond)}", 2)
    if found.left:
        page.line(f"with every edge there could be, this stays: {'; '.join(found.left)}", 4)


def _redundant(page: Page, spare: Redundancy) -> None:
    if not spare.needed and not spare.spare:
        return
    page.blank()
    page.line("the edges that are there, and what could race without each", 2)
    for one in spare.needed:
        lost = [
            *map(str, one.pairs),
            *(f"no longer {claim}" for claim in one.claims),
            *([one.also] if one.also else []),
        ]
        page.field("needed", f"{one.edge.name}: {'; '.join(lost)}", 4, 6)
    for edge in spare.spare:
        page.field("spare", f"{edge.name}: nothing more could race without it", 4, 6)
    if len(spare.cores) > 1:
        page.line("spare edges can go one at a time; together only so that one of these sets stays:", 4)
        for core in spare.cores:
            item(page, ", ".join(edge.name for edge in core if edge in spare.spare) or "none of them")
    if spare.weaker:
        page.blank()
        page.line("less would do (each alone)", 2)
        for weak in spare.weaker:
            needs = "" if weak.record is None else f" ({weak.record})"
            page.field("-", f"{weak.edge.name} -> {weak.instead.name}: {weak.why}{needs}", 4, 1)


# ── diff ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_difference(found: Difference, width: int, *, colour: bool = False) -> str:
    page = Page(width, colour=colour)
    names = [type(verdict).__name__.lower() for verdict in (found.a, found.b)]
    page.headline(f"{found.a.design.name} -> {found.b.design.name}", [(name, COLOUR[name]) for name in names])
    for verdict in (found.a, found.b):
        if isinstance(verdict, Refuted):
            page.line(f"{verdict.design.name}: claimed and not so: {', '.join(verdict.broken)}", 2)
        elif isinstance(verdict, Refused):
            page.line(f"{verdict.design.name}: can never happen: {', '.join(verdict.dead)}", 2)
        elif isinstance(verdict, Unknown):
            page.line(f"{verdict.design.name}: {verdict.reason}", 2)
    page.blank()
    for edge in found.removed:
        page.line(f"- {edge.name}", 2)
    for edge in found.added:
        page.line(f"+ {edge.name}", 2)
    for what in found.other:
        page.field("~", what, 2, 1)
    if not (found.removed or found.added or found.other):
        page.line("no difference", 2)
    for title, pairs in (("lost protection", found.lost), ("gained protection", found.gained)):
        if pairs:
            page.blank()
            page.line(title, 2)
            for one in pairs:
                page.field(clean(one.pair), f"{state_words(found, one, '->')}, through {changed_words(one)}", 4, 26)
    if found.moved:
        page.blank()
        page.line("kept apart otherwise than before", 2)
        for moved in found.moved:
            page.field(clean(moved.pair), f"{edges_words(moved.before)} -> {edges_words(moved.after)}", 4, 26)
    if found.meetings:
        page.blank()
        page.line("may overlap, the earlier issued first", 2)
        for meeting in found.meetings:
            words = f"{meeting.before or 'not there'} -> {meeting.after or 'not there'}"
            page.field(clean(f"{meeting.earlier} -> {meeting.later}"), words, 4, 26)
    if found.repairs is not None:
        page.blank()
        _repairs(page, found.repairs)
    assumptions(page, found.b)
    return str(page)


def edges_words(edges: Sequence[Edge]) -> str:
    return ", ".join(edge.name for edge in edges) or "no single edge"


# ── designs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_list(designs: Sequence[Design], width: int, *, colour: bool = False) -> str:
    page = Page(width, colour=colour)
    rows = [
        [design.name, design.expected.verdict if design.expected is not None else "", design.title]
        for design in designs
    ]
    page.table(["design", "expected", "what it is"], rows)
    return str(page)
