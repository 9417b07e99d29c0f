"""An instance is suspended and another replaces it. When the first continues, it returns no stale offset."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.dev.cluster.coordinator import serve_beside
from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.wire.messages import message
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.peer import Listening, Peer, committing
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
TOPIC, BROKER_ID = "suspended", 1


@dataclass(frozen=True)
class Serving:
    """``kafka-coord serve`` beside a broker of the cluster."""

    process: ChildProcess
    address: str


@pytest.fixture(scope="module")
def serving(front: Front, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Replaces the shared cluster's listener beside this broker, and restores it afterwards."""
    front.stop(BROKER_ID)
    address = f"127.0.0.1:{free_port()}"
    command = [*serve_beside(BROKER_ID, front.cluster.zookeeper), "--listen-kafka", address]
    command += ["--broker-listener", front.cluster.broker(BROKER_ID).listener_address]
    process = ChildProcess("suspended", tuple(command), tmp_path_factory.mktemp("suspended") / "serve.log")
    process.start()
    one = Serving(process, address)
    try:
        yield one
    finally:
        process.resume()
        process.stop()
        front.start(BROKER_ID)
        eventually(front.serves_every_group, within_s=60)


@contextlib.contextmanager
def another(front: Front) -> Iterator[KafkaListener]:
    """Runs another instance beside the same broker."""
    try:
        yield front.start(BROKER_ID)
    finally:
        front.stop(BROKER_ID)


def commit(peer: Peer, group: str, offset: int) -> int:
    found = peer.ask("OffsetCommit", 7, group_id=group, **committing(TOPIC, offset=offset))
    return int(found.topics[0].partitions[0].error_code)


def committed_to(listener: Listening, group: str, offset: int) -> bool:
    """Commits the offset. Returns whether this listener coordinates the group and accepted the commit."""
    try:
        with Peer(listener) as peer:
            return commit(peer, group, offset) == Error.NONE
    except OSError:
        return False


def asked() -> dict[str, Any]:
    topic = message("OffsetFetchRequest").struct("OffsetFetchRequestTopic")
    return {"topics": (topic(name=TOPIC, partition_indexes=(0,)),)}


def test_an_instance_that_was_suspended_does_not_return_a_stale_offset(front: Front, serving: Serving) -> None:
    TopicAdmin(front.cluster.bootstrap_servers).create(TOPIC, 1)
    groups = (f"suspended-{number}" for number in range(1_000))
    group = next(one for one in groups if front.coordinator(partition_of(one)) == BROKER_ID)
    eventually(lambda: committed_to(serving, group, 1), within_s=60)
    with Peer(serving) as peer:
        assert commit(peer, group, 1) == Error.NONE
        before = peer.ask("OffsetFetch", 5, group_id=group, **asked())
        assert before.topics[0].partitions[0].committed_offset == 1

        serving.process.pause()
        with another(front) as other:
            eventually(lambda: committed_to(other, group, 2), within_s=60)
            peer.send("OffsetFetch", 5, group_id=group, **asked())
            serving.process.resume()
            _, found = peer.answer("OffsetFetch", 5)
    told = found.error_code, [part.committed_offset for topic in found.topics for part in topic.partitions]
    assert told[0] == Error.NOT_COORDINATOR or told == (Error.NONE, [2])
