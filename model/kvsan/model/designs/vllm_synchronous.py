"""No barrier, synchronous scheduling: the host sees each step before it launches the next.

Why the bug was only seen with asynchronous scheduling.
"""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-synchronous",
    title="no barrier, synchronous scheduling",
    reference="https://github.com/vllm-project/vllm/issues/45704",
    load_after=[],
    store_after=[],
    run_ahead=0,
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("proved")
DESIGN = p.design()
