"""What a verdict does not cover: always said, and more if the design uses a feature that needs it."""

from __future__ import annotations

from kvsan.model.design import Design, Got, Seen

GENERAL = (
    "order comes from events, host waits and hand-offs; memory flags, external graph nodes and collectives are not"
    " modelled",
    "an operation is one interval; parts of a batch have no order among themselves and touch the block at most once",
    "a block is on one rank; order on other ranks follows only from what is in the design",
    "side streams do not synchronize with the legacy default stream",
    "the engine does what the design says: `kvsan check` holds a trace against the rules, not against the design",
)


def assumptions(design: Design) -> tuple[str, ...]:
    """The general ones, the design's own, and those that its features need."""
    out = [*GENERAL, *(f"stated by the design: {fact}" for fact in design.assumes)]
    per = {event.per for event in design.events}
    if "transfer" in per:
        out.append("an event per transfer is a fresh object, or a pooled one that returns only once complete")
    if "block" in per:
        out.append("an event per block is keyed by the physical block, not by a request or a slot of a table")
    if design.threads:
        out.append("a thread may take its jobs in any order; order argued from a first-in, first-out queue is not seen")
        out.append("one block has at most one job of a kind under way; two host calls interleave, they never overlap")
    if any(isinstance(need, Got) for rule in design.rules for need in rule.needs) and not any(
        isinstance(need, Seen) for rule in design.rules for need in rule.needs
    ):
        out.append("a completion list entry is taken at most once")
    if any(not stream.waits for stream in design.streams):
        out.append("what a NIC writes is complete when its completion is seen, and visible to the device at that time")
    if any(work.on is None for work in design.works()):
        out.append("a host access happens at its point of the program; pageable copies are not modelled")
    if any(work.order == "call" for work in design.works()):
        out.append("source order `call`: the driver has read the source when the call returns")
    if design.run_ahead == "any":
        out.append("run-ahead is unbounded in the proof; a schedule is shown with as little of it as needed, from 1 on")
    shared = [event.name for event in design.events if event.per == "design"]
    if shared:
        out.append(
            f"{', '.join(shared)}: one object, so another block's op may re-record it; that is part of the proof"
        )
    return tuple(out)
