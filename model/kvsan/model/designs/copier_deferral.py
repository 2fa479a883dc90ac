"""The copy thread, with deferral instead of the load barrier."""

from kvsan.model.design import newest, retired
from kvsan.model.designs._copy_thread import copy_thread

p, b = copy_thread(
    "copier-deferral",
    title="copy thread, deferral",
    reference="https://github.com/vllm-project/vllm/pull/47653",
    load_waits=False,
    store_waits=True,
    free=retired(newest),
)
p.claims("race-free", "right generation", "progress", "progress without other requests", "host-quiescent")
p.expect(
    "proved",
    quiescent=True,
    spare=(
        "load finished: needs=got(loads)",
        "reap an aborted load: needs=got(loads)",
        "store finished: needs=got(stores)",
    ),
)
DESIGN = p.design()
