"""Members of each client library read on while their topic is deleted and made anew, and while their group moves."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.dev.cluster.jars import KAFKA, KAFKA_VERSION, class_path
from kafka_coord.model import GroupKind
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.java import brokers_archive
from tests.frontends.kafka.tried.connect import move_connect
from tests.frontends.kafka.tried.contenders import CONTENDERS, Contender, java_program
from tests.frontends.kafka.tried.play import KIP_848, Play, Seen

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper, pytest.mark.usefixtures("service")]
CONFLUENT = "confluent-kafka 2.9.0"
OF_KIP_848 = {"confluent-kafka 2.16.1", "kafka-clients 4.3.0"}
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
        for strategy in (*one.strategies, *((KIP_848,) if one.name in OF_KIP_848 else ()))
        for static in ((False, True) if one.static else (False,))
        if not one.name.startswith("KafkaJS")  # it ends if a commit is answered UNKNOWN_MEMBER_ID
    ],
)
def test_each_library_reads_on_while_its_group_is_given_back_and_taken_over(
    front: Front, contender: Contender, strategy: str, static: bool, request: pytest.FixtureRequest
) -> None:
    if strategy == KIP_848 and not request.config.option.kraft:
        pytest.skip("Kafka 3.9 has no KIP-848")
    play = Play(contender, strategy, front)
    _must_have_moved(contender, strategy, play.move(static=static))


@pytest.mark.long
@pytest.mark.parametrize(
    ("contender", "strategy"),
    [
        pytest.param(one, strategy, id=f"{one.name}-{strategy}")
        for one in CONTENDERS
        for strategy in one.strategies
        if not one.name.startswith("KafkaJS")
    ],
)
def test_each_library_reads_on_while_its_group_becomes_managed_and_client_assigned(
    front: Front, contender: Contender, strategy: str
) -> None:
    seen = Play(contender, strategy, front).convert()
    if strategy == "stream":  # Streams has an assignor of its own
        assert "make managed: refused" in seen.failure
        assert "a managed group needs type 'consumer' and one of" in seen.failure
    else:
        _must_have_moved(contender, strategy, seen)


def _must_have_moved(contender: Contender, strategy: str, seen: Seen) -> None:
    for one in seen.moves:
        found = f"{one.to}: {one.took_s:.1f} s, pause {one.pause_s:.1f} s, {one.failed_commits} failed commits"
        logging.warning("%s %s %s, logged %s", contender.name, strategy, found, one.logged)
    assert not seen.failure, seen


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_connect_goes_on_while_its_groups_are_given_back_taken_over_and_converted(front: Front, tmp_path: Path) -> None:
    move_connect(front, tmp_path)
