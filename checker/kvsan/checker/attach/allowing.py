"""`allow`: for a while, a hazard of this description is expected; it is counted, and fails nothing.

    with allow(reason="the engine drops such a store at commit: issue 123", kind="RAW", later="store"):
        engine.step()

It holds for every hazard whose later access is issued while it is open, by any thread of the process, and that has all
the properties given (those of a suppressions file, with its patterns). A block that raced under it is looked at again
at its next access. The summary, in pytest and in debug mode, names each reason with its blocks. Without a session it
does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvsan.checker.attach.declare import caller
from kvsan.checker.session import current
from kvsan.checker.suppressions import allowance


@contextmanager
def allow(*, reason: str, **properties: str) -> Iterator[None]:
    """`properties`: `kind`, `pool`, `earlier`, `later`, `earlier_on`, `later_on`, `earlier_site`, `later_site`.
    Raises `OptionsError` for others, and for a reason that is empty.
    """
    line = allowance(caller(), properties, reason)
    session = current()
    if session is None:
        yield
        return
    with session.allowing(line):
        yield
