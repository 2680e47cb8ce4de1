"""What becomes of published weights: found by key, kept while used, least recently used ones first to go."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from memory_manager.devices.cpu import CpuMemory, CpuRegion
from memory_manager.errors import RequestRefused
from memory_manager.weights.messages import WeightSpec
from memory_manager.weights.registry import WeightRegistry, WeightsInUse, WeightsKey

KEY = WeightsKey("cpu", "checkpoint", "tp0/1")
MIB = 2**20


class SmallDevice(CpuMemory):
    """A device of 4 MiB."""

    def __init__(self) -> None:
        self.regions: list[CpuRegion] = []

    def allocate(self, nbytes: int, prefault: bool) -> CpuRegion:
        self.regions = [region for region in self.regions if not region.closed]
        if sum(region.nbytes for region in self.regions) + nbytes > 4 * MIB:
            raise MemoryError("4 MiB are all there is")
        self.regions.append(_Region(nbytes, prefault))
        return self.regions[-1]


class _Region(CpuRegion):
    closed = False

    def close(self) -> None:
        super().close()
        self.closed = True


def specs(*names: str, nbytes: int = MIB) -> list[WeightSpec]:
    return [WeightSpec(name, "uint8", [nbytes], nbytes) for name in names]


class Registry(WeightRegistry):
    """On a small device, with 2 MiB for idle weights and a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__({"cpu": SmallDevice()}, 2 * MIB, lambda: self.now)

    def ready(self, client: bytes, number: int) -> None:
        """Waits until the region is made."""
        deadline = time.monotonic() + 20
        while self.region(client, number) is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def published(self, client: bytes, *names: str, key: WeightsKey = KEY) -> int:
        number, _ = self.reserve(client, key, specs(*names))
        self.ready(client, number)
        self.publish(client, client.decode(), number)
        return number

    def found(self, client: bytes, key: WeightsKey = KEY) -> list[str]:
        names: list[str] = []
        number = 0
        while found := self.find(client, client.decode(), key, number):
            number, entries = found
            names += [entry.name for entry in entries]
        return names

    @property
    def numbers(self) -> list[int]:
        return [report.number for report in self.entries()]


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    yield registry
    registry.close()


class TestFinding:
    def test_only_complete_publications_of_the_very_key_are_found(self, registry: Registry) -> None:
        registry.published(b"owner", "a", "b")
        registry.reserve(b"owner", KEY, specs("c"))
        assert registry.found(b"other") == ["a", "b"]
        for key in (KEY._replace(checkpoint="x"), KEY._replace(partition="tp1/2"), KEY._replace(device="cuda:0")):
            assert registry.found(b"other", key) == []

    def test_what_was_not_found_is_published_beside_what_was(self, registry: Registry) -> None:
        registry.published(b"owner", "a")
        registry.published(b"other", "b")
        assert registry.found(b"third") == ["a", "b"]

    def test_parameters_never_overlap(self, registry: Registry) -> None:
        _, entries = registry.reserve(b"owner", KEY, specs("a", "b", nbytes=100))
        assert [(entry.offset, entry.nbytes) for entry in entries] == [(0, 100), (128, 100)]

    def test_a_parameter_is_published_once(self, registry: Registry) -> None:
        registry.published(b"owner", "a")
        for names in (("a",), ("b", "b")):
            with pytest.raises(RequestRefused, match="already"):
                registry.reserve(b"other", KEY, specs(*names))

    def test_only_the_owner_publishes_and_only_holders_get_the_memory(self, registry: Registry) -> None:
        number, _ = registry.reserve(b"owner", KEY, specs("a"))
        registry.ready(b"owner", number)
        with pytest.raises(RequestRefused, match="does not write"):
            registry.publish(b"other", "other", number)
        with pytest.raises(RequestRefused, match="has no publication"):
            registry.region(b"other", number)

    def test_a_device_that_the_manager_does_not_have_is_refused(self, registry: Registry) -> None:
        with pytest.raises(RequestRefused, match="no device 'cuda:0', only cpu"):
            registry.reserve(b"owner", KEY._replace(device="cuda:0"), specs("a"))


class TestGoing:
    def test_what_its_owner_did_not_complete_goes_with_it(self, registry: Registry) -> None:
        number, _ = registry.reserve(b"owner", KEY, specs("a"))
        registry.ready(b"owner", number)
        registry.drop_client(b"owner")
        assert registry.numbers == []

    def test_a_loader_that_ends_without_publishing_leaves_nothing(self, registry: Registry) -> None:
        registry.reserve(b"owner", KEY, specs("a"))
        registry.give_up(b"owner", "cpu")
        assert registry.numbers == []

    def test_the_least_recently_used_goes_when_idle_ones_exceed_the_budget(self, registry: Registry) -> None:
        numbers = [registry.published(client, client.decode()) for client in (b"a", b"b", b"c")]
        for client in (b"b", b"a", b"c"):
            registry.now += 1
            registry.drop_client(client)
        assert registry.numbers == [numbers[0], numbers[2]]

    def test_what_somebody_uses_never_goes(self, registry: Registry) -> None:
        number = registry.published(b"owner", "a", "b", "c")
        registry.found(b"follower")
        registry.drop_client(b"owner")
        registry.clear()
        with pytest.raises(WeightsInUse, match="in use by follower"):
            registry.drop(number)
        assert registry.found(b"other") == ["a", "b", "c"]

    def test_idle_weights_can_be_dropped(self, registry: Registry) -> None:
        number = registry.published(b"owner", "a")
        registry.drop_client(b"owner")
        registry.drop(number)
        assert registry.numbers == []
        with pytest.raises(RequestRefused, match="no weights with the number"):
            registry.drop(number)

    def test_idle_weights_make_room_for_new_ones(self, registry: Registry) -> None:
        registry.published(b"old", "a", "b")
        registry.drop_client(b"old")
        new = registry.published(b"new", "c", "d", "e", key=KEY._replace(checkpoint="new"))
        assert registry.numbers == [new]

    def test_what_does_not_fit_is_refused_and_leaves_nothing(self, registry: Registry) -> None:
        used = registry.published(b"old", "a", "b")
        number, _ = registry.reserve(b"new", KEY, specs("c", "d", "e"))
        with pytest.raises(RequestRefused, match="no room for weights: 4 MiB"):
            registry.ready(b"new", number)
        assert registry.numbers == [used]


def test_the_report_names_holders_and_ages(registry: Registry) -> None:
    registry.published(b"owner", "a")
    registry.found(b"follower")
    used = registry.entries()[0]
    assert (used.holders, used.idle, used.complete, used.nbytes) == (("owner", "follower"), 0.0, True, MIB)
    for client in (b"owner", b"follower"):
        registry.drop_client(client)
    registry.now = 7.0
    idle = registry.entries()[0]
    assert (idle.holders, idle.idle) == ((), 7.0)
