"""`make demo`: the main job on real input. Six runs of an unmodified vLLM 0.23.0 on an H200, nothing garbled in any
of them.

Each run had other fences between compute and the two copy streams (the trace's header says which). The table counts
unordered conflicting pairs; that it bisects the fences is what a public bug report took two rounds of fixes to find
out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

from kvsan.checker.explain import explain
from kvsan.checker.judge import check
from kvsan.checker.report import picture
from kvsan.checker.report.page import Page
from kvsan.checker.trace import open_trace
from kvsan.model.hazard import Kind

RUNS = {
    "none": "no fence (vLLM 0.23.0)",
    "none-graphs": "no fence, CUDA graphs",
    "store": "store waits for compute",
    "load": "load waits for compute",
    "all": "both wait",
    "fixed": "both wait, stores in stream order",
}
KINDS = (Kind.RAW, Kind.WAR, Kind.WAW)


@contextmanager
def recorded(run: str) -> Iterator[Path]:
    """The path of a recorded trace that the package carries."""
    with as_file(files("kvsan.checker") / "data" / "traces" / f"vllm-0.23.0-{run}.jsonl.gz") as path:
        yield path


def run(width: int, *, colour: bool = False) -> None:
    """Prints the table and the explanation of the first WAR of the `store` run."""
    page = Page(width, colour=colour)
    page.title("kvsan check on six runs of vLLM 0.23.0 with KV offload, one H200, 80 requests each, no run garbled")
    page.blank()
    page.line("Pairs of accesses to one GPU block that nothing orders, by fence and hazard:")
    rows = []
    for name, fence in RUNS.items():
        row = [name, fence]
        for assume in (False, True):
            with recorded(name) as path:
                totals = check(path, all_pairs=True, assume_stream_order=assume).totals()
            counts = [sum(n for (kind, *_), n in totals.items() if kind == wanted) for wanted in KINDS]
            row += [f"{n:,}" if n else "-" for n in counts]
        rows.append(row)
    head = ["run", "fences", *(kind.value for kind in KINDS), *(f"{kind.value}*" for kind in KINDS)]
    page.table(head, rows, right=range(2, 8))
    page.line(
        "* with --assume-stream-order, for who trusts the copy engine to read its source in stream order although "
        "the call allows any order. Then each fence removes just its own hazards: the load side is the one that "
        "was missing.",
        2,
    )
    with recorded("store") as path:
        report = check(path, all_pairs=True, assume_stream_order=True)
        war = next(hazard for hazard in report.hazards if hazard.kind is Kind.WAR)
        found = explain(lambda: open_trace(path), war.earlier.op, war.later.op, assume_stream_order=True)
    page.blank()
    page.title(f"The first WAR of the run `store`, explained (kvsan explain TRACE {war.earlier.op} {war.later.op})")
    page.line(
        f"The forward of step {war.earlier.step} reads GPU block {war.blocks}. While it is in flight the scheduler "
        f"frees the block (op {war.freed}) and hands it out again (op {war.allocated}); the load then overwrites it. "
        f"Nothing makes the load stream wait for that forward.",
        2,
    )
    page.blank()
    print(page)
    print(picture.render(found, width, colour=colour))


if __name__ == "__main__":
    from kvsan.checker.cli import cli

    cli(["demo"])
