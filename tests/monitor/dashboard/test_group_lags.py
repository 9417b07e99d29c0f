"""Tests of the lags of all groups, and of the reads for a group at rest."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.group import LagTotal
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.model.lag import LogRange
from kafka_coord.monitor.dashboard import group_lags
from kafka_coord.monitor.dashboard.group_lags import GroupLags
from kafka_coord.monitor.dashboard.group_rows import GroupRows
from kafka_coord.monitor.lag_rings import LagRings
from kafka_coord.zk import layout
from tests.coordinator.harness import RESTS_SOON, World
from tests.waiting import eventually


def hundred(partitions: PartitionSet) -> tuple[Mapping[TopicPartition, LogRange], str]:
    return dict.fromkeys(partitions, LogRange(80, 100)), ""


def test_the_lag_of_a_group_at_rest_equals_that_computed_from_all_its_znodes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.instance(1, RESTS_SOON).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    world.store.ensure_path(layout.topic_offsets("delays", "flights"))
    world.store.create(layout.offset("delays", "flights", 2), b"70")
    eventually(lambda: world.node(layout.settled("delays")))
    cluster = read_cluster(world.store)
    rows = GroupRows(world.store, lambda: None)
    rows.known(cluster.groups)
    rows.step(cluster)
    assert rows.is_at_rest("delays")

    whole, resting = (GroupLags(world.store, hundred, LagRings()) for _ in range(2))
    assert whole.step(rows, cluster, sampled=True)
    monkeypatch.setattr(group_lags, "read_groups", lambda *_: {})  # a group at rest must not need this
    assert resting.step(rows, cluster, sampled=False)
    for lags in (whole, resting):
        assert lags.measured["delays"][1] == LagTotal(lag=20, worst=20, unknown=3, gone=10)
        assert lags.consumers == {"delays": ("c1",)}
        assert lags.furthest_behind == ("delays",)


def test_offsets_of_a_topic_that_nobody_subscribes_to_do_not_count_for_a_group_at_rest(world: World) -> None:
    world.kafka.topic("fares", 1)
    world.instance(1, RESTS_SOON).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    for topic in ("flights", "fares"):
        world.store.ensure_path(layout.topic_offsets("delays", topic))
        world.store.create(layout.offset("delays", topic, 0), b"70" if topic == "flights" else b"0")
    eventually(lambda: world.node(layout.settled("delays")))
    cluster = read_cluster(world.store)
    rows = GroupRows(world.store, lambda: None)
    rows.known(cluster.groups)
    rows.step(cluster)
    assert rows.is_at_rest("delays")
    lags = GroupLags(world.store, hundred, LagRings())
    assert lags.step(rows, cluster, sampled=False)
    assert lags.measured["delays"][1] == LagTotal(lag=20, worst=20, unknown=3, gone=10)
