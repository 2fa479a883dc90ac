"""The session in one process: findings, suppressions, incidents, traces, and what is said."""

from __future__ import annotations

import gzip
import json
import queue
import threading
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvsan.checker import advice, check, check_trace, live, tracefile
from kvsan.checker.attach.handoff import HandingQueue
from kvsan.checker.live import KvsanHazard, LiveCheck
from kvsan.checker.options import Options
from kvsan.checker.report.session import summary as in_words
from kvsan.checker.session import Session
from kvsan.checker.suppressions import parse
from kvsan.checker.trace import open_trace
from kvsan.checker.tracefile import TraceFile
from kvsan.model.pasts import Agent


class Event:
    """Something that can be an event."""


def quiet(tmp_path: Path, **more: Any) -> Options:
    return Options(
        **{"log_path": str(tmp_path / "log.txt"), "incident_path": str(tmp_path / "incident-%n.jsonl.gz"), **more}
    )


def said(tmp_path: Path) -> str:
    path = tmp_path / "log.txt"
    return path.read_text() if path.exists() else ""


def run(session: Session, *, fenced: bool, steps: int = 3, label: str = "load") -> None:
    """A forward reads blocks that a load overwrites in the next step, with the fence or without."""
    recorder = session.recorder
    recorder.pool("gpu", 4096)
    first = recorder.ops  # blocks that no earlier run has touched
    compute = recorder.stream(0, 0, name="compute")
    load = recorder.stream(0, 77, name="load")
    for step in range(steps):
        blocks = [first + step * 2, first + step * 2 + 1]
        with recorder.lock:
            recorder.access("forward", on=compute, reads={"gpu": blocks}, step=step)
        if fenced:
            recorder.wait_stream(load, compute)
        with recorder.lock:
            recorder.access(label, on=load, writes={"gpu": blocks}, step=step)
    recorder.settle_up()


@pytest.mark.parametrize("fenced", [True, False])
def test_the_verdict(tmp_path: Path, fenced: bool) -> None:
    session = Session(quiet(tmp_path))
    run(session, fenced=fenced)
    seen = session.close()
    assert seen.verdict.name == ("clean" if fenced else "racy")
    assert session.status() == (0 if fenced else 66)
    assert [(f.hazard.kind.value, f.blocks, f.ops) for f in seen.findings] == ([] if fenced else [("WAR", 6, 3)])
    assert seen.document()["totals"] == (
        [] if fenced else [{"kind": "WAR", "pool": "gpu", "earlier": "forward", "later": "load", "pairs": 6}]
    )


@pytest.mark.parametrize("name", ["none", "store", "load", "all", "fixed", "none-graphs"])
def test_the_live_check_finds_what_the_trace_shows(name: str) -> None:
    path = files("kvsan.checker") / "data" / "traces" / f"vllm-0.23.0-{name}.jsonl.gz"
    live = LiveCheck(lambda found: None)
    with open_trace(str(path)) as trace:
        for pool, blocks in trace.header.pools.items():
            live.pool(pool, blocks)
        for stream, facts in trace.header.streams.items():
            live.stream(stream, facts)
        for number, op in enumerate(trace):
            live.take(number, op)
    with open_trace(str(path)) as trace:
        offline = check_trace(trace, each_edge=True)
    counted = {(f.hazard.kind.value, f.hazard.pool): f.blocks for f in live.findings.real()}
    assert counted == {(kind, pool): blocks for (kind, pool, _, _), blocks in offline.totals().items()}
    assert live.coverage().document()["ops"] == offline.coverage.document()["ops"]


def test_one_report_a_site_pair_and_so_many_at_most(tmp_path: Path) -> None:
    session = Session(quiet(tmp_path, max_reports=2, max_incidents=1))
    for number in range(5):
        run(session, fenced=False, label=f"load{number}")
    text = said(tmp_path)
    assert text.count("hazard ") == 2
    assert text.count("kvsan[") == 3
    assert "more hazards are counted and not printed" in text
    seen = session.close()
    assert len(list(tmp_path.glob("incident-*"))) == 1
    assert [(f.blocks, f.ops) for f in seen.findings] == [(6, 3)] * 5


