"""Topics that are deleted and made anew under groups of stock clients: offsets belong to a topic's id."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from kafka_coord.channel.zookeeper import ensure_group, stored_offsets
from kafka_coord.classic_groups.errors import Error
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import TopicPartition as CoordPartition
from kafka_coord.wire.consumer_protocol import encoded_assignment, encoded_subscription
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from tests.frontends.kafka.conftest import Front, end_term
from tests.frontends.kafka.peer import SESSION_MS, Peer, committing, join
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)


@pytest.fixture
def topic(front: Front) -> str:
    name = f"recreated-{next(_numbers)}"
    TopicAdmin(front.brokers).create(name, 1, replication=1)
    return name


@pytest.fixture
def group(topic: str) -> str:
    return f"group-of-{topic}"


def recreate(front: Front, topic: str) -> None:
    """Returns when the instances that follow the topic have noticed."""
    known = [listener.manager.topics for listener in front.listeners.values()]
    before = [(topics, topics.last_identity(topic)) for topics in known if topics.is_followed(topic)]
    TopicAdmin(front.brokers).delete(topic)
    TopicAdmin(front.brokers).create(topic, 1, replication=1)
    for topics, identity in before:
        eventually(lambda topics=topics, identity=identity: topics.last_identity(topic) != identity)


def fetched(peer: Peer, group: str, topic: str, error: Error = Error.NONE) -> int:
    """Returns the group's committed offset in partition 0, or -1."""
    of_topic = message("OffsetFetchRequest").struct("OffsetFetchRequestTopic")(name=topic, partition_indexes=(0,))
    answer = peer.ask("OffsetFetch", 5, group_id=group, topics=(of_topic,))
    assert answer.error_code == error
    return int(answer.topics[0].partitions[0].committed_offset)


class Leading:
    """The only member of a classic group. It assigns partition 0 of the topic to itself."""

    def __init__(self, peer: Peer, group: str, topic: str) -> None:
        self.peer, self.group, self.topic = peer, group, topic
        self.member_id = ""
        self.rejoin()

    def rejoin(self, *owned: int) -> bytes:
        """Joins with these partitions, as a cooperative client does. Returns the assignment."""
        subscribed = encoded_subscription(self.topic)
        if owned:
            of = message("ConsumerProtocolSubscription")
            held = of.struct("TopicPartition")(topic=self.topic, partitions=owned)
            subscribed = bytes(of.encode(of(topics=(self.topic,), owned_partitions=(held,)), 1, bytearray((0, 1))))
        joined = self.peer.ask("JoinGroup", 3, **join(self.group, self.member_id, subscribed, SESSION_MS))
        assert joined.error_code == Error.NONE
        self.member_id, self.generation = joined.member_id, joined.generation_id
        form = message("SyncGroupRequest").struct("SyncGroupRequestAssignment")
        mine = form(member_id=self.member_id, assignment=encoded_assignment([(self.topic, 0)]))
        who = {"group_id": self.group, "member_id": self.member_id, "generation_id": self.generation}
        synced = self.peer.ask("SyncGroup", 3, assignments=(mine,), **who)
        assert synced.error_code == Error.NONE
        return bytes(synced.assignment)

    def commit(self, offset: int, version: int = 5, **fields: Any) -> Error:
        who = {"group_id": self.group, "member_id": self.member_id, "generation_id_or_member_epoch": self.generation}
        answer = self.peer.ask("OffsetCommit", version, **who, **committing(self.topic, offset=offset), **fields)
        return Error(answer.topics[0].partitions[0].error_code)

    def beat(self) -> Error:
        who = {"group_id": self.group, "member_id": self.member_id, "generation_id": self.generation}
        return Error(self.peer.ask("Heartbeat", 3, **who).error_code)


def test_a_commit_for_a_topic_made_anew_is_refused_until_the_member_is_assigned_the_new_one(
    front: Front, listener: KafkaListener, group: str, topic: str
) -> None:
    with Peer(listener) as peer:
        member = Leading(peer, group, topic)
        assert member.commit(1_000) is Error.NONE
        assert fetched(peer, group, topic) == 1_000
        recreate(front, topic)
        assert fetched(peer, group, topic) == -1
        assert member.commit(1_001) is Error.REBALANCE_IN_PROGRESS
        assert member.beat() is Error.REBALANCE_IN_PROGRESS
        assert member.commit(1_002) is Error.REBALANCE_IN_PROGRESS
        member.rejoin()
        assert fetched(peer, group, topic) == -1
        assert member.commit(7) is Error.NONE
        assert fetched(peer, group, topic) == 7


