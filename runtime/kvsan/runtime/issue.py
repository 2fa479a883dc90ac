"""What a step issues: a design's program, item by item, on a device. The one place where fences come from.

An `Issuer` follows a `Design` (`kvsan.model.design`): each work's waits before it (`after`), its records behind it
(`signals`), marks, blocking waits, jobs put in a queue and taken by another thread. It holds no list of its own. What
the work itself is (which kernel, which copy) it asks a `Bodies`; which blocks a rule is applied to is decided by
whoever holds the `Cells`. A record of an event that nobody in the design asks for is left out.

A copy touches blocks of two pools, and each may have a design: the step is the first design's, and a work of another
one goes along as a `Face` (its waits and records too; an event of the same name is the same object).

Atomic for other host threads: one item, one rule. Between them `Device.turns` lets them act.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Protocol

import numpy as np

from kvsan.model.design import MAIN, Block, Design, Item, Mark, Seen, Submit, Work
from kvsan.runtime.cells import Cells
from kvsan.runtime.device import Device, DeviceError, Host, Ids
from kvsan.runtime.flight import Flight


@dataclass(frozen=True, slots=True)
class Face:
    """One pool's side of a work: its blocks, in the order of the copy's pairs. `then`: those of them to which the
    work's assignment applies, if not all.
    """

    cells: Cells
    work: Work
    blocks: Ids
    then: Ids | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A queue's entry: which work another thread does, and on which blocks of the design's pool."""

    work: str
    blocks: Ids
    step: int


class Bodies(Protocol):
    """What the works of a design do."""

    def faces(self, work: Work, blocks: Ids, step: int) -> Sequence[Face]:
        """The sides of the work in this step: first the design's own. `blocks` is what its guards say; a step may use
        fewer of them, and is asked again for the rest. No side: the work is not issued."""

    def run(self, host: Host, work: Work, faces: Sequence[Face], step: int) -> None:
        """Issues the work itself on `work.on` (None: the host does it). Raises `DeviceError` if nothing was issued."""