def test_halt_on_error_raises_in_the_engine(tmp_path: Path) -> None:
    session = Session(quiet(tmp_path, halt_on_error=True))
    with pytest.raises(KvsanHazard, match="WAR on gpu") as caught:
        run(session, fenced=False)
    assert caught.value.hazard.later.label == "load"
    assert session.recorder.on  # an engine that catches it goes on, watched
    assert session.recorder.lock.acquire(blocking=False)
    session.recorder.lock.release()
    assert session.close().verdict.name == "racy"


def test_suppressed_hazards_are_no_verdict_and_unused_ones_are_said(tmp_path: Path) -> None:
    lines = ["kind=WAR later=load # the load is dropped: issue 7", "kind=RAW # never seen"]
    session = Session(quiet(tmp_path), suppressions=parse(lines))
    run(session, fenced=False)
    seen = session.close()
    assert seen.verdict.name == "clean"
    text = in_words(seen)
    assert "suppressed: 6 blocks by suppressions:1: kind=WAR later=load (the load is dropped: issue 7)" in text
    assert "unused suppression: suppressions:2: kind=RAW (never seen)" in text
    assert seen.document()["suppressed"] == [
        {"kind": "WAR", "pool": "gpu", "earlier": "forward", "later": "load", "pairs": 6}
    ]


def test_a_suppression_of_another_shape_hides_nothing(tmp_path: Path) -> None:
    session = Session(quiet(tmp_path), suppressions=parse(["kind=WAR later=store # another"]))
    run(session, fenced=False)
    assert session.close().verdict.name == "racy"


# ── the ledger decides too ────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_seen_is_never_clean(tmp_path: Path) -> None:
    seen = Session(quiet(tmp_path)).close()
    assert seen.verdict.name == "incomplete"
    assert seen.idle


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda r: r.unseen(copies=2, what="cudaMemcpyBatchAsync"), "2 copies were noticed and not logged"),
        (lambda r: [r.ledger.hook("e.a").fired(), r.ledger.hook("e.b")], "hook e.b never fired"),
        (
            lambda r: [r.ledger.hook("e.a").fired(), r.ledger.hook("e.b", version="1").missing()],
            "no target (version 1)",
        ),
        (lambda r: r.ledger.expect_stream("store"), "expected stream store never appeared"),
        (lambda r: r.access("x", reads={"nope": [1]}), "turned itself off at op"),
    ],
)
def test_what_was_not_seen_is_incomplete(tmp_path: Path, spoil: Any, why: str) -> None:
    session = Session(quiet(tmp_path, incomplete_exitcode=9))
    run(session, fenced=True)
    spoil(session.recorder)
    seen = session.close()
    assert seen.verdict.name == "incomplete"
    assert len(getattr(seen.verdict, "why", ())) == 1
    assert why in getattr(seen.verdict, "why", ("",))[0]
    assert why in in_words(seen).replace("\n      ", " ").replace("\n    ", " ").replace("\n  ", " ")
    assert session.status() == 9


def test_unseen_edges_make_a_hazard_possible_and_no_clean_incomplete(tmp_path: Path) -> None:
    for fenced in (True, False):
        session = Session(quiet(tmp_path))
        run(session, fenced=fenced)
        session.recorder.unseen(edges=1, what="flag")
        seen = session.close()
        assert seen.verdict.name == ("clean" if fenced else "racy")
        assert all(found.hazard.possible for found in seen.findings)
        assert "1 edge: flag (1)" in in_words(seen)


