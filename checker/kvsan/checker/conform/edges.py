"""Device waits: each one that the design states is in the trace, and no other that adds order.

Missing: the work waits in the design (`after=`) for an event, and no wait on its stream so far holds at least what the
design's event holds then; or it does, and the source of the work's reads is not read in stream order. What the stream
knows by another road (the host saw it done before the launch) is no excuse: the edge is what the proof used, and the
same engine has a run in which the host did not see it. Works of a step may share a wait; a job of a further thread has
its own.

Extra: a wait between two streams of the design in front of a work adds accesses that the scheduler's thread does not
know to be complete and that none of the work's edges gives. A wait that adds nothing is no extra one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvsan.checker.conform.cells import NOBODY, Cell, get
from kvsan.checker.conform.facts import Fact, Past, covers
from kvsan.checker.conform.world import RefusalError, Where, World
from kvsan.model.design import EdgeKind, Work
from kvsan.model.design.parts import Edge
from kvsan.model.ops import Access, Wait
from kvsan.model.pasts import Agent, Epochs

_join = Epochs().join


@dataclass(slots=True)
class Waited:
    """What a stream has waited for: all of it, each object's latest record, and the waits since its latest work."""

    past: Past = ()
    objects: dict[str, int] = field(default_factory=dict)
    since: list[Fact] = field(default_factory=list)


class Edges:
    """The waits of the trace, stream by stream."""

    def __init__(self, world: World, agents: Mapping[Agent, int]) -> None:
        self.world = world
        self.used: dict[str, int] = {}
        self._streams: dict[Where, Waited] = {}
        self._agents = agents
        self._own = {stream.name for stream in world.design.streams}
        records = [event for rule in world.design.rules for _, event in rule.records]
        self._at_rules = {event: on for rule in world.design.rules for on, event in rule.records if event in records}

    def waited(self, on: Where) -> Waited:
        return self._streams.setdefault(on, Waited())

    def wait(self, fact: Fact, on: str) -> None:
        assert isinstance(fact.op, Wait)
        waited = self.waited(on)
        waited.past = _join(waited.past, fact.event)
        waited.objects[fact.op.event] = max(fact.recorded, waited.objects.get(fact.op.event, -1))
        waited.since.append(fact)

    # ── missing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def holds(self, event: str, cell: Cell, work: Work, marks: Mapping[str, int]) -> int:
        """The snapshot that the wait of this work must hold for a block that is so; -1: none was ever recorded."""
        if not self.world.shared(event):
            return get(cell.marks, event)
        for job in cell.jobs:
            if job.queue == work.takes:
                return get(job.events, event)
        return marks.get(event, self.world.now.get(event, NOBODY))

    def missing(self, fact: Fact, work: Work, cell: Cell, marks: Mapping[str, int], *, reads: bool) -> str | None:
        """Why the waits in front of this work are not enough for a block that is so."""
        assert isinstance(fact.op, Access)
        waited = self.waited(work.on)
        gives_away = reads and fact.op.order != "stream" and work.order == "stream"
        for event in work.after:
            at = self.holds(event, cell, work, marks)
            if at == NOBODY:
                continue
            snap = self.world.snapshots[at]
            if snap.objects and snap.objects.keys() <= self.world.dropped and covers(fact.main, snap.past):
                continue  # the scheduler's thread has seen it done and given it back: there is nothing to wait for
            edge = Edge(EdgeKind.WAIT, work.name, event).name
            what = f"{event}{self.world.behind(at)}"
            if snap.named and not snap.objects:
                return f"{edge}: expected a record of {what} before it is waited for"
            have = waited.objects if work.takes is None else _latest(waited.since)
            named = snap.named and not any(have.get(obj, -1) >= op for obj, op in snap.objects.items())
            if named or not covers(waited.past, snap.past):
                late = self._nearest(waited)
                return f"{edge}: missing wait: expected {work.on} to wait for {what}; {late}"
            if gives_away and any(snap.past):
                return (
                    f"{edge}: source order {fact.op.order}: expected stream, since the wait for {what} does not order"
                    " a source that is read at any time from the call on"
                )
        return None

    def _nearest(self, waited: Waited) -> str:
        if not waited.since:
            return "there is no wait in front of it"
        ops = ", ".join(f"op {fact.index}" for fact in waited.since)
        recorded = max(fact.recorded for fact in waited.since)
        return f"{ops} waits for what was recorded at op {recorded}" if recorded >= 0 else f"{ops} waits for nothing"

    # ── extra ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def extra(self, work: Work, given: Iterable[int]) -> None:
        """Forgets the waits since the stream's latest work. Raises `RefusalError` for one that adds order that no edge
        of the work gives; `given`: the snapshots that its edges hold."""
        waited = self.waited(work.on)
        if not waited.since:
            return
        world = self.world
        allowed: Past = ()
        for at in given:
            allowed = _join(allowed, world.snapshots[at].past)
        for event in work.after:
            if event in world.now:
                allowed = _join(allowed, world.snapshots[world.now[event]].past)
            if event in self._at_rules:
                allowed = _join(allowed, world.last.get(self._at_rules[event], ((), NOBODY))[0])
        since, waited.since = waited.since, []
        for fact in since:
            known = _join(_join(fact.before, fact.main), allowed)
            for agent, at in self._agents.items():
                name = agent.name
                held = fact.event[at] if at < len(fact.event) and not agent.is_host else 0
                on = world.names.stream(name)
                if held > (known[at] if at < len(known) else 0) and on != work.on and on in self._own:
                    raise RefusalError(fact.index, f"{work.name}: extra wait", self._words(fact, work, name, held - 1))

    def _words(self, fact: Fact, work: Work, name: str, op: int) -> str:
        assert isinstance(fact.op, Wait)
        edges = ", ".join(Edge(EdgeKind.WAIT, work.name, event).name for event in work.after)
        stated = f"the edges of {work.name} ({edges}) do not reach so far" if edges else "it states no wait"
        return (
            f"expected no wait of {fact.op.on} for {name} in front of {work.name}; {stated}, and event"
            f" {fact.op.event} holds op {op} on {name}"
        )

    def count(self, work: Work, given: Mapping[str, int]) -> None:
        for event in given:
            name = Edge(EdgeKind.WAIT, work.name, event).name
            self.used[name] = self.used.get(name, 0) + 1


def _latest(waits: Iterable[Fact]) -> dict[str, int]:
    """The objects that these waits name, and the latest record of each that they bind to."""
    out: dict[str, int] = {}
    for fact in waits:
        assert isinstance(fact.op, Wait)
        out[fact.op.event] = max(fact.recorded, out.get(fact.op.event, -1))
    return out
