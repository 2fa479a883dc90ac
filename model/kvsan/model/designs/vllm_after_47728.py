"""#45357 and #47728: the window slides only over tokens whose step was seen ("settled").

The fix that was merged. It frees at once, but only what no unseen step uses.
"""

from kvsan.model.design import newest, retired
from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-after-47728",
    title="settled sliding window",
    reference="https://github.com/vllm-project/vllm/pull/47728",
    load_after=[],
    store_after=["compute_done"],
    finish=retired(newest),
    preempt=retired(newest),
    slide_settled=True,
)
p.claims("race-free", "right generation", "progress", "progress without other requests", "host-quiescent")
p.expect("proved", quiescent=True)
DESIGN = p.design()
