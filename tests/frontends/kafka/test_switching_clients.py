"""Stock clients that come back under the other protocol with the same instance id, in a managed group."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from kafka_coord.coordinator.service import CoordinatorService
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.java import JavaConsumer, KafkaTools
from tests.frontends.kafka.records import PARTITIONS, filled, managed_group
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
CLASSIC = {"partition.assignment.strategy": "cooperative-sticky"}
KIP_848 = {"group.protocol": "consumer", "group.remote.assignor": "uniform"}
"""Without an assignor, librdkafka 2.9 asks for ``range``. As in Kafka, the group then uses it from the first such
member on, and ``range`` may swap the partitions of all members once."""
COMMITTED = 7
_FATAL = {KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID, KafkaError.UNRELEASED_INSTANCE_ID}
_numbers = itertools.count(1)
Make = Callable[[str, dict[str, str]], "Static"]


@pytest.fixture(scope="module")
def topic(front: Front, service: CoordinatorService) -> str:
    return filled(front)


@pytest.fixture
def group(front: Front, topic: str) -> str:
    """Creates a managed group, and returns its name."""
    return managed_group(front, topic, f"switched-{next(_numbers)}")


class Static:
    """A client of confluent-kafka with an instance id."""

    def __init__(self, bootstrap: str, group: str, instance: str, settings: dict[str, str]) -> None:
        self.errors: list[KafkaError] = []
        given: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.instance.id": instance,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "error_cb": self.errors.append,
        }
        self.consumer = Consumer(given | settings)
        self.first: dict[int, int] = {}
        """The first offset that was read of each partition."""

    def subscribe(self, topic: str) -> Static:
        self.consumer.subscribe([topic])
        return self

    @property
    def partitions(self) -> set[int]:
        for message in self.consumer.consume(50, 0.1):
            if message.error() is None:
                self.first.setdefault(message.partition(), message.offset())
            else:
                self.errors.append(message.error())
        return {one.partition for one in self.consumer.assignment()}

    @property
    def fatal(self) -> list[str]:
        return [str(one) for one in self.errors if one.fatal() or one.code() in _FATAL]


@pytest.fixture
def client(front: Front, group: str, topic: str) -> Iterator[Make]:
    made: list[Static] = []

    def make(instance: str, settings: dict[str, str]) -> Static:
        made.append(Static(front.bootstrap, group, instance, settings).subscribe(topic))
        return made[-1]

    yield make
    for one in made:
        one.consumer.close()


def commits(one: Static, topic: str) -> None:
    offsets = [TopicPartition(topic, number, COMMITTED) for number in one.partitions]
    one.consumer.commit(offsets=offsets, asynchronous=False)


@pytest.mark.parametrize("closes", [True, False], ids=["after a close", "beside the old one"])
def test_static_classic_clients_come_back_as_kip_848_clients(client: Make, topic: str, *, closes: bool) -> None:
    """A static client does not leave when it closes, so its classic member still holds the instance id. Nothing moves
    to another member."""
    before = {name: client(name, CLASSIC) for name in ("i1", "i2")}
    living = dict(before)

    def shared() -> bool:
        having = [one.partitions for one in living.values()]
        return [len(one) for one in having] == [PARTITIONS // 2] * 2 and not having[0] & having[1]

    eventually(shared, within_s=60)
    for one in before.values():
        commits(one, topic)
    owned = {name: one.partitions for name, one in before.items()}

    for name, old in before.items():
        if closes:
            old.consumer.close()
        new = living[name] = client(name, KIP_848)
        eventually(lambda: shared() and len(new.first) >= PARTITIONS // 2, within_s=60)  # noqa: B023
        assert set(new.first.values()) == {COMMITTED}, "it must start from the last commit"
        assert new.fatal == []
        assert {one: held.partitions for one, held in living.items()} == owned
        if not closes:
            eventually(lambda: old.partitions is not None and bool(old.fatal), within_s=30)  # noqa: B023
            assert any("fenced" in one.lower() for one in old.fatal), old.fatal


def test_a_static_java_client_comes_back_as_a_kip_848_client(
    front: Front, group: str, topic: str, tools: KafkaTools
) -> None:
    with ExitStack() as open_now:

        def begin(protocol: str) -> JavaConsumer:
            made = tools.consumer(
                topic,
                bootstrap_servers=front.bootstrap,
                group_id=group,
                group_instance_id="j1",
                group_protocol=protocol,
                enable_auto_commit="false",
            )
            open_now.callback(made.close)
            eventually(lambda: len(made.partitions()) == PARTITIONS, within_s=60)
            return made

        begin("classic").commit()
        open_now.close()
        begin("consumer").commit()
