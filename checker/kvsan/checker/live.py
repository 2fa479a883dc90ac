"""The checker as a sink: feeds a running engine's ops to `Online`, counts what it sees, keeps what it finds.

Memory is bounded by blocks, streams, threads, live events and kinds of finding, never by the number of ops. Tokens
that nobody takes are forgotten (`MAX_TOKENS`). Findings
that have the same kind, pool, and the same two places (label, stream, code site) are one `Finding`: it is reported
once, with the first hazard in full, and counted.

From the first token on that another process has put, a hazard which that process may have ordered is `possible`
(`elsewhere.py`).

`KvsanHazard` is what `halt_on_error` raises in the engine's thread, after all sinks have taken the op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvsan.checker.advice import Warned
from kvsan.checker.clocks import Vector
from kvsan.checker.coverage import Coverage
from kvsan.checker.elsewhere import Elsewhere
from kvsan.checker.online import Online
from kvsan.checker.suppressions import Suppression, Suppressions, properties
from kvsan.model.hazard import Hazard
from kvsan.model.ops import Access, Op, Record, Stream, Sync, Wait

MAX_FINDINGS = 1 << 12
"""Distinct findings that are kept apart. More are counted together, but never under one that is suppressed."""

MAX_TOKENS = 1 << 13
"""Tokens that wait to be taken; the oldest are forgotten. A process puts tokens that only other processes take."""


_ON_STREAMS = frozenset((Access, Record, Wait))
"""Ops that are issued on a stream: their second field."""


class KvsanHazard(RuntimeError):  # noqa: N818 - a finding, not an error of kvsan
    """A hazard, raised where its later access was issued. The message is the report in words."""

    def __init__(self, hazard: Hazard, text: str) -> None:
        super().__init__(text)
        self.hazard = hazard


@dataclass(slots=True)
class Finding:
    """All hazards of one sort: the first in full (the first that is certain, and of those the first with reuse, if one
    has), and how many blocks and ops.
    """

    hazard: Hazard
    blocks: int = 0
    ops: int = 0
    suppressed: Suppression | None = None
    others: bool = False
    """Beyond `MAX_FINDINGS`: the counts are of several sorts, of which this hazard is the first."""


class BySite:
    """Hazards by site pair."""

    def __init__(self, suppressions: Suppressions | None = None) -> None:
        self.suppressions = Suppressions() if suppressions is None else suppressions
        self._found: dict[tuple[str, ...], Finding] = {}
        self._others: dict[int, Finding] = {}  # by suppression (0: none): what found no room in `_found`

    def add(self, hazard: Hazard) -> Finding | None:
        """The finding, if it is new, or certain for the first time, and not suppressed."""
        scoped = self.suppressions.scoped(hazard)
        key = (*properties(hazard).values(), "" if scoped is None else str(scoped))
        found = self._found.get(key)
        fresh = found is None
        if found is None:
            line = scoped or self.suppressions.find(hazard)
            if len(self._found) < MAX_FINDINGS:
                found = self._found[key] = Finding(hazard, suppressed=line)
            else:
                where = id(line) if line is not None else 0
                fresh = where not in self._others
                found = self._others.setdefault(where, Finding(hazard, suppressed=line, others=True))
        elif found.hazard.possible and not hazard.possible:
            found.hazard, fresh = hazard, True
        elif hazard.reuse and not found.hazard.reuse and hazard.possible == found.hazard.possible:
            found.hazard = hazard
        found.blocks += len(hazard.blocks)
        found.ops += 1
        if found.suppressed is not None:
            found.suppressed.used += len(hazard.blocks)
            return None
        return found if fresh else None

    def real(self) -> list[Finding]:
        return [found for found in self._all() if found.suppressed is None]

    def suppressed(self) -> list[Finding]:
        return [found for found in self._all() if found.suppressed is not None]

    def _all(self) -> list[Finding]:
        return [*self._found.values(), *self._others.values()]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a check has to say at a moment. `allowed`: the allowances under which there was a hazard."""

    coverage: Coverage
    real: list[Finding]
    suppressed: list[Finding]
    unused: list[Suppression]
    allowed: list[Suppression]
    warnings: list[Warned]

    @classmethod
    def nothing(cls) -> Seen:
        """Of a run without a line."""
        return cls(Coverage(start="attached"), [], [], [], [], [])


