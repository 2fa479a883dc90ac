"""A machine that runs on any CPU, and runs what it was given in any order that CUDA allows.

Each stream is a queue (`timeline.py`); an op runs in parts (`tasks.py`), and between them other streams' ops may run,
so that a load really overwrites a block in the middle of a read. The machine goes on at each call of the host: how far,
and with what, is the policy's choice (`policy.py`), deterministic from the seed. What it chose is a `Schedule` (a short
string), which replays for ever.

What the host does depends on what it polls and on when its other threads act. `host=` keeps those choices of an earlier
run and leaves the rest to the seed and policy: each poll answers as it did, so a record that is going to be polled
False stays incomplete until then, and one that was polled True is made complete. That restricts nothing else: every
order of the device's work that fits these answers can be chosen.

Not here: the legacy default stream, several devices, time. Work is complete as soon as its last part has run: a poll
answers False only if work is left. What a kernel's part raises comes out of the call during which it ran.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvsan.runtime.device import Copy, DeviceError, Ids, Kernel
from kvsan.runtime.device.policy import FAIR, Forced, Policy
from kvsan.runtime.device.schedule import Schedule
from kvsan.runtime.device.steering import Steering
from kvsan.runtime.device.tasks import ALL, CopyTask, KernelTask, Task, Words
from kvsan.runtime.device.timeline import Record, Stream, Wait
from kvsan.runtime.device.versions import Op, Touch, Versions


@dataclass(frozen=True, slots=True)
class Call:
    """A copy or launch about to be issued. `number` counts them from 0, failed ones too."""

    number: int
    kind: str
    by: str
    on: str
    name: str
    step: int | None


@dataclass(frozen=True, slots=True)
class Fence:
    """Op `later` runs behind op `earlier`: a record right behind the one, a wait in front of the other and, if that
    is a copy, its source in stream order. `block`: the host waits instead of the stream.
    """

    earlier: int
    later: int
    block: bool = False


class Simulated:
    """Of `replay` and `host` at most one: a schedule (or its string) of which all choices, or only the host's, are made
    again. Where the schedule is the beginning of a run, seed and policy take over after it; with a `hold` policy the
    host is free from the later op on.

    `observe` keeps the versions of each block (`ops`, `log`). `fail` says of a call whether the device refuses it; a
    replay needs the same. `threads` is the chance that, where other host threads may act, one more turn is taken.
    `fence` puts an order in that the host does not ask for, and that no schedule notices.
    Raises `ValueError` for what is not a schedule, `ScheduleError` where the host asks something else than in it.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        policy: Policy = FAIR,
        replay: Schedule | str | None = None,
        host: Schedule | str | None = None,
        observe: bool = False,
        fail: Callable[[Call], bool] | None = None,
        threads: float = 0.5,
        fence: Fence | None = None,
    ) -> None:
        if replay is not None and host is not None:
            raise ValueError("replay makes the host's choices again too: give one of replay and host")
        if not 0 < threads < 1:
            raise ValueError(f"threads is a chance, more than 0 and less than 1, not {threads}")
        text = replay if replay is not None else host
        old = Schedule.parse(text) if isinstance(text, str) else text
        if replay is not None and old is not None and old.choices is None:
            raise ValueError("this schedule holds the host's choices only: give it as host")
        if old is not None and replay is None:
            old = old.host
        self.seed, self.policy = seed, policy
        self._replays = replay is not None
        self._steering = Steering(old, policy, seed, threads)
        self._line = self._steering.line
        self._versions = Versions() if observe else None
        self._fail, self._tries = fail, 0
        self._fence = fence
        self._behind: Record | None = None
        self._memory: dict[str, Words] = {}
        self._records: dict[str, Record] = {}
        self._recorded = 0
        self._queues: dict[str, deque[Any]] = {}
        self._hosts: dict[str, SimulatedHost] = {}
        self._threads: list[Callable[[], bool]] = []
        self._acting = self._closed = False

    # ── what a device is ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def name(self) -> str:
        return "simulated, replay" if self._replays else f"simulated, seed {self.seed}, {self.policy}"

    def memory(self, pool: str, shape: tuple[int, ...], *, host: bool) -> torch.Tensor:
        """A zeroed tensor (layers, blocks, …) of int64, wherever the pool is. One of a single dimension has no blocks:
        kernels use it, and it cannot be copied."""
        tensor = torch.zeros(shape, dtype=torch.int64)
        if len(shape) > 1:
            self._memory[pool] = tensor.numpy()
            if self._versions is not None:
                self._versions.pool(pool, shape[1])
        return tensor

    def tensor(self, shape: tuple[int, ...], *, host: bool) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64)

    def host(self, name: str) -> SimulatedHost:
        return self._hosts.setdefault(name, SimulatedHost(name, self))

    def stream(self, name: str, *, side: bool) -> None:
        """Priority orders nothing, here as on a GPU."""
        self._line.streams.setdefault(name, Stream(name))

    def thread(self, name: str, turn: Callable[[], bool]) -> None:
        self._threads.append(turn)

    def turns(self) -> None:
        """Some of the host threads act, each any number of times: a choice of the host. Nothing within a turn."""
        if not self._threads or self._acting or self._closed:
            return
        self._acting = True
        try:
            while (at := self._steering.turn(len(self._threads))) > 0:
                self._threads[at - 1]()
        finally:
            self._acting = False

    def close(self) -> None:
        """Runs all that was issued. Jobs that no thread has taken are left. Raises `ScheduleError` if a schedule was
        given and goes on."""
        if self._closed:
            return
        self._closed = True
        self._steering.finish()

    # ── what a test looks at ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def schedule(self) -> Schedule:
        """What was chosen so far; complete after `close`."""
        return self._steering.schedule(complete=self._closed)

    @property
    def forced(self) -> list[Forced]:
        """When a held op had to run (`hold`); empty if the hold was kept."""
        return self._steering.chooser.forced

    @property
    def ops(self) -> list[Op]:
        """Every access issued, by number, if the machine observes."""
        return self._versions.ops if self._versions is not None else []

    @property
    def log(self) -> list[Touch]:
        """What ran, part by part, if the machine observes."""
        return self._versions.log if self._versions is not None else []

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _call(self, kind: str, by: str, what: str) -> None:
        if self._closed:
            raise ValueError(f"{by} calls {kind} {what} on a closed device")
        self._steering.checks.call(f"{kind} {by} {what}")

    def _on(self, name: str) -> Stream:
        stream = self._line.streams.get(name)
        if stream is None:
            raise ValueError(f"no stream {name!r}; there are {', '.join(self._line.streams) or 'none'}")
        return stream

    def _record(self, by: str, stream: str, event: str) -> None:
        on = self._on(stream)
        self._call("record", by, f"{stream} {event}")
        self._recorded += 1
        record = self._records[event] = Record(self._recorded, on)
        self._line.add(on, record)
        self._steering.progress()

    def _wait(self, by: str, stream: str, event: str) -> None:
        on = self._on(stream)
        self._call("wait", by, f"{stream} {event}")
        record = self._records.get(event)
        if record is not None and not record.done:
            self._line.add(on, Wait(record))
        self._steering.progress()

    def _query(self, by: str, event: str) -> bool:
        self._call("query", by, event)
        return self._steering.poll(self._records.get(event))

    def _sync(self, by: str, event: str) -> None:
        self._call("sync", by, event)
        self._steering.progress()
        record = self._records.get(event)
        if record is not None:
            self._steering.complete(record)

    def _drop(self, by: str, event: str) -> None:
        self._call("drop", by, event)
        self._records.pop(event, None)

    def _issue(self, kind: str, by: str, stream: str, what: Copy | Kernel) -> None:
        on = self._on(stream)
        self._call(kind, by, f"{stream} {what.name}")
        self._tries += 1
        if self._fail is not None and self._fail(Call(self._tries - 1, kind, by, stream, what.name, what.step)):
            raise DeviceError(f"the device refused the {kind} {what.name} on {stream}")
        number = self._line.issued
        what = self._fence_before(number, on, what)
        self._line.add(on, self._task(by, stream, what))
        if self._fence is not None and number == self._fence.earlier:
            self._behind = Record(-1, on)
            self._line.add(on, self._behind)
        self._steering.issued()
        self._steering.progress()

    def _fence_before(self, number: int, on: Stream | None, what: Copy | Kernel) -> Copy | Kernel:
        fence, behind = self._fence, self._behind
        if fence is None or behind is None or number != fence.later:
            return what
        if fence.block or on is None:
            self._steering.complete(behind)
        elif not behind.done:
            self._line.add(on, Wait(behind))
        return replace(what, order="stream") if isinstance(what, Copy) and not fence.block else what

    def _work(self, by: str, kernel: Kernel) -> None:
        self._call("work", by, kernel.name)
        self._steering.progress()
        self._fence_before(self._line.issued, None, kernel)
        task = self._task(by, None, kernel)
        self._steering.issued()
        held = self._steering.chooser.policy.held
        if held is not None and held.earlier == task.number:
            self._steering.chooser.force(task.number, "the host does it itself")
        task.run(ALL, lambda options: 0)

    def _task(self, by: str, on: str | None, what: Copy | Kernel) -> Task:
        if isinstance(what, Kernel):
            return KernelTask(self._op(by, on, what, what.reads, what.writes), tuple(what.parts), self._versions)
        source, target = self._pool(what, what.source, what.sources), self._pool(what, what.target, what.targets)
        if len(what.sources) != len(what.targets) or source.shape[::2] != target.shape[::2]:
            raise ValueError(
                f"copy {what.name}: {len(what.sources)} blocks of {what.source} {source.shape} do not go to "
                f"{len(what.targets)} of {what.target} {target.shape}"
            )
        sources, targets = what.sources.copy(), what.targets.copy()
        op = self._op(by, on, what, {what.source: sources}, {what.target: targets})
        return CopyTask(op, (what.source, source, sources), (what.target, target, targets), what.order, self._versions)

    def _op(
        self, by: str, on: str | None, what: Copy | Kernel, reads: Mapping[str, Ids], writes: Mapping[str, Ids]
    ) -> Op:
        number, self._line.issued = self._line.issued, self._line.issued + 1
        op = Op(number, what.name, by, on, what.step, reads, writes)
        return op if self._versions is None else self._versions.issue(op)

    def _pool(self, what: Copy, pool: str, blocks: Ids) -> Words:
        words = self._memory.get(pool)
        if words is None:
            raise ValueError(f"copy {what.name}: no pool {pool!r}; there are {', '.join(self._memory) or 'none'}")
        if len(blocks) and not 0 <= int(blocks.min()) <= int(blocks.max()) < words.shape[1]:
            raise ValueError(f"copy {what.name}: pool {pool} has blocks 0 to {words.shape[1] - 1}, not all of {blocks}")
        return words


