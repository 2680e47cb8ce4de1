"""DSL types and Triton tensors, without a server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniflow_backend import Audio, BadInput, Bool, Bytes, Float, Image, Int, Json, Many, Optional, Tensor, Text
from omniflow_backend.dsl.types import FieldType
from omniflow_backend.triton.tensors import NoTensor, TensorSpec, tensor_spec, to_array, to_value

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
typed_values = st.one_of(
    st.tuples(st.just(Text), st.text()),
    st.tuples(st.just(Bytes), st.binary()),
    st.tuples(st.just(Json), json_values),
    st.tuples(st.just(Int), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(Float), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just(Bool), st.booleans()),
    st.tuples(st.just(Many(Text)), st.lists(st.text(), max_size=4)),
    st.tuples(st.just(Many(Int)), st.lists(st.integers(-100, 100), max_size=4)),
    st.tuples(st.just(Many(Json)), st.lists(json_values, max_size=3)),
    st.tuples(st.just(Optional(Text)), st.text()),
)


@given(typed_values)
def test_a_value_comes_back_from_its_tensor(typed: tuple[FieldType, Any]) -> None:
    kind, value = typed
    assert to_value(to_array(value, kind, "x"), kind, "x") == value


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(Audio, (5,)), (Image, (2, 3, 3)), (Tensor("int64", (2, -1)), (2, 0)), (Tensor("bool", (4,)), (4,))],
)
def test_an_array_comes_back_from_its_tensor_alone_and_in_a_list(kind: Any, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(kind.dtype)
    np.testing.assert_array_equal(to_value(to_array(array, kind, "x"), kind, "x"), array)
    several = to_value(to_array([array, array.copy()], Many(kind), "x"), Many(kind), "x")
    assert len(several) == 2
    np.testing.assert_array_equal(several[1], array)


@pytest.mark.parametrize(
    ("kind", "data_type", "dims", "optional"),
    [
        (Text, "TYPE_STRING", (1,), False),
        (Optional(Int), "TYPE_INT64", (1,), True),
        (Many(Float), "TYPE_FP32", (-1,), False),
        (Many(Many(Bool)), "TYPE_BOOL", (-1, -1), False),
        (Image, "TYPE_UINT8", (-1, -1, 3), False),
        (Optional(Many(Image)), "TYPE_UINT8", (-1, -1, -1, 3), True),
        (Tensor("float16", ()), "TYPE_FP16", (1,), False),
    ],
)
def test_each_type_has_its_tensor(kind: FieldType, data_type: str, dims: tuple[int, ...], optional: bool) -> None:
    assert tensor_spec("x", kind) == TensorSpec("x", data_type, dims, optional)


@pytest.mark.parametrize("kind", [Tensor, Tensor("float32"), Many(Tensor), Tensor("complex64", (1,))])
def test_a_type_without_dtype_or_rank_is_no_tensor(kind: FieldType) -> None:
    with pytest.raises(NoTensor, match="'x'"):
        tensor_spec("x", kind)


@pytest.mark.parametrize(
    ("kind", "array", "message"),
    [
        (Text, np.array([b"\xff"], object), "UTF-8"),
        (Json, np.array([b"{"], object), "must be JSON"),
        (Int, np.array([1, 2]), "one Int, got 2 values"),
        (Int, np.array([], np.int64), "one Int, got 0 values"),
        (Float, np.array([np.nan], np.float32), "NaN"),
        (Audio, np.array([1, np.nan], np.float32), "NaN"),
        (Audio, np.zeros((2, 2), np.float32), "shape"),
        (Many(Audio), np.zeros(3, np.float32), r"'x\[0\]'"),
    ],
)
def test_a_tensor_of_another_type_is_bad_input_that_names_the_field(kind: FieldType, array: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        to_value(array, kind, "x")


def test_arrays_of_different_shapes_do_not_become_one_tensor() -> None:
    with pytest.raises(NoTensor, match="different shapes"):
        to_array([np.zeros(1, np.float32), np.zeros(2, np.float32)], Many(Audio), "x")


def test_an_empty_list_keeps_its_rank() -> None:
    assert to_array([], Many(Image), "x").shape == (0, 0, 0, 3)
    assert to_array([], Many(Text), "x").shape == (0,)
