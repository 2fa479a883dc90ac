"""The happens-before rules for a running engine: `kvsan.model.order`, inlined over numpy vectors of epochs.

A past is a vector with one epoch an agent: the number (plus one) of the agent's latest access known to be complete.
The rules are those of `order.py`, and a property test holds the two equal; read them there. What differs is how
little is done: a host thread's vector is joined into a stream only when it has changed since the last time, a
snapshot is shared until its stream moves on, and a wait says what it did (`Effect`) so that warnings need no second
look.

State: one vector an agent that is alive, one an event that is alive, one a token that is still to be taken (of those
at most `max_tokens`, if that is given: the oldest are forgotten, and whoever takes one learns nothing). Tokens that
were taken are remembered for a while (`SPENT_TOKENS`), since several threads may take one. Not thread-safe: the
logger's lock is above.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsan.checker.recent import SPENT_TOKENS, Recent
from kvsan.model.ops import Access, Device, Source, Stream
from kvsan.model.pasts import Agent

Vector = npt.NDArray[np.int64]

FORGOTTEN_TOKENS = 1 << 14
"""Of so many forgotten tokens at least it is known that they were put."""

MAX_LANES = 1 << 15
"""So many fit beside an epoch in one int64 (`shadow.py`)."""


class Effect(Enum):
    """What a wait did."""

    ORDERED = "added order"
    REDUNDANT = "added nothing that the stream did not know"
    OWN_STREAM = "waited for its own stream"
    UNRECORDED = "waited for nothing: the event has no record"


class Issue(NamedTuple):
    """What an access is checked against (live vectors: read them before the next op) and whose epochs it writes."""

    reads: Vector
    writes: Vector
    read_lane: int
    write_lane: int


@dataclass(slots=True, eq=False)
class _Host:
    lane: int
    vector: Vector
    version: int = 1
    learnt: Vector | None = None  # what it learnt last, of vectors that do not change any more


@dataclass(slots=True, eq=False)
class _Stream:
    lane: int
    vector: Vector
    declared: Stream
    joined: dict[int, int] = field(default_factory=dict)  # host lane -> its version when last joined
    snapshot: Vector | None = None
    barriers: dict[int, Vector] = field(default_factory=dict)  # legacy lane -> what it left
    followers: tuple[_Stream, ...] = ()
    left: Vector | None = None  # of a legacy stream: its past after its latest access or wait


class Recorded(NamedTuple):
    """What an event holds."""

    vector: Vector
    lane: int
    op: int


class Clocks:
    """One vector an agent. `epoch` arguments are op numbers plus one and must grow."""

    def __init__(
        self,
        streams: Mapping[str, Stream] | None = None,
        *,
        assume_stream_order: bool = False,
        max_tokens: int | None = None,
    ) -> None:
        self.agents: list[Agent] = []
        self.events: dict[str, Recorded] = {}
        self._width = 16
        self._hosts: dict[str, _Host] = {}
        self._streams: dict[str, _Stream] = {}
        self._tokens: OrderedDict[str, Vector] = OrderedDict()
        self._max_tokens = max_tokens
        self._forgotten: Recent[str, bool] = Recent(FORGOTTEN_TOKENS)
        self._spent: Recent[str, Vector] = Recent(SPENT_TOKENS)
        self._assume_stream_order = assume_stream_order
        for name, stream in (streams or {}).items():
            self._add_stream(name, stream)
        self._link()

    # ── the rules, in the order of `order.py` ─────────────────────────────────────────────────────────────────────

    def _launch(self, host: _Host, stream: _Stream) -> None:
        if stream.joined.get(host.lane) != host.version:
            stream.joined[host.lane] = host.version
            np.maximum(stream.vector, host.vector, out=stream.vector)
            stream.snapshot = None
        if stream.barriers:
            for left in stream.barriers.values():
                np.maximum(stream.vector, self._fit(left), out=stream.vector)
            stream.barriers.clear()
            stream.snapshot = None

    def access(self, epoch: int, what: Access) -> Issue:
        """Issues an access. Its own epoch is in the vectors already: it orders nothing that was not ordered before."""
        return self.issue(epoch, what.by, what.on, what.order)

    def issue(self, epoch: int, by: str, on: str | None, order: Source) -> Issue:
        """`access`, by what of it matters here."""
        host = self.host(by)
        if on is None:
            host.vector[host.lane] = epoch
            host.version += 1
            return Issue(host.vector, host.vector, host.lane, host.lane)
        stream = self.stream(on)
        read_lane = stream.lane
        if order == "call":
            host.vector[host.lane] = epoch
            host.version += 1
            read_lane = host.lane
        self._launch(host, stream)
        if stream.followers:
            self._barrier_first(stream)
        stream.vector[stream.lane] = epoch
        stream.snapshot = None
        if stream.declared.kind == "legacy":
            self._barrier_after(stream)
        floats = order == "call" or (order == "any" and not self._assume_stream_order)
        return Issue(host.vector if floats else stream.vector, stream.vector, read_lane, stream.lane)

    def record(self, op: int, by: str, on: str, event: str) -> None:
        stream = self.stream(on)
        self._launch(self.host(by), stream)
        self.events[event] = Recorded(self._snapshot(stream), stream.lane, op)

    def wait(self, by: str, on: str, event: str) -> Effect:
        stream = self.stream(on)
        self._launch(self.host(by), stream)
        if stream.followers:
            self._barrier_first(stream)
        effect = self._join_event(stream, event)
        if stream.declared.kind == "legacy":
            self._barrier_after(stream)
        if stream.followers and effect is Effect.REDUNDANT:  # the event added nothing, the wait itself is a barrier
            return Effect.ORDERED
        return effect

    def _join_event(self, stream: _Stream, event: str) -> Effect:
        recorded = self.events.get(event)
        if recorded is None:
            return Effect.UNRECORDED
        if recorded.lane == stream.lane:
            return Effect.OWN_STREAM
        vector = self._fit(recorded.vector)
        if not np.count_nonzero(vector > stream.vector):
            return Effect.REDUNDANT
        np.maximum(stream.vector, vector, out=stream.vector)
        stream.snapshot = None
        return Effect.ORDERED

    def observe_event(self, by: str, event: str) -> bool:
        """The host thread saw the event done. False if there was no record to see."""
        host = self.host(by)
        recorded = self.events.get(event)
        if recorded is None:
            return False
        if host.learnt is not recorded.vector:  # an event is often looked at twice
            self._learn(host, recorded.vector)
            host.learnt = recorded.vector
        return True

    def observe_stream(self, by: str, on: str) -> None:
        host, stream = self.host(by), self.stream(on)
        self._learn(host, stream.vector)

    def observe_device(self, by: str, device: Device | None) -> None:
        host = self.host(by)
        for name in self.on_device(device):
            self._learn(host, self._streams[name].vector)

    def on_device(self, device: Device | None) -> list[str]:
        """The streams of a device that are known so far."""
        return [name for name, stream in self._streams.items() if stream.declared.device == device]

    def put(self, by: str, token: str) -> None:
        self._tokens[token] = self.host(by).vector.copy()
        if self._max_tokens is not None and len(self._tokens) > self._max_tokens:
            self._forgotten[self._tokens.popitem(last=False)[0]] = True

    def get(self, by: str, token: str) -> bool | None:
        """True if the token was there, False if it was and is forgotten, `None` if it was never put here."""
        host = self.host(by)
        vector = self._tokens.pop(token, None)
        if vector is not None:
            self._spent[token] = vector
        else:
            vector = self._spent.get(token)
        if vector is None:
            return False if self._forgotten.get(token) else None
        self._learn(host, vector)
        return True

    def drop(self, event: str) -> None:
        self.events.pop(event, None)

    def _barrier_first(self, legacy: _Stream) -> None:
        for follower in legacy.followers:
            np.maximum(legacy.vector, follower.vector, out=legacy.vector)
        legacy.snapshot = None

    def _barrier_after(self, legacy: _Stream) -> None:
        left = legacy.left = self._snapshot(legacy)
        for follower in legacy.followers:
            follower.barriers[legacy.lane] = left

    # ── who knows what ────────────────────────────────────────────────────────────────────────────────────────────

    def informed(self, lane: int, epoch: int, *, but: str) -> list[str]:
        """Host threads other than `but` that know the access `epoch` of `lane` to be complete."""
        return [name for name, host in self._hosts.items() if name != but and host.vector[lane] >= epoch]

    def past_of(self, agent: Agent) -> dict[Agent, int]:
        """The past of an agent, as epochs by agent; agents of which nothing is known are left out."""
        where: Mapping[str, _Host | _Stream] = self._hosts if agent.is_host else self._streams
        found = where.get(agent.name)
        if found is None:
            return {}
        return {other: int(epoch) for other, epoch in zip(self.agents, found.vector, strict=False) if epoch}

    # ── a running engine ──────────────────────────────────────────────────────────────────────────────────────────

    def declare(self, name: str, declared: Stream) -> None:
        """A stream that appears while the engine runs, before its first op: as if it had been known from the start."""
        if name in self._streams:
            return
        made = self._add_stream(name, declared)
        self._link()
        for legacy in self._streams.values():
            if made in legacy.followers and legacy.left is not None:
                made.barriers[legacy.lane] = legacy.left

    def knowledge(self, by: str) -> Vector:
        """What a host thread knows now, to be given to `unlearn`."""
        return self.host(by).vector.copy()

    def unlearn(self, by: str, before: Vector) -> None:
        """Takes back what a host thread has learnt since, if it has issued nothing since: its sync has failed."""
        host = self.host(by)
        host.vector, host.learnt = self._fit(before), None
        host.version += 1

    def learn(self, by: str, vector: Vector) -> None:
        """The host thread knows all of this now."""
        self._learn(self.host(by), vector)

    def pasts(self) -> dict[Agent, Vector]:
        """A copy of every agent's past, with what it will learn at its next op."""
        out = {}
        for name, host in self._hosts.items():
            out[Agent(name, is_host=True)] = host.vector.copy()
        for name, stream in self._streams.items():
            vector = stream.vector.copy()
            for left in stream.barriers.values():
                np.maximum(vector, self._fit(left), out=vector)
            out[Agent(name)] = vector
        return out

    def tokens(self) -> dict[str, Vector]:
        """The tokens still to be taken. The vectors do not change any more."""
        return dict(self._tokens)

    def thread_gone(self, name: str) -> None:
        """The host thread has ended and issues nothing more: its lane stays, what it knew goes."""
        gone = self._hosts.pop(name, None)
        if gone is not None:
            for stream in self._streams.values():
                stream.joined.pop(gone.lane, None)

    # ── bookkeeping ───────────────────────────────────────────────────────────────────────────────────────────────

    def host(self, name: str) -> _Host:
        found = self._hosts.get(name)
        if found is None:
            lane = self._add_lane(Agent(name, is_host=True))
            found = self._hosts[name] = _Host(lane, np.zeros(self._width, np.int64))
        return found

    def stream(self, name: str) -> _Stream:
        return self._streams.get(name) or self._add_stream(name, Stream())

    def _add_stream(self, name: str, declared: Stream) -> _Stream:
        lane = self._add_lane(Agent(name))
        stream = self._streams[name] = _Stream(lane, np.zeros(self._width, np.int64), declared)
        return stream

    def _link(self) -> None:
        """Undeclared streams are non-blocking, so who follows a legacy stream is known from the header."""
        for stream in self._streams.values():
            if stream.declared.kind == "legacy":
                stream.followers = tuple(
                    other
                    for other in self._streams.values()
                    if other.declared.device == stream.declared.device
                    and other.declared.kind in ("blocking", "per-thread")
                )

    def _add_lane(self, agent: Agent) -> int:
        if len(self.agents) == MAX_LANES:
            raise OverflowError(f"kvsan internal limit: more than {MAX_LANES} streams and host threads")
        self.agents.append(agent)
        if len(self.agents) > self._width:
            self._width *= 2
            for host in self._hosts.values():
                host.vector = self._fit(host.vector)
            for stream in self._streams.values():
                stream.vector, stream.snapshot = self._fit(stream.vector), None
        return len(self.agents) - 1

    def _fit(self, vector: Vector) -> Vector:
        """Vectors of events and tokens keep the width that they were made with."""
        if len(vector) == self._width:
            return vector
        wider = np.zeros(self._width, np.int64)
        wider[: len(vector)] = vector
        return wider

    def _snapshot(self, stream: _Stream) -> Vector:
        if stream.snapshot is None:
            stream.snapshot = stream.vector.copy()
        return stream.snapshot

    def _learn(self, host: _Host, vector: Vector) -> None:
        np.maximum(host.vector, self._fit(vector), out=host.vector)
        host.version += 1
