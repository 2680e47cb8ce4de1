"""Who loads on a device: one client at a time (paper, 4.3)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loader:
    """The client that loads, a name for people, and since when (monotonic seconds)."""

    client: bytes
    name: str
    since: float


class LoaderLeases:
    """At most one loader for each device. A lease ends when its client releases it or dies."""

    def __init__(self) -> None:
        self._loaders: dict[str, Loader] = {}
        self._epochs: Counter[str] = Counter()

    def acquire(self, client: bytes, name: str, device: str, now: float) -> Loader:
        """The loader of the device, which is this client if there was none. Asking again changes nothing."""
        loader = self._loaders.get(device)
        if loader is None:
            loader = self._loaders[device] = Loader(client, name, now)
            self._epochs[device] += 1
        return loader

    def release(self, client: bytes, device: str) -> None:
        """Nothing happens if the client is not the loader."""
        if self.is_loader(client, device):
            del self._loaders[device]

    def drop_client(self, client: bytes) -> None:
        """The client is gone."""
        self._loaders = {device: loader for device, loader in self._loaders.items() if loader.client != client}

    def is_loader(self, client: bytes, device: str) -> bool:
        """Whether that client loads there now."""
        loader = self._loaders.get(device)
        return loader is not None and loader.client == client

    def current(self, device: str) -> Loader | None:
        """Who loads there now."""
        return self._loaders.get(device)

    def epoch(self, device: str) -> int:
        """How often somebody has begun to load there: unchanged and nobody there means that nobody has loaded."""
        return self._epochs[device]
