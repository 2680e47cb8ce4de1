"""Which replica of a role gets an activation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

_REMEMBERED_SESSIONS = 100_000


class Replica(Protocol):
    """One process of a role."""

    @property
    def load(self) -> int:
        """How many activations it has."""
        ...

    @property
    def lost(self) -> bool:
        """Whether its process has died and is not back yet."""
        ...


AnyReplica = TypeVar("AnyReplica", bound=Replica)


class Replicas(Generic[AnyReplica]):
    """The replicas of one role.

    All activations of one call at one node go to the replica of the first, which is the least busy one at that time.
    Nodes that update session state stay on their session's replica from call to call, while it lives.
    """

    def __init__(self, replicas: Sequence[AnyReplica], remembered: int = _REMEMBERED_SESSIONS) -> None:
        self._replicas = list(replicas)
        self._remembered = remembered
        self._sessions: OrderedDict[tuple[str, str], AnyReplica] = OrderedDict()

    def __iter__(self) -> Iterator[AnyReplica]:
        return iter(self._replicas)

    def choose(self, node: str, of_call: MutableMapping[str, Any], session: str | None) -> AnyReplica:
        """The replica for an activation of ``node``. ``of_call`` remembers what the call has chosen, by node.

        ``session`` is given for nodes that update session state.
        """
        if len(self._replicas) == 1:
            return self._replicas[0]
        known: AnyReplica | None = of_call.get(node)
        if known is not None:
            return known
        chosen = self._sessions.pop((session, node), None) if session is not None else None
        if chosen is None or chosen.lost:
            chosen = min(self._replicas, key=lambda replica: (replica.lost, replica.load))
        if session is not None:
            self._sessions[session, node] = chosen
            if len(self._sessions) > self._remembered:
                self._sessions.popitem(last=False)
        of_call[node] = chosen
        return chosen
