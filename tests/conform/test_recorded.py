"""The recorded runs of vLLM 0.23.0 against every design of the catalogue, and against variants of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from kvsan.checker import Racy, check
from kvsan.checker.conform import Conformance, NamesError, conform_ops
from kvsan.checker.demo import recorded
from kvsan.checker.trace import open_trace
from kvsan.checker.trace.header import Header
from kvsan.checker.trace.writer import op_document
from kvsan.model.design import Design, EdgeKind, Work
from kvsan.model.design.parts import Edge
from kvsan.model.designs import load, names
from kvsan.model.ops import Access, Get, Op, Poll, Put, Record, Wait

RUNS = ("none", "none-graphs", "store", "load", "all", "fixed")
GOLDEN = Path(__file__).parents[1] / "golden"
GOTS = tuple(
    Edge(EdgeKind.NEED, rule, need)
    for rule, need in (
        ("load finished", "got(loads)"),
        ("reap an aborted load", "got(loads)"),
        ("store finished", "got(stores)"),
    )
)


@cache
def run(name: str) -> tuple[Header, Sequence[Op]]:
    with recorded(name) as path, open_trace(path) as trace:
        return trace.header, tuple(trace)


def held(name: str, design: Design, ops: Sequence[Op] | None = None) -> Conformance:
    header, own = run(name)
    return conform_ops(header, own if ops is None else ops, design, name=name)


def any_order(design: Design) -> Design:
    """The design with its store's source given away."""
    step = tuple(replace(item, order="any") if isinstance(item, Work) and item.name == "store" else item
                 for item in design.step)  # fmt: skip
    return replace(design, step=step, expected=None)


# ── the matrix ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", RUNS)
def test_every_design_of_the_catalogue(name: str, request: pytest.FixtureRequest) -> None:
    lines = []
    for design in names():
        try:
            found = held(name, load(design))
            lines.append(f"{design}: {found.verdict}{f': {found.refusal}' if found.refusal else ''}")
        except NamesError as error:
            lines.append(f"{design}: bad input: {error}")
    assert all(line.isprintable() for line in lines)
    path = GOLDEN / f"conform-{name}.txt"
    words = "\n".join(lines) + "\n"
    if request.config.getoption("--golden"):
        path.write_text(words)
    assert words == path.read_text(), f"{path} differs; if the new words are meant: pytest --golden"


@pytest.mark.parametrize(
    ("name", "design"),
    [("none", "vllm-before-46278"), ("none-graphs", "vllm-before-46278"), ("fixed", "vllm-symmetric-barrier")],
)
def test_what_each_run_follows(name: str, design: str) -> None:
    found = held(name, load(design))
    assert found.verdict == "conforms", found.line()
    assert found.works == {"forward": 267, "load": 16, "store": 175}
    assert set(found.unused_rules) == {"abort a load", "reap an aborted load"}


@pytest.mark.parametrize(
    ("name", "design", "op", "why"),
    [
        ("store", "vllm-before-46278", 37, "store: extra wait"),
        ("load", "vllm-before-46278", 1754, "load: extra wait"),
        ("all", "vllm-before-46278", 37, "store: extra wait"),
        ("fixed", "vllm-before-46278", 37, "store: extra wait"),
        ("none", "vllm-after-46278", 36, "store.after(compute_done): missing wait"),
        ("store", "vllm-after-46278", 39, "store.after(compute_done): source order any"),
        ("load", "vllm-after-46278", 36, "store.after(compute_done): missing wait"),
        ("all", "vllm-after-46278", 39, "store.after(compute_done): source order any"),
        ("fixed", "vllm-after-46278", 1913, "load: extra wait"),
        ("none", "vllm-symmetric-barrier", 36, "store.after(compute_done): missing wait"),
        ("store", "vllm-symmetric-barrier", 39, "store.after(compute_done): source order any"),
        ("load", "vllm-symmetric-barrier", 36, "store.after(compute_done): missing wait"),
        ("all", "vllm-symmetric-barrier", 39, "store.after(compute_done): source order any"),
        ("fixed", "vllm-load-waits-previous-step", 1913, "load: extra wait"),
        ("fixed", "vllm-both-wait-previous-step", 135, "store: extra wait"),
        ("fixed", "vllm-after-47653", 46, "one step early"),
        ("none", "vllm-synchronous", 101, "run_ahead=0"),
    ],
)
def test_what_it_does_not_follow_is_one_line(name: str, design: str, op: int, why: str) -> None:
    found = held(name, load(design))
    assert found.refusal is not None
    assert found.refusal.op == op
    assert why in found.line()
    assert "\n" not in found.line()


LOAD = Edge(EdgeKind.WAIT, "load", "compute_done")
STORE = Edge(EdgeKind.WAIT, "store", "compute_done")


