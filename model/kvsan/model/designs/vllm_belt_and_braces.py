"""Belt and braces: the symmetric barrier and deferral on all three free paths.

Either is enough. The load barrier can go, or each of the deferrals, one at a time; nothing else.
"""

from kvsan.model.design import newest, retired
from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-belt-and-braces",
    title="symmetric barrier and deferral",
    reference="https://github.com/vllm-project/vllm/pull/47653",
    load_after=["compute_done"],
    store_after=["compute_done"],
    finish=retired(newest),
    preempt=retired(newest),
    slide=retired(newest),
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect(
    "proved",
    quiescent=True,
    spare=(
        "load.after(compute_done)",
        "request finished: free=retired(newest)",
        "preempt: free=retired(newest)",
        "window slides past: free=retired(newest)",
    ),
)
DESIGN = p.design()
