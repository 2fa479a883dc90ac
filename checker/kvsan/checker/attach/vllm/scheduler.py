"""The scheduler: which pool is the GPU's, and what it hands to workers and takes back from them.

In one process scheduler and worker share a thread and nothing is handed over. With workers in processes of their own
each `SchedulerOutput` and each output that comes back carries the name of a token (`messages` has the other ends): the
name travels inside the object, so no two processes have to count alike. Each process then expects its own half of the
hooks; the verdict is that of the merged logs.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any
from weakref import ref

from kvsan.checker.attach import state
from kvsan.checker.attach.native import mark, quick
from kvsan.checker.attach.recorder import KvsanHazard, Recorder
from kvsan.checker.attach.vllm import pools
from kvsan.checker.attach.vllm.engine import Engine

TOKEN = "kvsan_token"
ELSEWHERE = "what other processes know is not in this log: the verdict is that of all logs, merged (kvsan merge)"
_REMOTE = "_kvsan_remote"
_HERE = (None, "uni", "external_launcher")


def install(engine: Engine) -> None:
    engine.when("vllm.v1.core.sched.scheduler", lambda module: _install(engine, module))


def take(engine: Engine, carrier: Any) -> bool:
    """The calling thread got this object: it knows what whoever put it knew. Once for each object; False if it came
    from this process.
    """
    token = getattr(carrier, TOKEN, None)
    if token is None:
        return False
    engine.recorder.get(token)
    delattr(carrier, TOKEN)
    engine.recorder.ledger.note(ELSEWHERE)
    return True


def give(engine: Engine, carrier: Any, what: str) -> None:
    """The calling thread hands this object to another process."""
    token = engine.recorder.fresh_token(what)
    engine.recorder.put(token)
    setattr(carrier, TOKEN, token)


_far: list[ref[Any]] = []
"""Schedulers whose workers are elsewhere, of any session: they outlive the one that has seen them made."""


def _met(recorder: Recorder, scheduler: Any, *, remote: bool) -> None:
    """A scheduler was made. Two may be at once, in two threads: the word of one whose workers are elsewhere stays."""
    with recorder.lock:
        _far[:] = [each for each in _far if each() is not None]
        if remote and scheduler is not None:
            _far.append(ref(scheduler))
        recorder.workers = max(recorder.workers, state.ELSEWHERE if remote or _far else state.HERE)


def _install(engine: Engine, module: ModuleType) -> None:
    recorder = engine.recorder
    cls = getattr(module, "Scheduler", None)
    setup = engine.hook("vllm.scheduler", expected=False)
    step, output = engine.hook("vllm.schedule"), engine.hook("vllm.output", expected=False)

    def init(original: Any) -> Any:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if not recorder.on:
                _met(recorder, None, remote=True)  # for all that is known
            else:
                with recorder.guard("vllm.scheduler"):
                    setup.fired()
                    config = self.vllm_config
                    manager = self.kv_cache_manager
                    block_pool = getattr(manager, "block_pool", None) or manager.coordinator.block_pool
                    pools.mark(engine, block_pool, engine.pools("gpu", config.parallel_config))
                    backend = getattr(config.parallel_config, "distributed_executor_backend", None)
                    remote = backend not in _HERE
                    mark(self, _REMOTE, remote)
                    _met(recorder, self, remote=remote)
                    if remote:  # the forwards are lines of other processes, and expected there
                        engine.hook("vllm.forward").expected = False
                    engine.require(config, worker=False)

        return wrapper

    def schedule(original: Any) -> Any:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(self, *args, **kwargs) if args or kwargs else original(self)
            if recorder.on:
                try:
                    if found.total_num_scheduled_tokens:
                        step.count += 1
                    if getattr(self, _REMOTE, False):
                        give(engine, found, "step")
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault("vllm.schedule", error)
            return found

        return quick("schedule", original, wrapper, recorder, step)

    def update_from_output(original: Any) -> Any:
        def wrapper(self: Any, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.on:
                try:
                    output.count += 1
                    if getattr(model_runner_output, TOKEN, None) is not None:
                        take(engine, model_runner_output)
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault("vllm.output", error)
            if args or kwargs:
                return original(self, scheduler_output, model_runner_output, *args, **kwargs)
            return original(self, scheduler_output, model_runner_output)

        return quick("output", original, wrapper, recorder, output)

    def counted(name: str) -> Any:
        hook = engine.hook(name, expected=False)

        def make(original: Any) -> Any:
            def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
                hook.fired()
                return original(self, *args, **kwargs)

            return wrapper

        return make

    engine.wrap(cls, "__init__", init, setup, stays=True)
    engine.wrap(cls, "schedule", schedule, step)
    engine.wrap(cls, "update_from_output", update_from_output, output)
    for method, name in (("_preempt_request", "vllm.preempt"), ("finish_requests", "vllm.abort")):
        if hasattr(cls, method):  # for the ledger alone: what they free is seen in the pool
            engine.patches.wrap(cls, method, counted(name))
