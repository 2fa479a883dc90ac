"""Random small designs: offloading engines put together from parts, with each edge there or not.

Drawn are: whether loads and stores exist, who does them (the step, a thread with its queue, a NIC), what they wait for,
what signals them and of which kind those events are, the order of the step, who zeroes, what the host blocks on, when
blocks are freed and what a rule needs to know. Each part has its edges in the sense that safe and unsafe designs are
both common; `p.design()` accepts every one, whatever is drawn.

A `Dice` is all that is asked of chance, so that a seed, hypothesis or a list of numbers can be behind it. Zero is the
simplest answer everywhere: no extra part, no missing edge.

Does not cover: several facets held at once, more than one pool, work of more than one design.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from kvsan.model.design import (
    Design,
    EventRef,
    Need,
    Protocol,
    Retired,
    got,
    last_use,
    newest,
    next_step,
    now,
    retired,
    seen,
)
from kvsan.model.design.refs import QueueRef

T = TypeVar("T")
Where = Literal["none", "step", "thread"]


class Dice:
    """`pick(n)` gives a number below n."""

    def __init__(self, pick: Callable[[int], int]) -> None:
        self.pick = pick

    def one(self, options: Sequence[T]) -> T:
        return options[self.pick(len(options))]

    def chance(self, percent: int) -> bool:
        """True in so many cases of a hundred; False is the simplest."""
        return self.pick(100) >= 100 - percent

    def some(self, options: Sequence[T], percent: int) -> list[T]:
        """Each option in so many cases of a hundred."""
        return [option for option in options if self.chance(percent)]


def random_design(seed: int) -> Design:
    """The design of a seed."""
    dice = random.Random(seed)
    return drawn_design(Dice(dice.randrange), name=f"random-{seed}")


def drawn_design(dice: Dice, name: str = "drawn") -> Design:
    """A design of whatever the dice say."""
    return _Draw(dice, name).design()


class _Draw:
    """One design as it is drawn."""

    def __init__(self, dice: Dice, name: str) -> None:
        self.dice = dice
        self.load: Where = dice.one(("step", "step", "thread"))
        self.store: Where = dice.one(("none", "step", "thread"))
        self.nic = self.load == "step" and dice.chance(10)
        self.one_stream = not self.nic and dice.chance(10)
        ahead: Literal["any"] | int = "any" if dice.chance(70) else dice.pick(3)
        self.p = p = Protocol(name, run_ahead=ahead)
        self.compute = p.stream("compute")
        self.load_on = p.nic("nic") if self.nic else p.stream("load")
        self.store_on = self.load_on if self.one_stream else p.stream("store")
        self.compute_done = p.event("compute_done")
        self.step_done = p.event("step_done", per="step")
        kinds: tuple[Literal["transfer", "block"], ...] = ("transfer", "transfer", "block")
        kind = dice.one(kinds)
        self.load_done = p.event("load_done", per=kind)
        self.store_done = p.event("store_done", per=dice.one(kinds)) if self.store != "none" else None
        self.used = p.event("used", per="block") if dice.chance(30) else None
        self.marks = dice.chance(30)
        """`compute_done` is recorded at the end of the step, not behind the forward."""
        self.creates = kind == "transfer" and dice.chance(15)
        self.load_jobs, self.loads, self.store_jobs, self.stores = self._queues()
        facets = {
            "owner": "none | running | want_load | loading | abandoned",
            "data": "empty | full",
        }
        if self.store != "none":
            facets["pin"] = "none | want_store | storing"
        if self.load == "thread":
            facets["load_job"] = "idle | load_queued | load_listed"
        if self.store == "thread":
            facets["store_job"] = "idle | store_queued | store_listed"
        self.b = p.block(**facets)
        pinned = self.store != "none" and not dice.chance(12)
        self.is_free = p.free(self.b.owner.none & self.b.pin.none if pinned else self.b.owner.none)

    def design(self) -> Design:
        with self.p.step():
            self._step()
        threaded = [each for each in ("load", "store") if getattr(self, each) == "thread"]
        if len(threaded) == 2 and self.dice.chance(40):  # a thread each
            for each in threaded:
                with self.p.thread(f"{each}er").jobs():
                    self._job(each)
        elif threaded:
            with self.p.thread("copier").jobs():
                for each in threaded:
                    self._job(each)
        self._rules()
        self.p.claims("race-free", "right generation")
        return self.p.design()

    # ── the step ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self) -> None:
        dice, p, b = self.dice, self.p, self.b
        parts: list[Callable[[], None]] = [self._forward, self._load_part]
        if self.store != "none":
            parts.append(self._store_part)
        if dice.chance(50):  # loads first
            parts[0], parts[1] = parts[1], parts[0]
        if dice.chance(20):
            parts.insert(0, lambda: self.compute.zero(b.running & b.empty, name="zero"))
        if dice.chance(25):
            with p.any_order():
                for part in parts:
                    part()
        else:
            for part in parts:
                part()
        if self.marks:
            self.compute.record(self.compute_done)
            self.compute.record(self.step_done)
        if dice.chance(10):
            p.sync("the host waits", self.compute_done)

    def _forward(self) -> None:
        dice, b = self.dice, self.b
        after = [self.load_done] if self.load != "thread" and dice.chance(40) else []
        after += [self.store_done] if self.store_done is not None and dice.chance(20) else []
        signals = [] if self.marks else [self.compute_done, self.step_done]
        signals += [self.used] if self.used is not None else []
        self.compute.forward(
            writes=b.running & b.empty, reads=b.running & b.full, then=b.full, after=after, signals=signals
        )

    def _waits(self, *more: EventRef | None) -> list[EventRef]:
        """What a transfer waits for: mostly the forward, in one of the ways there are."""
        dice = self.dice
        out = [] if dice.chance(35) else [self.compute_done]
        out += dice.some([event for event in (self.used, *more) if event is not None], 25)
        return out

    def _load_part(self) -> None:
        b = self.b
        if self.load == "thread":
            assert self.load_jobs is not None
            self.p.submit(
                "submit a load",
                self.load_jobs,
                when=b.want_load & b.load_job.idle,
                then=b.loading & b.load_queued,
                creates=self.load_done if self.creates else None,
            )
            return
        after = [] if self.nic else self._waits(self.store_done)
        self.load_on.copy_in(b.want_load, name="load", after=after, signals=self.load_done, then=b.loading)

    def _store_part(self) -> None:
        b = self.b
        if self.store == "thread":
            assert self.store_jobs is not None
            self.p.submit(
                "submit a store",
                self.store_jobs,
                when=b.want_store & b.store_job.idle,
                then=b.storing & b.store_queued,
            )
            return
        order: Literal["stream", "any"] = "any" if self.dice.chance(15) else "stream"
        after = [] if self.store_on is self.load_on and self.nic else self._waits(self.load_done)
        self.store_on.copy_out(
            b.want_store, name="store", after=after, signals=self.store_done, order=order, then=b.storing
        )

    # ── the thread ────────────────────────────────────────────────────────────────────────────────────────────────

    def _queues(self) -> tuple[QueueRef | None, QueueRef | None, QueueRef | None, QueueRef | None]:
        p = self.p
        load = p.queues("load jobs", "loads") if self.load == "thread" else [None, None]
        store = p.queues("store jobs", "stores") if self.store == "thread" else [None, None]
        return (load[0], load[1], store[0], store[1])

    def _job(self, which: str) -> None:
        b = self.b
        if which == "load":
            self.load_on.copy_in(
                b.load_queued,
                name="load",
                takes=self.load_jobs,
                after=self._waits(),
                signals=self.load_done,
                publishes=self.loads,
                then=b.load_listed,
            )
        else:
            self.store_on.copy_out(
                b.store_queued,
                name="store",
                takes=self.store_jobs,
                after=self._waits(),
                signals=self.store_done,
                publishes=self.stores,
                then=b.store_listed,
            )

    # ── the scheduler ─────────────────────────────────────────────────────────────────────────────────────────────

    def _free(self) -> Retired | None:
        dice = self.dice
        if not self.deferring or dice.chance(15):
            return now
        return retired(dice.one((newest, last_use, newest, next_step)))

    def _known(self, event: EventRef | None, queue: QueueRef | None) -> list[Need]:
        """What the scheduler has to know of a transfer's end: mostly all of it."""
        out: list[Need] = [got(queue)] if queue is not None else []
        return out + ([seen(event)] if event is not None and not self.dice.chance(15) else [])

    def _rules(self) -> None:
        dice, b = self.dice, self.b
        self.deferring = dice.chance(60)
        threaded = self.load == "thread"
        with self.p.scheduler() as may:
            may("allocate", when=self.is_free, then=b.running & b.empty)
            may("allocate for a load", when=self.is_free & b.load_job.idle if threaded else self.is_free,
                then=b.want_load & b.empty)  # fmt: skip
            if dice.chance(40):
                may("prefix-cache hit", when=self.is_free & b.full, then=b.running, keeps=True)
            listed = b.loading & b.load_listed if threaded else b.loading
            done = b.running & b.full & b.load_job.idle if threaded else b.running & b.full
            may("load finished", when=listed, then=done, needs=self._known(self.load_done, self.loads))
            if dice.chance(40):
                may("abort a load", when=b.loading, then=b.abandoned)
                gone = b.abandoned & b.load_listed if threaded else b.abandoned
                none = b.owner.none & b.load_job.idle if threaded else b.owner.none
                may("reap a load", when=gone, then=none, needs=self._known(self.load_done, self.loads))
            if self.store != "none":
                self._store_rules(may)
            may("request finished", when=b.running, then=b.owner.none, free=self._free())
            if dice.chance(30):
                may("preempt", when=b.running, then=b.owner.none, free=self._free())

    def _store_rules(self, may: Callable[..., None]) -> None:
        b = self.b
        threaded = self.store == "thread"
        may(
            "store a full block",
            when=b.running & b.full & b.pin.none & b.store_job.idle if threaded else b.running & b.full & b.pin.none,
            then=b.want_store,
        )
        may(
            "store finished",
            when=b.storing & b.store_listed if threaded else b.storing,
            then=b.pin.none & b.store_job.idle if threaded else b.pin.none,
            needs=self._known(self.store_done, self.stores),
        )
