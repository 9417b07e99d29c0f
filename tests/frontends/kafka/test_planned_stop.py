"""A planned stop of an instance: it answers what is in flight, tells clients to look again, and logs at INFO."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.frontends.kafka.listener import KafkaListener
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.peer import Member, Peer, committing, join
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
GROUP, TOPIC = "stopped", "stopped"
COMMITS = 20


@pytest.fixture
def stopping(front: Front) -> Iterator[KafkaListener]:
    """The listener of the group. It is started again after the test."""
    TopicAdmin(front.brokers).create(TOPIC, 1, replication=3)
    listener = front.serving(GROUP)
    broker_id = next(number for number, one in front.listeners.items() if one is listener)
    with Peer(listener) as peer:  # the instance then knows the topic
        assert peer.ask("OffsetCommit", 7, group_id=f"{GROUP}-x", **committing(TOPIC, offset=1)).topics
    yield listener
    if broker_id in front.listeners:
        front.stop(broker_id)
    front.start(broker_id)
    eventually(front.serves_every_group, within_s=60)
    TopicAdmin(front.brokers).delete(TOPIC)


def stop(front: Front, listener: KafkaListener) -> None:
    front.stop(next(number for number, one in front.listeners.items() if one is listener))


def test_everything_in_flight_is_answered_before_the_connections_close(
    front: Front, stopping: KafkaListener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kafka_coord")
    with Peer(stopping) as held, Peer(stopping) as joining, Peer(stopping) as writing:
        member = Member(held, GROUP)
        beat = member.beat()
        # another member joins, and waits for the first one
        joining.ask("ApiVersions", 0)
        joining.send("JoinGroup", 3, **join(GROUP, session_ms=60_000))
        assert member.told() == (beat, Error.REBALANCE_IN_PROGRESS)
        joining.hears_nothing()
        for offset in range(COMMITS):
            writing.send("OffsetCommit", 7, group_id=f"{GROUP}-x", **committing(TOPIC, offset=offset))

        caplog.clear()
        stop(front, stopping)

        assert joining.answer("JoinGroup", 3)[1].error_code == Error.NOT_COORDINATOR
        answered = []
        try:
            while True:
                (topic,) = writing.answer("OffsetCommit", 7)[1].topics
                answered.append(topic.partitions[0].error_code)
        except ConnectionError:
            pass
        assert answered, "no commit in flight was answered"
        assert set(answered) <= {Error.NONE, Error.NOT_COORDINATOR}
        for peer in (held, joining):
            assert peer.is_closed()
    loud = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert loud == []
    assert any("no longer coordinates" in record.getMessage() for record in caplog.records)


def test_while_it_stops_it_names_itself_no_more(front: Front, stopping: KafkaListener) -> None:
    """Its connections live until their requests are answered. Until then, requests about groups are refused."""
    stopping.instances.is_stopping = True
    with Peer(stopping) as peer:
        found = peer.ask("FindCoordinator", 1, key=GROUP, key_type=0)
        assert found.error_code == Error.COORDINATOR_NOT_AVAILABLE
        joined = peer.ask("JoinGroup", 3, **join(GROUP))
        assert joined.error_code == Error.NOT_COORDINATOR
        (topic,) = peer.ask("OffsetCommit", 7, group_id=f"{GROUP}-x", **committing(TOPIC, offset=1)).topics
        assert topic.partitions[0].error_code in {Error.NOT_COORDINATOR, Error.NONE}
