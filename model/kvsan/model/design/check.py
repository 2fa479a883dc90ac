"""What is wrong with a design before any proof: names, roles, events nobody records, jobs that a rule drops
unsaid.

The last one is a lesson: a queued job that is folded into the owner of a block vanishes when a rule changes the
owner, and the proof of what is left says "safe". So a rule that leaves a facet value which guards pending work
must say `cancels=`.
"""

from __future__ import annotations

from collections import Counter

from kvsan.model.design.guards import DesignError, asked, blocks, unknown
from kvsan.model.design.ir import Design
from kvsan.model.design.parts import MAIN, Block, Fence, Got, Mark, Retired, Rule, Seen, Submit, Work


def check(design: Design) -> None:
    """Raises `DesignError` with what to write instead."""
    _unique(design)
    _roles(design)
    _queues(design)
    _recorded(design)
    for rule in design.rules:
        _rule(design, rule)


def pending(design: Design) -> dict[str, frozenset[str]]:
    """For each item that is planned (it runs when its guard holds), the facets that plan it: those that its
    guard asks about and that it changes. `want_store` plans the store, which leaves `storing`."""
    out = {}
    planned: list[Work | Submit] = [*design.works(), *(item for item in design.step if isinstance(item, Submit))]
    for item in planned:
        if isinstance(item, Work) and item.every_step:
            continue
        guards = (item.when,) if isinstance(item, Submit) else (item.reads, item.writes)
        asks = frozenset().union(*(asked(guard) for guard in guards))
        out[item.name] = asks & {facet for facet, _ in item.then}
    return out


def _unique(design: Design) -> None:
    named = [item.name for item in design.step if not isinstance(item, Mark)]
    named += [job.name for thread in design.threads for job in thread.jobs]
    groups = {
        "stream": [s.name for s in design.streams],
        "event": [e.name for e in design.events],
        "queue": list(design.queues),
        "thread": [MAIN, *(t.name for t in design.threads)],
        "work": named,
        "rule": [r.name for r in design.rules],
        "facet": [f.name for f in design.facets],
    }
    for what, names in groups.items():
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise DesignError(f"{design.name}: two {what}s are called {twice[0]!r}; traces go by name")
        for name in names:
            if not name or not name.isprintable():  # the proof's own names begin with what cannot be printed
                raise DesignError(f"{design.name}: {name!r} is no name for a {what}: it is empty or cannot be printed")
    syncs = {item.name for item in design.step if isinstance(item, Block)}
    for rule in design.rules:
        if rule.name in syncs:
            raise DesignError(f"{design.name}: a sync and a rule are called {rule.name!r}, and so would be their edges")
    for facet in design.facets:
        if len(set(facet.values)) < len(facet.values) or not all(v.isidentifier() for v in facet.values):
            raise DesignError(
                f"{design.name}: facet {facet.name} has values {facet.values}; write distinct names, | between"
            )


def _roles(design: Design) -> None:
    events = [e.name for e in design.events]
    streams = {s.name: s for s in design.streams}
    steps = [e.name for e in design.events if e.per == "step"]
    if len(steps) > 1:
        raise DesignError(f"{design.name}: one event a step says that the host has seen it, not {' and '.join(steps)}")
    for work in design.works():
        if work.reads is None and work.writes is None and not work.every_step:
            raise DesignError(f"{work.name}: says neither reads= nor writes=")
        if work.on is not None and work.on not in streams:
            raise unknown("stream", work.on, streams)
        waits = work.on is not None and streams[work.on].waits
        if work.after and not waits:
            raise DesignError(
                f"{work.name}: {work.on or 'the host'} cannot wait for an event; the host must see it first (needs=)"
            )
        for event in (*work.after, *work.signals):
            if event not in events:
                raise unknown("event", event, events)
        for queue in filter(None, (work.takes, work.publishes)):
            if queue not in design.queues:
                raise unknown("queue", queue, design.queues)
        if work.on is None and (work.signals or work.order != "stream"):
            raise DesignError(f"{work.name}: what the host does itself is done when it returns; it signals nothing")
    for thread in design.threads:
        for job in thread.jobs:
            if job.every_step or job.takes is None:
                raise DesignError(f"{job.name}: a job of {thread.name} must say takes=, the queue that it comes from")
            submitted = [i for i in design.step if isinstance(i, Submit) and i.queue == job.takes]
            if not submitted:
                raise DesignError(f"{job.name}: nobody submits to {job.takes}")


