"""The host pool's blocks: a store fills one, it is published when the store was polled done, loads read it,
then it is evicted.

Here the tracked block is a *host* block: a store writes it, a load reads it. Every edge is a host poll: a block
is published (and may be loaded) only after its store was seen done, and may be evicted only after the loads
that read it were. So a load may let the copy engine read its source at any time from the call on (source order
`any`), which is what vLLM does for loads.
"""

from kvsan.model.design import Protocol, seen

p = Protocol(
    "host-blocks",
    title="blocks of the host pool",
    reference="https://github.com/vllm-project/vllm/pull/37160",
    pool="cpu",
)
compute, load, store = p.streams("compute", "load", "store")
load_done, store_done = p.events("load_done", "store_done", per="transfer")
step_done = p.event("step_done", per="step")

b = p.block(
    content="free | want_store | storing | published",
    reader="none | want_load | loading",
)
free = p.free(b.content.free)

with p.step():
    compute.forward(signals=step_done)  # it touches no host block
    with p.any_order():
        load.copy_out(b.want_load, then=b.loading, order="any", signals=load_done)
        store.copy_in(b.want_store, then=b.storing, signals=store_done)

with p.scheduler() as may:
    may("reserve for a store", when=free, then=b.want_store)
    may("publish", when=b.storing, then=b.published, needs=seen(store_done))
    may("plan a load", when=b.published & b.reader.none, then=b.want_load)
    may("load finished", when=b.loading, then=b.reader.none, needs=seen(load_done))
    may("evict", when=b.published & b.reader.none, then=b.content.free)

p.claims(
    "race-free",
    "right generation",
    "progress",
    "progress without other requests",
    "no vacuous wait",
    "host-quiescent",
)
p.assumes(
    "a second load of the block starts after the first was seen done, or counts as the same one (reference count)"
)
p.expect("proved", quiescent=True)
DESIGN = p.design()
