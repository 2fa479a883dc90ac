"""The offload engine: requests in, completions out, KV blocks between the device and the host on side streams.

One `turn` is what an engine loop does once: look at what is complete, let transfers and frees end, plan, launch. The
host runs ahead of the device by `run_ahead` steps: it looks at a step's tokens when so many later steps are launched,
or none is to be (0: it waits for each step before the next). Every record, every wait and every rule about a block's
life comes from a `Design` (`issue.py`, `cells.py`): what was proved is what runs.

    engine = Engine(load("kvsan-default"), device, model, gpu_blocks=256, host_blocks=1024)
    engine.submit(0, prompt, new_tokens=32)
    while engine.active:
        for completion in engine.turn(): ...

Not here: which request gets what (`scheduler.py`), which host block (`transfers.py`), how anything runs (`device/`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvsan.model.design import Design, DesignError, Item, Work
from kvsan.model.designs import load as catalogue
from kvsan.runtime import roles as binding
from kvsan.runtime.device import Device, DeviceLostError, Host, Ids, Kernel
from kvsan.runtime.flight import Flight
from kvsan.runtime.forward import Forward, block_words
from kvsan.runtime.issue import Face, Issuer
from kvsan.runtime.language import Model, prefix_hashes
from kvsan.runtime.pool import Pool
from kvsan.runtime.requests import Active, Completion, State
from kvsan.runtime.scheduler import EngineError, Plan, Scheduler
from kvsan.runtime.transfers import Transfers

DEFAULT = "kvsan-default"
"""The catalogue's design that the engine runs if it is given none; race-free and proved so."""

RETRIES = 3
"""So many times in a row a forward may fail, or the device refuse a copy, before the engine gives up."""

PATIENCE = 8
"""So many turns the engine polls with nothing to launch before it blocks for the oldest transfer."""


NAP = 20e-6
"""Seconds between the first two such polls; each wait is twice the last."""


class StuckError(EngineError):
    """Requests wait, nothing is in flight, and no block will ever come back: the design has no progress here."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the engine is: blocks of the two pools, requests at a time, tokens a step, slots of a staging pool."""

    gpu_blocks: int
    host_blocks: int
    slots: int = 64
    budget: int = 512
    staging_blocks: int = 16


