"""The copy thread, symmetric barrier: the completion event is published after it was recorded.

The thread lags, so its wait may bind to a later record than the job's; on one stream a later record only covers more.
"""

from kvsan.model.designs._copy_thread import copy_thread

p, b = copy_thread(
    "copier-symmetric",
    title="copy thread, symmetric barrier",
    reference="https://github.com/vllm-project/vllm/pull/46278",
    load_waits=True,
    store_waits=True,
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect(
    "proved",
    spare=(
        "load finished: needs=got(loads)",
        "reap an aborted load: needs=got(loads)",
        "store finished: needs=got(stores)",
    ),
)
DESIGN = p.design()
