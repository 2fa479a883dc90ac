"""Wraps the tensor methods that copy between device and host and block until it is done.

`.item()`, `.cpu()`, `.tolist()`, truth values, `copy_` and `to` without `non_blocking` across the bus: PyTorch
synchronises the current stream in each, so the host thread knows what that stream held. What they copy is an access
only if it is declared or derived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvsan.checker.attach.ledger import Hook

if TYPE_CHECKING:
    from kvsan.checker.attach.torch.calls import Calls

Function = Callable[..., Any]
TO_HOST = ("item", "cpu", "tolist", "__bool__", "__int__", "__float__", "__index__")


class Copies:
    """Makes the wrappers."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def to_host(self, original: Function, hook: Hook) -> Function:
        def through(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._calls.surface.on_device(tensor) or self._calls.quiet():
                return original(tensor, *args, **kwargs)
            return self._calls.block(
                hook, lambda: original(tensor, *args, **kwargs), stream=self._calls.safe_name(None)
            )

        return through

    def copy_into(self, original: Function, hook: Hook) -> Function:
        def copy_(target: Any, source: Any, non_blocking: bool = False) -> Any:
            on_device = self._calls.surface.on_device
            crosses = not non_blocking and on_device(target) != (hasattr(source, "shape") and on_device(source))
            if not crosses or self._calls.quiet():
                return original(target, source, non_blocking)
            return self._calls.block(
                hook, lambda: original(target, source, non_blocking), stream=self._calls.safe_name(None)
            )

        return copy_

    def to(self, original: Function, hook: Hook) -> Function:
        calls = self._calls

        def moved(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            target = _on_device(kwargs.get("device", args[0] if args else None))
            crosses = target is not None and target != calls.surface.on_device(tensor)
            asynchronous = kwargs.get("non_blocking") or any(arg is True for arg in args[1:3])
            if not crosses or asynchronous or calls.quiet():
                return original(tensor, *args, **kwargs)
            return calls.block(hook, lambda: original(tensor, *args, **kwargs), stream=calls.safe_name(None))

        return moved


def _on_device(target: Any) -> bool | None:
    """Whether what is given as the first argument of `to` says host or device; `None` if it names neither."""
    if isinstance(target, str):
        return target.startswith("cuda")
    if hasattr(target, "is_cuda"):
        return bool(target.is_cuda)
    if isinstance(target, int):
        return True
    return target.type == "cuda" if hasattr(target, "type") and hasattr(target, "index") else None
