"""Terms of the groups log on real brokers: an older term's acknowledged writes stay, and later ones are refused."""

from __future__ import annotations

import asyncio

import pytest

from kafka_coord.errors import BrokerError
from kafka_coord.grouplog.records import (
    keep_alive_record,
)
from kafka_coord.grouplog.term import PARTITIONS, TOPIC, TermEnded, producer_of
from kafka_coord.kafka.cluster import ClusterClient
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.monitor.log_audit import LogRule, audit_groups_log
from tests.cli.running import run as cli
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.terms import Claimant, Log, committed, one_partition_log, record, run

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]


@pytest.fixture
def log(front: Front) -> Log:
    return one_partition_log(front)


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
