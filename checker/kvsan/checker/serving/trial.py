"""One serving run in debug mode: a design, a device, a workload, and what came out of each round.

Every round has an engine, a device and a session of its own, so that a hazard of one round cannot hide one of the next.
What is compared with the right answers is every completion; what is checked is every op. The two are independent: a
round without a garbled completion has its hazards all the same.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from kvsan.checker.live import totals
from kvsan.checker.options import Options
from kvsan.checker.serving.fences import Fence, fenced
from kvsan.checker.session import Session
from kvsan.checker.summary import Summary
from kvsan.model.design import Design
from kvsan.model.hazard import Hazard
from kvsan.runtime.device import Device
from kvsan.runtime.engine import Engine, Sizes, designs_for
from kvsan.runtime.forward import Forward
from kvsan.runtime.language import Group, Model
from kvsan.runtime.requests import Completion
from kvsan.runtime.serve import garbled, serve
from kvsan.runtime.tracing import Traced
from kvsan.runtime.workload import Request, Workload, blocks_for, requests_of

MODEL = Model(groups=(Group("full"), Group("window", 48)), layers=2, block_size=8, stop_every=40)
"""What is served: half of the layers with a window, since it is the window that frees blocks of a running request, and
one token in forty ends a completion, since that is seen a step late."""


LEAST, MOST = 0.01, 1000.0
"""How little, and how much, of the pool may be wanted."""

SHAPE = Workload()
"""Lengths and prefixes of what is served; numbers and seed are the trial's."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is run. `design` None: the engine's default. `pressure`: how many times as much the requests at a time
    want as the device's pool holds. `policy`: how a simulated device runs. `spin`: cycles that a CUDA forward spins
    between its writes and its reads, so that what overlaps is seen to. `workload`: how long prompts and answers are;
    how many, how many at a time and the seed are the trial's own.
    """

    design: Design | None = None
    fence: Fence = "none"
    device: Literal["simulated", "cuda"] = "simulated"
    requests: int = 500
    rounds: int = 3
    concurrency: int = 64
    run_ahead: int = 1
    seed: int = 0
    policy: str = "fair"
    pressure: float = 4.0
    host_pressure: float = 1.0
    lazy: bool = False
    aborts: float = 0.02
    spin: int = 0
    check: bool = True
    trace: str = ""
    model: Model = MODEL
    workload: Workload = SHAPE


@dataclass(slots=True)
class Round:
    """What a round did, also if it was interrupted. `steps`: the host's seconds for each turn that launched one;
    `watched`: seconds within the log and the checker."""

    number: int
    completions: int = 0
    garbled: list[int] = field(default_factory=list)
    tokens: int = 0
    loads: int = 0
    stores: int = 0
    preemptions: int = 0
    steps: int = 0
    seconds: float = 0.0
    watched: float = 0.0
    interrupted: bool = False
    summary: Summary | None = None

    @property
    def totals(self) -> Counter[tuple[str, str, str]]:
        """Blocks by kind and the two labels."""
        out: Counter[tuple[str, str, str]] = Counter()
        for row in totals(list(self.summary.findings)) if self.summary is not None else []:
            out[row["kind"], str(row["earlier"]), str(row["later"])] += row["pairs"]
        return out

    @property
    def first(self) -> Hazard | None:
        """The hazard that was found first."""
        found = self.summary.findings if self.summary is not None else []
        return min((one.hazard for one in found), key=lambda hazard: hazard.later.op or 0, default=None)


Progress = Callable[[Round, int], None]
"""Told after each turn: the round so far, and hazards found."""


class Stopwatch:
    """A sink that counts the seconds spent in another one."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.seconds = 0.0
        self.stream, self.pool, self.blocking, self.mark = sink.stream, sink.pool, sink.blocking, sink.mark
        for name in ("access", "copy", "record", "wait", "poll", "drop", "put", "get", "alloc", "free", "touch"):
            setattr(self, name, partial(self._timed, getattr(sink, name)))

    @property
    def lock(self) -> AbstractContextManager[Any]:
        return self._sink.lock  # type: ignore[no-any-return]

    def _timed(self, call: Callable[..., Any], *given: Any, **more: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*given, **more)
        finally:
            self.seconds += time.perf_counter() - began


SUFFIXES = (".jsonl", ".jsonl.gz", ".kvt")


