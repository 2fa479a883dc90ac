"""The JSON documents of `kvsan verify | repair | diff | designs --format json`; `design.schema.json` describes them.

One document a line. Properties may be added in a version; none changes or goes away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvsan.model.design import Claim, Design, Edge
from kvsan.model.proof import (
    Action,
    Difference,
    Findings,
    Pair,
    Proved,
    Race,
    Redundancy,
    Refused,
    Refuted,
    Repairs,
    Verdict,
)
from kvsan.model.proof.diff import Changed
from kvsan.model.proof.redundant import Needed

FORMAT = 1
Json = dict[str, Any]


def verdict_name(verdict: Verdict) -> str:
    """`proved`, `refuted`, `unknown` or `refused`."""
    return type(verdict).__name__.lower()


def verified(
    verdict: Verdict,
    keepers: Mapping[Pair, Sequence[Edge]],
    traces: Mapping[str, str],
    *,
    certified: bool = False,
) -> Json:
    """`traces`: where each counterexample was written (`race_name`). `certified`: z3 was asked."""
    out: Json = {"kvsan_design": FORMAT, "command": "verify", **_named(verdict.design), **_state(verdict)}
    if isinstance(verdict, Proved | Refuted):
        found = verdict.findings
        out |= {
            "states": found.states,
            "control_states": found.control_states,
            "seconds": round(found.seconds, 4),
            "races": [_race(race, traces) for race in found.races],
            "kept_apart": [
                pair_document(pair) | {"by": [edge.name for edge in keepers.get(pair, ())]} for pair in found.kept_apart
            ],
            "stuck": _stuck(found, closed=False),
            "stuck_closed": _stuck(found, closed=True),
            "vacuous": [
                {"at": one.at, "event": one.event, "schedule": schedule(one.schedule)} for one in found.vacuous
            ],
            "wrong_generation": [
                {"work": one.work, "schedule": schedule(one.schedule), "trace": traces.get(f"GEN {one.work}")}
                for one in found.wrong_generation
            ],
            "not_quiescent": None
            if found.not_quiescent is None
            else schedule(found.not_quiescent.actions, found.not_quiescent.earlier),
        }
        out["solver"] = _solver(verdict) if certified else None
    return out | {"assumptions": list(verdict.assumptions)}


def repaired(verdict: Verdict, found: Repairs, spare: Redundancy) -> Json:
    return {
        "kvsan_design": FORMAT,
        "command": "repair",
        **_named(verdict.design),
        **_state(verdict),
        **repairs_document(found),
        "redundant": {
            "spare": [edge_document(edge) for edge in spare.spare],
            "needed": [_needed(one) for one in spare.needed],
            "weaker": [
                {
                    "edge": edge_document(one.edge),
                    "instead": edge_document(one.instead),
                    "why": one.why,
                    "record": None if one.record is None else str(one.record),
                }
                for one in spare.weaker
            ],
            "cores": [[edge.name for edge in core] for core in spare.cores],
        },
        "assumptions": list(verdict.assumptions),
    }


def repairs_document(found: Repairs) -> Json:
    return {
        "mends": [str(claim) for claim in found.mends],
        "beyond": [str(claim) for claim in found.beyond],
        "repairs": [
            {
                "edges": [edge_document(edge) for edge in one.edges],
                "records": [str(record) for record in one.records],
                "cost": dict(one.cost._asdict()),
                "why": list(one.why),
                "last_use_is_enough": one.eager,
            }
            for one in found.repairs
        ],
        "rejected": [{"edges": [edge_document(e) for e in one.edges], "why": one.why} for one in found.rejected],
        "instead": [{"edge": edge_document(old), "instead": edge_document(new)} for old, new in found.swap],
        "left": list(found.left),
        "complete": found.complete,
        "candidates": len(found.candidates),
        "searches": found.searches,
        "replays": found.replays,
        "seconds": round(found.seconds, 4),
    }


def compared(found: Difference) -> Json:
    return {
        "kvsan_design": FORMAT,
        "command": "diff",
        "before": _named(found.a.design) | _state(found.a),
        "after": _named(found.b.design) | _state(found.b),
        "edges": {
            "removed": [edge_document(edge) for edge in found.removed],
            "added": [edge_document(edge) for edge in found.added],
        },
        "other": list(found.other),
        "lost": [_changed(one) for one in found.lost],
        "gained": [_changed(one) for one in found.gained],
        "moved": [
            pair_document(one.pair) | {"before": [e.name for e in one.before], "after": [e.name for e in one.after]}
            for one in found.moved
        ],
        "overlap": [
            {"earlier": one.earlier, "later": one.later, "before": one.before, "after": one.after}
            for one in found.meetings
        ],
        "repairs": None if found.repairs is None else repairs_document(found.repairs),
        "seconds": round(found.seconds, 4),
        "assumptions": list(found.b.assumptions),
    }


def listed(design: Design) -> Json:
    expected = design.expected
    return {
        "kvsan_design": FORMAT,
        "command": "designs",
        **_named(design),
        "expected": None if expected is None else expected.verdict,
        "races": {} if expected is None else dict(expected.races),
        "about": " ".join(design.about.split()),
    }


def race_name(race: Race) -> str:
    """`WAR forward -> load`."""
    return str(race.pair)


def edge_document(edge: Edge) -> Json:
    return {"kind": str(edge.kind), "at": edge.at, "of": edge.of, "name": edge.name}


def pair_document(pair: Pair) -> Json:
    return {"kind": pair.kind.value, "earlier": pair.earlier, "later": pair.later}


def schedule(actions: Sequence[Action], earlier: int | None = None) -> list[Json]:
    """One object an action; `marks` on the two accesses, or on the one that nobody has seen complete."""
    last = len(actions) - 1
    out = []
    for at, action in enumerate(actions):
        item: Json = {"action": action.label, "thread": action.thread}
        if earlier is not None and at in (earlier, last):
            item["marks"] = "earlier" if at == earlier else "later"
        out.append(item)
    return out


def _named(design: Design) -> Json:
    return {"design": design.name, "title": design.title, "reference": design.reference}


def _state(verdict: Verdict) -> Json:
    out: Json = {"verdict": verdict_name(verdict)}
    if isinstance(verdict, Proved | Refuted):
        broken = verdict.findings.broken()
        out["claims"] = {
            str(claim): {"claimed": claim in verdict.design.claims, "holds": claim not in broken} for claim in Claim
        }
    elif isinstance(verdict, Refused):
        out["dead"] = list(verdict.dead)
    else:
        out["reason"] = verdict.reason
    return out


def _solver(verdict: Proved | Refuted) -> Json:
    certificate = verdict.certificate
    return {
        "certificate": None if certificate is None else json.loads(certificate.to_json()),
        "times": [
            pair_document(times.pair)
            | {
                "one_clock": times.one_clock,
                "moments": [
                    {
                        "action": moment.action.label,
                        "call": str(moment.call),
                        "run": None if moment.run is None else [str(at) for at in moment.run],
                        "read": None if moment.read is None else [str(at) for at in moment.read],
                    }
                    for moment in times.moments
                ],
            }
            for times in verdict.times
        ],
        "unchecked": list(verdict.unchecked),
    }


def _race(race: Race, traces: Mapping[str, str]) -> Json:
    return pair_document(race.pair) | {
        "length": len(race.schedule),
        "run_ahead": race.run_ahead,
        "schedule": schedule(race.schedule.actions, race.schedule.earlier),
        "trace": traces.get(race_name(race)),
    }


def _stuck(found: Findings, *, closed: bool) -> Json | None:
    stuck = found.stuck_closed if closed else found.stuck
    return None if stuck is None else {"states": stuck.states, "schedule": schedule(stuck.schedule)}


def _needed(one: Needed) -> Json:
    return {
        "edge": edge_document(one.edge),
        "pairs": [pair_document(pair) for pair in one.pairs],
        "claims": [str(claim) for claim in one.claims],
        "also": one.also,
    }


def _changed(one: Changed) -> Json:
    return pair_document(one.pair) | {
        "before": one.before,
        "after": one.after,
        "through": [edge_document(edge) for edge in one.through],
        "together": one.together,
    }
