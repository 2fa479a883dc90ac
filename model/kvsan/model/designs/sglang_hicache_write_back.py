"""SGLang's HiCache write-back: a node's blocks are copied to the host behind the forward that filled them,
locked until acknowledged.

The write stream waits for an event recorded behind the forward (#20611 is what happens without it); the node's
lock, released when the finish event was polled, keeps the blocks from being evicted while the copy reads them.
"""

from kvsan.model.design import Protocol, seen

p = Protocol(
    "sglang-hicache-write-back",
    title="HiCache write-back",
    reference="https://github.com/sgl-project/sglang/pull/20611",
)
compute, write = p.streams("compute", "write")
forward_done = p.event("forward_done")  # one object, recorded behind every forward
write_done = p.event("write_done", per="transfer")
step_done = p.event("step_done", per="step")

b = p.block(owner="none | running | cached", data="empty | full", lock="none | want_write | writing")
free = p.free(b.owner.none & b.lock.none)

with p.step():
    compute.forward(
        writes=b.running & b.empty, reads=b.running & b.full, then=b.full, signals=[forward_done, step_done]
    )
    write.copy_out(b.want_write, then=b.writing, after=forward_done, signals=write_done)

with p.scheduler() as may:
    may("allocate", when=free, then=b.running & b.empty)
    may("insert in the radix tree", when=b.running & b.full, then=b.cached)
    may("prefix hit", when=b.cached, then=b.running)
    may("back up the node", when=b.cached & b.lock.none, then=b.want_write)
    may("backup acknowledged", when=b.writing, then=b.lock.none, needs=seen(write_done))
    may("evict", when=b.cached & b.lock.none, then=b.owner.none)

p.claims("race-free", "right generation", "progress", "progress without other requests", "no vacuous wait")
p.expect("proved")
DESIGN = p.design()
