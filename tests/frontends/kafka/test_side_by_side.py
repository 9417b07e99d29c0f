"""For the same bytes, every answer equals Kafka's own, except for the listed differences."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping

import pytest

from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.dev.cluster.jars import KAFKA_4, class_path
from kafka_coord.dev.cluster.kafka import KafkaSettings, KraftBroker
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.errors import DevClusterError
from tests.frontends.kafka import consumer_group_plays, plays
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.consumer_group_differences import DIFFERENCES, lines, listed
from tests.frontends.kafka.consumer_group_side import ConsumerGroupSide
from tests.frontends.kafka.side_by_side import both
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)
TOPIC = "side-by-side"
PLAYS = dict(plays.matrix())
CONSUMER_GROUP_PLAYS = dict(consumer_group_plays.matrix())
_AT_ONCE = 8


@pytest.fixture(scope="module", autouse=True)
def _answers_at_once(front: Front) -> Iterator[None]:
    """Turns off the holding of heartbeats, because only answers are compared, not their times."""
    for listener in front.listeners.values():
        listener.coordinator.holds = False
    yield
    for listener in front.listeners.values():
        listener.coordinator.holds = True


@pytest.fixture(scope="module")
def ours(front: Front) -> tuple[str, int]:
    """Creates the topics, and returns the address of one instance."""
    _make_topics(front.cluster.bootstrap_servers)
    host, _, port = front.listeners[front.cluster.brokers[0].broker_id].address.rpartition(":")
    return host, int(port)


def _make_topics(bootstrap: str) -> None:
    for name, partitions in ((TOPIC, 2), (TOPIC + consumer_group_plays.OTHER, 1)):
        TopicAdmin(bootstrap).create(name, partitions, replication=1)


_STAYS = "a group whose last offset was deleted stays"
_ASSIGNED = "DescribeGroups names assignments also while a group rebalances (``ClassicGroupMember.describeNoMetadata``)"
OF_KAFKA_4 = {
    "no_group-commits": "if there is no group, a member's commit in version 9 gets GROUP_ID_NOT_FOUND",
    **dict.fromkeys(("empty-deletes", "simple-deletes"), _STAYS),
    **dict.fromkeys(("stable_of_two-leaves", "follower-leaves", "preparing-looks", "preparing-deletes"), _ASSIGNED),
}
"""The plays in which Kafka 4.3 answers otherwise than 3.9, and what differs. An instance answers as 3.9."""


@pytest.mark.parametrize("name", PLAYS)
def test_answers_equal_kafkas(front: Front, ours: tuple[str, int], name: str) -> None:
    kafka = front.cluster.brokers[0]
    at = "127.0.0.1", kafka.port
    theirs, own = asyncio.run(both(PLAYS[name], at, ours, f"side-{next(_numbers)}", TOPIC))
    assert theirs.heard
    if kafka.settings.kraft and name in OF_KAFKA_4:
        assert own.heard != theirs.heard
    else:
        assert own.heard == theirs.heard


# --- KIP-848 groups, compared with Kafka 4.3 -------------------------------------------------------------------------

Sides = tuple[ConsumerGroupSide, ConsumerGroupSide]


@pytest.fixture(scope="module")
def kafka4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A Kafka 4.3 broker with the same topics. It assigns partitions as soon as a member joins."""
    properties = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.assignment.interval.ms": "0",
        "group.consumer.min.assignment.interval.ms": "0",
    }
    settings = KafkaSettings(properties=properties, heap_mb=512)
    broker = KraftBroker(tmp_path_factory.mktemp("kafka4"), 1, settings=settings)
    try:
        class_path(KAFKA_4)
    except DevClusterError as error:
        pytest.skip(f"no Kafka 4.3: {error}")
    with broker:
        _make_topics(broker.address)
        yield "127.0.0.1", broker.port
        broker.kill()  # a clean stop takes seconds


@pytest.fixture(scope="module")
def played(
    kafka4: tuple[str, int], ours: tuple[str, int], service: CoordinatorService, front: Front
) -> Mapping[str, Sides | BaseException]:
    """Runs every play of :data:`CONSUMER_GROUP_PLAYS`, several at once, because they mostly wait for assignments."""
    eventually(front.serves_every_group, within_s=60)

    async def run() -> list[Sides | BaseException]:
        at_once = asyncio.Semaphore(2 * _AT_ONCE)
        runs = (
            both(play, kafka4, ours, f"side-{next(_numbers)}", TOPIC, ConsumerGroupSide, at_once)
            for play in CONSUMER_GROUP_PLAYS.values()
        )
        return await asyncio.gather(*runs, return_exceptions=True)

    return dict(zip(CONSUMER_GROUP_PLAYS, asyncio.run(run()), strict=True))


@pytest.mark.parametrize("name", CONSUMER_GROUP_PLAYS)
def test_answers_for_kip_848_groups_equal_kafkas(played: Mapping[str, Sides | BaseException], name: str) -> None:
    sides = played[name]
    if isinstance(sides, BaseException):
        raise sides
    kafka, own = (side.answers for side in sides)
    assert kafka
    found = [f"{case}: {line}" for case, line in lines(kafka, own) if not any(listed(name, case, line))]
    assert found == []


def test_every_listed_difference_exists(played: Mapping[str, Sides | BaseException]) -> None:
    seen = {
        which
        for name, sides in played.items()
        if not isinstance(sides, BaseException)
        for case, line in lines(sides[0].answers, sides[1].answers)
        for which in listed(name, case, line)
    }
    table = [(number, at) for number, one in enumerate(DIFFERENCES) for at in range(len(one.lines))]
    assert [
        (DIFFERENCES[number].cases, DIFFERENCES[number].lines[at]) for number, at in table if (number, at) not in seen
    ] == []
