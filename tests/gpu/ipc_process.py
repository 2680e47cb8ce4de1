"""The other process of test_cuda_memory_on_gpu: maps an export, says what it sees, writes, and waits to be told to go.

Lines on standard input: first the export as JSON, then `quit`. Lines on standard output: the first bytes as JSON, then
`written`.
"""

from __future__ import annotations

import json
import sys

import cupy

from memory_manager.devices.cuda import CudaMemory
from memory_manager.devices.memory import Export


def main() -> None:
    told = json.loads(sys.stdin.readline())
    export = Export(told["device"], told["nbytes"], payload=bytes.fromhex(told["payload"]))
    view = CudaMemory.named(export.device).import_region(export, writable=True).view(0, export.nbytes)
    print(json.dumps(cupy.asnumpy(view[:8]).tolist()), flush=True)
    view[-8:] = 42
    cupy.cuda.runtime.deviceSynchronize()
    print("written", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
