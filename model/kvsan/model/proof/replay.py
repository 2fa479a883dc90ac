"""A schedule as ops: what an engine that follows it would issue, so that `kvsan check` can be asked for its
opinion.

The tracked block is block 0 of the design's pool; work for other blocks reads a pool of its own. Names of
steps' and transfers' events become one event object each, as in an engine (`load_done#2`), and so do the tokens
of a hand-off. A rule that takes the block from its pool or returns it becomes alloc, touch or free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvsan.model.design import MAIN, Design, Submit, Work
from kvsan.model.design.check import pending
from kvsan.model.ops import (
    Access,
    Alloc,
    Blocks,
    Drop,
    Free,
    Get,
    Op,
    Poll,
    Put,
    Record,
    Stream,
    Sync,
    Touch,
    Wait,
)
from kvsan.model.proof.actions import TRACKED, Action

OTHERS = "other blocks"
"""The pool that work for other blocks reads, so that it is an access at all; nobody writes it."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace without a file: pools and streams for the header, and the ops."""

    pools: Mapping[str, int]
    streams: Mapping[str, Stream]
    ops: tuple[Op, ...]


def replay(design: Design, actions: Sequence[Action]) -> Replay:
    """The ops of a schedule that starts from a fresh pool."""
    tape = _Tape(design)
    for action in actions:
        tape.play(action)
    return Replay({design.pool: 1, OTHERS: 1}, {stream.name: Stream() for stream in design.streams}, tuple(tape.ops))


class _Tape:
    def __init__(self, design: Design) -> None:
        self.design = design
        self.ops: list[Op] = []
        self.block = design.start
        self.steps = 0
        self.objects: dict[str, str] = {}  # event name of the design -> the object that it stands for now
        self.fresh: set[str] = set()  # objects that exist and were not recorded
        self.count: Counter[str] = Counter()
        self.tokens: dict[str, str] = {}
        self.planned: dict[str, int] = {}
        self.one = {event.name for event in design.events if event.per in ("transfer", "step")}
        self.plans = pending(design)
        self.keeps = {rule.name for rule in design.rules if rule.keeps}
        planned: list[Work | Submit] = [*design.works(), *(i for i in design.step if isinstance(i, Submit))]
        self.items = {item.name: item for item in planned}

    def play(self, action: Action) -> None:
        if action.kind == "launch":
            self.steps += 1
        for op in action.ops:
            self._op(op)
        for new, old in action.copies:
            if old in self.objects:
                self.objects[new] = self.objects[old]
        if action.sets:
            keeps = action.kind == "rule" and action.of in self.keeps
            self._set(self.block | dict(action.sets), keeps=keeps)

    # ── ops ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _op(self, op: Op) -> None:
        match op:
            case Access():
                step = self.steps if op.by == MAIN else None
                touches = bool(op.reads or op.writes)
                planned = self.planned.get(op.label) if touches else None
                reads = op.reads if touches else {OTHERS: Blocks.of([0])}
                self.ops.append(replace(op, reads=reads, step=step, planned=planned))
            case Record():
                self.ops.append(replace(op, event=self._recorded(op.event)))
            case Wait() | Poll():
                self.ops.append(replace(op, event=self._object(op.event)))
            case Sync():
                self.ops.append(replace(op, event=self._object(str(op.event))))
            case Drop():
                self._made(op.event)  # a fresh object takes its place; the old one may still be polled elsewhere
            case Put():
                self.count[op.token] += 1
                self.tokens[op.token] = f"{op.token}#{self.count[op.token]}"
                self.ops.append(replace(op, token=self.tokens[op.token]))
            case Get():
                if op.token in self.tokens:
                    self.ops.append(replace(op, token=self.tokens[op.token]))
            case Alloc() | Free() | Touch():
                self.ops.append(op)

    def _object(self, event: str) -> str:
        """The object that a name stands for; one never recorded has a name all the same."""
        return self.objects.get(event, event if event not in self.one else f"{event}#0")

    def _recorded(self, event: str) -> str:
        if event not in self.one:
            return event
        if event in self.fresh:
            self.fresh.discard(event)
            return self.objects[event]
        return self._made(event, fresh=False)

    def _made(self, event: str, *, fresh: bool = True) -> str:
        self.count[event] += 1
        self.objects[event] = f"{event}#{self.count[event]}"
        if fresh:
            self.fresh.add(event)
        return self.objects[event]

    # ── the block ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _set(self, block: dict[str, str], *, keeps: bool) -> None:
        before, after = self.design.free.holds(self.block), self.design.free.holds(block)
        due = {name for name in self.plans if self._due(name, self.block)}
        self.block = block
        ids = Blocks.of([TRACKED])
        if before and not after:
            self.ops.append(Touch(MAIN, self.design.pool, ids) if keeps else Alloc(MAIN, self.design.pool, ids))
        elif after and not before:
            self.ops.append(Free(MAIN, self.design.pool, ids))
        for name in self.plans:
            if self._due(name, block) and name not in due and self.ops:
                self.planned[name] = len(self.ops) - 1

    def _due(self, name: str, block: Mapping[str, str]) -> bool:
        item = self.items[name]
        return any(item.mode(block)) if isinstance(item, Work) else item.when.holds(block)
