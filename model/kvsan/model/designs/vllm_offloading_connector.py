"""vLLM's OffloadingConnector (#31341, #50696): both directions wait for compute; no reference is held per
transfer.

Stores planned in one step are submitted at the start of the next and wait for what compute holds then; loads
wait for it too. A block under a store may be handed out: the next step then flushes, that is, submits the store
if it was not and blocks until it is done, before the forward. Streams and events come from pools, each
direction a chain: one stream a direction here.
"""

from kvsan.model.design import Protocol, seen

p = Protocol(
    "vllm-offloading-connector",
    title="OffloadingConnector",
    reference="https://github.com/vllm-project/vllm/pull/50696",
)
compute, load, store = p.streams("compute", "load", "store")
launched = p.event("launched")  # store.wait_stream(compute) and load.wait_stream(compute), before the forward
computed = p.event("computed")  # behind the forward
load_done, store_done = p.events("load_done", "store_done", per="transfer")
step_done = p.event("step_done", per="step")

b = p.block(
    owner="none | running | want_load | loading",
    data="empty | full",
    store="idle | planned | storing",
)
free = p.free(b.owner.none)
handed_out = b.owner.running & b.empty | b.want_load  # the next owner has not touched it yet

with p.step():
    compute.record(launched)
    store.copy_out(b.planned, then=b.storing, after=launched, signals=store_done)
    p.sync("flush", store_done, when=b.storing & handed_out, then=b.store.idle)
    compute.forward(
        writes=b.owner.running & b.empty,
        reads=b.owner.running & b.full,
        then=b.full,
        signals=[computed, step_done],
    )
    load.copy_in(b.want_load, then=b.loading, after=computed, signals=load_done)

with p.scheduler() as may:
    may("allocate", when=free, then=b.owner.running & b.empty)
    may("prefix-cache hit", when=free & b.full, then=b.owner.running, keeps=True)
    may("allocate for a load", when=free, then=b.want_load & b.empty)
    may("load finished", when=b.loading, then=b.owner.running & b.full, needs=seen(load_done))
    may("plan a store", when=b.owner.running & b.full & b.store.idle, then=b.planned)
    may("store finished", when=b.storing, then=b.store.idle, needs=seen(store_done))
    may("request finished", when=b.owner.running, then=b.owner.none)
    may("window slides past", when=b.owner.running & b.full, then=b.owner.none)

p.claims("race-free", "progress", "progress without other requests", "no vacuous wait")
p.expect("proved", wrong_generation={"store": 9})
p.note(
    """
    Right generation is not claimed: a store planned for one owner is submitted after the block was handed
    to the next, in front of the next owner's first access. The bytes are still the old ones, because the
    flush comes before the forward; a fence alone could not promise that.
    """
)
DESIGN = p.design()
