"""What an engine says itself: `register_pool` and `access`. Without a session both do nothing and cost next to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from kvsan.checker.attach.regions import Region
from kvsan.checker.session import current
from kvsan.model.ops import Source

CURRENT = "current stream"
_CONTEXTLIB = contextmanager.__code__.co_filename


def register_pool(tensor: Any, num_blocks: int, name: str, *, dim: int = 0) -> None:
    """A pool of `num_blocks` blocks along dimension `dim` of a tensor. `None` for the tensor: a pool that has a name
    and a size, whose accesses are declared and never derived.
    """
    session = current()
    if session is None:
        return
    recorder = session.recorder
    recorder.pool(name, num_blocks)
    if tensor is not None:
        with recorder.guard("register_pool"):
            recorder.regions.add(Region.of(tensor, num_blocks, name, dim), tensor)


@contextmanager
def access(
    label: str,
    *,
    reads: Mapping[str, Any] | None = None,
    writes: Mapping[str, Any] | None = None,
    on: Any = CURRENT,
    order: Source = "stream",
    batch: bool = False,
    planned: int | None = None,
    step: int | str | None = None,
    owner: int | str | None = None,
) -> Iterator[None]:
    """The launches inside touch these blocks: pool → ids. The line stands after the last of them.

    `on`: a stream's name, a stream of torch, `None` for the host itself, or the current stream of torch. It is logged
    also if the body raises: part of it may have been launched. Inside, nothing is derived (`deriving`). While the
    thread captures a CUDA graph, nothing is launched: what is declared is logged at each replay of the graph instead.
    """
    session = current()
    if session is None or not session.recorder.on:
        yield
        return
    recorder = session.recorder
    calls: Any = recorder.attachments.get("torch")
    site = caller()
    if calls is not None:
        calls.here.declared += 1
    try:
        yield
    finally:
        if calls is not None:
            calls.here.declared -= 1
        captured = calls.here.captured if calls is not None and on is not None else None
        with recorder.guard("access"):
            if captured is not None:
                captured.add(recorder, label, reads, writes)
            else:
                name = _stream(recorder, calls, on)
                recorder.access(
                    label,
                    on=name,
                    reads=reads,
                    writes=writes,
                    order=order,
                    batch=batch,
                    planned=planned,
                    step=step,
                    owner=owner,
                    site=site,
                )


def _stream(recorder: Any, calls: Any, on: Any) -> str | None:
    if on is None:
        return None
    if type(on) is str:
        if on != CURRENT:
            return on
        on = None
    if calls is not None:
        return str(calls.name(on))
    from kvsan.checker.attach.torch.surface import stream_name

    if on is None:
        on = sys.modules["torch"].cuda.current_stream()
    return stream_name(recorder, on)


def caller() -> str:
    """`file:line` of who entered the context manager that asks."""
    frame: FrameType | None = sys._getframe(2)  # above the generator
    while frame is not None and frame.f_code.co_filename == _CONTEXTLIB:  # more of it if `access` is a decorator
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
