"""An instance applies the settings of a real broker that has other ones than Kafka's defaults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.dev.cluster.kafka import KafkaSettings
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.wire.consumer_protocol import encoded_subscription
from kafka_coord.wire.messages import message
from kafka_coord.zk.instance import read_retention
from tests.conftest import _shared_servers, brokers_of_a_run
from tests.frontends.kafka.conftest import serving_beside
from tests.frontends.kafka.peer import Peer, join
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
DAY_MS = 24 * 3600 * 1000
OF_BROKER = {
    "group.min.session.timeout.ms": "500",
    "group.max.size": "1",
    "group.consumer.max.size": "2",
    "message.max.bytes": "4000000",
    "offset.metadata.max.bytes": "10",
    "offsets.retention.minutes": str(30 * 24 * 60),
}


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaListener]:
    directory = tmp_path_factory.mktemp("settings")
    settings = KafkaSettings(for_instances=True, properties=OF_BROKER)
    with (
        ZooKeeperServer(directory / "zookeeper", settings=ZooKeeperSettings(tick_ms=200)) as server,
        brokers_of_a_run(directory, server.connect_string, 1, settings) as cluster,
    ):
        (broker,) = cluster.brokers
        _shared_servers.append(broker)
        try:
            with serving_beside(broker, server.connect_string) as listener:
                eventually(lambda: listener.manager.limits.append_bytes > GroupLimits().append_bytes)
                TopicAdmin(broker.address).create("flights", 1, replication=1)
                yield listener
        finally:
            _shared_servers.remove(broker)


def test_a_group_may_be_as_large_and_as_impatient_as_the_broker_allows(listener: KafkaListener) -> None:
    with Peer(listener) as peer:
        metadata = b"x" * (2 << 20)
        joined = peer.ask("JoinGroup", 3, **join("large", metadata=metadata, session_ms=30_000))
        assert joined.error_code == Error.NONE
        who = {"group_id": "large", "member_id": joined.member_id, "generation_id": joined.generation_id}
        assignment = message("SyncGroupRequest").struct("SyncGroupRequestAssignment")
        whole = (assignment(member_id=joined.member_id, assignment=b"y"),)
        assert peer.ask("SyncGroup", 3, **who, assignments=whole).error_code == Error.NONE
        with Peer(listener) as another:
            refused = another.ask("JoinGroup", 3, **join("large", metadata=metadata))
            assert refused.error_code == Error.GROUP_MAX_SIZE_REACHED
        assert peer.ask("JoinGroup", 3, **join("hasty", session_ms=500)).error_code == Error.NONE
        assert peer.ask("JoinGroup", 3, **join("hastier", session_ms=499)).error_code == Error.INVALID_SESSION_TIMEOUT


def test_a_managed_group_may_be_as_large_as_the_broker_allows(listener: KafkaListener) -> None:
    eventually(lambda: listener.manager.limits.consumer_max_size == 2)

    def heartbeat(peer: Peer, member_id: str) -> Error:
        whole = {"subscribed_topic_names": ("flights",), "topic_partitions": (), "rebalance_timeout_ms": 60_000}
        who = {"group_id": "kip-848", "member_id": member_id, "member_epoch": 0}
        return Error(peer.ask("ConsumerGroupHeartbeat", 1, **who, **whole).error_code)

    with Peer(listener) as peer:
        assert [heartbeat(peer, name) for name in ("m1", "m2", "m1")] == [Error.NONE] * 3
        assert heartbeat(peer, "m3") == Error.GROUP_MAX_SIZE_REACHED
        classic = peer.ask("JoinGroup", 3, **join("kip-848", metadata=encoded_subscription("flights")))
        assert classic.error_code == Error.GROUP_MAX_SIZE_REACHED


def test_the_metadata_of_an_offset_may_be_as_long_as_the_broker_allows(listener: KafkaListener) -> None:
    form = message("OffsetCommitRequest")
    part, topic = form.struct("OffsetCommitRequestPartition"), form.struct("OffsetCommitRequestTopic")
    errors = []
    with Peer(listener) as peer:
        for size in (10, 11):
            parts = (part(partition_index=0, committed_offset=1, committed_metadata="m" * size),)
            topics = (topic(name="flights", partitions=parts),)
            who = {"group_id": "noted", "member_id": "", "generation_id_or_member_epoch": -1}
            answer = peer.ask("OffsetCommit", 7, **who, topics=topics)
            errors.append(answer.topics[0].partitions[0].error_code)
    assert errors == [Error.NONE, Error.OFFSET_METADATA_TOO_LARGE]


def test_all_instances_learn_the_brokers_retention(listener: KafkaListener) -> None:
    found = read_retention(listener._store)
    assert (found.in_force_ms, found.since_ms) == (30 * DAY_MS, 0)
    assert found.brokers[1].is_told
