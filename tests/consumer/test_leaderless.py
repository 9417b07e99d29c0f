"""Brokers that stop, and take a leader or the end of a log with them: real brokers, and members of every kind."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_coord import Consumer
from kafka_coord.dev.cluster.kafka import KafkaCluster, KafkaSettings
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import NoNode, NoOffset
from kafka_coord.groups.managed import describe_group
from kafka_coord.kafka.librdkafka import LogOffsets, admin_client
from kafka_coord.model import TopicPartition
from kafka_coord.spark.member import QueryMember
from kafka_coord.spark.options import SourceOptions
from kafka_coord.zk import connect, layout
from kafka_coord.zk.session import KazooStore
from tests.cli.running import run
from tests.conftest import _shared_servers, brokers_of_a_run
from tests.consumer.reading import read
from tests.frontends.harness import SocketInstance
from tests.go_consumer import go_consumer, records_of
from tests.waiting import eventually, write

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
LED, UNLED = TopicPartition("flights", 0), TopicPartition("flights", 1)
WAITING = "waiting"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Two brokers. The first leads partition 0 of each topic, the second leads partition 1, and is stopped. In KRaft
    mode, there is a third, so that two of three controllers run whichever is stopped."""
    directory = tmp_path_factory.mktemp("leaderless")
    brokers = 3 if request.config.option.kraft else 2
    with (
        ZooKeeperServer(directory / "zookeeper", settings=ZooKeeperSettings(tick_ms=200)) as server,
        brokers_of_a_run(directory, server.connect_string, brokers, KafkaSettings()) as made,
    ):
        _shared_servers.extend(made.brokers)
        admin = AdminClient({"bootstrap.servers": made.bootstrap_servers})
        topics = [NewTopic(name, 2, replica_assignment=[[1], [2]]) for name in (LED.topic, WAITING)]
        for made_one in admin.create_topics(topics).values():
            made_one.result(30)
        produce(made, UNLED, "before", "before", "before")
        made.broker(2).stop()
        try:
            yield made
        finally:
            for broker in made.brokers:
                _shared_servers.remove(broker)


