"""Every answer equals Kafka's own, for the same bytes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from kafka_coord.dev.cluster.topics import TopicAdmin
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.plays import matrix
from tests.frontends.kafka.side_by_side import Play, both

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)
PLAYS = dict(matrix())


@pytest.fixture(scope="module", autouse=True)
def _answers_at_once(front: Front) -> Iterator[None]:
    """Only answers are compared, not their times."""
    for listener in front.listeners.values():
        listener.coordinator.holds = False
    yield
    for listener in front.listeners.values():
        listener.coordinator.holds = True


@pytest.fixture(scope="module")
def topic(front: Front) -> str:
    TopicAdmin(front.cluster.bootstrap_servers).create("side-by-side", 2, replication=1)
    return "side-by-side"


@pytest.mark.parametrize("play", PLAYS.values(), ids=PLAYS)
def test_answers_are_kafkas(front: Front, topic: str, play: Play) -> None:
    broker = front.cluster.brokers[0]
    listener = front.listeners[broker.broker_id]
    host, _, port = listener.address.rpartition(":")
    theirs, ours = asyncio.run(
        both(play, ("127.0.0.1", broker.port), (host, int(port)), f"side-{next(_numbers)}", topic)
    )
    assert ours == theirs
    assert theirs
