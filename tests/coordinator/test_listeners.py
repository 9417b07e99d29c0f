"""Tests of which groups the pause of all groups, and its end, enqueue, and of what Kafka's migration to KRaft logs. No
I/O."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from kafka_coord.coordinator.listeners import BrokerChangeListener, PauseListener
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.zk.brokers import Migration
from kafka_coord.zk.store import Node, Stat


class StandingClock:
    def monotonic(self) -> float:
        return 0.0

    def time(self) -> float:
        return 0.0


def node(data: bytes = b"{}") -> Node:
    return Node(data, Stat(*([0] * len(Stat.__annotations__))))


def taken(queue: RebalanceRequestQueue) -> set[str]:
    found: set[str] = set()
    while (group := queue.take_now()) is not None:
        found.add(group)
    return found


def test_the_beginning_and_the_end_of_the_pause_enqueue_every_group():
    queue = RebalanceRequestQueue(StandingClock())
    listener = PauseListener(SimpleNamespace(groups={"a", "b"}), queue, set)
    listener.on_data(None)
    assert taken(queue) == set()
    listener.on_data(node())
    assert taken(queue) == {"a", "b"}
    listener.on_data(None)
    assert taken(queue) == {"a", "b"}


def test_an_unobserved_pause_enqueues_the_groups_that_may_have_seen_it():
    queue = RebalanceRequestQueue(StandingClock())
    listener = PauseListener(SimpleNamespace(groups={"a", "b", "c"}), queue, lambda: {"b"})
    listener.on_data(None)
    listener.on_data(None)
    assert taken(queue) == {"b"}


ZOOKEEPER = node(b'{"version":2,"brokerid":2,"timestamp":"1795972596802","kraftControllerEpoch":-1}')
KRAFT = node(b'{"version":2,"brokerid":3000,"timestamp":"1795972596802","kraftControllerEpoch":3}')


@pytest.mark.parametrize(
    ("controller", "migration", "phase"),
    [
        (ZOOKEEPER, None, Migration.NONE),
        (node(b'{"version":1,"brokerid":2,"timestamp":"1"}'), None, Migration.NONE),
        (None, None, Migration.NONE),
        (node(b"\xff"), None, Migration.NONE),
        (node(b'{"kraftControllerEpoch":"3"}'), None, Migration.NONE),
        (ZOOKEEPER, node(), Migration.PREPARED),
        (None, node(), Migration.PREPARED),
        (KRAFT, None, Migration.RUNNING),
        (KRAFT, node(), Migration.RUNNING),
    ],
)
def test_kafkas_znodes_tell_how_far_a_migration_is(
    controller: Node | None, migration: Node | None, phase: Migration
) -> None:
    assert Migration.of(controller, migration) is phase


def test_a_migration_is_logged_once_until_it_is_rolled_back(caplog: pytest.LogCaptureFixture) -> None:
    listener = BrokerChangeListener(SimpleNamespace())
    said = []
    with caplog.at_level(logging.WARNING):
        for controller in (ZOOKEEPER, KRAFT, KRAFT, None, ZOOKEEPER, KRAFT):
            listener.take((), (controller,))
            said.append(len(caplog.messages))
    assert said == [0, 1, 1, 1, 1, 2]
    assert "do not finalise" in caplog.text
