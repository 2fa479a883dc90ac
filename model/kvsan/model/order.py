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
from typing import Generic, NamedTuple, Protocol, TypeVar

from kvsan.model.ops import Access, Device, Drop, Get, Op, Poll, Put, Record, Stream, Sync, Wait

P = TypeVar("P")


class Agent(NamedTuple):
    """Who performs accesses one after the other: a stream, or a host thread (which `is_host`)."""

    name: str
    is_host: bool = False


class Element(NamedTuple):
    """What a past holds: the part of the access op `op` that `agent` performed.

    An access has one part, except one with source order `call`: its reads are the host thread's own, its writes the
    stream's.
    """

    op: int
    agent: Agent


class Lattice(Protocol[P]):
    """What a past is. All four functions are total and never change their arguments."""

    def bottom(self) -> P:
        """Nothing is known to be complete."""

    def join(self, a: P, b: P) -> P:
        """Both are known: the union."""

    def add(self, past: P, element: Element) -> P:
        """`past` and one more access."""

    def via(self, past: P, op: int) -> P:
        """`past` as it stands after the op `op` that passes it on: the same set. Only `Edges` notes the op."""


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
        """past[s] ∪= past[h]: whatever host thread h issues on stream s starts after all that h knows to be complete.

        Fact: an asynchronous call starts its work at the earliest when it is made; a host thread makes its calls in
        turn. Without it: `h: sync e` then `h: copy on s` would race with the work that h has just seen finish. The
        converse does not hold: issuing on s teaches h nothing about s.
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

        Fact: "operations in the same stream are ordered". Writes always obey it; reads do unless the call gave them
        away: `any` lets the copy engine read the source at any time from the call on, so only what the *host thread*
        knew then counts (`CU_MEMCPY_SRC_ACCESS_ORDER_ANY`: out of stream order, also after the call returns); `call`
        reads it before the call returns, so it is the host thread's own access (`..._DURING_API_CALL`).
        Counter-example: `forward writes b on s` then `copy b→c on s, order any`: the same stream, and a race. Either
        way a read is complete when its op is: what has been copied has been read.
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

        Fact: an asynchronous copy reads pinned memory when it runs, not when it is issued; nothing but a wait of the
        host orders the two. Counter-example: `h: copy p→d on s` then `h: write p`: the copy may send the new bytes.
        """
        host = Agent(what.by, is_host=True)
        past, element = self.past(host), Element(op, host)
        self._pasts[host] = self.lattice.add(past, element)
        return Issued(past, past, element, element)

    def record(self, op: int, what: Record) -> None:
        """past[e] := past[s]: an event captures what the stream holds at the call, and forgets what it captured before.

        Fact: cudaEventRecord captures "the contents of the stream at the time of this call" and overwrites earlier
        state. Counter-example: `record e; kernel; wait e on t`: t does not wait for the kernel, which came after the
        record.
        """
        past = self.lattice.via(self.launch(what.by, what.on), op)
        before = self.events.get(what.event)
        self.events[what.event] = Recorded(past, op, what.on, before.generation + 1 if before else 1)

    def wait(self, op: int, what: Wait) -> None:
        """past[s] ∪= past[e], as e is at this call.

        Fact: cudaStreamWaitEvent uses "the most recently captured state at the time of the call"; later records do not
        reach back, and an event never recorded "represents an empty set of work": no order at all.
        Counter-example: `wait e on t; record e on s`: in this order t waits for nothing.
        """
        past = self._barrier_first(what.on, self.launch(what.by, what.on))
        recorded = self.events.get(what.event)
        if recorded is not None:
            past = self.lattice.join(past, recorded.past)
        self._pasts[Agent(what.on)] = self.lattice.via(past, op)
        self._barrier_after(what.on)

    def observe_event(self, op: int, by: str, event: str) -> None:
        """past[h] ∪= past[e]: a host thread that blocked on an event, or saw it done, knows what it captured.

        Fact: a query that returns success is equivalent to having called cudaEventSynchronize.
        Counter-example: a query that returned false taught nothing; and *another* thread learns nothing from either.
        """
        recorded = self.events.get(event)
        if recorded is not None:
            self._learn(op, by, recorded.past)

    def observe_streams(self, op: int, by: str, streams: list[str]) -> None:
        """past[h] ∪= past[s], for one stream, or for every stream of a device.

        Fact: cudaStreamSynchronize waits for the stream, cudaDeviceSynchronize for all preceding work of *that* device.
        Counter-example: `sync device 0` says nothing of a copy that runs on a stream of device 1.
        """
        for name in streams:
            self._learn(op, by, self.past(Agent(name)))

    def put(self, op: int, what: Put) -> None:
        """past[token] := past[h]: what a host thread knows when it hands something over.

        Fact: a queue, lock or message orders the giver's program before the receiver's (the memory model of the host).
        Counter-example: what the giver learns *after* the put is not handed over.
        """
        host = Agent(what.by, is_host=True)
        self._tokens[what.token] = self._pasts[host] = self.lattice.via(self.past(host), op)

    def get(self, op: int, what: Get) -> None:
        """past[g] ∪= past[token]. A token put before logging began is not known and orders nothing."""
        if what.token in self._tokens:
            self._learn(op, what.by, self._tokens[what.token])

    def drop(self, what: Drop) -> None:
        """past[e] is forgotten: a recycled event starts over as never recorded. Edges already made stay."""
        self.events.pop(what.event, None)

    def _barrier_first(self, on: str, past: P) -> P:
        """access or wait on a legacy stream L: first past[L] ∪= past of every blocking stream of its device.

        Fact: "the legacy stream first waits on all blocking streams, the action is queued in the legacy stream, and
        then all blocking streams wait on the legacy stream", the action being a launch or a stream wait; per-thread
        default streams take part, non-blocking ones (all of PyTorch's pool) do not. Counter-example: `kernel on
        legacy; copy on a non-blocking stream`: no order, though the first is "stream 0".
        """
        for follower in self._followers(on):
            past = self.lattice.join(past, self.past(Agent(follower)))
        return past

    def _barrier_after(self, on: str) -> None:
        """…and afterwards each of those streams, at its next op, ∪= past[L] as this access or wait left it."""
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