@pytest.mark.parametrize(
    ("name", "design"),
    [
        ("load", load("vllm-before-46278").adding(LOAD)),
        ("store", any_order(load("vllm-after-46278"))),
        ("store", any_order(load("vllm-symmetric-barrier").without(LOAD))),
        ("all", any_order(load("vllm-symmetric-barrier"))),
        ("none", load("vllm-symmetric-barrier").without(LOAD, STORE)),
        ("fixed", load("vllm-before-46278").adding(LOAD, STORE)),
        ("fixed", any_order(load("vllm-symmetric-barrier"))),  # more order than asked for
        ("fixed", load("copier-symmetric").without(*GOTS)),  # one load is synced and its entry never taken
        ("none", load("copier-symmetric").without(LOAD, STORE, *GOTS)),
    ],
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_a_variant_that_it_follows(name: str, design: Design) -> None:
    found = held(name, design)
    assert found.verdict == "conforms", found.line()


# ── faults put into the recorded runs ─────────────────────────────────────────────────────────────────────────────────


def where(ops: Sequence[Op], which: Callable[[Op], bool]) -> list[int]:
    return [i for i, op in enumerate(ops) if which(op)]


def some(found: list[int], many: int = 3) -> list[int]:
    """The first, the last and some between."""
    return sorted({found[i * (len(found) - 1) // (many - 1)] for i in range(many)})


def caught(design: Design, ops: Sequence[Op]) -> Conformance:
    """Refused; what it was refused with is for the caller to look at."""
    found = held("fixed", design, ops)
    assert found.refusal is not None, found.line()
    return found


def test_any_one_wait_dropped() -> None:
    _, ops = run("fixed")
    design = load("vllm-symmetric-barrier")
    for stream in ("load", "store"):
        for i in some(where(ops, lambda op, on=stream: isinstance(op, Wait) and op.on == on)):  # type: ignore[misc]
            assert "missing wait" in caught(design, [*ops[:i], *ops[i + 1 :]]).line()


def test_a_record_in_front_of_its_forward() -> None:
    _, ops = run("fixed")
    awaited = {op.event for op in ops if isinstance(op, Wait) and op.on in ("load", "store")}
    forwards = where(ops, lambda op: isinstance(op, Access) and op.label == "forward")
    tried = 0
    for i in some(forwards, 8):
        after = ops[i + 1]
        if not (isinstance(after, Record) and after.event in awaited and isinstance(ops[i + 2], Put)):
            continue
        found = caught(load("vllm-symmetric-barrier"), [*ops[:i], after, ops[i], *ops[i + 2 :]])
        assert "missing wait" in found.line()
        tried += 1
    assert tried > 2


def test_a_source_read_out_of_order() -> None:
    _, ops = run("fixed")
    for i in some(where(ops, lambda op: isinstance(op, Access) and op.label == "store")):
        op = ops[i]
        assert isinstance(op, Access)
        assert (
            "source order any"
            in caught(load("vllm-symmetric-barrier"), [*ops[:i], replace(op, order="any"), *ops[i + 1 :]]).line()
        )


def test_a_block_freed_before_its_store_was_seen() -> None:
    """The polls of stores go: the first free of a block that was stored comes early."""
    _, ops = run("fixed")
    stores = {op.event for op in ops if isinstance(op, Record) and op.on == "store"}
    tokens = where(ops, lambda op: isinstance(op, Get) and op.by == "h0")
    gone = {i for i, op in enumerate(ops) if isinstance(op, Poll) and op.event in stores} | set(tokens)
    found = caught(load("vllm-symmetric-barrier"), [op for i, op in enumerate(ops) if i not in gone])
    assert "'store finished' needs a poll or sync of store_done" in found.line()
    assert " free gpu " in found.line()


def test_an_entry_published_before_its_record() -> None:
    """Only a design that has the thread says where it publishes."""
    _, ops = run("fixed")
    design = load("copier-symmetric").without(*GOTS)
    for i in some(where(ops, lambda op: isinstance(op, Put) and op.by == "h1")):
        if isinstance(ops[i - 1], Record):
            found = caught(design, [*ops[: i - 1], ops[i], ops[i - 1], *ops[i + 1 :]])
            assert "expected behind op" in found.line()


def test_what_is_clean_and_what_conforms_are_two_questions() -> None:
    """`load` conforms to a design that is unsafe, and the run is racy; `fixed` is clean, and no run of that design."""
    header, ops = run("load")
    assert held("load", load("vllm-before-46278").adding(LOAD)).verdict == "conforms"
    assert isinstance(check(header.document(), [op_document(op) for op in ops]).verdict, Racy)
    assert held("fixed", load("vllm-after-46278")).verdict == "refused"
