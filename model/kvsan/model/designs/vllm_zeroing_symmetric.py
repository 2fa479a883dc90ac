"""Symmetric barrier with zeroing of fresh load targets: the load waits for the wipe too."""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-zeroing-symmetric",
    title="zeroing, symmetric barrier",
    reference="https://github.com/vllm-project/vllm/pull/50696",
    load_after=["compute_done"],
    store_after=["compute_done"],
    zero_load_target=True,
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("proved")
DESIGN = p.design()
