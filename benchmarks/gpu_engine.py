"""kvsan's engine on a GPU: what debug mode costs a step, and what each design costs in tokens a second.

    python benchmarks/gpu_engine.py smoke  # does it run, and are the answers right
    python benchmarks/gpu_engine.py cost --seconds 150  # what each debug mode adds to a step; the sanitizer
    python benchmarks/gpu_engine.py throughput --seconds 200  # by design, healthy and 10 × oversubscribed

Each writes JSON lines to `--out` (`$OUT/engine.jsonl`) as it goes, the last with `"summary": true`: a run that is cut
off keeps what it had. `tests/gpu/run_engine.sh` runs them all in one call.

What is compared alternates in one warm process, each in turn, and each is compared with the base in the same round:
what the machine does meanwhile falls on both. Reported is the median over rounds with the interval that holds it with
95 % (order statistics, as in tests/gpu/vllm_cost.py). Host time of a step is the time in a turn that launched one, less
what the host was blocked in `sync`: the GPU's time must not hide the host's.

`cost` has one engine, whose watchers are swapped under it every `--block` steps (`switching.py`, `blocks.py`): engines
of their own would lie elsewhere in memory, and the machine's speed changes from second to second. A round's line has
the time of every step, so that it can be looked at again; `estimate.py` says what is made of them: `bulk`, what a line
costs; `tail`, what is rare in a step; `plain`, the difference of means, which is the two together; `rare`, what was
timed by itself. `again` is off once more and says how large a difference is where there is none; `nothing` is a watcher
that does nothing.

A window of `throughput` is made of conversations that come back: what they said before was stored by an earlier window
and has left the GPU since, so it is loaded, and each has a new message, so there is something to compute and to store.
All designs get the same requests; the line of a round says how many loads, stores and preemptions each had, and a
window that is not what its pool is meant to be (healthy: loads and stores by every design, no preemption; 10x: all
three) is said in the summary, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from benchmarks.blocks import Blocks, Round
from benchmarks.estimate import compare, steps_of
from benchmarks.switching import Noted, Nothing, Rare, Switchboard, Watcher
from benchmarks.turns import watched

from gpu.vllm_cost import interval
from kvsan.runtime.binary import FLUSH_NS

DESIGNS = {
    "none": "vllm-before-46278",
    "symmetric": "vllm-symmetric-barrier",
    "previous-step": "vllm-load-waits-previous-step",
    "per-block": "vllm-per-block-event",
    "deferred": "vllm-after-47653",
    "default": "kvsan-default",
}
"""What the throughput table calls a design, and its name in the catalogue."""

DEBUG = ("off", "again", "nothing", "log", "check", "inside")
SEQUENCES = 64
CONVERSATIONS = {"healthy": 3, "10x": 1}
"""How many times as many requests a throughput window has as run at a time: the small pool is slower by far."""
OVERSUBSCRIBED = {"healthy": 0.5, "10x": 10.0}
"""How many times as much the requests that run at a time want as the pool holds."""
TURNS = 3
"""Windows after which the same conversations come back; the GPU pool holds less than the one window in between."""
COUNTED = ("tokens", "steps", "loads", "loaded_blocks", "stores", "stored_blocks", "preemptions")
"""What the summary of a design says of its windows: least, median, most."""
STEPS = 64
"""Tokens that each request of a cost window wants: so many steps all of them decode."""
SEEDS = 4
"""Workloads of a window in turn: later windows find their prefixes in the host pool, so there are loads."""


def module(name: str) -> Any:
    return importlib.import_module(f"kvsan.runtime.{name}")


def build(
    design: str,
    fence: str = "none",
    *,
    blocks: int,
    host_blocks: int,
    device: Any = None,
    spin: int = 0,
    words: int = 16,
    budget: int = 8192,
    slots: int = SEQUENCES,
    ballast: bool = True,
) -> Any:
    """An engine that runs a design of the catalogue, on a GPU of its own streams and pools.

    `fence`: store, load or all, added to the design's own. `spin`: clock cycles in each forward between its writes and
    its reads. `words`: 64-bit words of KV a token and layer.
    """
    from kvsan.checker.serving.fences import fenced
    from kvsan.model.designs import load
    from kvsan.runtime.device.cuda import CudaDevice

    device = device or CudaDevice()
    engine, forward, language = module("engine"), module("forward"), module("language")
    groups = (language.Group("full"), language.Group("sliding", 128))
    model = language.Model(groups=groups, layers=8, words=words)
    options: dict[str, Any] = {"spin_cycles": spin} if spin else {}
    if ballast:
        options["ballast"] = forward.Ballast(layers=16, width=1024)
    made = engine.Engine(
        fenced(load(design), fence),  # type: ignore[arg-type]
        device,
        model,
        engine.Sizes(blocks, host_blocks, slots=slots, budget=budget),
        forward=lambda *args: forward.Forward(*args, **options),
    )
    synchronize()  # a forward's constants are made on the default stream, which orders nothing of ours
    return made


def cuda() -> Any:
    return importlib.import_module("kvsan.runtime.device.cuda").CudaDevice()


def simulated() -> Any:
    """A device for a try without a GPU: its times mean nothing."""
    return importlib.import_module("kvsan.runtime.device.simulated").Simulated()


def synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Out:
    """Writes lines as they come, to the file and to the terminal."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def line(self, **values: Any) -> None:
        text = json.dumps(values)
        print(text, flush=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


class Clock:
    """Times an engine's turns from outside, whatever the engine is wrapped in: µs of those that launched a step."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.host: list[float] = []
        self.gaps: list[float] = []
        self._blocked = 0.0
        self._launched = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """While this lasts, turns are timed."""
        host = self.engine.issuer.host
        host = getattr(host, "_host", host)  # what a watcher does before and after a sync is the host's time
        self.host, self.gaps, self._launched = [], [], 0.0
        with watched(self.engine, host, self._turn, self._wait):
            yield

    def _wait(self, seconds: float) -> None:
        self._blocked += seconds

    def _turn(self, turn: Callable[[], Any]) -> Any:
        before, self._blocked = self.engine.flight.launched, 0.0
        began = time.perf_counter()
        done = turn()
        ended = time.perf_counter()
        if self.engine.flight.launched > before:
            self.host.append((ended - began - self._blocked) * 1e6)
            if self._launched:
                self.gaps.append((ended - self._launched) * 1e6)
            self._launched = ended
        return done


@lru_cache(maxsize=8)
def drawn(workload: Any) -> Any:
    """The workload's requests; their later turns repeat the replies of a small model, whose answers cost little."""
    return module("workload").requests_of(workload, small_model())


def small_model() -> Any:
    """A model of one layer and word, with the groups and the block size of `build`'s."""
    language = module("language")
    return language.Model(groups=(language.Group("full"), language.Group("sliding", 128)), layers=1, words=1)


_numbers = itertools.count(1)


def numbered(requests: Sequence[Any]) -> list[Any]:
    """The requests with numbers that no others of the process have."""
    return [replace(request, number=next(_numbers)) for request in requests]


class Windows:
    """Serves windows on one engine."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.clock = engine, Clock(engine)

    def serve(self, requests: Sequence[Any], concurrency: int) -> dict[str, float]:
        """Serves the requests; tokens a second, what a step took, in µs, and what was moved and taken away."""
        before = self._counts()
        with self.clock.running():
            began = time.perf_counter()
            done = module("serve").serve(self.engine, numbered(requests), concurrency)
            took = time.perf_counter() - began
        tokens = sum(len(one.tokens) for one in done.values())
        gaps = sorted(self.clock.gaps)
        return {
            **{name: now - before[name] for name, now in self._counts().items()},
            "tokens": tokens,
            "tokens_per_s": round(tokens / took, 1),
            "seconds": round(took, 3),
            "steps": len(self.clock.host),
            "step_us": round(statistics.fmean(gaps), 1),
            "median_us": round(statistics.median(gaps), 1),
            "p99_us": round(gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))], 1),
            "host_us": round(statistics.fmean(self.clock.host), 1),  # a mean: a log is worked off now and then
        }

    def _counts(self) -> dict[str, int]:
        transfers = self.engine.transfers
        return {
            "loads": transfers.loads,
            "loaded_blocks": transfers.loaded_blocks,
            "stores": transfers.stores,
            "stored_blocks": transfers.stored_blocks,
            "preemptions": self.engine.scheduler.preemptions,
        }


def spread(values: list[float]) -> dict[str, Any]:
    """The median over rounds and its interval."""
    low, high = interval(values)
    return {
        "median": round(statistics.median(values), 3),
        "interval": [round(low, 3), round(high, 3)],
        "n": len(values),
    }


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def cost_workload(blocks: int, seed: int, sequences: int = SEQUENCES) -> Any:
    """Requests of one length that fill four fifths of the pool: full attention, and a window of 128 tokens."""
    a_sequence = blocks * 0.8 / sequences
    tokens = int(max(a_sequence / 2, a_sequence - 9) * 16)
    prompt = max(tokens - STEPS, 8)
    return module("workload").Workload(
        requests=sequences,
        concurrency=sequences,
        seed=seed,
        system_prompts=0,
        follow_ups=0.0,
        tail_tokens=(prompt, prompt),
        new_tokens=(STEPS, STEPS),
        longest=prompt + STEPS,
    )


def watchers(noted: Noted, modes: Sequence[str], log: str) -> dict[str, Watcher]:
    """Who looks in each mode: `log` writes the binary log to that path and checks nothing, `check` is checked in a
    process beside this one, `inside` in this one."""
    from kvsan.checker.options import Options
    from kvsan.checker.session import Session

    def made(mode: str) -> Watcher:
        if mode in ("off", "again"):
            return Watcher(noted)
        if mode == "nothing":
            return Watcher(noted, sink=Nothing())
        logs = mode == "log"
        manners = Options(check=not logs, incident=0, trace=log if logs else "", log_path="/dev/null")
        return Watcher(noted, session=Session(manners, beside=mode == "check"))

    return {mode: made(mode) for mode in modes}


def cost(options: argparse.Namespace, out: Out) -> None:
    for blocks in options.blocks:
        with tempfile.TemporaryDirectory(prefix="gpu-engine-") as folder:
            rounds, seen, rare = cost_rounds(options, out, blocks, f"{folder}/log.kvt")
        if rounds:
            cost_summary(out, blocks, rounds, seen, rare)
        if options.device != "simulated" and options.sanitizer:
            sanitizer(options, out, blocks)


def cost_rounds(
    options: argparse.Namespace, out: Out, blocks: int, log: str
) -> tuple[list[Round], dict[str, Any], dict[str, Rare]]:
    """The rounds that were whole when the time was up, what each session saw, and what it did now and then."""
    began = time.monotonic()
    tried, sequences = options.device == "simulated", options.sequences
    words = 1 if tried else 16
    board = Switchboard(
        simulated() if tried else cuda(),
        lambda device: build(
            options.design,
            blocks=blocks,
            host_blocks=SEEDS * blocks,
            device=device,
            words=words,
            slots=sequences,
            ballast=not tried,
        ),
        lambda noted: watchers(noted, ["off", *(mode for mode in options.debug if mode != "off")], log),
    )
    windows = Windows(board.engine)
    for seed in range(SEEDS):  # fills the host pool, and warms what has to be warm
        windows.serve(drawn(cost_workload(blocks, seed, sequences)), sequences)
    for mode in board.watchers:
        board.switch(mode)
        windows.serve(drawn(cost_workload(blocks, 0, sequences)), sequences)
    rounds: list[Round] = []

    def each_round(found: Round) -> None:
        rounds.append(found)
        out.line(part="cost", blocks=blocks, round=len(rounds), **found)

    timed = Blocks(board, sequences, options.block, options.seed, each_round)
    most = options.rounds or sys.maxsize
    rare = {mode: one.rare for mode, one in board.watchers.items() if one.rare is not None}
    for one in rare.values():
        one.took.clear()
    gc.collect()
    gc.freeze()
    try:
        share = 0.5 if options.sanitizer else 1.0
        deadline = began + options.seconds * share / len(options.blocks)
        with timed.running():
            for number in itertools.count():
                if time.monotonic() >= deadline or len(rounds) >= most:
                    break
                requests = numbered(drawn(cost_workload(blocks, number % SEEDS, sequences)))
                module("serve").serve(board.engine, requests, sequences)
        board.close()
    finally:
        gc.unfreeze()
    closed = {mode: one.session.close() for mode, one in board.watchers.items() if one.session is not None}
    return rounds[:most], closed, rare


def cost_summary(out: Out, blocks: int, rounds: Sequence[Round], seen: dict[str, Any], rare: dict[str, Rare]) -> None:
    """A line for each mode but off. A percentage is of the median step without debug mode, wall time."""
    step = statistics.median(found["off"]["step_us"] for found in rounds)
    modes = list(rounds[0])
    steps = {clock: steps_of(rounds, clock, modes) for clock in ("wall", "cpu")}
    for mode in modes:
        if mode == "off":
            continue
        added = {clock: compare(one, modes.index("off"), modes.index(mode)) for clock, one in steps.items()}
        apart = seldom(rare.get(mode), rounds, mode, step)
        summary = seen.get(mode)
        out.line(
            summary=True,
            part="cost",
            blocks=blocks,
            debug=mode,
            rounds=len(rounds),
            verdict=summary and summary.verdict.name,
            why=summary and list(getattr(summary.verdict, "why", ())),
            hazards=summary and sorted({found.hazard.kind.value for found in summary.findings}),
            ops=summary and summary.ops,
            lines_a_step=round(statistics.fmean(found[mode]["lines"] for found in rounds), 2),
            step_us_off=step,
            host_us_off=statistics.median(us for found in rounds for us in found["off"]["wall"]),
            added_us=added,
            rare=apart,
            percent={
                clock: {
                    **{part: percent(one[part], step) for part in ("bulk", "tail", "plain")},
                    "bulk_and_rare": percent(one["bulk"], step, apart["us_a_step"]),
                }
                for clock, one in added.items()
            },
        )


def percent(found: dict[str, Any], step: float, more: float = 0.0) -> dict[str, Any]:
    """Of a step, its interval too."""
    values = [100 * (us + more) / step for us in (found["us"], *found["interval"])]
    return {"percent": round(values[0], 3), "interval": [round(one, 3) for one in values[1:]]}


def seldom(rare: Rare | None, rounds: Sequence[Round], mode: str, step: float) -> dict[str, Any]:
    """What a watcher does now and then, were its mode always on: µs of one, how many steps apart they are, µs a step.

    A batch is handed over when it is full; a log's segment too, or when its time is up. `us_a_step` is 0 where none was
    seen, which `n` says. `writer_us`: processor time of a log's thread a step, of which at most so much is the GIL's.
    """
    if rare is None:
        return {"n": 0, "us_a_step": 0.0}
    often = statistics.fmean(found[mode]["filled"] for found in rounds)
    found: dict[str, Any] = {"n": len(rare.took)}
    if rare.log is not None:
        often = max(often, step * 1000 / FLUSH_NS)
        lines = statistics.fmean(one[mode]["lines"] for one in rounds)
        found["writer_us"] = round(rare.writer() / max(rare.log.ops, 1) * lines * 1e6, 2)
    one = statistics.fmean(rare.took) * 1e6 if rare.took else 0.0
    most = max(rare.took, default=0.0) * 1e6
    return {
        **found,
        "us": round(one, 1),
        "median_us": round(statistics.median(rare.took) * 1e6, 1) if rare.took else None,
        "most_us": round(most, 1),
        "steps": round(1 / often, 1) if often > 0 else None,
        "us_a_step": round(one * often, 2),
    }


def sanitizer(options: argparse.Namespace, out: Out, blocks: int) -> None:
    """The same windows in two processes of their own, one with PyTorch's CUDA sanitizer."""
    found = {}
    for switched in (False, True):
        env = {name: value for name, value in os.environ.items() if name != "TORCH_CUDA_SANITIZER"}
        if switched:
            env["TORCH_CUDA_SANITIZER"] = "1"
        command = [sys.executable, __file__, "plain", "--design", options.design, "--blocks", str(blocks)]
        limit = max(options.seconds * 0.15, 20)
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            found[switched] = {"failed": f"not done within {limit:.0f} s"}
        else:
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            found[switched] = json.loads(lines[-1]) if lines else {"failed": (done.stderr or "no output")[-500:]}
    out.line(summary=True, part="sanitizer", blocks=blocks, without=found[False], with_sanitizer=found[True])


def plain(options: argparse.Namespace, out: Out) -> None:
    """Some windows of the production engine; the medians as one line. For `sanitizer`."""
    blocks = options.blocks[0]
    windows = Windows(build(options.design, blocks=blocks, host_blocks=SEEDS * blocks))
    served = [windows.serve(drawn(cost_workload(blocks, seed)), SEQUENCES) for seed in range(2)][1:]
    print(json.dumps({key: statistics.median(one[key] for one in served) for key in served[0]}), flush=True)


# ── throughput ────────────────────────────────────────────────────────────────────────────────────────────────────────


def conversations(pressure: str, sequences: int, number: int) -> list[Any]:
    """The requests of a window: what `TURNS` windows ago was asked and answered, and a new message each."""
    workload = module("workload").Workload(
        requests=CONVERSATIONS[pressure] * sequences,
        concurrency=sequences,
        seed=number % TURNS,
        follow_ups=0.0,
        system_tokens=(64, 128),
        tail_tokens=(32, 160),
        new_tokens=(16, 32),
    )
    dice = random.Random(f"messages {number}")
    return [
        replace(one, prompt=(*one.prompt, *(dice.randrange(workload.vocabulary) for _ in range(dice.randint(16, 64)))))
        for one in drawn(workload)
    ]


def pools(pressure: str, sequences: int) -> tuple[int, int]:
    """Blocks of the two pools: on the GPU what its name says, on the host all conversations and two windows' news."""
    workload_module, model = module("workload"), small_model()
    first = conversations(pressure, sequences, 0)
    shape = workload_module.Workload(requests=len(first), concurrency=sequences)
    found = workload_module.blocks_for(shape, model, oversubscribed=OVERSUBSCRIBED[pressure], requests=first)
    longest = len(model.groups) * (model.blocks(128 + 160 + 64 + 32) + 1)  # what any round's longest may need
    return max(found.gpu, longest), (TURNS + 2) * found.host


def otherwise(pressure: str, rounds: Sequence[dict[str, float]]) -> str:
    """What a design's windows had, or lacked, that their pool is not meant for; empty if nothing."""
    words = [
        f"round {at}: no {name}" for at, one in enumerate(rounds, 1) for name in ("loads", "stores") if not one[name]
    ]
    if pressure == "healthy":
        counts = [(at, one["preemptions"]) for at, one in enumerate(rounds, 1) if one["preemptions"]]
        words += [f"round {at}: {count} preemptions" for at, count in counts]
    elif not any(one["preemptions"] for one in rounds):
        words.append("no preemptions")
    return ", ".join(words)


def throughput(options: argparse.Namespace, out: Out) -> int:
    """By design, in each pool; 1 if a window was not what its pool is meant for, else 0."""
    strange = [_throughput(options, out, pressure) for pressure in options.pools]
    return int(any(strange))


def _throughput(options: argparse.Namespace, out: Out, pressure: str) -> bool:
    seconds = options.seconds / len(options.pools)
    deadline = time.monotonic() + seconds
    sequences = options.sequences
    blocks, host_blocks = pools(pressure, sequences)
    windows = {}
    for name in options.designs:
        made = build(
            DESIGNS[name],
            blocks=blocks,
            host_blocks=host_blocks,
            device=simulated() if options.device == "simulated" else None,
            words=options.words,
            budget=512,
            slots=sequences,
            ballast=options.device != "simulated",
        )
        windows[name] = Windows(made)
    rounds: list[dict[str, dict[str, float]]] = []
    failed: set[str] = set()
    strange = False
    gaps: dict[str, list[float]] = {name: [] for name in windows}
    number = 0
    while time.monotonic() < deadline and number < (options.rounds or 40) + TURNS:
        names = [name for name in windows if name not in failed]
        if not names:
            break
        turn = number % len(names)
        found = {}
        requests = conversations(pressure, sequences, number)
        for name in names[turn:] + names[:turn]:
            try:
                found[name] = windows[name].serve(requests, sequences)
            except Exception as error:  # a design that has no progress here is a result too
                failed.add(name)
                out.line(part="throughput", pressure=pressure, design=name, failed=f"{type(error).__name__}: {error}")
                continue
            if number >= TURNS:
                gaps[name] += windows[name].clock.gaps
        number += 1
        if number > TURNS:  # the first ones fill the host pools, and warm what has to be warm
            rounds.append(found)
            out.line(part="throughput", pressure=pressure, gpu_blocks=blocks, round=len(rounds), **found)
    if not rounds:
        strange = True
        out.line(part="throughput", pressure=pressure, failed=f"no round in {seconds:.0f} s")
    for name, one in windows.items():
        if name not in failed:
            one.engine.close()
        both = [found for found in rounds if name in found and "none" in found]
        if not both:
            continue
        words = otherwise(pressure, [found[name] for found in both])
        strange |= bool(words)
        ordered, base = sorted(gaps[name]), sorted(gaps["none"])
        p99, base_p99 = ordered[int(len(ordered) * 0.99)], base[int(len(base) * 0.99)]
        speed = [100 * (found[name]["tokens_per_s"] / found["none"]["tokens_per_s"] - 1) for found in both]
        tail = [100 * (found[name]["p99_us"] / found["none"]["p99_us"] - 1) for found in both]
        out.line(
            summary=True,
            part="throughput",
            pressure=pressure,
            design=name,
            catalogue=DESIGNS[name],
            tokens_per_s=spread([found[name]["tokens_per_s"] for found in both]),
            against_none_percent=spread(speed),
            p99_us=round(p99, 1),
            p99_against_none_percent=round(100 * (p99 / base_p99 - 1), 2),
            p99_by_round_percent=spread(tail),
            a_window={
                count: [min(values), statistics.median(values), max(values)]
                for count in COUNTED
                for values in [[found[name][count] for found in both]]
            },
            not_as_meant=words,
        )
    return strange


# ── smoke ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def smoke(options: argparse.Namespace, out: Out) -> None:
    """The default design serves 128 requests under pressure: are they right, how long is a step."""
    workload_module, serving = module("workload"), module("serve")
    workload = workload_module.Workload(requests=2 * SEQUENCES, concurrency=SEQUENCES)
    engine = build(options.design, blocks=256, host_blocks=2048, budget=512)
    requests = workload_module.requests_of(workload, engine.model)
    done = serving.serve(engine, requests, workload.concurrency)
    wrong = serving.garbled(engine.model, requests, done)
    windows = Windows(engine)
    out.line(
        part="smoke",
        device=engine.device.name,
        design=options.design,
        served=len(done),
        garbled=len(wrong),
        loads=engine.transfers.loads,
        stores=engine.transfers.stores,
        preemptions=engine.scheduler.preemptions,
        **windows.serve(drawn(cost_workload(256, 1)), SEQUENCES),
    )
    engine.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["smoke", "cost", "plain", "throughput"])
    parser.add_argument("--out", default=str(Path(os.environ.get("OUT", "/tmp/out")) / "engine.jsonl"))
    parser.add_argument("--seconds", type=float, default=150.0, help="when to stop beginning new rounds")
    parser.add_argument("--rounds", type=int, help="at most so many; throughput: 40 if none is given")
    parser.add_argument("--design", default="kvsan-default")
    parser.add_argument("--designs", nargs="+", default=list(DESIGNS), choices=list(DESIGNS))
    parser.add_argument("--blocks", type=int, nargs="+", default=[1024, 10_000])
    parser.add_argument("--block", type=int, default=4, help="cost: steps that count before the next mode")
    parser.add_argument("--no-sanitizer", dest="sanitizer", action="store_false", help="cost: all of the time for ours")
    parser.add_argument("--seed", type=int, default=0, help="cost: of the order of modes")
    parser.add_argument("--debug", nargs="+", default=list(DEBUG), choices=DEBUG)
    parser.add_argument("--pools", nargs="+", default=list(OVERSUBSCRIBED), choices=list(OVERSUBSCRIBED))
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help="cost, throughput: requests at a time")
    parser.add_argument(
        "--device", default="cuda", choices=["cuda", "simulated"], help="cost, throughput: simulated to try"
    )
    parser.add_argument("--words", type=int, default=64, help="throughput: 64-bit words of KV a token and layer")
    options = parser.parse_args(arguments)
    parts: dict[str, Callable[[argparse.Namespace, Out], int | None]] = {
        "smoke": smoke,
        "cost": cost,
        "plain": plain,
        "throughput": throughput,
    }
    return parts[options.part](options, Out(options.out)) or 0


if __name__ == "__main__":
    sys.exit(main())
