"""Clients get correct errors while ZooKeeper is down and when the groups log is deleted, and continue afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_coord.classic_groups.errors import Error
from kafka_coord.dev.cluster.kafka import Broker, KafkaSettings
from kafka_coord.dev.cluster.topics import NO_CONTROLLER, TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.grouplog.term import TOPIC as LOG
from kafka_coord.wire.messages import message
from kafka_coord.zk import connect
from tests.conftest import _shared_servers, brokers_of_a_run
from tests.frontends.kafka.conftest import serving_beside
from tests.frontends.kafka.peer import Member, Peer, committing
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
TOPIC, SESSION_MS = "in-trouble", 2_000


@dataclass(frozen=True)
class Alone:
    """A broker and an instance whose sessions end soon after ZooKeeper goes down."""

    zookeeper: ZooKeeperServer
    broker: Broker
    listener: KafkaListener

    def peer(self) -> Peer:
        return Peer(self.listener)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    directory = tmp_path_factory.mktemp("alone")
    settings = KafkaSettings(for_instances=True, session_ms=SESSION_MS)
    with (
        ZooKeeperServer(directory / "zookeeper", settings=ZooKeeperSettings(tick_ms=200)) as server,
        brokers_of_a_run(directory, server.connect_string, 1, settings) as cluster,
    ):
        (broker,) = cluster.brokers
        _shared_servers.append(broker)
        TopicAdmin(broker.address).create(TOPIC, 1)
        try:
            with serving_beside(broker, server.connect_string, session_timeout_ms=SESSION_MS) as listener:
                yield Alone(server, broker, listener)
        finally:
            _shared_servers.remove(broker)
            broker.kill()  # a clean stop takes long after all this


def commit(peer: Peer, offset: int, **who: object) -> int:
    found = peer.ask("OffsetCommit", 7, **committing(TOPIC, offset=offset), **who)
    return int(found.topics[0].partitions[0].error_code)


def committed(peer: Peer, group: str) -> tuple[int, list[int]]:
    """Fetches the group's committed offset. Returns the error and the offsets."""
    topic = message("OffsetFetchRequest").struct("OffsetFetchRequestTopic")(name=TOPIC, partition_indexes=(0,))
    found = peer.ask("OffsetFetch", 5, group_id=group, topics=(topic,))
    return found.error_code, [part.committed_offset for one in found.topics for part in one.partitions]


def test_members_commit_and_read_offsets_while_zookeeper_is_down(alone: Alone) -> None:
    with alone.peer() as peer:
        member = Member(peer, "without-zookeeper")
        who = {"group_id": member.group, "member_id": member.who["member_id"]}
        who["generation_id_or_member_epoch"] = member.who["generation_id"]
        assert commit(peer, 1, **who) == Error.NONE
        alone.zookeeper.pause()
        try:
            ends, offset = time.monotonic() + 2 * SESSION_MS / 1000, 1
            while time.monotonic() < ends:
                offset += 1
                assert commit(peer, offset, **who) == Error.NONE
                assert committed(peer, member.group) == (Error.NONE, [offset])
                time.sleep(0.05)
        finally:
            alone.zookeeper.resume()
        with closing(connect(alone.zookeeper.connect_string)) as store:
            eventually(lambda: store.exists("/brokers/ids/1"), within_s=60)
        offset += 1
        assert commit(peer, offset, **who) == Error.NONE
        assert committed(peer, member.group) == (Error.NONE, [offset])


def test_a_deleted_groups_log_is_noticed_and_created_again(alone: Alone, caplog: pytest.LogCaptureFixture) -> None:
    """The contents of the deleted log are lost, as an operator must expect. No client gets the lost offsets."""
    group = "of-a-deleted-log"
    with alone.peer() as peer:
        eventually(lambda: commit(peer, 1, group_id=group) == Error.NONE)
        with caplog.at_level(logging.INFO, logger="kafka_coord.grouplog"):
            # not TopicAdmin, which waits until the topic is gone: the instance may recreate it before TopicAdmin looks
            admin = AdminClient({"bootstrap.servers": alone.broker.address, "log_level": 0})

            def deleted() -> bool:
                try:
                    admin.delete_topics([LOG])[LOG].result(30)
                except KafkaException as error:
                    if error.args[0].code() not in NO_CONTROLLER:  # a busy broker may lose its session
                        raise
                    return False
                return True

            eventually(deleted, within_s=30)
            eventually(lambda: commit(peer, 2, group_id=group) == Error.NOT_COORDINATOR)
        assert "no longer coordinates a partition of the groups log partition=" in caplog.text

        def is_there() -> bool:
            found = peer.ask("FindCoordinator", 1, key=group)
            return found.error_code == Error.NONE and commit(peer, 3, group_id=group) == Error.NONE

        eventually(is_there, within_s=60, every_s=0.2)
        assert committed(peer, group) == (Error.NONE, [3])
