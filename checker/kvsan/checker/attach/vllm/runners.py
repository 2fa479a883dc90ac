"""The forward of each step, in both model runners, and what else runs on the compute stream: zeroing and block copies.

A forward is one access on the stream that is current when its last kernel has been launched, eager or as CUDA graphs:
what it touches comes from the `SchedulerOutput` (`steps`). Where the line stands differs, because copies are submitted
at different places:

- `vllm.v1.worker.gpu_model_runner`: inside `execute_model`, after `_model_forward` and before the connector's turn.
- `vllm.v1.worker.gpu.model_runner`: at the end of `execute_model`; the connector submits in `sample_tokens`.

Dummy runs (profiling, graph capture, idle ranks) write to the null block and are no accesses. A step that scheduled
tokens and showed no forward is an unseen copy, so that no change inside a runner passes for a clean run.
"""

from __future__ import annotations

from itertools import count
from types import ModuleType
from typing import Any

from kvsan.checker.attach.ledger import Hook
from kvsan.checker.attach.lines import ACCESS
from kvsan.checker.attach.native import mark, quick
from kvsan.checker.attach.recorder import KvsanHazard
from kvsan.checker.attach.vllm.engine import Engine, argument, place, site
from kvsan.checker.attach.vllm.groups import group_of
from kvsan.checker.attach.vllm.scheduler import take
from kvsan.checker.attach.vllm.steps import Messages, Steps

_CONFIG, _STEPS = "_kvsan_config", "_kvsan_steps"
KNOWN = frozenset({"new_block_ids_to_zero", "num_common_prefix_blocks", "scheduled_new_reqs", "scheduled_cached_reqs"})
"""Fields of `SchedulerOutput` that speak of blocks and are understood, or touch none."""

_names = count(1)


def install(engine: Engine) -> None:
    engine.when("vllm.v1.worker.gpu_model_runner", lambda module: hook_runner(engine, module, inside=True))
    engine.when("vllm.v1.worker.gpu.model_runner", lambda module: hook_runner(engine, module, inside=False))
    engine.when("vllm.v1.worker.utils", lambda module: _zeroer(engine, module))
    engine.when("vllm.v1.worker.mamba_utils", lambda module: _state_copies(engine, module))


# ── what a runner knows ───────────────────────────────────────────────────────────────────────────────────────────


def hook_runner(engine: Engine, module: Any, *, inside: bool) -> None:
    """Hooks `module.GPUModelRunner`. `inside`: its copies are submitted before `execute_model` returns."""
    recorder = engine.recorder
    cls = getattr(module, "GPUModelRunner", None)
    forward = engine.hook("vllm.forward")
    setup = engine.hook("vllm.kv_cache", expected=False)

    def initialize(original: Any) -> Any:
        config = argument(original, "kv_cache_config")

        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.on:
                with recorder.guard("vllm.kv_cache"):
                    setup.fired()
                    engine.device_pool = engine.pool_of_rank("gpu", self.vllm_config.parallel_config)
                    setattr(self, _CONFIG, config((self, *args), kwargs))
                    mark(self, _STEPS, None)  # a small cache comes first where graphs are profiled
            return original(self, *args, **kwargs)

        return wrapper

    engine.wrap(cls, "initialize_kv_cache", initialize, setup)
    (_inside if inside else _at_end)(engine, cls, forward)


class Told:
    """What the recorder is told of a runner's steps: under which name, and which pool an access has. `open`: a step has
    begun whose forward has not passed yet.
    """

    __slots__ = ("hook", "messages", "name", "open", "pool")

    def __init__(self, pool: str, messages: Messages, hook: Hook) -> None:
        self.name = f"steps{next(_names)}"
        self.hook = hook
        self.pool = pool
        self.messages = messages
        self.open = False


