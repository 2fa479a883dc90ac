"""Lines that wait to be worked off: the same ops and findings as at once, and none left when something is said."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from attach.stand_ins import Log
from attach.test_session import quiet
from kvsan.checker.attach.core import BATCH, BLOCKED
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.index import ids
from kvsan.checker.live import LiveCheck, totals
from kvsan.checker.options import Options
from kvsan.checker.session import Session
from kvsan.model.ops import Alloc, Free, Op, Touch

STREAMS, THREADS, EVENTS = ("s", "t", "u"), ("h0", "h1", "h2"), ("e", "f", "g")
FREE = "h3"  # never blocks


def random_calls(recorder: Recorder, seed: int) -> None:
    """What several threads may do, blocking calls that fail and are long out among them."""
    rng = random.Random(seed)
    recorder.pool("gpu", 16)
    out: dict[str, Any] = {}
    tokens: list[str] = []
    planned: int | None = None
    for number in range(400):
        by = rng.choice([name for name in THREADS if name not in out] or [FREE])
        blocks = rng.sample(range(16), rng.randrange(1, 4))
        match rng.randrange(11):
            case 0 | 1:
                given = {rng.choice(("reads", "writes")): {"gpu": blocks}}
                order = rng.choice(("stream", "any", "call"))
                recorder.access("x", on=rng.choice(STREAMS), by=by, order=order, planned=planned, **given)  # type: ignore[arg-type]
            case 2:
                recorder.record(rng.choice(STREAMS), rng.choice(EVENTS), by=by)
            case 3:
                recorder.wait(rng.choice(STREAMS), rng.choice(EVENTS), by=by)
            case 4:
                recorder.wait_stream(rng.choice(STREAMS), rng.choice(STREAMS), by=by)
            case 5:
                recorder.poll(rng.choice(EVENTS), rng.random() < 0.5, by=by)
            case 6 if by != FREE:
                out[by] = recorder.blocking(**rng.choice(({"event": "e"}, {"stream": "s"})), by=by)
                out[by].__enter__()
            case 7 if out:
                error = RuntimeError() if rng.random() < 0.5 else None
                out.pop(rng.choice(sorted(out))).__exit__(type(error) if error else None, error, None)
            case 8:
                tokens.append(f"k{number}")
                recorder.put(tokens[-1], by=by)
                planned = recorder.mark() if rng.random() < 0.3 else None
            case 9 if tokens:
                recorder.get(tokens.pop(0), by=by)
            case _:
                for call in rng.choices((recorder.alloc, recorder.free, recorder.touch), k=rng.randrange(1, 4)):
                    call("gpu", blocks, by=by)
    recorder.settle_up()


def apart(ops: list[Op]) -> list[Any]:
    """Lives a block at a time, everything else as it is but for its time and number."""
    out: list[Any] = []
    for op in ops:
        if isinstance(op, Alloc | Free | Touch):
            out += [(type(op), op.by, op.pool, block) for block in ids(op.blocks).tolist()]
        else:
            words = {key: getattr(op, key) for key in type(op).__slots__ if key not in ("t", "planned", "token")}
            out.append((type(op), str(words)))
    return out


@pytest.mark.parametrize("seed", range(40))
def test_the_same_as_at_once(seed: int) -> None:
    found = []
    for batch in (1, 5, 10_000):
        log, check = Log(), LiveCheck(lambda fresh: None)
        recorder = Recorder(clock=lambda: 0)
        recorder.listen([log, check], batch=batch)
        random_calls(recorder, seed)
        assert recorder.fault_text is None
        warnings = sorted((warned.kind, warned.count) for warned in check.online.advice.all())
        found.append((apart(log.ops), totals(check.findings.real()), warnings))
    assert found[0] == found[1] == found[2]
    assert found[0][1], "no hazard at all shows nothing"


@pytest.mark.parametrize("seed", range(40))
def test_a_check_that_listens_alone_says_the_same(seed: int) -> None:
    """It is handed fields and not ops; from a foreign token on it makes the ops after all."""
    found = []
    for others in ([Log()], []):
        check = LiveCheck(lambda fresh: None)
        recorder = Recorder(clock=lambda: 0)
        recorder.listen([*others, check], batch=64)
        random_calls(recorder, seed)
        recorder.get("a token of another process", by="h0")
        random_calls(recorder, seed + 1000)
        assert recorder.fault_text is None
        hazards = [(finding.hazard, finding.blocks, finding.ops) for finding in check.findings.real()]
        found.append((hazards, check.coverage(), check.online.advice.all()))
    assert found[0] == found[1]
    assert found[0][0], "no hazard at all shows nothing"


def waiting() -> tuple[Recorder, Log]:
    log, recorder = Log(), Recorder()
    recorder.listen([log], batch=BATCH)
    recorder.pool("gpu", 64)
    recorder.pool("cpu", 64)
    return recorder, log


def test_neighbouring_allocs_are_one() -> None:
    recorder, log = waiting()
    for pool, block in (("gpu", 1), ("gpu", 2), ("cpu", 3), ("gpu", 4)):
        recorder.alloc(pool, [block])
    recorder.free("gpu", [5])
    recorder.mark()  # something may be planned here: what comes after is after
    recorder.free("gpu", [6])
    given = [7]
    recorder.free("gpu", given)
    given[0] = 8
    recorder.settle_up()
    recorder.free("gpu", [9])
    recorder.settle_up()
    shown = [(type(op).__name__, op.pool, list(op.blocks)) for op in log.ops if isinstance(op, Alloc | Free)]
    assert shown == [
        ("Alloc", "gpu", [1, 2]),
        ("Alloc", "cpu", [3]),
        ("Alloc", "gpu", [4]),
        ("Free", "gpu", [5]),
        ("Free", "gpu", [6, 7]),
        ("Free", "gpu", [9]),
    ]


def test_so_many_wait_at_most() -> None:
    recorder, log = waiting()
    for number in range(BATCH - 1):
        recorder.put(f"k{number}")
    assert log.ops == []
    recorder.put("last")
    assert len(log.ops) == BATCH


@pytest.mark.parametrize("count", [BLOCKED - 1, BLOCKED])
def test_who_blocks_works_off_what_waits(count: int) -> None:
    recorder, log = waiting()
    for number in range(count):
        recorder.put(f"k{number}")
    with recorder.blocking(stream="s"):
        assert len(log.ops) == (count if count >= BLOCKED else 0)
        recorder.settle_up()
        assert len(log.held) == 1
    assert log.held == []


def test_ids_are_those_of_the_call() -> None:
    recorder, log = waiting()
    given = [1, 2]
    recorder.access("x", on="s", reads={"gpu": given})
    given[:] = [3]
    recorder.settle_up()
    assert sorted(log.ops[0].reads["gpu"]) == [1, 2]  # type: ignore[union-attr]


def test_a_line_that_touches_nothing_keeps_its_number() -> None:
    class Echo:
        def feed(self, message: Any) -> Any:
            return {"gpu": message}, {}

    recorder, log = waiting()
    recorder.follow("echo", Echo())
    for number, some in enumerate(([], [1])):
        recorder.tell("echo", some)
        assert recorder.access("x", on="s", told="echo") == number
    recorder.settle_up()
    assert [type(op).__name__ for op in log.ops] == ["Put", "Access"]


def test_halt_on_error_waits_for_nothing(tmp_path: Path) -> None:
    assert Session(quiet(tmp_path, halt_on_error=True)).recorder.batch == 1
    assert Session(quiet(tmp_path)).recorder.batch == BATCH


@pytest.mark.parametrize("inside", [True, False])
def test_a_summary_in_the_middle_is_not_clean(tmp_path: Path, inside: bool) -> None:
    """A signal may come while lines are worked off, and its handler asks for the summary."""
    session = Session(quiet(tmp_path))
    recorder, verdicts = session.recorder, []
    recorder.pool("gpu", 4)
    recorder.access("x", on="s", reads={"gpu": [1]})
    recorder.put("k")
    recorder.put("l")
    assert session.check is not None
    put = session.check.online.clocks.put

    def interrupted(by: str, token: str) -> None:
        put(by, token)
        if inside:
            verdicts.append(session.summary().verdict)

    session.check.online.clocks.put = interrupted  # type: ignore[method-assign]
    assert session.summary().verdict.name == "clean"
    assert [verdict.name for verdict in verdicts] == (["incomplete", "clean"] if inside else [])
    if inside:
        assert "not looked at" in getattr(verdicts[0], "why", ("",))[0]


def test_a_hazard_that_waits_is_found_at_the_end() -> None:
    session = Session(Options(log_path="/dev/null", incident=0))
    session.recorder.pool("gpu", 4)
    session.recorder.access("x", on="s", reads={"gpu": [1]})
    session.recorder.access("y", on="t", writes={"gpu": [1]})
    with suppress(KeyError):
        session.recorder.pool("cpu", 4)  # a new pool: what waits knows nothing of it
    assert session.close().verdict.name == "racy"
