"""Tests of failures around a query, with real brokers and ZooKeeper. They call the source as Spark does."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadMaxRows

from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.errors import ConsumerClosed, ConsumerIdInUse, MalformedValue, NoOffset, SettingsError
from kafka_coord.groups.requests import submit
from kafka_coord.model import Request, RequestType
from kafka_coord.model import json_fields as fields
from kafka_coord.model.operations import GroupSettings
from kafka_coord.spark import fetching
from kafka_coord.spark.options import SourceOptions
from kafka_coord.spark.source import GroupStreamReader, Task
from kafka_coord.zk import layout
from tests.chaos.links import Link, Network
from tests.spark.conftest import source_options
from tests.spark.queries import committed
from tests.waiting import answered, eventually

pytestmark = pytest.mark.usefixtures("elected")

Record = tuple[int, int]
"""Partition and offset."""


@pytest.fixture(autouse=True)
def _said_however_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits longer for ZooKeeper to store commits. Otherwise, a slow ZooKeeper may store them only during a later
    micro-batch, but these tests check the earlier one."""
    monkeypatch.setattr("kafka_coord.spark.member._SAID_WITHIN_S", 30.0)


@pytest.fixture
def kafka_cluster(three_brokers: KafkaCluster) -> KafkaCluster:
    """Three brokers, so that another one leads when a test kills one."""
    return three_brokers


class Planner:
    """Calls the source as Spark does. It plans the next micro-batch when the previous one is done."""

    def __init__(self, options: dict[str, Any], checkpoint: dict[str, Any] | None = None) -> None:
        self.reader = GroupStreamReader(SourceOptions.of({name: str(value) for name, value in options.items()}))
        self.checkpoint = checkpoint or self.reader.initialOffset()
        """The end of the last completed micro-batch."""
        self.logged = self.checkpoint
        """The end of the current micro-batch."""
        self.records: list[Record] = []

    def plan(self, most: int = 1_000_000) -> list[Task]:
        """Plans the next micro-batch, which runs until :meth:`done`. Returns no tasks if there is none."""
        self.logged = self.reader.latestOffset(self.checkpoint, ReadMaxRows(most))
        return [one for one in self.reader.partitions(self.checkpoint, self.logged) if isinstance(one, Task)]

    def done(self) -> None:
        """Puts the micro-batch into the checkpoint. The source learns this when it plans the next one."""
        self.checkpoint = self.logged

    def read(self, tasks: list[Task]) -> list[Record]:
        """Runs the tasks, and returns their records."""
        return [
            record
            for task in tasks
            for rows in self.reader.read(task)
            for record in zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
        ]

    def run(self, most: int = 1_000_000) -> int:
        """Runs a whole micro-batch. Returns its number of records."""
        found = self.read(self.plan(most))
        self.records += found
        self.done()
        return len(found)

    def until(self, count: int, within_s: float = 60) -> None:
        """Runs micro-batches until they have received ``count`` records in total."""
        eventually(lambda: self.run() >= 0 and len(self.records) >= count, within_s=within_s, every_s=0.1)


@pytest.fixture
def planner(kafka_cluster) -> Iterator[Callable[..., Planner]]:
    """Makes queries, and stops those that a test leaves running."""
    made: list[Planner] = []

    def make(group: str, topic: str, *, checkpoint: dict[str, Any] | None = None, **options: Any) -> Planner:
        made.append(Planner(source_options(kafka_cluster.zookeeper, group, topic, options), checkpoint))
        return made[-1]

    yield make
    for one in made:
        one.reader.stop()
    fetching._close_all()


def once(partitions: int, offsets: range) -> Counter[Record]:
    return Counter((partition, offset) for partition in range(partitions) for offset in offsets)


