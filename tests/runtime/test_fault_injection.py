"""Faults in the engine (`faults.py`) under designs that are proved: `conform` or `check` catches each of them.

A draw is a seed, a class and one of the places where it can happen in that run. A draw from which nothing comes
is no fault (`harmless`). A few here; 200 seeds a class behind `sweep`, with the table as output.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import takewhile

import pytest

pytest.importorskip("torch")

from kvsan.checker.conform import conform_ops
from kvsan.checker.serving.observed import Observed, observe
from kvsan.checker.serving.trial import requests_for
from kvsan.model.design import Retired
from kvsan.model.designs import load, names
from kvsan.model.ops import Access, Record
from kvsan.runtime.device.policy import policy
from kvsan.runtime.device.simulated import Simulated
from runtime.faults import KINDS, Fault, Faulty, Kind, harmless
from runtime.truth import one_thread, trial_of

SAFE = (
    "vllm-symmetric-barrier",
    "copier-symmetric",
    "kvsan-default",
    "vllm-after-47728",
    "vllm-per-block-event",
    "copier-deferral",
)
OTHERS = {
    "host-blocks": "its run has the device pool's waits too, which this design does not know",
}


def ran(design: str, seed: int, fault: Fault | None) -> Observed:
    trial = replace(trial_of(2 * seed + 1), design=load(design), policy="fair", run_ahead=1 + seed % 2)
    device = Simulated(seed=seed, policy=policy("fair"), observe=True)
    if fault is None:
        return observe(trial, device, requests_for(trial))
    return observe(trial, device, requests_for(trial), wrap=lambda inner: Faulty(inner, fault), tinker=fault.tinker)


def caught(kind: Kind, seed: int) -> tuple[str, str]:
    """By what, and the details."""
    one_thread()
    name = SAFE[seed % len(SAFE)]
    design = load(name)
    retires = any(rule.free is not None for rule in design.rules) or any(
        isinstance(need, Retired) for rule in design.rules for need in rule.needs
    )
    given = {"kind": kind, "threads": bool(design.threads), "retires": retires}
    counted = Fault(site=-1, **given)  # type: ignore[arg-type]
    clean = ran(name, seed, counted)
    control = conform_ops(clean.header, clean.lines, design)
    assert control.verdict == "conforms", f"{name}, seed {seed}, without a fault: {control.text()}"
    assert not clean.report.hazards
    if not counted.sites:
        return "no site", ""
    fault = Fault(site=random.Random(f"{kind} {seed}").randrange(counted.sites), **given)  # type: ignore[arg-type]
    run = ran(name, seed, fault)
    if harmless(fault, clean.lines, run.lines):
        return "no fault", ""
    refused = conform_ops(run.header, run.lines, design).verdict == "refused"
    racy = bool(run.report.hazards)
    what = f"seed {seed}, {name}, site {fault.site} of {counted.sites}"
    return {(1, 1): "both", (1, 0): "conform", (0, 1): "check", (0, 0): "nothing"}[refused, racy], what


def table(seeds: range, kinds: tuple[Kind, ...] = KINDS) -> tuple[dict[Kind, Counter[str]], list[str]]:
    rows: dict[Kind, Counter[str]] = {kind: Counter() for kind in kinds}
    missed = []
    for kind in kinds:
        for seed in seeds:
            by, what = caught(kind, seed)
            rows[kind][by] += 1
            if by == "nothing":
                missed.append(f"{kind}: {what}")
    columns = ("conform", "check", "both", "nothing", "no fault", "no site")
    print("\n| fault | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for kind, row in rows.items():
        print(f"| {kind} | " + " | ".join(str(row[column]) for column in columns) + " |")
    return rows, missed


@pytest.mark.parametrize("name", [name for name in names() if name not in OTHERS])
def test_a_run_conforms_to_its_design(name: str) -> None:
    run = ran(name, 1, None)
    found = conform_ops(run.header, run.lines, load(name))
    assert found.verdict == "conforms", found.text()


@pytest.mark.parametrize(
    ("name", "seed"),
    [("vllm-per-block-event", 10), ("vllm-per-block-event", 22), *(("layer-wise", seed) for seed in (0, 2, 3, 177))],
)
def test_other_runs_conform_too(name: str, seed: int) -> None:
    """Windows that slide within a chunk, requests that are given up with a block half filled, a full host pool."""
    run = ran(name, seed, None)
    found = conform_ops(run.header, run.lines, load(name))
    assert found.verdict == "conforms", found.text()


@pytest.mark.parametrize("seed", [1, 4, 10])
def test_a_block_has_an_event_of_the_forwards_that_touch_it_and_of_no_other(seed: int) -> None:
    lines = ran("vllm-per-block-event", seed, None).lines
    forwards = 0
    for at, op in enumerate(lines):
        if isinstance(op, Access) and op.label == "forward":
            behind = takewhile(lambda one: isinstance(one, Record), lines[at + 1 :])
            events = {one.event for one in behind if isinstance(one, Record) and one.event.startswith("used#")}
            touched = {*op.reads.get("gpu", ()), *op.writes.get("gpu", ())}
            assert events == {f"used#{block}" for block in touched}, f"seed {seed}, op {at}"
            forwards += 1
    assert forwards > 20


def test_each_fault_is_caught() -> None:
    rows, missed = table(range(6))
    assert not missed
    assert all(sum(row.values()) > row["no fault"] + row["no site"] for row in rows.values())


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_is_caught_over_200_seeds(kind: Kind) -> None:
    _, missed = table(range(200), (kind,))
    assert not missed
