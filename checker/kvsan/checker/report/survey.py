"""`kvsan info` as text: tables of agents, pools, who touches what, who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click
import msgspec

from kvsan.checker.inventory import Survey
from kvsan.checker.report.page import Page, clean, count

SHOWN = 40
"""Rows of a table; the rest is counted (`--format json` has all)."""

COLUMN = 8
"""Characters that a column must have, else a row becomes a sentence."""

_STATED = ("kvsan_trace", "pools", "streams", "start")


def render(found: Survey, width: int, *, colour: bool = False) -> None:
    """Prints the survey."""
    click.echo(text(found, width, colour=colour))


def text(found: Survey, width: int, *, colour: bool = False) -> str:
    """The survey without a newline at its end."""
    page = Page(width, colour=colour)
    page.lines.append(clean(found.trace))
    span = "" if found.span is None else f" in {found.span / 1e9:,.3f} s"
    start = "attached in mid-run" if found.header["start"] == "attached" else "from its beginning"
    page.line(f"{count(found.ops, 'op')}{span}, logged {start}", 2)
    for key, value in found.header.items():
        if key not in _STATED:
            page.line(f"{key}: {_short(value)}", 2)

    rows = [[use.name, f"{sum(use.ops.values()):,}", _kinds(use.ops)] for use in found.threads]
    _table(page, "Host threads", ["thread", "ops", "of which"], rows, right=(1,))
    rows = [
        [
            use.name,
            f"{use.device}",
            use.kind if use.declared else "not declared",
            _kinds(use.ops),
            ", ".join(use.threads),
        ]
        for use in found.streams
    ]
    _table(page, "Streams", ["stream", "device", "kind", "ops", "issued by"], rows)
    rows = [
        [use.name, *(f"{n:,}" for n in (use.blocks, use.accessed, use.allocated, use.touched, use.freed))]
        for use in found.pools
    ]
    head = ["pool", "blocks", "accessed", "allocated", "touched", "freed"]
    _table(page, "Pools, in blocks", head, rows, right=(1, 2, 3, 4, 5))
    rows = [
        [
            way.pool,
            way.on if way.on is not None else f"{way.by} (host)",
            way.label,
            "writes" if way.writes else "reads",
            f"{way.accesses:,}",
            f"{way.named:,}",
            "?" if way.blocks is None else f"{way.blocks:,}",
        ]
        for way in found.ways
    ]
    head = ["pool", "on", "label", "", "accesses", "blocks named", "different"]
    _table(page, "Who touches what", head, rows, right=(4, 5, 6))
    rows = [
        [wait.on, _source(wait.recorded_on), f"{wait.waits:,}", f"{wait.redundant:,}" if wait.redundant else ""]
        for wait in found.waits
    ]
    _table(page, "Streams that wait for events", ["stream", "waits for", "waits", "redundant"], rows, right=(2, 3))
    rows = [
        [
            watch.by,
            _source(watch.recorded_on),
            *(f"{n:,}" if n else "" for n in (watch.syncs, watch.done, watch.pending)),
        ]
        for watch in found.watches
    ]
    head = ["thread", "looks at", "syncs", "sees done", "sees pending"]
    _table(page, "Host threads that wait or ask", head, rows, right=(2, 3, 4))
    rows = [[sync.by, f"{sync.device}", f"{sync.syncs:,}"] for sync in found.device_syncs]
    _table(page, "Device synchronizations", ["thread", "device", "syncs"], rows, right=(2,))
    rows = [[_giver(hand.giver), hand.taker, f"{hand.gets:,}"] for hand in found.handoffs]
    _table(page, "Hand-offs", ["from", "to", "gets"], rows, right=(2,))

    page.blank()
    orders = ", ".join(f"{n:,} {order}" for order, n in found.orders.items()) or "none"
    page.line(f"source order of reads: {orders}", 2)
    page.line(f"{count(found.batches, 'batched access', 'batched accesses')}, {found.planned:,} planned ahead", 2)
    page.line(
        f"at the end: {count(found.live_events, 'event')} alive, {count(found.open_tokens, 'token')} not taken", 2
    )
    return str(page)


def _table(
    page: Page, title: str, head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> None:
    if not rows:
        return
    page.blank()
    page.title(title)
    if len(head) * COLUMN + 4 <= page.width:
        page.table(head, rows[:SHOWN], 4, right)
    else:
        for row in rows[:SHOWN]:
            cells = [f"{name} {cell}".strip() for name, cell in zip(head, row, strict=True) if cell]
            page.field("-", ", ".join(cells), 4, 1)
    if len(rows) > SHOWN:
        page.line(f"and {len(rows) - SHOWN:,} more (--format json has all)", 4)


def _kinds(ops: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {kind}" for kind, n in ops.items())


def _source(name: str | None) -> str:
    return "no record" if name is None else name


def _giver(name: str | None) -> str:
    return "before the log" if name is None else name


def _short(value: object) -> str:
    shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return shown if len(shown) <= 200 else shown[:197] + "..."