def _told(engine: Engine, runner: Any) -> Told:
    """Made at the runner's first step, when its configuration is final."""
    config, vllm_config = getattr(runner, _CONFIG), runner.vllm_config
    parallel = vllm_config.parallel_config
    split = int(getattr(parallel, "decode_context_parallel_size", 1) or 1)
    split *= int(getattr(parallel, "prefill_context_parallel_size", 1) or 1)
    groups = [group_of(group, split) for group in config.kv_cache_groups]
    for group in groups:
        if group.kind == "unknown":
            engine.recorder.ledger.note(f"accesses of {group.spec} layers are not covered (vLLM {engine.version})")
    pool, blocks = engine.pool_of_rank("gpu", parallel), int(config.num_blocks)
    engine.register(pool, blocks)
    engine.require(vllm_config, worker=True)
    messages = Messages(crosses=any(group.kind == "cross" for group in groups))
    told = Told(pool, messages, engine.hook("vllm.forward"))
    engine.recorder.follow(told.name, Steps(groups, blocks, pool))
    mark(runner, _STEPS, told)
    return told


def _begin(engine: Engine, runner: Any, output: Any) -> Told | None:
    """At the entry of `execute_model`: the recorder is told what its forward will touch. `None` if it has none."""
    if take(engine, output):  # what the scheduler does is a line of its own process, and expected there
        for name in ("vllm.schedule", "vllm.alloc", "vllm.free"):
            engine.hook(name).expected = False
        engine.hook("vllm.forward").expected = True
    if engine.suspects != ():
        _unknown_fields(engine, output)
    told: Told | None = getattr(runner, _STEPS, None)
    if told is None:
        told = _told(engine, runner)
    engine.device_pool = told.pool
    if getattr(output, "new_block_ids_to_zero", None):
        engine.hook("vllm.zero", expected=False).expected = True
    message = told.messages.take(output)
    if message is not None:
        engine.recorder.tell(told.name, message)
    told.open = bool(output.num_scheduled_tokens)
    return told if told.open else None


def _log(engine: Engine, told: Told, where: str | None) -> None:
    """The forward: what it touches is what was told last, and worked out with its line."""
    told.hook.count += 1
    on, step, recorder = engine.current_stream("compute"), told.messages.count, engine.recorder
    with recorder.lock:
        who = recorder.thread_name()
        recorder.add(
            (ACCESS, who, on, told.name, None, "forward", "stream", False, None, step, None, where, recorder.now())
        )


def _unknown_fields(engine: Engine, output: Any) -> None:
    """A later vLLM may order block copies in a field that nobody here has read of."""
    suspects = engine.suspects
    if suspects is None:
        names = (name for name in vars(output) if name not in KNOWN)
        suspects = engine.suspects = tuple(name for name in names if "block" in name or "cop" in name)
    for name in suspects:
        if getattr(output, name, None):
            engine.recorder.unseen(copies=1, what=f"SchedulerOutput.{name} of vLLM {engine.version}")


# ── the two runners ───────────────────────────────────────────────────────────────────────────────────────────────


def _quick(engine: Engine, kind: str, original: Any, slow: Any, hook: Hook, where: str | None, unpassed: Any) -> Any:
    """The same hook in C, where torch is hooked by the same session."""
    calls: Any = engine.recorder.attachments.get("torch")
    if calls is None or calls.namer is None:
        return slow
    at = place(original, "scheduler_output"), place(original, "dummy_run")

    def begin(runner: Any, output: Any) -> Told | None:
        return _begin(engine, runner, output)

    return quick(
        kind, original, slow, engine.recorder, hook, None, calls.namer, None, (engine, begin, *at, where, unpassed)
    )


def _inside(engine: Engine, cls: Any, forward: Any) -> None:
    recorder = engine.recorder

    def unpassed(told: Told) -> None:
        told.open = False
        recorder.unseen(copies=1, what="a forward that did not pass _model_forward")

    def execute_model(original: Any) -> Any:
        output = argument(original, "scheduler_output")

        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.on:
                return original(self, *args, **kwargs)
            told = None
            try:
                engine.step()
                told = _begin(engine, self, output((self, *args), kwargs))
            except KvsanHazard:
                raise
            except Exception as error:
                recorder.fault("vllm.forward", error)
            done = original(self, *args, **kwargs)
            if told is not None and told.open:
                unpassed(told)
            return done

        return _quick(engine, "execute", original, wrapper, forward, None, unpassed)

    def model_forward(original: Any) -> Any:
        where = site(original)

        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(self, *args, **kwargs)
            told: Told | None = getattr(self, _STEPS, None)
            if told is not None and told.open:
                told.open = False
                if recorder.on:
                    try:
                        _log(engine, told, where)
                    except KvsanHazard:
                        raise
                    except Exception as error:
                        recorder.fault("vllm.forward", error)
            return done

        return _quick(engine, "forward", original, wrapper, forward, where, None)

    engine.wrap(cls, "execute_model", execute_model, forward)
    engine.wrap(cls, "_model_forward", model_forward, forward)


