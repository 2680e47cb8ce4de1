"""Torch modules over shared weights: built without memory, bound to what is there, loaded only where it is not."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from memory_manager.weights.client import SharedBytes, WeightClient
from memory_manager.weights.messages import MAX_ENTRIES, WeightSpec

_PUBLICATION_BYTES = 64 * 1024**2


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules that this thread builds have their parameters on `meta`: shapes without memory.

    Everything else of a module (buffers, attributes) is made as usual: it belongs to the process. A parameter stays the
    same Python object, so that what its module attaches to it later is there.
    """
    thread = threading.get_ident()
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None and threading.get_ident() == thread:
            replace_storage(parameter, parameter.detach().to("meta"))

    nn.Module.register_parameter = register_on_meta  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def replace_storage(parameter: nn.Parameter, data: torch.Tensor) -> None:
    """`parameter` stays the same object, of the same class and attributes, and has the values of `data`, not copied."""
    new = torch.Tensor._make_subclass(type(parameter), data, parameter.requires_grad)
    new.__dict__.update(parameter.__dict__)
    torch.utils.swap_tensors(parameter, new)


def bind(module: nn.Module, shared: dict[str, SharedBytes], device: torch.device) -> dict[str, nn.Parameter]:
    """Bind every parameter on `meta` to the shared one of its name, shape and dtype; others get memory on `device`.

    Returns:
        The bound ones, by name.
    """
    bound = {}
    for name, parameter in module.named_parameters():
        if not parameter.is_meta:
            continue
        found = shared.get(name)
        if found is not None and _spec(name, parameter) == _spec_of(found):
            replace_storage(parameter, _tensor(found))
            bound[name] = parameter
        else:
            layout = parameter.shape, parameter.stride()
            replace_storage(parameter, torch.empty_strided(*layout, dtype=parameter.dtype, device=device))
    return bound


def publish(
    client: WeightClient, checkpoint: str, partition: str, parameters: dict[str, nn.Parameter]
) -> dict[str, nn.Parameter]:
    """Copy parameters into shared memory, for others to find, and bind them to the copies; only while `loading`.

    At most one copy and 64 MiB (or the largest parameter) exist at a time. What is not contiguous stays local.

    Returns:
        The bound ones, by name.

    Raises:
        RequestRefused, MemoryManagerUnavailable: see `errors`. Those not yet bound stay as they are.
    """
    plain = {name: parameter for name, parameter in parameters.items() if parameter.is_contiguous()}
    for group in _groups(plain):
        reservation = client.reserve(checkpoint, partition, [_spec(name, plain[name]) for name in group])
        for name in group:
            _tensor(reservation.parameters[name]).copy_(plain[name].detach())
        if any(plain[name].is_cuda for name in group):
            # Nothing orders the work of two processes on a GPU.
            torch.cuda.synchronize()
        shared = reservation.publish()
        for name in group:
            replace_storage(plain[name], _tensor(shared[name]))
    return plain


@contextlib.contextmanager
def skipping_writes(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Writes into these parameters do nothing meanwhile: see `SkipWriteParameter`."""
    classes = [(parameter, type(parameter)) for parameter in parameters]
    for parameter, kind in classes:
        parameter.__class__ = _skipping(kind)
    try:
        yield
    finally:
        for parameter, kind in classes:
            parameter.__class__ = kind


class SkipWriteParameter(nn.Parameter):
    """A parameter that has its values already: in-place operations on it, and on views of it, do nothing (paper, 4.3).

    Loaders that fill all parameters of a module thus leave it alone. What reads works as ever, and its results are
    plain tensors. A custom kernel that writes through a pointer is not seen; read-only memory stops it.
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        target = kwargs["out"] if "out" in kwargs else next(iter((*args, *kwargs.values())), None)
        if isinstance(target, SkipWriteParameter) and (_writes(func) or "out" in kwargs):
            return target
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            skipping = [tensor for tensor in args if isinstance(tensor, SkipWriteParameter)]
            storages = {tensor.untyped_storage().data_ptr() for tensor in skipping}
            return _views_skip(result, cls, storages) if skipping else result


@cache
def _skipping(kind: type[nn.Parameter]) -> type[nn.Parameter]:
    if issubclass(kind, SkipWriteParameter):
        return kind
    bases = (SkipWriteParameter,) if kind is nn.Parameter else (SkipWriteParameter, kind)
    return type(f"SkipWrite{kind.__name__}", bases, {})


def _writes(func: Callable[..., Any]) -> bool:
    """Whether it is an in-place operation: `copy_`, `__setitem__`, `__iadd__`, assignment of `data`."""
    name = func.__name__
    if name.startswith("__"):
        in_place_operator = name.startswith("__i") and name not in {"__invert__", "__index__", "__int__"}
        return in_place_operator or name in {"__set__", "__setitem__"}
    return name.endswith("_")


def _views_skip(result: Any, cls: type[torch.Tensor], storages: set[int]) -> Any:
    if isinstance(result, (tuple, list)):
        return type(result)(_views_skip(part, cls, storages) for part in result)
    if isinstance(result, torch.Tensor) and not isinstance(result, SkipWriteParameter):
        same = result.layout is torch.strided and result.untyped_storage().data_ptr() in storages
        return result.as_subclass(cls) if same else result
    return result


def _groups(parameters: dict[str, nn.Parameter]) -> Iterator[list[str]]:
    group: list[str] = []
    nbytes = 0
    for name, parameter in parameters.items():
        if group and (nbytes + parameter.nbytes > _PUBLICATION_BYTES or len(group) == MAX_ENTRIES):
            yield group
            group, nbytes = [], 0
        group.append(name)
        nbytes += parameter.nbytes
    if group:
        yield group


def _spec(name: str, parameter: torch.Tensor) -> WeightSpec:
    dtype = str(parameter.dtype).removeprefix("torch.")
    return WeightSpec(name, dtype, list(parameter.shape), parameter.nbytes)


def _spec_of(shared: SharedBytes) -> WeightSpec:
    entry = shared.entry
    return WeightSpec(entry.name, entry.dtype, entry.shape, entry.nbytes)


def _tensor(shared: SharedBytes) -> torch.Tensor:
    with warnings.catch_warnings():
        # Read-only memory is the point: whoever writes into it is stopped, instead of changing it for everybody.
        warnings.filterwarnings("ignore", message=".*not writable")
        array = shared.array
        flat = torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.as_tensor(array)
    return flat.view(getattr(torch, shared.entry.dtype)).view(shared.entry.shape)
