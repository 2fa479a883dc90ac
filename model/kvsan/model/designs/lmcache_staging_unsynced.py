"""LMCache's staging buffer when the event handed over is ignored: the host refills a slot that a copy still reads."""

from kvsan.model.designs._lmcache_staging import staging

p, b = staging(
    "lmcache-staging-unsynced",
    title="staging slots, the copy's event ignored",
    reference="https://github.com/LMCache/LMCache",
    waits=False,
)
p.claims("race-free", "right generation", "progress", "progress without other requests")
p.expect("refuted", {"WAR load -> fill": 9})
DESIGN = p.design()
