"""The compiled conversion, if it was built. It is optional: nothing but speed depends on it, and kernels on a GPU."""

from __future__ import annotations

import functools
import logging
from types import ModuleType

_logger = logging.getLogger(__name__)


@functools.cache
def native() -> ModuleType | None:
    """The module `_conversion`, or `None`, which is said once in the log."""
    try:
        from memory_manager.layouts import _conversion
    except ImportError as error:
        _logger.warning(
            "layout conversion runs in numpy and torch, since its compiled module cannot be loaded; run cuda/build.py",
            extra={"reason": str(error)},
        )
        return None
    return _conversion
