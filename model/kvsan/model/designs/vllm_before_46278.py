"""vLLM before #46278: no device edge at all.

The scheduler counts tokens as computed when a step is launched, so a store may read a block whose forward has
not run; and a load may overwrite a block that a finished request's forward still uses. Public report: #45704.
"""

from kvsan.model.designs._simple_offload import simple_offload

p, b = simple_offload(
    "vllm-before-46278",
    title="SimpleCPUOffloadConnector before #46278",
    reference="https://github.com/vllm-project/vllm/issues/45704",
    load_after=[],
    store_after=[],
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", {"RAW forward -> store": 8, "WAW forward -> load": 9, "WAR forward -> load": 13})
DESIGN = p.design()
