"""The capacity of a KV pool that several processes share: all propose, the minimum is final (paper, 4.3)."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from memory_manager.errors import RequestRefused
from memory_manager.weights.loader import LoaderLeases
from memory_manager.weights.messages import CapacityPhase, CapacityState


@dataclass(slots=True)
class _Round:
    """One attempt of a pool's members to agree."""

    number: int
    pool: str
    device: str
    members: frozenset[str]
    deadline: float
    seconds: float
    clients: dict[str, bytes] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)
    epoch: int = 0
    proposals: dict[str, int] = field(default_factory=dict)
    failure: CapacityState | None = None

    @property
    def final(self) -> bool:
        return len(self.proposals) == len(self.members)

    @property
    def over(self) -> bool:
        return self.final or self.failure is not None

    def member_of(self, client: bytes) -> str:
        for member, joined in self.clients.items():
            if joined == client:
                return member
        raise RequestRefused(f"this client is no member of the pool {self.pool!r} in that round; join first")

    def fail(self, members: Sequence[str], reason: str) -> None:
        self.failure = CapacityState(CapacityPhase.FAILED, members=sorted(members), reason=reason)


class CapacityRounds:
    """Rounds by pool.

    A member joins, loads its weights, arrives, measures when all have arrived and nobody loads on the device any more,
    proposes, and learns the minimum when all have proposed. A figure that was measured while somebody, member or not,
    began to load is not taken: its member measures again. A round fails when a member dies before it is over, or at
    its deadline. A member that starts again joins a finished round, whose capacity stays, or a new one after a failed.
    """

    def __init__(self, leases: LoaderLeases) -> None:
        self._leases = leases
        self._numbers = itertools.count(secrets.randbits(48))
        self._rounds: dict[int, _Round] = {}
        self._current: dict[str, _Round] = {}

    def join(
        self, client: bytes, pool: str, device: str, members: Sequence[str], member: str, seconds: float, now: float
    ) -> int:
        """The number of the round; the first to join sets its deadline.

        Raises:
            RequestRefused: if the member is none of the members, another client is that member, or the other members
                name others or another device.
        """
        if member not in members:
            raise RequestRefused(f"{member!r} is none of the members of the pool {pool!r}: {', '.join(members)}")
        found = self._current.get(pool)
        if found is not None:
            self._expire(found, now)
        if found is None or found.failure is not None:
            number = next(self._numbers)
            found = _Round(number, pool, device, frozenset(members), now + seconds, seconds)
            self._rounds[number] = self._current[pool] = found
        if found.members != frozenset(members) or found.device != device:
            raise RequestRefused(
                f"the pool {pool!r} is on {found.device} and has the members {', '.join(sorted(found.members))}; "
                f"{member!r} says {device} and {', '.join(sorted(members))}"
            )
        if found.clients.setdefault(member, client) != client:
            raise RequestRefused(f"another process is the member {member!r} of the pool {pool!r}")
        return found.number

    def arrive(self, client: bytes, number: int, now: float) -> CapacityState:
        """The client has loaded: what it must do now. Ask again to wait.

        Raises:
            RequestRefused: if it is no member of such a round.
        """
        found = self._round(number)
        member = found.member_of(client)
        self._expire(found, now)
        if found.failure is not None:
            return found.failure
        self._forget_tainted(found)
        found.loaded.add(member)
        if found.final:
            return CapacityState(CapacityPhase.FINAL, pages=min(found.proposals.values()))
        missing = found.members - found.loaded
        if missing:
            return CapacityState(CapacityPhase.WAIT, members=sorted(missing), reason="they have not loaded yet")
        if member in found.proposals:
            missing = found.members - found.proposals.keys()
            return CapacityState(CapacityPhase.WAIT, members=sorted(missing), reason="they have not proposed yet")
        loader = self._leases.current(found.device)
        if loader is not None:
            return CapacityState(CapacityPhase.WAIT, reason=f"{loader.name} loads on {found.device}")
        return CapacityState(CapacityPhase.MEASURE, epoch=found.epoch)

    def propose(self, client: bytes, number: int, epoch: int, pages: int, now: float) -> CapacityState:
        """As `arrive`, with a figure measured when that said `MEASURE` in that epoch; a tainted one is not taken.

        Raises:
            RequestRefused: if the client is no member of such a round.
        """
        found = self._round(number)
        member = found.member_of(client)
        self._expire(found, now)
        self._forget_tainted(found)
        quiet = self._leases.current(found.device) is None and found.epoch == epoch
        if quiet and not found.over and found.loaded == found.members:
            found.proposals.setdefault(member, pages)
        return self.arrive(client, number, now)

    def drop_client(self, client: bytes) -> None:
        """The client is gone: rounds it was in and that are not over fail."""
        for found in list(self._rounds.values()):
            for member in [member for member, joined in found.clients.items() if joined == client]:
                del found.clients[member]
                if not found.over:
                    found.fail([member], f"the member {member!r} died before the capacity was final")
            if not found.clients:
                del self._rounds[found.number]
                if self._current.get(found.pool) is found:
                    del self._current[found.pool]

    def _round(self, number: int) -> _Round:
        found = self._rounds.get(number)
        if found is None:
            raise RequestRefused(f"there is no round {number} in this run of the manager; join first")
        return found

    def _forget_tainted(self, found: _Round) -> None:
        """Somebody has begun to load since: what was measured before that says nothing any more."""
        if not found.final and found.epoch != self._leases.epoch(found.device):
            found.epoch = self._leases.epoch(found.device)
            found.proposals.clear()

    def _expire(self, found: _Round, now: float) -> None:
        if found.over or now < found.deadline:
            return
        loading = found.members - found.loaded
        late = loading or found.members - found.proposals.keys()
        missing = "loaded" if loading else "proposed"
        found.fail(sorted(late), f"{', '.join(sorted(late))} had not {missing} after {found.seconds:g} s")
