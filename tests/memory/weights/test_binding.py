"""Modules built without memory and bound to shared weights; writes into bound parameters do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from memory_manager.weights.client import WeightClient
from omniflow_backend.compute.weight_binding import bind, parameters_on_meta, publish, skipping_writes
from tests.memory.weights.models import NAMES, Small, load, load_halves, values

CPU = torch.device("cpu")
PARTITION = "tp0/1"
Clients = Callable[[str], WeightClient]


def built(**arguments: Any) -> Small:
    with parameters_on_meta():
        return Small(**arguments)


def published(client: WeightClient, value: float, **arguments: Any) -> Small:
    """A model whose parameters are all `value`, published as checkpoint `c`."""
    model = Small(**arguments)
    load(model, value)
    with client.loading(5):
        publish(client, "c", PARTITION, dict(model.named_parameters()))
    return model


class TestBuilding:
    def test_parameters_have_no_memory_and_buffers_have(self) -> None:
        model = built()
        assert all(parameter.is_meta for parameter in model.parameters())
        assert model.positions.tolist() == list(range(8))

    def test_a_parameter_stays_the_same_object_with_its_attributes_and_ties(self) -> None:
        model = built()
        assert model.tied is model.first.weight
        bind(model, {}, CPU)
        assert model.tied is model.first.weight
        assert model.scale.loader is load_halves

    def test_it_ends_with_the_context(self) -> None:
        built()
        assert not any(parameter.is_meta for parameter in Small().parameters())


@pytest.mark.usefixtures("manager")
class TestBinding:
    def test_bound_parameters_are_the_published_bytes(self, weight_client: Clients) -> None:
        published(weight_client("owner"), 3.0)
        model = built()
        bound = bind(model, weight_client("follower").find("c", PARTITION), CPU)
        assert sorted(bound) == NAMES
        assert values(model) == {name: [3.0] for name in NAMES}

    @pytest.mark.parametrize("other", [{"width": 4}, {"dtype": torch.float16}], ids=["shape", "dtype"])
    def test_what_does_not_match_is_local(self, weight_client: Clients, other: dict[str, Any]) -> None:
        published(weight_client("owner"), 3.0)
        model = built(**other)
        assert bind(model, weight_client("follower").find("c", PARTITION), CPU) == {}
        load(model, 5.0)
        assert values(model) == {name: [5.0] for name in NAMES}

    def test_another_partition_is_not_found(self, weight_client: Clients) -> None:
        published(weight_client("owner"), 3.0)
        assert weight_client("follower").find("c", "tp1/2") == {}

    def test_a_follower_loads_only_what_it_lacks_and_publishes_that(self, weight_client: Clients) -> None:
        class Larger(Small):
            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Linear(8, 2, bias=False)

        published(weight_client("owner"), 3.0)
        follower = weight_client("follower")
        with follower.loading(5):
            with parameters_on_meta():
                model = Larger()
            bound = bind(model, follower.find("c", PARTITION), CPU)
            with skipping_writes(bound.values()):
                load(model, 5.0)
            publish(follower, "c", PARTITION, {"head.weight": model.head.weight})
        assert values(model) == {**{name: [3.0] for name in NAMES}, "head.weight": [5.0]}
        assert sorted(weight_client("third").find("c", PARTITION)) == sorted([*NAMES, "head.weight"])

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool])
    def test_every_dtype_travels(self, weight_client: Clients, dtype: torch.dtype) -> None:
        values = torch.arange(6).reshape(2, 3).to(dtype)
        owner = weight_client("owner")
        with owner.loading(5):
            publish(owner, "c", PARTITION, {"p": nn.Parameter(values, requires_grad=False)})
        module = nn.Module()
        with parameters_on_meta():
            module.p = nn.Parameter(torch.empty(2, 3, dtype=dtype), requires_grad=False)
        bind(module, weight_client("follower").find("c", PARTITION), CPU)
        assert torch.equal(module.p.view(torch.uint8), values.view(torch.uint8))

    def test_what_is_not_contiguous_stays_local(self, weight_client: Clients) -> None:
        owner = weight_client("owner")
        with owner.loading(5):
            parameters = {"p": nn.Parameter(torch.zeros(2, 3).T, requires_grad=False)}
            assert publish(owner, "c", PARTITION, parameters) == {}


class Fused(nn.Parameter):
    """A parameter class of an engine, with a method that loads."""

    def load_rows(self, loaded: torch.Tensor) -> None:
        self.data.narrow(0, 0, len(loaded)).copy_(loaded)


def assign_data(parameter: nn.Parameter) -> None:
    parameter.data = torch.ones(4, 4)


def add_in_place(parameter: nn.Parameter) -> None:
    parameter += 1


WRITES: dict[str, Callable[[nn.Parameter], Any]] = {
    "copy": lambda p: p.copy_(torch.ones(4, 4)),
    "copy into data": lambda p: p.data.copy_(torch.ones(4, 4)),
    "a part": lambda p: p.data.narrow(0, 1, 2).copy_(torch.ones(2, 4)),
    "a view of a part": lambda p: p.data[1:].view(-1).fill_(1),
    "one of several": lambda p: p.chunk(2)[1].data.zero_().add_(1),
    "items": lambda p: p.data.__setitem__(0, 1.0),
    "operator": add_in_place,
    "out": lambda p: torch.add(p, 1, out=p.data),
    "data": assign_data,
    "initialization": lambda p: nn.init.uniform_(p),
    "detached": lambda p: p.detach().mul_(0).add_(1),
    "transposed": lambda p: p.t().copy_(torch.ones(4, 4)),
}


class TestSkippingWrites:
    @pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
    def test_in_place_operations_do_nothing_until_the_end(self, write: Callable[[nn.Parameter], Any]) -> None:
        parameter = nn.Parameter(torch.full((4, 4), 7.0), requires_grad=False)
        with skipping_writes([parameter]):
            write(parameter)
        assert parameter.unique().tolist() == [7.0]
        write(parameter)
        assert parameter.unique().tolist() != [7.0]

    def test_reading_works_and_gives_plain_tensors(self) -> None:
        parameter = nn.Parameter(torch.full((2, 2), 7.0), requires_grad=False)
        with skipping_writes([parameter]):
            total = parameter.sum()
            target = torch.zeros(2, 2)
            target.copy_(parameter)
            copied = parameter.clone().fill_(1)
        assert (type(total), total.item()) == (torch.Tensor, 28.0)
        assert (target.unique().tolist(), copied.unique().tolist()) == ([7.0], [1.0])

    def test_a_parameter_class_keeps_its_methods_meanwhile_and_comes_back(self) -> None:
        parameter = Fused(torch.full((2, 2), 7.0), requires_grad=False)
        with skipping_writes([parameter]):
            assert isinstance(parameter, Fused)
            parameter.load_rows(torch.ones(1, 2))
        assert (type(parameter), parameter.unique().tolist()) == (Fused, [7.0])

    def test_other_parameters_are_written(self) -> None:
        model = Small()
        with skipping_writes([model.scale]):
            load(model, 5.0)
        assert {name: found for name, found in values(model).items() if name != "scale"} == {
            name: [5.0] for name in NAMES if name != "scale"
        }
