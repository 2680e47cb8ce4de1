"""Builds SGLang's ModelRunner inside this process, on the CPU."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omniflow_backend.compute.sglang import environment
from omniflow_backend.deployment import memory_endpoint


@dataclass(frozen=True, slots=True)
class RunnerConfiguration:
    """What a runner is built with.

    ``checkpoint`` is an absolute directory; ``context_length`` the most tokens one request may have, prompt and
    answer together; ``total_slots`` the tokens whose keys and values fit in memory at once; ``maximum_running`` the
    most requests in one batch. With ``share_weights`` the processes of a deployment that have the same checkpoint keep
    one copy of its weights, if a MemoryManager runs there; without, or elsewhere, this one has weights of its own.
    """

    checkpoint: Path
    context_length: int = 2048
    total_slots: int = 8192
    maximum_running: int = 16
    dtype: str = "float32"
    threads: int = 1
    share_weights: bool = True

    def __post_init__(self) -> None:
        if not (self.checkpoint / "config.json").is_file():
            raise ValueError(f"no model checkpoint at {self.checkpoint}: it has no config.json")
        if self.total_slots < self.context_length:
            raise ValueError(
                f"total_slots={self.total_slots} holds less than one request of "
                f"context_length={self.context_length} tokens"
            )


def build_runner(configuration: RunnerConfiguration) -> Any:
    """SGLang's ``ModelRunner`` with weights, memory pools and attention backend, ready for forwards in this thread.

    A process can build one: SGLang's parallel groups and published configuration belong to the process. Raises
    ``RuntimeError`` on the second.
    """
    environment.prepare(configuration.threads)
    logging.getLogger("sglang").setLevel(logging.ERROR)

    import torch
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.distributed import bootstrap
    from sglang.srt.environ import envs
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank
    from sglang.srt.server_args import PortArgs, ServerArgs

    from omniflow_backend.compute.sglang.shared_weights import weights_shared

    torch.set_num_threads(configuration.threads)
    arguments = ServerArgs(
        model_path=str(configuration.checkpoint),
        device="cpu",
        dtype=configuration.dtype,
        context_length=configuration.context_length,
        max_total_tokens=configuration.total_slots,
        max_running_requests=configuration.maximum_running,
        attention_backend="torch_native",
        sampling_backend="pytorch",
        grammar_backend="none",
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        disable_radix_cache=True,
        mem_fraction_static=0.5,
        log_level="error",
    )
    arguments.resolve_once()
    publish(
        arguments,
        role="scheduler",
        ranks=SpawnRanks(world_rank=spawn_world_rank(arguments, tp_rank=0, pp_rank=0), gpu_id=0),
    )
    ports = PortArgs.init_new(arguments)
    model_configuration = ModelConfig.from_server_args(arguments)
    # The group of one process meets in a file: no TCP port to collide with a neighbour's.
    meeting = envs.SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE
    with tempfile.TemporaryDirectory(prefix="omniflow-") as directory, meeting.override(f"file://{directory}/group"):
        bootstrap.init_parallel_runtime(server_args=arguments, device="cpu", dist_port=ports.nccl_port)
    bootstrap.init_layer_runtime(model_config=model_configuration)
    with weights_shared(memory_endpoint() if configuration.share_weights else None):
        runner = ModelRunner(
            model_config=model_configuration,
            mem_fraction_static=arguments.mem_fraction_static,
            gpu_id=0,
            nccl_port=ports.nccl_port,
            server_args=arguments,
        )
    runner.alloc_memory_pool()
    runner.init_attention_backends()
    runner.init_cuda_graphs()
    return runner
