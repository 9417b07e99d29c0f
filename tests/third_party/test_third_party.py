"""A consumer written from docs/protocol.md alone, in one group with the library's, on real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest
from kazoo.client import KazooClient

from kafka_coord.coordinator.service import CoordinatorService
from tests.end_to_end.parties import Reader, all_given, coordinator, expected, owners, wait_for_all
from tests.third_party.reading import ThirdPartyReader
from tests.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]

PARTITIONS = 6


@pytest.fixture
def coordinators(kafka_cluster) -> Iterator[list[CoordinatorService]]:
    """Two coordinators, the first of them elected; a test may stop it."""
    with ExitStack() as running:
        services = [running.enter_context(coordinator(kafka_cluster.zookeeper, 101))]
        eventually(lambda: services[0].leads)
        services.append(running.enter_context(coordinator(kafka_cluster.zookeeper, 102)))
        yield services


@pytest.fixture
def third_party(kafka_cluster) -> Iterator[Callable[..., ThirdPartyReader]]:
    """Makes and starts third-party readers, and stops those that a test leaves running."""
    made: list[ThirdPartyReader] = []

    def make(group: str, topic: str, name: str) -> ThirdPartyReader:
        where = kafka_cluster.zookeeper, kafka_cluster.bootstrap_servers
        made.append(ThirdPartyReader(*where, group, topic, name).start())
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def client(kafka_cluster) -> Iterator[KazooClient]:
    client = KazooClient(kafka_cluster.zookeeper)
    client.start(timeout=30)
    yield client
    client.stop()
    client.close()


def committed(client: KazooClient, group: str, topic: str) -> dict[int, int]:
    path = f"/consumers/groups/{group}/offsets/{topic}"
    return {int(partition): int(client.get(f"{path}/{partition}")[0]) for partition in client.get_children(path)}


def assert_in_order(readers: list[Reader]) -> None:
    for one in readers:
        for partition in range(PARTITIONS):
            offsets = [offset for p, offset in one.given if p == partition]
            assert all(before < after for before, after in pairwise(offsets)), (one.name, partition)


def test_partitions_change_hands_between_both_kinds_and_every_record_is_given_once(
    coordinators, client, make_topic, reader, third_party, numbered
):
    topic = make_topic(partitions=PARTITIONS)
    producer = numbered(topic, PARTITIONS).start()
    library = [reader("mixed", topic, "library-1")]
    eventually(lambda: owners(library) == [6])

    foreign = [third_party("mixed", topic, "foreign-1")]
    eventually(lambda: owners(library + foreign) == [3, 3])
    foreign.append(third_party("mixed", topic, "foreign-2"))
    eventually(lambda: owners(library + foreign) == [2, 2, 2])
    library[0].stop()
    eventually(lambda: owners(foreign) == [3, 3])
    library.append(reader("mixed", topic, "library-2"))
    eventually(lambda: owners(library[1:] + foreign) == [2, 2, 2])
    foreign[0].stop()
    eventually(lambda: owners([library[1], foreign[1]]) == [3, 3])
    enough = len(foreign[1].given) + 300
    eventually(lambda: len(foreign[1].given) > enough)
    written = producer.stop()
    wait_for_all(library + foreign, written)
    library[1].stop()
    foreign[1].stop()

    given = all_given(library + foreign)
    assert set(given) == expected(written), "every record was given, and none that does not exist"
    assert set(given.values()) == {1}, "none was given twice"
    assert_in_order(library + foreign)
    assert committed(client, "mixed", topic) == dict(written)


def test_the_next_coordinator_commands_both_kinds_as_the_one_before_did(
    coordinators, make_topic, reader, third_party, numbered
):
    topic = make_topic(partitions=PARTITIONS)
    producer = numbered(topic, PARTITIONS).start()
    readers = [reader("mixed-failover", topic, "library-1"), third_party("mixed-failover", topic, "foreign-1")]
    eventually(lambda: owners(readers) == [3, 3])
    held = [one.consumer.assignment() for one in readers]

    coordinators[0].stop()
    eventually(lambda: coordinators[1].leads)

    assert [one.consumer.assignment() for one in readers] == held, "nothing moves because of it"
    readers.append(third_party("mixed-failover", topic, "foreign-2"))
    eventually(lambda: owners(readers) == [2, 2, 2])
    eventually(lambda: len(readers[2].given) > 100)
    written = producer.stop()
    wait_for_all(readers, written)
    for one in readers:
        one.stop()
    given = all_given(readers)
    assert set(given) == expected(written)
    assert set(given.values()) == {1}
    assert_in_order(readers)


def test_a_consumer_whose_kazoo_thread_ended_comes_back(coordinators, client, make_topic, third_party, numbered):
    """An unexpected reply ends kazoo's connection thread for good."""
    topic = make_topic(partitions=PARTITIONS)
    producer = numbered(topic, PARTITIONS).start()
    one = third_party("gave-up", topic, "foreign-1")
    eventually(lambda: owners([one]) == [6])
    before = client.exists("/consumers/groups/gave-up/ids/foreign-1").czxid

    one.consumer._zk.stop()  # such a reply leaves a client in state CLOSED that nobody asked for

    eventually(lambda: (now := client.exists("/consumers/groups/gave-up/ids/foreign-1")) and now.czxid > before)
    eventually(lambda: owners([one]) == [6])
    written = producer.stop()
    wait_for_all([one], written)
    one.stop()
    assert set(all_given([one])) == expected(written)


def test_an_evicted_consumer_comes_back_as_a_new_incarnation_and_no_record_is_lost(
    coordinators, client, make_topic, reader, third_party, numbered
):
    topic = make_topic(partitions=PARTITIONS)
    producer = numbered(topic, PARTITIONS).start()
    readers = [reader("evicted", topic, "library-1"), third_party("evicted", topic, "foreign-1")]
    eventually(lambda: owners(readers) == [3, 3])
    ids = "/consumers/groups/evicted/ids/foreign-1"
    before = client.exists(ids).czxid

    client.delete(ids)

    eventually(lambda: (now := client.exists(ids)) and now.czxid > before)
    eventually(lambda: owners(readers) == [3, 3])
    written = producer.stop()
    wait_for_all(readers, written)
    for one in readers:
        one.stop()
    assert set(all_given(readers)) == expected(written)
    assert committed(client, "evicted", topic) == dict(written)
