"""The copy thread, with the source of a store unpinned when its job is merely queued."""

from kvsan.model.designs._copy_thread import copy_thread

p, b = copy_thread(
    "copier-unpinned-when-queued",
    title="copy thread, unpinned when queued",
    reference="https://github.com/vllm-project/vllm/pull/37160",
    load_waits=True,
    store_waits=True,
    store_pins_until="queued",
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect(
    "refuted",
    {
        "RAW forward -> store": 20,
        "WAR store -> forward": 20,
        "WAR store -> load": 26,
        "RAW load -> store": 27,
    },
    wrong_generation={"store": 17},
)
p.note(
    """
    22 in the literature (a prototype that was not kept): the same four kinds. Here records in a row and
    the end of a job are one action.
    """
)
DESIGN = p.design()
