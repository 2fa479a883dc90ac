"""Certificates: z3 confirms them, rejects them when anything is missing or wrong, and notices when either reading of
the rules is broken.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from types import ModuleType

import pytest

from kvsan.model.design import Claim
from kvsan.model.designs import load, names
from kvsan.model.ops import Access
from kvsan.model.order import Issued, Order
from kvsan.model.pasts import Agent
from kvsan.model.proof import (
    Certificate,
    Clause,
    InternalError,
    MissingSolverError,
    Proved,
    Refuted,
    verify,
)
from kvsan.model.proof.certify import certify
from kvsan.model.proof.recheck import Checked, Rejected, Unchecked, recheck
from kvsan.model.proof.solver import solver
from kvsan.model.proof.table import tabulate
from model.random_designs import random_design

recheck_module: ModuleType = sys.modules["kvsan.model.proof.recheck"]
transfer_module: ModuleType = sys.modules["kvsan.model.proof.transfer"]


def race_free(name: str) -> bool:
    expected = load(name).expected
    return expected is not None and not expected.races


FREE = [name for name in names() if race_free(name)]
LARGE = ("copier-deferral",)


@cache
def certificate(name: str) -> Certificate:
    expected = load(name).expected
    return certify(load(name), quiescent=expected is not None and expected.quiescent)


def without(whole: Certificate, at: int) -> Certificate:
    return replace(whole, clauses=whole.clauses[:at] + whole.clauses[at + 1 :])


@pytest.mark.parametrize("name", FREE)
def test_a_design_without_races_has_a_certificate_that_z3_confirms(name: str) -> None:
    verdict = verify(load(name), certify=True)
    assert isinstance(verdict, Proved | Refuted)
    assert verdict.unchecked == ()
    assert verdict.times == ()
    assert verdict.certificate is not None
    assert ("host-quiescent" in verdict.certificate.proves) == (
        Claim.HOST_QUIESCENT in load(name).claims and verdict.findings.not_quiescent is None
    )


@pytest.mark.parametrize("name", FREE)
def test_a_certificate_without_one_of_its_clauses_is_rejected(name: str) -> None:
    whole = certificate(name)
    for at in range(0, len(whole.clauses), 6 if name in LARGE else 1):
        assert isinstance(recheck(load(name), without(whole, at)), Rejected), whole.clauses[at]


@pytest.mark.sweep
@pytest.mark.parametrize("name", LARGE)
def test_a_large_certificate_without_one_of_its_clauses_is_rejected(name: str) -> None:
    whole = certificate(name)
    for at in range(len(whole.clauses)):
        assert isinstance(recheck(load(name), without(whole, at)), Rejected), whole.clauses[at]


def test_a_certificate_reads_like_the_argument() -> None:
    told = certificate("vllm-symmetric-barrier").words()
    assert len(told) == 6
    assert "if owner is abandoned or loading and an access to the block happened, then load_done knows it" in told
    assert (
        "if pin is want_store and the host is neither between steps nor before record prev_done"
        " and an access to the block happened, then the compute stream knows it"
    ) in told
    assert (
        "if pin is storing and an access to the block happened, then the compute stream or store_done knows it"
    ) in told


@pytest.mark.parametrize("name", ["vllm-after-47728", "copier-symmetric", "layer-wise"])
def test_no_query_is_empty(name: str) -> None:
    """What an action does has a solution, before and after an access is tracked, and an access can become tracked."""
    z3 = solver()
    queries = recheck_module._Queries(z3, tabulate(load(name), None, 10_000), certificate(name))
    here, there = queries.here, queries.there
    for action in queries.table.actions:
        effect, _ = queries._happens(action)
        asked = z3.Solver()
        asked.add(effect)
        assert asked.check(here.read) == asked.check(here.wrote) == z3.sat
        for kind, touches in (("read", "reads"), ("wrote", "writes")):
            begins = z3.And(z3.Not(here.read), z3.Not(here.wrote), getattr(there, kind))
            can = action.touch is not None and getattr(action.touch, touches)
            assert (asked.check(begins) == z3.sat) == can, action


def test_a_certificate_is_a_document() -> None:
    whole = certificate("vllm-after-47728")
    assert Certificate.from_json(whole.to_json()) == whole
    assert isinstance(recheck(load("vllm-after-47728"), Certificate.from_json(whole.to_json())), Checked)
    damaged = [whole.to_json().replace(a, b) for a, b in (('"did"', '"does"'), ('"access"', '"glance"'))]
    for text in ("[]", "{", '{"kvsan-certificate": 2}', '{"kvsan-certificate": 1}', *damaged):
        with pytest.raises(ValueError, match=r"certificate|did is|Expecting"):
            Certificate.from_json(text)


def test_a_certificate_is_about_one_design_and_its_words() -> None:
    whole = certificate("vllm-symmetric-barrier")
    design = load("vllm-symmetric-barrier")
    assert isinstance(recheck(load("vllm-per-block-event"), whole), Rejected)
    assert isinstance(recheck(replace(design, title="another title", expected=None), whole), Checked)
    strange = (
        Clause((("owner", ("nobody",)),), "access", (("host", "host"),)),
        Clause((("colour", ("red",)),), "access", (("host", "host"),)),
        Clause((), "access", (("stream", "nowhere"),)),
        Clause((), "access", (("host", "host"),), unless=(("owner", ("nobody",)),)),
    )
    for clause in strange:
        answer = recheck(design, replace(whole, clauses=(*whole.clauses, clause)))
        assert isinstance(answer, Rejected)
        assert "does not have" in answer.why


def test_a_clause_or_a_claim_that_is_not_true_is_rejected() -> None:
    design, whole = load("vllm-symmetric-barrier"), certificate("vllm-symmetric-barrier")
    never = Clause((), "access", (("host", "host"),))
    answer = recheck(design, replace(whole, clauses=(*whole.clauses, never)))
    assert isinstance(answer, Rejected)
    assert answer.why.startswith("consecution")
    answer = recheck(design, replace(whole, proves=("race-free", "host-quiescent")))
    assert isinstance(answer, Rejected)
    assert answer.why == "safety: a free block may be in use"
    assert isinstance(recheck(design, replace(whole, proves=("race-free", "progress"))), Rejected)
    answer = recheck(design, replace(whole, clauses=()))
    assert isinstance(answer, Rejected)
    assert answer.why.startswith("safety")


@pytest.mark.parametrize("name", [name for name in names() if not race_free(name)])
def test_there_is_no_certificate_for_a_design_with_a_race(name: str) -> None:
    with pytest.raises(InternalError, match="kvsan internal error"):
        certify(load(name))


def compare(seeds: range) -> None:
    for seed in seeds:
        verdict = verify(random_design(seed))
        assert isinstance(verdict, Proved | Refuted)
        if not verdict.findings.races:
            quiescent = verdict.findings.not_quiescent is None
            whole = certify(random_design(seed), quiescent=quiescent)
            assert isinstance(recheck(random_design(seed), whole), Checked), seed
            for at in range(0, len(whole.clauses), 4):
                assert isinstance(recheck(random_design(seed), without(whole, at)), Rejected), seed


def test_random_designs() -> None:
    compare(range(8))


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(1_000, 1_300, 50))
def test_300_random_designs(first: int) -> None:
    compare(range(first, first + 50))


# ── disagreement ──────────────────────────────────────────────────────────────────────────────────────────────────────


def broken(rule: str) -> type[Order[object]]:
    """The rules, one of which does nothing."""

    def nothing(*_: object) -> None:
        return None

    class OneRuleLess(Order[object]):
        pass

    setattr(OneRuleLess, rule, nothing)
    return OneRuleLess


class Unissued(Order[object]):
    """What a host thread knows does not reach the streams that it issues on."""

    def launch(self, by: str, on: str) -> object:
        self._declare(on)
        return self.past(Agent(on))


class Unordered(Order[object]):
    """A stream does not learn of its own accesses."""

    def access(self, op: int, what: Access, on: str) -> Issued[object]:
        before = self.past(Agent(on))
        issued = super().access(op, what, on)
        self._pasts[Agent(on)] = before
        return issued


@pytest.mark.parametrize(
    ("reading", "name"),
    [
        (broken("wait"), "vllm-symmetric-barrier"),
        (broken("record"), "vllm-symmetric-barrier"),
        (broken("observe_event"), "host-blocks"),
        (broken("put"), "copier-deferral"),
        (broken("get"), "copier-deferral"),
        (Unissued, "vllm-after-47728"),
        (Unordered, "layer-wise"),
    ],
)
def test_z3_with_a_rule_less_contradicts_the_search(
    reading: type[Order[object]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recheck_module, "Order", reading)
    with pytest.raises(InternalError, match=r"kvsan internal error: .* z3 rejects the certificate"):
        verify(load(name), certify=True)


class NeverForgets(Order[object]):
    """A record adds to what the event captured before."""

    def record(self, op: int, what: object) -> None:
        before = self.events.get(what.event)  # type: ignore[attr-defined]
        super().record(op, what)  # type: ignore[arg-type]
        if before is not None:
            now = self.events[what.event]  # type: ignore[attr-defined]
            self.events[what.event] = replace(now, past=self.lattice.join(now.past, before.past))  # type: ignore[attr-defined]


class WaitsForAll(Order[object]):
    """A wait also waits for what the streams hold by now."""

    def wait(self, op: int, what: object) -> None:
        for agent in list(self._pasts):
            if not agent.is_host:
                on = Agent(what.on)  # type: ignore[attr-defined]
                self._pasts[on] = self.lattice.join(self.past(on), self.past(agent))
        super().wait(op, what)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reading", "name"),
    [(NeverForgets, "shared-event-trap"), (WaitsForAll, "vllm-load-waits-previous-step")],
)
def test_a_search_that_believes_too_much_is_contradicted(
    reading: type[Order[object]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong search proves (a design that is not safe, or a safe one by a wrong argument); z3 does not follow."""
    monkeypatch.setattr(transfer_module, "Order", reading)
    assert not verify(load(name)).findings.races  # type: ignore[union-attr]
    with pytest.raises(InternalError, match="kvsan internal error"):
        verify(load(name), certify=True)


