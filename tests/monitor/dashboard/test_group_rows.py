"""Tests of the rows of all groups: which znodes of a group at rest are read, and when they are read again."""

from __future__ import annotations

import json
import threading
import time

import pytest

from kafka_coord.errors import StoreUnavailable
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.managed import group_row
from kafka_coord.groups.state import read_groups
from kafka_coord.monitor.dashboard import group_rows
from kafka_coord.monitor.dashboard.group_rows import GroupRows
from kafka_coord.zk import SystemClock, layout
from tests.coordinator.harness import RESTS_SOON, World
from tests.monitor.written import Tree
from tests.simulation.store import connected_store
from tests.waiting import eventually


def test_the_row_of_a_group_at_rest_equals_that_made_from_all_its_znodes(world: World, monkeypatch) -> None:
    world.instance(1, RESTS_SOON).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    eventually(lambda: world.node(layout.settled("delays")))
    cluster = read_cluster(world.store)
    (snapshot,) = read_groups(world.store, ["delays"], cluster).values()
    monkeypatch.setattr(group_rows, "read_groups", lambda *_: {})  # a group at rest must not need this

    changed = threading.Event()
    found = GroupRows(world.store, changed.set)
    assert not found.complete, "the existing groups are not known yet"
    found.known(cluster.groups)
    assert (found.complete, found.left) == (False, 1)
    assert found.step(cluster) == 1
    assert found.complete
    assert found.rows == {"delays": group_row(snapshot, cluster)}
    assert len(found.decided_ms) == 1
    assert found.step(cluster) == 0, "without an event, no group may be read"
    monkeypatch.setattr(group_rows, "_row", lambda *_: None)  # an unchanged group must not be decoded again
    found.look_again(["delays"])
    assert found.step(cluster) == 1
    assert (found.is_at_rest("delays"), found.version) == (True, 1)

    monkeypatch.undo()
    changed.clear()
    world.consumer("c2").join()
    assert changed.wait(30)
    world.settles("c1", "c2", partitions=4)
    eventually(lambda: found.step(cluster) and found.rows["delays"].members == 2)
    eventually(lambda: (found.step(cluster), len(found.decided_ms) == 2)[1])
    found.known([])
    assert (found.complete, found.rows) == (True, {})


def test_groups_whose_read_failed_are_read_again(world: World, monkeypatch) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    cluster = read_cluster(world.store)
    found = GroupRows(world.store, lambda: None)
    found.known(cluster.groups)

    def fails(*_: object) -> None:
        raise StoreUnavailable("no reply in time")

    with monkeypatch.context() as patched:
        patched.setattr(group_rows, "read_groups", fails)
        patched.setattr(group_rows, "_row", lambda *_: None)
        with pytest.raises(StoreUnavailable):
            found.step(cluster)
        assert not found.complete
    assert found.step(cluster) == 1
    assert found.complete


def test_the_rebalances_in_an_odd_history_are_counted_without_the_odd_ones() -> None:
    tree = Tree(connected_store(clock=SystemClock()))  # type: ignore[arg-type]
    tree.coordinator()
    now_ms = round(time.time() * 1000)
    decisions = [
        *({"decided_at_ms": at} for at in (now_ms - 2, 2**62, 10**400, "x", None, now_ms - 1)),
        *(None, 7, [], {}),
    ]
    whole = {"version": 1, "decisions": decisions}
    for name, value in {"odd": whole, "none": {"version": 1}, "text": {"decisions": "x"}, "list": []}.items():
        tree.group(name)
        tree.put(layout.history(name), json.dumps(value).encode())
    found = GroupRows(tree.store, lambda: None)
    cluster = read_cluster(tree.store)

    def count() -> list[int]:
        found.known(cluster.groups)
        found.step(cluster)
        return list(found.decided_ms)

    assert count() == [now_ms - 2, now_ms - 1]
    tree.put(layout.history("odd"), json.dumps({"decisions": [*decisions, {"decided_at_ms": now_ms}]}).encode())
    while tree.store.has_notification():  # type: ignore[attr-defined]
        tree.store.deliver()  # type: ignore[attr-defined]
    assert count() == [now_ms - 2, now_ms - 1, now_ms]
