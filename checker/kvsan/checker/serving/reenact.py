"""A list of ops made to happen on a device: who reads what, if one access is late.

Any ops will do: a recorded run, a counterexample of the proof, a schedule of `kvsan explore`. Each write leaves its own
number in its blocks, each read copies what is there away (with the op's own source order), and what was read is held
against what program order says. With `late=(earlier, later)` the earlier op of a pair is kept from running until the
later one has run: by policy on the simulated machine, by a kernel that spins in front of it on a GPU. If the two are
unordered that is legal, and somebody reads or leaves what is not his; with a fence between them it cannot be.

Relies on: the ops in the order in which they were issued; a poll that answered true is repeated as a sync, one that
answered false is not repeated. Does not cover: which host thread issued what (one issues all, in line order), events of
other processes, parts of a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from kvsan.checker.fix import apply
from kvsan.checker.judge import check_ops
from kvsan.checker.trace import Header
from kvsan.model.hazard import Hazard, Kind
from kvsan.model.ops import Access, Drop, Op, Poll, Record, Stream, Sync, Wait
from kvsan.runtime.device import Copy, Device, Host, Kernel
from kvsan.runtime.device.policy import EAGER, hold
from kvsan.runtime.device.simulated import Simulated

SEEN = "what was read"
"""The pool in which reads leave what they found."""

SPIN = 100_000_000
"""Clock cycles that a late op spins on a GPU: some 50 ms."""

BARRIERS = ("blocking", "per-thread")


@dataclass(frozen=True, slots=True)
class Wrong:
    """A block of an op that saw, or left, another write than program order says. Numbers of ops; -1: a fresh block's.
    `op` -1: what lies in the block at the end."""

    op: int
    pool: str
    block: int
    found: int
    expected: int


@dataclass(frozen=True, slots=True)
class Shown:
    """A hazard, reenacted. `wrong`: with the earlier op late. `control`: the same with the fences that
    the earlier access lacks.
    `forced`: why the earlier op could not be kept late; None if it could."""

    hazard: Hazard
    wrong: tuple[Wrong, ...]
    control: tuple[Wrong, ...]
    forced: str | None

    @property
    def came_true(self) -> bool:
        """It garbled, and with its fence it does not."""
        return bool(self.wrong) and not self.control


Where = Literal["simulated", "cuda"]
Late = tuple[int, int, Kind, str]
"""The earlier op, the later op, what the pair is, and the pool that it is about."""


def show(ops: Sequence[Op], streams: Mapping[str, Stream], hazard: Hazard, where: Where = "simulated") -> Shown:
    """Raises `ValueError` for a hazard that needs no bad moment (`BATCH`, `GEN`), `DeviceError` if there is no GPU."""
    if hazard.kind not in (Kind.RAW, Kind.WAR, Kind.WAW):
        raise ValueError(f"a {hazard.kind} hazard does not hang on a moment: every run has it")
    earlier, later = hazard.earlier.op, hazard.later.op
    wrong, forced = reenact(ops, streams, late=_late(ops, hazard), read=later, where=where)
    mended, fenced = _fenced(ops, streams, hazard)
    control, _ = reenact(mended, streams, late=_late(mended, fenced), read=fenced.later.op, where=where)
    return Shown(
        hazard,
        _of(wrong, hazard, earlier, later),
        _of(control, hazard, fenced.earlier.op, fenced.later.op),
        forced,
    )


def _late(ops: Sequence[Op], hazard: Hazard) -> Late:
    """Behind which op the earlier one comes. A late write that somebody has written over in the meantime is read by the
    later op only if it comes behind that write too, and in front of the read."""
    earlier, later, kind = hazard.earlier.op, hazard.later.op, hazard.kind
    if kind is Kind.RAW:
        blocks = set(hazard.blocks)
        for at in range(later - 1, earlier, -1):
            op = ops[at]
            if isinstance(op, Access) and not blocks.isdisjoint(op.writes.get(hazard.pool, ())):
                return earlier, at, Kind.WAW, hazard.pool
    return earlier, later, kind, hazard.pool


def _fenced(ops: Sequence[Op], streams: Mapping[str, Stream], hazard: Hazard) -> tuple[list[Op], Hazard]:
    """The ops with the hazard's fence, and with those that its earlier access lacks on the way to the later one: the
    fence of one pair alone leaves the others as they are."""
    pools = _Script(ops, streams).pools
    header = Header(pools, {name: streams.get(name, Stream()) for name in _Script(ops, streams).streams})
    made, left = list(ops), [hazard]
    while left:
        one = left[0]
        fence = next((fix for fix in one.fix if fix.wait or fix.sync or fix.order), None)
        if fence is None:
            break
        made, moved = apply(made, one, fence)
        at = {hazard.earlier.op: moved[hazard.earlier.op], hazard.later.op: moved[hazard.later.op]}
        hazard = replace(
            hazard,
            earlier=replace(hazard.earlier, op=at[hazard.earlier.op]),
            later=replace(hazard.later, op=at[hazard.later.op]),
        )
        left = [
            h
            for h in check_ops(header, made, all_pairs=True).hazards
            if h.earlier.op == hazard.earlier.op
            and h.later.op <= hazard.later.op
            and h.pool == hazard.pool
            and not set(h.blocks).isdisjoint(hazard.blocks)
        ]
    return made, hazard


def _of(wrong: Sequence[Wrong], hazard: Hazard, earlier: int, later: int) -> tuple[Wrong, ...]:
    """What is this hazard's: its blocks, in its two accesses, or for two writes in whoever reads them then, or at the
    end. A run may have other hazards.
    """
    blocks = set(hazard.blocks)

    def mine(op: int) -> bool:
        return op in (earlier, later) or (hazard.kind is Kind.WAW and (op > later or op == -1))

    return tuple(one for one in wrong if one.pool == hazard.pool and one.block in blocks and mine(one.op))


def reenact(
    ops: Sequence[Op],
    streams: Mapping[str, Stream],
    *,
    late: Late | None = None,
    read: int | None = None,
    where: Where = "simulated",
) -> tuple[tuple[Wrong, ...], str | None]:
    """What was read or left otherwise than in program order, and why the late op was not late, if it was not. `read`:
    on a GPU, the op whose read comes behind the late write, if that is not the one that it is late for.
    """
    script = _Script(ops, streams)
    held = script.numbers(late) if late is not None else None
    if where == "cuda":
        from kvsan.runtime.device.cuda import CudaDevice

        device: Device = CudaDevice()
        spins = {} if held is None else {held[0]: SPIN}
        if late is not None and read is not None and (read, False, late[3]) in script.number and read != late[1]:
            spins[script.number[read, False, late[3]]] = 3 * SPIN  # behind the late write
        return _Stage(device, script, spins).play(), None
    machine = Simulated(policy=EAGER if held is None else hold(*held))
    wrong = _Stage(machine, script, {}).play()
    return wrong, machine.forced[0].why if machine.forced else None


class _Script:
    """The ops, how many pools and blocks they name, and the device's number of each read and each write."""

    def __init__(self, ops: Sequence[Op], streams: Mapping[str, Stream]) -> None:
        self.ops = list(ops)
        used = {op.on for op in ops if isinstance(op, Access | Record | Wait) and op.on is not None}
        self.streams = {name: Stream() for name in sorted(used)} | dict(streams)
        self.pools: dict[str, int] = {}
        self.reads = 0
        self.number: dict[tuple[int, bool, str], int] = {}
        for at, op in enumerate(self.ops):
            if isinstance(op, Access):
                for writes, sets in ((False, op.reads), (True, op.writes)):
                    for pool, blocks in sets.items():
                        self.pools[pool] = max(self.pools.get(pool, 1), blocks.end)
                        if len(blocks):
                            self.number[at, writes, pool] = len(self.number)
                            self.reads += 0 if writes else len(blocks)

    def numbers(self, late: Late) -> tuple[int, int]:
        """The device's numbers of the two accesses of a pair."""
        earlier, later, kind, pool = late
        return self.number[earlier, kind is not Kind.WAR, pool], self.number[later, kind is not Kind.RAW, pool]


