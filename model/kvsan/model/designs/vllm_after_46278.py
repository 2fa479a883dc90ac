"""vLLM after #46278: stores wait for the forward, loads do not.

Still rare garbled text (#47282): a load overwrites a block that was freed while a forward in flight reads it.
The write-after-read is the one that was seen; the write-after-write is shorter, so a tool that stops at the
first race would not show it.
"""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-after-46278",
    title="SimpleCPUOffloadConnector after #46278",
    reference="https://github.com/vllm-project/vllm/issues/47282",
    load_after=[],
    store_after=["compute_done"],
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", {"WAW forward -> load": 9, "WAR forward -> load": 13})
DESIGN = p.design()
