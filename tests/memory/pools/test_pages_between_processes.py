"""Pages of one manager, used by several processes that may die at any time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memory_manager.errors import MemoryManagerUnavailable, RequestRefused
from memory_manager.pools.client import PageLease, PageRequest, ParameterClient
from memory_manager.pools.declaration import ParameterDeclaration, Recomputation, Tier
from memory_manager.pools.errors import DeclarationRefused, PagesUnavailable, StaleReservation
from memory_manager.pools.requests import Access, Want
from memory_manager.process import ManagerProcess
from tests.memory.pools.pages import shared

KV = shared()
PLACE = (("1",), ("v", "left"))


@pytest.fixture
def start(endpoint: Path, tmp_path: Path) -> Iterator[Callable[[], ManagerProcess]]:
    managers: list[ManagerProcess] = []

    def new() -> ManagerProcess:
        options = ["--limit", "1MiB", "--pool-size", "1MiB", "--pages-directory", str(tmp_path)]
        managers.append(ManagerProcess(endpoint, options))
        return managers[-1]

    yield new
    for manager in managers:
        manager.kill()


@pytest.fixture
def client(start: Callable[[], ManagerProcess], endpoint: Path) -> Iterator[ParameterClient]:
    start()
    with ParameterClient(endpoint, "ann") as client:
        yield client


@pytest.fixture
def other(client: ParameterClient, endpoint: Path) -> Iterator[ParameterClient]:
    with ParameterClient(endpoint, "bob") as other:
        yield other


def get(
    client: ParameterClient,
    *pages: bytes,
    access: Access = Access.READ,
    timeout: float = 5.0,
    of: ParameterDeclaration = KV,
) -> PageLease:
    (lease,) = client.acquire([PageRequest(of, tuple(Want(page, access) for page in pages))], timeout)
    return lease


def write(client: ParameterClient, *pages: bytes, of: ParameterDeclaration = KV) -> PageLease:
    lease = get(client, *pages, access=Access.WRITE, of=of)
    for number, page in enumerate(pages):
        client.view(lease, number, *PLACE)[...] = page[-1]
    client.finish([lease])
    return lease


def test_a_page_is_written_here_and_read_there_without_a_copy(client: ParameterClient, other: ParameterClient) -> None:
    write(client, b"p1")
    lease = get(other, b"p1")
    view = other.view(lease, 0, *PLACE)
    assert view.shape == (4, 2, 8)
    assert (view == ord("1")).all()
    assert np.shares_memory(view, other.storage(KV).blocks())


def test_what_is_not_there_is_a_miss(client: ParameterClient) -> None:
    lease = get(client, b"nothing")
    assert lease.grants == [None]
    assert not lease.complete
    with pytest.raises(KeyError, match="is a miss"):
        client.view(lease, 0, *PLACE)


def test_several_parameters_are_acquired_in_one_message_all_or_none(client: ParameterClient) -> None:
    second = shared("history")
    for parameter in (KV, second):
        client.release([write(client, b"p1", of=parameter)])
    requests = [PageRequest(parameter, (Want(b"p1"),)) for parameter in (KV, second)]
    leases = client.acquire(requests, 1.0)
    assert all(lease.complete for lease in leases)
    client.release(leases)
    too_large = PageRequest(second, tuple(Want(b"%d" % number, Access.WRITE) for number in range(9)))
    with pytest.raises(PagesUnavailable, match="9 slots of L1 asked, 0 held, 2 free"):
        client.acquire([requests[0], too_large], 1.0)
    assert sum(tier.held for tier in client.status(KV).tiers) == 0


def test_a_request_waits_for_room_while_the_manager_serves_others(
    client: ParameterClient, other: ParameterClient
) -> None:
    held = write(client, b"p1", b"p2", b"p3")
    granted: list[PageLease] = []
    waiting = threading.Thread(target=lambda: granted.append(get(other, b"p4", access=Access.WRITE)))
    waiting.start()
    while client.status(KV).waiting == 0:
        time.sleep(0.001)
    client.release([held], [b"p2"])
    waiting.join(5)
    assert granted[0].complete


def test_a_request_that_waits_in_vain_fails_at_its_deadline_with_numbers(
    client: ParameterClient, other: ParameterClient
) -> None:
    write(client, b"p1", b"p2", b"p3")
    start = time.monotonic()
    with pytest.raises(PagesUnavailable, match="1 slots of L1 asked, 3 held, 0 free") as unavailable:
        get(other, b"p4", access=Access.WRITE, timeout=0.2)
    assert 0.2 <= time.monotonic() - start < 2
    assert (unavailable.value.asked, unavailable.value.held, unavailable.value.free) == (1, 3, 0)


@pytest.mark.parametrize("access", ["read", "write"])
def test_a_killed_client_lets_go_of_everything(client: ParameterClient, endpoint: Path, access: str) -> None:
    if access == "read":
        client.release([write(client, b"p1", b"p2", b"p3")])
    script = Path(__file__).with_name("lease_process.py")
    command = [sys.executable, str(script), str(endpoint), access, "p1", "p2", "p3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        assert client.status(KV).tiers[0].held == 3
        process.kill()
    lease = get(client, b"p4", b"p5", b"p6", access=Access.WRITE)
    assert lease.complete
    assert client.status(KV).tiers[0].held == 3


def test_a_lease_of_limited_time_ends_unless_it_is_renewed(client: ParameterClient) -> None:
    client.release([write(client, b"p1", b"p2")])
    requests = [PageRequest(KV, (Want(page),), hold=0.2) for page in (b"p1", b"p2")]
    kept, left = client.acquire(requests, 1.0)
    assert client.renew([kept], hold=60.0) == [True]
    while client.status(KV).tiers[0].held == 2:
        time.sleep(0.005)
    assert get(client, b"p3", b"p4", access=Access.WRITE).complete
    assert client.renew([kept, left], hold=1.0) == [True, False]


def test_forgotten_pages_make_room_also_where_nothing_may_be_dropped(client: ParameterClient) -> None:
    kept = replace(KV, name="kept", recomputation=Recomputation.PRESERVED)
    client.release([write(client, b"p1", b"p2", b"p3", of=kept)])
    with pytest.raises(PagesUnavailable):
        get(client, b"p4", access=Access.WRITE, timeout=0.01, of=kept)
    client.forget([kept], [b"p2", b"unknown"])
    assert get(client, b"p2", of=kept).grants == [None]
    client.release([write(client, b"p4", of=kept)])
    assert get(client, b"p1", b"p3", b"p4", of=kept).complete


def test_a_page_that_is_not_written_any_more_cannot_be_finished(client: ParameterClient) -> None:
    lease = get(client, b"p1", access=Access.WRITE)
    client.release([lease])
    with pytest.raises(StaleReservation, match="not being written by this holder"):
        client.finish([lease])


def test_a_name_stands_for_one_declaration(client: ParameterClient, other: ParameterClient) -> None:
    assert client.declare(KV) == other.declare(shared()) == KV.layout_id
    with pytest.raises(DeclarationRefused, match="declared differently already"):
        client.declare(shared(slots=5))
    with pytest.raises(DeclarationRefused, match="host memory wanted"):
        client.declare(replace(KV, name="too large", page_size=2**20, tiers={Tier.L1: 2**46}))
    with pytest.raises(RequestRefused, match="has no L2 in memory"):
        client.storage(KV, Tier.L2)


def test_a_restarted_manager_serves_the_pages_that_were_in_files(
    start: Callable[[], ManagerProcess], endpoint: Path
) -> None:
    manager, kv = start(), shared(slots=1, file_slots=8)
    with ParameterClient(endpoint, "ann") as client:
        for page in (b"p1", b"p2", b"p3"):
            client.release([write(client, page, of=kv)])
        lease = write(client, b"p4", of=kv)
        manager.kill()
        with pytest.raises(MemoryManagerUnavailable):
            client.status(kv)
        start()
        with pytest.raises(MemoryManagerUnavailable, match="leases of its last run are gone"):
            client.release([lease])
        for page in (b"p1", b"p2", b"p3"):
            lease = get(client, page, of=kv)
            assert (client.view(lease, 0, *PLACE) == page[-1]).all()
            client.release([lease])
        assert get(client, b"p4", of=kv).grants == [None]
        assert client.status(kv).counters["corrupt_pages"] == 0
