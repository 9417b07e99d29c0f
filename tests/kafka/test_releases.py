"""What an instance and operators' commands ask of brokers from 0.11 to 4.3, all of them real."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, Producer

from kafka_coord.dev.cluster.jars import KAFKA_4_VERSION, KAFKA_VERSION, class_path
from kafka_coord.dev.cluster.kafka import Broker, KafkaBroker, KafkaSettings, KraftBroker
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.errors import DevClusterError
from kafka_coord.frontends.kafka import access, instances, native
from kafka_coord.grouplog import term
from kafka_coord.groups import copies
from kafka_coord.groups.copies import CopyPosition, KafkaOffsetStore
from kafka_coord.kafka import cluster, coordinators, metadata
from kafka_coord.kafka.client import OwnClient
from kafka_coord.kafka.cluster import ClusterClient, PartitionReader
from kafka_coord.kafka.connection import BrokerConnection, NoCommonVersion, Versions, newest_common, told_versions
from kafka_coord.kafka.metadata import MetadataAsker
from kafka_coord.model import TopicPartition
from kafka_coord.model.offsets import EARLIEST, LATEST
from kafka_coord.wire.messages import message
from kafka_coord.zk.session import connect
from tests.coordinator.mirrored import topic_id
from tests.frontends.kafka.conftest import serving_beside
from tests.frontends.kafka.tried.older import OLDER, older
from tests.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.zookeeper]

RELEASES = (*reversed(OLDER), KAFKA_VERSION, KAFKA_4_VERSION)
START_S = 180.0
"""Without an archive of its classes, an old release starts slowly."""
SENT: list[tuple[str, int | Versions, str]] = [
    ("Metadata", cluster._METADATA, "0.11.0.3"),
    ("Metadata", cluster._METADATA_WITH_RIGHTS, "0.11.0.3"),
    ("Metadata", metadata._METADATA, "0.11.0.3"),
    ("Metadata", instances._METADATA, "0.11.0.3"),
    ("Metadata", access._METADATA, "2.8.2"),
    ("ListOffsets", cluster._LIST_OFFSETS, "0.11.0.3"),
    ("ListOffsets", cluster._LIST_ONE_OFFSET, "0.11.0.3"),
    ("Fetch", cluster._FETCH, "0.11.0.3"),
    ("Produce", term._PRODUCE, "0.11.0.3"),
    ("CreateTopics", cluster._CREATE_TOPICS, "0.11.0.3"),
    ("CreateTopics", instances._CREATE_TOPICS, "0.11.0.3"),
    ("DescribeConfigs", instances._DESCRIBE_CONFIGS, "0.11.0.3"),
    ("DescribeConfigs", metadata._DESCRIBE_CONFIGS, "0.11.0.3"),
    ("DescribeAcls", access._DESCRIBE_ACLS, "0.11.0.3"),
    ("DescribeGroups", 0, "0.11.0.3"),
    ("Heartbeat", 0, "0.11.0.3"),
    ("OffsetDelete", 0, "2.8.2"),
    ("FindCoordinator", coordinators._FIND, "0.11.0.3"),
    ("FindCoordinator", native._FIND_COORDINATOR, "0.11.0.3"),
    ("ListGroups", copies._LIST, "0.11.0.3"),
    ("DescribeGroups", copies._DESCRIBE, "0.11.0.3"),
    ("OffsetCommit", copies._COMMIT, "0.11.0.3"),
    ("OffsetFetch", (copies._FETCH, copies._FETCH_STABLE), "0.11.0.3"),
]
"""Each request to a broker, its versions, and the first of the releases that has one of them."""


@dataclass
class Place:
    """A broker with a topic of two partitions, and three records in the first."""

    release: str
    broker: Broker
    zookeeper: str

    @property
    def has_ids(self) -> bool:
        return RELEASES.index(self.release) >= RELEASES.index("2.8.2")


@pytest.fixture(scope="module", params=RELEASES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer
) -> Iterator[Place]:
    chroot = f"/{uuid.uuid4().hex[:8]}"
    with closing(connect(zookeeper.connect_string)) as store:
        store.create(chroot)
    hosts = f"{zookeeper.connect_string}{chroot}"
    kinds = {KAFKA_VERSION: KafkaBroker, KAFKA_4_VERSION: KraftBroker}
    try:
        kind = older(request.param) if request.param in OLDER else kinds[request.param]
        class_path(kind.release)
    except DevClusterError as error:
        pytest.skip(f"no Kafka {request.param}: {error}")
    broker = kind(tmp_path_factory.mktemp("release"), 1, hosts, settings=KafkaSettings(for_instances=True))
    try:
        broker.start(START_S)
        with closing(own(broker)) as client:
            assert client.create_topic("flights", 2, 1, 30)
            eventually(lambda: client.led_partitions("flights", 10) == 2)
        producer = Producer({"bootstrap.servers": broker.address})
        for number in range(3):
            producer.produce("flights", f"v{number}", partition=0)
        assert producer.flush(60) == 0
        yield Place(request.param, broker, hosts)
    finally:
        broker.kill()  # a clean stop takes seconds


def own(broker: Broker) -> OwnClient:
    return OwnClient(ClusterClient.of(broker.address, {}))


def test_every_request_has_a_common_version_or_an_error_that_says_which(place: Place) -> None:
    async def told() -> None:
        broker = BrokerConnection("127.0.0.1", place.broker.port)
        answer = await broker.ask("ApiVersions", 0, message("ApiVersionsRequest")())
        broker.close()
        supported = told_versions(answer)
        for name, spoken, since in SENT:
            if RELEASES.index(place.release) >= RELEASES.index(since):
                assert newest_common(name, spoken, supported) >= 0
            else:
                with pytest.raises(NoCommonVersion, match=rf"of {name}, and .* Kafka 0\.11 to 4\.3"):
                    newest_common(name, spoken, supported)

    asyncio.run(told())


def test_offsets_records_and_commits_are_read_and_written(place: Place) -> None:
    partition = TopicPartition("flights", 0)
    with closing(own(place.broker)) as client:
        for which, expected in ((EARLIEST, 0), (LATEST, 3)):
            listed = client.list_offsets([partition], which, read_committed=True, timeout_s=10)
            assert (listed.offsets, listed.trouble) == ({partition: expected}, [])
        assert client.refused(["flights"], 10) == {}
    store = KafkaOffsetStore("the brokers", place.broker.address, {}, 60)
    assert store.write({"copied": {partition: CopyPosition(2, "noted")}}) == {}
    assert store.read(["copied"])["copied"].positions == {partition: CopyPosition(2, "noted")}
    assert "copied" in store.groups()

    async def records() -> list[int]:
        broker = BrokerConnection("127.0.0.1", place.broker.port)
        reader = PartitionReader(broker, 0, "flights")
        ends = [one.end async for one in reader.batches(await reader.first_offset(), await reader.end_offset())]
        broker.close()
        return ends

    assert asyncio.run(records())[-1] == 3


def test_the_mirror_learns_the_topics_and_whether_they_have_ids(place: Place) -> None:
    with closing(MetadataAsker({})) as asker:
        answer = asker.listing("", [("127.0.0.1", place.broker.port)], None)
        assert answer.has_ids is place.has_ids
        assert answer.teller == 1
        (described,) = asker.described(answer)
        assert {one.name: one.address for one in described.listeners} == {
            "PLAINTEXT": place.broker.address,
            "COORD": place.broker.instance_address,
        }
        flights = next(one for one in answer.topics if one.name == "flights")
        assert flights.replicas == {0: (1,), 1: (1,)}
        assert bool(flights.topic_id) is place.has_ids
        if place.has_ids:
            (told,) = asker.by_id({topic_id(1): "unknown"}, {flights.topic_id: "flights"}, answer)
            assert (told.known, told.unknown) == ({flights.topic_id}, {topic_id(1)})
            again = asker.listing("", [("127.0.0.1", place.broker.port)], None)
            assert again.topics == answer.topics
        assert not asker.listing("", [("127.0.0.1", place.broker.port)], ["created"]).topics[0].replicas


def test_an_instance_serves_classic_clients_beside_the_broker(place: Place) -> None:
    if place.release == KAFKA_4_VERSION:
        pytest.skip("tests/end_to_end/test_kraft.py: the topics are in the mirror there")
    with serving_beside(place.broker, place.zookeeper):
        consumer = Consumer(
            {
                "bootstrap.servers": place.broker.instance_address,
                "group.id": "classic",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["flights"])
        found = []
        while len(found) < 3:
            record = consumer.poll(30)
            assert record is not None
            assert record.error() is None
            found.append(record.value())
        assert found == [b"v0", b"v1", b"v2"]
        consumer.commit(asynchronous=False)
        assert consumer.committed(consumer.assignment(), 30)[0].offset == 3
        consumer.close()
