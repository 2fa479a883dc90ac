"""What the online checker knows at a moment, and a trace that makes another checker know the same.

A trace that begins in mid-run cannot show a hazard whose earlier access lies before it. So the incident ring keeps
the state that its first op found, and writes it as ops in front: for each block its last write and the reads since,
its life, and for every stream, host thread, event and token exactly what it knew of those accesses. Whoever checks
the trace finds the hazards that the run found, of the same blocks, with the same kinds, labels and streams.

How knowledge is given and not too much of it: an access of agent a is followed by a record (by a put, if a is a host
thread) that stands for "a up to here". A host thread blocks on those it knew; a stream gets them through a host
thread of its own whose next record on it carries them (a wait would be a barrier on the legacy stream); an event or a
token through a stream and a thread of its own.

Of a block that has raced before, the accesses cannot all be restored, since they would race again in front. What is
restored of it is the earlier access of the hazard that the trace is to show, if it lies before the run's part.

Which edges a debug session has named before (`findings.py`) is not restored: one that checks the trace names them again
where the run's part shows them.

Does not restore: that a stream has not met the barrier of a legacy stream yet (it is taken as met), anything else of
blocks that have raced before, tokens that were taken and are taken again, warnings, and more than
`MAX_HELPERS` distinct pasts of events and tokens (the oldest are left out, which may make a replayed hazard that the
run did not have; the header says so).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from kvsan.checker.clocks import Recorded, Vector
from kvsan.checker.index import Ids, ids, runs_of
from kvsan.checker.lives import FREE, LIVE, TOUCHED, Lives, Marks
from kvsan.checker.online import Online
from kvsan.checker.shadow import EPOCH, SHIFT, Shadow
from kvsan.model.hazard import Hazard, Kind, Site
from kvsan.model.ops import Access, Alloc, Blocks, Drop, Free, Get, Op, Put, Record, Source, Sync, Touch, Wait
from kvsan.model.pasts import Agent

NOBODY = "kvsan"  # a host thread that knows nothing and so teaches nothing by issuing
MAX_HELPERS = 1000

_Mark = tuple[int, int]
"""(lane, epoch): an agent's access."""


@dataclass(frozen=True, slots=True)
class State:
    """A copy of what `Online` knows before op number `op`."""

    op: int
    agents: tuple[Agent, ...]
    pasts: Mapping[Agent, Vector]
    events: Mapping[str, Recorded]
    tokens: Mapping[str, Vector]
    shadows: Mapping[str, Shadow]
    lives: Mapping[str, Lives]
    raced: Mapping[str, Marks]

    @classmethod
    def of(cls, online: Online, op: int) -> State:
        clocks = online.clocks
        return cls(
            op,
            tuple(clocks.agents),
            clocks.pasts(),
            dict(clocks.events),
            clocks.tokens(),
            {pool: shadow.copy() for pool, shadow in online.shadows.items()},
            {pool: lives.copy() for pool, lives in online.lives.items()},
            {pool: online.findings.raced(pool) for pool in online.lives},
        )


@dataclass(slots=True)
class _Part:
    """What one agent's access at one epoch still stands for."""

    reads: dict[str, Ids] = field(default_factory=dict)
    writes: dict[str, Ids] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)
    """Lane → epoch of the conflicting accesses that came before it: their order is what kept them from racing."""

    def comes_after(self, lanes: Ids, epochs: Ids) -> None:
        for lane in np.unique(lanes).tolist():
            latest = int(epochs[lanes == lane].max())
            self.after[lane] = max(self.after.get(lane, 0), latest)


@dataclass(slots=True)
class Replay:
    """Ops that restore a state, each with the number of the op that it stands for (`None`: made up)."""

    lines: list[tuple[int | None, Op]] = field(default_factory=list)
    left_out: int = 0


def renumbered(lines: Iterable[tuple[int | None, Op]]) -> Iterator[tuple[int | None, Op]]:
    """The same lines with `planned` as their own numbers: that of the latest line which stands for an op up to it."""
    was: list[int] = []
    now: list[int] = []
    for number, (stands_for, op) in enumerate(lines):
        if isinstance(op, Access) and op.planned is not None:
            at = bisect_right(was, op.planned)
            yield stands_for, replace(op, planned=now[at - 1] if at else None)
        else:
            yield stands_for, op
        if stands_for is not None:
            was.append(stands_for)
            now.append(number)


def replay(state: State, online: Online, hazard: Hazard | None = None) -> Replay:
    """`online`, which may have gone on since, is asked for the words (labels, steps) of old accesses. `hazard` is what
    the trace has to show, whatever had raced before.
    """
    return _Builder(state, online, hazard).build()


