"""One declared parameter on this node: the engine that decides, the tiers that keep, the threads that move."""

from __future__ import annotations

import time
from collections.abc import Callable

from memory_manager.pools.conversion import converter_for
from memory_manager.pools.declaration import ParameterDeclaration, Tier
from memory_manager.pools.migration import Migrator
from memory_manager.pools.requests import EvictionGuard, Outcome
from memory_manager.pools.slots import SlotEngine
from memory_manager.pools.tiers import ParameterTiers


class ParameterPool:
    """Ask `engine`, then call `pump`; call `pump` again after every `wake`, and at `engine.next_deadline`.

    Args:
        guard: what the cluster knows, see `EvictionGuard`.
        wake: called from other threads when `pump` has something to do.
    """

    def __init__(
        self,
        tiers: ParameterTiers,
        guard: EvictionGuard,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tiers = tiers
        self._clock = clock
        self.engine = SlotEngine(tiers.capacities, guard, clock)
        if tiers.recovered:
            self.engine.restore(Tier.L3, tiers.recovered)
        stacks = tiers.storages.get(Tier.L1)
        self._migrator = Migrator(tiers, None if stacks is None else converter_for(stacks), wake)

    @property
    def declaration(self) -> ParameterDeclaration:
        """What was declared."""
        return self.tiers.declaration

    def pump(self) -> list[tuple[int, Outcome]]:
        """Begin and end migrations, mind deadlines. Outcomes of requests that had to wait, by their number."""
        for number, failure in self._migrator.take_ended():
            if failure is None:
                self.engine.finish_migration(number)
            else:
                self.engine.abort_migration(number, failure)
        deadline = self.engine.next_deadline
        if deadline is not None and deadline <= self._clock():
            self.engine.expire()
        for migration in self.engine.take_migrations():
            self._migrator.start(migration)
        return self.engine.take_outcomes()

    def close(self) -> None:
        """Stop moving, give memory back, close the file, which stays."""
        self._migrator.close()
        self.tiers.close()
