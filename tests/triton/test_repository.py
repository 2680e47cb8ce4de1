"""Generated model directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from omniflow_backend import ActivationContext, Int, Role, Tensor, Text, Workflow, interface
from omniflow_backend.errors import OmniFlowError
from omniflow_backend.triton.references import BadReference, reference_of, resolve
from omniflow_backend.triton.repository import merge, role_directory, workflow_directories, write_repository
from omniflow_backend.triton.role_surface import RoleSurface
from omniflow_backend.triton.tensors import NoTensor

ROOT = Path(__file__).parents[2]
SERVED = Path(__file__).with_name("served.py")
SHIPPED = tuple(f"omniflow_backend.models.{name}:workflow" for name in ("voice_chat", "chat", "vision_chat"))


class Mixed(Role):
    """Interfaces that agree, and one that does not."""

    @interface(inputs={"text": Text, "rows": Tensor("float32", (2, -1))}, outputs={"text": Text})
    def first(self, ctx: ActivationContext, text: str, rows: Any) -> Any: ...

    @interface(inputs={"rows": Tensor("float32", (3, 4))}, outputs={"n": Int})
    def second(self, ctx: ActivationContext, rows: Any) -> Any: ...

    @interface(inputs={"text": Int}, outputs={"n": Int})
    def third(self, ctx: ActivationContext, text: int) -> Any: ...

    @interface(inputs={"anything": Tensor}, outputs={"n": Int})
    def fourth(self, ctx: ActivationContext, anything: Any) -> Any: ...


def parsed(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig())


def test_the_shipped_repository_is_what_the_generator_writes(tmp_path: Path) -> None:
    directories = [model for reference in SHIPPED for model in workflow_directories(reference)]
    write_repository(directories, tmp_path)
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    shipped = ROOT / "model_repository"
    present = {
        path.relative_to(shipped): path.read_text() for path in shipped.rglob("*") if path.suffix in (".pbtxt", ".py")
    }
    command = f"python -m omniflow_backend.triton.repository model_repository {' '.join(SHIPPED)}"
    assert present == written, f"write it again: {command}"


def test_configs_are_valid_and_carry_every_character() -> None:
    options = {"text": 'quote " backslash \\ newline \n grüße', "list": [1, None]}
    config = parsed(role_directory("mixed", resolve(f"{SERVED}:Plain"), options).config())
    assert config.name == "mixed"
    assert not config.model_transaction_policy.decoupled
    assert resolve(config.parameters["role"].string_value).__name__ == "Plain"
    import json

    assert json.loads(config.parameters["options"].string_value) == options


def test_a_workflow_is_its_roles_an_orchestrator_and_a_front() -> None:
    models = {model.name: model for model in workflow_directories(f"{SERVED}:diamond")}
    assert set(models) == {"source", "worker", "diamond", "diamond_unary"}
    orchestrator, front = parsed(models["diamond"].config()), parsed(models["diamond_unary"].config())
    assert orchestrator.model_transaction_policy.decoupled
    assert not front.model_transaction_policy.decoupled
    assert {tensor.name for tensor in orchestrator.input} >= {
        "text",
        "n",
        "session_id",
        "timeout_ms",
        "cancel_previous",
    }
    assert {tensor.name for tensor in front.output} == {"both", "count", "all", "event", "trace"}
    assert parsed(models["source"].config()).model_transaction_policy.decoupled


def test_each_replica_is_a_model_of_its_own() -> None:
    flow = Workflow("twice")
    flow.output(
        "y", flow.role("plain", resolve(f"{SERVED}:Plain"), replicas=2).shout(text=flow.placeholder("x", Text)).text
    )
    names = [model.name for model in workflow_directories("unused", flow.compile())]
    assert names == ["plain", "plain__2", "twice", "twice_unary"]


def test_interfaces_that_cannot_share_a_tensor_are_left_to_workflows() -> None:
    surface = RoleSurface.of(Mixed.interfaces)
    assert list(surface.interfaces) == ["first", "second"]
    assert surface.inputs["rows"].dims == (-1, -1)
    assert "in another interface" in surface.unreachable["third"]
    assert "needs a dtype and a rank" in surface.unreachable["fourth"]


@pytest.mark.parametrize(("placeholder", "output"), [("attach", "y"), ("x", "attached")])
def test_the_names_of_our_own_tensors_are_refused(placeholder: str, output: str) -> None:
    flow = Workflow("reserved")
    shout = flow.role("plain", resolve(f"{SERVED}:Plain")).shout(text=flow.placeholder(placeholder, Text))
    flow.output(output, shout.text)
    with pytest.raises(NoTensor, match="reserved"):
        workflow_directories("unused", flow.compile())


def test_two_models_of_one_name_must_be_the_same() -> None:
    plain = resolve(f"{SERVED}:Plain")
    assert list(merge([role_directory("a", plain, {}), role_directory("a", plain, {})])) == ["a"]
    with pytest.raises(OmniFlowError, match="'a'"):
        merge([role_directory("a", plain, {}), role_directory("a", plain, {"mark": "?"})])


def test_a_class_is_found_again_by_its_reference() -> None:
    plain = resolve(f"{SERVED}:Plain")
    assert resolve(reference_of(plain)) is plain
    assert resolve(reference_of(Role)) is Role

    class Local(Role):
        pass

    with pytest.raises(BadReference, match="inside a function"):
        reference_of(Local)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nonsense", "not a reference"),
        ("no.such.module:x", "no module 'no'"),
        ("/no/such/file.py:x", "no file"),
        ("json:nothing", "has no 'nothing'"),
    ],
)
def test_a_bad_reference_says_why(reference: str, message: str) -> None:
    with pytest.raises(BadReference, match=message):
        resolve(reference)
