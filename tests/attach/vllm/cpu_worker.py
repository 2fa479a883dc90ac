"""A worker without a model: it names no kernels, but issues the stream traffic of vLLM's own model runners.

The connector's worker half, its copy thread and its completion lists are vLLM's, and so is the code that calls them
(`KVConnectorModelRunnerMixin` for the older runner, `ActiveKVConnector` for the newer). A forward is one node on the
compute stream; tokens are random and come back as `AsyncModelRunnerOutput`, whose copy stream waits for compute and
records the event on which the host blocks.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized, get_kv_transfer_group
from vllm.forward_context import set_forward_context
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.gpu.kv_connector import get_kv_connector
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin
from vllm.v1.worker.worker_base import WorkerBase

LAYERS = 2
SEED = 0
WINDOW = 128
RUNNER = "v1"


class AsyncTokens(AsyncModelRunnerOutput):
    """As `AsyncGPUModelRunnerOutput`: what it does to streams and events, without the tensors."""

    def __init__(self, output: ModelRunnerOutput, tokens: list[list[int]], copy_stream: Any) -> None:
        self._output, self._tokens = output, tokens
        self._event = torch.Event()
        default_stream = torch.cuda.current_stream()
        with torch.cuda.stream(copy_stream):
            copy_stream.wait_stream(default_stream)
            self._event.record()

    def get_output(self) -> ModelRunnerOutput:
        self._event.synchronize()
        self._output.sampled_token_ids = self._tokens
        return self._output


class _Runner:
    """What both runners need."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.random = random.Random(SEED)
        cuda: Any = torch.cuda
        self.copy_stream = cuda.Stream()
        self.prepare_event = torch.Event()
        self.totals: dict[str, int] = {}

    def caches(self, config: Any) -> dict[str, torch.Tensor]:
        self.config = config
        out = {}
        for tensor in config.kv_cache_tensors:
            raw = torch.zeros(tensor.size // 4, dtype=torch.float32)
            for layer in tensor.shared_by:
                out[layer] = raw.view(config.num_blocks, -1)
        return out

    def take(self, output: Any) -> None:
        for request in output.finished_req_ids:
            self.totals.pop(request, None)
        for new in output.scheduled_new_reqs:
            self.totals[new.req_id] = len(new.prompt_token_ids)
        self.prepare_event.synchronize()
        self.prepare_event.record()

    def launch(self) -> None:
        stream: Any = torch.cuda.current_stream()
        stream.chain.add()

    def sample(self, output: Any) -> tuple[ModelRunnerOutput, list[list[int]]]:
        done = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        done.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        ids = list(output.num_scheduled_tokens)
        tokens = []
        for request in ids:
            whole = done[request] + output.num_scheduled_tokens[request] >= self.totals[request]
            tokens.append([self.random.randrange(3, 1000) if self.random.random() > 0.01 else 2] if whole else [])
        made = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request: at for at, request in enumerate(ids)},
            sampled_token_ids=[],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        return made, tokens


class OlderRunner(_Runner, KVConnectorModelRunnerMixin):
    """The order of calls of `vllm.v1.worker.gpu_model_runner`."""

    def initialize_kv_cache(self, kv_cache_config: Any) -> None:
        get_kv_transfer_group().register_kv_caches(self.caches(kv_cache_config))

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        get_kv_transfer_group().handle_preemptions(scheduler_output.kv_connector_metadata)
        self.take(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return self.kv_connector_no_forward(scheduler_output, self.vllm_config)
        with (
            set_forward_context(None, self.vllm_config),
            self.maybe_get_kv_connector_output(scheduler_output) as connector_output,
        ):
            self._model_forward()
        self._state = (scheduler_output, connector_output)
        return None

    def _model_forward(self) -> None:
        self.launch()

    def sample_tokens(self, grammar_output: Any) -> Any:
        scheduler_output, connector_output = self._state
        made, tokens = self.sample(scheduler_output)
        made.kv_connector_output = connector_output
        return AsyncTokens(made, tokens, self.copy_stream)


class NewerRunner(_Runner):
    """The order of calls of `vllm.v1.worker.gpu.model_runner`."""

    def initialize_kv_cache(self, kv_cache_config: Any) -> None:
        self.kv_connector = get_kv_connector(self.vllm_config, self.caches(kv_cache_config))

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None, dummy_run: bool = False) -> Any:
        self.take(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return self.kv_connector.no_forward(scheduler_output)
        with set_forward_context(None, self.vllm_config):
            self.kv_connector.pre_forward(scheduler_output)
            self.launch()
        self._state = scheduler_output
        return None

    def sample_tokens(self, grammar_output: Any) -> Any:
        made, tokens = self.sample(self._state)
        found = AsyncTokens(made, tokens, self.copy_stream)
        made.kv_connector_output = self.kv_connector.post_forward(self._state.finished_req_ids)
        return found


class SimWorker(WorkerBase):
    """Half of its layers have a sliding window, the others full attention."""

    pump: Any = None

    def init_device(self) -> None:
        from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

        self.device = torch.device("cpu")
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, self.rank, self.distributed_init_method, self.local_rank, "gloo")
        ensure_model_parallel_initialized(1, 1)
        self.model_runner = (OlderRunner if RUNNER == "v1" else NewerRunner)(self.vllm_config)

    def load_model(self, **_: Any) -> None:
        return None

    def get_kv_cache_spec(self) -> dict[str, Any]:
        size = self.vllm_config.cache_config.block_size
        common: dict[str, Any] = {"block_size": size, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
        specs: dict[str, Any] = {}
        for layer in range(LAYERS):
            specs[f"model.layers.{2 * layer}.attn"] = SlidingWindowSpec(**common, sliding_window=WINDOW)
            specs[f"model.layers.{2 * layer + 1}.attn"] = FullAttentionSpec(**common)
        return specs

    def determine_available_memory(self) -> int:
        return 1 << 26

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)
        self.model_runner.initialize_kv_cache(kv_cache_config)

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        return None

    def compile_or_warm_up_model(self) -> Any:
        from vllm.v1.worker import worker_base

        times = getattr(worker_base, "CompilationTimes", None)
        return times(0.0, 0.0) if times else 0.0

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def get_kv_connector_handshake_metadata(self) -> None:
        return None

    def execute_model(self, scheduler_output: Any) -> Any:
        return self.model_runner.execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        done = self.model_runner.sample_tokens(grammar_output)
        if self.pump is not None:  # in a process of its own nobody else lets the copy thread go on
            self.pump()
        return done

    def shutdown(self) -> None:
        return None
