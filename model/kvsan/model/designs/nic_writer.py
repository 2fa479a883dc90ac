"""A NIC writer on a host-quiescent pool: frees are held until the newest step was seen (what #45357 is for)."""

from kvsan.model.design import newest, retired
from kvsan.model.designs._nic_writer import nic_writer

p, b = nic_writer(
    "nic-writer",
    title="NIC writer, deferred frees",
    reference="https://github.com/vllm-project/vllm/pull/45357",
    free=retired(newest),
)
p.claims(
    "race-free",
    "right generation",
    "progress",
    "progress without other requests",
    "no vacuous wait",
    "host-quiescent",
)
p.expect("proved", quiescent=True)
DESIGN = p.design()