class Engine:
    """`design` is of the device's pool, the host pool's or a staging pool's; those not given are the default ones.

    Raises `DesignError` if the design has no rule or work for what the engine must do.
    """

    def __init__(
        self,
        design: Design | None,
        device: Device,
        model: Model,
        sizes: Sizes,
        *,
        run_ahead: int = 1,
        lazy: bool = False,
        caching: bool = True,
        forward: Callable[[Model, Any, Any], Forward] = Forward,
        order: Callable[[list[Item]], Iterable[Item]] = iter,
    ) -> None:
        if run_ahead < 0:
            raise ValueError(f"run_ahead is a number of steps from 0, not {run_ahead}")
        designs = designs_for(design)
        gpu, host, staging = designs
        self.design, self.device, self.model, self.sizes, self.lazy = gpu, device, model, sizes, lazy
        self.run_ahead = run_ahead if gpu.run_ahead == "any" else min(run_ahead, gpu.run_ahead)
        gpu_roles, host_roles = binding.gpu(gpu), binding.host(host)
        streams = {stream.name for one in designs if one is not None for stream in one.streams}
        compute = {work.on for work in gpu_roles.forwards}
        for stream in sorted(streams):
            device.stream(stream, side=stream not in compute)

        self.flight = Flight()
        self.issuer = Issuer(gpu, device, self.flight, self, order=order)
        main = self.issuer.host
        pool = Pool(gpu, sizes.gpu_blocks, self.flight, main, name="gpu")
        self.memory: dict[str, Any] = {"gpu": device.memory("gpu", model.pool_shape(sizes.gpu_blocks), host=False)}
        cpu = Pool(host, sizes.host_blocks, self.flight, main, name="cpu")
        self.memory["cpu"] = device.memory("cpu", model.pool_shape(sizes.host_blocks), host=True)
        slots, slot_roles = None, None
        if staging is not None:
            slot_roles = binding.staging(staging)
            slots = Pool(staging, sizes.staging_blocks, self.flight, main, name="staging")
            self.memory["staging"] = device.memory("staging", model.pool_shape(sizes.staging_blocks), host=True)
        self.issuer.of(pool.cells)
        self.pool, self.host_pool = pool, cpu
        self.transfers = Transfers(pool, gpu_roles, cpu, host_roles, slots, slot_roles, self.memory)
        self.scheduler = Scheduler(
            model,
            pool,
            gpu_roles,
            self.transfers,
            slots=sizes.slots,
            budget=sizes.budget,
            longest=sizes.gpu_blocks,
            caching=caching,
        )
        self._roles = gpu_roles
        depth = self.run_ahead + 2
        self.tokens = device.tensor((sizes.slots,), host=False)
        self.kernels = forward(model, self.memory["gpu"], self.tokens)
        self.out = device.tensor((depth, sizes.slots), host=True)
        self._plan: Plan | None = None
        self._sampled: dict[int, tuple[tuple[Active, int], ...]] = {}
        self._by_number: dict[int, Active] = {}
        self._failures = 0
        self._idle = 0
        self._vain = False  # the last step was launched for copies alone, and could issue none: one waits for a slot

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, number: int, prompt: Sequence[int], new_tokens: int) -> None:
        """Takes a request. Raises `EngineError` if it can never be served: no prompt, no tokens, or more blocks than
        the pool has.
        """
        if number in self._by_number:
            raise EngineError(f"request {number} is being served already")
        if not len(prompt) or new_tokens < 1:
            raise EngineError(f"request {number}: a prompt of at least one token and at least one new token")
        size = self.model.block_size
        need = len(self.model.groups) * -(-(len(prompt) + new_tokens) // size)
        if need > len(self.pool):
            raise EngineError(
                f"request {number} may need {need} blocks at once and the pool has {len(self.pool)};"
                " give it more blocks, or shorten the request"
            )
        groups = len(self.model.groups)
        active = Active(
            number, len(prompt), new_tokens, [int(token) for token in prompt], -1, [[] for _ in range(groups)]
        )
        active.digests = [[] for _ in range(groups)]
        self._by_number[number] = active
        self.scheduler.add(active)

    @property
    def stores(self) -> bool:
        """Whether the design fills the host pool. If not, somebody else must (`warm`), or nothing is ever loaded."""
        return self._roles.store is not None

    def warm(self, prompts: Iterable[Sequence[int]]) -> None:
        """Fills half of the host pool with the prompts' full blocks, before the first request, as a peer would have."""
        contents: dict[int, Any] = {}
        for prompt in prompts:
            whole = np.asarray(prompt, np.int64)
            for at, group in enumerate(self.model.groups):
                digests = prefix_hashes(self.model, whole, group.name)
                if len(contents) + len(digests) > len(self.host_pool) // 2:
                    return self.transfers.warm(self.issuer.host, contents)
                made = block_words(self.model, whole, at)
                contents.update(zip(digests, made, strict=True))
        self.transfers.warm(self.issuer.host, contents)

    def abort(self, number: int) -> Completion | None:
        """Ends a request wherever it stands; what it had so far. None if it is not being served."""
        active = self._by_number.pop(number, None)
        if active is None:
            return None
        with self.issuer.lock:
            self.scheduler.end(active)
        return Completion(number, active.answer, "aborted")

    def progress(self, number: int) -> int:
        """How many tokens of its answer the host has; -1 while a request that is served has no block, or is not
        served.
        """
        active = self._by_number.get(number)
        return -1 if active is None or active.state is State.WAITING else len(active.answer)

    @property
    def active(self) -> int:
        """Requests that are not done."""
        return len(self._by_number)

    # ── one turn of the loop ──────────────────────────────────────────────────────────────────────────────────────

    def turn(self) -> list[Completion]:
        """Does what can be done now; the requests that this ended. Raises `StuckError`, or `EngineError` if the
        device fails again and again.
        """
        done: list[Completion] = []
        while self.flight.unseen > self.run_ahead:
            self._see(done, block=True)
        self.device.turns()
        with self.issuer.lock:
            changed = self._settle()
            if not self.lazy:
                self.transfers.plan_stores()
            self._plan = self.scheduler.plan()
            if self.lazy and not self.scheduler.short:
                self.transfers.plan_lazily(self.sizes.slots)
        planned = len(self.pool.cells.where(self.pool.cells.table.wanted))
        serves = self._plan.batch is not None
        self._give_up()
        if serves or (planned and (changed or not self._vain or not self._in_flight)):
            self._step()
            self._vain = not serves and planned == len(self.pool.cells.where(self.pool.cells.table.wanted))
        elif not done and not changed:
            self._wait(done)
        else:
            self._idle = 0
        return done

    def drain_requests(self) -> list[Completion]:
        """Turns until no request is left; transfers and frees may be under way."""
        out: list[Completion] = []
        while self.active:
            out += self.turn()
        return out

    def drain(self) -> list[Completion]:
        """Turns until no request is left and every transfer has ended. A free that its design holds for a step that
        nobody launches is not waited for."""
        out: list[Completion] = []
        while self.active or self.flight.unseen or self.transfers.busy or self.scheduler.leaving:
            out += self.turn()
        return out

    def check(self) -> None:
        """The pools' invariants. Raises `AssertionError`."""
        users = [block for active in self.scheduler.active for block in active.blocks]
        self.pool.check(users)
        self.host_pool.check()

    def close(self) -> None:
        """Ends the device's threads; what is in flight is waited for."""
        self.device.close()

    def _settle(self) -> bool:
        self.issuer.collect()
        changed = self.transfers.settle()
        return self.scheduler.let_go() or changed

    def _see(self, done: list[Completion], *, block: bool = False) -> bool:
        others = [pool.cells for pool, _ in self.transfers.pools[1:]]
        if not self.issuer.see(*others, block=block):
            return False
        step = self.flight.seen
        row = self.out[step % len(self.out)].tolist()
        for active, slot in self._sampled.pop(step, ()):
            active.in_flight -= 1
            if active.state is State.DONE or active.number not in self._by_number:
                continue
            token = row[slot]
            active.tokens.append(token)
            stop = self.model.stops(token)
            if stop or len(active.answer) >= active.new_tokens:
                del self._by_number[active.number]
                with self.issuer.lock:
                    self.scheduler.register(active)
                    self.scheduler.end(active)
                done.append(Completion(active.number, active.answer, "stop" if stop else "length"))
        return True

    def _step(self) -> None:
        plan = self._plan
        assert plan is not None
        self._idle = 0
        try:
            step = self.issuer.step()
        except DeviceLostError:
            raise
        except Exception as error:  # whatever a forward raises: nobody's request is lost for it
            self._failures += 1
            if self._failures >= RETRIES:
                raise EngineError(f"a step failed {self._failures} times in a row: {error}") from error
            return
        self._failures = 0
        with self.issuer.lock:
            served = self._plan
            assert served is not None
            self.scheduler.launched(served)
            self._sampled[step] = tuple((active, active.slot) for active in served.samples)

    def _give_up(self) -> None:
        if self.transfers.refused >= RETRIES:
            raise EngineError(
                f"the device refused a copy {self.transfers.refused} times in a row: {self.transfers.why}"
            )

    def _wait(self, done: list[Completion]) -> None:
        """Nothing to launch: what is in flight must end something."""
        if self.flight.unseen:
            self._see(done, block=True)
            return
        events = self._events
        if not events:
            if self.active and self._idle >= PATIENCE:
                raise StuckError(self._why())
            self._idle += 1
            return
        self._idle += 1
        if self._idle < PATIENCE:
            time.sleep(NAP * 2**self._idle)
        else:
            self.issuer.host.sync(events[0])
            for pool, _ in self.transfers.pools:
                pool.cells.known(events[0])
            self._idle = 0

    @property
    def _events(self) -> list[str]:
        """Of transfers under way."""
        return [event for pool, _ in self.transfers.pools for event in pool.cells.transfers]

    @property
    def _in_flight(self) -> bool:
        """Whether there is something that ends by itself, and may let a copy be issued that waits."""
        return bool(self.flight.unseen or self._events)

    def _why(self) -> str:
        free = len(self.pool.queue)
        return (
            f"{self.active} requests wait and nothing is in flight: {free} of {len(self.pool)} device blocks are free,"
            f" and by {self.design.name} no other will come back"
        )

    # ── what the works are (issue.Bodies) ─────────────────────────────────────────────────────────────────────────

    def faces(self, work: Work, blocks: Ids, step: int) -> Sequence[Face]:
        """Which blocks a work touches in this step."""
        cells = self.pool.cells
        none = np.empty(0, np.int64)
        if work in (self._roles.load, self._roles.store):
            return self.transfers.faces(work, blocks)
        if not work.every_step:
            return [Face(cells, work, blocks)]
        if work != self._roles.forward:
            return [Face(cells, work, none)]
        assert self._plan is not None
        plan = self._plan = self._without_refused(self._plan)
        return [Face(cells, work, plan.touched, plan.full)]

    def _without_refused(self, plan: Plan) -> Plan:
        """The plan without the requests whose load in front of the forward the device refused."""
        cells = self.pool.cells
        used = cells.table.due(self._forward_work)
        if used[cells.code[plan.touched]].all():
            return plan
        late = {active for active, _ in plan.served if not used[cells.code[np.array(active.blocks, np.int64)]].all()}
        return self.scheduler.planned([one for one in plan.served if one[0] not in late])

    @property
    def _forward_work(self) -> Work:
        work = self._roles.forward
        assert work is not None
        return work

    def run(self, host: Host, work: Work, faces: Sequence[Face], step: int) -> None:
        """Issues a work."""
        if work in (self._roles.load, self._roles.store):
            self.transfers.run(host, work, faces, step)
            return
        assert work.on is not None
        if work == self._roles.forward:
            assert self._plan is not None
            kernel = Kernel(work.name, step=step)
            if self._plan.batch is not None:
                kernel = replace(self.kernels(self._plan.batch, self.out[step % len(self.out)], step), name=work.name)
        elif work.every_step:
            kernel = Kernel(work.name, step=step)
        else:
            kernel = self._wipe(work, faces[0].blocks, step)
        host.launch(work.on, kernel)

    def _wipe(self, work: Work, blocks: Ids, step: int) -> Kernel:
        memory = self.memory["gpu"]

        def part() -> None:
            memory[:, blocks] = 0

        return Kernel(work.name, {}, {"gpu": blocks}, (part,), step)


def designs_for(design: Design | None) -> tuple[Design, Design, Design | None]:
    """The designs of the device's pool, the host's, and of a staging pool: the given one and the default ones."""
    if design is None:
        return catalogue(DEFAULT), catalogue("host-blocks"), None
    if design.pool == "gpu":
        return design, catalogue("host-blocks"), None
    if design.pool == "cpu":
        return catalogue(DEFAULT), design, None
    if design.pool == "staging":
        return catalogue(DEFAULT), catalogue("host-blocks"), design
    raise DesignError(f"{design.name}: its blocks are of the pool {design.pool!r}; an engine has gpu, cpu and staging")
