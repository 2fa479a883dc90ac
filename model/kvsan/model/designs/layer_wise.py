"""A layer-wise connector in both directions: each layer is loaded in front of its use and stored behind it,
within one step.

The tracked block is one (block, layer). The load is issued in front of the forward and waits for the step
before; the layer waits for its copy; the layer's store is issued right behind the layer, not behind the
forward, and waits for the layer alone, so it runs beside the layers that follow. A block is held until its
store was seen done.
"""

from kvsan.model.design import Protocol, seen

p = Protocol(
    "layer-wise",
    title="layer-wise load and store",
    reference="https://docs.vllm.ai/en/latest/api/vllm/distributed/kv_transfer/kv_connector/v1/base/",
)
compute, load, store = p.streams("compute", "load", "store")
launched = p.event("launched")  # in front of the forward: all steps before this one
layer_loaded = p.event("layer_loaded")  # one object for this layer, recorded behind its loads
layer_done = p.event("layer_done")  # one object for this layer, recorded behind it
load_done, store_done = p.events("load_done", "store_done", per="transfer")
step_done = p.event("step_done", per="step")

b = p.block(
    owner="none | running | want_load",
    data="empty | full",
    load="idle | loading",
    store="clean | dirty | storing",
)
free = p.free(b.owner.none & b.load.idle & b.store.clean)

with p.step():
    compute.record(launched)
    load.copy_in(b.want_load, then=b.running & b.full & b.loading, after=launched, signals=[layer_loaded, load_done])
    compute.forward(name="layers before")
    compute.forward(
        name="layer",
        writes=b.running & b.empty,
        reads=b.running & b.full,
        then=b.full,
        after=layer_loaded,
        signals=layer_done,
    )
    store.copy_out(b.dirty & b.full, then=b.storing, after=layer_done, signals=store_done)
    compute.forward(name="layers behind", signals=step_done)

with p.scheduler() as may:
    may("allocate", when=free, then=b.running & b.empty & b.dirty)
    may("prefix hit on the device", when=free & b.full, then=b.running, keeps=True)
    may("prefix hit on the host", when=free, then=b.want_load & b.empty)
    may("load acknowledged", when=b.loading, then=b.load.idle, needs=seen(load_done))
    may("store finished", when=b.storing, then=b.store.clean, needs=seen(store_done))
    may("request finished", when=b.running & ~b.dirty, then=b.owner.none)

p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("proved", spare=("load acknowledged: needs=seen(load_done)",))
DESIGN = p.design()
