"""Symmetric barrier, but a request runs before its load was polled done."""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-runnable-before-load-done",
    title="runnable before load_done",
    reference="https://github.com/vllm-project/vllm/issues/57104",
    load_after=["compute_done"],
    store_after=["compute_done"],
    runnable_before_load_done=True,
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", {"RAW load -> forward": 8, "WAW load -> forward": 10, "RAW load -> store": 10})
DESIGN = p.design()
