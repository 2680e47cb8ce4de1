"""A role process with SmolLM2, told line by line what to do. Arguments: checkpoint, and `shared` or `alone`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from omniflow_backend.compute.generation import GenerationRequest, SamplingParameters
from omniflow_backend.compute.prefix import Prompt
from omniflow_backend.compute.sglang import environment


def anonymous_bytes() -> int:
    """Private memory of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:"))


def bytes_of(addresses: set[int]) -> int:
    """Memory behind the mappings in which these addresses lie; of what others map, too, only this process's share."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            counts = any(start <= address < end for address in addresses)
        elif counts and first == "Pss:":
            total += int(rest.split()[0]) * 1024
    return total


def main() -> None:
    checkpoint, shared = Path(sys.argv[1]), sys.argv[2] == "shared"
    environment.prepare(1)
    from omniflow_backend.compute.sglang import engine, shared_weights
    from omniflow_backend.compute.sglang.runner import RunnerConfiguration

    loaded: dict[str, Any] = {}

    def measured(load: Callable[..., Any]) -> Callable[..., Any]:
        def measured_load(*arguments: Any, **named: Any) -> Any:
            before = anonymous_bytes()
            model = load(*arguments, **named)
            loaded["anonymous"] = anonymous_bytes() - before
            loaded["addresses"] = {parameter.data_ptr() for parameter in model.parameters()}
            loaded["weights"] = sum(parameter.nbytes for parameter in model.parameters())
            return model

        return measured_load

    loader = shared_weights.SharedWeightsLoader
    load_weights_only = loader.load_weights_only
    loader.load_model = measured(loader.load_model)  # type: ignore[method-assign]
    loader.load_weights_only = staticmethod(  # type: ignore[method-assign]
        lambda *arguments: loaded.update(read=True) or load_weights_only(*arguments)
    )
    runner = RunnerConfiguration(checkpoint, 256, 512, 4, share_weights=shared)
    llm = engine.SglangEngine(engine.EngineConfiguration(runner), decode=lambda _: "", end_of_text=frozenset())

    async def greedy(token_ids: list[int], count: int) -> list[int]:
        sampling = SamplingParameters.from_mapping({"temperature": 0, "max_tokens": count})
        stream = llm.generate(GenerationRequest("greedy", Prompt(tuple(token_ids)), sampling))
        return [token async for chunk in stream for token in chunk.token_ids]

    for line in sys.stdin:
        match json.loads(line):
            case {"do": "generate", "prompt": prompt, "tokens": count}:
                answer: Any = asyncio.run(greedy(prompt, count))
            case {"do": "tell"}:
                answer = {
                    "weights": loaded["weights"],
                    "resident": loaded["anonymous"] + bytes_of(loaded["addresses"]),
                    "read": loaded.get("read", False),
                }
        print(json.dumps(answer), flush=True)
    llm.close()


main()
