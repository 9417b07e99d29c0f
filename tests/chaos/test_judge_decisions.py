"""Tests reading the times of decisions on requests from a real ZooKeeper's log."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from msgspec import structs

from kafka_coord.coordinator.plan.operator_requests import DONE
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.groups.requests import submit
from kafka_coord.model import Request, RequestType
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import connect, layout
from tests.audit.conftest import next_chroot
from tests.chaos.judge.decisions import read_decisions, write_decisions

ASKED = Request(RequestType.REBALANCE, group="delays", reason="why", by="ops")

pytestmark = pytest.mark.zookeeper


def test_the_time_of_a_decision_is_that_of_the_answers_transaction(
    logged_server: ZooKeeperServer, tmp_path: Path
) -> None:
    chroot = next_chroot(logged_server)
    store = connect(f"{logged_server.connect_string}{chroot}")
    try:
        store.ensure_path(layout.REQUESTS)
        first, second, _never = (submit(store, ASKED) for _ in range(3))
        time.sleep(0.25)
        answer = fields.dump(structs.replace(ASKED, result=DONE).to_json())
        store.set(layout.request(first), fields.dump(structs.replace(ASKED, reason="another").to_json()))
        store.set(layout.request(second), b"not a request")
        store.set(layout.request(second), answer)
        time.sleep(0.25)
        store.set(layout.request(first), answer)
        store.set(layout.request(second), answer)
    finally:
        store.close()
    write_decisions(tmp_path, [Path(logged_server.directory)], chroot)
    found = read_decisions(tmp_path)
    assert set(found) == {first, second}
    assert found[first] >= 0.5
    assert 0.25 <= found[second] <= found[first] - 0.25
    write_decisions(tmp_path, [Path(logged_server.directory)], f"{chroot}/elsewhere")
    assert read_decisions(tmp_path) == {}
    assert json.loads((tmp_path / "decisions.json").read_bytes()) == {}
