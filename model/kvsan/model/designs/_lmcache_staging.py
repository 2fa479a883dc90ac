"""LMCache's staging buffer: the host fills a pinned buffer, a copy on the load stream reads it, the buffer is
used again.

The tracked block is a slot of the staging buffer. The host's write happens at its point of the program; the
copy reads when it runs.
"""

from __future__ import annotations

from kvsan.model.design import BlockRef, Protocol, seen


def staging(name: str, *, title: str, reference: str, about: str = "", waits: bool) -> tuple[Protocol, BlockRef]:
    """`waits`: a slot goes back only after its copy was seen done."""
    p = Protocol(name, title=title, reference=reference, about=about, pool="staging")
    load = p.stream("load")
    load_done = p.event("load_done", per="transfer")

    b = p.block(slot="idle | wanted | filled | copying")
    free = p.free(b.slot.idle)

    with p.step():
        p.host.work("fill", writes=b.wanted, then=b.filled)
        load.copy_out(b.filled, then=b.copying, order="any", signals=load_done)

    with p.scheduler() as may:
        may("take a slot", when=free, then=b.wanted)
        may("give the slot back", when=b.copying, then=b.slot.idle, needs=seen(load_done) if waits else None)
    return p, b
