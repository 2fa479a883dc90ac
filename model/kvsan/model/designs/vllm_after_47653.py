"""#45357 and #47653: the sliding window's frees are held too.

No load barrier is needed: a free block is one that the host has seen to rest. Such a pool may be handed to anyone.
"""

from kvsan.model.design import newest, retired
from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-after-47653",
    title="deferral on all three free paths",
    reference="https://github.com/vllm-project/vllm/pull/47653",
    load_after=[],
    store_after=["compute_done"],
    finish=retired(newest),
    preempt=retired(newest),
    slide=retired(newest),
)
p.claims("race-free", "right generation", "progress", "progress without other requests", "host-quiescent")
p.expect("proved", quiescent=True)
DESIGN = p.design()