def test_the_summary_holds_the_ledger(tmp_path: Path) -> None:
    session = Session(quiet(tmp_path, report=str(tmp_path / "report.json")))
    run(session, fenced=True)
    session.recorder.ledger.hook("engine.copy").fired()
    session.recorder.ledger.hook("engine.odd", expected=False)
    session.close()
    session.say_summary()
    text = said(tmp_path)
    assert "accesses: compute 3, load 3" in text
    assert "hooks that fired: engine.copy 1" in text
    assert "hooks that never fired: engine.odd" in text
    assert "unseen: 0 copies, 0 edges" in text
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["verdict"] == "clean"
    assert document["ledger"]["hooks"][0] == {"name": "engine.copy", "fired": 1, "expected": True}
    assert document["coverage"]["streams"]["load"]["access"] == 3


def test_the_summary_is_said_once(tmp_path: Path) -> None:
    session = Session(quiet(tmp_path))
    run(session, fenced=True)
    session.say_summary()
    session.say_summary()
    session.close()
    session.say_summary()
    assert said(tmp_path).count("CLEAN") == 1


# ── what it writes ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("fenced", [True, False])
def test_the_trace_says_the_same(tmp_path: Path, suffix: str, fenced: bool) -> None:
    path = tmp_path / f"t{suffix}"
    session = Session(quiet(tmp_path, trace=str(path)))
    session.about["engine"] = "test"
    hook = session.recorder.ledger.hook("e.copy")
    run(session, fenced=fenced)
    hook.fired()
    session.close()
    report = check(str(path))
    assert report.verdict.name == ("clean" if fenced else "racy")
    assert report.coverage.hooks["e.copy"] == 1
    with open_trace(path) as trace:
        assert trace.header.other["engine"] == "test"
        assert trace.header.streams["compute"].kind == "legacy"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_trace_that_was_cut_off_reads_and_is_not_clean(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    session = Session(quiet(tmp_path, trace=str(path)))
    run(session, fenced=True)
    trace = session._trace
    assert isinstance(trace, TraceFile)
    trace.flush()
    run(session, fenced=True)  # never written
    trace.abandon()
    report = check(str(path))
    assert report.verdict.name == "incomplete"
    assert report.ops > 0
    assert getattr(report.verdict, "why", ()) == ("hook kvsan stayed on never fired",)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_header_that_outgrows_its_place_moves_the_rest(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    session = Session(quiet(tmp_path, trace=str(path)))
    assert isinstance(session._trace, TraceFile)
    session._trace._room = 1000
    run(session, fenced=True)
    session._trace.flush()
    for number in range(200):
        session.recorder.stream(0, 1000 + number, name=f"a stream with a long name {number}")
        session.recorder.record(f"a stream with a long name {number}", "e")
    session.close()
    report = check(str(path))
    assert report.verdict.name == "clean"
    assert report.ops == session.recorder.ops
    data = path.read_bytes()
    assert len(gzip.decompress(data) if suffix.endswith("gz") else data) > 16_000


def test_a_line_waits_for_a_call_that_blocks(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    session = Session(quiet(tmp_path, trace=str(path)))
    recorder = session.recorder
    run(session, fenced=True)
    event = Event()
    recorder.record("compute", event)
    still_out = recorder.blocking(stream="compute")
    still_out.__enter__()
    with recorder.blocking(event=event):
        recorder.put("while it blocks", by="h9")
    session.close()
    with open_trace(path) as trace:
        last = [type(op).__name__ for op in trace][-4:]
    assert last == ["Record", "Put", "Sync", "Put"]  # the stream's sync never returned: it orders nothing
    assert check(str(path)).verdict.name == "clean"


def test_an_incident_is_a_trace_by_itself(tmp_path: Path) -> None:
    session = Session(quiet(tmp_path, incident=0.2))
    clock = [0]
    session.recorder.now = lambda: clock[0]
    recorder = session.recorder
    recorder.pool("gpu", 8)
    recorder.access("forward", on="compute", writes={"gpu": [3]}, step=1, owner="r1", site="runner.py:7")
    recorder.free("gpu", [3])
    for number in range(1, 2000):  # ten seconds in which nothing touches block 3
        clock[0] = number * 5_000_000
        recorder.access("other", on="compute", writes={"gpu": [4]})
    recorder.alloc("gpu", [3])
    recorder.access("load", on="load", writes={"gpu": [3]})
    session.close()
    path = tmp_path / "incident-1.jsonl.gz"
    report = check(str(path))
    assert report.ops < 150
    (found,) = report.hazards
    assert (found.kind.value, str(found.blocks), found.reuse) == ("WAW", "3", True)
    assert (found.earlier.label, found.earlier.step, found.earlier.owner) == ("forward", 1, "r1")
    assert found.earlier.site == "runner.py:7"
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert lines[0]["incident"]["kind"] == "WAW"
    assert 0.2 <= lines[0]["seconds"] <= 0.4
    assert lines[-1]["was"] == session.recorder.ops - 1
    assert lines[1 + found.earlier.op]["was"] == 0


def test_an_incident_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    session = Session(quiet(tmp_path, incident_path=str(tmp_path / "no" / "such" / "folder-%n")))
    run(session, fenced=False)
    seen = session.close()
    assert session.recorder.fault_text is None
    assert "could not be written" in seen.incidents[0]
    assert seen.verdict.name == "racy"


def test_what_it_writes_is_as_the_schemas_say(tmp_path: Path) -> None:
    session = Session(quiet(tmp_path, trace=str(tmp_path / "t.jsonl"), report=str(tmp_path / "report.json")))
    session.recorder.ledger.hook("e.copy").fired()
    run(session, fenced=False)
    session.recorder.unseen(edges=1)
    session.close()
    session.say_summary()
    schemas = files("kvsan.checker") / "schema"

    def check_document(document: Any, name: str) -> None:
        jsonschema.Draft202012Validator(json.loads((schemas / name).read_text())).validate(document)

    check_document(json.loads((tmp_path / "report.json").read_text()), "report.schema.json")
    for data in ((tmp_path / "t.jsonl").read_bytes(), gzip.decompress((tmp_path / "incident-1.jsonl.gz").read_bytes())):
        header, *ops = [json.loads(line) for line in data.splitlines()]
        check_document(header, "trace-header.schema.json")
        for op in ops:
            check_document(op, "trace-op.schema.json")


# ── what a verdict may not hide ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("known", [True, False])
def test_a_hazard_beyond_the_bound_counts_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """The last finding that has a place of its own is suppressed; what comes after it is not, unless it is known."""
    monkeypatch.setattr(live, "MAX_FINDINGS", 3)
    session = Session(quiet(tmp_path), suppressions=parse(["later=load* # known", "later=copy* # known too"]))
    for number in range(3):
        run(session, fenced=False, label=f"load{number}")
    for label in ("copy9" if known else "real", "load9"):
        run(session, fenced=False, label=label)
        run(session, fenced=False, label=f"{label}0")
    seen = session.close()
    assert seen.verdict.name == ("clean" if known else "racy")
    assert sum(found.blocks for found in seen.findings) == (0 if known else 12)
    assert sum(found.blocks for found in seen.suppressed) == (42 if known else 30)
    assert ("the last row counts all sorts" in in_words(seen)) is not known


@pytest.mark.parametrize("change", [False, True])
def test_a_summary_that_changed_is_said_again(tmp_path: Path, change: bool) -> None:
    session = Session(quiet(tmp_path, report=str(tmp_path / "report.json")))
    run(session, fenced=True)
    session.say_summary()
    if change:
        session.recorder.unseen(copies=3)
        session.say_summary()
        session.recorder.fault("x", RuntimeError("boom"))
    session.close()
    session.say_summary()
    assert said(tmp_path).count(": CLEAN") == 1
    assert said(tmp_path).count(": INCOMPLETE") == (2 if change else 0)
    document = json.loads((tmp_path / "report.json").read_text())
    assert (len(document["why"]), document["verdict"]) == ((2, "incomplete") if change else (0, "clean"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.unseen(copies=5),
        lambda r: r.unseen(edges=1),
        lambda r: r.ledger.hook("vllm.forward", version="9").missing("gone"),
        None,
        lambda r: r.ledger.hook("vllm.odd", expected=False).missing("gone"),
    ],
)
def test_a_process_that_saw_nothing_says_what_it_could_not_see(tmp_path: Path, spoil: Any) -> None:
    session = Session(quiet(tmp_path, report=str(tmp_path / "report.json")))
    if spoil is not None:
        spoil(session.recorder)
    quiet_one = spoil is None or bool(session.recorder.ledger.hooks.get("vllm.odd"))
    session.close()
    session.say_summary()
    assert session.summary().idle is quiet_one
    assert ("INCOMPLETE" in said(tmp_path)) is not quiet_one
    assert (tmp_path / "report.json").exists() is not quiet_one
    if "vllm.forward" in session.recorder.ledger.hooks:
        assert "hook vllm.forward has no target (version 9): gone" in said(tmp_path)


@pytest.mark.parametrize("edges", [0, 1])
def test_unseen_edges_are_in_every_word_on_a_hazard(tmp_path: Path, edges: int) -> None:
    session = Session(quiet(tmp_path))
    session.recorder.unseen(edges=edges)
    run(session, fenced=False)
    assert ("possible" in said(tmp_path).lower()) is bool(edges)
    assert ("possible WAR" in in_words(session.close())) is bool(edges)


@pytest.mark.parametrize("fenced", [True, False])
def test_a_report_that_cannot_be_written_is_loud(tmp_path: Path, fenced: bool) -> None:
    session = Session(quiet(tmp_path, report=str(tmp_path / "no" / "such" / "report.json"), incomplete_exitcode=9))
    run(session, fenced=fenced)
    session.close()
    session.say_summary()
    session.say_summary()
    assert (
        "".join(said(tmp_path).split()).count("report.jsoncouldnotbewritten") == 2
    )  # at once, and as a reason in the summary
    assert session.summary().verdict.name == ("incomplete" if fenced else "racy")
    assert session.status() == (9 if fenced else 66)


@pytest.mark.parametrize("fault", [True, False])
def test_a_fork_after_a_fault_is_incomplete(tmp_path: Path, fault: bool) -> None:
    session = Session(quiet(tmp_path))
    run(session, fenced=True)
    if fault:
        session.recorder.fault("x", RuntimeError("boom"))
    session.forked()
    run(session, fenced=True)
    seen = session.close()
    assert seen.verdict.name == ("incomplete" if fault else "clean")
    assert any("before this process was forked" in why for why in getattr(seen.verdict, "why", ())) is fault


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("late", [True, False])
def test_tokens_that_nobody_takes_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Who takes a forgotten one learns nothing, and an edge is unseen; who takes one in time knows, and none is."""
    monkeypatch.setattr(live, "MAX_TOKENS", 100)
    session = Session(quiet(tmp_path, trace=str(tmp_path / "t.jsonl")))
    recorder = session.recorder
    recorder.pool("gpu", 8)
    recorder.access("fill", writes={"gpu": [1]}, by="a")
    recorder.put("mine", by="a")
    for number in range(1000 if late else 50):
        recorder.put(f"for another process {number}", by="a")
    recorder.get("mine", by="b")
    recorder.get("put by another process", by="b")
    recorder.access("read", reads={"gpu": [1]}, by="b")
    seen = session.close()
    assert session.check is not None
    assert len(session.check.online.clocks.tokens()) <= 100
    assert len(session.check.online._hands._tokens) <= 100
    assert seen.coverage.unseen["edges"] == int(late)
    assert [found.hazard.possible for found in seen.findings] == ([True] if late else [])
    assert not check(str(tmp_path / "t.jsonl")).hazards  # offline nothing is forgotten


@pytest.mark.parametrize("full", [True, False])
def test_a_full_queue_keeps_no_token(tmp_path: Path, full: bool) -> None:
    session = Session(quiet(tmp_path))
    handing = HandingQueue(queue.Queue(1 if full else 0), session.recorder)
    for number in range(100):
        with suppress(queue.Full):
            handing.put_nowait(number)
    assert session.check is not None
    session.recorder.settle_up()
    assert len(session.check.online.clocks.tokens()) == (1 if full else 100)
    assert handing.get() == 0


@pytest.mark.parametrize("fails", [True, False, None])
@pytest.mark.parametrize("by", ["seconds", "bytes"])
def test_the_ring_is_bounded_while_calls_block(tmp_path: Path, fails: bool | None, by: str) -> None:
    """A call that is out when a segment begins: its incident has the hazard exactly if the run has it. None: it is
    still out when the hazard of another thread is found."""
    session = Session(quiet(tmp_path, incident=0.2 if by == "seconds" else 1e6, incident_mb=1))
    recorder, clock = session.recorder, [0]
    recorder.now = lambda: clock[0]
    recorder.pool("gpu", 8)
    recorder.access("fill", on="s", writes={"gpu": [1, 2]}, by="h0")
    out = recorder.blocking(stream="s", by="h0")
    out.__enter__()
    for number in range(9000):
        clock[0] = number * 1_000_000
        recorder.access("other", on="t", writes={"gpu": [4]}, by="h1")
    ring = session._ring
    assert ring is not None
    assert sum(len(segment.ops) for segment in ring._segments) < 5000
    if fails is None:
        recorder.access("read", reads={"gpu": [2]}, by="h9")  # a race, and the incident of it
    else:
        error = RuntimeError() if fails else None
        out.__exit__(type(error) if error else None, error, None)
        recorder.access("read", reads={"gpu": [1]}, by="h0")
        recorder.access("read too", reads={"gpu": [2]}, by="h9")
    seen = session.close()
    assert len(seen.incidents) == (2 if fails else 1)
    (first, *_) = (check(path) for path in sorted(seen.incidents))
    assert [(h.kind.value, str(h.blocks)) for h in first.hazards] == [("RAW", "1" if fails else "2")]
    if not fails:  # what the thread whose call was out knew
        state = ring.grab(session._header(), seen.findings[0].hazard).segments[0].state
        number = int(state.pasts[Agent("h0", is_host=True)][state.agents.index(Agent("s"))])
        assert number == (1 if fails is False else 0)


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_trace_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool, fails: bool
) -> None:
    monkeypatch.setattr(tracefile, "WAITING", 10_000 if long else 1 << 24)
    session = Session(quiet(tmp_path, trace=str(tmp_path / "t.jsonl")))
    recorder, trace = session.recorder, session._trace
    assert isinstance(trace, TraceFile)
    recorder.pool("gpu", 8)
    recorder.access("fill", on="s", writes={"gpu": [1]}, by="h0")
    out = recorder.blocking(stream="s", by="h0")
    out.__enter__()
    for _ in range(1000):
        recorder.access("other", on="t", writes={"gpu": [4]}, by="h1")
    recorder.settle_up()
    assert len(trace._waiting) == 0 if long else len(trace._waiting) == 1001
    error = RuntimeError() if fails else None
    out.__exit__(type(error) if error else None, error, None)
    recorder.access("read", reads={"gpu": [1]}, by="h0")
    assert session.close().verdict.name == ("racy" if fails else "clean")
    report = check(str(tmp_path / "t.jsonl"))
    assert report.ops == recorder.ops
    assert report.coverage.unseen["edges"] == int(long and not fails)
    assert [hazard.possible for hazard in report.hazards] == ([not fails] if long or fails else [])


@pytest.mark.parametrize("together", [True, False])
def test_threads_that_have_ended_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
    """One after the other they leave no warnings and no clocks; all at once the warnings are bounded and counted."""
    monkeypatch.setattr(advice, "MAX_WARNINGS", 100)
    session = Session(quiet(tmp_path))
    recorder = session.recorder
    recorder.pool("gpu", 8)
    barrier = threading.Barrier(40 if together else 1)

    def work() -> None:
        recorder.access("x", on="compute", reads={"gpu": [1]})
        barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(40 if together else 200)]
    for thread in threads:
        thread.start()
        if not together:
            thread.join()
    for thread in threads:
        thread.join()
    recorder.access("x", on="compute", reads={"gpu": [1]})
    recorder.settle_up()
    assert session.check is not None
    online = session.check.online
    assert len(online.clocks._hosts) <= 2
    touched = online._hands._streams["compute"]
    assert isinstance(touched, list) or len(touched.changed) <= 2
    warnings = session.close().warnings
    assert sum(warned.count for warned in warnings) == (40 * 39 // 2 if together else 0)
    assert len(warnings) == (101 if together else 0)
    assert ("at places beyond the first 100 (680 times" in " ".join(map(str, warnings))) is together


@pytest.mark.parametrize("handed", [True, False])
def test_what_an_ended_thread_did_stays(tmp_path: Path, handed: bool) -> None:
    """Its accesses race or do not as if it were alive."""
    session = Session(quiet(tmp_path))
    recorder = session.recorder
    recorder.pool("gpu", 8)

    def work() -> None:
        recorder.access("fill", writes={"gpu": [1]})
        recorder.put("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for _ in range(3):
        recorder.access("other", writes={"gpu": [2]})
    if handed:
        recorder.get("done")
    recorder.access("read", reads={"gpu": [1]})
    assert session.close().verdict.name == ("clean" if handed else "racy")
    if not handed:
        assert len(check(str(tmp_path / "incident-1.jsonl.gz")).hazards) == 1


@pytest.mark.parametrize(("path", "names"), [("one.jsonl.gz", "one-{}.jsonl.gz"), ("i%n.jsonl", "i{}.jsonl")])
def test_every_incident_has_a_file_of_its_own(tmp_path: Path, path: str, names: str) -> None:
    session = Session(quiet(tmp_path, incident_path=str(tmp_path / path)))
    for number in range(3):
        run(session, fenced=False, label=f"load{number}")
    assert session.close().incidents == tuple(str(tmp_path / names.format(number)) for number in (1, 2, 3))
    assert all(check(incident).hazards for incident in session.incidents)


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("old", [True, False])
def test_a_block_that_has_raced_shows_the_next_missing_fence_in_its_incident(
    tmp_path: Path, old: bool, fenced: bool
) -> None:
    """Also if all of that lies before the ring's part of the run."""
    session = Session(quiet(tmp_path, incident=0.2))
    recorder, clock = session.recorder, [0]
    recorder.now = lambda: clock[0]
    recorder.pool("gpu", 8)
    recorder.access("forward", on="compute", reads={"gpu": [1]}, writes={"gpu": [2]}, by="h0")
    recorder.record("compute", "done", by="h0")
    recorder.access("store", on="store", reads={"gpu": [2]}, by="h0")  # the first race
    for _ in range(1000):
        clock[0] += 1_000_000 if old else 1
        recorder.access("other", on="t", writes={"gpu": [4]}, by="h1")
    if fenced:
        recorder.wait("load", "done", by="h0")
    recorder.access("load", on="load", writes={"gpu": [1, 2]}, by="h0")
    seen = session.close()
    found = {(f.hazard.kind.value, f.hazard.earlier.label, str(f.hazard.blocks)) for f in seen.findings}
    expected = {("RAW", "forward", "2"), ("WAR", "store", "2")}
    if not fenced:
        expected |= {("WAR", "forward", "1"), ("WAW", "forward", "2")}
    assert found == expected
    assert len(seen.incidents) == len(expected)
    for path, finding in zip(seen.incidents, seen.findings, strict=True):
        with open_trace(path) as trace:
            again = check_trace(trace, each_edge=True)
        h = finding.hazard
        shown = {(g.kind, g.earlier.label, g.later.label, str(g.blocks), g.reuse) for g in again.hazards}
        assert (h.kind, h.earlier.label, h.later.label, str(h.blocks), h.reuse) in shown
        every = check(path, all_pairs=True)
        assert any((g.kind, str(g.blocks)) == (h.kind, str(h.blocks)) for g in every.hazards)
        if old and h.later.label == "load":  # nothing in front of the ring's part races
            ops = len(again.hazards)
            assert ops == len([g for g in again.hazards if g.later.label == "load"])
