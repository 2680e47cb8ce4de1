"""A client of the manager that does what each line on its standard input says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from memory_manager import MemoryManagerClient, TensorHandle


def main() -> None:
    client = MemoryManagerClient(sys.argv[1], sys.argv[2])
    kept: list[Any] = []
    for line in sys.stdin:
        match json.loads(line):
            case {"do": "put", "values": values, "scope": scope}:
                answer: Any = client.put(np.array(values, np.float32), scope).to_wire()
            case {"do": "leave half made", "scope": scope}:
                kept.append(client.allocate(1000, scope=scope))
                answer = None
            case {"do": "open", "handles": handles}:
                opened = client.open([TensorHandle.from_wire(handle) for handle in handles])
                kept.append(opened)
                answer = [array.tolist() for array in opened.arrays]
            case {"do": "read again"}:
                answer = [array.tolist() for opened in kept for array in opened.arrays]
            case {"do": "open scope", "scope": scope}:
                client.open_scope(scope)
                answer = None
            case request:
                raise ValueError(f"cannot {request}")
        print(json.dumps(answer), flush=True)


main()
