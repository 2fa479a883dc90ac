"""Attaches kvsan to the engine of `cpu_engine` as a user's process would have it, and reports when the run is over."""

from __future__ import annotations

import contextlib
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvsan.checker import check_trace, open_trace, session
from kvsan.checker.attach.vllm import runners
from kvsan.checker.attach.vllm.hooks import install
from kvsan.checker.merge import merge_traces
from kvsan.checker.options import Options


@contextlib.contextmanager
def attached(worker: Any, options: Any) -> Iterator[Callable[[], dict[str, Any]]]:
    """Gives a function that ends the session and returns what `kvsan check` says of its trace, with `live`: what the
    session said itself.
    """
    folder = Path(tempfile.mkdtemp(prefix="kvsan-sim-"))
    path = options.trace or str(folder / "trace.jsonl.gz")
    log = str(folder / "log")
    given = Options(trace=str(folder / "part-%p.jsonl.gz") if options.apart else path, log_path=log, incident=0)
    debug = session.start(given)
    hooked = install(debug)
    # The real runners are not there: ours are hooked in the same two ways.
    older, newer = (types.SimpleNamespace(GPUModelRunner=cls) for cls in (worker.OlderRunner, worker.NewerRunner))
    runners.hook_runner(hooked, older, inside=True)
    runners.hook_runner(hooked, newer, inside=False)
    if options.fence != "none":
        from gpu import fences

        fences.install(options.fence)

    def report() -> dict[str, Any]:
        live = debug.close().document()
        if options.apart:
            merge_traces(sorted(str(part) for part in folder.glob("part-*")), path)
        with open_trace(path) as trace:
            document = check_trace(trace, each_edge=True).document()  # as the live check reports
        document["live"] = live
        document["faults"] = [debug.recorder.fault_text] if debug.recorder.fault_text else []
        return document

    yield report
