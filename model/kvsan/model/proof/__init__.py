"""From a design to a verdict: proved for every number of blocks, requests, steps and run-ahead, or a shortest
schedule.

    from kvsan.model.proof import verify
    verdict = verify(design)

`actions` is what can happen next to one block, `transfer` what that does to what is known (by
`kvsan.model.order`), `graph` and `search` explore, `verify` judges, `replay` turns a schedule into ops that
`kvsan check` can read. `repair` finds the edges that are missing, `redundant` those that are not needed, `diff` what
changed between two designs, `overlap` what may run at the same time.

z3 (the extra `model`) checks verdicts by another road, `verify(design, certify=True)`: `certify` finds a certificate
that a design is free of races and `recheck` asks z3 about it, `bounded` finds races again over real-valued times.
Nothing but these needs z3.
"""

from kvsan.model.proof.actions import Action, Touch
from kvsan.model.proof.certificate import Certificate, Clause
from kvsan.model.proof.diff import Difference, diff
from kvsan.model.proof.graph import Stuck, Vacuous, WrongGeneration
from kvsan.model.proof.overlap import Overlap, overlap
from kvsan.model.proof.redundant import Redundancy, redundant
from kvsan.model.proof.repair import Repair, Repairs, repair
from kvsan.model.proof.search import Pair, Schedule
from kvsan.model.proof.solver import InternalError, MissingSolverError
from kvsan.model.proof.times import Moment, Times
from kvsan.model.proof.verdict import Findings, Proved, Race, Refused, Refuted, Unknown, Verdict, words
from kvsan.model.proof.verify import CAP, keepers, racy_pairs, verify

__all__ = [
    "CAP",
    "Action",
    "Certificate",
    "Clause",
    "Difference",
    "Findings",
    "InternalError",
    "MissingSolverError",
    "Moment",
    "Overlap",
    "Pair",
    "Proved",
    "Race",
    "Redundancy",
    "Refused",
    "Refuted",
    "Repair",
    "Repairs",
    "Schedule",
    "Stuck",
    "Times",
    "Touch",
    "Unknown",
    "Vacuous",
    "Verdict",
    "WrongGeneration",
    "diff",
    "keepers",
    "overlap",
    "racy_pairs",
    "redundant",
    "repair",
    "verify",
    "words",
]
