"""Accesses derived from torch's own ops on registered pools, by address range, in a dispatch mode.

    with deriving():
        pool[3:5].copy_(host[0:2], non_blocking=True)   # an access: writes blocks 3-4, reads what host is a pool of

What an op touches is decided by its schema and the addresses of its tensors, so views count for what they view:

- arguments that the schema writes are writes, other tensors are reads; ops that only make a view touch nothing;
- an index along the block dimension that is on the host (`index_select`, `index_copy_`, `index_fill_`, `index_put_`,
  `index`) narrows the access to the blocks that it names; an index on the device cannot be read without stopping it,
  so the op is an unseen copy and the verdict Incomplete, rather than a guess that could report a race falsely;
- any other op of torch touches all blocks of the views that it is given;
- an op that is not torch's own (a paged-attention kernel with its block tables) is an unseen copy, unless it runs
  inside `with access(…)`, which says what it touches. Nothing is derived there.

An op on device tensors is an access on the current stream of their device; an op on host tensors alone is the host
thread's own. A copy between host and device that blocks, and a value taken to the host, is an access, then a `sync` of
that stream; no other op is a sync. While a graph is captured, accesses are kept for its replays (`graphs`). A mode is
of one thread and costs tens of µs an op: it is for tests and small engines, while big ones declare their accesses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from kvsan.checker.attach.regions import Region, Unresolved
from kvsan.checker.attach.torch.calls import Calls
from kvsan.checker.index import Ids

_INDEXED = ("index_select", "index_copy_", "index_fill_", "index_add_", "index_copy", "index_put_", "index")
"""Ops whose first tensor is touched only where an index says."""
_BLOCKING = ("copy_", "_to_copy", "_local_scalar_dense")
"""Ops that block unless asked not to."""


@contextmanager
def deriving(calls: Calls | None = None) -> Iterator[None]:
    """Derives accesses from the ops of this thread. Without a session: nothing."""
    if calls is None:
        from kvsan.checker.session import current

        session = current()
        calls = session.recorder.attachments.get("torch") if session is not None else None  # type: ignore[assignment]
    if calls is None:
        yield
        return
    calls.here.deriving += 1
    try:
        with _mode(calls):
            yield
    finally:
        calls.here.deriving -= 1


def _mode(calls: Calls) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Derive(TorchDispatchMode):  # type: ignore[misc]  # its base is Any where torch is not typed
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return _Op(calls, func, args, kwargs or {}).run()

    return Derive()


class _Op:
    """One dispatched op."""

    def __init__(self, calls: Calls, func: Any, args: Any, kwargs: Any) -> None:
        self._calls = calls
        self._recorder = calls.recorder
        self._call: Callable[[], Any] = lambda: func(*args, **kwargs)
        self._func = func
        self._name = str(func).removeprefix("aten.").partition(".")[0]
        self._args, self._kwargs = args, kwargs
        self._reads: dict[str, list[Ids]] = {}
        self._writes: dict[str, list[Ids]] = {}
        self._device: Any = None
        self._blocks_on: str | None = None

    def run(self) -> Any:
        calls, recorder = self._calls, self._recorder
        if not recorder.on or (calls.here.busy and calls.here.captured is None):
            return self._call()
        unknown, on = False, None
        with recorder.guard("deriving"):
            if not calls.here.declared and recorder.regions and not _makes_a_view(self._func):
                unknown = not self._look()
            if (self._reads or self._writes) and self._device is not None:
                on = calls.stream_of(self._device)
            self._blocks_on = self._blocks()
        if recorder.fault_text is not None:
            return self._call()
        if unknown:
            calls.unseen(str(self._func))
            self._reads, self._writes = {}, {}
        if self._blocks_on is not None and calls.here.captured is None:
            with recorder.guard("deriving"):
                self._log(on)
            return calls.block(self._hook(), self._call, stream=self._blocks_on)
        if not self._reads and not self._writes:
            return self._call()
        with recorder.lock:
            result = self._call()
            with recorder.guard("deriving"):
                self._log(on)
        return result

    def _hook(self) -> Any:
        return self._recorder.ledger.hook("torch.deriving", expected=False)

    def _log(self, on: str | None) -> None:
        if not self._reads and not self._writes:
            return
        self._hook().fired()
        reads = {pool: np.unique(np.concatenate(found)) for pool, found in self._reads.items()}
        writes = {pool: np.unique(np.concatenate(found)) for pool, found in self._writes.items()}
        captured = self._calls.here.captured
        if captured is not None and on is not None:
            captured.add(self._recorder, self._name, reads, writes)
        else:
            self._recorder.access(self._name, on=on, reads=reads, writes=writes, site=_site())

    def _blocks(self) -> str | None:
        """The stream that the op waits for, if it is a copy between host and device that was not asked to be
        asynchronous, or a value taken to the host.
        """
        calls, op = self._calls, self._name
        if op not in _BLOCKING or self._func.namespace != "aten":
            return None
        source = self._argument("src" if op == "copy_" else "self")
        if 0 in source.shape or self._argument("non_blocking"):
            return None
        if op == "_local_scalar_dense":
            return calls.stream_of(source) if calls.surface.on_device(source) else None
        if op == "copy_":
            target = self._argument("self")
            return None if 0 in target.shape else calls.crossing(target, source)
        device, here = self._argument("device"), calls.surface.on_device(source)
        kind = getattr(device, "type", None)
        if source.is_meta or kind not in ("cuda", "cpu") or (kind == "cuda") == here:
            return None
        return calls.stream_of(source if here else device)

    def _argument(self, name: str) -> Any:
        for number, argument in enumerate(self._func._schema.arguments):
            if argument.name == name:
                given = number < len(self._args) and not argument.kwarg_only
                return self._args[number] if given else self._kwargs.get(name)
        return None

    # ── what is touched ───────────────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> bool:
        """Fills in what the op touches; False if that cannot be known."""
        own = self._func.namespace == "aten"
        on_device = self._calls.surface.on_device
        touches = False
        for number, argument in enumerate(self._func._schema.arguments):
            value = self._args[number] if number < len(self._args) else self._kwargs.get(argument.name)
            into = self._writes if argument.alias_info is not None and argument.alias_info.is_write else self._reads
            for tensor in _tensors(value):
                if self._device is None and on_device(tensor):
                    self._device = tensor
                for region in self._recorder.regions.find(tensor):
                    try:
                        if not region.blocks(tensor).size:
                            continue
                        touches = True
                        blocks = self._narrowed(region, tensor) if number == 0 else region.blocks(tensor)
                    except Unresolved:
                        return False
                    if blocks is None:
                        return False
                    if blocks.size:
                        into.setdefault(region.name, []).append(blocks)
        return own or not touches

    def _narrowed(self, region: Region, tensor: Any) -> Ids | None:
        """Of an indexed op the blocks that its index names, all of the view if the index is along another dimension."""
        name = self._name
        if name not in _INDEXED:
            return region.blocks(tensor)
        if name in ("index", "index_put_"):
            return self._by_tuple(region, tensor)
        if not tensor.dim():
            return region.blocks(tensor)
        return self._take(region, tensor, self._argument("dim") % tensor.dim(), self._argument("index"))

    def _by_tuple(self, region: Region, tensor: Any) -> Ids | None:
        given = [(dim, index) for dim, index in enumerate(self._argument("indices")) if index is not None]
        if len(given) != 1 or given[0][1].dtype.itemsize == 1:  # several, or a mask: all of the view
            if any(self._calls.surface.on_device(index) for _, index in given):
                return None
            return region.blocks(tensor)
        return self._take(region, tensor, *given[0])

    def _take(self, region: Region, tensor: Any, dim: int, index: Any) -> Ids | None:
        if self._calls.surface.on_device(index):
            return None
        ids = np.array(index.reshape(-1).tolist(), np.int64)
        if not ids.size or not tensor.shape[dim]:
            return ids[:0]
        parts = [region.blocks(tensor.select(dim, at)) for at in np.unique(ids % tensor.shape[dim]).tolist()]
        out: Ids = np.unique(np.concatenate(parts))
        return out


def _tensors(value: Any) -> Iterator[Any]:
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _makes_a_view(func: Any) -> bool:
    """An op whose result shares memory with an argument and which writes none: it touches nothing."""
    if "inplace_view" in {tag.name for tag in getattr(func, "tags", ())}:
        return True  # `t_`, `squeeze_`: the tensor is written in the schema's sense, its memory is not
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _site() -> str | None:
    """The line outside torch and kvsan that called."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if "/torch/" not in path and "/kvsan/" not in path and "contextlib" not in path:
            return f"{path.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return None
