"""Deferral everywhere, and by mistake each load also records the shared event that stores wait for.

With one block alone this looks safe. *Another* block's load overwrites the event, and the store waits for the
load stream instead of for the forward. Why the proof has environment closure.
"""

from kvsan.model.design import newest, retired
from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "shared-event-trap",
    title="a load re-records the event that stores wait for",
    reference="https://github.com/vllm-project/vllm/pull/46278",
    load_after=[],
    store_after=["compute_done"],
    load_also_records=["compute_done"],
    finish=retired(newest),
    preempt=retired(newest),
    slide=retired(newest),
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", {"RAW forward -> store": 9}, quiescent=True)
p.note(
    """
    10 in the literature, which counts the record behind the forward as an action of its own.
    """
)
DESIGN = p.design()
