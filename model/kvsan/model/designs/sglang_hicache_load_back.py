"""HiCache load-back with the fence of #36738: the load waits for every forward launched before it.

Blocks are freed at once while the overlap scheduler runs a step ahead, so only the fence keeps a load off a
block that a forward still uses. The layer's wait is what lets the request run before its load was seen done.
"""

from kvsan.model.designs._hicache_load_back import load_back

p, b = load_back(
    "sglang-hicache-load-back",
    title="HiCache load-back, fenced, layer by layer",
    reference="https://github.com/sgl-project/sglang/pull/36738",
    fenced=True,
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("proved", spare=("load acknowledged: needs=seen(load_done)",))
DESIGN = p.design()