class _Builder:
    def __init__(self, state: State, online: Online, hazard: Hazard | None) -> None:
        self._state = state
        self._online = online
        self._hazard = hazard
        self._lane = {agent: lane for lane, agent in enumerate(state.agents)}
        self._parts: dict[_Mark, _Part] = {}
        self._epochs: dict[int, list[int]] = {}
        self._done: set[_Mark] = set()
        self._out = Replay()

    def build(self) -> Replay:
        self._out.lines.append((-1, Put(NOBODY, f"{NOBODY}/start")))  # something to be planned at, if it was long ago
        for pool, shadow in self._state.shadows.items():
            self._accesses(pool, shadow)
        for lane, epoch in sorted(self._parts):
            self._epochs.setdefault(lane, []).append(epoch)
        moments: list[tuple[int, int, Iterable[tuple[int | None, Op]]]] = [
            (epoch, 1 if self._state.agents[lane].is_host else 2, self._access(lane, epoch, part))
            for (lane, epoch), part in self._parts.items()
        ]
        for pool, lives in self._state.lives.items():
            moments += [(stamp, 0, [(stamp - 1, op)]) for stamp, op in _lives(pool, lives)]
        for *_, lines in sorted(moments, key=lambda moment: moment[:2]):
            self._out.lines += lines
        self._agents()
        self._events_and_tokens()
        return self._out

    # ── what was accessed ─────────────────────────────────────────────────────────────────────────────────────────

    def _accesses(self, pool: str, shadow: Shadow) -> None:
        every = np.arange(shadow.size, dtype=np.int64)
        sound = self._state.raced[pool].fresh(every)
        written = shadow.write & EPOCH
        writer = shadow.write >> SHIFT
        for mark, found in _groups(every[sound & (written > 0)], writer, written):
            self._part(mark).writes[pool] = found
        for lane, column in shadow.read.items():
            lanes = np.full_like(column, lane)
            for mark, found in _groups(every[sound & (column > 0)], lanes, column):
                self._part(mark).reads[pool] = found
            other = sound & (column > 0) & (written > 0) & (writer != lane)
            for mark, found in _groups(every[other & (written < column)], lanes, column):
                self._part(mark).comes_after(writer[found], written[found])
            for mark, found in _groups(every[other & (written > column)], writer, written):
                self._part(mark).comes_after(lanes[found], column[found])

        self._earlier(pool, shadow, ~sound)

    def _earlier(self, pool: str, shadow: Shadow, raced: npt.NDArray[np.bool_]) -> None:
        """The earlier access of the hazard, to those of its blocks that had raced before. One access a block: it
        cannot race with another in front.
        """
        hazard = self._hazard
        if hazard is None or hazard.pool != pool or hazard.kind not in (Kind.RAW, Kind.WAR, Kind.WAW):
            return
        found, epoch = ids(hazard.blocks), hazard.earlier.op + 1
        found = np.unique(found[raced[found]])
        if hazard.kind is Kind.WAR:
            for lane, column in shadow.read.items():
                read = found[column[found] == epoch]
                if read.size:
                    reads = self._part((lane, epoch)).reads
                    reads[pool] = np.union1d(reads.get(pool, read), read)
            return
        written = found[shadow.write[found] & EPOCH == epoch]
        if written.size:
            writes = self._part((int(shadow.write[written[0]] >> SHIFT), epoch)).writes
            writes[pool] = np.union1d(writes.get(pool, written), written)

    def _part(self, mark: _Mark) -> _Part:
        return self._parts.setdefault(mark, _Part())

    def _access(self, lane: int, epoch: int, part: _Part) -> Iterator[tuple[int | None, Op]]:
        """The lines of one access. One whose reads were its host thread's own (`call`) has two parts and is one op."""
        if (lane, epoch) in self._done:
            return
        agent = self._state.agents[lane]
        for mark in part.after.items():
            yield from self._behind(agent, mark)
        site = self._online.findings.site(epoch - 1, agent.name, is_host=agent.is_host)
        reads, writes, by, on = part.reads, part.writes, NOBODY, agent.name
        order: Source = "stream"
        if agent.is_host:
            by = agent.name
            if site.on is not None:
                on, order = site.on, "call"
                mark = (self._lane[Agent(on)], epoch)
                rest = self._parts.get(mark, _Part())
                for earlier in rest.after.items():
                    yield from self._behind(Agent(on), earlier)
                writes = rest.writes
                self._done.add(mark)
                yield epoch - 1, _access_op(by, on, reads, writes, site, order)
                yield None, Record(NOBODY, on, self._name(mark))
            else:
                yield epoch - 1, _access_op(by, None, reads, writes, site, order)
            yield None, Put(agent.name, self._name((lane, epoch)))
        else:
            yield epoch - 1, _access_op(by, on, reads, writes, site, order)
            yield None, Record(NOBODY, agent.name, self._name((lane, epoch)))

    # ── who knew what ─────────────────────────────────────────────────────────────────────────────────────────────

    def _behind(self, agent: Agent, mark: _Mark) -> Iterator[tuple[int | None, Op]]:
        """Lets an agent know another's access."""
        other = self._state.agents[mark[0]]
        name = self._name(mark)
        if agent.is_host:
            yield None, Get(agent.name, name) if other.is_host else Sync(agent.name, event=name)
        elif other.is_host:
            yield None, Get(f"{name}>", name)
            yield from self._through(f"{name}>", agent.name)
        else:
            yield None, Wait(NOBODY, agent.name, name)

    def _name(self, mark: _Mark) -> str:
        return f"{NOBODY}/{self._state.agents[mark[0]].name}@{mark[1] - 1}"

    def _through(self, host: str, stream: str) -> Iterator[tuple[int | None, Op]]:
        yield None, Record(host, stream, f"{host}>{stream}")
        yield None, Drop(host, f"{host}>{stream}")

    def _known(self, vector: Vector) -> tuple[_Mark, ...]:
        """Of each agent the latest access that is still of interest and in a past."""
        out = []
        for lane, epochs in self._epochs.items():
            at = bisect_right(epochs, int(vector[lane])) if lane < len(vector) else 0
            if at:
                out.append((lane, epochs[at - 1]))
        return tuple(out)

    def _agents(self) -> None:
        for agent, vector in self._state.pasts.items():
            known = [mark for mark in self._known(vector) if mark[0] != self._lane[agent]]
            if not known:
                continue
            host = agent.name if agent.is_host else f"{NOBODY}/{agent.name}"
            self._teach(host, known)
            if not agent.is_host:
                self._out.lines += self._through(host, agent.name)

    def _teach(self, host: str, known: Iterable[_Mark]) -> None:
        for mark in known:
            self._out.lines += self._behind(Agent(host, is_host=True), mark)

    def _events_and_tokens(self) -> None:
        groups: dict[tuple[_Mark, ...], tuple[list[str], list[str]]] = {}
        for event, recorded in sorted(self._state.events.items(), key=lambda item: -item[1].op):
            groups.setdefault(self._known(recorded.vector), ([], []))[0].append(event)
        for token, vector in reversed(list(self._state.tokens.items())):
            groups.setdefault(self._known(vector), ([], []))[1].append(token)
        self._out.left_out = max(0, len(groups) - MAX_HELPERS)
        for number, (known, (events, tokens)) in enumerate(groups.items()):
            if number == MAX_HELPERS:
                break
            host = f"{NOBODY}/past{number}"
            self._teach(host, known)
            self._out.lines += [(None, Record(host, host, event)) for event in events]
            self._out.lines += [(None, Put(host, token)) for token in tokens]