class Issuer:
    """Runs the steps of a design. `order` permutes the items whose order the design leaves open."""

    def __init__(
        self,
        design: Design,
        device: Device,
        flight: Flight,
        bodies: Bodies,
        *,
        order: Callable[[list[Item]], Iterable[Item]] = iter,
    ) -> None:
        self.design, self.device, self.flight, self.bodies, self._order = design, device, flight, bodies, order
        self.host = device.host(MAIN)
        self.cells: Cells | None = None
        self.lock = RLock()
        self._jobs = {job.takes: job for thread in design.threads for job in thread.jobs}
        self._recorder = next((on for on, event in _recorders(design) if event == design.step_event), None)
        self.asked = _asked(design)

    def of(self, cells: Cells) -> None:
        """The blocks of the design's own pool. From here on its other threads act."""
        self.cells = cells
        for thread in self.design.threads:
            self.device.thread(thread.name, lambda thread=thread: self.turn(thread.name))  # type: ignore[misc]

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> int:
        """Launches a step; its number. A copy that the device refuses is left for a later step; what a forward raises
        is raised, and the items behind it are left.
        """
        with self.lock:
            number = self.flight.launch()
        for item in self._items():
            self.device.turns()
            with self.lock:
                self.item(item, number)
        self.device.turns()
        return number

    def _items(self) -> Iterable[Item]:
        items = list(self.design.step)
        while items:
            group = getattr(items[0], "group", None)
            size = 1
            while group is not None and size < len(items) and getattr(items[size], "group", None) == group:
                size += 1
            yield from self._order(items[:size]) if size > 1 else items[:1]
            del items[:size]

    def item(self, item: Item, step: int) -> None:
        """One item of the step's program."""
        assert self.cells is not None
        cells = self.cells
        match item:
            case Mark() if item.event in self.asked:
                self.host.record(item.on, self._instance(item.event, cells, np.empty(0, np.int64)))
            case Block():
                blocks = np.arange(len(cells)) if item.when is None else cells.where(cells.table.truth(item.when))
                if item.event is not None:
                    for event in cells.instances(item.event, blocks):
                        self.host.sync(event)
                cells.set(blocks, cells.table.after(item.then))
            case Submit():
                self._submit(item, cells, cells.where(cells.table.truth(item.when)), step)
            case Mark():
                pass
            case Work():
                self.work(self.host, item, cells.where(cells.table.due(item)), step)

    def _submit(self, item: Submit, cells: Cells, blocks: Ids, step: int) -> None:
        job = self._jobs[item.queue]
        if len(blocks):
            faces = self.bodies.faces(job, blocks, step)
            blocks = faces[0].blocks if faces else blocks[:0]
        if not len(blocks):
            return
        for event in item.creates:  # the object is there, and a poll of it finds it never recorded
            cells.noted(event, blocks, self.flight.fresh(event))
        cells.set(blocks, cells.table.after(item.then))
        self.host.put(item.queue, Job(job.name, blocks, step))

    # ── a work ────────────────────────────────────────────────────────────────────────────────────────────────────

    def work(self, host: Host, work: Work, blocks: Ids, step: int) -> bool:
        """Its waits, the work, its records; in the step itself again for the rest, if fewer blocks were used. Returns
        whether it was issued."""
        if not len(blocks) and not work.every_step:
            return False
        issued = False
        while faces := self.bodies.faces(work, blocks, step):
            self.wait(host, work, faces)
            if not self.issue(host, work, faces, step):
                break
            issued = True
            used = faces[0].blocks
            blocks = np.setdiff1d(blocks, used)
            if work.every_step or host is not self.host or not len(used) or not len(blocks):
                break
        return issued

    def wait(self, host: Host, work: Work, faces: Sequence[Face], only: str | None = None) -> None:
        """The work's waits: for what the designs of its faces say (`after`), or for one event of them."""
        if work.on is None:
            return
        wanted = [(face, name) for face in faces for name in face.work.after if only is None or name == only]
        for event in dict.fromkeys(event for face, name in wanted for event in face.cells.instances(name, face.blocks)):
            host.wait(work.on, event)

    def issue(self, host: Host, work: Work, faces: Sequence[Face], step: int) -> bool:
        """The work behind its waits, and its records. Returns whether it was issued."""
        try:
            self.bodies.run(host, work, faces, step)
        except DeviceError:
            if not work.every_step:
                return False  # nothing was issued, the blocks stand as they stood: a later step tries again
            raise
        except Exception:
            if work.every_step and work.on is not None:
                self._signal(host, work.on, faces)  # part of it may have been issued, and a fence must cover it
            raise
        if work.on is not None:
            self._signal(host, work.on, faces)
        for face in faces:
            if work.on is not None and work.on == self._recorder and len(face.blocks):
                face.cells.last_use[face.blocks] = step
            then = face.blocks if face.then is None else face.then
            if face.work.then and len(then):
                face.cells.set(then, face.cells.table.after(face.work.then))
        return True

    def _signal(self, host: Host, stream: str, faces: Sequence[Face]) -> None:
        made: dict[str, str] = {}
        for face in faces:
            for name in face.work.signals:
                if face.cells.design is self.design and name not in self.asked:
                    continue
                if face.cells.per[name] == "block":
                    for block in face.blocks.tolist():
                        host.record(stream, face.cells.noted(name, np.array([block], np.int64)))
                elif name in made:
                    face.cells.noted(name, face.blocks, made[name])
                else:
                    made[name] = self._instance(name, face.cells, face.blocks)
                    host.record(stream, made[name])

    def _instance(self, name: str, cells: Cells, blocks: Ids) -> str:
        """The event object that a record of the name is made on now."""
        per = cells.per[name]
        if per == "transfer":
            created = cells.instances(name, blocks)
            if self._created(name) and len(created) == 1:
                return created[0]
            return cells.noted(name, blocks, self.flight.fresh(name))
        if per == "step":
            one = cells.noted(name, blocks, f"{name}#{self.flight.launched}")
            if name == self.design.step_event:
                self.flight.recorded(one)
            return one
        return cells.noted(name, blocks)

    def _created(self, name: str) -> bool:
        return any(isinstance(item, Submit) and name in item.creates for item in self.design.step)

    # ── other threads ─────────────────────────────────────────────────────────────────────────────────────────────

    def turn(self, thread: str) -> bool:
        """The thread takes its oldest job, if there is one, and does it. Returns whether there was one."""
        assert self.cells is not None
        host = self.device.host(thread)
        for job in next(one for one in self.design.threads if one.name == thread).jobs:
            if job.takes is None:
                continue
            entry = host.get(job.takes)
            if entry is None:
                continue
            with self.lock:
                if not self.work(host, job, entry.blocks, entry.step):
                    host.put(job.takes, entry)
                    return False
                if job.publishes is not None:
                    host.put(job.publishes, entry)
            return True
        return False

    def collect(self) -> None:
        """The main thread takes what other threads have published."""
        assert self.cells is not None
        for thread in self.design.threads:
            for job in thread.jobs:
                while job.publishes is not None and (entry := self.host.get(job.publishes)) is not None:
                    self.cells.got(job.publishes, entry.blocks)

    # ── what the host sees ────────────────────────────────────────────────────────────────────────────────────────

    def see(self, *others: Cells, block: bool = False) -> bool:
        """Whether the oldest unseen step is complete: polled, or waited for. Held frees that it ends come back, here
        and in the other pools.
        """
        if not self.flight.unseen:
            return False
        event = self.flight.oldest
        if event is not None:
            if block:
                self.host.sync(event)
            elif not self.host.query(event):
                return False
        with self.lock:
            self.flight.see()
            if event is not None:
                self.host.drop(event)
            for cells in (self.cells, *others):
                if cells is not None:
                    cells.settle()
        return True


def _asked(design: Design) -> frozenset[str]:
    """The events that somebody waits for, polls, or blocks on. Another one may be recorded or not; it is not."""
    asked = {event for work in design.works() for event in work.after}
    asked |= {item.event for item in design.step if isinstance(item, Block) and item.event is not None}
    asked |= {need.event for rule in design.rules for need in rule.needs if isinstance(need, Seen)}
    return frozenset(asked | ({design.step_event} if design.step_event else set()))


def _recorders(design: Design) -> Iterable[tuple[str | None, str]]:
    for item in design.step:
        if isinstance(item, Mark):
            yield item.on, item.event
    for work in design.works():
        for event in work.signals:
            yield work.on, event
