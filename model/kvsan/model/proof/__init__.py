"""From a design to a verdict: proved for every number of blocks, requests, steps and run-ahead, or a shortest
schedule.

    from kvsan.model.proof import verify
    verdict = verify(design)

`actions` is what can happen next to one block, `transfer` what that does to what is known (by
`kvsan.model.order`), `graph` and `search` explore, `verify` judges, `replay` turns a schedule into ops that
`kvsan check` can read.
"""

from kvsan.model.proof.actions import Action, Touch
from kvsan.model.proof.graph import Stuck, Vacuous, WrongGeneration
from kvsan.model.proof.search import Pair, Schedule
from kvsan.model.proof.verdict import Findings, Proved, Race, Refused, Refuted, Unknown, Verdict, words
from kvsan.model.proof.verify import CAP, racy_pairs, verify

__all__ = [
    "CAP",
    "Action",
    "Findings",
    "Pair",
    "Proved",
    "Race",
    "Refused",
    "Refuted",
    "Schedule",
    "Stuck",
    "Touch",
    "Unknown",
    "Vacuous",
    "Verdict",
    "WrongGeneration",
    "racy_pairs",
    "verify",
    "words",
]
