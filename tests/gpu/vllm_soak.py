"""A server that is treated badly while kvsan watches: aborts, preemptions, a killed copy thread, a broken kvsan.

`soak` serves for some minutes with random arrivals and aborts and more requests than blocks, and notes the memory of
the process as it goes (without `KVSAN` the same server as a control); then the copy thread is killed and serving goes
on for what needs no load. `fault` breaks kvsan's checker in the middle of a run: every request must still be answered,
and the verdict be Incomplete.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

PAGE = 4096


def rss_mb(process: int | str = "self") -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE >> 20


def beside_mb() -> int | None:
    """Of the process that checks, if there is one."""
    from kvsan.checker import session

    debug = session.current()
    pid = debug.side.pipe.pid if debug is not None and debug.side is not None else None
    return None if pid is None else rss_mb(pid)


def soak(options: argparse.Namespace) -> dict[str, Any]:
    from gpu.vllm_acceptance import engine, outcome, prompts, sampling

    llm = engine(options)
    core = llm.llm_engine
    preemptions = Preemptions(core)
    rng = random.Random(options.seed)
    work = prompts(400, options.seed)
    live: dict[str, float] = {}
    sent = done = aborted = 0
    memory: list[tuple[int, int, int | None]] = []
    began = time.perf_counter()
    noted = -30.0
    killed_at = options.seconds * 0.85
    killed = False
    while (now := time.perf_counter() - began) < options.seconds:
        if now - noted >= 10:
            memory.append((round(now), rss_mb(), beside_mb()))
            sample(options, memory[-1], sent, done)
            noted = now
        while len(live) < 72:  # more than run at once: some are preempted, some wait
            name = f"soak{sent}"
            core.add_request(name, rng.choice(work), sampling(rng.choice((4, 32, 64, 400))))
            live[name] = now
            sent += 1
        if live and rng.random() < 0.05:
            victim = rng.choice(list(live))
            core.abort_request([victim])
            del live[victim]
            aborted += 1
        stuck = [name for name, since in live.items() if now - since > 20]
        if stuck:  # after the copy thread is gone, loads never come
            core.abort_request(stuck)
            for name in stuck:
                del live[name]
            aborted += len(stuck)
        for output in core.step():
            if output.finished and live.pop(output.request_id, None) is not None:
                done += 1
        if not killed and now > killed_at:
            killed = kill_copy_thread()
    memory.append((round(options.seconds), rss_mb(), beside_mb()))
    sample(options, memory[-1], sent, done)
    core.abort_request(list(live))
    until = time.perf_counter() + 5
    while core.has_unfinished_requests() and time.perf_counter() < until:
        core.step()
    grew = memory[-1][1] - next(size for second, size, _ in memory if second >= options.seconds / 5)
    return outcome(
        options,
        sent=sent,
        finished=done,
        aborted=aborted,
        preempted=preemptions.count,
        copy_thread_killed=killed,
        memory_mb=memory,
        grew_mb=grew,  # in the last four fifths of the time
    )


def sample(options: argparse.Namespace, at: tuple[int, int, int | None], sent: int, done: int) -> None:
    if options.samples:
        row = {"run": options.name, "second": at[0], "rss_mb": at[1], "beside_mb": at[2]}
        row |= {"sent": sent, "finished": done}
        with open(options.samples, "a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")


class Preemptions:
    """Counts them where the scheduler makes them, with kvsan's own hook inside or without."""

    def __init__(self, core: Any) -> None:
        self.count = 0
        scheduler = core.engine_core.engine_core.scheduler
        original = scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return original(*args, **kwargs)

        scheduler._preempt_request = counted


def kill_copy_thread() -> bool:
    """The next copy ends its thread, as an error of the driver would."""
    from vllm.v1.simple_kv_offload import copy_backend

    backend: Any = copy_backend

    def dies(*_: Any) -> None:
        raise SystemExit

    backend.copy_blocks = dies
    return True


def fault(options: argparse.Namespace) -> dict[str, Any]:
    from gpu.vllm_acceptance import engine, outcome, prompts, sampling
    from kvsan.checker import session

    llm = engine(options)
    debug: Any = session.current()
    count = 0
    hurt = threading.Event()

    def kills() -> None:
        """The process that checks is killed in the middle: hooks in C pass no method that could be broken."""
        while debug.recorder.ops < 500:
            time.sleep(0.001)
        os.kill(debug.side.pipe.pid, signal.SIGKILL)
        hurt.set()

    def breaks(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def broken(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count > 500:
                hurt.set()
                raise ZeroDivisionError("put there by the test")
            return original(*args, **kwargs)

        setattr(owner, name, broken)

    if debug.side is not None:
        threading.Thread(target=kills, daemon=True).start()
    else:
        breaks(debug.check.online, "feed")
        breaks(debug.check.online, "line")
    outputs = llm.generate(prompts(options.requests, options.seed), sampling(options.tokens), use_tqdm=False)
    answered = sum(bool(output.outputs[0].token_ids) for output in outputs)
    found = outcome(options, answered=answered)
    found["as_it_must_be"] = (
        hurt.is_set() and answered == options.requests and found["verdict"] in ("incomplete", "racy")
    )
    return found
