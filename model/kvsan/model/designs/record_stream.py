"""The record_stream style: an event is recorded on the used stream when the block is freed, and it is reused
after a query.

What PyTorch's caching allocator does for tensors. It is deferral with another fence: the event is recorded
behind all work launched so far, so the host knows every access complete before the block is handed out.
"""

from kvsan.model.design import Protocol, now, seen

p = Protocol(
    "record-stream",
    title="event recorded at free time, reuse after a query",
    reference="https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp",
)
compute, load = p.streams("compute", "load")
left = p.event("left", per="block")
load_done = p.event("load_done", per="transfer")
step_done = p.event("step_done", per="step")

b = p.block(owner="none | running | leaving | want_load | loading", data="empty | full")
free = p.free(b.owner.none)

with p.step():
    compute.forward(writes=b.running & b.empty, reads=b.running & b.full, then=b.full, signals=step_done)
    load.copy_in(b.want_load, then=b.loading, signals=load_done)

with p.scheduler() as may:
    may("allocate", when=free, then=b.running & b.empty)
    may("allocate for a load", when=free, then=b.want_load & b.empty)
    may("load finished", when=b.loading, then=b.running & b.full, needs=seen(load_done))
    may("request finished", when=b.running, then=b.leaving, free=now, records={compute: left})
    may("reuse after the query", when=b.leaving, then=b.owner.none, needs=seen(left))

p.claims(
    "race-free",
    "right generation",
    "progress",
    "progress without other requests",
    "no vacuous wait",
    "host-quiescent",
)
p.expect("proved", quiescent=True)
DESIGN = p.design()
