"""Deferral on all three free paths and no barrier: the store still reads what was only counted as computed."""

from kvsan.model.design import newest, retired
from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-deferral-only",
    title="deferral everywhere, no barrier",
    reference="https://github.com/vllm-project/vllm/pull/47653",
    load_after=[],
    store_after=[],
    finish=retired(newest),
    preempt=retired(newest),
    slide=retired(newest),
)
p.claims("race-free", "right generation", "progress", "progress without other requests", "host-quiescent")
p.expect("refuted", {"RAW forward -> store": 8}, quiescent=True)
DESIGN = p.design()
