"""Both transfers wait for the previous step only: a block is stored one step after it was filled at the earliest."""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-both-wait-previous-step",
    title="both wait for the previous step only",
    reference="https://github.com/vllm-project/vllm/issues/47282",
    load_after=["prev_done"],
    store_after=["prev_done"],
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("proved")
DESIGN = p.design()
