"""One entry of a history that cannot be decoded costs one line. All other entries are shown, and are kept."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.coordinator.history import ClusterHistoryWriter, past_decisions
from kafka_coord.model import Decision, TopicPartition
from kafka_coord.model.histories import Election
from kafka_coord.monitor.dashboard.timeline import Timeline
from kafka_coord.zk import layout
from tests.cli.running import run
from tests.coordinator.led import Led
from tests.fuzzing.odd_cluster import OddCluster

GROUP = "delays"
ODD: list[Any] = [{"generation": "four", "epoch": 7}, 7, {"kind": ["x"], "by": 1}]


def spoil(cluster: OddCluster, path: str, field: str, odd: Any) -> None:
    """Puts an odd entry between the entries of a history."""
    value = json.loads(cluster.tree.store.get(path).data)
    value[field] = [*value[field], odd, *value[field]]
    cluster.tree.store.set(path, json.dumps(value).encode())


def cluster_history(cluster: OddCluster) -> None:
    election = {"brokerid": 1, "host": "h", "epoch": 7, "elected_ms": 1_732_060_800_000}
    action = {"kind": "resign", "by": "a", "at_ms": 1_732_060_800_000}
    cluster.tree.value(layout.HISTORY, {"version": 1, "elections": [election], "actions": [action]})


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("field", ["decisions", "actions"])
def test_groups_history_shows_the_other_entries_and_one_line(cluster: OddCluster, field: str, odd: Any) -> None:
    spoil(cluster, layout.history(GROUP), field, odd)
    ran = run("groups", "history", GROUP, "-o", "json", zookeeper="127.0.0.1:1")
    assert [one["generation"] for one in ran.json()] == ([3, 3] if field == "decisions" else [3])
    ran = run("groups", "history", GROUP, zookeeper="127.0.0.1:1")
    assert ran.out.count("reset-offsets") == (2 if field == "actions" else 1)
    assert ran.err.count("unreadable") == 1
    assert f"1 of 3 {field} cannot be read, the first is entry 2: " in ran.err


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("field", ["elections", "actions"])
def test_coordinator_history_shows_the_other_entries_and_one_line(cluster: OddCluster, field: str, odd: Any) -> None:
    cluster_history(cluster)
    spoil(cluster, layout.HISTORY, field, odd)
    ran = run("coordinator", "history", "-o", "json", zookeeper="127.0.0.1:1")
    assert len(ran.json()[field]) == 2
    assert f"1 of 3 {field} cannot be read" in ran.err


def test_a_field_that_is_no_list_costs_only_that_field(cluster: OddCluster) -> None:
    value = json.loads(cluster.tree.store.get(layout.history(GROUP)).data) | {"decisions": 7}
    cluster.tree.value(layout.history(GROUP), value)
    ran = run("groups", "history", GROUP, zookeeper="127.0.0.1:1")
    assert "reset-offsets" in ran.out
    assert "field 'decisions' is 7, not a list" in ran.err


def test_the_doctor_reports_each_history_once_and_still_tells_of_the_reset(cluster: OddCluster) -> None:
    now_ms = round(cluster.tree.store.clock.time() * 1000)
    action = {"kind": "reset-offsets", "by": "a", "at_ms": now_ms, "change": "to-earliest: flights 0: 9 → 0"}
    cluster.tree.value(layout.history(GROUP), {"version": 1, "decisions": [], "actions": [action]})
    cluster_history(cluster)
    spoil(cluster, layout.history(GROUP), "actions", 7)
    spoil(cluster, layout.HISTORY, "elections", 7)
    found = [one["what"] for one in json.loads(run("doctor", "-o", "json", zookeeper="127.0.0.1:1").out)]
    assert [what for what in found if "cannot be read" in what and "history" in what] == [
        "/consumers/history: 1 of 3 elections cannot be read, the first is entry 2: 7 is not an object",
        "/consumers/groups/delays/history: 1 of 3 actions cannot be read, the first is entry 2: 7 is not an object",
    ]
    assert any("a set its offsets" in what for what in found)


def test_the_page_shows_the_other_entries(cluster: OddCluster) -> None:
    cluster_history(cluster)
    for path, field in ((layout.history(GROUP), "decisions"), (layout.HISTORY, "elections")):
        spoil(cluster, path, field, 7)
    with contextlib.closing(cluster.sources()) as sources:
        assert len(sources.history(GROUP)) == 2
        assert len(sources.cluster_history().elections) == 2
        assert any("1 of 3 decisions" in one.what for one in sources.group_findings(GROUP))


def test_a_coordinator_keeps_the_other_entries_and_the_generation(caplog: pytest.LogCaptureFixture) -> None:
    world = Led("flights", 2)
    world.store.ensure_path(layout.ids(GROUP))
    written = Decision(8, 1, "x", "sticky", 1, 1, 1, 0).to_json()
    world.store.create(layout.history(GROUP), json.dumps({"version": 1, "decisions": [written, 7]}).encode())
    assert [one.generation for one in past_decisions(world.store, GROUP)] == [8]
    world.join(GROUP, "c1")
    with caplog.at_level(logging.WARNING):
        while world.handler.step():
            pass
    value = json.loads(world.store.get(layout.history(GROUP)).data)
    assert [one["generation"] for one in value["decisions"]] == [8, 9]
    (said,) = [one.getMessage() for one in caplog.records if "history" in one.getMessage()]
    assert "1 of 2 decisions cannot be read, the first is entry 2: 7 is not an object" in said


def test_a_timeline_ends_where_a_decision_is_missing() -> None:
    moves = {"c1": {"gained": "flights[0]"}}
    first = Decision(1, 1, "x", "sticky", 100, 1, 1, 0, settled_ms=0, moves=moves)
    third = Decision(3, 1, "x", "sticky", 300, 1, 1, 0, settled_ms=0)
    timeline = Timeline.of([first, third], {TopicPartition("flights", 0): "c1"}, 1_000)
    assert timeline.since_ms == 300


def test_the_history_job_reads_the_other_entries(tmp_path: Path) -> None:
    evidence = pytest.importorskip("kafka_coord.spark.jobs")
    good = {"generation": 3, "epoch": 7, "decided_at": "2026-01-01T00:00:00Z"}
    shown, znode = tmp_path / "delays.json", tmp_path / "fares.json"
    shown.write_text(json.dumps([good, {**good, "decided_at": "moon"}, {"generation": []}]))
    znode.write_text(json.dumps({"version": 1, "decisions": [7, {"generation": 3, "epoch": 7}]}))
    found = evidence.read_evidence([shown, znode])
    assert [one.group for one in found.decisions] == ["delays", "fares"]
    assert found.unreadable == 2


def test_a_new_coordinator_keeps_the_other_elections(cluster: OddCluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster_history(cluster)
    spoil(cluster, layout.HISTORY, "elections", 7)
    store = cluster.tree.store

    class Direct:
        def write(self, multis: Any) -> None:
            for ops in multis:
                store.multi(ops)

    writer = ClusterHistoryWriter(store, Direct(), Election(2, "h", 8, 2))  # type: ignore[arg-type]
    writer.step()
    value = json.loads(store.get(layout.HISTORY).data)
    assert [one["epoch"] for one in value["elections"]] == [7, 7, 8]
    assert "1 of 3 elections cannot be read" in caplog.text
