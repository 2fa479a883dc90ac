"""The check in a process beside the engine's: the same answer as in the engine's own, and what happens if one dies."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attach.test_process import ENGINE, finish, start
from kvsan.checker import check
from kvsan.checker.attach.core import BATCH
from kvsan.checker.attach.lines import ALLOC, HELD, SYNC, Held, decoded, encoded, ids_of
from kvsan.checker.attach.native import HOT
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.beside.pipe import Pipe
from kvsan.checker.options import Options
from kvsan.checker.session import Session
from kvsan.checker.suppressions import allowance, parse
from kvsan.model.ops import Blocks, Source

BLOCKS = 64


class Echo:
    """A follower: a message is what the access reads and writes."""

    def __init__(self, pool: str) -> None:
        self.pool = pool

    def feed(self, message: Any) -> Any:
        reads, writes = message
        return {self.pool: reads}, {self.pool: writes}


class Event:
    """Something that can be an event."""


def program(session: Session, seed: int) -> None:
    """Streams, threads, events that die, calls that fail, hand-offs, lives, messages: fenced now and then."""
    rng, recorder = random.Random(seed), session.recorder
    ticks = iter(range(1, 1 << 40, 1_000_000))
    recorder.now = lambda: next(ticks)
    recorder.pool("gpu", BLOCKS)
    recorder.pool("cpu", BLOCKS)
    streams = [recorder.stream(0, handle, name=f"stream{handle}") for handle in (0, 5, 6)]
    recorder.follow("echo", Echo("gpu"))
    events: list[Any] = ["named"]
    tokens: list[str] = []

    def ids() -> Any:
        first = rng.randrange(BLOCKS - 8)
        some = [rng.randrange(BLOCKS) for _ in range(rng.randrange(1, 4))]
        made: list[Any] = [some, np.array(some), np.array(some, np.int32), range(first, first + 5)]
        made += [range(first, first + 8, 3), Blocks(((first, first + 2),)), [np.int64(first)]]
        return rng.choice(made)

    def block(what: dict[str, Any], fails: bool) -> None:
        try:
            with recorder.blocking(**what):
                if rng.random() < 0.3:
                    recorder.access("meanwhile", on=streams[0], reads={"gpu": [1]}, by="another")
                if fails:
                    raise RuntimeError
        except RuntimeError:
            pass

    def one() -> None:
        on, event = rng.choice(streams), rng.choice(events)
        match rng.randrange(14):
            case 0 | 1:
                recorder.access("read", on=on, reads={"gpu": ids()}, step=rng.randrange(9), owner="r1", site="a.py:1")
            case 2 | 3:
                order: Source = rng.choice(("stream", "any", "call"))
                mark = recorder.mark()
                reads, writes = {"cpu": ids()}, {"gpu": ids()}
                recorder.access("copy", on=on, reads=reads, writes=writes, order=order, batch=True, planned=mark)
            case 4:
                recorder.record(on, event)
            case 5:
                recorder.wait(on, event)
            case 6:
                recorder.wait_stream(on, rng.choice(streams))
            case 7:
                block({"event": event} if rng.random() < 0.5 else {"stream": on}, rng.random() < 0.3)
            case 8:
                recorder.poll(event, rng.random() < 0.5)
            case 9:
                tokens.append(recorder.fresh_token())
                recorder.put(tokens[-1])
            case 10 if tokens:
                recorder.get(tokens.pop())
            case 11:
                rng.choice((recorder.alloc, recorder.free, recorder.touch))("gpu", ids())
            case 12:
                recorder.tell("echo", ([1, 2, rng.randrange(BLOCKS)], [rng.randrange(BLOCKS)] * rng.randrange(2)))
                recorder.access("forward", on=on, told="echo")
            case _:
                events.append(Event())
                if len(events) > 4:
                    del events[1]
                    gc.collect()

    for number in range(rng.choice((3, 60, 1500))):
        if number % 40 == 7:
            thread = threading.Thread(target=one)
            thread.start()
            thread.join()
        elif number % 50 == 9:
            with session.allowing(allowance("a test", {"kind": "WAW"}, "to be seen")):
                one()
        else:
            one()
    if seed % 3 == 0:
        recorder.unseen(edges=1, what="a thing")
    if seed % 4 == 1:
        recorder.blocking(stream=streams[0]).__enter__()  # still out at the end


def options(folder: Path, **more: Any) -> Options:
    folder.mkdir(exist_ok=True)
    given: dict[str, Any] = {"log_path": str(folder / "log"), "incident_path": str(folder / "i-%n.jsonl")} | more
    return Options(**given)


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Session]:
    session = Session(options(tmp_path / "b", incident=0), beside=True)
    yield session
    session.close()


@pytest.mark.parametrize("seed", range(12))
def test_the_same_answer_as_in_the_engine_s_process(tmp_path: Path, seed: int) -> None:
    """Summary, report in words, exit status, allowances, incidents and the trace."""
    print(f"seed {seed}")
    found = []
    for name, apart in (("qqq", False), ("zzz", True)):
        folder = tmp_path / name
        lines = parse(["kind=RAW later=copy # known", "kind=WAR later=nothing # unused"])
        given = options(folder, trace=str(folder / "t.jsonl"), report=str(folder / "r.json"))
        session = Session(given, suppressions=lines, beside=apart)
        assert (session.side is not None) is apart
        program(session, seed)
        allowed = [(str(line), line.used) for line in session.allowed()]
        middle = session.summary().document()
        seen = session.close()
        session.say_summary()
        words = (folder / "log").read_text().replace(name, "")
        document = json.loads(json.dumps(seen.document()).replace(name, ""))
        files = sorted(path.name for path in folder.iterdir())
        trace = (folder / "t.jsonl").read_text().splitlines()
        incidents = [check(path).verdict.name for path in seen.incidents]
        found.append((document, middle["hazards"], allowed, session.status(), words, files, trace[1:], incidents))
        assert json.loads(trace[0])["hooks"] == {"kvsan stayed on": 1}
    for one, other in zip(*found, strict=True):
        assert one == other


def test_no_line_no_process(beside: Session) -> None:
    beside.recorder.pool("gpu", 4)
    assert beside.summary().ops == 0
    assert beside.side is not None
    assert beside.side.pipe.pid is None
    assert beside.close().verdict.name == "incomplete"  # nothing was accessed: as it is inside
    assert Session(Options(log_path="/dev/null")).close().verdict.name == "incomplete"


@pytest.mark.parametrize(
    ("more", "apart"),
    [
        ({}, True),
        ({"trace": "t.jsonl"}, True),
        ({"trace": "t.jsonl", "check": False}, True),
        ({"trace": "t.kvt"}, True),
        ({"trace": "t.kvt", "check": False}, False),
        ({"halt_on_error": True}, False),
    ],
)
def test_who_is_beside(tmp_path: Path, more: dict[str, Any], apart: bool) -> None:
    assert (Session(options(tmp_path / "b", **more), beside=True).side is not None) is apart
    assert Session(options(tmp_path / "b", **more)).side is None


def test_without_an_executable_it_checks_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "")
    assert Session(options(tmp_path / "b"), beside=True).side is None


def race(recorder: Recorder) -> None:
    recorder.pool("gpu", 8)
    recorder.access("forward", on="a", reads={"gpu": [1]})
    recorder.access("load", on="b", writes={"gpu": [1]})


def test_a_hazard_is_said_before_the_end(beside: Session, tmp_path: Path) -> None:
    race(beside.recorder)
    beside.recorder.settle_up()
    wait_for_the_report(tmp_path)


def wait_for_the_report(tmp_path: Path) -> None:
    log, until = tmp_path / "b" / "log", time.monotonic() + 30
    while not log.exists() or "WAR on gpu" not in log.read_text():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_nothing_is_left_out_where_it_is_slow(beside: Session) -> None:
    """The pipe is full and the engine waits."""
    recorder = beside.recorder
    race(recorder)
    recorder.settle_up()
    assert beside.side is not None
    assert beside.side.pipe.pid is not None
    os.kill(beside.side.pipe.pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (beside.side.pipe.pid, signal.SIGCONT)).start()
    for number in range(60_000):
        recorder.access("forward", on="a", reads={"gpu": [number % 8]})
    seen = beside.close()
    assert seen.verdict.name == "racy"
    assert seen.ops == 60_002 == sum(seen.coverage.ops.values())


def test_the_pipe_does_not_block(beside: Session) -> None:
    """C writes to it with the interpreter lock: the usual lines do not pass through `packed`."""
    recorder = beside.recorder
    race(recorder)
    recorder.settle_up()
    assert beside.side is not None
    pipe, passed = beside.side.pipe, list[None]()
    assert os.get_blocking(pipe._to) is False
    pipe.packed = lambda lines: passed.append(Pipe.packed(pipe, lines))  # type: ignore[method-assign, func-returns-value]
    for _ in range(3 * BATCH):
        recorder.access("forward", on="a", reads={"gpu": [1]})
    assert len(passed) == (0 if HOT is not None else 3)
    assert beside.close().ops == 2 + 3 * BATCH


@pytest.mark.parametrize("late", [True, False])
def test_a_killed_checker_leaves_the_engine(beside: Session, tmp_path: Path, late: bool) -> None:
    """`late`: it has found the race."""
    recorder = beside.recorder
    race(recorder)
    recorder.settle_up()
    if late:
        wait_for_the_report(tmp_path)
        time.sleep(0.1)
    assert beside.side is not None
    assert beside.side.pipe.pid is not None
    os.kill(beside.side.pipe.pid, signal.SIGKILL)
    time.sleep(0.2)
    for _ in range(2000):
        recorder.access("forward", on="a", reads={"gpu": [1]})
    assert not recorder.on
    seen = beside.close()
    assert seen.verdict.name == "racy" if late else seen.verdict.name in ("racy", "incomplete")
    assert beside.status() == (66 if seen.verdict.name == "racy" else 0)
    assert "gave no account" in seen.verdict.why[0]  # type: ignore[union-attr]
    assert any("the way to the process that checks" in why for why in seen.verdict.why)  # type: ignore[union-attr]


def test_a_fault_of_the_checker(beside: Session, tmp_path: Path) -> None:
    """A block that the pool has not got is noticed only there."""
    race(beside.recorder)
    beside.recorder.access("load", on="b", writes={"gpu": [8]})
    seen = beside.close()
    assert seen.verdict.name == "racy"
    assert any("turned itself off at op 3" in why for why in seen.verdict.why)  # type: ignore[union-attr]
    assert "FAULT in kvsan itself, in access" in (tmp_path / "b" / "log").read_text()


class Interrupt(BaseException):
    """What a signal's handler raises."""


