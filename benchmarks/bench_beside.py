"""What it costs to hand a line to the process beside the engine's, next to other ways to encode it.

`make bench ARGS="-k beside"`. The lines are those of a real trace of vLLM (`store`), as the hooks of vLLM queue them.
"""

from __future__ import annotations

import marshal
import pickle
import statistics
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from benchmarks.conftest import Note, interleaved, pedantic
from benchmarks.spoil import caches
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.checker.attach.core import BATCH
from kvsan.checker.attach.lines import KINDS, Line, decoded, encoded
from kvsan.checker.attach.native import HOT
from kvsan.checker.options import Options
from kvsan.checker.session import Session
from kvsan.checker.trace import open_trace
from kvsan.model.ops import Access, Alloc, Free, Op, Touch

SPOIL, WAITING = 64 << 20, 256


def line(op: Op) -> Line:
    """As a hook queues it: ids as lists."""
    code = KINDS.index(type(op))
    match op:
        case Access():
            sets = [{pool: list(blocks) for pool, blocks in side.items()} or None for side in (op.reads, op.writes)]
            more = (op.label, op.order, op.batch, op.planned, op.step, op.owner, op.site, op.t)
            return (code, op.by, op.on, *sets, *more)
        case Alloc() | Free() | Touch():
            return (code, op.by, op.pool, list(op.blocks), op.t)
        case _:
            return (code, *(getattr(op, name) for name in type(op).__dataclass_fields__))


def lines() -> list[Line]:
    path = files("kvsan.checker") / "data" / "traces" / "vllm-0.23.0-store.jsonl.gz"
    with open_trace(str(path)) as trace:
        return [line(op) for op, _ in zip(trace, range(4 * BATCH), strict=False)]


def bench_beside_encoding(benchmark: BenchmarkFixture, note: Note) -> None:
    made = lines()[-BATCH:]
    assert len(decoded(encoded(made))) == BATCH
    calls: dict[str, Callable[[], object]] = {
        "msgpack": lambda: encoded(made),
        "pickle": lambda: pickle.dumps(made, 5),
        "marshal": lambda: marshal.dumps(made),
    }
    found = interleaved(calls, batch=4)
    size = {"msgpack": len(encoded(made)), "pickle": len(pickle.dumps(made, 5)), "marshal": len(marshal.dumps(made))}
    note(
        f"beside: encoding {BATCH} lines of vLLM",
        " | ".join(
            f"{name} {time / BATCH:.2f} µs and {size[name] / BATCH:.0f} B a line" for name, time in found.items()
        ),
    )
    benchmark(calls["msgpack"])


def bench_beside_hand_over(benchmark: BenchmarkFixture, note: Note) -> None:
    """What the line that fills a batch pays more than one before it, with cold caches (64 MiB are read before each).
    The lower quartile: on a small machine the process beside may begin before the call has returned.
    """
    session, spoil = Session(Options(log_path="/dev/null", incident=0), beside=True), caches(SPOIL)
    recorder = session.recorder
    recorder.pool("gpu", 64)

    def cold(batch: int) -> float:
        spoil()
        recorder.batch = batch
        began = time.perf_counter_ns()
        recorder.put("token")
        spent = time.perf_counter_ns() - began
        recorder.batch = BATCH
        return spent / 1e3

    def one() -> tuple[float, float]:
        for _ in range(WAITING - 2):
            recorder.record("a", "event")
        time.sleep(0.001)
        return cold(BATCH), cold(WAITING)

    alone, filling = (statistics.quantiles(column)[0] for column in zip(*(one() for _ in range(300)), strict=True))
    note(f"handing over {WAITING} lines, {'C' if HOT else 'Python'}, cold", f"{filling - alone:.1f} µs")
    pedantic(benchmark, one, rounds=1)
    session.close()


def bench_beside_a_line(benchmark: BenchmarkFixture, note: Note) -> None:
    """A record, with all that follows from it in this process: in turns, checked beside and inside."""
    calls: dict[str, Callable[[], object]] = {}
    sessions = []
    for name, beside in (("beside", True), ("inside", False)):
        session = Session(Options(log_path="/dev/null", incident=0), beside=beside)
        session.recorder.pool("gpu", 64)
        sessions.append(session)
        recorder = session.recorder

        def step(recorder: Any = recorder) -> None:
            for stream in ("a", "b", "c", "d"):
                recorder.record(stream, "event")
                recorder.wait("e", "event")

        calls[name] = step
    found = interleaved(calls, batch=2 * BATCH // 8, rounds=60)
    note(
        "a line of eight, processor time of the engine's thread",
        " | ".join(f"{name} {time / 8:.2f} µs" for name, time in found.items()),
    )
    benchmark(calls["beside"])
    for session in sessions:
        session.close()
