"""Tests of the lags of all groups, and of the reads for a group at rest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.errors import NotFound
from kafka_coord.groups import managed
from kafka_coord.groups.cluster import Cluster, read_cluster
from kafka_coord.groups.directory import SORTS, GroupDirectory, read_topic, selected
from kafka_coord.groups.group import NOT_SUBSCRIBED, AgeBy, GroupRow, LagTotal, OffsetRow
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.lag import LagRound, LagService
from kafka_coord.groups.verbs import Contact, GroupOffsets
from kafka_coord.model import GroupKind, PartitionSet, TopicPartition
from kafka_coord.model.offsets import LogRange
from kafka_coord.monitor.dashboard.group_rows import GroupRows
from kafka_coord.monitor.dashboard.sources import Sources
from kafka_coord.zk import layout
from tests.coordinator.harness import RESTS_SOON, World
from tests.waiting import eventually


def hundred(partitions: PartitionSet) -> tuple[Mapping[TopicPartition, LogRange], str]:
    return dict.fromkeys(partitions, LogRange(80, 100)), ""


def at_rest(world: World) -> tuple[Cluster, GroupRows]:
    """The cluster, once the group delays is at rest in it."""
    eventually(lambda: world.node(layout.settled("delays")))
    cluster = read_cluster(world.store)
    rows = GroupRows(world.store, lambda: None)
    rows.known(cluster.groups)
    rows.step(cluster)
    assert rows.is_at_rest("delays")
    return cluster, rows


def test_the_lag_of_a_group_at_rest_equals_that_computed_from_all_its_znodes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.instance(1, RESTS_SOON).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    world.store.ensure_path(layout.topic_offsets("delays", "flights"))
    world.store.create(layout.offset("delays", "flights", 2), b"70")
    cluster, rows = at_rest(world)

    whole, resting = (LagRound(GroupDirectory(AskedInstances(world.store, {})), hundred, LagService()) for _ in "ab")
    assert whole.step(rows.rows, cluster, None)
    assert resting.step(rows.rows, cluster, rows.is_at_rest), "its members are not known yet, so it is read as a whole"
    monkeypatch.setattr(managed, "read_groups", lambda *_: {})  # a group at rest must not need this
    resting.measured.clear()
    assert resting.step(rows.rows, cluster, rows.is_at_rest)
    for lags in (whole, resting):
        assert lags.measured["delays"][1] == LagTotal(20, 20, 3, 10, None, None)
        assert list(lags.consumers["delays"]) == ["c1"]
        assert lags.consumers["delays"]["c1"] == Contact(), "where a member runs is remembered"
        assert lags.topics == {"delays": frozenset({"flights"})}
        assert lags.furthest_behind == ("delays",)


def test_offsets_of_a_topic_that_nobody_subscribes_to_do_not_count_for_a_group_at_rest(world: World) -> None:
    world.kafka.topic("fares", 1)
    world.instance(1, RESTS_SOON).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    for topic in ("flights", "fares"):
        world.store.ensure_path(layout.topic_offsets("delays", topic))
        world.store.create(layout.offset("delays", topic, 0), b"70" if topic == "flights" else b"0")
    cluster, rows = at_rest(world)
    lags = LagRound(GroupDirectory(AskedInstances(world.store, {})), hundred, LagService())
    assert lags.step(rows.rows, cluster, rows.is_at_rest)
    assert lags.measured["delays"][1] == LagTotal(20, 20, 3, 10, None, None)


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
        kind, total = GroupKind.MANAGED, LagTotal(lag, lag, 0, 0, lag_s, None)
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


def test_who_reads_a_topic_are_groups_of_every_kind_and_the_furthest_behind_in_time_come_first(world: World) -> None:
    def row(topic: str, lag_s: float | None, holding: str = "owned") -> OffsetRow:
        return OffsetRow(
            topic=topic, partition=0, owner="c1", holding=holding, committed_offset=90, end_offset=100, lag=10,
            lag_s=lag_s, lag_s_by=AgeBy.RATE,
        )  # fmt: skip

    there = {
        "etl": (GroupKind.MANAGED, (row("flights", 7.0), row("fares", 9_000.0))),
        "web": (GroupKind.CLIENT_ASSIGNED, (row("flights", 40.0),)),
        "gone": (GroupKind.CLIENT_ASSIGNED, (row("flights", None, NOT_SUBSCRIBED),)),
        "other": (GroupKind.MANAGED, (row("fares", 1.0),)),
    }

    def offsets(kinds: Mapping[str, GroupKind], *_: Any) -> tuple[list[GroupOffsets], list[str]]:
        return [GroupOffsets(name, kind, there[name][1], 0, {}) for name, kind in kinds.items()], ["odd"]

    names = [(name, SimpleNamespace(kind=kind)) for name, (kind, _) in there.items()], ("NOT SHOWN: a group",)
    directory: Any = SimpleNamespace(store=world.store, offsets=offsets, names=lambda: names)
    found = read_topic(directory, "flights", hundred, LagService())
    assert [(one.group, one.kind, one.lag_s) for one in found.groups] == [
        ("web", "client-assigned", 40.0),
        ("etl", "managed", 7.0),
        ("gone", "client-assigned", None),
    ]
    assert [one.holding for one in found.groups[2].offsets] == [NOT_SUBSCRIBED]
    assert [(one.partition, one.start_offset, one.end_offset) for one in found.partitions] == [
        (number, 80, 100) for number in range(4)
    ]
    assert found.notes == ["NOT SHOWN: a group", "odd"]
    known = {"web": GroupKind.CLIENT_ASSIGNED}, ["NOT SHOWN: another"]
    found = read_topic(directory, "flights", hundred, LagService(), known)
    assert ([one.group for one in found.groups], found.notes) == (["web"], ["NOT SHOWN: another", "odd"])
    with pytest.raises(NotFound):
        read_topic(directory, "nowhere", hundred, LagService())


def test_a_search_finds_the_hosts_and_client_ids_of_members_of_every_kind_of_group() -> None:
    consumers = {
        "delays": {"c1": Contact("worker-3", "kafka-coord-python/0.1.0"), "c2": None},
        "orders": {"order-7f": Contact("10.0.0.5", "billing")},
    }
    sources: Any = SimpleNamespace(
        _seen=lambda: SimpleNamespace(topics={"bills": 1, "flights": 2}),
        _all_rows=lambda: dict.fromkeys(consumers),
        lags=SimpleNamespace(consumers=consumers),
        _missing=["NOT SHOWN: a group"],
    )
    assert [(one.group, one.consumer) for one in Sources.search(sources, "WORKER").consumers] == [("delays", "c1")]
    found = Sources.search(sources, "bill")
    assert [(one.group, one.consumer, one.host, one.client) for one in found.consumers] == [
        ("orders", "order-7f", "10.0.0.5", "billing")
    ]
    assert found.topics == ["bills"]
    assert found.notes == ["NOT SHOWN: a group"]
    assert [one.consumer for one in Sources.search(sources, "c2").consumers] == ["c2"]
