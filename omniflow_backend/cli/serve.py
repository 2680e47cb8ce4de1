"""``omniflow serve``: run workflows until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from omniflow_backend.cli.options import environment_int
from omniflow_backend.cli.workflows import SHIPPED, NamedWorkflow, find_workflow
from omniflow_backend.planning.plan import Plan
from omniflow_backend.serve.launcher import Deployment, DeploymentOptions, Endpoints
from omniflow_backend.serve.redis_server import REDIS_URL
from omniflow_backend.serve.triton_server import TritonOptions


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("serve", help="serve workflows on a Triton server until Ctrl-C")
    default = os.environ.get("OMNIFLOW_WORKFLOWS", " ".join(SHIPPED)).split()
    parser.add_argument(
        "workflows",
        nargs="*",
        default=default,
        help=f"shipped ones, FILE.py[:NAME] or package.module:NAME (OMNIFLOW_WORKFLOWS; default: {' '.join(default)})",
    )
    parser.add_argument(
        "--repository",
        type=Path,
        action="append",
        default=[],
        help="a directory of other Triton models to load as well",
    )
    parser.add_argument(
        "--host",
        default=os.environ.get("OMNIFLOW_HOST", "127.0.0.1"),
        help="address to listen on (OMNIFLOW_HOST; default: %(default)s)",
    )
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002), ("health", 8003)):
        variable = f"OMNIFLOW_{name.upper()}_PORT"
        parser.add_argument(
            f"--{name}-port",
            type=int,
            default=environment_int(variable, port),
            help=f"0 takes any free one ({variable}; default: %(default)s)",
        )
    parser.add_argument("--redis-url", help=f"use this Redis instead of an embedded one ({REDIS_URL})")
    parser.add_argument("--memory-limit", default="1GiB", help="for tensors between roles (default: %(default)s)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.redis_url:
        os.environ[REDIS_URL] = arguments.redis_url
    named = [find_workflow(name) for name in arguments.workflows]
    plans = [workflow.workflow.compile() for workflow in named]
    prepare_roles(plans)
    options = DeploymentOptions(
        workflows=[workflow.reference for workflow in named],
        repositories=arguments.repository,
        triton=TritonOptions(
            host=arguments.host,
            http_port=arguments.http_port or None,
            grpc_port=arguments.grpc_port or None,
            metrics_port=arguments.metrics_port or None,
        ),
        health_port=arguments.health_port,
        memory_limit=arguments.memory_limit,
    )
    signal.signal(signal.SIGTERM, _interrupt)
    deployment = Deployment(options)
    try:
        with Loading(named):
            endpoints = deployment.start()
        print(_welcome(endpoints, plans), flush=True)
        deployment.wait()
    except KeyboardInterrupt:
        print("\nstopping", file=sys.stderr)
    finally:
        deployment.stop()
    return 0


def prepare_roles(plans: list[Plan]) -> None:
    """Let every role make its weights, once, before processes start."""
    prepared = set()
    for role in (role for plan in plans for role in plan.roles.values()):
        key = (role.role, repr(sorted(role.options.items())))
        if key not in prepared:
            prepared.add(key)
            role.role.prepare(**role.options)


class Loading:
    """Shows that models load, with the time so far, on a terminal."""

    def __init__(self, named: list[NamedWorkflow]) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
        )
        self._what = f"loading models for {', '.join(workflow.workflow.name for workflow in named)}"

    def __enter__(self) -> None:
        self._progress.start()
        self._progress.add_task(self._what, total=None)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _welcome(endpoints: Endpoints, plans: list[Plan]) -> str:
    lines = [
        f"HTTP     {endpoints.http}",
        f"gRPC     {endpoints.grpc}",
        f"metrics  {endpoints.metrics}",
        f"health   {endpoints.health}",
    ]
    for plan in plans:
        lines += [
            "",
            f"{plan.name}: inputs {', '.join(plan.placeholders)}; outputs {', '.join(o.name for o in plan.outputs)}",
        ]
        if set(plan.placeholders) >= {"prompt"}:
            body = '{"prompt": "What is the capital of France?", "session_id": "me"}'
            lines += [
                f"  curl -N http://{endpoints.http}/v2/models/{plan.name}/generate_stream -d '{body}'",
                f"  curl http://{endpoints.http}/v2/models/{plan.name}_unary/generate -d '{body}'",
                f"  omniflow chat --url {endpoints.grpc} --workflow {plan.name}",
            ]
        lines += [
            "  python: from omniflow_backend.client import WorkflowClient",
            f"          for item in WorkflowClient('{endpoints.grpc}', '{plan.name}').stream({{...}}): print(item)",
        ]
    return "\n".join([*lines, "", "Ctrl-C stops."])
