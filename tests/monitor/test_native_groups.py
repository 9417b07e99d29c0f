"""Native groups are shown like others, and the doctor names those that it cannot read from the brokers."""

from __future__ import annotations

import csv
import json
import urllib.request
from contextlib import closing
from typing import Any
from urllib.error import HTTPError

from kafka_coord.groups.lag import LagService
from kafka_coord.monitor.metrics import measure_lags
from tests.cli.running import run
from tests.fuzzing.odd_cluster import OddCluster
from tests.fuzzing.odd_requests import served
from tests.monitor.findings_table import native
from tests.waiting import eventually

GROUP, TOPIC = "orders", "flights"


def test_groups_that_cannot_be_read_are_named_and_nothing_is_said_to_be_well() -> None:
    (finding,) = native({"a": 0, "b": 0}, problem="COORDINATOR_NOT_AVAILABLE")()
    assert "groups a, b: COORDINATOR_NOT_AVAILABLE" in finding.what


def test_every_place_that_shows_a_groups_lag_shows_that_of_a_native_group(cluster: OddCluster) -> None:
    """Two partitions at 5 and 7 of logs from 6 to 10."""
    cluster.broker.log_start = cluster.instance.log_start = 6
    expected = [("native", 7, 1)]

    def of(rows: Any) -> list[tuple[Any, ...]]:
        rows = [row for row in rows if row["group"] == GROUP]
        return [(row["kind"], *(int(row.get(name, -1)) for name in ("lag", "gone"))) for row in rows]

    def told(*command: str) -> Any:
        return run(*command, "-o", "json", zookeeper="127.0.0.1:1").json()

    assert of(told("groups", "list", "--lag")) == expected
    assert of(told("topics", "describe", TOPIC)["groups"]) == expected
    assert of(told("watch", GROUP, "--count", "1")["groups"]) == expected
    listed = run("groups", "list", "--lag", "-o", "csv", zookeeper="127.0.0.1:1").out
    assert of(csv.DictReader(listed.splitlines())) == expected
    assert told("search", GROUP)["groups"] == [GROUP]
    found = told("groups", "describe", GROUP)
    assert [(one["partition"], one["lag"], one["gone"]) for one in found["offsets"]] == [(0, 4, 1), (1, 3, 0)]
    every = "groups", "reset-offsets", GROUP, "--all-topics", "--to-current", "--export"
    exported = run(*every, zookeeper="127.0.0.1:1").out
    assert sorted(csv.reader(exported.splitlines())) == [[TOPIC, "0", "5"], [TOPIC, "1", "7"]]
    with closing(cluster.connected()) as store:
        sampled = measure_lags(store, {}, most=1_000, service=LagService())
    assert [(str(one.kind), one.lag, one.gone) for one in sampled.rows if one.group == GROUP] == expected

    with served(cluster) as (port, faults):

        def asked(path: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1{path}", timeout=60) as answer:
                return str(answer.read().decode())

        def page(path: str) -> Any:
            try:
                return json.loads(asked(path))
            except HTTPError:
                return {}

        eventually(lambda: of(page(f"/groups?search={GROUP}") or ()) == expected, within_s=60)
        assert of(csv.DictReader(asked(f"/groups?search={GROUP}&format=csv").splitlines())) == expected
        assert page(f"/search?search={GROUP}")["groups"] == [GROUP]
        eventually(lambda: of(page(f"/topics/{TOPIC}")["groups"]) == expected, within_s=60)
        assert page(f"/groups/{GROUP}")["kind"] == "native"
        rows = csv.DictReader(asked(f"/groups/{GROUP}?format=csv&table=offsets").splitlines())
        assert [row["lag"] for row in rows] == ["4", "3"]
        lag = page(f"/groups/{GROUP}/lag")
        assert (lag["lag"], lag["gone"], lag["note"]) == (7, 1, None)
        assert page(f"/groups/{GROUP}/partitions/{TOPIC}/0")["lag"] == 4
        assert all(page(f"/groups/{GROUP}/{path}") != {} for path in ("history", "timeline", "findings", "actions"))
        assert not faults
