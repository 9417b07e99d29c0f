"""Tests of the lags of all groups, and of the reads for a group at rest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.groups import managed
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.directory import SORTS, GroupDirectory, selected
from kafka_coord.groups.group import GroupRow, LagTotal, OffsetRow
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.lag import LagRound, LagService
from kafka_coord.groups.verbs import GroupOffsets
from kafka_coord.model import GroupKind, PartitionSet, TopicPartition
from kafka_coord.model.lag import LogRange
from kafka_coord.monitor.dashboard.group_rows import GroupRows
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

    whole, resting = (LagRound(GroupDirectory(AskedInstances(world.store, {})), hundred, LagService()) for _ in "ab")
    assert whole.step(rows.rows, cluster, None)
    monkeypatch.setattr(managed, "read_groups", lambda *_: {})  # a group at rest must not need this
    assert resting.step(rows.rows, cluster, rows.is_at_rest)
    for lags in (whole, resting):
        assert lags.measured["delays"][1] == LagTotal(lag=20, worst_lag=20, lag_unknown=3, gone=10)
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
    lags = LagRound(GroupDirectory(AskedInstances(world.store, {})), hundred, LagService())
    assert lags.step(rows.rows, cluster, rows.is_at_rest)
    assert lags.measured["delays"][1] == LagTotal(lag=20, worst_lag=20, lag_unknown=3, gone=10)


def test_groups_of_every_kind_are_measured_in_turn_and_ranked_together() -> None:
    kinds = {f"m{number}": GroupKind.MANAGED for number in range(25)}
    kinds |= {f"c{number}": GroupKind.CLIENT_ASSIGNED for number in range(25)}
    rows = {name: SimpleNamespace(kind=kind) for name, kind in kinds.items()}
    asked: list[Mapping[str, GroupKind]] = []

    def offsets(wanted: Mapping[str, GroupKind], *_: Any) -> tuple[list[GroupOffsets], list[str]]:
        asked.append(wanted)
        lags = {name: 900 if name == "c7" else int(name[1:]) for name in wanted}
        row = [
            OffsetRow(topic="t", partition=0, owner=None, holding=None, committed_offset=0, end_offset=lag, lag=lag)
            for lag in lags.values()
        ]
        return [GroupOffsets(name, wanted[name], (one,), 0, {}) for name, one in zip(lags, row, strict=True)], []

    directory: Any = SimpleNamespace(store=SimpleNamespace(clock=time), offsets=offsets)
    service = LagService()
    lags = LagRound(directory, hundred, service)
    cluster: Any = None
    while len(lags.measured) < len(rows):
        assert lags.step(cast("Any", rows), cluster, None)
    assert {name: kind for wanted in asked for name, kind in wanted.items()} == kinds
    assert [len(wanted) for wanted in asked] == [20, 20, 10], "a few at a time"
    assert lags.furthest_behind[:3] == ("c7", "c24", "m24")
    assert service.totals("c7")[0][1] == 900, "a client-assigned group has a trend, too"


def test_a_list_is_sorted_by_what_is_worst_and_an_unknown_age_is_not_good() -> None:
    def row(name: str, state: GroupState, members: int, lag: int | None, lag_s: float | None) -> GroupRow:
        kind, total = GroupKind.MANAGED, LagTotal(lag, lag, 0, 0, lag_s)
        found = GroupRow(
            group=name, kind=kind, state=state, members=members, partitions=1, assignor="sticky", coordinator=1
        )
        return found.with_lag(total)

    rows = [
        row("etl-read", GroupState.STABLE, 9, 0, 0.0),
        row("etl-late", GroupState.EMPTY, 0, 4, 7_200.0),
        row("etl-odd", GroupState.REBALANCING, 1, 90, None),
        row("web", GroupState.STABLE, 2, 50_000, 2.0),
    ]
    orders = {sort: [one.group for one in selected(rows, sort=sort)] for sort in SORTS}
    assert orders == {
        "lag": ["web", "etl-odd", "etl-late", "etl-read"],
        "lag-s": ["etl-late", "web", "etl-odd", "etl-read"],
        "state": ["etl-odd", "etl-read", "web", "etl-late"],
        "members": ["etl-read", "web", "etl-odd", "etl-late"],
        "name": ["etl-late", "etl-odd", "etl-read", "web"],
    }
    assert [one.group for one in selected(rows, "TL-", ["stable"])] == ["etl-read"]
