"""Hand-offs between the processes of a `MultiprocExecutor`, and inside a worker from its loop to its output thread.

A worker with asynchronous scheduling answers from a second thread: what its main thread knew (which copies are done)
goes through a queue to that thread, which waits for the sampled tokens, and from there to the scheduler. Both legs are
lines. Relied on: the output queue is first in, first out, with one consumer.
Not covered: Ray, and what several schedulers tell each other.
"""

from __future__ import annotations

from collections import deque
from types import ModuleType
from typing import Any

from kvsan.checker.attach.vllm.engine import Engine
from kvsan.checker.attach.vllm.scheduler import give, take

_PENDING = "_kvsan_pending"


def install(engine: Engine) -> None:
    engine.when("vllm.v1.executor.multiproc_executor", lambda module: _worker(engine, module))
    engine.when("vllm.distributed.kv_transfer.kv_connector.utils", lambda module: _aggregator(engine, module))


def _worker(engine: Engine, module: ModuleType) -> None:
    recorder = engine.recorder
    cls = getattr(module, "WorkerProc", None)
    queued = engine.hook("messages.queued", expected=False)
    answered = engine.hook("messages.answered", expected=False)

    def handle_output(original: Any) -> Any:
        def wrapper(self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.on and getattr(self, "use_async_scheduling", False):
                with recorder.guard("messages.queued"):
                    queued.fired()
                    pending = vars(self).setdefault(_PENDING, deque())
                    token = recorder.fresh_token("answer")
                    recorder.put(token)
                    pending.append(token)
            return original(self, output, *args, **kwargs)

        return wrapper

    def enqueue_output(original: Any) -> Any:
        def wrapper(self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
            pending = getattr(self, _PENDING, None)
            if pending:
                token = pending.popleft()
                with recorder.guard("messages.queued"):
                    recorder.get(token)
            if recorder.on and hasattr(output, "get_output"):
                output = output.get_output()  # as the original does; what it waits for comes before what is handed on
            if recorder.on and hasattr(output, "kv_connector_output"):
                with recorder.guard("messages.answered"):
                    answered.fired()
                    give(engine, output, "output")
            return original(self, output, *args, **kwargs)

        return wrapper

    engine.wrap(cls, "handle_output", handle_output, queued)
    engine.wrap(cls, "enqueue_output", enqueue_output, answered)


def _aggregator(engine: Engine, module: ModuleType) -> None:
    recorder = engine.recorder
    hook = engine.hook("messages.aggregated", expected=False)

    def aggregate(original: Any) -> Any:
        def wrapper(self: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.on:
                with recorder.guard("messages.aggregated"):
                    hook.fired()
                    for output in outputs:
                        if output is not None:
                            take(engine, output)
            return original(self, outputs, *args, **kwargs)

        return wrapper

    engine.wrap(getattr(module, "KVOutputAggregator", None), "aggregate", aggregate, hook)