def _at_end(engine: Engine, cls: Any, forward: Any) -> None:
    recorder = engine.recorder

    def execute_model(original: Any) -> Any:
        where = site(original)
        output, dummy = argument(original, "scheduler_output"), argument(original, "dummy_run", False)

        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            touched = None
            if recorder.on:
                try:
                    given = (self, *args)
                    if not dummy(given, kwargs):
                        engine.step()
                        touched = _begin(engine, self, output(given, kwargs))
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault("vllm.forward", error)
            done = original(self, *args, **kwargs)
            if touched is not None and recorder.on:
                try:
                    _log(engine, touched, where)
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault("vllm.forward", error)
            return done

        return _quick(engine, "execute_at_end", original, wrapper, forward, where, None)

    engine.wrap(cls, "execute_model", execute_model, forward)


# ── others on the compute stream ──────────────────────────────────────────────────────────────────────────────────


def _zeroer(engine: Engine, module: ModuleType) -> None:
    recorder = engine.recorder
    hook = engine.hook("vllm.zero", expected=False)

    def zero_block_ids(original: Any) -> Any:
        where = site(original)

        def wrapper(self: Any, block_ids: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(self, block_ids, *args, **kwargs)
            if recorder.on:
                with recorder.guard("vllm.zero"):
                    some = len(block_ids) > 0
                    hook.count += some
                    if some and getattr(self, "_meta", True) is not None:
                        pool, on = engine.device_pool, engine.current_stream("compute")
                        recorder.access("zero", on=on, writes={pool: list(block_ids)}, site=where)
            return done

        return wrapper

    cls = getattr(module, "KVBlockZeroer", None)
    if cls is not None:  # versions before it zeroed nothing; one that renames it shows `new_block_ids_to_zero`
        engine.wrap(cls, "zero_block_ids", zero_block_ids, hook)


def _state_copies(engine: Engine, module: ModuleType) -> None:
    """Mamba states that move to another block before a step: collected one by one, copied in one kernel."""
    recorder = engine.recorder
    hook = engine.hook("vllm.state_copy", expected=False)
    pairs: list[tuple[int, int]] = []

    def collect(original: Any) -> Any:
        names = ("req_state", "mamba_group_ids", "src_block_idx", "dest_block_idx")
        parameters = [argument(original, name) for name in names]

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if recorder.on:
                with recorder.guard("vllm.state_copy"):
                    state, groups, source, target = (get(args, kwargs) for get in parameters)
                    ids = [state.block_ids[group] for group in groups]
                    pairs.extend((row[source], row[target]) for row in ids if source != target)
            return original(*args, **kwargs)

        return wrapper

    def copy(original: Any) -> Any:
        where = site(original)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            done = original(*args, **kwargs)
            moved, pairs[:] = list(pairs), []
            if moved and recorder.on:
                with recorder.guard("vllm.state_copy"):
                    hook.fired()
                    pool, on = engine.device_pool, engine.current_stream("compute")
                    sources, targets = {pool: [s for s, _ in moved]}, {pool: [t for _, t in moved]}
                    recorder.access("block-copy", on=on, reads=sources, writes=targets, site=where)
            return done

        return wrapper

    if hasattr(module, "collect_mamba_copy_meta") and hasattr(module, "do_mamba_copy_block"):
        engine.wrap(module, "collect_mamba_copy_meta", collect, hook)
        engine.wrap(module, "do_mamba_copy_block", copy, hook)
