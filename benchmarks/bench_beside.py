"""What it costs to hand a line to the process beside the engine's, next to other ways to encode it.

`make bench ARGS="-k beside"`. The lines are those of a real trace of vLLM (`store`), as the hooks of vLLM queue them.
"""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from benchmarks.conftest import Note, interleaved
from pytest_benchmark.fixture import BenchmarkFixture

from kvsan.checker.attach.core import BATCH
from kvsan.checker.attach.lines import KINDS, Line, decoded, encoded
from kvsan.checker.options import Options
from kvsan.checker.session import Session
from kvsan.checker.trace import open_trace
from kvsan.model.ops import Access, Alloc, Free, Op, Touch


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
