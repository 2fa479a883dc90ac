"""The happens-before rules: which accesses are known to be complete for whatever is issued next.

Every place from which work is issued or observed (a stream, a host thread, an event, a token) has a *past*: the set of
accesses known to be complete for what comes next there. Each rule is a union or a copy of pasts, nothing else; `Order`
states them once, one method a rule, and nobody else in the project restates them. (`checker/clocks.py` inlines them for
speed and a property test holds it equal to this file.)

`Order` is generic over the type of a past, which a `Lattice` supplies: the set itself (`Bits`), the latest complete
access of each agent (`Epochs`), one chosen access (`OneBit`), or the ops through which knowledge came (`Edges`).

With events, order follows issue order: an edge can only lead from an op to one issued later. So it is enough to ask
once, when the later access is issued, whether its past holds the earlier one.

Source of the CUDA facts: the API comments of `cuda_runtime_api.h` (CUDA 13.0) and "Stream synchronization behavior"
of the CUDA Runtime API manual. Not covered: memory flags, external graph nodes, collectives (`docs/limits.md`). A
failed call is no op. Where two host threads race to issue, the given op order is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic

from kvsan.model.ops import Access, Device, Drop, Get, Op, Poll, Put, Record, Stream, Sync, Wait
from kvsan.model.pasts import Agent, Element, Lattice, P


@dataclass(frozen=True, slots=True)
class Recorded(Generic[P]):
    """What an event holds: the past captured, by which op, on which stream; `generation` counts its records from 1."""

    past: P
    op: int
    on: str
    generation: int


@dataclass(frozen=True, slots=True)
class Issued(Generic[P]):
    """What an access may rely on: the past of its reads and of its writes, and the elements that they become."""

    reads: P
    writes: P
    read: Element
    write: Element


class Order(Generic[P]):
    """The rules. `issue` takes the ops in the order in which the host issued them."""

    def __init__(
        self, lattice: Lattice[P], streams: Mapping[str, Stream] | None = None, *, assume_stream_order: bool = False
    ) -> None:
        self.lattice = lattice
        self.events: dict[str, Recorded[P]] = {}
        self._streams = dict(streams or {})
        self._pasts: dict[Agent, P] = {}
        self._tokens: dict[str, P] = {}
        self._barriers: dict[str, dict[str, P]] = {}  # follower of a legacy stream -> legacy stream -> past
        self._assume_stream_order = assume_stream_order

    def past(self, agent: Agent) -> P:
        """What is known to be complete for what `agent` does next."""
        known = self._pasts.get(agent)
        return self.lattice.bottom() if known is None else known

    def suppose(self, pasts: Mapping[Agent, P], events: Mapping[str, P], tokens: Mapping[str, P]) -> None:
        """Starts from these pasts instead of from nothing: `model.proof` reads off so what one op does to *any* state.

        An event given here counts as recorded; one never recorded has an empty past, which orders nothing either way.
        """
        self._pasts.update(pasts)
        self.events.update({event: Recorded(past, -1, "", 1) for event, past in events.items()})
        self._tokens.update(tokens)

    def handed(self, token: str) -> P | None:
        """What a hand-off carries, if it was put."""
        return self._tokens.get(token)

    def hosts(self) -> Iterator[Agent]:
        """The host threads seen so far, in order of appearance."""
        return (agent for agent in self._pasts if agent.is_host)

    def issue(self, op: int, what: Op) -> Issued[P] | None:
        """Applies the rule of op number `op`; for an access, returns what it is to be checked against."""
        match what:
            case Access(on=None):
                return self.host_access(op, what)
            case Access(on=str() as on):
                return self.access(op, what, on)
            case Record():
                self.record(op, what)
            case Wait():
                self.wait(op, what)
            case Sync(event=str() as event):
                self.observe_event(op, what.by, event)
            case Sync(stream=str() as stream):
                self.observe_streams(op, what.by, [stream])
            case Sync():
                self.observe_streams(op, what.by, self._on_device(what.device))
            case Poll(done=True):
                self.observe_event(op, what.by, what.event)
            case Put():
                self.put(op, what)
            case Get():
                self.get(op, what)
            case Drop():
                self.drop(what)
        return None

    # ── the rules ─────────────────────────────────────────────────────────────────────────────────────────────────

    def launch(self, by: str, on: str) -> P:
        """past[s] ∪= past[h]: what host thread h issues on stream s starts after all that h knows to be complete.

        Fact: an asynchronous call starts its work at the earliest when it is made, and a host thread makes its calls
        in turn.
        Counter-example to less:   h: sync e          (h has seen the forward finish)
                                   h: copy on s       must not count as racing with that forward
        Counter-example to more:   h: forward on s    issuing teaches h nothing:
                                   h: read by h       races with the forward
        """
        s = Agent(on)
        past = self.lattice.join(self.past(s), self.past(Agent(by, is_host=True)))
        for barrier in self._barriers.pop(on, {}).values():
            past = self.lattice.join(past, barrier)
        self._declare(on)
        self._pasts[s] = past
        return past

    def access(self, op: int, what: Access, on: str) -> Issued[P]:
        """check against past[s]; past[s] ∪= {x}: a stream runs its work in the order of issue.

        Fact: operations of one stream are ordered. Writes always obey it; reads do unless the call gave them away:
        with `any` (CU_MEMCPY_SRC_ACCESS_ORDER_ANY: "out of stream order", also after the call returns) only what the
        *host thread* knew at the call counts; with `call` (..._DURING_API_CALL) the source is read before the call
        returns, so the read is the host thread's own access. Either way a read is complete when its op is: what has
        been copied has been read.
        Counter-example:   h: forward on s, writes b
                           h: copy on s, reads b in order `any`: the same stream, and a race
        """
        order = "stream" if what.order == "any" and self._assume_stream_order else what.order
        host, stream = Agent(what.by, is_host=True), Agent(on)
        write = Element(op, stream)
        read = Element(op, host) if order == "call" else write
        reads = self.past(host)
        if order == "call":
            self._pasts[host] = self.lattice.add(reads, read)
        past = self._barrier_first(on, self.launch(what.by, on))
        self._pasts[stream] = self.lattice.add(past, write)
        self._barrier_after(on)
        return Issued(past if order == "stream" else reads, past, read, write)

    def host_access(self, op: int, what: Access) -> Issued[P]:
        """check against past[h]; past[h] ∪= {x}: a host thread touches memory at that point of its program.

        Fact: an asynchronous copy reads pinned memory when it runs, not when it is issued; only a wait of the host
        orders them.
        Counter-example:   h: copy on s, reads p
                           h: writes p                the copy may send the new bytes
        """
        host = Agent(what.by, is_host=True)
        past, element = self.past(host), Element(op, host)
        self._pasts[host] = self.lattice.add(past, element)
        return Issued(past, past, element, element)

    def record(self, op: int, what: Record) -> None:
        """past[e] := past[s]: an event captures what the stream holds at the call, and forgets what it captured before.

        Fact: cudaEventRecord captures "the contents of the stream at the time of this call" and overwrites the
        earlier state.
        Counter-example:   h: record e on s; forward on s
                           h: wait e on t; copy on t  not ordered behind the forward, which came after the record
        """
        past = self.lattice.via(self.launch(what.by, what.on), op)
        before = self.events.get(what.event)
        self.events[what.event] = Recorded(past, op, what.on, before.generation + 1 if before else 1)

    def wait(self, op: int, what: Wait) -> None:
        """past[s] ∪= past[e], as e is at this call.

        Fact: cudaStreamWaitEvent uses "the most recently captured state at the time of the API call" and is not
        affected by later records; an event never recorded "represents an empty set of work": no order at all.
        Counter-example:   h: wait e on t
                           h: record e on s           too late: in this order t waits for nothing
        """
        past = self._barrier_first(what.on, self.launch(what.by, what.on))
        recorded = self.events.get(what.event)
        if recorded is not None:
            past = self.lattice.join(past, recorded.past)
        self._pasts[Agent(what.on)] = self.lattice.via(past, op)
        self._barrier_after(what.on)

    def observe_event(self, op: int, by: str, event: str) -> None:
        """past[h] ∪= past[e]: a host thread that blocked on an event, or saw it done, knows what it captured.

        Fact: a cudaEventQuery that returns success is equivalent to having called cudaEventSynchronize.
        Counter-example:   h: query e is false        teaches nothing
                           h: query e is true         teaches h, and no other thread
        """
        recorded = self.events.get(event)
        if recorded is not None:
            self._learn(op, by, recorded.past)

    def observe_streams(self, op: int, by: str, streams: list[str]) -> None:
        """past[h] ∪= past[s], for one stream, or for every stream of a device.

        Fact: cudaStreamSynchronize waits for that stream, cudaDeviceSynchronize for all preceding work of *that*
        device.
        Counter-example:   h: copy on s of device 1
                           h: sync device 0           says nothing of the copy
        """
        for name in streams:
            self._learn(op, by, self.past(Agent(name)))

    def put(self, op: int, what: Put) -> None:
        """past[token] := past[h]: what a host thread knows when it hands something over.

        Fact: a queue, lock or message orders what the giver did before it with what the receiver does after it.
        Counter-example:   h: put q; sync e
                           g: get q                   g does not know what h learnt after the put
        """
        host = Agent(what.by, is_host=True)
        self._tokens[what.token] = self._pasts[host] = self.lattice.via(self.past(host), op)

    def get(self, op: int, what: Get) -> None:
        """past[g] ∪= past[token]: what was known when the token was put.

        Fact: the receiver continues after the hand-off that it received, and after no other.
        Counter-example:   h: sync e; put q
                           g: goes on without get q   g knows nothing of e, however late it runs. (A token put before
                           logging
                                                      began is not known and orders nothing.)
        """
        if what.token in self._tokens:
            self._learn(op, what.by, self._tokens[what.token])

    def drop(self, what: Drop) -> None:
        """past[e] is forgotten: a recycled event starts over as never recorded. Edges already made stay.

        Fact: cudaEventDestroy releases the event; a new one at the same address "represents an empty set of work".
        Counter-example:   h: record e on s; drop e
                           h: wait e on t             waits for nothing, though e was once recorded
        """
        self.events.pop(what.event, None)

    def _barrier_first(self, on: str, past: P) -> P:
        """access or wait on a legacy stream L: first past[L] ∪= past of every blocking stream of its device.

        Fact: "the legacy stream first waits on all blocking streams, the action is queued in the legacy stream, and
        then all blocking streams wait on the legacy stream", the action being a launch or a stream wait; per-thread
        default streams take part, non-blocking ones (all of PyTorch's pool) do not.
        Counter-example:   h: forward on L
                           h: copy on a non-blocking stream    no order, though the forward ran on "stream 0"
        """
        for follower in self._followers(on):
            past = self.lattice.join(past, self.past(Agent(follower)))
        return past

    def _barrier_after(self, on: str) -> None:
        """…and afterwards each of those streams, at its next op, ∪= past[L] as this access or wait left it.

        Fact: the last part of the sentence above: the blocking streams wait for the action, not for what L learns
        later.
        Counter-example:   h: forward on L; g, which has synchronized with more: record e on L
                           h: copy on a blocking stream        is ordered behind the forward, not behind what g knew
        """
        for follower in self._followers(on):
            self._barriers.setdefault(follower, {})[on] = self.past(Agent(on))

    # ── bookkeeping ───────────────────────────────────────────────────────────────────────────────────────────────

    def _learn(self, op: int, by: str, past: P) -> None:
        host = Agent(by, is_host=True)
        self._pasts[host] = self.lattice.via(self.lattice.join(self.past(host), past), op)

    def _declare(self, on: str) -> None:
        if on not in self._streams:
            self._streams[on] = Stream()

    def _on_device(self, device: Device | None) -> list[str]:
        return [name for name, stream in self._streams.items() if stream.device == device]

    def _followers(self, on: str) -> list[str]:
        legacy = self._streams.get(on)
        if legacy is None or legacy.kind != "legacy":
            return []
        return [
            name
            for name, stream in self._streams.items()
            if stream.device == legacy.device and stream.kind in ("blocking", "per-thread")
        ]
