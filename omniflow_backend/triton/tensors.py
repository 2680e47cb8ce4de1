"""DSL types and Triton tensors: how a field is declared in ``config.pbtxt``, and how its values become arrays and
back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omniflow_backend.dsl.types import (
    Bool,
    Bytes,
    FieldType,
    Float,
    Int,
    JsonType,
    ManyType,
    OptionalType,
    Scalar,
    TensorType,
    Text,
    required,
)
from omniflow_backend.errors import BadInput, OmniFlowError

Array = NDArray[Any]

_TRITON_TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
}
_STRING = "TYPE_STRING"
_SCALAR_TYPES = {Int: "TYPE_INT64", Float: "TYPE_FP32", Bool: "TYPE_BOOL", Text: _STRING, Bytes: _STRING}
_SCALAR_DTYPES = {Int: np.int64, Float: np.float32, Bool: np.bool_}


class NoTensor(OmniFlowError):
    """A type or value that no Triton tensor can hold, and why."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output as ``config.pbtxt`` declares it; ``-1`` in ``dims`` is any length."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False


def tensor_spec(name: str, field_type: FieldType) -> TensorSpec:
    """The tensor of a field. Raises ``NoTensor`` for an open dtype or rank."""
    optional = isinstance(field_type, OptionalType)
    inner = required(field_type)
    leading = 0
    while isinstance(inner, ManyType):
        leading += 1
        inner = required(inner.item)
    if isinstance(inner, JsonType):
        return TensorSpec(name, _STRING, (-1,) * leading or (1,), optional)
    if isinstance(inner, Scalar):
        return TensorSpec(name, _SCALAR_TYPES[inner], (-1,) * leading or (1,), optional)
    if not isinstance(inner, TensorType) or inner.dtype is None or inner.shape is None:
        raise NoTensor(
            f"{name!r} is {field_type}: a Triton tensor needs a dtype and a rank, as in Tensor('float32', (-1, 80))"
        )
    if inner.dtype not in _TRITON_TYPES:
        raise NoTensor(f"{name!r} is {field_type}: no Triton tensor has dtype {inner.dtype}")
    dims = (-1,) * leading + tuple(inner.shape)
    return TensorSpec(name, _TRITON_TYPES[inner.dtype], dims or (1,), optional)


def to_value(array: Array, field_type: FieldType, name: str) -> Any:
    """A field's value from the tensor a client sent; arrays are copied. Raises ``BadInput`` that names the field."""
    inner = required(field_type)
    if isinstance(inner, ManyType):
        rows = np.atleast_1d(array)
        return [to_value(np.asarray(row), inner.item, f"{name}[{index}]") for index, row in enumerate(rows)]
    if isinstance(inner, TensorType):
        if inner.shape == () and array.size == 1:
            array = array.reshape(())
        value = inner.check(np.array(array), name)
        _refuse_nan(value, name)
        return value
    if array.size != 1:
        raise BadInput(f"{name!r} must be one {inner}, got {array.size} values (shape {list(array.shape)})")
    _refuse_nan(array, name)
    return inner.check(_scalar(array.reshape(-1)[0], inner, name), name)


def to_array(value: Any, field_type: FieldType, name: str) -> Array:
    """The tensor of a field's value. Raises ``NoTensor`` when the value has no rectangular form."""
    inner = required(field_type)
    if isinstance(inner, TensorType):
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        return array.reshape(1) if array.ndim == 0 else array
    if isinstance(inner, ManyType):
        return _stack([to_array(item, inner.item, name) for item in value], inner, name)
    if isinstance(inner, JsonType):
        return strings([json.dumps(value, ensure_ascii=False).encode()])
    if inner == Text:
        return strings([value.encode()])
    if inner == Bytes:
        return strings([bytes(value)])
    assert isinstance(inner, Scalar)
    return np.array([value], dtype=_SCALAR_DTYPES[inner])


def _stack(arrays: list[Array], field_type: ManyType, name: str) -> Array:
    spec = tensor_spec(name, field_type)
    if not arrays:
        dtype = np.object_ if spec.data_type == _STRING else _numpy_dtype(spec.data_type)
        return np.zeros([max(dimension, 0) for dimension in spec.dims], dtype=dtype)
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise NoTensor(
            f"{name!r} is {field_type}: values of different shapes {sorted(shapes)} do not fit in one tensor; "
            "stream them"
        )
    whole = isinstance(required(field_type.item), Scalar | JsonType)
    return np.concatenate(arrays) if whole else np.stack(arrays)


def _numpy_dtype(data_type: str) -> np.dtype[Any]:
    return np.dtype(next(dtype for dtype, triton in _TRITON_TYPES.items() if triton == data_type))


def strings(values: list[bytes]) -> Array:
    """A string tensor."""
    array = np.empty(len(values), dtype=np.object_)
    array[:] = values
    return array


def _scalar(element: Any, field_type: FieldType, name: str) -> Any:
    if field_type == Bytes:
        return element.encode() if isinstance(element, str) else bytes(element)
    if field_type == Text or isinstance(field_type, JsonType):
        text = _utf8(element, name)
        if field_type == Text:
            return text
        try:
            return json.loads(text)
        except ValueError as error:
            raise BadInput(f"{name!r} must be JSON: {error}") from None
    return element.item() if isinstance(element, np.generic) else element


def _utf8(element: Any, name: str) -> str:
    if isinstance(element, str):
        return element
    if not isinstance(element, bytes):
        raise BadInput(f"{name!r} must be a string, got {type(element).__name__}")
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{name!r} must be UTF-8 text: {error}") from None


def _refuse_nan(array: Array, name: str) -> None:
    if array.dtype.kind in "fc" and np.isnan(array).any():
        raise BadInput(f"{name!r} contains NaN")
