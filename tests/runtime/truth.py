"""One seeded run and everything that is held against it: `test_truth.py` says what must come out."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import torch

from kvsan.checker.serving.lineage import Lineage, lies_in
from kvsan.checker.serving.observed import Observed, observe
from kvsan.checker.serving.trial import Trial, requests_for
from kvsan.checker.serving.witness import control, witness
from kvsan.model.designs import load, names
from kvsan.model.hazard import Hazard, Kind
from kvsan.runtime.device.policy import policy
from kvsan.runtime.device.simulated import Simulated
from kvsan.runtime.language import Group, Model
from kvsan.runtime.workload import Workload

MODEL = Model(groups=(Group("full"), Group("window", 16)), layers=2, block_size=4, stop_every=20)
SHORT = Workload(
    system_prompts=2,
    system_tokens=(8, 16),
    tail_tokens=(2, 12),
    new_tokens=(2, 8),
    longest=48,
    follow_ups=0.5,
)
POLICIES = ("fair", "starve:compute", "late", "early", "starve:load", "starve:compute", "starve:store", "lazy")
RACY = tuple(name for name in names() if (found := load(name).expected) is not None and found.verdict == "refuted")
NO_ORDER = (Kind.GEN, Kind.BATCH)


@dataclass
class Truth:
    """What was found. Every list must be empty; each entry names its seed."""

    counts: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)
    unshown: list[str] = field(default_factory=list)
    forced: list[str] = field(default_factory=list)
    uncontrolled: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    against_proof: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{count:7,} {what}" for what, count in sorted(self.counts.items())]
        for name in ("unexplained", "unshown", "forced", "uncontrolled", "differing", "against_proof"):
            got = getattr(self, name)
            lines += [f"{len(got):7,} {name}", *(f"        {one}" for one in got[:20])]
        return "\n".join(lines)


def one_thread() -> None:
    """Tensors are small: torch's threads would only wait for one another."""
    torch.set_num_threads(1)


def trial_of(seed: int) -> Trial:
    """Half of the runs are of any design, half of one that is known to race."""
    dice = random.Random(f"truth {seed}")
    known = names() if seed % 2 else RACY
    return Trial(
        design=load(known[seed // 2 % len(known)]),
        requests=dice.choice([8, 10]),
        concurrency=dice.choice([4, 5]),
        run_ahead=dice.choice([0, 1, 1, 2, 3]),
        seed=seed,
        policy=dice.choice(POLICIES),
        pressure=dice.choice([3.0, 5.0, 8.0]),
        host_pressure=dice.choice([1.0, 2.0]),
        lazy=dice.random() < 0.2,
        aborts=dice.choice([0.0, 0.15, 0.3]),
        model=MODEL,
        workload=SHORT,
    )


def hold_to_truth(seed: int, found: Truth, *, pairs: int, schedules: int) -> Observed:
    """Does it all to one seed: at most so many pairs are replayed, and so many schedules of a run without report."""
    trial = trial_of(seed)
    served = requests_for(trial)
    run = observe(trial, Simulated(seed=seed, policy=policy(trial.policy), observe=True), served)
    assert trial.design is not None
    name = f"seed {seed}, {trial.design.name}, {trial.policy}"
    hazards = run.report.hazards
    found.counts["runs"] += 1
    found.counts["runs with a report"] += bool(hazards)
    found.counts["runs with a garbled completion"] += bool(run.garbled)
    found.counts["completions"] += len(run.done)
    found.counts["garbled completions"] += len(run.garbled)
    found.counts["runs that got stuck (the design says so)"] += bool(run.stuck)
    _proof(run, name, found)
    lineage = Lineage(run) if run.garbled else None
    for request in run.garbled:
        assert lineage is not None
        places = lineage.of(request)
        mine = [hazard for hazard in hazards if lies_in(hazard, run, places)]
        if not mine:
            found.unexplained.append(f"{name}: request {request}")
        found.counts["garbled completions by way of the host pool alone"] += bool(mine) and not any(
            _met(hazard, run, request) for hazard in mine
        )
    real = [hazard for hazard in hazards if hazard.kind not in NO_ORDER]
    found.counts["pairs reported"] += len(real)
    found.counts["reports that need no order (GEN, BATCH)"] += len(hazards) - len(real)
    dice = random.Random(f"pairs {seed}")
    for hazard in dice.sample(real, min(pairs, len(real))):
        what = f"{name}: {hazard.kind} op {hazard.earlier.op} ({hazard.earlier}), op {hazard.later.op} ({hazard.later})"
        shown = witness(run, hazard, served)
        found.counts["pairs replayed"] += 1
        found.counts[f"pairs replayed, {hazard.kind}"] += 1
        if shown.forced is not None:
            found.forced.append(f"{what}: {shown.forced.why}")
        elif not shown.shown:
            found.unshown.append(what)
        if shown.turned and dice.random() < 0.25:
            found.counts["controls"] += 1
            if control(run, hazard, served).turned:
                found.uncontrolled.append(what)
    if not hazards:
        found.counts["runs without a report"] += 1
        for at in range(schedules):
            other = POLICIES[at % len(POLICIES)]
            device = Simulated(seed=at, policy=policy(other), host=run.schedule.host, observe=True)
            again = observe(trial, device, served)
            found.counts["other schedules of runs without a report"] += 1
            if again.answers != run.answers or again.garbled:
                found.differing.append(f"{name}: under {other}, seed {at}")
    return run


def _met(hazard: Hazard, run: Observed, request: int) -> bool:
    """Whether a forward read a block of the hazard for the request, as one of the two accesses."""
    ops = {run.numbers[hazard.later.op], run.numbers[hazard.earlier.op]}
    blocks = set(hazard.blocks)
    return hazard.pool == "gpu" and any(
        row.request == request and blocks & set(row.reads) for op in ops if op in run.rows for row in run.rows[op]
    )


def _proof(run: Observed, name: str, found: Truth) -> None:
    """What is proved of a design holds of its runs."""
    design = run.trial.design
    assert design is not None
    if design.name in RACY:
        return
    expected = design.expected
    assert expected is not None
    allowed = {"GEN"} if expected.wrong_generation else set[str]()
    kinds = {hazard.kind.value for hazard in run.report.hazards}
    if kinds - allowed:
        found.against_proof.append(f"{name}: {kinds}")
