"""Load waits for the previous step, and the step zeroes fresh load targets: the wipe may come after the load
(#50696)."""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-zeroing-previous-step",
    title="zeroing, load waits for the previous step",
    reference="https://github.com/vllm-project/vllm/pull/50696",
    load_after=["prev_done"],
    store_after=["compute_done"],
    zero_load_target=True,
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", {"WAW zero -> load": 5})
p.note(
    """
    6 in the literature, which counts a record as an action of its own; here a record goes with the next
    action (one host thread, so nothing can come between).
    """
)
DESIGN = p.design()
