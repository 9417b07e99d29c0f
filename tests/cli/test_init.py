"""No tree by accident, and none of another format: ``init``, and what ``serve``, commands and consumers say."""

from __future__ import annotations

from contextlib import closing

import pytest
from msgspec import structs

from kafka_coord import Consumer
from kafka_coord.errors import StoreError, UnknownVersion
from kafka_coord.zk import connect, layout
from kafka_coord.zk.root import ClusterRecord, finish_tree, make_tree, read_cluster_record
from tests.cli.running import run, started
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper
SERVE = "serve", "--broker-id", "1", "-z"


def test_serve_begins_no_tree_in_an_empty_place(zk_hosts: str) -> None:
    ended = run(*SERVE, zk_hosts)
    assert ended.code == 6
    assert f"no coordination tree at {zk_hosts}: neither {layout.CLUSTER} nor Kafka's /brokers exists" in ended.err
    assert "kafka-coord init" in ended.err
    with closing(connect(zk_hosts)) as store:
        assert store.children("/") == (), "nothing was made"


def test_init_must_hear_from_a_broker(zk_hosts: str) -> None:
    assert run("init", "-z", zk_hosts).code == 5
    ended = run("init", "-z", zk_hosts, "--bootstrap", "127.0.0.1:1")
    assert (ended.code, "no broker answers" in ended.err) == (5, True)
    with closing(connect(zk_hosts)) as store:
        assert read_cluster_record(store) is None


def test_serve_waits_while_a_tree_is_being_made_and_ends_once_it_is_superseded(zk_hosts: str) -> None:
    with closing(connect(zk_hosts)) as store:
        record = ClusterRecord.new(store, 3, kafka="k1", making="restore")
        make_tree(store, record)
        with started(*SERVE, zk_hosts) as process:
            eventually(lambda: "if kafka-coord restore no longer runs, run it again" in process.err.read_text())
            assert store.exists(layout.COORDINATORS) is None
            finish_tree(store, record)
            eventually(lambda: store.exists(layout.instance(1)))
            newer = structs.replace(record, making="", superseded_by="tree t9, generation 4")
            store.set(layout.CLUSTER, newer.to_bytes())
            ended = process.ended()
            assert (ended.code, "give them that one's --zookeeper" in ended.err) == (6, True), ended.err
        ended = run(*SERVE, zk_hosts)
        assert (ended.code, "is superseded by tree t9, generation 4" in ended.err) == (6, True)


def test_a_tree_of_another_format_is_named_and_left_alone(zk_hosts: str) -> None:
    with closing(connect(zk_hosts)) as store:
        store.create(layout.CONSUMERS)
        store.create(layout.CLUSTER, b'{"version":2}')
    for arguments in ((*SERVE, zk_hosts), ("groups", "list", "-z", zk_hosts), ("init", "-z", zk_hosts)):
        ended = run(*arguments)
        assert (ended.code, "the tree has another format (version 2;" in ended.err) == (3, True), arguments
    with (
        pytest.raises(UnknownVersion, match="the tree has another format"),
        Consumer(zk_hosts, group="g", topics=["t"]),
    ):
        pass


def test_an_instance_and_a_consumer_that_run_stop_once_the_tree_has_another_format(zk_hosts: str) -> None:
    with closing(connect(zk_hosts)) as store:
        record = ClusterRecord.new(store, 1, kafka="k1", making="init")
        make_tree(store, record)
        finish_tree(store, record)
        with started(*SERVE, zk_hosts) as process, Consumer(zk_hosts, group="g", topics=["t"]) as consumer:
            eventually(lambda: store.exists(layout.registration("g", consumer.consumer_id)))
            store.set(layout.CLUSTER, b'{"version":2}')
            ended = process.ended()
            assert (ended.code, "the tree has another format (version 2;" in ended.err) == (3, True), ended.err
            with pytest.raises(StoreError, match="the tree has another format"):
                eventually(lambda: consumer.poll(0.1))
