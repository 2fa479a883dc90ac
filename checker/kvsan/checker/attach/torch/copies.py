"""Wraps the tensor methods that copy between device and host and block until it is done, and those that touch pools.

`.item()`, `.cpu()`, `.tolist()`, truth values, `copy_` and `to` without `non_blocking` across the bus: PyTorch
synchronises the current stream of the tensor's device in each, so the host thread knows what that stream held.

What they and the other methods in `TOUCHING` copy is an access only if it is declared or derived. A call that touches
a registered pool with neither in force is an unseen copy. Other ways to touch one (functions of `torch` that take
`out`, in-place arithmetic, kernels of someone else) are not noticed here: `docs/limits.md`.

As long as no pool is registered by address, a method that cannot block is the original's and nothing more, and those
that only touch are not wrapped at all. Which others are then, `calls` says.

Inside `deriving()` nothing is done here: the ops that a method comes to are seen there, syncs included.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvsan.checker.attach.ledger import Hook
from kvsan.checker.attach.native import quick

if TYPE_CHECKING:
    from kvsan.checker.attach.torch.calls import Calls

Function = Callable[..., Any]
TO_HOST = ("item", "cpu", "tolist", "__bool__", "__int__", "__float__", "__index__")
TOUCHING = (
    *("index_copy_", "index_put_", "index_add_", "index_fill_", "masked_fill_", "masked_scatter_", "scatter_"),
    *("__setitem__", "zero_", "fill_", "clone", "index_select", "gather", "cuda"),
)


class Copies:
    """Makes the wrappers."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def to_host(self, original: Function, hook: Hook) -> Function:
        calls, recorder = self._calls, self._calls.recorder
        regions, on_device = recorder.regions, calls.surface.on_device

        def through(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not recorder.on or not (regions.all or on_device(tensor)) or calls.passes():
                return original(tensor, *args, **kwargs) if args or kwargs else original(tensor)
            stream: str | None = None
            with recorder.guard(hook.name):
                if on_device(tensor) and not _is_empty(tensor):
                    stream = calls.stream_of(tensor)
            result = self._made(hook, original, stream, tensor, *args, **kwargs)
            self._look(original.__name__, result, tensor)
            return result

        return through

    def copy_into(self, original: Function, hook: Hook) -> Function:
        calls, recorder = self._calls, self._calls.recorder
        regions = recorder.regions

        def copy_(target: Any, /, source: Any = None, non_blocking: Any = False, **more: Any) -> Any:
            if non_blocking and not regions.all and not more:  # as an engine copies: written out
                return original(target, source, non_blocking)
            args = () if source is None else (source,)
            kwargs = {"non_blocking": non_blocking, **more} if non_blocking else more
            if not recorder.on or calls.passes():
                return original(target, *args, **kwargs)
            stream: str | None = None
            with calls.recorder.guard(hook.name):
                source = more.get("src", more.get("other")) if source is None else source
                if not non_blocking and not _is_empty(target) and _is_tensor(source):
                    stream = calls.crossing(target, source)
            if stream is None and not regions.all:
                return original(target, *args, **kwargs)
            result = self._made(hook, original, stream, target, *args, **kwargs)
            self._look(original.__name__, None, target, source)
            return result

        return quick("copy_", original, copy_, recorder, hook, None, None, None, regions.all)

    def to(self, original: Function, hook: Hook) -> Function:
        calls, recorder = self._calls, self._calls.recorder
        regions = recorder.regions
        dtype = getattr(sys.modules.get("torch"), "dtype", None)

        def moved(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not regions.all and (kwargs.get("non_blocking") or (not kwargs and args and type(args[0]) is dtype)):
                return original(tensor, *args, **kwargs) if kwargs else original(tensor, *args)
            if not recorder.on or calls.passes():
                return original(tensor, *args, **kwargs)
            stream: str | None = None
            with calls.recorder.guard(hook.name):
                first = args[0] if args else kwargs.get("other")
                device = kwargs.get("device", first)
                target, here = _on_device(device, calls.surface.on_device), calls.surface.on_device(tensor)
                asynchronous = kwargs.get("non_blocking") or any(arg is True for arg in args[1:3])
                crosses = target is not None and target != here and not _is_meta(tensor)
                if crosses and not asynchronous and not _is_empty(tensor):
                    stream = calls.stream_of(tensor if here else device)
            if stream is None and not regions.all:
                return original(tensor, *args, **kwargs)
            result = self._made(hook, original, stream, tensor, *args, **kwargs)
            if not _is_meta(result):
                self._look(original.__name__, result, tensor)
            return result

        if dtype is None:
            return moved
        return quick("to", original, moved, recorder, hook, None, None, None, (regions.all, dtype))

    def touching(self, original: Function, hook: Hook) -> Function:
        name, regions = original.__name__, self._calls.recorder.regions

        def touch(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not regions.all or self._calls.passes():
                return original(tensor, *args, **kwargs)
            hook.fired()
            result = self._made(hook, original, None, tensor, *args, **kwargs)
            self._look(name, None if name.endswith("_") else result, tensor, *args, *kwargs.values())
            return result

        return touch

    def _made(self, hook: Hook, original: Function, stream: str | None, /, *args: Any, **kwargs: Any) -> Any:
        calls = self._calls
        if stream is not None and not calls.here.busy:
            return calls.block(hook, lambda: original(*args, **kwargs), stream=stream)
        # what a method is made of (`__setitem__` of `copy_`) is looked at once, here
        calls.here.looking += 1
        try:
            return original(*args, **kwargs)
        finally:
            calls.here.looking -= 1

    def _look(self, name: str, result: Any, *touched: Any) -> None:
        """Counts a copy that nobody will log. A method that gave back its own tensor touched nothing."""
        calls = self._calls
        recorder, here = calls.recorder, calls.here
        if here.declared or not recorder.regions.all or not recorder.on or result is touched[0]:
            return
        with recorder.guard(name):
            if any(_is_tensor(each) and recorder.regions.touched(each) for each in touched):
                calls.unseen(f"Tensor.{name} on a registered pool, neither declared nor derived")


def _on_device(target: Any, on_device: Callable[[Any], bool]) -> bool | None:
    """Whether what is given as the first argument of `to` says host or device; `None` if it names neither."""
    kind = target.partition(":")[0] if isinstance(target, str) else getattr(target, "type", None)
    if hasattr(target, "is_cuda"):
        return None if _is_meta(target) else on_device(target)
    if isinstance(target, int) and not isinstance(target, bool):
        return True
    return {"cuda": True, "cpu": False}.get(kind) if isinstance(kind, str) else None


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "is_cuda")


def _is_empty(tensor: Any) -> bool:
    return 0 in tensor.shape


def _is_meta(value: Any) -> bool:
    return bool(getattr(value, "is_meta", False))
