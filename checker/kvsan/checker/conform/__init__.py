"""Is a recorded run a run of this design, and has it at least the order that the design's proof used?

    from kvsan.checker.conform import conform
    with open_trace("run.jsonl.gz") as trace:
        print(conform(trace, load("vllm-symmetric-barrier")).text())

If so, what is proved of the design holds of the run, whatever the timing was. Two questions, op by op and block by
block (the proof is about one block, and so is this; `cells`, `steps`):

- **Is every op allowed?** An access is a work of the design by its label, on its stream, and does to a block what the
  design lets it do in some state that the block can be in. Which rule the scheduler used is not in a trace, so all
  states that it can have led to are kept; accesses, alloc, free and touch pin them down. Work that is due in a step is
  done in it. A rule that needs `seen(e)` asks that the scheduler's thread knows what `e` holds, `retired(...)` the same
  of a step's event, `got(queue)` a get of the block's own entry.
- **Is the order there?** Each device wait of the design (`after=`) must be in the trace, on the work's stream, in front
  of it, and hold at least what the design's event holds then; a wait that adds order between two of its streams which
  no edge gives is refused too (`edges`). Pasts are `kvsan.model.order`'s (`facts`, `world`). Source order: where the
  design says `stream` and the work waits for something, `any` is refused, since the wait does not order such a read;
  where the work waits for nothing there is nothing to lose, and `any` is accepted. More order than that is fine.

Read more leniently than the design is written, because it costs the proof nothing (`steps` says why): a forward may
leave out a running block, write a block over several steps until it counts as full (or nobody goes on with it), read
what it writes; a step may have no access of the forward. A helper thread may do the step's work if it was handed to it
(`facts`).

Not covered: who got the wrong generation (`kvsan check` finds it), a forward logged in parts of one pool, several
objects of one `design` event, a job that another block's put handed over, records under names that are not the
design's (their pasts are compared, their places are not), a sync of the host that the design does not ask for (never
extra: any engine looks at its steps). An event that the trace records under the design's name is held to its places.
The trace is read into memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvsan.checker.conform.facts import Facts
from kvsan.checker.conform.names import KINDS, NamesError, match, parse_maps
from kvsan.checker.conform.report import Conformance
from kvsan.checker.conform.run import Run
from kvsan.checker.conform.world import RefusalError
from kvsan.checker.coverage import Coverage
from kvsan.checker.trace import Trace
from kvsan.checker.trace.header import Header
from kvsan.model.design import Design, EdgeKind
from kvsan.model.ops import Access, Blocks, Op

__all__ = ["KINDS", "Conformance", "NamesError", "RefusalError", "conform", "conform_ops", "parse_maps"]


def conform(trace: Trace, design: Design, maps: Mapping[str, Mapping[str, str]] | None = None) -> Conformance:
    """Holds the trace against the design. `maps`: names of the trace to names of the design, by kind (`KINDS`).

    Raises `TraceError` if the trace cannot be read, `NamesError` if its names cannot be matched.
    """
    return conform_ops(trace.header, list(trace), design, maps, name=trace.name)


def conform_ops(
    header: Header,
    ops: Sequence[Op],
    design: Design,
    maps: Mapping[str, Mapping[str, str]] | None = None,
    *,
    name: str = "trace",
) -> Conformance:
    """`conform` for ops that are at hand. Raises `NamesError`."""
    coverage = Coverage()
    for op in ops:
        coverage.note(op)
    ops = _whole_copies(ops)
    names = match(design, header, ops, maps or {})
    found = Facts(ops, header.streams, names, design)
    run = Run(design, names, ops, found.agents, attached=header.attached)
    refusal, why = None, coverage.missing(header)
    try:
        for fact in found:
            run.take(fact)
        why += run.end()
    except RefusalError as error:
        refusal = error
    rules = tuple(rule.name for rule in design.rules if run.world.rules & run.blocks.bits[rule.name])
    works = {work.name: run.works[work.name] for work in design.works() if run.works[work.name]}
    if header.unseen.edges:
        why.append(f"{header.unseen.edges} edges were noticed and not logged")
    if not works:
        why.append(f"no work of the design touched a block of pool {names.pool}")
    if not rules:
        why.append("no rule of the design was exercised")
    waits = [edge.name for edge in design.edges if edge.kind is EdgeKind.WAIT]
    guarded = [work for work in design.works() if work.reads is not None or work.writes is not None]
    return Conformance(
        trace=name,
        design=design.name,
        ops=len(ops),
        works=works,
        edges=run.edges.used,
        rules=rules,
        unused_works=tuple(work.name for work in guarded if work.name not in works),
        unused_rules=tuple(rule.name for rule in design.rules if rule.name not in rules),
        unused_edges=tuple(name for name in waits if name not in run.edges.used),
        notes=names.notes,
        refusal=refusal,
        why=() if refusal is not None else tuple(why),
    )


def _whole_copies(ops: Sequence[Op]) -> list[Op]:
    """A batched copy that is logged in parts, since its blocks were decided at different ops (`kvsan.runtime.plans`),
    is one work: its last line stands for all, the lines before it for nothing.
    """
    out = list(ops)
    for at in range(1, len(out)):
        before, op = out[at - 1], out[at]
        if (
            isinstance(before, Access)
            and isinstance(op, Access)
            and before.batch
            and op.batch
            and before.planned is not None
            and op.step is not None
            and (before.by, before.on, before.label, before.step, before.order)
            == (op.by, op.on, op.label, op.step, op.order)
        ):
            reads, writes = (
                {pool: Blocks((*one.get(pool, EMPTY).runs, *two.get(pool, EMPTY).runs)) for pool in {**one, **two}}
                for one, two in ((before.reads, op.reads), (before.writes, op.writes))
            )
            out[at] = replace(op, reads=reads, writes=writes)
            out[at - 1] = replace(before, reads={}, writes={}, label="", batch=False)
    return out


EMPTY = Blocks(())