# ── four readings of a past ───────────────────────────────────────────────────────────────────────────────────────────


class Bits:
    """A past as the set itself, in the bits of an int. Exact, and as large as the trace is long."""

    def bottom(self) -> int:
        return 0

    def join(self, a: int, b: int) -> int:
        return a | b

    def add(self, past: int, element: Element) -> int:
        return past | self.bit(element)

    def via(self, past: int, op: int) -> int:
        return past

    def bit(self, element: Element) -> int:
        return 1 << (2 * element.op + element.agent.is_host)

    def knows(self, past: int, element: Element) -> bool:
        return bool(past & self.bit(element))


class Epochs:
    """A past as the latest complete access of each agent: as large as there are agents.

    Exact, because an agent completes its accesses in the order of issue: who knows one knows the agent's earlier
    ones. An epoch is the number of the op plus one, so it says *which* access it is (0: none).
    """

    def __init__(self) -> None:
        self.agents: dict[Agent, int] = {}

    def bottom(self) -> tuple[int, ...]:
        return ()

    def join(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        if a is b or not b:
            return a
        if len(a) < len(b):
            a, b = b, a
        return (*map(max, a, b), *a[len(b) :])

    def add(self, past: tuple[int, ...], element: Element) -> tuple[int, ...]:
        at = self.agents.setdefault(element.agent, len(self.agents))
        padded = past + (0,) * (at + 1 - len(past))
        return (*padded[:at], element.op + 1, *padded[at + 1 :])

    def via(self, past: tuple[int, ...], op: int) -> tuple[int, ...]:
        return past

    def epoch(self, past: tuple[int, ...], agent: Agent) -> int:
        """The epoch of the agent's latest access in `past`, 0 if there is none."""
        at = self.agents.get(agent, len(past))
        return past[at] if at < len(past) else 0

    def knows(self, past: tuple[int, ...], element: Element) -> bool:
        return self.epoch(past, element.agent) > element.op


class OneBit:
    """A past as one bit: does it hold the one tracked access? Membership of one access evolves without the others, so
    this loses nothing about that access; a proof chooses it nondeterministically.
    """

    def __init__(self, tracked: Element) -> None:
        self.tracked = tracked

    def bottom(self) -> bool:
        return False

    def join(self, a: bool, b: bool) -> bool:
        return a or b

    def add(self, past: bool, element: Element) -> bool:
        return past or element == self.tracked

    def via(self, past: bool, op: int) -> bool:
        return past

    def knows(self, past: bool, element: Element) -> bool:
        return past and element == self.tracked


class Edges:
    """A past as the ops through which its knowledge came; `edges` collects every step from one such op to the next.

    A node is an element (an access by its agent) or the number of an op that passed knowledge on. The past of an op
    reaches back over `edges` to all that it holds: a graph that can say *why*.
    """

    Node = Element | int

    def __init__(self) -> None:
        self.edges: dict[Element | int, frozenset[Element | int]] = {}

    def bottom(self) -> frozenset[Element | int]:
        return frozenset()

    def join(self, a: frozenset[Element | int], b: frozenset[Element | int]) -> frozenset[Element | int]:
        return a | b

    def add(self, past: frozenset[Element | int], element: Element) -> frozenset[Element | int]:
        return self._step(past, element)

    def via(self, past: frozenset[Element | int], op: int) -> frozenset[Element | int]:
        return self._step(past, op)

    def _step(self, past: frozenset[Element | int], node: Element | int) -> frozenset[Element | int]:
        self.edges[node] = self.edges.get(node, frozenset()) | (past - {node})
        return frozenset((node,))

    def knows(self, past: frozenset[Element | int], element: Element) -> bool:
        todo, seen = list(past), set(past)
        while todo:
            node = todo.pop()
            if node == element:
                return True
            fresh = self.edges.get(node, frozenset()) - seen
            seen |= fresh
            todo.extend(fresh)
        return False
