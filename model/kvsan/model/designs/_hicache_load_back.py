"""SGLang's HiCache load-back: the copy of each layer runs beside the forward, which waits layer by layer.

The tracked block is one (block, layer): the forward is split into what comes before that layer, the layer, and
what comes behind. The load of a block is issued in front of the forward that uses it; the layer waits on the
device for its own copy.
"""

from __future__ import annotations

from kvsan.model.design import BlockRef, Protocol, seen


def load_back(
    name: str, *, title: str, reference: str, about: str = "", fenced: bool, waits_in_layer: bool = True
) -> tuple[Protocol, BlockRef]:
    """`fenced`: the load waits for all forwards launched so far. `waits_in_layer`: the layer waits for its copy."""
    p = Protocol(name, title=title, reference=reference, about=about)
    compute, load = p.streams("compute", "load")
    launched = p.event("launched")  # one object, recorded in front of each forward
    layer_loaded = p.event(
        "layer_loaded"
    )  # one object a layer (a ring of three in the engine), always on the load stream
    load_done = p.event("load_done", per="transfer")  # all layers
    step_done = p.event("step_done", per="step")

    b = p.block(
        owner="none | running | want_load",
        data="empty | full",
        load="idle | loading",
    )
    free = p.free(b.owner.none & b.load.idle)

    with p.step():
        compute.record(launched)
        load.copy_in(
            b.want_load,
            then=b.running & b.full & b.loading,  # no poll in between: this step's forward uses it
            after=launched if fenced else None,
            signals=[layer_loaded, load_done],
        )
        compute.forward(name="layers before")
        compute.forward(
            name="layer",
            writes=b.running & b.empty,
            reads=b.running & b.full,
            then=b.full,
            after=layer_loaded if waits_in_layer else None,
        )
        compute.forward(name="layers behind", signals=step_done)

    with p.scheduler() as may:
        may("allocate", when=free, then=b.running & b.empty)
        may("prefix hit on the device", when=free & b.full, then=b.running, keeps=True)
        may("prefix hit on the host", when=free, then=b.want_load & b.empty)
        may("load acknowledged", when=b.loading, then=b.load.idle, needs=seen(load_done))
        may("request finished", when=b.running, then=b.owner.none)
    return p, b
