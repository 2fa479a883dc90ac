"""What `conform` answers: a run of that design, no run of it, or too little to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsan.checker.conform.world import RefusalError
from kvsan.checker.verdict import Exit


@dataclass(frozen=True, slots=True)
class Conformance:
    """`works` and `edges`: how often each work touched a block and each device wait was held against the trace;
    `rules` that may have happened; and what was never exercised. `refusal`: the first op that is none of the design's.
    `why`: the reasons for Incomplete."""

    trace: str
    design: str
    ops: int
    works: Mapping[str, int]
    edges: Mapping[str, int]
    rules: tuple[str, ...]
    unused_works: tuple[str, ...]
    unused_rules: tuple[str, ...]
    unused_edges: tuple[str, ...]
    notes: tuple[str, ...] = ()
    refusal: RefusalError | None = None
    why: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return "refused" if self.refusal is not None else "incomplete" if self.why else "conforms"

    @property
    def exit(self) -> Exit:
        return {"refused": Exit.RACY, "incomplete": Exit.INCOMPLETE, "conforms": Exit.CLEAN}[self.verdict]

    def line(self) -> str:
        """The verdict in one line."""
        if self.refusal is not None:
            return f"{self.trace}: refused by {self.design}: {self.refusal}"
        if self.why:
            return f"{self.trace}: incomplete against {self.design}: {'; '.join(self.why)}"
        return f"{self.trace}: conforms to {self.design}: {self.ops:,} ops"

    def text(self) -> str:
        """The verdict; if it is no refusal, what was exercised and what was not."""
        lines = [self.line()]
        if self.refusal is None:
            used = ", ".join(f"{name} {count:,}" for name, count in (*self.works.items(), *self.edges.items()))
            lines.append(f"  exercised: {used or 'nothing'}")
            unused = (("works", self.unused_works), ("rules", self.unused_rules), ("waits", self.unused_edges))
            lines += [f"  never exercised, {what}: {', '.join(names)}" for what, names in unused if names]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "kvsan": 1,
            "trace": self.trace,
            "design": self.design,
            "verdict": self.verdict,
            "ops": self.ops,
            "exercised": {"works": dict(self.works), "waits": dict(self.edges), "rules": list(self.rules)},
            "unexercised": {
                "works": list(self.unused_works),
                "waits": list(self.unused_edges),
                "rules": list(self.unused_rules),
            },
            "notes": list(self.notes),
        }
        if self.refusal is not None:
            out["refusal"] = {"op": self.refusal.op, "at": self.refusal.at, "expected": self.refusal.expected}
        if self.why:
            out["why"] = list(self.why)
        return out
