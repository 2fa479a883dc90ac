"""Transfers wait for an event of their own blocks, recorded behind each forward that uses the block.

More bookkeeping and more overlap than one event a step.
"""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-per-block-event",
    title="per-block events on both sides",
    reference="https://github.com/vllm-project/vllm/issues/47282",
    load_after=["used"],
    store_after=["used"],
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("proved")
DESIGN = p.design()
