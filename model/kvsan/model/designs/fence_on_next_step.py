"""Deferral with the *next* step to be launched as the fence.

Race-free, and a block never comes back if no further step is launched: allocate, finish, and nothing runs any more.
"""

from kvsan.model.design import next_step, retired
from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "fence-on-next-step",
    title="fence on a step that nobody may launch",
    reference="https://github.com/vllm-project/vllm/pull/45357",
    load_after=[],
    store_after=["compute_done"],
    finish=retired(next_step),
    preempt=retired(next_step),
    slide=retired(next_step),
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", stuck_closed=2, quiescent=True)
DESIGN = p.design()
