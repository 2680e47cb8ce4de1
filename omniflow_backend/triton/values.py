"""How values travel on a channel: packed small ones, handles for big tensors.

Scalars, strings, bytes, lists, dicts and ``None`` are plain msgpack. An array below ``INLINE_LIMIT`` bytes is packed
with its dtype and shape; a bigger one goes into the tensor store (MemoryManager) and its handle is packed. Packed
values are opaque to an orchestrator, which only hands them on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

INLINE_LIMIT = 64 * 1024

WireValue = bytes | list[Any]
"""A packed value, or a list of wire values (what a join has collected)."""

_ARRAY = 1
_HANDLE = 2

Array = NDArray[Any]


class TensorStore(Protocol):
    """Where big tensors are kept while a call needs them. May be called from any thread."""

    def put(self, array: Array, scope: str) -> bytes:
        """Keep a copy for the call ``scope``; returns the packed handle."""
        ...

    def open(self, handles: Sequence[bytes]) -> Sequence[Array]:
        """Read-only views without a copy. A tensor is held as long as its array (or a view of it) is alive."""
        ...


class UntransportableValue(TypeError):
    """A value that cannot travel between processes, and why."""


class UnreadableValue(ValueError):
    """A packed value that cannot be read here, and why."""


class Encoded:
    """A packed value (or a list of them) that an orchestrator holds without looking inside."""

    __slots__ = ("wire",)

    def __init__(self, wire: WireValue) -> None:
        self.wire = wire

    def decode(self, store: TensorStore | None = None) -> Any:
        """The value itself; arrays are read-only. Raises ``UnreadableValue``."""
        return decode_fields({"value": self.wire}, store)["value"]

    def __repr__(self) -> str:
        size = len(self.wire) if isinstance(self.wire, bytes) else sum(len(part) for part in self.wire)
        return f"<packed value, {size} bytes>"


class ValueEncoder:
    """Packs the values of one call. May be used from any thread."""

    def __init__(self, store: TensorStore | None, scope: str) -> None:
        self._store = store
        self._scope = scope
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._special)

    def encode(self, value: Any) -> bytes:
        """``value``, packed. Raises ``UntransportableValue``."""
        try:
            return self._encoder.encode(value)
        except (OverflowError, RecursionError) as error:
            raise UntransportableValue(f"{type(value).__name__} cannot be sent: {error}") from None

    def encode_fields(self, fields: Mapping[str, Any]) -> dict[str, WireValue]:
        """A yield's fields, packed one by one. Raises ``UntransportableValue`` that names the field."""
        packed: dict[str, WireValue] = {}
        for name, value in fields.items():
            try:
                packed[name] = self.encode(value)
            except UntransportableValue as error:
                raise UntransportableValue(f"field {name!r}: {error}") from None
        return packed

    def to_wire(self, value: Any) -> WireValue:
        """What an orchestrator sends for ``value``: packed values as they are, lists of them as lists."""
        if isinstance(value, Encoded):
            return value.wire
        if isinstance(value, list) and any(isinstance(item, Encoded | list) for item in value):
            return [self.to_wire(item) for item in value]
        return self.encode(value)

    def _special(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            value = _from_torch(value)
        if not isinstance(value, np.ndarray):
            raise UntransportableValue(
                f"{type(value).__module__}.{type(value).__name__} cannot be sent to another process"
            )
        if value.dtype.hasobject:
            raise UntransportableValue("an array of Python objects cannot be sent: use a list, or a numeric dtype")
        if self._store is not None and value.nbytes >= INLINE_LIMIT:
            return msgspec.msgpack.Ext(_HANDLE, self._store.put(value, self._scope))
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode((value.dtype.str, value.shape, value.tobytes())))


class _HasHandle(Exception):
    """Most messages have no handle: they are read by a decoder that does not look for them."""


class _Handle:
    """Stands for a tensor until all handles of a message are opened together."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def decode_fields(fields: Mapping[str, WireValue], store: TensorStore | None) -> dict[str, Any]:
    """The values of ``fields``; arrays are read-only and hold their tensor as long as they live.

    All handles are opened in one request to the store. Raises ``UnreadableValue`` that names the field.
    """
    try:
        return _decode_all(fields, _decoder_without_handles)
    except _HasHandle:
        pass
    handles: list[bytes] = []
    decoder = msgspec.msgpack.Decoder(ext_hook=lambda code, data: _read_extension(code, data, handles))
    values = _decode_all(fields, decoder)
    if store is None:
        raise UnreadableValue("a tensor came as a handle, but this process has no connection to a memory manager")
    arrays = store.open(handles)
    return {name: _place(value, arrays) for name, value in values.items()}


def _decode_all(fields: Mapping[str, WireValue], decoder: msgspec.msgpack.Decoder[Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, wire in fields.items():
        try:
            values[name] = _read(wire, decoder)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, TypeError) as error:
            raise UnreadableValue(f"field {name!r} cannot be read: {error}") from None
    return values


def _read(wire: WireValue, decoder: msgspec.msgpack.Decoder[Any]) -> Any:
    if isinstance(wire, bytes):
        return decoder.decode(wire)
    return [_read(item, decoder) for item in wire]


def _read_extension(code: int, data: memoryview, handles: list[bytes] | None) -> Any:
    if code == _HANDLE:
        if handles is None:
            raise _HasHandle
        handles.append(bytes(data))
        return _Handle(len(handles) - 1)
    if code != _ARRAY:
        raise ValueError(f"unknown kind of value {code}")
    dtype, shape, raw = msgspec.msgpack.decode(data)
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


_decoder_without_handles = msgspec.msgpack.Decoder(ext_hook=lambda code, data: _read_extension(code, data, None))


def _place(value: Any, arrays: Sequence[Array]) -> Any:
    if isinstance(value, _Handle):
        return arrays[value.index]
    if isinstance(value, list):
        return [_place(item, arrays) for item in value]
    if isinstance(value, dict):
        return {key: _place(item, arrays) for key, item in value.items()}
    return value


def _from_torch(tensor: Any) -> Array:
    try:
        array: Array = tensor.detach().cpu().numpy()
    except TypeError as error:
        raise UntransportableValue(
            f"a torch tensor of {tensor.dtype} cannot be sent: {error}; convert it to a dtype that numpy has"
        ) from None
    return array
