"""What kvsan's own engine runs if it is given no design: the symmetric barrier and settled frees.

Stores and loads wait for the forward launched last, and a block goes back only when no unseen step uses it. Each of the
two would do against the races of a load; together a free block is also one that the host knows at rest, so that it may
be given to what cannot wait for an event.
"""

from kvsan.model.design import last_use, retired
from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "kvsan-default",
    title="symmetric barrier and settled frees",
    reference="https://github.com/vllm-project/vllm/pull/47728",
    load_after=["compute_done"],
    store_after=["compute_done"],
    finish=retired(last_use),
    preempt=retired(last_use),
    slide=retired(last_use),
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect(
    "proved",
    quiescent=True,
    spare=(
        "load.after(compute_done)",
        "request finished: free=retired(last_use)",
        "preempt: free=retired(last_use)",
        "window slides past: free=retired(last_use)",
    ),
)
DESIGN = p.design()
