"""A NIC writer with blocks freed at once: it overwrites a block that a forward in flight still uses. No fence
can mend it."""

from kvsan.model.design import now
from kvsan.model.designs._nic_writer import nic_writer

p, b = nic_writer(
    "nic-writer-immediate-free",
    title="NIC writer, blocks freed at once",
    reference="https://github.com/vllm-project/vllm/pull/45357",
    free=now,
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", {"WAW forward -> nic": 9, "WAR forward -> nic": 13})
DESIGN = p.design()
