"""Types of fields: what a value is in Python, and which source fits which field.

Nothing here imports numpy: arrays are recognised by their ``dtype`` and ``shape``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from omniflow_backend.errors import BadInput


class FieldType:
    """One field's type. ``check`` returns the value to use, or raises ``BadInput``."""

    def check(self, value: Any, field: str) -> Any:
        raise NotImplementedError

    def accepts(self, source: FieldType) -> bool:
        """Whether a value of type ``source`` may be given to a field of this type."""
        return self == source


@dataclass(frozen=True, slots=True)
class Scalar(FieldType):
    """A single plain value."""

    name: str
    python_types: tuple[type, ...]

    def check(self, value: Any, field: str) -> Any:
        if hasattr(value, "item") and getattr(value, "shape", None) == ():
            value = value.item()
        if isinstance(value, bool) and bool not in self.python_types:
            raise BadInput(f"{field!r} must be {self}, got a bool")
        if not isinstance(value, self.python_types):
            raise BadInput(f"{field!r} must be {self}, got {type(value).__name__}")
        return float(value) if self.name == "Float" else value  # type: ignore[arg-type]

    def accepts(self, source: FieldType) -> bool:
        return self == source or (self.name == "Float" and source == Int)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class JsonType(FieldType):
    """Anything JSON can say."""

    def check(self, value: Any, field: str) -> Any:
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise BadInput(f"{field!r} must be JSON: {error}") from None
        return value

    def __str__(self) -> str:
        return "Json"


@dataclass(frozen=True, slots=True)
class TensorType(FieldType):
    """An array; ``dtype`` ``None`` takes any, ``-1`` in ``shape`` any length, ``shape`` ``None`` any shape."""

    dtype: str | None = None
    shape: tuple[int, ...] | None = None

    def __call__(self, dtype: str, shape: tuple[int, ...] | None = None) -> TensorType:
        return TensorType(dtype, None if shape is None else tuple(shape))

    def check(self, value: Any, field: str) -> Any:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None or dtype is None:
            raise BadInput(f"{field!r} must be an array of {self}, got {type(value).__name__}")
        if self.dtype is not None and str(dtype).removeprefix("torch.") != self.dtype:
            raise BadInput(f"{field!r} must have dtype {self.dtype}, got {dtype}")
        if self.shape is not None and not _fits(tuple(shape), self.shape):
            raise BadInput(f"{field!r} must have shape {_dims(self.shape)}, got {_dims(tuple(shape))}")
        return value

    def accepts(self, source: FieldType) -> bool:
        if not isinstance(source, TensorType):
            return False
        if None not in (self.dtype, source.dtype) and self.dtype != source.dtype:
            return False
        if self.shape is None or source.shape is None:
            return True
        return len(self.shape) == len(source.shape) and all(
            mine == theirs or -1 in (mine, theirs) for mine, theirs in zip(self.shape, source.shape, strict=True)
        )

    def __str__(self) -> str:
        return f"Tensor({self.dtype or 'any'}, {'any' if self.shape is None else _dims(self.shape)})"


@dataclass(frozen=True, slots=True)
class ManyType(FieldType):
    """A list of values of one type."""

    item: FieldType

    def check(self, value: Any, field: str) -> Any:
        if not isinstance(value, list | tuple):
            raise BadInput(f"{field!r} must be a list of {self.item}, got {type(value).__name__}")
        return [self.item.check(element, f"{field}[{index}]") for index, element in enumerate(value)]

    def accepts(self, source: FieldType) -> bool:
        return isinstance(source, ManyType) and self.item.accepts(source.item)

    def __str__(self) -> str:
        return f"Many({self.item})"


@dataclass(frozen=True, slots=True)
class OptionalType(FieldType):
    """A field that may be absent; it never holds an activation back from being satisfied."""

    item: FieldType

    def check(self, value: Any, field: str) -> Any:
        return absent(self) if value is None else self.item.check(value, field)

    def accepts(self, source: FieldType) -> bool:
        return self.item.accepts(required(source))

    def __str__(self) -> str:
        return f"Optional({self.item})"


def Many(item: FieldType) -> ManyType:
    """A list of ``item``: all contributions of a join, or a list made by one yield."""
    return ManyType(item)


def Optional(item: FieldType) -> OptionalType:
    """``item`` or ``None``."""
    return item if isinstance(item, OptionalType) else OptionalType(item)


def required(field_type: FieldType) -> FieldType:
    """The type without its ``Optional``."""
    return field_type.item if isinstance(field_type, OptionalType) else field_type


def is_many(field_type: FieldType) -> bool:
    """Whether the field receives a list."""
    return isinstance(required(field_type), ManyType)


def absent(field_type: FieldType) -> Any:
    """What a field receives when nothing was given to it: an empty list for ``Many``, else ``None``."""
    return [] if is_many(field_type) else None


def _fits(shape: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    return len(shape) == len(declared) and all(d in (-1, n) for n, d in zip(shape, declared, strict=True))


def _dims(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join("any" if n == -1 else str(n) for n in shape) + "]"


Text = Scalar("Text", (str,))
Bytes = Scalar("Bytes", (bytes, bytearray, memoryview))
Int = Scalar("Int", (int,))
Float = Scalar("Float", (float, int))
Bool = Scalar("Bool", (bool,))
Json = JsonType()
Tensor = TensorType()
Audio = Tensor("float32", (-1,))
Image = Tensor("uint8", (-1, -1, 3))
