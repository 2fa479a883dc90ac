"""Puts the hooks of vLLM in place, once a process."""

from __future__ import annotations

from kvsan.checker import session
from kvsan.checker.attach import torch
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.vllm import messages, offloading, pools, runners, scheduler, simple
from kvsan.checker.attach.vllm.engine import Engine
from kvsan.checker.options import WATCHED


def start() -> None:
    """Starts the session that `KVSAN` asks for and hooks torch and vLLM for it. Again: nothing."""
    debug = session.start_if_asked()
    if debug is not None:
        install(debug)


def install(debug: session.Session) -> Engine:
    """Hooks torch and vLLM for this session. Undone when it closes; again for the same session: what is there."""
    found = debug.recorder.attachments.get("vllm")
    if isinstance(found, Engine):
        return found
    with debug.recorder.guard("hooks of torch"):
        calls = torch.install(debug)
        if debug.options.crosscheck:  # a runner tells of its steps
            calls.sample(watch=WATCHED, of=debug.options.crosscheck)
    engine = attach(debug.recorder)
    debug.recorder.attachments["vllm"] = engine
    debug.about.update(engine="vllm", engine_version=engine.version)
    debug.on_close(engine.patches.undo)
    return engine


def attach(recorder: Recorder, version: str | None = None) -> Engine:
    """Hooks vLLM alone. `engine.patches.undo()` takes the hooks away."""
    engine = Engine(recorder, version or _version())
    for part in (pools, scheduler, runners, simple, offloading, messages):
        with recorder.guard(f"hooks of vLLM: {part.__name__}"):
            part.install(engine)
    return engine


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("vllm")
    except PackageNotFoundError:
        import vllm

        return str(getattr(vllm, "__version__", "unknown"))
