"""The node-local process that owns tensors between roles, and its client."""

from memory_manager.client import MemoryManagerClient
from memory_manager.errors import (
    InvalidHandle,
    MemoryManagerError,
    MemoryManagerUnavailable,
    PoolExhausted,
    RequestRefused,
    ScopeReleased,
    StaleHandle,
)
from memory_manager.handle import TensorHandle
from memory_manager.tensors import OpenTensors, WritableTensor

__all__ = [
    "InvalidHandle",
    "MemoryManagerClient",
    "MemoryManagerError",
    "MemoryManagerUnavailable",
    "OpenTensors",
    "PoolExhausted",
    "RequestRefused",
    "ScopeReleased",
    "StaleHandle",
    "TensorHandle",
    "WritableTensor",
]