def _access_op(
    by: str, on: str | None, reads: Mapping[str, Ids], writes: Mapping[str, Ids], site: Site, order: Source
) -> Access:
    return Access(
        by,
        on,
        {pool: runs_of(found) for pool, found in reads.items()},
        {pool: runs_of(found) for pool, found in writes.items()},
        site.label or "access",
        order,
        step=site.step,
        owner=site.owner,
        site=site.site,
    )


def _groups(found: Ids, lanes: Ids, epochs: Ids) -> Iterator[tuple[_Mark, Ids]]:
    """Blocks by (lane, epoch)."""
    if not found.size:
        return
    packed = lanes[found] << SHIFT | epochs[found]
    order = np.argsort(packed, kind="stable")
    packed, found = packed[order], found[order]
    starts = np.flatnonzero(np.concatenate(([True], packed[1:] != packed[:-1])))
    for start, part in zip(starts.tolist(), np.split(found, starts[1:]), strict=True):
        word = int(packed[start])
        yield (word >> SHIFT, word & EPOCH), part


def _lives(pool: str, lives: Lives) -> Iterator[tuple[int, Op]]:
    """Allocs, frees and touches that give each block its life again, with their stamps."""
    stamps = lives.stamps()
    if stamps is None:
        return
    since, state, reborn = stamps
    every = np.arange(len(since), dtype=np.int64)
    zero = np.zeros_like(since)
    for (_, stamp), found in _groups(every[reborn > 0], zero, reborn):
        yield stamp, Free(NOBODY, pool, runs_of(found))
        ended = found[state[found] != LIVE]
        if ended.size:  # allocated at some moment between
            yield stamp, Alloc(NOBODY, pool, runs_of(ended))
    kinds: dict[int, type[Alloc] | type[Free] | type[Touch]] = {LIVE: Alloc, FREE: Free, TOUCHED: Touch}
    for which, kind in kinds.items():
        for (_, stamp), found in _groups(every[(since > 0) & (state == which)], zero, since):
            blocks: Blocks = runs_of(found)
            yield stamp, kind(NOBODY, pool, blocks)
