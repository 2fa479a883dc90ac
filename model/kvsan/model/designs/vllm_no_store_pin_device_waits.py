"""No pin while stored, and forward and load wait on the device for the block's store.

Fences do not mend a plan for the wrong generation: a planned store reads the next owner's data.
"""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-no-store-pin-device-waits",
    title="no pin, device waits instead",
    reference="https://github.com/vllm-project/vllm/issues/45704",
    load_after=["compute_done", "store_done"],
    store_after=["compute_done"],
    forward_after=["store_done"],
    pinned_while_stored=False,
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", {"RAW load -> store": 11}, wrong_generation={"store": 10})
DESIGN = p.design()
