"""What a session says of a run: verdict, findings, what was suppressed, and the ledger. Built from a live session.

A hazard that another process may have ordered (`elsewhere.py`) is possible and makes no run racy: the process cannot
know, so its verdict is Incomplete. Unseen edges make a hazard possible too, and leave the verdict as it is: they are
this process's own, and nothing else will tell.

The JSON document has the keys of `kvsan check`'s, and besides `ledger`, `suppressed`, `unused_suppressions` and
`incidents`. `totals` counts blocks at their first racing op; `hazards` holds one hazard for each sort, in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvsan.checker.advice import Warned
from kvsan.checker.attach.ledger import Ledger
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.coverage import Coverage
from kvsan.checker.live import Finding, Seen, totals
from kvsan.checker.suppressions import Suppression
from kvsan.checker.trace.header import Expects, Header
from kvsan.checker.verdict import Verdict, verdict

NOT_CHECKED = "nothing was checked (check=0): check the trace"


@dataclass(frozen=True, slots=True)
class Summary:
    """See the module's text. `name` is the process."""

    name: str
    verdict: Verdict
    ops: int
    findings: Sequence[Finding]
    suppressed: Sequence[Finding]
    unused: Sequence[Suppression]
    warnings: Sequence[Warned]
    coverage: Coverage
    ledger: Ledger
    incidents: Sequence[str] = ()
    idle: bool = False
    """Nothing happened in this process, nothing was registered in it, nothing went unseen and no hook lacks its
    target: there is no run to judge.
    """

    def document(self) -> dict[str, Any]:
        return {
            "kvsan": 1,
            "trace": self.name,
            "verdict": self.verdict.name,
            "why": list(getattr(self.verdict, "why", ())),
            "ops": self.ops,
            "hazards": [found.hazard.document() for found in self.findings],
            "totals": totals(list(self.findings)),
            "warnings": [warned.document() for warned in self.warnings],
            "coverage": self.coverage.document(),
            "ledger": self.ledger.document(),
            "suppressed": totals(list(self.suppressed)),
            "unused_suppressions": [line.document() for line in self.unused],
            "incidents": list(self.incidents),
        }


def header_of(recorder: Recorder, **about: Any) -> Header:
    """Line 1 of a trace of this process as things stand."""
    ledger = recorder.ledger
    return Header(
        pools=dict(recorder.pools),
        streams=dict(recorder.streams),
        attached=True,
        expects=ledger.expects(),
        hooks=ledger.counts(),
        unseen=ledger.unseen_counts(),
        other={"threads": dict(recorder.threads), **about},
    )


def summarise(
    recorder: Recorder,
    seen: Seen | None,
    name: str,
    incidents: Sequence[str] = (),
    *,
    inherited: bool = False,
    unchecked: str = NOT_CHECKED,
    found: bool = False,
) -> Summary:
    """`seen` is what the check saw, `unchecked` why there is none, `found` whether it had said a hazard before.
    `inherited`: a forked child, which has its pools from its parent.
    """
    ledger = recorder.ledger
    header = header_of(recorder)
    coverage = seen.coverage if seen is not None else Coverage(start="attached")
    coverage.hooks = header.hooks
    coverage.unseen = {"copies": ledger.copies, "edges": ledger.edges}
    absent = {hook.name for hook in ledger.hooks.values() if hook.absent is not None}
    due = {name: count for name, count in header.expects.hooks.items() if name not in absent}
    promised = replace(header, expects=Expects(header.expects.streams, due))
    findings = [marked(found, ledger.edges) for found in seen.real] if seen is not None else []
    certain = [found for found in seen.real if not found.hazard.possible] if seen is not None else []
    why = [*coverage.missing(promised), *ledger.missing()]
    if recorder.waiting:
        why.append(f"the last {recorder.waiting} ops were not looked at: a signal came in the middle of that")
    if seen is None:
        why = [unchecked, *ledger.missing()]
    doubts = len(findings) - len(certain)
    if doubts:
        why.append(
            f"whether another process orders what {doubts} of {len(findings)} sorts of hazard lack: "
            "give each process a trace (trace=…-%p.jsonl.gz), `kvsan merge` them and check the result"
        )
    return Summary(
        name=name,
        verdict=verdict(len(certain) or int(found and seen is None), why),
        ops=recorder.ops,
        findings=findings,
        suppressed=seen.suppressed if seen is not None else [],
        unused=seen.unused if seen is not None else [],
        warnings=seen.warnings if seen is not None else [],
        coverage=coverage,
        ledger=ledger,
        incidents=tuple(incidents),
        idle=not recorder.ops and (inherited or not recorder.pools) and not _has_news(ledger),
    )


def _has_news(ledger: Ledger) -> bool:
    """Whether the ledger alone makes a run Incomplete or its hazards doubtful."""
    return bool(ledger.copies or ledger.edges or next(ledger.missing(), None))


def marked(found: Finding, edges: int) -> Finding:
    """With unseen edges a hazard is only possible: an order may exist that was not logged."""
    return replace(found, hazard=replace(found.hazard, possible=True)) if edges else found
