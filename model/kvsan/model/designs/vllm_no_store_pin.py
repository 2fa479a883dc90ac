"""Symmetric barrier, and a block under a store may be freed and handed out."""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-no-store-pin",
    title="no pin while stored",
    reference="https://github.com/vllm-project/vllm/issues/45704",
    load_after=["compute_done"],
    store_after=["compute_done"],
    pinned_while_stored=False,
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect(
    "refuted",
    {"RAW load -> store": 11, "WAR store -> load": 11, "WAR store -> forward": 14},
    wrong_generation={"store": 10},
)
DESIGN = p.design()