class SimulatedHost:
    """A host thread of a simulated machine: `kvsan.runtime.device.Host`."""

    def __init__(self, name: str, device: Simulated) -> None:
        self._name, self._device = name, device

    @property
    def name(self) -> str:
        return self._name

    def record(self, stream: str, event: str) -> None:
        self._device._record(self._name, stream, event)

    def wait(self, stream: str, event: str) -> None:
        self._device._wait(self._name, stream, event)

    def query(self, event: str) -> bool:
        return self._device._query(self._name, event)

    def sync(self, event: str) -> None:
        self._device._sync(self._name, event)

    def drop(self, event: str) -> None:
        self._device._drop(self._name, event)

    def copy(self, stream: str, copy: Copy) -> None:
        self._device._issue("copy", self._name, stream, copy)

    def launch(self, stream: str, kernel: Kernel) -> None:
        self._device._issue("launch", self._name, stream, kernel)

    def work(self, kernel: Kernel) -> None:
        self._device._work(self._name, kernel)

    def put(self, queue: str, item: Any) -> None:
        self._device._queues.setdefault(queue, deque()).append(item)

    def get(self, queue: str) -> Any:
        items = self._device._queues.get(queue)
        return items.popleft() if items else None

    def alloc(self, pool: str, blocks: Ids) -> None:
        """Nothing to do."""

    def free(self, pool: str, blocks: Ids) -> None:
        """Nothing to do."""

    def touch(self, pool: str, blocks: Ids) -> None:
        """Nothing to do."""

    def plan(self, pool: str, blocks: Ids, work: str) -> None:
        """Nothing to do."""