def test_a_cooperative_member_gives_up_the_earlier_topic_before_it_is_given_the_new_one(
    front: Front, listener: KafkaListener, group: str, topic: str
) -> None:
    """It keeps its partitions when it joins again, and would go on at its positions."""
    given = encoded_assignment([(topic, 0)])
    with Peer(listener) as peer:
        member = Leading(peer, group, topic)
        assert member.commit(1_000) is Error.NONE
        assert member.rejoin(0) == given, "nothing has changed"
        recreate(front, topic)
        assert member.commit(1_001) is Error.REBALANCE_IN_PROGRESS
        assert member.rejoin(0) == encoded_assignment([])
        assert member.commit(1_002) is Error.REBALANCE_IN_PROGRESS, "a client commits what it gives up"
        assert member.rejoin() == given
        assert fetched(peer, group, topic) == -1
        assert member.commit(7) is Error.NONE


def test_the_next_coordinator_knows_which_topics_the_generation_was_given(
    front: Front, listener: KafkaListener, group: str, topic: str
) -> None:
    with Peer(listener) as peer:
        member = Leading(peer, group, topic)
        assert member.commit(1_000) is Error.NONE
    recreate(front, topic)
    end_term(front, partition_of(group))
    eventually(lambda: listener.managed.knows(group))
    with Peer(listener) as peer:
        member.peer = peer
        assert fetched(peer, group, topic) == -1
        assert member.commit(1_001) is Error.REBALANCE_IN_PROGRESS
        assert fetched(peer, group, topic) == -1


def test_offsets_of_a_deleted_topic_are_hidden_and_removed_once_the_name_has_another_id(
    front: Front, listener: KafkaListener, group: str, topic: str
) -> None:
    with Peer(listener) as peer:
        alone = {"group_id": group, "member_id": "", "generation_id_or_member_epoch": -1}
        assert _error(peer.ask("OffsetCommit", 5, **alone, **committing(topic, offset=1_000))) is Error.NONE
        TopicAdmin(front.brokers).delete(topic)
        eventually(lambda: fetched(peer, group, topic) == -1)  # Kafka 4.3: after ten seconds
        assert listener.manager.offsets(group), "the topic was deleted less than a day ago"
        TopicAdmin(front.brokers).create(topic, 1, replication=1)
        eventually(lambda: _error(peer.ask("OffsetCommit", 5, **alone, **committing(topic, offset=3))) is Error.NONE)
        assert fetched(peer, group, topic) == 3, "a commit without a member is taken as Kafka takes it"


def _error(answer: Any) -> Error:
    return Error(answer.topics[0].partitions[0].error_code)


@pytest.mark.usefixtures("service")
def test_a_managed_group_returns_no_offset_of_a_deleted_topic(front: Front, topic: str) -> None:
    name = f"managed-of-{topic}"
    given = {"bootstrap.servers": front.bootstrap, "group.id": name, "enable.auto.commit": False}
    ensure_group(front.store, name)
    eventually(lambda: front.serving(name).managed.knows(name))
    alone = Consumer(given)
    at = TopicPartition(topic, 0)
    alone.assign([at])
    eventually(lambda: alone.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False))
    assert [one.offset for one in alone.committed([at], 20)] == [0]
    path = layout.topic_offsets(name, topic)
    assert front.store.get(path).data, "the offsets say which topic they belong to"
    recreate(front, topic)
    assert [one.offset for one in alone.committed([at], 20)] == [OFFSET_INVALID]
    assert stored_offsets(front.store, name, [CoordPartition(topic, 0)]) == {CoordPartition(topic, 0): None}
    alone.close()


@pytest.mark.usefixtures("service")
def test_a_member_of_a_managed_group_commits_nothing_of_the_earlier_topic(front: Front, topic: str) -> None:
    name = f"members-of-{topic}"
    ensure_group(front.store, name)
    eventually(lambda: front.serving(name).managed.knows(name))
    with Peer(front.serving(name)) as peer:
        member = Leading(peer, name, topic)
        eventually(lambda: member.commit(1_000, version=3, retention_time_ms=3_600_000) is Error.NONE)
        details = front.store.get(layout.offset_details(name, topic, 0)).data
        assert b"expires_at_ms" in details, "the client's own retention is stored with its offset"
        recreate(front, topic)
        eventually(lambda: member.commit(1_001) is Error.REBALANCE_IN_PROGRESS)
        assert fetched(peer, name, topic) == -1
        before = member.generation
        eventually(lambda: member.rejoin() or member.generation > before)
        assert fetched(peer, name, topic) == -1
        assert member.commit(7) is Error.NONE
        assert fetched(peer, name, topic) == 7
