"""Terms of the groups log on real brokers: an older term's acknowledged writes stay, and later ones are refused."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_coord.dev.cluster.kafka import KafkaBroker
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.errors import BrokerError
from kafka_coord.grouplog.records import (
    CommittedOffset,
    OffsetEntry,
    keep_alive_record,
    read_record,
)
from kafka_coord.grouplog.term import PARTITIONS, TOPIC, LogTerm, TermEnded, producer_of
from kafka_coord.kafka.cluster import ClusterClient
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.monitor.log_audit import LogRule, audit_groups_log
from kafka_coord.wire.batches import LogRecord
from tests.cli.running import run as cli
from tests.frontends.kafka.conftest import Front
from tests.grouplog.offset_record import offset_record
from tests.waiting import answered

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)


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

    async def claim(self, number: int) -> LogTerm:
        now_ms = lambda: time.time_ns() // 10**6  # noqa: E731
        ended = lambda *how: self.ended.append(how)  # noqa: E731
        term = LogTerm(self.connection, 0, number, self.name, now_ms, ended, checked, topic=self.log.topic)
        self.claimed_at = await term.claim()
        return term

    async def loaded(self, term: LogTerm) -> list[LogRecord]:
        return [record async for _, records in term.load(self.claimed_at) for record in records]


@dataclass(frozen=True)
class Log:
    """A log with one partition, for this test only."""

    topic: str
    leader: KafkaBroker
    other: KafkaBroker


@pytest.fixture
def log(front: Front) -> Log:
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


def test_a_newer_term_loads_the_older_terms_acknowledged_writes_and_the_older_term_is_refused(log: Log) -> None:
    async def play() -> None:
        older, newer = Claimant(log, "older"), Claimant(log, "newer")
        first = await older.claim(1_000_000)
        first.serve()
        await first.append([record(1), record(2)])
        second = await newer.claim(1_000_001)
        assert committed(await newer.loaded(second))[-2:] == [1, 2]

        with pytest.raises(TermEnded):
            await first.append([record(3)])

        assert older.ended
        third, last = Claimant(log, "third"), Claimant(log, "last")
        (await third.claim(1_000_002)).end("done")
        assert committed(await last.loaded(await last.claim(1_000_003)))[-2:] == [1, 2]
        for one in (older, newer, third, last):
            one.connection.close()

    run(play())


def test_an_idle_term_writes_keep_alive_records(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_coord.grouplog.term.KEEP_ALIVE_S", 0.05)

    async def play() -> None:
        one, next_one = Claimant(log, "one"), Claimant(log, "next")
        term = await one.claim(3_000_000)
        term.serve()
        async with asyncio.timeout(60):
            while term.figures.records < 3:
                await asyncio.sleep(0.02)
        await term.append([record(1)])
        term.end("done")
        loaded = await next_one.loaded(await next_one.claim(3_000_001))
        assert [each.key for each in loaded].count(keep_alive_record().key) >= 3
        assert committed(loaded) == [1]
        for each in (one, next_one):
            each.connection.close()

    run(play())


def test_a_term_cannot_be_claimed_twice(log: Log) -> None:
    async def play() -> None:
        one, other = Claimant(log, "one"), Claimant(log, "other")
        await one.claim(2_000_000)
        with pytest.raises((TermEnded, BrokerError)):
            await other.claim(2_000_000)
        one.connection.close()
        other.connection.close()

    run(play())


def test_concurrent_appends_keep_their_order(log: Log) -> None:
    async def play() -> None:
        claimant = Claimant(log, "busy")
        term = await claimant.claim(3_000_000)
        term.serve()
        await asyncio.gather(*(term.append([record(number)]) for number in range(2_000)))
        after = Claimant(log, "after")
        found = committed(await after.loaded(await after.claim(3_000_001)))
        assert found[-2_000:] == list(range(2_000))
        claimant.connection.close()
        after.connection.close()

    run(play())


def test_a_broker_that_does_not_lead_the_partition_refuses_a_claim(log: Log) -> None:
    async def play() -> None:
        claimant = Claimant(log, "elsewhere")
        claimant.connection = BrokerConnection("127.0.0.1", log.other.listener_port)
        with pytest.raises(BrokerError):
            await claimant.claim(4_000_000)
        claimant.connection.close()

    run(play())


def test_the_audit_of_the_log_reports_only_a_term_that_no_znode_claimed(log: Log) -> None:
    async def play() -> None:
        for number in (5_000_000, 5_000_001):
            claimant = Claimant(log, f"term {number}")
            term = await claimant.claim(number)
            term.serve()
            await term.append([record(number)])
            claimant.connection.close()

    run(play())
    bootstrap = [("127.0.0.1", log.leader.listener_port)]
    report = audit_groups_log(ClusterClient(bootstrap), lambda _partition: 5_000_001, log.topic)
    assert (report.violations, report.figures["terms"], report.figures["commits"]) == ([], 2, 2)
    report = audit_groups_log(ClusterClient(bootstrap), lambda _partition: 5_000_000, log.topic)
    assert [one.rule for one in report.violations] == [LogRule.UNCLAIMED_TERM]


def test_the_command_audits_the_log_of_running_instances(front: Front) -> None:
    ran = cli("audit", "--group-log", "-z", front.cluster.zookeeper, "-o", "json")
    assert ran.code == 0, ran.out + ran.err
    checked = ran.json()["checked"]
    assert (checked["partitions"], checked["claims"] >= PARTITIONS) == (PARTITIONS, True)


def test_a_greater_term_has_a_greater_producer_epoch_or_id() -> None:
    terms = [0, 1, 32_766, 32_767, 32_768, 32_769, 1 << 30]
    assert [producer_of(3, term) for term in terms] == sorted(producer_of(3, term) for term in terms)
    assert len({producer_of(partition, term) for partition in range(PARTITIONS) for term in terms}) == 50 * len(terms)


def test_the_log_is_compacted_and_no_unclean_leader_is_elected(front: Front) -> None:
    from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

    admin = AdminClient({"bootstrap.servers": front.cluster.bootstrap_servers})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, TOPIC)]).values()
    settings = {name: entry.value for name, entry in found.result(30).items()}
    assert settings["cleanup.policy"] == "compact"
    assert settings["min.insync.replicas"] == "2"
    assert settings["unclean.leader.election.enable"] == "false"
