"""The same reports as markdown, fit for a comment on a pull request: what decides stands open, the rest folds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvsan.checker.report.design import (
    Shown,
    claim_rows,
    counterexamples,
    pair_rows,
    scope_words,
    size_words,
    solver_words,
)
from kvsan.checker.report.design_changes import ORDER, SHOWN, changed_words, edges_words, repairs_head, state_words
from kvsan.checker.report.page import clean
from kvsan.model.design import Design, Edge
from kvsan.model.proof import (
    Difference,
    Pair,
    Proved,
    Redundancy,
    Refused,
    Refuted,
    Repairs,
    Verdict,
)

SIGN = {"proved": "✅", "refuted": "❌", "unknown": "❔", "refused": "⛔"}


def verdict(
    of: Verdict,
    keepers: Mapping[Pair, Sequence[Edge]] | None,
    traces: Mapping[str, str],
    *,
    certified: bool = False,
) -> str:
    out = [_title(of), "", _says(of), ""]
    if isinstance(of, Proved | Refuted):
        out += _table(("claim", "holds", ""), claim_rows(of))
        out += _table(("ordered pair", "", "kept apart by"), pair_rows(of, keepers))
        for shown in counterexamples(of, traces):
            out += _counterexample(shown)
        if certified:
            out += ["z3 confirms by another road:", "", *(f"- {_text(line)}" for line in solver_words(of)), ""]
    if of.design.note:
        out += [f"Note: {_text(of.design.note)}", ""]
    return "\n".join([*out, *_assumptions(of)])


def repairs(of: Verdict, found: Repairs, spare: Redundancy) -> str:
    out = [_title(of), "", _says(of), "", *_repairs(found)]
    rows = [
        (
            _code(one.edge.name),
            "; ".join([*map(str, one.pairs), *(f"no longer {c}" for c in one.claims), one.also]).strip("; "),
        )
        for one in spare.needed
    ] + [(_code(edge.name), "spare: nothing more could race without it") for edge in spare.spare]
    out += _table(("edge", "without it"), rows)
    if spare.weaker:
        out += ["Less would do, each alone:", ""]
        out += [f"- {_code(one.edge.name)} → {_code(one.instead.name)}: {_text(one.why)}" for one in spare.weaker]
        out.append("")
    return "\n".join([*out, *_assumptions(of)])


def difference(found: Difference) -> str:
    names = [type(one).__name__.lower() for one in (found.a, found.b)]
    out = [
        f"### {SIGN[names[1]]} {_text(found.a.design.name)} → {_text(found.b.design.name)}: {names[0]} → {names[1]}",
        "",
    ]
    changes = [f"- {edge.name}" for edge in found.removed] + [f"+ {edge.name}" for edge in found.added]
    changes += [f"! {clean(what)}" for what in found.other]
    out += ["```diff", *(changes or ["  no difference"]), "```", ""]
    for head, pairs in (("lost protection", found.lost), ("gained protection", found.gained)):
        out += _table(
            (head, "", "through"), [(str(p.pair), state_words(found, p, "→"), changed_words(p)) for p in pairs]
        )
    out += _table(
        ("kept apart otherwise", "before", "after"),
        [(str(m.pair), edges_words(m.before), edges_words(m.after)) for m in found.moved],
    )
    out += _table(
        ("may overlap (earlier → later)", "before", "after"),
        [(f"{m.earlier} → {m.later}", m.before or "not there", m.after or "not there") for m in found.meetings],
    )
    if isinstance(found.b, Refuted):
        for shown in counterexamples(found.b, {}):
            out += _counterexample(shown)
    if found.repairs is not None:
        out += _repairs(found.repairs)
    return "\n".join([*out, *_assumptions(found.b)])


def listed(designs: Sequence[Design]) -> str:
    rows = [
        (_code(design.name), design.expected.verdict if design.expected is not None else "", design.title)
        for design in designs
    ]
    return "\n".join(_table(("design", "expected", "what it is"), rows)).rstrip()


def _title(of: Verdict) -> str:
    name = type(of).__name__.lower()
    return f"### {SIGN[name]} {_text(of.design.name)}: {name}"


def _says(of: Verdict) -> str:
    title = _text(of.design.title) + (f" ({of.design.reference})" if of.design.reference else "")
    match of:
        case Proved():
            return f"{title}. For {scope_words(of.design)}: {size_words(of.findings)}."
        case Refuted():
            return f"{title}. Claimed and not so: **{', '.join(of.broken)}**; {size_words(of.findings)}."
        case Refused():
            return f"{title}. Can never happen: {', '.join(of.dead)}."
    return f"{title}. Nothing is said: {of.reason}."


def _counterexample(shown: Shown) -> list[str]:
    out = [f"**{_text(shown.title)}**: {_text(shown.meaning)}", ""]
    for at, line in enumerate(shown.lines):
        mark = shown.marks.get(at)
        out.append(f"{at + 1}. {_text(line)}" if mark is None else f"{at + 1}. **{_text(line)}** ← {_text(mark)}")
    out.append("")
    if shown.trace is not None:
        out += [f"Trace: {_code(shown.trace)}", ""]
    return out


def _repairs(found: Repairs) -> list[str]:
    out = [f"**{repairs_head(found)}**", ""]
    rows = [
        (
            str(number),
            "<br>".join([*(f"+ {_code(e.name)}" for e in one.edges), *(f"({_text(str(r))})" for r in one.records)]),
            *(str(part) for part in one.cost),
            "; ".join(one.why) + ("; `retired(last_use)` is enough" if one.eager else ""),
        )
        for number, one in enumerate(found.repairs[:SHOWN], 1)
    ]
    out += _table(("", "add", "host blocks", "forward waits", "blocks held", "copy waits", "why"), rows)
    if len(found.repairs) > SHOWN:
        out += [f"and {len(found.repairs) - SHOWN} more", ""]
    if len(found.repairs) > 1:
        out += [ORDER, ""]
    out += [f"- not {' and '.join(_code(e.name) for e in one.edges)}: {_text(one.why)}" for one in found.rejected]
    out += [f"- instead of {_code(old.name)}: {_code(new.name)}" for old, new in found.swap]
    out += [f"- with every edge there could be, this stays: {_text('; '.join(found.left))}"] if found.left else []
    return [*out, ""] if out[-1] else out


def _assumptions(of: Verdict) -> list[str]:
    """Never left out; folded, because they are long."""
    return [
        "<details><summary>This assumes, and does not show</summary>",
        "",
        *(f"- {_text(fact)}" for fact in of.assumptions),
        "",
        "</details>",
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[_text(cell) for cell in row] for row in rows]
    if not cells:
        return []
    line = "| " + " | ".join(head) + " |"
    return [line, "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in cells), ""]


def _text(text: str) -> str:
    """Text that a table and a heading can hold."""
    return clean(text).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{clean(text)}`"
