"""The missing fences of vLLM's simple offload connector, put in from outside, for acceptance runs only.

`install("store" | "load" | "all" | "fixed")`: at submission a compute-done event is recorded on the current stream,
and the copy stream waits for it before the copy: in front of stores, of loads, or of both; `fixed` is `all` with stores
that read their source in stream order. No part of kvsan: a sanitizer that mends what it looks at proves nothing.

Relied on: `SimpleCPUOffloadWorker` submits through `DmaCopyBackend.launch_copy`, and the copy thread copies in the
order of submission (one queue). Works before or after kvsan's own hooks are in place.

Where vLLM starts processes of its own, each has to be mended: `plugin` is an entry point of `vllm.general_plugins` that
puts in what `KVSAN_TEST_FENCE` names.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from typing import Any

_MARK = "_fenced_from_outside"
STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM


def plugin() -> None:
    install(os.environ.get("KVSAN_TEST_FENCE", "none"))


def install(mode: str) -> None:
    """Once a process; a forked one has what its parent has."""
    if mode == "none":
        return
    import torch
    from vllm.v1.simple_kv_offload import copy_backend

    if getattr(copy_backend, _MARK, None) is not None:
        return
    setattr(copy_backend, _MARK, mode)

    fenced = {"store": (True,), "load": (False,), "all": (True, False), "fixed": (True, False)}[mode]
    events: deque[Any] = deque()
    backends: list[Any] = []
    cls: Any = copy_backend.DmaCopyBackend
    launch, init, copy = cls.launch_copy, cls.init, copy_backend.copy_blocks

    @functools.wraps(launch)
    def launch_copy(self: Any, src_blocks: Any, dst_blocks: Any, is_store: bool, *args: Any, **kwargs: Any) -> Any:
        event = None
        if is_store in fenced:
            event = torch.Event()
            event.record(torch.cuda.current_stream())
        events.append((is_store, event))
        return launch(self, src_blocks, dst_blocks, is_store, *args, **kwargs)

    @functools.wraps(init)
    def init_backend(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = init(self, *args, **kwargs)
        backends.append(self)
        if mode == "fixed":
            self._store_params.attrs.srcAccessOrder = STREAM_ORDER
        return done

    @functools.wraps(copy)
    def copy_blocks(src_block_ids: Any, dst_block_ids: Any, params: Any) -> Any:
        is_store, event = events.popleft()
        if event is not None:
            backend = backends[-1]
            (backend._store_stream if is_store else backend._load_stream).wait_event(event)
        return copy(src_block_ids, dst_block_ids, params)

    cls.launch_copy, cls.init, copy_backend.copy_blocks = launch_copy, init_backend, copy_blocks
