"""The bench of the listener for stock Kafka clients: how it is judged, and a small run on real servers."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from kafka_coord.dev.bench.kafka_groups.requests import Answered, request_bars
from kafka_coord.dev.bench.kafka_groups.servers import INSTANCE, KAFKA, groups_in
from kafka_coord.grouplog.manager import partition_of
from tests.cli.running import run


@pytest.mark.parametrize(("cpu_s", "met"), [(2.0, True), (2.1, False)])
def test_a_request_may_cost_twice_what_it_costs_the_broker(cpu_s: float, met: bool):
    ours = Answered("Heartbeat", INSTANCE, 1_000, 1.0, cpu_s, 0.0, [1.5])
    kafka = Answered("Heartbeat", KAFKA, 1_000, 1.0, 1.0, 0.0, [1.0])
    core, p99 = request_bars([ours, kafka], 1_000)
    assert core.met is met
    assert p99.met is True


def test_without_kafka_for_comparison_nothing_is_judged():
    assert request_bars([Answered("Heartbeat", INSTANCE, 1, 1.0, 1.0, 0.0, [1.0])], 1_000) == []


def test_names_of_groups_are_in_the_partition_wanted():
    names = list(islice(groups_in(7), 3))
    assert len(set(names)) == 3
    assert {partition_of(name) for name in names} == {7}


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.zookeeper
def test_a_small_run_measures_all_requests_on_both_servers(tmp_path: Path):
    found = run("bench", "groups", "--smoke", "--compare", "kafka", "--dir", str(tmp_path), "-o", "json").json()
    assert {(row["request"], row["answered_by"]) for row in found["requests"]} == {
        (request, by) for request in ("OffsetCommit", "OffsetFetch", "Heartbeat") for by in (INSTANCE, KAFKA)
    }
    assert all(row["per_s"] > 0 for row in found["requests"])
    assert {row["by"] for row in found["passing"]} == {INSTANCE, KAFKA}
    assert found["loading"][0]["wrong_offsets"] == 0
    assert found["idle"][0]["connections"] == 20
    assert [row["groups"] for row in found["listing"]] == [50, 50, 50, 100, 100]
    managed = found["managed"][0]
    assert managed["members"] == 20
    assert 0 < managed["join_p50_ms"] <= managed["join_most_ms"]
    assert len(managed["cpu_percent"]) == 1
    assert found["bars"] == [], "so small a run is held against nothing"
