"""Symmetric barrier, and the blocks of an aborted load are freed at once."""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-aborted-load-freed",
    title="aborted load freed at once",
    reference="https://github.com/vllm-project/vllm/issues/47282",
    load_after=["compute_done"],
    store_after=["compute_done"],
    hold_aborted_load=False,
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", {"WAW load -> forward": 9, "RAW load -> forward": 13, "RAW load -> store": 15})
DESIGN = p.design()
