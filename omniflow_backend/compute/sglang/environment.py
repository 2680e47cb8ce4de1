"""What must be true in this process before SGLang is imported on a machine without a GPU."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from functools import cache
from pathlib import Path

from omniflow_backend.compute.torchvision_operators import declare_torchvision_operators

_CPU_SETTINGS = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # The penalties are compiled by default: half a minute of C++ for a few element-wise operations.
    "TORCHDYNAMO_DISABLE": "1",
    # Log probabilities are the model's, not those after temperature.
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",
    # Process groups of one process need no interface but loopback.
    "GLOO_SOCKET_IFNAME": "lo",
}


@cache
def prepare(threads: int = 1) -> None:
    """Prepare this process once: environment variables, operator schemas, CPU kernels. Imports torch."""
    for name, value in _CPU_SETTINGS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if importlib.util.find_spec("sgl_kernel") is None:
        sys.path.append(str(Path(__file__).parent / "cpu_kernels"))
    warnings.filterwarnings("ignore", category=UserWarning, module=r"sglang\.")
    declare_torchvision_operators()
