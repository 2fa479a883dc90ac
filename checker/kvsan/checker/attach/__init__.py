"""Attaching to engines that run: `recorder` takes what hooks see, `torch` and `vllm` are the hooks, `patches` puts them
in place and takes them away again, `ledger` counts what was hooked and what was not.

Nothing here imports torch or vLLM before it is asked to.
"""
