"""What was seen: the ledger that stands beside every verdict, because "no hazard" means nothing without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvsan.checker.trace.header import Header
from kvsan.model.ops import Access, Op


@dataclass(slots=True)
class Coverage:
    """Ops by kind, accesses by stream and by host thread, blocks touched by pool, and what the header says of hooks."""

    ops: Counter[str] = field(default_factory=Counter)
    streams: dict[str, Counter[str]] = field(default_factory=dict)
    threads: Counter[str] = field(default_factory=Counter)
    touching: Counter[str | None] = field(default_factory=Counter)
    """Accesses that name at least one block, by stream (`None`: the host's own): one that names none shows nothing."""
    pools: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    hooks: Mapping[str, int] = field(default_factory=dict)
    unseen: Mapping[str, int] = field(default_factory=dict)
    start: str = "fresh"

    def note(self, op: Op) -> None:
        kind = type(op).__name__
        self.ops[kind] += 1
        self.threads[op.by] += 1
        on = getattr(op, "on", None)
        if on is not None:
            counts = self.streams.get(on)
            if counts is None:
                counts = self.streams[on] = Counter()
            counts[kind] += 1
        if isinstance(op, Access) and any(b.runs for touched in (op.reads, op.writes) for b in touched.values()):
            self.touching[op.on] += 1

    @property
    def accesses(self) -> int:
        return self.touching.total()

    def missing(self, header: Header) -> list[str]:
        """Why the run does not show what it had to: the reasons for Incomplete, each a sentence."""
        why = []
        if not self.accesses:
            why.append("no access was logged")
        for name in header.expects.streams:
            if not self.touching[name]:
                seen = "carried no access" if name in self.streams else "never appeared"
                why.append(f"expected stream {name} {seen}")
        for name, count in header.expects.hooks.items():
            fired = header.hooks.get(name, 0)
            if fired < count:
                why.append(
                    f"expected hook {name} fired {fired} of {count} times" if fired else f"hook {name} never fired"
                )
        if header.unseen.copies:
            why.append(f"{header.unseen.copies} copies were noticed and not logged")
        return why

    def document(self) -> dict[str, Any]:
        return {
            "accesses": self.accesses,
            "ops": {kind.lower(): count for kind, count in sorted(self.ops.items())},
            "streams": {
                name: {kind.lower(): count for kind, count in sorted(counts.items())}
                for name, counts in self.streams.items()
            },
            "threads": dict(self.threads),
            "pools": {pool: dict(counts) for pool, counts in self.pools.items()},
            "hooks": dict(self.hooks),
            "unseen": dict(self.unseen),
            "start": self.start,
        }
