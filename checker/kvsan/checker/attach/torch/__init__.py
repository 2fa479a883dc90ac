"""Attaching to PyTorch: streams, events, blocking copies (`calls`), and accesses derived from ops (`derive`).

    from kvsan.checker import access, register_pool, session
    from kvsan.checker.attach import torch as attach

    debug = session.start()
    attach.install(debug)                       # once; again does nothing
    register_pool(kv_cache, num_blocks=1024, name="gpu")
    with access("attention", reads={"gpu": ids}, writes={"gpu": new}):
        launch(...)
    with attach.deriving():                     # or: accesses of torch's own ops, by address
        kv_cache.index_copy_(0, slots, values)

`install` wraps Python methods of `torch.cuda.Event`, `torch.cuda.Stream`, `torch.Event`, `torch.cuda.synchronize` and
the tensor methods that block. Off means not installed: the originals are back after the session.
"""

from __future__ import annotations

from typing import Any

from kvsan.checker.attach.patches import Patches
from kvsan.checker.attach.recorder import Recorder
from kvsan.checker.attach.torch.calls import Calls
from kvsan.checker.attach.torch.derive import deriving
from kvsan.checker.attach.torch.surface import Surface, stream_name, torch_surface
from kvsan.checker.session import Session

__all__ = ["Calls", "Surface", "deriving", "install", "stream_name"]


def install(session: Session | Recorder, surface: Surface | None = None) -> Calls:
    """Hooks torch, or a stand-in for it. Again for the same recorder: what is there. Undone when the session closes."""
    recorder = session.recorder if isinstance(session, Session) else session
    found: Any = recorder.attachments.get("torch")
    if found is not None:
        return found  # type: ignore[no-any-return]
    patches = Patches()
    calls = Calls(recorder, surface or torch_surface(), patches)
    calls.install()
    recorder.attachments["torch"] = calls
    if isinstance(session, Session):
        session.on_close(calls.uninstall)
    return calls