def _queues(design: Design) -> None:
    """A queue holds one entry a block here: with two kinds in it, the later put would lend its knowledge to the
    earlier entry."""
    works = design.works()
    for queue in design.queues:
        put = [item.name for item in design.step if isinstance(item, Submit) and item.queue == queue]
        put += [work.name for work in works if work.publishes == queue]
        taken = [work.name for work in works if work.takes == queue]
        taken += ["a rule"] if taken and any(Got(queue) in rule.needs for rule in design.rules) else []
        for what, by in (("puts something in", put), ("takes something out of", taken)):
            if len(by) > 1:
                raise DesignError(
                    f"{design.name}: one queue carries one kind of job; each of {', '.join(by)} {what} {queue!r}."
                    " Write a queue for each kind"
                )


def _recorded(design: Design) -> None:
    recorded = {event for work in design.works() for event in work.signals}
    recorded |= {item.event for item in design.step if isinstance(item, Mark)}
    recorded |= {event for rule in design.rules for _, event in rule.records}
    used = {event: work.name for work in design.works() for event in work.after}
    used |= {i.event: i.name for i in design.step if isinstance(i, Block) and i.event is not None}
    used |= {n.event: rule.name for rule in design.rules for n in rule.needs if isinstance(n, Seen)}
    for event, by in used.items():
        if event not in recorded:
            raise DesignError(f"{by}: nobody records {event}; waiting for an event never recorded orders nothing")
    transfers = {event.name for event in design.events if event.per in ("block", "transfer")}
    for by, event in (
        *((rule.name, event) for rule in design.rules for _, event in rule.records),
        *((item.name, event) for item in design.step if isinstance(item, Submit) for event in item.creates),
    ):
        if event not in transfers:
            raise DesignError(
                f"{by}: {event} is one object for all blocks, and another block's rule would replace it;"
                " declare it per='block' or per='transfer'"
            )
    for item in design.step:
        if isinstance(item, Mark) and item.event in transfers:
            raise DesignError(
                f"{item.on}.record({item.event}): {item.event} is an event of one block or transfer, and a record"
                " between the works is for no block; say signals= at the work, or declare it without per="
            )
    every = [e for work in design.works() if work.every_step for e in work.signals]
    every += [item.event for item in design.step if isinstance(item, Mark)]
    if design.step_event is not None and (
        every.count(design.step_event) != 1
        or any(design.step_event in work.signals for work in design.works() if not work.every_step)
    ):
        raise DesignError(
            f"{design.name}: {design.step_event} is recorded once in every step, by a forward or a record"
        )
    fences = any(isinstance(n, Retired) for rule in design.rules for n in (*rule.needs, rule.free))
    if fences and design.step_event not in recorded:
        raise DesignError(
            f"{design.name}: retired(...) needs to know how the host sees a step: p.event(NAME, per='step'), and record"
            " it in the step behind all that the fence is meant to cover"
        )


def _rule(design: Design, rule: Rule) -> None:
    events, queues = [e.name for e in design.events], design.queues
    for need in rule.needs:
        if isinstance(need, Seen) and need.event not in events:
            raise unknown("event", need.event, events)
        if isinstance(need, Got) and need.queue not in queues:
            raise unknown("queue", need.queue, queues)
        if isinstance(need, Retired) and need.fence is not Fence.LAST_USE:
            raise DesignError(
                f"{rule.name}: only retired(last_use) can be needed; other fences hold a free: free={need}"
            )
    if rule.free is not None and len(rule.then) != 1:
        raise DesignError(f"{rule.name}: a held free changes one facet, and does so when the fence has been seen")
    known: list[Work | Submit] = [*design.works(), *(item for item in design.step if isinstance(item, Submit))]
    names = [item.name for item in known]
    for cancelled in rule.cancels:
        if cancelled not in names:
            raise unknown("work", cancelled, names)
    plans = pending(design)
    changes = {facet: value if rule.free is None else f"held:{value}" for facet, value in rule.then}
    for item in known:
        facets = plans.get(item.name, frozenset()) & changes.keys()
        if not facets or item.name in rule.cancels:
            continue
        guards = (item.when,) if isinstance(item, Submit) else (item.reads, item.writes)
        for block in blocks(design.facets, rule.when, *guards):
            due = item.when.holds(block) if isinstance(item, Submit) else any(item.mode(block))
            after = {**block, **changes}
            still = item.when.holds(after) if isinstance(item, Submit) else any(item.mode(after))
            if due and not still and rule.when.holds(block):
                guard = item.when if isinstance(item, Submit) else item.reads if item.writes is None else item.writes
                raise DesignError(
                    f"{rule.name}: drops {item.name!r}, which is due while {guard}; say cancels=[{item.name!r}],"
                    " or make the queued job a facet of its own"
                )