def delete_before(bootstrap: str, topic: str, offsets: dict[int, int]) -> None:
    """Deletes the beginning of the logs, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found = admin.delete_records([At(topic, partition, offset) for partition, offset in offsets.items()])
    for future in found.values():
        future.result(30)


# --- the coordinator and the group ---------------------------------------------------------------------------------


def test_a_query_evicted_during_a_long_micro_batch_commits_nothing_and_joins_again(
    kafka_cluster, store, planner, reader, numbered, make_topic, caplog
):
    topic = make_topic(partitions=2)
    store.ensure_path(layout.group("spark-evicted"))
    store.set(layout.group("spark-evicted"), fields.dump(GroupSettings(rebalance_timeout_ms=1_500).to_json()))
    numbered(topic, 2).burst(200)
    query = planner("spark-evicted", topic)
    batch = query.plan()

    consumer = reader("spark-evicted", topic, "plain")  # the query must stop one partition within 1.5 s, but does not
    eventually(lambda: len(consumer.given) >= 200, within_s=60)
    numbered(topic, 2).burst(200)
    eventually(lambda: committed(kafka_cluster.zookeeper, "spark-evicted") == {0: 200, 1: 200}, within_s=30)

    store.set(layout.group("spark-evicted"), fields.dump(GroupSettings().to_json()))
    query.records += query.read(batch)
    query.done()
    with caplog.at_level(logging.WARNING):
        assert query.run() == 0
    assert "in the middle of micro-batch 1 (its registration was deleted, because" in caplog.text
    assert "kafka-coord groups settings spark-evicted" in caplog.text

    eventually(lambda: query.run() == 0 and query.reader._joined().holdings.wanted(), within_s=30, every_s=0.1)
    numbered(topic, 2).burst(200)
    eventually(lambda: query.run() >= 0 and len(query.records) + len(consumer.given) >= 800, within_s=60, every_s=0.1)
    consumer.stop()
    assert Counter(query.records) + Counter(consumer.given) == once(2, range(300)) + once(2, range(100))
    eventually(
        lambda: query.run() >= 0 and committed(kafka_cluster.zookeeper, "spark-evicted") == {0: 300, 1: 300},
        within_s=30,
        every_s=0.1,
    )


def test_a_checkpoint_of_another_group_is_refused(planner, make_topic):
    topic = make_topic()
    first = planner("spark-first", topic)
    other = planner("spark-other", topic, checkpoint=first.checkpoint)
    with pytest.raises(MalformedValue, match="to group 'spark-first', but this query is for group 'spark-other'"):
        other.plan()


def test_a_second_query_with_a_live_name_is_refused_and_the_error_names_the_holders_host(planner, make_topic):
    topic = make_topic()
    first = planner("spark-names", topic, consumerId="one")
    eventually(first.reader._joined().holdings.wanted, within_s=30)
    second = planner("spark-names", topic, consumerId="one")
    with pytest.raises(ConsumerIdInUse, match="consumer id 'one' of group 'spark-names' is held by a consumer on host"):
        eventually(lambda: second.run() > 0, within_s=60)


def test_the_next_driver_waits_for_the_session_of_a_killed_one_and_continues(
    kafka_cluster, store, planner, numbered, make_topic
):
    topic = make_topic()
    numbered(topic, 1).burst(100)
    program = (
        "import sys, time\n"
        "from kafka_coord.spark.member import QueryMember\n"
        "from kafka_coord.spark.options import SourceOptions\n"
        "member = QueryMember(SourceOptions.of(dict(zookeeper=sys.argv[1], group='spark-killed', topics=sys.argv[2],"
        " startingOffsets='earliest', consumerId='one', sessionTimeoutMs='10000')))\n"
        "member.await_partitions()\n"
        "print('in', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, kafka_cluster.zookeeper, topic], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "in\n"
        driver.kill()
    assert store.children(layout.ids("spark-killed")) == ("one",), "the killed driver's session must still exist"
    # the first micro-batch's wait for partitions begins only when the query has its name
    query = planner("spark-killed", topic, consumerId="one", waitMs=8_000)
    assert query.run() == 100


def test_the_next_driver_commits_the_micro_batch_that_a_killed_driver_completed(
    kafka_cluster, planner, numbered, make_topic
):
    topic = make_topic()
    numbered(topic, 1).burst(100)
    first = planner("spark-unsaid", topic)
    first.records += first.read(first.plan(60))
    first.reader.stop()  # the checkpoint has the completed micro-batch, but the group does not have its offsets
    first.done()
    second = planner("spark-unsaid", topic, checkpoint=first.checkpoint)
    second.until(40)
    assert Counter(first.records) + Counter(second.records) == once(1, range(100))


def test_a_planned_micro_batch_is_read_again_only_in_partitions_that_the_query_still_owns(
    planner, numbered, make_topic
):
    topic = make_topic(partitions=2)
    numbered(topic, 2).burst(200)
    first = planner("spark-replay", topic)
    first.plan()
    first.reader.stop()
    other = planner("spark-replay", topic, consumerId="other")
    eventually(lambda: len(other.reader._joined().holdings.wanted()) == 2, within_s=30)
    second = planner("spark-replay", topic, checkpoint=first.checkpoint, consumerId="second")
    tasks = second.reader.partitions(first.checkpoint, first.logged)
    assert tasks == second.reader.partitions(first.checkpoint, first.logged), "Spark may ask for them repeatedly"
    second.logged = first.logged
    second.records += second.read(tasks)
    second.done()
    assert len(second.records) == 100
    other.until(100)
    assert Counter(second.records) + Counter(other.records) == once(2, range(100))


def test_the_groups_offset_overrides_an_old_checkpoint_and_an_operators_offset_every_one(
    kafka_cluster, store, planner, numbered, make_topic
):
    topic, group = make_topic(), "spark-restored"
    numbered(topic, 1).burst(100)
    first = planner(group, topic)
    first.run(60)
    old = first.checkpoint
    first.until(100)
    newest = first.checkpoint
    first.run()
    eventually(lambda: committed(kafka_cluster.zookeeper, group) == {0: 100}, within_s=20)
    first.reader.stop()

    restored = planner(group, topic, checkpoint=old)
    assert restored.run() == 0
    restored.reader.stop()

    # wait for more than the assumed maximum clock difference
    eventually(lambda: time.time() * 1000 > newest["planned_ms"] + 2_500)
    store.set(layout.offset(group, topic, 0), b"50")
    again = planner(group, topic, checkpoint=newest)
    again.until(50)
    assert Counter(again.records) == once(1, range(50, 100))


def test_a_stopped_query_neither_plans_nor_registers(store, planner, make_topic):
    query = planner("spark-stopped", make_topic())
    query.reader.stop()
    with pytest.raises(ConsumerClosed, match="because it was stopped"):
        query.plan()
    assert store.children(layout.ids("spark-stopped")) == ()


# --- unreachable servers -------------------------------------------------------------------------------------------


@contextmanager
def link_to(zookeeper: str) -> Iterator[Link]:
    """Makes a proxy to this server. Its connections can be cut."""
    with Network() as network:
        yield network.link([int(zookeeper.rpartition(":")[2])])


def test_no_record_is_read_twice_if_the_session_ends_during_a_micro_batch(kafka_cluster, planner, numbered, make_topic):
    topic = make_topic(partitions=2)
    numbered(topic, 2).burst(200)
    with link_to(kafka_cluster.zookeeper) as link:
        query = planner("spark-cut", topic, zookeeper=f"127.0.0.1:{link.ports[0]}", sessionTimeoutMs=4_000)
        batch = query.plan()
        link.cut()
        query.records += query.read(batch)  # the query already knows the brokers
        eventually(lambda: not query.reader._joined()._connector.may_hand_out(), within_s=15)
        query.done()
        assert query.plan() == [], "without a membership, no micro-batch may be planned"
        link.mend()
        numbered(topic, 2).burst(200)
        query.until(400)
        assert Counter(query.records) == once(2, range(200)), "the completed micro-batch must not be read again"
        eventually(lambda: query.run() == 0 and committed(kafka_cluster.zookeeper, "spark-cut") == {0: 200, 1: 200})
        query.reader.stop()


def test_the_next_membership_does_not_repeat_micro_batches_completed_without_zookeeper(
    kafka_cluster, store, planner, numbered, make_topic
):
    topic = make_topic(partitions=2)
    numbered(topic, 2).burst(200)
    with link_to(kafka_cluster.zookeeper) as link:
        query = planner("spark-away", topic, zookeeper=f"127.0.0.1:{link.ports[0]}", sessionTimeoutMs=10_000)
        query.run(50)
        eventually(lambda: query.run(0) == 0 and committed(kafka_cluster.zookeeper, "spark-away") == {0: 25, 1: 25})
        link.cut()  # the lease of the membership still runs
        assert [query.run(50) for _ in range(3)] == [50, 50, 50]
        eventually(lambda: query.run(0) == 0 and store.children(layout.ids("spark-away")) == ())
        link.mend()
        eventually(lambda: query.run() == 0 and committed(kafka_cluster.zookeeper, "spark-away") == {0: 100, 1: 100})
        assert Counter(query.records) == once(2, range(100))
        query.reader.stop()


def test_an_available_now_run_continues_after_its_membership_was_lost(kafka_cluster, planner, numbered, make_topic):
    topic = make_topic(partitions=2)
    numbered(topic, 2).burst(200)
    with link_to(kafka_cluster.zookeeper) as link:
        query = planner("spark-now", topic, zookeeper=f"127.0.0.1:{link.ports[0]}", sessionTimeoutMs=4_000)
        query.reader.prepareForTriggerAvailableNow()
        numbered(topic, 2).burst(100)
        assert query.run(50) == 50
        link.cut()
        eventually(lambda: not query.reader._joined()._connector.may_hand_out(), within_s=15)
        mending = threading.Timer(1.0, link.mend)
        mending.start()
        assert query.run() == 150, "the query must wait for its membership"
        mending.join()
        assert query.run() == 0
        assert Counter(query.records) == once(2, range(100))
        query.reader.stop()


def test_an_available_now_run_continues_if_its_membership_ends_during_planning(
    store, planner, numbered, make_topic, monkeypatch
):
    topic = make_topic()
    numbered(topic, 1).burst(100)
    query = planner("spark-now-lost", topic, consumerId="one")
    query.reader.prepareForTriggerAvailableNow()
    assert query.run(60) == 60
    query.done()
    member = query.reader._joined()
    plan = member.plan

    def resumed() -> None:
        store.delete(layout.paused("spark-now-lost"))
        submit(store, Request(RequestType.LOOK, group="spark-now-lost"))

    resume = threading.Timer(1.0, resumed)

    def evicted(most: int, upto: Any) -> Any:
        monkeypatch.undo()
        store.create(layout.paused("spark-now-lost"))  # so that the query does not get partitions at once
        store.delete(layout.registration("spark-now-lost", "one"))
        eventually(lambda: member._connector.counters.losses == 1)
        resume.start()
        return plan(most, upto)

    monkeypatch.setattr(member, "plan", evicted)
    assert query.run() == 40
    assert query.run() == 0
    resume.join()


def test_an_available_now_run_waits_if_its_partitions_are_lost_before_it_begins(
    planner, numbered, make_topic, monkeypatch
):
    topic = make_topic()
    numbered(topic, 1).burst(100)
    query = planner("spark-now-begins", topic)
    held = query.reader._joined().holdings
    eventually(held.wanted)
    wanted, there = held.wanted, iter((True, False))
    monkeypatch.setattr(held, "wanted", lambda: wanted() if next(there, True) else {})
    query.reader.prepareForTriggerAvailableNow()
    assert query.run() == 100


def test_reading_waits_for_a_dead_broker_and_planning_omits_its_partitions(
    kafka_cluster, planner, numbered, make_topic
):
    topic = make_topic(partitions=3)
    numbered(topic, 3).burst(300)
    query = planner("spark-broker", topic)
    # a client reads in one thread, so another client id makes another client
    planning = planner("spark-broker-too", topic, **{"kafka.client.id": "planning"})
    for one in (query, planning):
        one.until(300)
    numbered(topic, 3).burst(300)
    batch = query.plan()
    leader = leaders_of(kafka_cluster.bootstrap_servers, topic)
    broker = kafka_cluster.broker(leader[0])
    broker.kill()
    reading = threading.Thread(target=lambda: query.records.extend(query.read(batch)), name="reading")
    reading.start()
    try:
        eventually(lambda: leaders_of(kafka_cluster.bootstrap_servers, topic)[0] != leader[0], within_s=60)
        elsewhere = [partition for partition in leader if leader[partition] != leader[0]]
        planning.until(300 + 100 * len(elsewhere))
        assert reading.is_alive()
    finally:
        broker.start()
        reading.join(90)
    query.done()
    numbered(topic, 3).burst(30)
    for one in (query, planning):
        one.until(630)
        assert Counter(one.records) == once(3, range(210))


def leaders_of(bootstrap: str, topic: str) -> dict[int, int]:
    """The leader of each partition, or -1."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return {p.id: p.leader for p in answered(admin, topic).partitions.values()}


