"""Members of each client library read on while their topic is deleted and made anew, and while their group moves."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

import pytest

from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.dev.cluster.jars import KAFKA, KAFKA_VERSION, class_path
from kafka_coord.model import GroupKind
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.java import brokers_archive
from tests.frontends.kafka.tried.contenders import CONTENDERS, Contender, java_program
from tests.frontends.kafka.tried.play import Play

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper, pytest.mark.usefixtures("service")]
CONFLUENT, KIP_848 = "confluent-kafka 2.9.0", "kip-848"
LIBRARIES = {one.name: one for one in CONTENDERS if one.tells_commits}


def _java() -> Contender:
    """The client of the brokers' own version, without downloading anything."""
    program = java_program(os.pathsep.join(map(str, class_path(KAFKA))), flags=brokers_archive())
    return Contender(f"kafka-clients {KAFKA_VERSION}", lambda: program)


@dataclass(frozen=True)
class Brokers:
    """Kafka's own coordinator, for comparison."""

    bootstrap: str

    @property
    def brokers(self) -> str:
        return self.bootstrap

    def coordinator(self, partition: int) -> int:
        raise NotImplementedError

    def stop(self, broker_id: int) -> None:
        raise NotImplementedError

    def start(self, broker_id: int) -> None:
        raise NotImplementedError

    def convert(self, group: str, to: GroupKind) -> None:
        raise NotImplementedError


def _read_on(front: Front, contender: Contender, strategy: str, *, managed: bool) -> None:
    play = Play(contender, strategy, front)
    if managed:
        ensure_group(front.store, play.group)
    seen = play.read_on()
    assert not seen.failure, seen


@pytest.mark.parametrize(
    ("strategy", "managed"), [("cooperative-sticky", False), ("cooperative-sticky", True), (KIP_848, True)]
)
def test_librdkafka_reads_the_new_topic_from_its_beginning(front: Front, strategy: str, managed: bool) -> None:
    _read_on(front, LIBRARIES[CONFLUENT], strategy, managed=managed)


@pytest.mark.parametrize(("strategy", "managed"), [("cooperative-sticky", False), (KIP_848, True)])
def test_javas_client_reads_the_new_topic_from_its_beginning(front: Front, strategy: str, managed: bool) -> None:
    _read_on(front, _java(), strategy, managed=managed)


@pytest.mark.long
@pytest.mark.parametrize("where", ["client-assigned", "managed", "at Kafka"])
@pytest.mark.parametrize(
    ("library", "strategy"), [(one.name, strategy) for one in LIBRARIES.values() for strategy in one.strategies]
)
def test_each_library_reads_the_new_topic_from_its_beginning(
    front: Front, library: str, strategy: str, where: str
) -> None:
    if where == "at Kafka":
        seen = Play(LIBRARIES[library], strategy, Brokers(front.brokers)).read_on()
        assert not seen.failure, seen
    else:
        _read_on(front, LIBRARIES[library], strategy, managed=where == "managed")


@pytest.mark.long
@pytest.mark.parametrize(
    ("contender", "strategy", "static"),
    [
        pytest.param(one, strategy, static, id=f"{one.name}-{strategy}{'-static' * static}")
        for one in CONTENDERS
        for strategy in one.strategies
        for static in ((False, True) if one.static else (False,))
        if not one.name.startswith("KafkaJS")  # it ends if a commit is answered UNKNOWN_MEMBER_ID
    ],
)
def test_each_library_reads_on_while_its_group_is_given_back_and_taken_over(
    front: Front, contender: Contender, strategy: str, static: bool
) -> None:
    seen = Play(contender, strategy, front).move(static=static)
    logging.warning("%s %s: %s", contender.name, strategy, seen)
    assert not seen.failure, seen
