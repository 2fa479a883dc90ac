"""vLLM's SimpleCPUOffloadConnector, with every edge that its history argued about as an argument.

The catalogue's files say which of them their version has. Read this file once as the engine: three streams, one
KV block, one step, one scheduler. Blocks that a load writes or a store reads are held by a reference until the
transfer was polled done, so all that can go wrong is between a transfer and work that was already launched.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from kvsan.model.design import BlockRef, EventRef, Protocol, Retired, last_use, now, retired, seen

Awaited = Literal["compute_done", "prev_done", "used", "load_done", "loads_done", "store_done"]


def simple_offload(
    name: str,
    *,
    title: str,
    reference: str,
    about: str = "",
    load_after: Collection[Awaited] = (),
    store_after: Collection[Awaited] = (),
    forward_after: Collection[Awaited] = (),
    finish: Retired | None = now,
    preempt: Retired | None = now,
    slide: Retired | None = now,
    slide_settled: bool = False,
    runnable_before_load_done: bool = False,
    pinned_while_stored: bool = True,
    hold_aborted_load: bool = True,
    poll_store: bool = True,
    zero_load_target: bool = False,
    load_also_records: Collection[Awaited] = (),
    run_ahead: int | Literal["any"] = "any",
) -> tuple[Protocol, BlockRef]:
    """The protocol so far; the catalogue's file adds what it claims and expects."""
    p = Protocol(name, title=title, reference=reference, about=about, run_ahead=run_ahead)
    compute, load, store = p.streams("compute", "load", "store")

    compute_done = p.event("compute_done")  # one object, recorded behind every forward
    prev_done = p.event("prev_done")  # one object, recorded in front of it: all steps before this one
    used = p.event("used", per="block")  # recorded behind a forward that touches the block
    load_done, store_done = p.events("load_done", "store_done", per="transfer")
    loads_done = p.event("loads_done")  # one object, recorded behind every load
    step_done = p.event("step_done", per="step")  # what the host sees: the step's sampled tokens are there

    b = p.block(
        owner="none | running | want_load | loading | abandoned",
        data="empty | full",
        pin="none | want_store | storing",
    )
    free = p.free(b.owner.none & b.pin.none if pinned_while_stored else b.owner.none)

    on: dict[Awaited, EventRef] = {
        "compute_done": compute_done,
        "prev_done": prev_done,
        "used": used,
        "load_done": load_done,
        "loads_done": loads_done,
        "store_done": store_done,
    }

    def events(names: Collection[Awaited]) -> list[EventRef]:
        return [on[event] for event in names]

    with p.step():
        compute.record(prev_done)
        if zero_load_target:
            compute.zero(b.want_load & b.empty)
        compute.forward(
            writes=b.running & b.empty,
            reads=b.running & b.full,
            then=b.full,  # the host counts the tokens as computed when the step is launched
            after=events(forward_after),
            signals=[compute_done, used, step_done],
        )
        with p.any_order():
            load.copy_in(
                b.want_load,
                then=b.loading,
                after=events(load_after),
                signals=[load_done, loads_done, *events(load_also_records)],
            )
            store.copy_out(b.want_store, then=b.storing, after=events(store_after), signals=store_done)

    with p.scheduler() as may:
        may("allocate", when=free, then=b.running & b.empty)
        may("prefix-cache hit", when=free & b.full, then=b.running, keeps=True)
        may("allocate for a load", when=free, then=b.want_load & b.empty)
        may(
            "load finished",
            when=b.loading,
            then=b.running & b.full,
            needs=None if runnable_before_load_done else seen(load_done),
        )
        if hold_aborted_load:
            may("abort a load", when=b.loading, then=b.abandoned)
            may("reap an aborted load", when=b.abandoned, then=b.owner.none, needs=seen(load_done))
        else:
            may("abort a load", when=b.loading, then=b.owner.none)
        may("store a full block", when=b.running & b.full & b.pin.none, then=b.want_store)
        may("store finished", when=b.storing, then=b.pin.none, needs=seen(store_done) if poll_store else None)

        may("request finished", when=b.running, then=b.owner.none, free=finish)
        may("preempt", when=b.running, then=b.owner.none, free=preempt)
        may(
            "window slides past",
            when=b.running & b.full,
            then=b.owner.none,
            free=slide,
            needs=retired(last_use) if slide_settled else None,
        )
    return p, b