# --- deleted records -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "first"), [("fail", None), ("earliest", 60), ("latest", 60)])
def test_after_a_deletion_of_records_a_query_continues_according_to_its_policy(
    kafka_cluster, planner, numbered, make_topic, caplog, policy: str, first: int | None
):
    topic = make_topic()
    numbered(topic, 1).burst(100)
    before = planner(f"spark-cut-{policy}", topic)
    before.run(50)
    before.run(1)
    before.reader.stop()
    delete_before(kafka_cluster.bootstrap_servers, topic, {0: 60})
    query = planner(f"spark-cut-{policy}", topic, onDataLoss=policy)
    if first is None:
        with pytest.raises(NoOffset, match=r"continues at 50 of .*log starts at 60, .* is 100.*onDataLoss=earliest"):
            query.plan()
        return
    with caplog.at_level(logging.WARNING, "kafka_coord"):
        query.run()
    assert "10 unread records are gone" in caplog.text
    numbered(topic, 1).burst(20)
    query.until(120 - first)
    assert Counter(query.records) == once(1, range(first, 120))


@pytest.mark.parametrize(("policy", "first"), [("fail", None), ("earliest", 0), ("latest", 10)])
def test_if_the_log_ends_before_the_groups_offset_a_query_continues_according_to_its_policy(
    store, planner, numbered, make_topic, policy: str, first: int | None
):
    topic, group = make_topic(), f"spark-short-{policy}"
    numbered(topic, 1).burst(10)
    path = layout.offset(group, topic, 0)
    before = planner(group, topic)
    before.run(5)
    before.run(1)
    before.reader.stop()
    store.set(path, b"500")  # as if the brokers were restored from an old copy
    query = planner(group, topic, onDataLoss=policy)
    if first is None:
        with pytest.raises(NoOffset, match=r"continues at 500 of .*log starts at 0, and its next offset is 10"):
            eventually(query.plan, within_s=30, every_s=0.2)
        return
    eventually(lambda: query.run() >= 0 and store.get(path).data != b"500", within_s=30, every_s=0.2)
    numbered(topic, 1).burst(10)
    query.until(20 - first)
    assert Counter(query.records) == once(1, range(first, 20))


