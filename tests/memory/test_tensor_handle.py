"""A handle is plain data that survives any wire, and nothing else passes for one."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_manager import InvalidHandle, TensorHandle

HANDLE = TensorHandle(7, 0, 128, 48, 5, "<f4", (3, 4))


def test_it_survives_msgpack() -> None:
    assert TensorHandle.from_wire(msgpack.unpackb(msgpack.packb(HANDLE.to_wire()))) == HANDLE


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, -1),
        (1, "0"),
        (2, 1.5),
        (3, 47),
        (3, True),
        (4, 2**63),
        (5, "O"),
        (5, "V8"),
        (5, "float33"),
        (5, 4),
        (6, [3, -4]),
        (6, "34"),
    ],
)
def test_a_wrong_field_is_refused(position: int, value: Any) -> None:
    wire = HANDLE.to_wire()
    wire[position] = value
    with pytest.raises(InvalidHandle):
        TensorHandle.from_wire(wire)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
        lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    )
)
def test_anything_else_is_refused_with_one_error(wire: Any) -> None:
    with pytest.raises(InvalidHandle):
        TensorHandle.from_wire(wire)


def test_rows_lie_inside_the_tensor() -> None:
    rows = HANDLE.rows(1, 3)
    assert (rows.offset, rows.nbytes, rows.shape, rows.generation) == (144, 32, (2, 4), 5)
    for start, stop in ((-1, 2), (2, 4), (2, 1)):
        with pytest.raises(InvalidHandle):
            HANDLE.rows(start, stop)