class _Stage:
    """A device, its memory, and the calls."""

    def __init__(self, device: Device, script: _Script, spins: Mapping[int, int]) -> None:
        self.device, self.script, self._spins = device, script, spins
        self.host: Host = device.host("host")
        for name in script.streams:
            device.stream(name, side=False)
        self.memory = {pool: device.memory(pool, (1, size, 1), host=False) for pool, size in script.pools.items()}
        self.seen = device.memory(SEEN, (1, max(script.reads, 1), 1), host=False)
        for memory in self.memory.values():
            memory.fill_(-1)
        if self.seen.is_cuda:
            self._warm()
            torch.cuda.synchronize()  # what filled the memory was on no stream of the script
        self._kept: list[Any] = []
        """Blocks' numbers on the GPU. torch would hand the memory out again while a late write still has to read it."""
        self._issued = self._events = 0  # accesses, by the numbers of the script; events of our own
        self._owed: dict[str, str] = {}
        self._found: list[tuple[int, str, Any, int, Any]] = []  # op, pool, blocks, where in `seen`, expected
        self._now = {pool: np.full(size, -1, np.int64) for pool, size in script.pools.items()}
        self._read = 0

    def _warm(self) -> None:
        """Each kernel and copy once, before anything is late: CUDA loads a kernel at its first launch, and that may
        wait for all that runs, a spinning kernel too (CUDA Programming Guide, Lazy Loading, on concurrent execution).
        """
        first = np.zeros(1, np.int64)
        torch.cuda._sleep(1)
        for pool, memory in self.memory.items():
            memory.index_fill_(1, torch.zeros(1, dtype=torch.int64, device=memory.device), -1)
            self._copying(pool, first, first)()
        torch.cuda.synchronize()
        for stream in self.script.streams:
            for pool in self.memory:
                self.host.copy(stream, Copy("warm", pool, first, SEEN, first, "stream"))
                self.host.copy(stream, Copy("warm", pool, first, SEEN, first, "any"))

    def play(self) -> tuple[Wrong, ...]:
        """Issues everything, waits for it, and compares."""
        for at, op in enumerate(self.script.ops):
            match op:
                case Access():
                    self._access(at, op)
                case Record():
                    self._turn(op.on)
                    self.host.record(op.on, op.event)
                case Wait():
                    self._barrier(op.on)
                    self.host.wait(op.on, op.event)
                    self._hand_on(op.on)
                case Sync():
                    self._sync(op)
                case Poll() if op.done:
                    self.host.sync(op.event)
                case Drop():
                    self.host.drop(op.event)
                case _:
                    pass
        self.device.close()
        return tuple(self._wrong())

    def _access(self, at: int, op: Access) -> None:
        if op.on is not None:
            self._barrier(op.on)
        reads = {pool: np.fromiter(blocks, np.int64) for pool, blocks in op.reads.items() if len(blocks)}
        writes = {pool: np.unique(np.fromiter(blocks, np.int64)) for pool, blocks in op.writes.items() if len(blocks)}
        for pool, blocks in reads.items():
            self._late(op.on)
            places = np.arange(self._read, self._read + len(blocks))
            self._found.append((at, pool, blocks, self._read, self._now[pool][blocks].copy()))
            self._read += len(blocks)
            if op.on is None:
                self._work(Kernel("read", {pool: blocks}, {SEEN: places}, (self._copying(pool, blocks, places),)))
            else:
                self.host.copy(op.on, Copy(op.label or "read", pool, blocks, SEEN, places, op.order))
        for pool, blocks in writes.items():
            self._late(op.on)
            self._now[pool][blocks] = at
            kernel = Kernel(op.label or "write", {}, {pool: blocks}, (self._writing(pool, blocks, at),))
            if op.on is None:
                self._work(kernel)
            else:
                self.host.launch(op.on, kernel)
        if op.on is not None:
            self._hand_on(op.on)

    def _work(self, kernel: Kernel) -> None:
        """What the host does is done when the call returns; on a GPU's memory it is a kernel of the default stream."""
        self.host.work(kernel)
        if self.seen.is_cuda:
            torch.cuda.default_stream(self.seen.device).synchronize()

    def _late(self, on: str | None) -> None:
        """On a GPU the late access has a kernel that spins in front of it."""
        cycles = self._spins.get(self._issued)
        if cycles is not None and on is not None:
            self.host.launch(on, Kernel("spin", parts=(lambda: torch.cuda._sleep(cycles),)))
        self._issued += 1

    def _copying(self, pool: str, blocks: Any, places: Any) -> Any:
        def part() -> None:
            self.seen[:, places] = self.memory[pool][:, blocks]

        return part

    def _writing(self, pool: str, blocks: Any, value: int) -> Any:
        memory = self.memory[pool]
        at = torch.from_numpy(blocks).to(memory.device)
        self._kept.append(at)
        return lambda: memory.index_fill_(1, at, value)

    # ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fresh(self) -> str:
        self._events += 1
        return f"kvsan.reenact#{self._events}"

    def _sync(self, op: Sync) -> None:
        if op.event is not None:
            self.host.sync(op.event)
            return
        mine = [
            name
            for name, stream in self.script.streams.items()
            if name == op.stream or (op.stream is None and stream.device == op.device)
        ]
        for name in mine:
            event = self._fresh()
            self.host.record(name, event)
            self.host.sync(event)

    def _turn(self, on: str) -> None:
        """What a stream owes to a legacy stream before it goes on."""
        event = self._owed.pop(on, None)
        if event is not None:
            self.host.wait(on, event)

    def _others(self, on: str) -> list[str]:
        mine = self.script.streams[on]
        if mine.kind != "legacy":
            return []
        return [
            name
            for name, stream in self.script.streams.items()
            if stream.kind in BARRIERS and stream.device == mine.device
        ]

    def _barrier(self, on: str) -> None:
        self._turn(on)
        for name in self._others(on):
            event = self._fresh()
            self.host.record(name, event)
            self.host.wait(on, event)

    def _hand_on(self, on: str) -> None:
        others = self._others(on)
        if others:
            event = self._fresh()
            self.host.record(on, event)
            self._owed.update(dict.fromkeys(others, event))

    # ── what came of it ───────────────────────────────────────────────────────────────────────────────────────────

    def _wrong(self) -> list[Wrong]:
        seen = self.seen.reshape(-1).cpu().numpy()
        met = [
            (at, pool, blocks, seen[where : where + len(blocks)], expected)
            for at, pool, blocks, where, expected in self._found
        ]
        for pool, memory in self.memory.items():
            met.append((-1, pool, np.arange(memory.shape[1]), memory.reshape(-1).cpu().numpy(), self._now[pool]))
        return [
            Wrong(at, pool, int(blocks[nth]), int(found[nth]), int(expected[nth]))
            for at, pool, blocks, found, expected in met
            for nth in np.flatnonzero(found != expected).tolist()
        ]
