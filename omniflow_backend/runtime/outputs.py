"""What a call's outputs have got so far, judged when it ends (contract ruling 11)."""

from __future__ import annotations

from typing import Any

from omniflow_backend.planning.plan import Plan, PlannedOutput
from omniflow_backend.runtime.paths import Token, order_key
from omniflow_backend.runtime.prefix_join import WrongNumber


class CollectedOutputs:
    """Values of the outputs that are not streamed, until the call ends; of streamed ones only that there were any."""

    __slots__ = ("_plan", "_streamed", "_values")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._streamed: set[int] = set()
        self._values: dict[int, list[tuple[Token, Any]]] = {}

    def add(self, output: PlannedOutput, token: Token, value: Any) -> None:
        """One value, in any order."""
        self._values.setdefault(output.index, []).append((token, value))

    def streamed(self, output: PlannedOutput) -> None:
        """A value of a streamed output is on its way."""
        self._streamed.add(output.index)

    def results(self) -> dict[str, Any]:
        """By name: all values in generation order for ``many``, else the only one; what got none is absent.

        Raises ``WrongNumber`` for a plain output with several values, and a required one with none, streamed or not.
        """
        results: dict[str, Any] = {}
        for output in self._plan.outputs:
            values = self._values.get(output.index, [])
            if output.required and not values and output.index not in self._streamed:
                raise WrongNumber(f"required output {output.name!r} got no value")
            if output.stream:
                continue
            if output.many:
                values.sort(key=lambda item: order_key(item[0], 0, output.ranks))
                results[output.name] = [value for _, value in values]
            elif len(values) > 1:
                raise WrongNumber(f"output {output.name!r} takes one value and got {len(values)}; declare it many=True")
            elif values:
                results[output.name] = values[0][1]
        return results
