"""Classic clients in managed groups, together with KIP-848 clients and consumers over ZooKeeper."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from kafka_coord import Consumer as CoordConsumer
from kafka_coord.classic_groups.errors import Error
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.groups.managed import describe_group
from kafka_coord.wire.consumer_protocol import assignment, encoded_subscription
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.peer import Peer, join
from tests.frontends.kafka.records import PARTITIONS, filled, managed_group
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def topic(front: Front, service: CoordinatorService) -> str:
    """Creates a topic with records, and returns its name."""
    return filled(front)


@dataclass
class Stock:
    """A stock client, and the partitions in each call of its rebalance listener."""

    consumer: Consumer
    assigned: list[list[int]] = field(default_factory=list)
    revoked: list[list[int]] = field(default_factory=list)

    @property
    def changes(self) -> tuple[int, int]:
        """How many calls assigned partitions, and how many revoked some. librdkafka also calls with no partitions."""
        return sum(map(bool, self.assigned)), sum(map(bool, self.revoked))

    @property
    def partitions(self) -> set[int]:
        self.consumer.poll(0.05)
        return {one.partition for one in self.consumer.assignment()}


Make = Callable[..., Stock]


@pytest.fixture
def member(front: Front, topic: str) -> Iterator[Make]:
    made: list[Stock] = []

    def make(group: str, assignor: str = "cooperative-sticky", **settings: Any) -> Stock:
        given = {"bootstrap.servers": front.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        if assignor:
            given["partition.assignment.strategy"] = assignor
        else:
            given["group.protocol"] = "consumer"
        given |= {name.replace("_", "."): value for name, value in settings.items()}
        one = Stock(Consumer(given))
        made.append(one)
        one.consumer.subscribe(
            [topic],
            on_assign=lambda _, those: one.assigned.append(sorted(tp.partition for tp in those)),
            on_revoke=lambda _, those: one.revoked.append(sorted(tp.partition for tp in those)),
        )
        return one

    yield make
    for one in made:
        one.consumer.close()


@pytest.fixture
def group(front: Front, topic: str) -> str:
    """Creates a managed group, and returns its name."""
    return managed_group(front, topic, f"mixed-{next(_numbers)}")


def shared(*members: Stock, among: int = 0) -> bool:
    """Whether each member has its share of the partitions, and no partition has two owners."""
    having = [one.partitions for one in members]
    share = PARTITIONS // (among or len(members))
    return all(len(one) == share for one in having) and len(set().union(*having)) == share * len(members)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_group_of_classic_clients_consumes_everything_once(group: str, member: Make, assignor: str) -> None:
    first = member(group, assignor)
    eventually(lambda: shared(first), within_s=30)
    second = member(group, assignor)
    eventually(lambda: shared(first, second), within_s=30)
    second.consumer.close()
    eventually(lambda: shared(first), within_s=30)


def test_all_kinds_of_members_share_a_group_and_only_partitions_that_move_are_interrupted(
    front: Front, topic: str, group: str, member: Make
) -> None:
    with CoordConsumer(zookeeper=front.cluster.zookeeper, group=group, topics=[topic]) as own:

        def settled(*stock: Stock) -> bool:
            own.poll(0.05)
            having = [*(one.partitions for one in stock), {tp.partition for tp in own.assignment()}]
            sizes = [len(one) for one in having]
            return max(sizes) - min(sizes) <= 1 and sum(sizes) == PARTITIONS == len(set().union(*having))

        members = [member(group, ""), member(group, "cooperative-sticky")]
        eventually(lambda: settled(*members), within_s=30)
        before = [(one.partitions, len(one.assigned), len(one.revoked)) for one in members]
        eager = member(group, "range")
        eventually(lambda: settled(*members, eager), within_s=30)
        assert eager.assigned == [sorted(eager.partitions)], "an eager member must get its whole share in one call"
        for one, (had, assigned, revoked) in zip(members, before, strict=True):
            lost = sorted(had - one.partitions)
            assert one.revoked[revoked:] == ([lost] if lost else []), "only partitions that moved may be interrupted"
            assert [those for those in one.assigned[assigned:] if those] == []
        eager.consumer.close()
        eventually(lambda: settled(*members), within_s=30)
        assert all(len(one.revoked) - revoked <= 1 for one, (_, _, revoked) in zip(members, before, strict=True))


def test_partitions_of_a_dead_client_move_without_interrupting_other_members(
    front: Front, topic: str, group: str, member: Make
) -> None:
    survivors = [member(group, "cooperative-sticky"), member(group, "cooperative-sticky")]
    eventually(lambda: shared(*survivors), within_s=30)
    with Peer(front.serving(group)) as peer:
        with ThreadPoolExecutor() as pool:
            joining = pool.submit(
                peer.ask, "JoinGroup", 3, **join(group, metadata=encoded_subscription(topic), session_ms=6_000)
            )
            eventually(lambda: [one.partitions for one in survivors] and joining.done(), within_s=30)
        joined = joining.result()
        assert (joined.error_code, joined.leader, joined.members) == (Error.NONE, "", ())
        who = {"group_id": group, "member_id": joined.member_id, "generation_id": joined.generation_id}
        share = assignment(peer.ask("SyncGroup", 3, **who).assignment).assigned_partitions
    assert 0 < sum(len(one.partitions) for one in share) <= PARTITIONS // 3
    eventually(lambda: shared(*survivors, among=3), within_s=30)
    revoked = [len(one.revoked) for one in survivors]
    eventually(lambda: shared(*survivors), within_s=30)
    assert [len(one.revoked) for one in survivors] == revoked


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_no_member_is_interrupted_when_the_group_moves_to_another_instance(
    front: Front, topic: str, group: str, member: Make, assignor: str
) -> None:
    members = [member(group, assignor, enable_auto_commit=False) for _ in range(2)]
    eventually(lambda: shared(*members), within_s=30)
    changes = [one.changes for one in members]

    def committed() -> bool:
        try:
            for one in members:
                offsets = [TopicPartition(topic, number, number + 1) for number in one.partitions]
                one.consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return False
        else:
            return True

    assert committed()
    front.move(group)
    eventually(committed, within_s=30)
    assert shared(*members)
    assert [one.changes for one in members] == changes
    stored = members[0].consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], 30)
    assert [one.offset for one in stored] == [number + 1 for number in range(PARTITIONS)]


def test_a_static_client_that_returns_gets_its_partitions_and_fences_its_former_process(
    topic: str, group: str, member: Make
) -> None:
    other, one = member(group, group_instance_id="a"), member(group, group_instance_id="b")
    eventually(lambda: shared(other, one), within_s=30)
    had, changes = one.partitions, other.changes
    back = member(group, group_instance_id="b")
    eventually(lambda: back.partitions == had, within_s=30)
    assert other.changes == changes

    def fenced() -> bool:
        try:
            one.consumer.commit(offsets=[TopicPartition(topic, min(had), 1)], asynchronous=False)
        except KafkaException as error:
            return bool(error.args[0].code() == KafkaError._FATAL)
        return False

    eventually(fenced, within_s=30)


def test_a_client_whose_assignors_are_unknown_is_refused(
    front: Front, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Peer(front.serving(group)) as peer:
        fields = join(group) | {"protocol_type": "connect"}
        assert peer.ask("JoinGroup", 3, **fields).error_code == Error.INCONSISTENT_GROUP_PROTOCOL
        assert "it offers protocols 'range' of type 'connect'" in caplog.text
        assert (
            peer.ask("JoinGroup", 4, **join(group, metadata=encoded_subscription("a"))).error_code
            == Error.MEMBER_ID_REQUIRED
        )


def test_a_client_joins_a_group_of_202_letters_under_the_java_clients_default_id(
    front: Front, topic: str, member: Make
) -> None:
    group = "g" * 202
    with CoordConsumer(zookeeper=front.cluster.zookeeper, group=group, topics=[topic]) as own:
        eventually(lambda: own.poll(0.05) or len(own.assignment()) == PARTITIONS, within_s=30)
    one, other = (member(group, client_id=f"consumer-{group}-{number}") for number in (1, 2))
    eventually(lambda: shared(one, other), within_s=60)


def test_a_client_with_a_brokers_longer_member_id_asks_for_another(front: Front, group: str) -> None:
    with Peer(front.serving(group)) as peer:
        fields = join(group, member_id="m" * 250, metadata=encoded_subscription("a"))
        assert peer.ask("JoinGroup", 4, **fields).error_code == Error.UNKNOWN_MEMBER_ID


def test_operators_see_classic_members(front: Front, group: str, member: Make) -> None:
    one = member(group, "range", client_id="stock")
    eventually(lambda: shared(one), within_s=30)
    row = next(iter(describe_group(front.store, group, None).members))
    assert (row.channel, row.protocol) == ("kafka", "classic")
    assert (row.software or "").startswith("confluent-kafka-python ")
    with Peer(front.serving(group)) as peer:
        (as_classic,) = peer.ask("DescribeGroups", 5, groups=(group,)).groups
        (as_managed,) = peer.ask("ConsumerGroupDescribe", 1, group_ids=(group,)).groups
    assert (as_classic.group_state, as_classic.protocol_type) == ("Stable", "consumer")
    (described,) = as_classic.members
    assert (described.client_id, described.member_id[:6]) == ("stock", "stock-")
    share = assignment(described.member_assignment).assigned_partitions
    assert sum(len(topic.partitions) for topic in share) == PARTITIONS
    (described,) = as_managed.members
    assert (described.member_id[:6], described.member_type) == ("stock-", 0)
