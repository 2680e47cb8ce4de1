"""Two processes and a manager: tensors pass without a copy, and live exactly as long as somebody holds them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory_manager import (
    InvalidHandle,
    MemoryManagerClient,
    PoolExhausted,
    RequestRefused,
    ScopeReleased,
    StaleHandle,
    TensorHandle,
)
from memory_manager.process import ManagerProcess

Connect = Callable[..., MemoryManagerClient]
pytestmark = pytest.mark.usefixtures("manager")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, ::2, ::-1],
        np.array(2.5),
        np.zeros((0, 3), np.complex64),
        np.array([True, False]),
        np.arange(3, dtype=">u4"),
    ],
    ids=["plain", "strided", "scalar", "empty", "bool", "big-endian"],
)
def test_a_tensor_arrives_as_it_was_put(connect: Connect, array: np.ndarray[Any, Any]) -> None:
    handle = connect("producer").put(array, "call")
    with connect("consumer").open([TensorHandle.from_wire(handle.to_wire())]) as (received,):
        assert received.dtype == array.dtype
        np.testing.assert_array_equal(received, array)
        assert not received.flags.writeable


def test_reader_and_writer_see_the_same_bytes(connect: Connect) -> None:
    tensor = connect("producer").allocate((1000,), np.int32, scope="call")
    late = tensor.array[:]
    tensor.array[:] = 1
    with connect("consumer").open([tensor.seal()]) as (received,):
        late[17] = 42
        assert received[17] == 42


def test_another_process_reads_what_this_one_put(connect: Connect, spawn: Any) -> None:
    handle = connect("producer").put(np.array([1.5, 2.5], np.float32), "call")
    assert spawn("consumer").ask("open", handles=[handle.to_wire()]) == [[1.5, 2.5]]


def test_rows_of_a_tensor_open_without_the_rest(connect: Connect) -> None:
    client = connect("client")
    handle = client.put(np.arange(12).reshape(6, 2), "call")
    with client.open([handle.rows(2, 4)]) as (rows,):
        assert rows.tolist() == [[4, 5], [6, 7]]


def test_a_block_lives_until_scope_and_readers_are_gone(connect: Connect) -> None:
    producer, consumer = connect("producer"), connect("consumer")
    handle = producer.put(np.arange(100), "call")
    opened = consumer.open([handle])
    assert consumer.statistics().references_of("consumer") == 1
    producer.release_scope("call")
    producer.release_scope("call")
    producer.put(np.zeros(100), "other")
    assert opened.arrays[0].tolist() == list(range(100))
    opened.close()
    opened.close()
    assert consumer.statistics().references_of("consumer") == 0
    with pytest.raises(StaleHandle):
        consumer.open([handle])


def test_an_array_kept_after_closing_keeps_its_block(connect: Connect) -> None:
    client = connect("client")
    with client.open([client.put(np.arange(100), "call")]) as (array,):
        tail = array[90:]
    del array
    client.release_scope("call")
    client.put(np.zeros(100, np.int64), "other")
    assert tail.tolist() == list(range(90, 100))
    assert client.statistics().references_of("client") == 1
    del tail
    assert client.statistics().references_of("client") == 0


def test_one_of_several_arrays_kept_keeps_its_block_although_the_others_are_gone(connect: Connect) -> None:
    client = connect("client")
    opened = client.open(client.put_many([np.arange(100), np.arange(100)], "call"))
    kept = opened.arrays[1]
    opened.close()
    client.release_scope("call")
    client.put_many([np.zeros(100, np.int64)] * 2, "other")
    assert kept.tolist() == list(range(100))


def test_a_stale_handle_among_several_takes_no_reference(connect: Connect) -> None:
    client = connect("client")
    good, stale = client.put(np.zeros(4), "good"), client.put(np.zeros(4), "stale")
    client.release_scope("stale")
    with pytest.raises(StaleHandle):
        client.open([good, stale])
    assert client.statistics().references_of("client") == 0


def test_a_writer_whose_scope_is_released_cannot_hurt_the_next_block(connect: Connect) -> None:
    client = connect("client")
    tensor = client.allocate(1000, scope="cancelled")
    client.release_scope("cancelled")
    other = client.put(np.full(1000, 7, np.uint8), "next")
    tensor.array[:] = 1
    with client.open([other]) as (array,):
        assert np.all(array == 7)
    handle = tensor.seal()
    with pytest.raises(StaleHandle):
        client.open([handle])


def test_what_is_never_sealed_is_taken_back(connect: Connect) -> None:
    client = connect("client")
    tensor = client.allocate(1000, scope="call")
    assert client.statistics().blocks == 1
    del tensor
    assert client.statistics().blocks == 0


def test_several_tensors_are_put_all_or_none(connect: Connect) -> None:
    client = connect("client")
    with pytest.raises(PoolExhausted) as caught:
        client.put_many([np.zeros(2**20, np.uint8)] * 9, "call")
    assert (caught.value.asked, caught.value.limit) == (2**20, 8 * 2**20)
    assert client.statistics().blocks == 0
    assert len(client.put_many([np.zeros(2**20, np.uint8)] * 8, "call")) == 8


def test_pools_grow_and_one_tensor_may_be_larger_than_a_pool(connect: Connect) -> None:
    client = connect("client")
    assert len(client.statistics().pools) == 1
    handles = [client.put(np.full(2**20, value, np.uint8), "small") for value in range(3)]
    assert len(client.statistics().pools) == 2
    with client.open(handles) as arrays:
        assert [int(array[-1]) for array in arrays] == [0, 1, 2]
        del arrays[:]
    client.release_scope("small")
    large = np.arange(7 * 2**20, dtype=np.uint8)
    with client.open([client.put(large, "large")]) as (array,):
        np.testing.assert_array_equal(array, large)


def test_late_results_of_a_released_call_are_refused(connect: Connect) -> None:
    orchestrator, talker = connect("orchestrator"), connect("talker")
    orchestrator.open_scope("call")
    talker.put(np.zeros(4), "call")
    orchestrator.release_scope("call")
    with pytest.raises(ScopeReleased, match="call"):
        talker.put(np.zeros(4), "call")
    assert talker.statistics().blocks == 0


def test_release_soon_is_done_before_the_next_request(connect: Connect) -> None:
    client = connect("client")
    client.put(np.zeros(4), "call")
    client.release_scope_soon("call")
    assert client.statistics().blocks == 0


def test_release_soon_needs_no_connection_yet(connect: Connect, until: Any) -> None:
    producer = connect("producer")
    producer.put(np.zeros(4), "call")
    connect("idle").release_scope_soon("call")
    until(lambda: producer.statistics().blocks == 0, "an idle client releases a scope")


def test_release_soon_does_not_wait_for_a_stuck_manager(
    connect: Connect, manager: ManagerProcess, frozen: Any, until: Any
) -> None:
    client = connect("client")
    client.put(np.zeros(4), "call")
    with frozen(manager):
        for number in range(2000):
            client.release_scope_soon(f"none-{number}")
        client.release_scope_soon("call")
    until(lambda: client.statistics().blocks == 0, "releases arrive once the manager runs again")


def test_published_tensors_outlive_their_scope(connect: Connect) -> None:
    client = connect("client")
    client.publish(client.put(np.arange(5), "call"), "prompt/1")
    client.release_scope("call")
    with connect("other").open_published(["prompt/1", "prompt/2"]) as arrays:
        assert arrays[0] is not None
        assert arrays[0].tolist() == [0, 1, 2, 3, 4]
        assert arrays[1] is None


def test_closing_a_client_releases_what_it_holds_before_it_returns(connect: Connect) -> None:
    client, other = connect("client"), connect("other")
    client.put(np.zeros(4), "mine")
    opened = client.open([other.put(np.zeros(4), "theirs")])
    client.close()
    left = other.statistics()
    assert (left.blocks, left.references, [one.name for one in left.clients]) == (1, 1, ["other"])
    opened.close()


def test_threads_share_one_client(connect: Connect) -> None:
    client, failures = connect("client"), []

    def work(number: int) -> None:
        try:
            for step in range(50):
                value = np.full(500, number * 1000 + step)
                with client.open([client.put(value, f"scope-{number}")]) as (array,):
                    assert np.array_equal(array, value)
                client.release_scope_soon(f"scope-{number}")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert client.statistics().blocks == 0


def test_objects_and_strings_are_refused(connect: Connect) -> None:
    for array in (np.array(["text"]), np.array([None])):
        with pytest.raises(InvalidHandle):
            connect("client").put(array, "call")


def test_a_name_out_of_bounds_is_refused_and_the_client_goes_on(connect: Connect) -> None:
    client = connect("client")
    with pytest.raises(RequestRefused):
        client.open_scope("x" * 257)
    client.open_scope("x" * 256)


def test_nothing_is_left_in_the_file_system(connect: Connect, manager: ManagerProcess, endpoint: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    client = connect("client")
    client.put(np.zeros(2**20), "call")
    assert set(Path("/dev/shm").iterdir()) <= before
    client.close()
    assert manager.stop() == 0
    assert [path.name for path in endpoint.parent.iterdir()] == ["memory.sock.lock"]
