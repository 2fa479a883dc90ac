"""The checker: takes what an engine issued, says whether some legal timing of it races, and which edge is missing.

    from kvsan.checker import check
    report = check("run.jsonl.gz")
    report.verdict, report.hazards

`judge` is the way in; `online` checks op by op, `pairs` finds every pair, `trace` reads and writes, `report` puts it
in words. `session` is the debug mode of a running engine, `access` and `register_pool` are what an engine tells it.
Names are loaded when they are first used: the base install has only numpy, what runs inside an engine (`clocks`,
`online`) must not bring the rest along, and the entry point that vLLM calls in every process lives below here and must
cost nothing where kvsan is installed and off.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsan.checker.attach.allowing import allow
    from kvsan.checker.attach.declare import access, register_pool
    from kvsan.checker.debug import debug
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
    "access",
    "allow",
    "check",
    "check_trace",
    "debug",
    "open_trace",
    "register_pool",
]

_HOMES = {
    "attach.allowing": ("allow",),
    "attach.declare": ("access", "register_pool"),
    "debug": ("debug",),
    "judge": ("Report", "check", "check_trace"),
    "online": ("Online",),
    "trace": ("Trace", "TraceError", "TraceWriter", "open_trace"),
    "verdict": ("Clean", "Exit", "Incomplete", "Racy", "Verdict"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value
