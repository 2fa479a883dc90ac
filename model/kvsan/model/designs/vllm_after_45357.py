"""#45357 on top of #46278: frees on finish, abort and preempt are held until the newest step was seen.

The sliding window still frees blocks in mid-flight.
"""

from kvsan.model.design import newest, retired
from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-after-45357",
    title="deferred frees on completion and preemption",
    reference="https://github.com/vllm-project/vllm/pull/45357",
    load_after=[],
    store_after=["compute_done"],
    finish=retired(newest),
    preempt=retired(newest),
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", {"WAW forward -> load": 9, "WAR forward -> load": 13})
DESIGN = p.design()
