"""z3, asked for only when it is needed, and what to say when it is missing or disagrees.

z3 never decides. It is asked to confirm what the search found, by another road; if it does not, one of the two is
wrong, and that is an error of ours and no verdict.
"""

from __future__ import annotations

from typing import Any


class InternalError(Exception):
    """Search and z3 disagree: no verdict can be trusted."""

    def __init__(self, what: str) -> None:
        super().__init__(f"kvsan internal error: {what}; please report the design")


class MissingSolverError(ImportError):
    """z3 is not installed."""


def solver() -> Any:
    """The module z3 (untyped). Raises `MissingSolverError`."""
    try:
        import z3
    except ImportError as error:
        raise MissingSolverError(
            "checking a verdict by z3 needs the package z3-solver: pip install 'kvsan[model]'"
        ) from error
    return z3
