"""The offsets of a managed group are never reported as missing while its coordinator is loading it."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.grouplog.manager import partition_of
from tests.frontends.kafka.conftest import Front, end_term
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_committed_offsets_are_returned_after_each_new_term_begins(front: Front, protocol: str) -> None:
    name = f"loading-{protocol}"
    TopicAdmin(front.cluster.bootstrap_servers).create(name, 1, replication=3)
    ensure_group(front.store, name)
    given = {"bootstrap.servers": front.bootstrap, "group.id": name, "enable.auto.commit": False}
    one = Consumer(given | {"group.protocol": protocol})
    one.subscribe([name])
    eventually(lambda: one.poll(0.05) or one.assignment(), within_s=60)
    eventually(lambda: one.commit(offsets=[TopicPartition(name, 0, 41)], asynchronous=False))
    seen = set()
    for _ in range(5):
        end_term(front, partition_of(name))
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            one.poll(0)
            try:
                (found,) = one.committed([TopicPartition(name, 0)], 5)
            except KafkaException:
                continue
            if found.error is None:
                seen.add(found.offset)
    one.close()
    assert seen == {41}
