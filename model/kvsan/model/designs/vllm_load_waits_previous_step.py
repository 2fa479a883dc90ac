"""Loads wait for the event recorded *in front of* this step's forward, stores for the one behind it.

The load may run beside this step's forward: no step uses a block that a load of the same step writes. Not so if
the forward zeroes fresh load targets: `vllm-zeroing-previous-step`.
"""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-load-waits-previous-step",
    title="load waits for the previous step only",
    reference="https://github.com/vllm-project/vllm/issues/47282",
    load_after=["prev_done"],
    store_after=["compute_done"],
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("proved")
DESIGN = p.design()
