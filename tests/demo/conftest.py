"""The shipped workflows on a real server, with real models: one deployment for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from omniflow_backend.cli.serve import prepare_roles
from omniflow_backend.cli.workflows import find_workflow
from omniflow_backend.client import WorkflowClient
from omniflow_backend.models.speech.clips import question_clip
from omniflow_backend.serve.launcher import Deployment, DeploymentOptions


@pytest.fixture(scope="session")
def deployment() -> Iterator[Deployment]:
    named = [find_workflow(name) for name in ("voice_chat", "chat", "vision_chat")]
    prepare_roles([workflow.workflow.compile() for workflow in named])
    with Deployment(DeploymentOptions(workflows=[workflow.reference for workflow in named])) as running:
        yield running


@pytest.fixture(scope="session")
def grpc_url(deployment: Deployment) -> str:
    assert deployment.endpoints is not None
    return deployment.endpoints.grpc


@pytest.fixture(scope="session")
def http_url(deployment: Deployment) -> str:
    assert deployment.endpoints is not None
    return deployment.endpoints.http


@pytest.fixture(scope="session")
def france() -> bytes:
    return question_clip("What is the capital of France?")


@pytest.fixture
def chat(grpc_url: str) -> Iterator[WorkflowClient]:
    with WorkflowClient(grpc_url, "chat") as client:
        yield client


@pytest.fixture
def voice_chat(grpc_url: str) -> Iterator[WorkflowClient]:
    with WorkflowClient(grpc_url, "voice_chat") as client:
        yield client


@pytest.fixture
def vision_chat(grpc_url: str) -> Iterator[WorkflowClient]:
    with WorkflowClient(grpc_url, "vision_chat") as client:
        yield client