def test_no_answer_in_time_is_said_and_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    design = load("vllm-symmetric-barrier")
    verdict = verify(design, certify=True, seconds=0)
    assert isinstance(verdict, Proved)
    assert verdict.certificate is None
    assert verdict.unchecked[0].startswith("certificate not checked")
    z3 = pytest.importorskip("z3")
    monkeypatch.setattr(z3.Solver, "check", lambda *_: z3.unknown)
    assert isinstance(recheck(design, certificate("vllm-symmetric-barrier")), Unchecked)
    racy = verify(load("vllm-before-46278"), certify=True)
    assert isinstance(racy, Refuted)
    assert racy.times == ()
    assert len(racy.unchecked) == len(racy.findings.races)
    assert all(line.startswith("schedule not checked") for line in racy.unchecked)


def test_without_z3_verdicts_are_as_before_and_a_check_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    assert isinstance(verify(load("host-blocks")), Proved)
    with pytest.raises(MissingSolverError, match=r"kvsan\[model\]"):
        verify(load("host-blocks"), certify=True)


def python(code: str, seed: str) -> str:
    env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


def test_the_proof_does_not_load_z3_and_a_certificate_is_the_same_everywhere() -> None:
    code = """
import sys
from kvsan.model.designs import load
from kvsan.model.proof import verify
from kvsan.model.proof.certify import certify
design = load("vllm-after-47728")
verify(design)
print(certify(design).to_json(), "z3" in sys.modules)
"""
    first = python(code, "1")
    assert first.endswith(" False\n")
    assert first == python(code, "2")
    assert certificate("vllm-after-47728").design in first


def test_designs_have_fingerprints_of_their_own() -> None:
    prints = {certify(load(name)).design for name in FREE}
    alike = {"vllm-after-47653", "vllm-belt-and-braces"}
    assert len(prints) >= len(FREE) - len(alike)
