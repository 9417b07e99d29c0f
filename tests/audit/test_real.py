"""Tests that the log of real coordinators and consumers has no violation after joins, leaves, a failover and a
session's end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.model import Request, RequestType, TopicPartition
from kafka_coord.monitor.audit import AuditRule, EventHistory, Selection, audit
from kafka_coord.zk.store import Store
from tests.cli.running import run
from tests.coordinator.conftest import expire
from tests.coordinator.harness import World

pytestmark = pytest.mark.zookeeper
__all__ = ["expire"]


def test_rebalances_a_failover_and_a_crash_cause_no_violation_and_are_in_the_history(
    world: World, logged_server: ZooKeeperServer, expire: Callable[[Store], None], tmp_path: Path
):
    first = world.instance(1).start_elected()
    second = world.instance(2).start()
    c1 = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    c1.position = {TopicPartition("flights", p): 100 + p for p in range(4)}
    c2 = world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    first.stop()  # resigns
    world.consumer("c3").join()
    world.settles("c1", "c2", "c3", partitions=4)
    expire(c2.store)
    world.settles("c1", "c3", partitions=4)
    expire(second.store)
    world.consumer("c4").join()
    world.settles("c1", "c3", "c4", partitions=4)
    world.ask(Request(RequestType.EVICT, group="delays", consumer="c1", reason="too slow", by="me"))
    world.settles("c3", "c4", partitions=4)
    world.ask(Request(RequestType.REBALANCE, group="delays", reason="tidy", by="me"))

    directory, chroot = Path(logged_server.directory), world.hosts.partition("/")[2]
    history = EventHistory(Selection(group="delays", partition=TopicPartition("flights", 0)))
    report = audit([directory], chroot=f"/{chroot}", running=True, watch=history)

    assert report.violations == []
    assert {found.rule for found in report.warnings} <= {AuditRule.NOT_CONVERGED}
    assert report.figures["elections"] == 3
    assert report.figures["registrations"] == 4
    assert report.figures["commands"] == report.figures["commands_removed"] >= 7
    told = [f"{event.what} | {event.why}" for event in history.events]
    assert told[0].startswith("generation 1: flights-0 is to move from no owner to c1 | member c1 joined")
    assert told[1].startswith("c1 is told to start flights-0 from the offset chosen by its auto.offset.reset")
    assert any("is told to stop flights-0" in line and "joined" in line for line in told) or any(
        "c1 is gone, holding flights-0 | the coordinator evicted it" in line for line in told
    )

    ran = run("audit", str(directory), "--chroot", f"/{chroot}", "--running", "-o", "json", "--consumer", "c2")
    assert ran.code == 0, ran.err
    history = [event["what"] for event in ran.json()["history"]]
    assert history[0].startswith("c2 registered, incarnation")
    assert any(what.startswith("c2 is gone, holding") for what in history)