def interrupted(*_: Any) -> Any:
    raise Interrupt


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("encoded", marks=pytest.mark.skipif(HOT is not None, reason="C encodes, where no handler runs")),
        "os.writev",
    ],
)
def test_an_exception_of_a_signal_loses_no_verdict(
    beside: Session, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A Ctrl-C that the engine catches, in the middle of handing over: what is lost makes the run Incomplete."""
    recorder = beside.recorder
    recorder.pool("gpu", 8)
    recorder.access("forward", on="a", reads={"gpu": [1]})
    recorder.settle_up()
    race(recorder)
    with monkeypatch.context() as patch:
        patch.setattr(f"kvsan.checker.beside.pipe.{where}", interrupted)
        with pytest.raises(Interrupt):
            recorder.settle_up()
    assert not recorder.on
    seen = beside.close()
    assert seen.verdict.name == "incomplete"
    assert "Interrupt in the way" in str(seen.verdict)


def test_what_others_have_written_meanwhile_is_theirs(tmp_path: Path) -> None:
    """The process beside starts later than the session: a file may have been written between."""
    folder, trace = tmp_path / "b", tmp_path / "b" / "t.jsonl"
    session = Session(options(folder, trace=str(trace)), beside=True)
    time.sleep(0.01)
    trace.write_text("theirs\n")
    race(session.recorder)
    session.close()
    assert trace.read_text() == "theirs\n"
    (ours,) = (path for path in folder.glob("t*.jsonl") if path != trace)
    assert check(str(ours)).verdict.name == "racy"


def test_odd_values_travel(beside: Session) -> None:
    """What is no text or number of MessagePack's goes as text; the lines beside it are as they were."""
    recorder, label = beside.recorder, type("Label", (str,), {})("load")
    race(recorder)
    odd: list[Any] = [b"x", 1 << 70, Path("x"), object(), np.int64(3), ("a", 1), None]
    for step in odd:
        recorder.access(label, on="b", writes={"gpu": [2]}, step=step, owner=step)
    recorder.access("\ud800", on="b", writes={"gpu": [3]}, site="\ud800")
    with recorder.blocking(device=Path("cuda:0")):  # type: ignore[arg-type]  # as a torch.device: no number, no text
        pass
    seen = beside.close()
    assert (seen.verdict.name, seen.ops) == ("racy", 2 + len(odd) + 2)


def test_threads_that_go_on_at_the_end(beside: Session) -> None:
    race(beside.recorder)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            beside.recorder.access("forward", on="a", reads={"gpu": [1]})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    seen = beside.close()
    stop.set()
    for thread in threads:
        thread.join()
    assert beside.recorder.fault_text is None
    assert seen.verdict.name == beside.summary().verdict.name == "racy"


def test_a_follower_that_cannot_travel(beside: Session) -> None:
    class Here(Echo):
        pass

    race(beside.recorder)
    beside.recorder.settle_up()
    beside.recorder.follow("here", Here("gpu"))
    assert not beside.recorder.on
    assert "Can't pickle local object" in str(beside.close().verdict) or "local" in str(beside.recorder.fault_text)


def test_a_signal_in_the_middle_of_a_frame(beside: Session) -> None:
    race(beside.recorder)
    beside.recorder.settle_up()
    assert beside.side is not None
    beside.side.pipe._writing = True
    seen = beside.summary()
    assert (seen.verdict.name, "a signal came" in str(seen.verdict)) == ("incomplete", True)
    beside.side.pipe._writing = False
    assert beside.summary().verdict.name == "racy"


def test_it_does_not_wait_for_ever(beside: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    race(beside.recorder)
    beside.recorder.settle_up()
    assert beside.side is not None
    with pytest.raises(TimeoutError, match="not done yet"):
        beside.side.pipe._read(1, time.monotonic())


def test_a_pause_is_incomplete(tmp_path: Path) -> None:
    class Hooks:
        def __init__(self) -> None:
            self.said: list[str] = []

        def pause(self) -> None:
            self.said.append("pause")

        def resume(self) -> None:
            self.said.append("resume")

    session = Session(options(tmp_path / "b", incident=0))
    hooks = session.recorder.attachments["hooks"] = Hooks()
    session.recorder.attachments["other"] = object()
    session.recorder.pool("gpu", 4)
    session.recorder.access("forward", on="a", reads={"gpu": [1]})
    session.pause()
    session.pause()
    assert session.recorder.access("forward", on="a", reads={"gpu": [1]}) is None
    session.resume()
    session.resume()
    session.recorder.access("forward", on="a", reads={"gpu": [1]})
    assert hooks.said == ["pause", "resume"]
    seen = session.close()
    assert (seen.ops, seen.verdict.name) == (2, "incomplete")
    assert "paused" in str(seen.verdict)


def test_lines_as_they_travel() -> None:
    out = Held(3, ("h0", "e", None, None, 7))
    back = Held(4, ("h0", None, "s", None, 8), done=True)
    failed = Held(5, ("h0", None, None, 0, 9), done=False)
    given = [(ALLOC, "h0", "gpu", ids, 5) for ids in ([1, 2], range(3, 9, 2), np.arange(3), Blocks(((4, 6),)))]
    found = decoded(encoded([out, back, failed, *given]))
    assert found[0] == [HELD, "h0", "e", None, None, 7, None]
    assert found[1] == [SYNC, "h0", None, "s", None, 8]
    assert found[2] == [HELD, "h0", None, None, 0, 9, False]
    assert (out.told, back.told, failed.told) == (True, False, False)
    assert [list(made) if not isinstance(made := ids_of(line[3]), Blocks) else made for line in found[3:]] == [
        [1, 2],
        [3, 5, 7],
        [0, 1, 2],
        Blocks(((4, 6),)),
    ]


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"])
def test_a_killed_engine_is_spoken_for(tmp_path: Path, how: str, fenced: bool) -> None:
    body = f"run(fenced={fenced})\ndebug.recorder.settle_up()\n{how}"
    process = start(tmp_path, body, "trace=t.jsonl:log_path=said.txt")
    code, _, err = finish(process)  # the pipes of both processes have ended
    assert code in (0, -signal.SIGKILL), err
    text = (tmp_path / "said.txt").read_text()
    assert "accesses: compute 1" in text
    assert ("INCOMPLETE" if fenced else "RACY") in text
    assert "ended without a word" in text
    found = check(str(tmp_path / "t.jsonl"))
    assert found.ops == (5 if fenced else 2)
    assert found.verdict.name == ("incomplete" if fenced else "racy")


@pytest.mark.parametrize("fenced", [True, False])
def test_a_sigterm_is_summed_up_once(tmp_path: Path, fenced: bool) -> None:
    body = f"run(fenced={fenced})\ndebug.recorder.settle_up()\nprint('ready', flush=True)\ntime.sleep(60)"
    process = start(tmp_path, body, "trace=t.jsonl")
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        pass
    process.send_signal(signal.SIGTERM)
    _, _, err = finish(process)
    assert [word for word in ("CLEAN", "RACY", "INCOMPLETE") if word in err] == ["CLEAN" if fenced else "RACY"]
    assert err.count("accesses: compute 1") == 1
    assert check(str(tmp_path / "t.jsonl")).ops == (5 if fenced else 2)


def test_closed_standard_streams(tmp_path: Path) -> None:
    """As a daemon has them: the pipe's ends must not take their places."""
    body = "for fd in (0, 1): os.close(fd)\nrun(fenced=False)"
    code, _, err = finish(start(tmp_path, body, script=ENGINE.replace("flush=True", "file=sys.stderr") + body))
    assert (code, err.count("RACY")) == (66, 1)


def test_a_relative_path_and_another_folder(tmp_path: Path) -> None:
    body = "sys.path[:] = [os.path.relpath(p) if p else p for p in sys.path]\nos.chdir('/')\nrun(fenced=False)"
    code, _, err = finish(start(tmp_path, body))
    assert (code, err.count("RACY")) == (66, 1), err


def test_ctrl_c_is_the_engine_s(tmp_path: Path) -> None:
    body = "run(fenced=False)\ndebug.recorder.settle_up()\nos.killpg(os.getpgid(0), signal.SIGINT)\ntime.sleep(30)"
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
    process = start(tmp_path, "os.setpgid(0, 0)\n" + heard + body, "")
    _, _, err = finish(process)
    assert "KeyboardInterrupt" in err
    assert err.count("RACY") == 1


def test_what_is_printed_is_said_under_the_engine_s_number(tmp_path: Path) -> None:
    process = start(tmp_path, "run(fenced=False)", "incident_path=i-%p.jsonl:trace=t-%p.jsonl")
    code, _, err = finish(process)
    assert code == 66
    assert f"kvsan[{process.pid}]: hazard 1" in err
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == [
        f"i-{process.pid}-1.jsonl",
        f"t-{process.pid}.jsonl",
    ]