class LiveCheck:
    """A `Sink`. `report` is called with the new findings of an op and may raise `KvsanHazard`; `lost` when an
    order is not known any more, since its token was taken too late.
    """

    def __init__(
        self,
        report: Callable[[list[Finding]], None],
        suppressions: Suppressions | None = None,
        *,
        assume_stream_order: bool = False,
        lost: Callable[[], None] | None = None,
    ) -> None:
        self.online = Online(
            {}, attached=True, assume_stream_order=assume_stream_order, each_edge=True, max_tokens=MAX_TOKENS
        )
        self.online.lost = lost
        self.online.foreign = self._foreign
        self._elsewhere: Elsewhere | None = None
        self.findings = BySite(suppressions)
        self._report = report
        self._counts: dict[tuple[type, str, str | None], int] = {}
        self._held: dict[int, Vector] = {}

    def pool(self, name: str, blocks: int) -> None:
        self.online.add_pool(name, blocks)

    def stream(self, name: str, stream: Stream) -> None:
        self.online.clocks.declare(name, stream)
        if self._elsewhere is not None:
            self._elsewhere.declare(name, stream)

    def take(self, index: int, op: Op) -> None:
        self._note(op)
        found = self.online.feed(index, op)
        if found or self._elsewhere is not None:
            self._look(index, op, found)

    def line(self, index: int, kind: type[Op], given: tuple[Any, ...]) -> None:
        """`take` of `kind(*given)`, where nobody else asks for the op: mostly it is not made."""
        key = (kind, given[0], given[1] if kind in _ON_STREAMS else None)
        counts = self._counts
        counts[key] = counts.get(key, 0) + 1
        found = self.online.line(index, kind, given)
        if found or self._elsewhere is not None:
            self._look(index, kind(*given), found)

    def _look(self, index: int, op: Op, found: list[Hazard] | None) -> None:
        other = self._elsewhere
        if other is not None:
            other.feed(index, op)
        if found:
            if self.findings.suppressions.open:
                self._forgive(found)
            if other is not None:
                found = [replace(hazard, possible=True) if other.may_order(hazard) else hazard for hazard in found]
            fresh = [finding for hazard in found if (finding := self.findings.add(hazard)) is not None]
            if fresh:
                self._report(fresh)

    def _forgive(self, found: list[Hazard]) -> None:
        """A block is reported once; what raced where that was allowed may race again where it is not."""
        for hazard in found:
            if self.findings.suppressions.scoped(hazard) is not None:
                self.online.findings.forgive(hazard)

    def hold(self, index: int, op: Sync) -> None:
        """In force at once: until it is settled the thread issues nothing."""
        self._held[index] = self.online.clocks.knowledge(op.by)
        self.online.feed(index, op)
        if self._elsewhere is not None:  # if the call fails, this reading keeps what it would have ordered
            self._elsewhere.feed(index, op)

    def settle(self, index: int, op: Op) -> None:
        before = self._held.pop(index)
        if not isinstance(op, Sync):
            self.online.clocks.unlearn(op.by, before)
        self._note(op)

    def before(self, index: int) -> Vector:
        """What the thread knew before its blocking call, line `index`, which is still out."""
        return self._held[index]

    def thread_gone(self, name: str) -> None:
        """A host thread that has ended: what only it needs goes."""
        self.online.thread_gone(name)
        if self._elsewhere is not None:
            self._elsewhere.thread_gone(name)

    def _foreign(self) -> None:
        if self._elsewhere is None:
            self._elsewhere = Elsewhere(self.online.clocks)

    def _note(self, op: Op) -> None:
        key = (type(op), op.by, getattr(op, "on", None))
        counts = self._counts
        counts[key] = counts.get(key, 0) + 1

    def seen(self) -> Seen:
        """What it has to say now."""
        suppressions = self.findings.suppressions
        return Seen(
            coverage=self.coverage(),
            real=self.findings.real(),
            suppressed=self.findings.suppressed(),
            unused=suppressions.unused(),
            allowed=[line for line in suppressions.allowed.values() if line.used],
            warnings=list(self.online.advice.all()),
        )

    def coverage(self) -> Coverage:
        """What was seen so far."""
        seen = Coverage(start="attached", pools=self.online.touched())
        for (kind, by, on), count in self._counts.items():
            seen.ops[kind.__name__] += count
            seen.threads[by] += count
            if kind is Access:  # the recorder logs none that names no block
                seen.touching[on] += count
            if on is not None:
                seen.streams.setdefault(on, Counter())[kind.__name__] += count
        return seen


def totals(findings: list[Finding]) -> list[Mapping[str, Any]]:
    """As in `kvsan check`'s report: blocks by kind, pool and the two labels. A block counts once for each edge that it
    misses, and not for its first race alone.
    """
    counts: Counter[tuple[str, str, str | None, str | None]] = Counter()
    for found in findings:
        h = found.hazard
        counts[(h.kind.value, h.pool, h.earlier.label, h.later.label)] += found.blocks
    return [
        {"kind": kind, "pool": pool, "earlier": earlier, "later": later, "pairs": pairs}
        for (kind, pool, earlier, later), pairs in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
    ]
