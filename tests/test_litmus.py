"""The litmus suite: every schedule with and without its edge, before the oracle and before kvsan itself.

The files and their language are described in litmus/README.md.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvsan.checker import check
from litmus.language import (
    PAIR_KINDS,
    SINGLE_KINDS,
    WARNING_KINDS,
    Case,
    Finding,
    LitmusError,
    expand,
    load,
    parse,
)
from oracle import truth

FOLDER = Path(__file__).parent / "litmus"
LITMUSES = [load(path) for path in sorted(FOLDER.glob("*.litmus"))]
CASES = [case for litmus in LITMUSES for case in litmus.cases.values()]

every_case = pytest.mark.parametrize("case", [pytest.param(c, id=f"{c.litmus}/{c.variant}") for c in CASES])

# What must be covered: schedules (notes on serving engines 3.1), bugs (on peers 2), names (on peers 9).
SCHEDULES = [f"P{n}" for n in (*range(1, 12), 13, 14, 15, 17, 18, 20, 22, 25, 26, 28, 29, 32)]
BUGS = [f"B{n}" for n in range(1, 16)]
NAMES = [
    "alloc-on-A-first-use-on-B",
    "any-order-source-read",
    "cancelled-or-preempted-request-reuses-blocks",
    "clear-pending-after-partial-join",
    "default-stream-two-devices",
    "dependent-copies-in-batch",
    "device-sync-of-other-device",
    "duplicate-destination-in-batch",
    "event-pool-recycle",
    "failed-copy-publishes-no-edge",
    "free-realloc-other-stream",
    "graph-replay-touches-block",
    "host-read-before-d2h-done",
    "host-slot-evicted-in-flight",
    "ipc-handle-ignored",
    "legacy-stream-vs-nonblocking",
    "load-over-live-reader",
    "pinned-source-rewritten",
    "poll-on-thread-A-reuse-on-thread-B",
    "poll-then-reuse",
    "re-record-before-wait",
    "store-before-compute-done",
    "temp-buffer-shared-by-two-streams",
    "timeline-value-satisfied-by-older-signal",
    "two-readers-then-writer",
    "wait-unrecorded",
    "work-after-record",
]


@every_case
def test_oracle_finds_exactly_what_is_expected(case: Case) -> None:
    found = truth(case.header, case.ops)
    label = {index: name for name, index in case.at.items()}
    findings = {
        Finding(pair.kind, pair.pool, pair.block, label[pair.earlier], label[pair.later], pair.reuse)
        for pair in found.pairs
    }
    for kind, singles in (("BATCH", found.batch), ("GEN", found.gen)):
        findings |= {Finding(kind, pool, block, None, label[op]) for op, pool, block in singles}
    assert described(findings) == described(case.findings)


@every_case
def test_kvsan_finds_exactly_what_is_expected(case: Case) -> None:
    document = check(case.header, case.ops, all_pairs=True).document()
    assert described(findings_of(document, case)) == described(case.findings)
    assert {warning["kind"] for warning in document["warnings"]} == case.warnings
    assert document["verdict"] == ("clean" if case.silent else "racy")
    assert document["ops"] == len(case.ops)


@every_case
def test_without_all_a_block_appears_at_its_first_racing_op(case: Case) -> None:
    document = check(case.header, case.ops).document()
    assert described(findings_of(document, case)) == described(at_first_racing_op(case))
    assert {warning["kind"] for warning in document["warnings"]} == case.warnings
    assert document["verdict"] == ("clean" if case.silent else "racy")


def described(findings: set[Finding] | frozenset[Finding]) -> list[str]:
    return sorted(map(str, findings))


def findings_of(document: dict[str, Any], case: Case) -> set[Finding]:
    """The hazards of a report by label and block; each once, its ops named as in the trace."""
    findings: list[Finding] = []
    for hazard in document["hazards"]:
        alone = hazard["kind"] in SINGLE_KINDS
        for end in [hazard["later"]] if alone else [hazard["earlier"], hazard["later"]]:
            op = case.ops[end["op"]]
            assert (end["label"], end["on"], end["by"]) == (op["label"], op.get("on"), op["by"])
        earlier = None if alone else hazard["earlier"]["label"]
        later, reuse = hazard["later"]["label"], not alone and hazard["reuse"]
        findings += [
            Finding(hazard["kind"], hazard["pool"], block, earlier, later, reuse) for block in expand(hazard["blocks"])
        ]
    assert max(Counter(findings).values(), default=1) == 1
    return set(findings)


def at_first_racing_op(case: Case) -> set[Finding]:
    """Of the expected findings those that are listed without --all."""
    kept: dict[tuple[str, int, str], Finding] = {}
    first: dict[tuple[str, int], int] = {}
    for finding in case.findings:
        block = finding.pool, finding.block
        first[block] = min(first.get(block, len(case.ops)), case.at[finding.later])
    for finding in sorted(case.findings, key=lambda f: -1 if f.earlier is None else case.at[f.earlier]):
        if case.at[finding.later] == first[finding.pool, finding.block]:
            kept[finding.pool, finding.block, finding.kind] = finding
    return set(kept.values())


# The suite itself.


def test_every_schedule_bug_and_name_is_covered_exactly_once() -> None:
    covered = Counter(subject for litmus in LITMUSES for subject in litmus.covers)
    assert covered == Counter(SCHEDULES + BUGS + NAMES)


def test_readme_lists_what_the_files_cover() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = {
        litmus: [cell.strip() for cell in subjects.split(",")]
        for subjects, litmus in re.findall(r"^\| ([^|]+) \| `([\w.-]+)\.litmus` \|", readme, re.MULTILINE)
    }
    assert listed == {litmus.name: list(litmus.covers) or ["–"] for litmus in LITMUSES}, (
        "README.md lists other files or subjects than the `covers` lines"
    )


def test_every_litmus_is_there_with_and_without_its_race() -> None:
    for litmus in LITMUSES:
        assert {case.silent for case in litmus.cases.values()} == {True, False}, litmus.name


def test_more_silent_cases_than_loud_ones() -> None:
    silent = sum(case.silent for case in CASES)
    assert silent > len(CASES) - silent


def test_every_op_and_warning_of_the_format_occurs() -> None:
    ops = [op for case in CASES for op in case.ops]
    assert {op["op"] for op in ops} == {
        *("access", "record", "wait", "sync", "poll", "put", "get"),
        *("alloc", "free", "touch", "drop"),
    }
    keys = {key for op in ops for key in op}
    assert keys >= {"on", "order", "step", "batch", "planned", "owner", "event", "stream", "device", "done"}
    assert {op["order"] for op in ops if "order" in op} == {"stream", "any", "call"}
    kinds = {s.get("kind", "nonblocking") for case in CASES for s in case.header["streams"].values()}
    assert kinds == {"nonblocking", "blocking", "legacy", "per-thread"}
    assert {finding.kind for case in CASES for finding in case.findings} == PAIR_KINDS | SINGLE_KINDS
    assert {warning for case in CASES for warning in case.warnings} == WARNING_KINDS


# The language.

PROLOGUE = "pool gpu 4\nstream s\n"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("h0: write on t writes gpu 1\nexpect: clean", 3, "stream 't' is not declared; declared: s"),
        ("h0: write on s writes cpu 1\nexpect: clean", 3, "pool 'cpu' is not declared; declared: gpu"),
        ("h0: write on s writes gpu 4\nexpect: clean", 3, "pool 'gpu' has blocks 0-3, not 4"),
        ("h0: write on s writes gpu one\nexpect: clean", 3, "'one' are no block ids"),
        ("h0: write on s wrties gpu 1\nexpect: clean", 3, "cannot read 'wrties gpu 1' of access 'write'"),
        ("h0: write on s\nexpect: clean", 3, "access 'write' touches no block"),
        ("h0: use reads gpu 1\nh0: use reads gpu 1\nexpect: clean", 4, "has two accesses 'use'"),
        ("h0: get job\nexpect: clean", 3, "token 'job' is not put before this line"),
        ("h0: put job\nh0: put job\nexpect: clean", 4, "token 'job' is put twice"),
        ("h0: use reads gpu 1 planned job\nexpect: clean", 3, "no earlier line is marked `as job`"),
        ("h0: record e\nexpect: clean", 3, "cannot read 'record e'"),
        ("stream t slow\nexpect: clean", 3, "cannot read stream 'slow'"),
        ("h0 use reads gpu 1\nexpect: clean", 3, "cannot read 'h0 use reads gpu 1'"),
        ("h0: use reads gpu 1", 1, "no `expect:` for the base variant"),
        ("[a] h0: use reads gpu 1\nexpect: clean", 3, "variant 'a' has no `expect a: ...`"),
        ("h0: use reads gpu 1\nexpect: clean\nexpect a: clean", 5, "no line is tagged with variant 'a'"),
        ("[a,-b] h0: use reads gpu 1\nexpect: clean", 3, "tag [a,-b] mixes"),
        ("h0: use reads gpu 1\nexpect: RAW gpu 1 use", 4, "cannot read expectation 'RAW gpu 1 use'"),
        ("h0: use reads gpu 1\nexpect: RAW gpu 1 make -> use", 4, "has no access 'make'"),
        ("h0: use reads gpu 1\nexpect: warn never-recorded", 4, "must expect either `clean` or hazards"),
        ("h0: use reads gpu 1\nexpect: clean; warn late", 4, "unknown warning 'late'"),
        ("h0: use reads gpu 1\nexpect: fine", 4, "cannot read expectation 'fine'"),
        ("h0: put job\nexpect: clean", 4, "variant 'base' has no access"),
    ],
)
def test_a_mistake_is_reported_with_file_and_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(LitmusError) as caught:
        parse(PROLOGUE + text, "wrong.litmus")
    assert str(caught.value).startswith(f"wrong.litmus:{line}: ")
    assert problem in str(caught.value)


def test_a_text_becomes_a_trace_for_each_variant() -> None:
    litmus = parse(
        """
        covers P1
        pool gpu 4
        pool cpu 4
        stream compute legacy dev 1
        stream store

        h0: forward on compute reads gpu 0-1 cpu 3 writes gpu 2 step 7
        h0: put job as plan
        [late] h0: record done on compute                       # a comment
        [-late] h0: store on store writes cpu 1 planned plan order any batch

        expect: clean
        expect late: clean; warn never-recorded
        """,
        "shape.litmus",
    )
    base, late = litmus.cases["base"], litmus.cases["late"]
    assert base.header == {
        "kvsan_trace": 1,
        "pools": {"gpu": 4, "cpu": 4},
        "streams": {"compute": {"kind": "legacy", "device": 1}, "store": {}},
        "litmus": "shape.litmus [base]",
    }
    forward = {"op": "access", "on": "compute", "label": "forward", "step": 7}
    store = {"op": "access", "on": "store", "label": "store"}
    assert base.ops == [
        {"t": 0, "by": "h0", **forward, "reads": {"gpu": "0-1", "cpu": "3"}, "writes": {"gpu": "2"}},
        {"t": 1000, "by": "h0", "op": "put", "token": "job"},
        {"t": 2000, "by": "h0", **store, "writes": {"cpu": "1"}, "planned": 1, "order": "any", "batch": True},
    ]
    assert late.ops[-1] == {"t": 2000, "by": "h0", "op": "record", "on": "compute", "event": "done"}
    assert late.warnings == {"never-recorded"}
