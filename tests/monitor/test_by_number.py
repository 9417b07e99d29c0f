"""What does not fit, and what cannot be read, is told by number or by name."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from kafka_coord import Consumer
from kafka_coord.coordinator.plan.reasons import first_of
from kafka_coord.groups.managed import _cannot_read
from kafka_coord.model import TopicPartition
from kafka_coord.zk import layout
from tests.cli.running import run
from tests.fuzzing.odd_cluster import OddCluster

GROUP = "delays"


def test_a_history_says_how_much_earlier_it_goes_back_and_whose_moves_it_lacks(cluster: OddCluster) -> None:
    store, path = cluster.tree.store, layout.history(GROUP)
    value = json.loads(store.get(path).data)
    (decision,) = value["decisions"]
    last = {**decision, "moves": {f"c{n}": {"gained": "flights[0]"} for n in range(20)}}
    store.set(path, json.dumps({**value, "decisions": [decision, decision, last]}).encode())
    ran = run("groups", "history", GROUP, "--last", "1", "--verbose", zookeeper="127.0.0.1:1")
    assert "2 earlier decisions are not shown; --last 3 shows all" in ran.err
    assert f"of 20 consumers at most, the history has what they gained and lost: {last['generation']}" in ran.err
    assert "earlier" not in run("groups", "history", GROUP, "-o", "json", zookeeper="127.0.0.1:1").err


def test_settings_are_shown_although_the_brokers_retention_cannot_be_read(cluster: OddCluster) -> None:
    cluster.tree.store.ensure_path(layout.RETENTION)
    cluster.tree.store.set(layout.RETENTION, b"seven days")
    ran = run("groups", "settings", GROUP, "-o", "json", zookeeper="127.0.0.1:1")
    assert (ran.code, ran.json()["group"]) == (0, GROUP)
    assert "the brokers' retention is unknown" in ran.err


def test_a_part_of_a_list_ends_with_how_many_there_are_more() -> None:
    assert first_of(["a", "b"], 2, "letters") == ["a", "b"]
    assert first_of(["a", "b", "c", "d"], 2, "letters") == ["a", "b", "2 more letters"]
    seen = SimpleNamespace(members=[f"c{n}" for n in range(5)], refused=lambda _consumer: {"salaries": "no right"})
    snapshot: Any = SimpleNamespace(observation=seen, awaited={})
    assert [*_cannot_read(snapshot)][2:] == [
        "c2 may not read salaries (no right)",
        "2 more consumers may not read some topics",
    ]


def test_the_lag_of_one_partition_that_cannot_be_read_hides_no_other() -> None:
    good, bad = TopicPartition("flights", 0), TopicPartition("salaries", 0)
    fetchers = SimpleNamespace(
        assignment=lambda: frozenset({good, bad}),
        troubles=SimpleNamespace(current={bad: "no leader"}),
        holding=lambda _partition: SimpleNamespace(position=5),
    )
    consumer: Any = SimpleNamespace(
        _fetchers=fetchers,
        beginning_offsets=lambda wanted, timeout_s: dict.fromkeys(wanted, 0),
        end_offsets=lambda wanted, timeout_s: dict.fromkeys(wanted, 9),
    )
    assert Consumer.lag(consumer) == {good: 4}
