"""The symmetric barrier (#47291, #47324, #50863): loads wait for this step's forward too.

Race-free with blocks freed at once. Not host-quiescent: a free block may still be in use on the device, so it
must not be handed to a NIC or to a stream that does not wait.
"""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-symmetric-barrier",
    title="symmetric barrier",
    reference="https://github.com/vllm-project/vllm/pull/47291",
    load_after=["compute_done"],
    store_after=["compute_done"],
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("proved", not_quiescent=5)
p.note("""The shortest way to a free block that the host does not know at rest has 5 actions here and 6 in the
    literature, where a record is an action of its own. With one host thread nothing can happen between a record and
    the action that follows it, so here the two go together: the forward's step is shorter by one.""")
DESIGN = p.design()