def produce(cluster: KafkaCluster, partition: TopicPartition, *values: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    write(producer, *partition, [value.encode() for value in values])


@pytest.fixture
def store(cluster: KafkaCluster) -> Iterator[KazooStore]:
    opened = connect(cluster.zookeeper)
    yield opened
    opened.close()


@pytest.fixture
def instance(cluster: KafkaCluster) -> Iterator[SocketInstance]:
    made = SocketInstance(cluster.zookeeper, 1, lists=True)
    try:
        yield made.start_elected()
    finally:
        made.stop()


class Query:
    """A query without Spark. It is a member like any other."""

    def __init__(self, zookeeper: str) -> None:
        options = {"zookeeper": zookeeper, "group": "query", "consumerId": "query", "topics": LED.topic}
        self._member = QueryMember(SourceOptions.of(options))

    def next_range(self) -> tuple[TopicPartition, int] | None:
        self._member.holdings.done()
        found = self._member.plan(100)
        return next(((tp, found.of_partition(tp)[0].start) for tp in found.partitions), None)

    def close(self) -> None:
        self._member.close()


def offset(store: KazooStore, group: str, partition: TopicPartition) -> int | None:
    try:
        return int(store.get(layout.offset(group, *partition)).data)
    except NoNode:
        return None


def awaited(store: KazooStore, group: str) -> str | None:
    """Why ``groups describe`` says that the partition without a leader has no position."""
    described = describe_group(store, group, None)
    return next((one.unresolved for one in described.offsets if one.tp == UNLED), None)


def test_a_partition_without_a_leader_delays_no_other_and_begins_at_its_first_end(
    cluster: KafkaCluster, store: KazooStore, instance: SocketInstance, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes: dict[str, list[dict[TopicPartition, str]]] = {"zookeeper": [], "socket": []}

    def consumer(name: str, **over: Any) -> Consumer:
        def note(now: Any) -> None:
            changes[name].append(dict(now))

        return Consumer(group=name, consumer_id=name, topics=[LED.topic], on_unresolved=note, **over)

    made: dict[str, Consumer | Query | ChildProcess] = {}
    with caplog.at_level(logging.INFO):
        try:
            made["zookeeper"] = consumer("zookeeper", zookeeper=cluster.zookeeper)
            made["socket"] = consumer("socket", bootstrap=instance.server.address)
            made["query"] = Query(cluster.zookeeper)
            if program := go_consumer(tmp_path):
                where = ["-bootstrap", instance.server.address, "-topic", LED.topic]
                made["go"] = ChildProcess(
                    "go", [str(program), *where, "-group", "go", "-consumer-id", "go"], tmp_path / "go.log"
                )
                made["go"].start()

            def each(condition: Callable[[str], Any]) -> None:
                for name, member in made.items():
                    eventually(lambda name=name, member=member: (step(member), condition(name))[1], within_s=60)

            # all partitions are started and acknowledged, and the one with a leader is read
            each(lambda group: offset(store, group, LED) == 0)
            each(lambda group: not store.children(layout.channel(group, group)))
            each(lambda group: awaited(store, group))
            each(lambda group: offset(store, group, UNLED) is None)
            produce(cluster, LED, "one")
            for member in made.values():
                assert eventually(lambda member=member: first_of(member, LED) == 0)
            for name in changes:
                assert UNLED in made[name].stats.unresolved
                assert UNLED in changes[name][-1]

            cluster.broker(2).start(timeout_s=180)
            each(lambda group: offset(store, group, UNLED) == 3)
            produce(cluster, UNLED, "after")
            for member in made.values():
                assert eventually(lambda member=member: first_of(member, UNLED) == 3)
            each(lambda group: not awaited(store, group))
            for name in changes:
                assert not made[name].stats.unresolved
                assert made[name].stats.losses == 0
                assert changes[name][-1] == {}
        finally:
            for member in made.values():
                member.kill() if isinstance(member, ChildProcess) else member.close()
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for begin in ("cannot read partitions=flights[1]", "resolved partitions=flights[1]"):
        assert len([one for one in told if one.startswith(begin)]) == 2, f"once by each consumer: {begin}"
    for begin in ("cannot read flights[1]", "resolved or released flights[1]"):
        assert len([one for one in told if one.startswith(begin)]) == 1, f"once by the query: {begin}"


@pytest.mark.long
def test_the_doctor_reports_lag_while_one_broker_is_down_and_another_does_not_answer(
    cluster: KafkaCluster, store: KazooStore
) -> None:
    cluster.broker(2).stop()
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    producer.produce(WAITING, b"old", partition=0, timestamp=round(time.time() * 1000) - 600_000)
    assert producer.flush(30) == 0
    for number in (0, 1):
        store.ensure_path(layout.topic_offsets("late", WAITING))
        store.create(layout.offset("late", WAITING, number), b"0")
    listed = f"{layout.MIRRORED_BROKERS}/9" if cluster.brokers[0].settings.kraft else layout.broker(9)
    store.create(listed, b'{"version":5,"endpoints":["PLAINTEXT://127.0.0.1:1"]}')
    try:
        found = json.loads(run("doctor", "-o", "json", zookeeper=cluster.zookeeper).out)
    finally:
        store.delete(listed)
    told = [one["what"] for one in found]
    assert any(one.startswith("broker 9 cannot be reached") for one in told), told
    assert any(one.startswith("group late is late in waiting[0]: 1 record waiting") for one in told), told


def test_a_log_that_a_new_leader_has_cut_is_read_on_from_the_end_of_the_epoch(
    cluster: KafkaCluster, instance: SocketInstance, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.start()
    cut = TopicPartition("cut", 0)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    unclean = {"unclean.leader.election.enable": "true"}
    admin.create_topics([NewTopic(cut.topic, 1, replica_assignment=[[1, 2]], config=unclean)])[cut.topic].result(30)
    resets, read_before, program = ("earliest", "latest", "error"), list(range(10)), go_consumer(tmp_path)
    consumers = [
        Consumer(cluster.zookeeper, group=f"cut-{reset}", topics=[cut.topic], auto_offset_reset=reset)
        for reset in resets
    ]
    go = ChildProcess("go", [str(program), "-bootstrap", instance.server.address, "-topic", cut.topic], tmp_path / "go")
    go.command = (*go.command, "-group", "cut-go", "-from", "earliest")
    try:
        for one in consumers:
            eventually(one.assignment)
        consumers[2].seek(cut, "earliest")
        eventually(lambda: consumers[1].position(cut) == 0)
        if program:
            go.start()
        produce(cluster, cut, *"01234")  # on both brokers
        cluster.broker(2).stop()
        produce(cluster, cut, *"56789")  # on the first only
        for one in consumers:
            assert [record.offset for record in read(one, 10)] == read_before
        if program:
            eventually(lambda: [at for _, at in records_of(go)] == read_before)

        cluster.broker(1).kill()
        with caplog.at_level(logging.WARNING):
            cluster.broker(2).start()
            produce(cluster, cut, *"abc")
            for one in consumers[:2]:
                assert [(record.offset, record.value) for record in read(one, 3)] == [(5, b"a"), (6, b"b"), (7, b"c")]
            with pytest.raises(NoOffset, match="was cut at 5"):
                eventually(lambda: consumers[2].poll(0.1))
            if program:
                eventually(lambda: [at for _, at in records_of(go)] == [*read_before, 5, 6, 7])
        told = [one.getMessage() for one in caplog.records if "was cut at 5" in one.getMessage()]
        assert len(told) == 2
    finally:
        go.kill()
        for one in consumers:
            one.close()
        cluster.broker(1).start()


def test_rights_are_told_although_the_controller_that_the_metadata_named_is_away(cluster: KafkaCluster) -> None:
    if not cluster.brokers[0].settings.kraft:
        pytest.skip("in ZooKeeper mode, the metadata names the controller")
    cluster.start()
    offsets = LogOffsets(uncommitted=False)
    offsets.admin = admin_client({"bootstrap.servers": cluster.bootstrap_servers})
    eventually(lambda: offsets.admin.list_topics(timeout=10).controller_id == 2)
    cluster.broker(2).stop()
    assert offsets.ask_rights([LED.topic])[LED.topic].result(30).authorized_operations


def step(member: Consumer | Query | ChildProcess) -> None:
    """A query asks the brokers only when it plans."""
    if isinstance(member, Query):
        member.next_range()


def first_of(member: Consumer | Query | ChildProcess, partition: TopicPartition) -> int | None:
    """The first offset that the member reads of the partition."""
    if isinstance(member, Query):
        found = member.next_range()
        return found[1] if found is not None and found[0] == partition else None
    if isinstance(member, Consumer):
        return next((record.offset for record in read(member, 1, 1.0) if record.partition == partition.partition), None)
    return next((at for number, at in records_of(member) if number == partition.partition), None)
