"""The incident ring: the last seconds of ops with the state that they start from, written when a hazard is found.

So a week-long run needs no week-long trace. Ops are kept in two segments; a segment begins with a copy of what the
checker knew (`state.py`), and when one has lasted its time, the one before it is let go: the ring spans once to twice
its time. What is written is a trace by
itself: `start: attached`, the state as ops, then the ops, each with the number (`was`) that it had in the run. Whoever
checks it finds the hazard again, also one whose earlier access is older than the ring: the state holds for every block
its last write and the reads since. A block that races several times in it shows all of that with `--all`, and its first
race without.

It cannot show: what happened between that earlier access and the ring (only what of it is still known), code sites and
labels of accesses that the checker no longer remembers, other hazards of blocks that had raced before.

A blocking call that is out when a segment begins is in force in that segment's state; if it fails, or has not returned
when the ring is written, what its thread learnt by it is taken out again.

A bound on bytes ends a segment early: the ring then holds less time, and the file says how much.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kvsan.checker.attach.around import nothing
from kvsan.checker.clocks import Vector
from kvsan.checker.index import IdBlocks
from kvsan.checker.live import LiveCheck
from kvsan.checker.state import State, renumbered, replay
from kvsan.checker.trace.header import Header
from kvsan.checker.trace.writer import TraceWriter, op_document
from kvsan.model.hazard import Hazard
from kvsan.model.ops import Access, Op, Stream, Sync
from kvsan.model.pasts import Agent

OP_BYTES = 400


@dataclass(slots=True)
class _Segment:
    state: State
    began: int
    ops: list[Op] = field(default_factory=list)
    size: int = 0
    out: dict[int, tuple[str, Vector]] = field(default_factory=dict)
    """Blocking calls that were out when it began: line → thread, and what the thread knew before."""

    def without(self, lines: Iterable[int]) -> State:
        """The state if those calls ordered nothing."""
        back = {
            Agent(by, is_host=True): vector for line in lines if line in self.out for by, vector in [self.out[line]]
        }
        return replace(self.state, pasts={**self.state.pasts, **back}) if back else self.state


class Ring:
    """A `Sink`; stands before the checker in the list of sinks, so that a segment's state is that before its op."""

    def __init__(self, check: LiveCheck, seconds: float, megabytes: int) -> None:
        self._check = check
        self._length = int(seconds * 1e9)
        self._bytes = megabytes << 19
        self._segments: list[_Segment] = []
        self._held: dict[int, Sync] = {}
        self._last = 0

    def pool(self, name: str, blocks: int) -> None:
        pass

    def stream(self, name: str, stream: Stream) -> None:
        pass

    def take(self, index: int, op: Op) -> None:
        segment = self._segments[-1] if self._segments else None
        now = self._last = int(op.t or 0)
        if segment is None or now - segment.began > self._length or segment.size > self._bytes:
            segment = self._turn(index, now)
        segment.ops.append(op)
        segment.size += OP_BYTES
        if type(op) is Access:
            for blocks in (*op.reads.values(), *op.writes.values()):
                segment.size += blocks.ids.nbytes if type(blocks) is IdBlocks else 100 * len(blocks.runs)

    def hold(self, index: int, op: Sync) -> None:
        self.take(index, op)
        self._held[index] = op

    def settle(self, index: int, op: Op) -> None:
        held = self._held.pop(index)
        if op is held:
            return
        for segment in self._segments:
            segment.state = segment.without([index])
            at = index - segment.state.op
            if 0 <= at < len(segment.ops):
                segment.ops[at] = op

    def seconds(self) -> float:
        """How much time the ring spans now."""
        return (self._last - self._segments[0].began) / 1e9 if self._segments else 0.0

    def grab(self, header: Header, hazard: Hazard) -> Incident:
        """What the ring holds now, to be written when there is time."""
        segments = [
            _Segment(segment.without(self._held), segment.began, list(segment.ops)) for segment in self._segments
        ]
        return Incident(self._check, segments, dict(self._held), header, hazard, self.seconds())

    def _turn(self, index: int, now: int) -> _Segment:
        made = _Segment(State.of(self._check.online, index), now)
        made.out = {line: (op.by, self._check.before(line)) for line, op in self._held.items()}
        self._segments = [*self._segments[-1:], made]
        return self._segments[-1]


@dataclass(slots=True)
class Incident:
    """A ring as it was at a hazard."""

    check: LiveCheck
    segments: list[_Segment]
    held: dict[int, Sync]
    header: Header
    hazard: Hazard
    seconds: float

    def write(self, path: str) -> int:
        """Writes the trace; how many lines it has. Raises `OSError`."""
        first = self.segments[0].state
        restored = replay(first, self.check.online, self.hazard)
        lines = list(renumbered([*restored.lines, *self._ops()]))
        about: dict[str, Any] = {
            "incident": self.hazard.document(),
            "seconds": round(self.seconds, 3),
            "from_op": first.op,
            "state_lines": len(restored.lines),
        }
        if restored.left_out:
            about["pasts_left_out"] = restored.left_out
        header = replace(self.header, attached=True, other={**self.header.other, **about})
        if self.hazard.possible and not header.unseen.edges:  # what another process knew is not in this trace
            header = replace(header, unseen=replace(header.unseen, edges=1))
        with TraceWriter(path, header) as out:
            for number, op in lines:
                document = op_document(op)
                if number is not None and number >= 0:
                    document["was"] = number
                out.write_object(document)
        return len(lines)

    def _ops(self) -> Iterator[tuple[int | None, Op]]:
        for segment in self.segments:
            for number, op in enumerate(segment.ops, segment.state.op):
                held = self.held.get(number)
                yield number, op if held is None else nothing(number, held)