@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_records_that_are_deleted_between_planning_and_reading(
    kafka_cluster, planner, numbered, make_topic, policy: str
):
    topic = make_topic()
    numbered(topic, 1).burst(100)
    query = planner(f"spark-between-{policy}", topic, onDataLoss=policy)
    batch = query.plan()
    delete_before(kafka_cluster.bootstrap_servers, topic, {0: 30})
    if policy == "fail":
        with pytest.raises(NoOffset, match="records from 0 to"):
            query.read(batch)
        return
    assert Counter(query.read(batch)) == once(1, range(30, 100))


def test_records_of_committed_transactions_are_read_and_uncommitted_ones_are_not(kafka_cluster, planner, make_topic):
    topic = make_topic()
    producer = Producer(
        {"bootstrap.servers": kafka_cluster.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(60)

    def write(end: Callable[[], None]) -> None:
        producer.begin_transaction()
        for _ in range(10):
            producer.produce(topic, b"0", partition=0)
        assert producer.flush(90) == 0
        end()

    query = planner("spark-transactions", topic)
    write(producer.commit_transaction)  # offsets 0 to 9, and the commit marker at 10
    query.until(10)
    write(lambda: None)  # offsets 11 to 20, in an open transaction
    assert query.run() == 0
    producer.commit_transaction()
    query.until(20)
    write(producer.abort_transaction)  # 22 to 31
    write(producer.commit_transaction)  # 33 to 42
    query.until(30)
    assert query.run() == 0
    assert [offset for _, offset in query.records] == [*range(10), *range(11, 21), *range(33, 43)]


def test_settings_that_librdkafka_does_not_know_fail_the_query_at_once(planner, make_topic):
    options = {"kafka.sasl.jaas.config": "as Java's clients have it"}
    with pytest.raises(SettingsError, match=r"kafka\.sasl\.jaas\.config .*Java JAAS configuration"):
        planner("spark-settings", make_topic(), **options)


def test_a_recreated_shorter_topic_is_read_from_its_beginning(kafka_cluster, planner, numbered, make_topic, topics):
    topic = make_topic()
    numbered(topic, 1).burst(100)
    query = planner("spark-again-shorter", topic)
    query.until(100)
    query.run()
    eventually(lambda: committed(kafka_cluster.zookeeper, "spark-again-shorter") == {0: 100}, within_s=20)
    topics.delete(topic)
    assert query.run() == 0
    topics.create(topic, 1)
    numbered(topic, 1).burst(7)
    query.until(107)
    assert Counter(query.records[100:]) == once(1, range(7))


def test_a_query_whose_zookeeper_is_restarted_keeps_its_membership_and_plans_nothing_meanwhile(
    kafka_cluster, planner, numbered, make_topic
):
    """The link is cut for longer than the lease, and mended before the session ends."""
    topic = make_topic(partitions=2)
    numbered(topic, 2).burst(200)
    with link_to(kafka_cluster.zookeeper) as link:
        query = planner("spark-waits", topic, zookeeper=f"127.0.0.1:{link.ports[0]}", sessionTimeoutMs=16_000)
        assert query.run(50) == 50
        connector = query.reader._joined()._connector
        link.cut()
        eventually(lambda: connector.waits, within_s=20)
        assert query.run() == 0, "while it waits, no micro-batch may be planned"
        link.mend()
        eventually(lambda: not connector.waits, within_s=15)
        query.until(200)
        assert Counter(query.records) == once(2, range(100))
        assert (connector.counters.registrations, connector.counters.losses) == (1, 0)
        query.reader.stop()
