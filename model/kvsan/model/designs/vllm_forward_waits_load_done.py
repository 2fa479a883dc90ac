"""A request runs before its load was polled done, and every forward waits on the device for all loads so far."""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-forward-waits-load-done",
    title="forward waits for the loads on the device",
    reference="https://github.com/vllm-project/vllm/issues/57104",
    load_after=["compute_done"],
    store_after=["compute_done"],
    runnable_before_load_done=True,
    forward_after=["loads_done"],
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("proved", spare=("reap an aborted load: needs=seen(load_done)",))
DESIGN = p.design()
