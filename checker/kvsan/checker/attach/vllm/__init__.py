"""kvsan for vLLM: the `vllm.general_plugins` entry point, which vLLM calls in every process before it starts work.

Off (no `KVSAN` in the environment) it returns at once and has loaded nothing. On, it starts the session and puts the
hooks in place; called again in the same process it does nothing.

What is covered: `SimpleCPUOffloadConnector` and `OffloadingConnector`, both model runners, eager and CUDA graphs, one
process or several, full, sliding, chunked, Mamba and cross attention. What is not, is said in the ledger and makes the
verdict Incomplete: other connectors, speculative decoding, micro-batches on two streams, ROCm.

`hooks` puts all of it in place; `steps` turns a `SchedulerOutput` into the blocks that a forward reads and writes;
`pools`, `scheduler`, `runners`, `simple`, `offloading` and `messages` each wrap one part of vLLM.
"""

from importlib import import_module
from os import environ


def plugin() -> None:
    """The entry point. Near free unless `KVSAN` is set to something but 0."""
    if environ.get("KVSAN", "0") in ("", "0"):
        return
    import_module("kvsan.checker.session")  # first: it says in one line what is missing
    from kvsan.checker.attach.vllm.hooks import start

    start()
