"""SGLang-Omni: coordinator and stages of a pipeline, in one process or with a process for each stage.

``sglang_omni_rival.py one|tuned|processes``. ``one`` is what a plain configuration gives; ``tuned`` spares the stages'
threads and has fan-outs pass objects; ``processes`` is the runner that its server uses.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum

import sglang_omni
from protocol import Call, serve
from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline import Coordinator
from sglang_omni.pipeline.local_dispatch import LocalStageDispatcher
from sglang_omni.pipeline.mp_runner import MultiProcessPipelineRunner, build_stage_groups
from sglang_omni.pipeline.runtime_config import prepare_pipeline_runtime
from sglang_omni.pipeline.stage_workers import construct_stage
from sglang_omni.proto import OmniRequest

START_SECONDS = 240
CHAIN = ("s0", "s1", "s2", "s3", "s4")


class Placement(Enum):
    """Where the stages run, and how well they are set up."""

    ONE = "one"
    TUNED = "tuned"
    PROCESSES = "processes"


def configuration(graph: str, placement: Placement, sockets: str) -> PipelineConfig:
    """The pipeline of ``graph``."""
    targets: dict[str, list[str]] = {"a": ["b", "c"], "b": ["j"], "c": ["j"], "j": []}
    if graph == "chain":
        targets = {name: list(CHAIN[number + 1 : number + 2]) for number, name in enumerate(CHAIN)}
    sources = {name: [source for source, ends in targets.items() if name in ends] for name in targets}
    tuned = placement is Placement.TUNED
    stages = [
        StageConfig(
            name=name,
            process=name if placement is Placement.PROCESSES else "stages",
            factory_path=f"sglang_omni_stages.{'inline_step' if tuned else 'step'}",
            next=ends[0] if len(ends) == 1 else ends or None,
            terminal=not ends,
            wait_for=sources[name] if len(sources[name]) > 1 else None,
            merge_fn="sglang_omni_stages.join" if len(sources[name]) > 1 else None,
            project_payload=dict.fromkeys(ends, "sglang_omni_stages.own_copy") if tuned and len(ends) > 1 else {},
        )
        for name, ends in targets.items()
    ]
    return PipelineConfig(
        model_path="none", name=graph, stages=stages, endpoints=EndpointsConfig(base_path=f"{sockets}/{graph}")
    )


@asynccontextmanager
async def one_process(config: PipelineConfig) -> AsyncIterator[Coordinator]:
    """Coordinator and stages on this event loop."""
    prepared = prepare_pipeline_runtime(config)
    groups = build_stage_groups(
        config,
        stages_cfg=prepared.stages_cfg,
        endpoints=prepared.endpoints,
        placement_plan=prepared.placement_plan,
        process_plan=prepared.process_plan,
        replica_topology=prepared.replica_topology,
    )
    dispatcher = LocalStageDispatcher()
    log = logging.getLogger("rival")
    specs = [spec for group in groups for process in group.process_specs for spec in process.stage_specs]
    stages = [construct_stage(spec, log, local_dispatcher=dispatcher) for spec in specs]
    dispatcher.register_many(stages)
    coordinator = Coordinator(
        completion_endpoint=prepared.endpoints["completion"],
        abort_endpoint=prepared.endpoints["abort"],
        entry_stage=prepared.entry_stage,
        terminal_stages=config.terminal_stages or None,
        replica_topology=prepared.replica_topology,
        logical_process_plan=prepared.logical_process_plan,
    )
    await coordinator.start()
    running = [asyncio.create_task(coordinator.run_completion_loop())]
    try:
        for stage in stages:
            await stage.start()
            coordinator.register_stage(stage.name, prepared.endpoints[f"stage_{stage.name}"])
            running.append(asyncio.create_task(stage.run()))
        yield coordinator
    finally:
        await coordinator.shutdown_stages()
        await asyncio.wait(running[1:], timeout=5)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await coordinator.stop()
        prepared.runtime_dir.close()


@asynccontextmanager
async def process_per_stage(config: PipelineConfig) -> AsyncIterator[Coordinator]:
    """Coordinator here, each stage a process."""
    runner = MultiProcessPipelineRunner(config)
    await runner.start(timeout=START_SECONDS)
    try:
        yield runner.coordinator
    finally:
        await runner.stop()


def caller(coordinator: Coordinator) -> Call:
    numbers = itertools.count()
    return lambda: coordinator.submit(f"r{next(numbers)}", OmniRequest(inputs=0))


@asynccontextmanager
async def graphs(placement: Placement) -> AsyncIterator[Mapping[str, Call]]:
    opener = process_per_stage if placement is Placement.PROCESSES else one_process
    with tempfile.TemporaryDirectory(prefix="omni-") as sockets:
        async with AsyncExitStack() as stack:
            yield {
                graph: caller(await stack.enter_async_context(opener(configuration(graph, placement, sockets))))
                for graph in ("chain", "diamond")
            }


if __name__ == "__main__":
    # SGLang installs a root handler at INFO, which would log every request.
    logging.getLogger().setLevel(logging.ERROR)
    asyncio.run(serve(graphs(Placement(sys.argv[1])), sglang_omni.__version__))
