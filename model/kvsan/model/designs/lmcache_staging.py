"""LMCache's staging buffer as it must be: a slot is given back when the event of its copy was seen done."""

from kvsan.model.designs._lmcache_staging import staging

p, b = staging(
    "lmcache-staging",
    title="staging slots, given back when the copy was seen done",
    reference="https://github.com/LMCache/LMCache",
    waits=True,
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
