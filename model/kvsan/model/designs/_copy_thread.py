"""The copy back end of SimpleCPUOffloadConnector with its background thread: jobs go through a queue, the
thread waits and copies.

The worker's main thread launches the forward, re-records `compute_done` each step and submits jobs; the copy
thread takes a job, lets its stream wait, copies, records a fresh event and appends it to a list that the main
thread polls. A queued job is a facet of its own, so that nothing can cancel it silently. Between any two calls
of one thread the other may act.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from kvsan.model.design import BlockRef, Need, Protocol, Retired, got, now, seen


def copy_thread(
    name: str,
    *,
    title: str,
    reference: str,
    about: str = "",
    load_waits: bool = True,
    store_waits: bool = True,
    free: Retired | None = now,
    visible_once_queued: Collection[Literal["load", "store"]] = (),
    store_pins_until: Literal["seen", "queued"] = "seen",
) -> tuple[Protocol, BlockRef]:
    """The protocol so far; the catalogue's file adds what it claims and expects."""
    p = Protocol(name, title=title, reference=reference, about=about)
    compute, load, store = p.streams("compute", "load", "store")
    compute_done = p.event("compute_done")
    load_done, store_done = p.events("load_done", "store_done", per="transfer")
    step_done = p.event("step_done", per="step")
    load_jobs, store_jobs, loads_listed, stores_listed = p.queues("load jobs", "store jobs", "loads", "stores")
    copier = p.thread("copier")
    early_load, early_store = "load" in visible_once_queued, "store" in visible_once_queued

    b = p.block(
        owner="none | running | want_load | loading | abandoned",
        data="empty | full",
        pin="none | want_store | storing",
        load_job="idle | load_queued | load_listed",
        store_job="idle | store_queued | store_listed",
    )
    is_free = p.free(b.owner.none & b.pin.none)

    with p.step():
        compute.forward(
            writes=b.running & b.empty,
            reads=b.running & b.full,
            then=b.full,
            signals=[compute_done, step_done],
        )
        p.submit(
            "submit a load",
            load_jobs,
            when=b.want_load & b.load_job.idle,
            then=b.loading & b.load_queued,
            creates=load_done if early_load else None,
        )
        p.submit(
            "submit a store",
            store_jobs,
            when=b.want_store & b.store_job.idle,
            then=b.storing & b.store_queued,
            creates=store_done if early_store else None,
        )

    with copier.jobs():
        load.copy_in(
            b.load_queued,
            takes=load_jobs,
            after=compute_done if load_waits else None,
            signals=load_done,
            publishes=None if early_load else loads_listed,
            then=b.load_job.idle if early_load else b.load_listed,
        )
        store.copy_out(
            b.store_queued,
            takes=store_jobs,
            after=compute_done if store_waits else None,
            signals=store_done,
            publishes=None if early_store or store_pins_until == "queued" else stores_listed,
            then=b.store_job.idle if early_store or store_pins_until == "queued" else b.store_listed,
        )

    with p.scheduler() as may:
        may("allocate", when=is_free, then=b.running & b.empty)
        may("prefix-cache hit", when=is_free & b.full, then=b.running, keeps=True)
        may("allocate for a load", when=is_free, then=b.want_load & b.empty)
        if early_load:
            may("load finished", when=b.loading, then=b.running & b.full, needs=seen(load_done))
            may("abort a load", when=b.loading, then=b.abandoned)
            may("reap an aborted load", when=b.abandoned, then=b.owner.none, needs=seen(load_done))
        else:
            listed: list[Need] = [got(loads_listed), seen(load_done)]
            may(
                "load finished",
                when=b.loading & b.load_listed,
                then=b.running & b.full & b.load_job.idle,
                needs=listed,
            )
            may("abort a load", when=b.loading, then=b.abandoned)
            may(
                "reap an aborted load",
                when=b.abandoned & b.load_listed,
                then=b.owner.none & b.load_job.idle,
                needs=listed,
            )
        may("store a full block", when=b.running & b.full & b.pin.none & b.store_job.idle, then=b.want_store)
        if store_pins_until == "queued":
            may("unpin the source", when=b.storing, then=b.pin.none)
        elif early_store:
            may("store finished", when=b.storing, then=b.pin.none, needs=seen(store_done))
        else:
            may(
                "store finished",
                when=b.storing & b.store_listed,
                then=b.pin.none & b.store_job.idle,
                needs=[got(stores_listed), seen(store_done)],
            )

        may("request finished", when=b.running, then=b.owner.none, free=free)
        may("preempt", when=b.running, then=b.owner.none, free=free)
        may("window slides past", when=b.running & b.full, then=b.owner.none, free=free)
    return p, b
