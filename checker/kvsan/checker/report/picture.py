"""`kvsan explain` as text: the pair, what is ordered and through what, and the few ops that matter in a column an
agent.
"""

from __future__ import annotations

from kvsan.checker.explain import Explanation
from kvsan.checker.report.page import Page, short
from kvsan.checker.report.text import headline, known, life, place
from kvsan.model.ops import (
    Access,
    Alloc,
    Blocks,
    Drop,
    Free,
    Get,
    Op,
    Poll,
    Put,
    Record,
    Sync,
    Touch,
    Wait,
)


def render(explanation: Explanation, width: int, *, colour: bool = False) -> str:
    """The whole explanation, without a newline at its end."""
    page = Page(width, colour=colour)
    page.field("earlier", place(explanation.earlier), 0, 7, fg="cyan")
    page.field("later", place(explanation.later), 0, 7, fg="cyan")
    if not explanation.conflicts:
        page.blank()
        page.line("No conflict: they share no block that one of them writes, so no order between them is needed.")
        return str(page)
    if explanation.hazards:
        _races(page, explanation)
    for way in explanation.ordered:
        page.blank()
        page.title(f"{way.kind.value} on {way.pool} {short(str(way.blocks), 30)} is ordered, through", fg="green")
        for number in way.ops:
            page.line(_step(number, explanation.ops[number]), 4)
    page.blank()
    _picture(page, explanation)
    return str(page)


def _races(page: Page, explanation: Explanation) -> None:
    """The hazards of the pair; what they have in common is said once."""
    hazards = explanation.hazards
    page.blank()
    for hazard in hazards:
        page.title(headline(hazard), fg="red")
        page.line(hazard.kind.meaning, 4)
        if hazard.reuse:
            page.field("life", life(hazard), 4, 7, fg="cyan")
    page.blank()
    for text in dict.fromkeys(known(hazard) for hazard in hazards):
        page.field("ordered", text, 4, 7, fg="cyan")
    for number, op in enumerate(explanation.known_way):
        page.field("" if number else "  by", _step(op, explanation.ops[op]), 4, 7)
    page.blank()
    fixes = dict.fromkeys(fix for hazard in hazards for fix in hazard.fix)
    for number, fix in enumerate(fixes):
        page.field("or" if number else "fix", str(fix), 4, 7, fg="cyan")


def _picture(page: Page, explanation: Explanation) -> None:
    """A row an op in the order of issue, a column a host thread or stream."""
    ops = sorted(explanation.ops.items())
    agents = list(dict.fromkeys(agent for _, op in ops for agent in _agents(op)))
    threads = [agent for agent in agents if agent[0] == "thread"]
    columns = [*threads, *(agent for agent in agents if agent[0] == "stream")]
    rows = []
    for number, op in ops:
        mark = {explanation.earlier.op: "earlier: ", explanation.later.op: "later: "}.get(number, "")
        words = _words(op)
        rows.append([str(number), *(words.get(column, "") for column in columns), mark + _touches(op, explanation)])
    page.line("The ops that matter, in the order of issue (host threads, then streams):")
    page.table(["op", *(name for _, name in columns), "touches"], rows, indent=2, right=(0,))
    if explanation.hazards:
        one, other = explanation.earlier.op, explanation.later.op
        page.line(f"no way leads from op {one} to op {other}: some legal timing makes them overlap", 2)


def _agents(op: Op) -> list[tuple[str, str]]:
    on = getattr(op, "on", None)
    return [("thread", op.by)] + ([("stream", on)] if on is not None else [])


def _words(op: Op) -> dict[tuple[str, str], str]:
    thread = ("thread", op.by)
    match op:
        case Access():
            return {thread: op.label} if op.on is None else {thread: "launch", ("stream", op.on): op.label}
        case Record():
            return {thread: "launch", ("stream", op.on): f"record {_event(op.event)}"}
        case Wait():
            return {thread: "launch", ("stream", op.on): f"wait {_event(op.event)}"}
        case Sync():
            return {thread: f"sync {_event(op.event) if op.event else op.stream or f'device {op.device}'}"}
        case Poll():
            return {thread: f"saw {_event(op.event)}"}
        case Put() | Get():
            return {thread: f"{type(op).__name__.lower()} {op.token}"}
        case Alloc() | Free() | Touch():
            return {thread: type(op).__name__.lower()}
        case Drop():
            return {thread: f"drop {_event(op.event)}"}


def _touches(op: Op, explanation: Explanation) -> str:
    """Of the blocks that the pair is about those that the op touches; of others only that they are."""
    match op:
        case Access():
            parts = [
                f"{verb} {shared}"
                for verb, touched in (("reads", op.reads), ("writes", op.writes))
                for pool, blocks in touched.items()
                if (shared := _shared(pool, blocks, explanation))
            ]
            return ", ".join(parts) or "other blocks"
        case Alloc() | Free() | Touch():
            return _shared(op.pool, op.blocks, explanation)
        case _:
            return ""


def _shared(pool: str, blocks: Blocks, explanation: Explanation) -> str:
    wanted = explanation.blocks.get(pool)
    shared = Blocks.of(block for block in wanted if block in blocks) if wanted else Blocks(())
    return f"{pool} {short(str(shared), 20)}" if shared.runs else ""


def _event(name: str) -> str:
    return name if len(name) <= 14 else name[:13] + "…"


def _step(number: int, op: Op) -> str:
    match op:
        case Access():
            where = f"on {op.on}" if op.on is not None else f"by {op.by}"
            step = "" if op.step is None else f", step {op.step}"
            return f"op {number}: {op.label} {where}{step}"
        case Record():
            return f"op {number}: record {op.event} on {op.on}"
        case Wait():
            return f"op {number}: {op.on} waits for {op.event}"
        case Sync():
            return f"op {number}: {op.by} synchronizes with {op.event or op.stream or f'device {op.device}'}"
        case Poll():
            return f"op {number}: {op.by} sees {op.event} done"
        case Put():
            return f"op {number}: {op.by} hands over {op.token}"
        case Get():
            return f"op {number}: {op.by} takes {op.token}"
        case _:
            return f"op {number}: {type(op).__name__.lower()} by {op.by}"
