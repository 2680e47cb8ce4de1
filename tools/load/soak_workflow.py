"""What the soak calls: a diamond whose every value carries the id of its request, small ones and big ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from omniflow_backend import ActivationContext, Int, Many, Role, Tensor, Text, Workflow, interface

Data = Tensor("int64", (-1,))


class Source(Role):
    """Takes a request apart."""

    @interface(inputs={"id": Text, "n": Int, "size": Int}, outputs={"part": Text, "data": Data, "count": Int})
    async def split(self, ctx: ActivationContext, id: str, n: int, size: int) -> AsyncIterator[dict[str, Any]]:
        yield {"count": n}
        for index in range(n):
            yield {"part": f"{id}/{index}", "data": np.full(size, index, np.int64)}


class Worker(Role):
    """Sides and ends of the diamond; one of them blocks, as models do."""

    threads = 4

    @interface(inputs={"part": Text}, outputs={"text": Text})
    async def left(self, ctx: ActivationContext, part: str) -> dict[str, Any]:
        return {"text": f"<{part}"}

    @interface(inputs={"part": Text, "data": Data}, outputs={"text": Text, "data": Data})
    def right(self, ctx: ActivationContext, part: str, data: Any) -> dict[str, Any]:
        return {"text": f"{part}>", "data": data + 1}

    @interface(inputs={"left": Text, "right": Text, "data": Data}, outputs={"both": Text, "total": Int})
    async def join(self, ctx: ActivationContext, left: str, right: str, data: Any) -> dict[str, Any]:
        return {"both": left + right, "total": int(data.sum())}

    @interface(inputs={"parts": Many(Text)}, outputs={"all": Text})
    async def gather(self, ctx: ActivationContext, parts: list[str]) -> dict[str, Any]:
        return {"all": ",".join(parts)}


def _soak() -> Workflow:
    flow = Workflow("soak")
    source, worker = flow.role("soak_source", Source), flow.role("soak_worker", Worker, replicas=2)
    split = source.split(
        id=flow.placeholder("id", Text), n=flow.placeholder("n", Int), size=flow.placeholder("size", Int)
    )
    left, right = worker.left(part=split.part), worker.right(part=split.part, data=split.data)
    joined = worker.join(left=left.text, right=right.text, data=right.data)
    flow.output("both", joined.both, stream=True)
    flow.output("total", joined.total, stream=True)
    flow.output("all", worker.gather(parts=split.part, activate_by_count={"parts": split.count}).all)
    return flow


soak = _soak()
