"""HiCache load-back without a fence: the load overwrites a block that a forward still reads (#36738)."""

from kvsan.model.designs._hicache_load_back import load_back

p, b = load_back(
    "sglang-hicache-load-back-unfenced",
    title="HiCache load-back, no fence",
    reference="https://github.com/sgl-project/sglang/pull/36738",
    fenced=False,
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", {"WAW layer -> load": 10, "WAR layer -> load": 12})
DESIGN = p.design()
