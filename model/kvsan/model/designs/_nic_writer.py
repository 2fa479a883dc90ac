"""A NIC writes prefilled blocks (RDMA, GPUDirect): it runs on no stream, so it cannot wait for an event; only
the host orders it.

Disaggregated prefill: a block is allocated, the peer is told to write it, the completion is polled, then the
request runs.
"""

from __future__ import annotations

from kvsan.model.design import BlockRef, Protocol, Retired, now, seen


def nic_writer(
    name: str, *, title: str, reference: str, about: str = "", free: Retired | None = now
) -> tuple[Protocol, BlockRef]:
    """`free`: when the blocks of a finished request come back."""
    p = Protocol(name, title=title, reference=reference, about=about)
    compute = p.stream("compute")
    nic = p.nic("nic")
    written = p.event("written", per="transfer")  # the completion queue entry
    step_done = p.event("step_done", per="step")

    b = p.block(owner="none | running | want_write | writing | abandoned", data="empty | full")
    is_free = p.free(b.owner.none)

    with p.step():
        compute.forward(writes=b.running & b.empty, reads=b.running & b.full, then=b.full, signals=step_done)
        nic.copy_in(b.want_write, then=b.writing, signals=written)

    with p.scheduler() as may:
        may("allocate", when=is_free, then=b.running & b.empty)
        may("allocate for a transfer", when=is_free, then=b.want_write & b.empty)
        may("transfer finished", when=b.writing, then=b.running & b.full, needs=seen(written))
        may("abort a transfer", when=b.writing, then=b.abandoned)
        may("reap an aborted transfer", when=b.abandoned, then=b.owner.none, needs=seen(written))
        may("request finished", when=b.running, then=b.owner.none, free=free)
        may("window slides past", when=b.running & b.full, then=b.owner.none, free=free)
    return p, b