def refusal(trial: Trial) -> str | None:
    """Why the trial cannot be run, in one line; None if it can."""
    if not MOST >= trial.pressure >= LEAST:  # not a number, too
        return f"pressure is {trial.pressure}; accepted: {LEAST:g} to {MOST:g}"
    if trial.trace:
        path = Path(trial.trace)
        if not path.name.endswith(SUFFIXES):
            return f"--trace {trial.trace}: accepted: a name that ends in {', '.join(SUFFIXES)}"
        if not path.parent.is_dir() or path.is_dir() or not os.access(path.parent, os.W_OK):
            return f"--trace {trial.trace}: no file can be written there; accepted: a file in a folder that is there"
    if trial.device == "cuda":
        try:
            import torch
        except ModuleNotFoundError:
            return "device cuda needs torch; accepted: pip install 'kvsan[gpu]', or --device simulated"
        if not torch.cuda.is_available():
            return f"device cuda: torch {torch.__version__} sees no GPU; accepted: --device simulated, on any CPU"
        return None
    if trial.spin:
        return "spin stretches a CUDA kernel; a simulated device needs none (--policy starve:compute)"
    from kvsan.runtime.device.policy import policy

    try:
        starved = policy(trial.policy).starved
    except ValueError as error:
        return str(error)
    designs = designs_for(trial.design)
    streams = sorted({stream.name for design in designs if design is not None for stream in design.streams})
    unknown = [name for name in starved if name not in streams]
    return f"policy {trial.policy}: no stream {unknown[0]!r}; there is {', '.join(streams)}" if unknown else None


def requests_for(trial: Trial) -> tuple[Workload, tuple[Request, ...]]:
    """The workload, the same in every round and fence mode."""
    workload = replace(
        trial.workload,
        requests=trial.requests,
        concurrency=trial.concurrency,
        seed=trial.seed,
        aborts=trial.aborts,
    )
    return workload, _drawn(workload, trial.model)


_drawn = lru_cache(maxsize=4)(requests_of)
"""Every round and fence mode serves the same requests, and drawing them takes as long as serving some."""


def device_for(trial: Trial, number: int) -> Device:
    """A fresh device for the round. Raises `ValueError` for an unknown policy, `RuntimeError` if there is no GPU."""
    if trial.device == "cuda":
        from kvsan.runtime.device.cuda import CudaDevice

        return CudaDevice()
    from kvsan.runtime.device.policy import policy
    from kvsan.runtime.device.simulated import Simulated

    return Simulated(seed=trial.seed + number, policy=policy(trial.policy))


def engine_for(
    trial: Trial,
    device: Device,
    workload: Workload,
    requests: tuple[Request, ...],
    forward: Callable[[Model, Any, Any], Any] | None = None,
) -> Engine:
    """The engine under test. It is the one that ships; `device` may be a watched one, and `forward` what makes a step's
    kernel, if not `Forward`."""
    blocks = blocks_for(
        workload, trial.model, oversubscribed=trial.pressure, host=trial.host_pressure, requests=requests
    )
    design = trial.design if trial.design is None else fenced(trial.design, trial.fence)
    engine = Engine(
        design,
        device,
        trial.model,
        Sizes(blocks.gpu, blocks.host, slots=trial.concurrency, budget=max(512, 8 * trial.concurrency)),
        run_ahead=trial.run_ahead,
        lazy=trial.lazy,
        forward=forward or partial(Forward, spin_cycles=trial.spin),
    )
    if not engine.stores:
        engine.warm(request.prompt for request in requests)
    return engine


def play(trial: Trial, number: int, progress: Progress | None = None) -> Round:
    """One round. A `KeyboardInterrupt` ends it early, and what was seen until then is in the round."""
    out = Round(number)
    done: dict[int, Completion] = {}
    requests: tuple[Request, ...] = ()
    engine: Engine | None = None
    session: Session | None = None
    watch: Stopwatch | None = None
    began = time.perf_counter()

    def each_turn(ended: list[Completion]) -> None:
        assert engine is not None
        done.update((one.number, one) for one in ended)
        out.completions = len(done)
        out.tokens += sum(len(one.tokens) for one in ended)
        out.loads, out.stores = engine.transfers.loads, engine.transfers.stores
        out.seconds, out.steps = time.perf_counter() - began, engine.flight.launched
        if progress is not None:
            found = session.check.findings.real() if session is not None and session.check is not None else []
            progress(out, len(found))

    try:
        workload, requests = requests_for(trial)
        device = device_for(trial, number)
        if trial.check or trial.trace:
            session = Session(Options(check=trial.check, incident=0, trace=_path(trial, number), log_path="/dev/null"))
            device = session.watch(device)
            assert isinstance(device, Traced)
            watch = Stopwatch(device.sink)
            device.sink = watch  # type: ignore[assignment]  # its methods are set one by one
        engine = engine_for(trial, device, workload, requests)
        began = time.perf_counter()
        serve(engine, requests, trial.concurrency, each_turn=each_turn)
        engine.close()
    except KeyboardInterrupt:
        out.interrupted = True
    try:
        out.garbled = garbled(trial.model, requests, done)
    except KeyboardInterrupt:
        out.interrupted = True
    if engine is not None:
        out.preemptions = engine.scheduler.preemptions
    if watch is not None:
        out.watched = watch.seconds
    if session is not None:
        out.summary = session.close()
    return out


def _path(trial: Trial, number: int) -> str:
    """Where the round's trace goes: with several rounds its number stands before the suffix."""
    if not trial.trace or trial.rounds == 1:
        return trial.trace
    path = Path(trial.trace)
    head, dot, tail = path.name.partition(".")
    return str(path.with_name(f"{head}-{number + 1}{dot}{tail}"))
