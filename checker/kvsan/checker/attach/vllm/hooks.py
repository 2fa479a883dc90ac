"""Puts the hooks of vLLM in place, once a process."""

from __future__ import annotations

from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.vllm import messages, offloading, pools, runners, scheduler, simple
from kvsan.checker.attach.vllm.engine import Engine


def attach(recorder: Recorder, version: str | None = None) -> Engine:
    """Hooks vLLM for this recorder. `engine.patches.undo()` takes the hooks away."""
    engine = Engine(recorder, version or _version())
    for part in (pools, scheduler, runners, simple, offloading, messages):
        part.install(engine)
    return engine


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("vllm")
    except PackageNotFoundError:
        import vllm  # type: ignore[import-not-found, unused-ignore]

        return str(getattr(vllm, "__version__", "unknown"))
