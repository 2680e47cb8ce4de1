"""Names for Python objects in ``config.pbtxt``: ``package.module:attribute`` or ``/path/file.py:attribute``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from omniflow_backend.errors import OmniFlowError

_FILE_MODULE = "omniflow_file_"


class BadReference(OmniFlowError):
    """A reference that leads nowhere, and why."""


def resolve(reference: str) -> Any:
    """The object a reference names. Raises ``BadReference``; errors inside the module pass through."""
    module_name, separator, attribute = reference.rpartition(":")
    if not separator or not module_name or not attribute:
        raise BadReference(f"{reference!r} is not a reference: write package.module:name or /path/file.py:name")
    module = _from_file(Path(module_name)) if module_name.endswith(".py") else _import(module_name, reference)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadReference(f"{reference!r}: {module_name} has no {attribute!r}")
        found = getattr(found, part)
    return found


def reference_of(cls: type) -> str:
    """A reference to a class that another process can resolve.

    Raises ``BadReference`` for a class inside a function.
    """
    if "<locals>" in cls.__qualname__:
        raise BadReference(f"{cls.__qualname__} is defined inside a function; define it at the top level of a module")
    if cls.__module__ == "__main__" or cls.__module__.startswith(_FILE_MODULE) or not _importable(cls.__module__):
        return f"{Path(inspect.getfile(cls)).resolve()}:{cls.__qualname__}"
    return f"{cls.__module__}:{cls.__qualname__}"


def _import(name: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise BadReference(f"{reference!r}: no module {error.name!r} on the path of {sys.executable}") from None
        raise


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadReference(f"no file {path}")
    path = path.resolve()
    name = f"{_FILE_MODULE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadReference(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
