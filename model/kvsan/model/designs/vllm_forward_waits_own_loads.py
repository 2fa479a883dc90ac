"""As `vllm-forward-waits-load-done`, but a forward waits only for the loads of blocks that it uses.

Not enough: a request that finishes after its store was planned is not in the next forward, which then waits for
nothing, and the store that waits for that forward reads a block still being loaded.
"""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-forward-waits-own-loads",
    title="forward waits for its own loads only",
    reference="https://github.com/vllm-project/vllm/issues/57104",
    load_after=["compute_done"],
    store_after=["compute_done"],
    runnable_before_load_done=True,
    forward_after=["load_done"],
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", {"RAW load -> store": 11})
p.note(
    """
    Not a row of the literature: the search found it while the one above was written down.
    """
)
DESIGN = p.design()
