"""Claims of a log with one partition, on real brokers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from kafka_coord.dev.cluster.kafka import Broker
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.grouplog.records import CommittedOffset, OffsetEntry, read_record
from kafka_coord.grouplog.term import Claimed, LogLoad, LogTerm
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.wire.batches import LogRecord
from kafka_coord.zk.root import ClusterRecord, Source
from tests.frontends.kafka.conftest import Front
from tests.grouplog.offset_record import offset_record
from tests.waiting import answered

_numbers = itertools.count(1)
TREE = ClusterRecord("t1", 1, Source.ZOOKEEPER, 0)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


async def checked() -> bool:
    """ZooKeeper knows of no newer term."""
    return True


class Claimant:
    """An instance that claims the partition with a term number."""

    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, name
        self.connection = BrokerConnection("127.0.0.1", log.leader.listener_port)
        self.ended: list[tuple[str, bool]] = []

    async def claim(self, number: int, newest: int = -1) -> LogTerm:
        now_ms = lambda: time.time_ns() // 10**6  # noqa: E731
        ended = lambda *how: self.ended.append(how)  # noqa: E731
        claimed = Claimed(number, number, 1)
        term = LogTerm(self.connection, 0, claimed, self.name, TREE, now_ms, ended, checked, topic=self.log.topic)
        self.claimed_at = await term.claim(newest)
        return term

    async def loaded(self, _term: LogTerm) -> list[LogRecord]:
        load = LogLoad(self.connection, 0, self.log.topic)
        return [record async for _, records in load.up_to(self.claimed_at) for record in records]


@dataclass(frozen=True)
class Log:
    """A log with one partition, for this test only."""

    topic: str
    leader: Broker
    other: Broker


def one_partition_log(front: Front) -> Log:
    topic = f"terms-{next(_numbers)}"
    TopicAdmin(front.cluster.bootstrap_servers).create(topic, 1, replication=3)
    producer = Producer({"bootstrap.servers": front.cluster.bootstrap_servers})
    leader = answered(producer, topic).partitions[0].leader
    other = next(broker for broker in front.cluster.brokers if broker.broker_id != leader)
    return Log(topic, front.cluster.broker(leader), other)


def record(number: int, group: str = "terms") -> LogRecord:
    return offset_record(OffsetEntry(group, "t", number, CommittedOffset(number)))


def committed(records: list[LogRecord]) -> list[int]:
    entries = [read_record(one) for one in records]
    return [one.value.offset for one in entries if isinstance(one, OffsetEntry) and one.value]
