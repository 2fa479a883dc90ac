"""The copy thread, with the load's completion event visible to the poller before the thread has recorded it.

A query of an event that was never recorded says "done" (the draft of #37160).
"""

from kvsan.model.designs._copy_thread import copy_thread

p, b = copy_thread(
    "copier-event-visible-early",
    title="copy thread, event polled before it was recorded",
    reference="https://github.com/vllm-project/vllm/pull/37160",
    load_waits=True,
    store_waits=True,
    visible_once_queued=["load"],
)
p.claims("race-free", "right generation", "progress", "progress without other requests", "no vacuous wait")
p.expect(
    "refuted",
    {
        "RAW load -> forward": 12,
        "WAR forward -> load": 12,
        "WAW forward -> load": 14,
        "WAW load -> forward": 14,
        "RAW load -> store": 19,
        "WAR store -> load": 20,
    },
    wrong_generation={"load": 12},
)
DESIGN = p.design()
