"""The checker: takes what an engine issued, says whether some legal timing of it races, and which edge is missing.

    from kvsan.checker import check
    report = check("run.jsonl.gz")
    report.verdict, report.hazards

`judge` is the way in; `online` checks op by op, `pairs` finds every pair, `trace` reads and writes, `report` puts it
in words.
"""

from kvsan.checker.judge import Report, check, check_trace
from kvsan.checker.online import Online
from kvsan.checker.trace import Trace, TraceError, TraceWriter, open_trace
from kvsan.checker.verdict import Clean, Exit, Incomplete, Racy, Verdict

__all__ = [
    "Clean",
    "Exit",
    "Incomplete",
    "Online",
    "Racy",
    "Report",
    "Trace",
    "TraceError",
    "TraceWriter",
    "Verdict",
    "check",
    "check_trace",
    "open_trace",
]
