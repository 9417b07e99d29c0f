"""Tests of the doctor: one scenario for each fault on a real ZooKeeper, with its finding and its remedy."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.requests import read_requests
from kafka_coord.groups.state import read_groups, read_waiting
from kafka_coord.model import PartitionSet, Pause, Request, RequestType, StopFetcher
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import ClusterHistory, Election
from kafka_coord.monitor.doctor import Finding, LagSight, Severity, examine, examine_group
from kafka_coord.monitor.doctor.groups import check_groups, check_requests
from kafka_coord.monitor.doctor.instances import check_elections
from kafka_coord.monitor.doctor.zookeeper import ServerFacts, check_clock, check_servers, check_speed, check_writes
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, Source
from kafka_coord.zk.store import Clock, Store
from tests.coordinator.harness import World
from tests.monitor.listening import listening
from tests.monitor.written import Tree, opened


def examined(tree: Tree, zk_hosts: str, timeout_ms: int = 10_000) -> list[Finding]:
    return list(examine(tree.store, zk_hosts, session_timeout_ms=timeout_ms))


def bad(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.severity in {Severity.WARNING, Severity.ERROR}]


def only(findings: list[Finding], check: str) -> Finding:
    (found,) = [one for one in bad(findings) if one.check == check]
    assert found.todo
    return found


@pytest.fixture
def healthy(tree: Tree) -> Iterator[Tree]:
    """A broker, an elected instance beside it, a topic, and a group at rest."""
    with listening() as port:
        endpoint = {"endpoints": [f"PLAINTEXT://127.0.0.1:{port}"], "version": 5}
        tree.put(layout.broker(1), json.dumps(endpoint).encode())
        tree.coordinator(1, epoch=7)
        tree.put(layout.COORDINATOR_EPOCH, b"7")
        tree.topic("flights", 2)
        tree.group("delays")
        tree.member("delays", "c1")
        tree.ledger("delays", "c1", "0-1")
        tree.store.create(layout.CLUSTER, ClusterRecord("t1", 1, Source.ZOOKEEPER, 0).to_bytes())
        yield tree


def test_a_healthy_cluster_has_no_bad_findings(healthy: Tree, zk_hosts: str) -> None:
    findings = examined(healthy, zk_hosts)
    assert bad(findings) == []
    checked = {one.check for one in findings if one.severity is Severity.OK}
    assert checked >= {
        "zookeeper servers",
        "zookeeper limits",
        "clocks",
        "brokers",
        "coordinator",
        "instances",
        "groups",
    }
    assert any("3.9" in one.what for one in findings)
    assert any("anyone who can reach ZooKeeper may change" in one.what for one in findings)


def test_the_scratch_znode_is_removed(healthy: Tree, zk_hosts: str) -> None:
    examined(healthy, zk_hosts)
    assert not [name for name in healthy.store.children(layout.CONSUMERS) if name.startswith("doctor")]


def test_a_chroot_without_kafkas_znodes_is_reported(tree: Tree, zk_hosts: str) -> None:
    findings = examined(tree, zk_hosts)
    assert "check the chroot" in only(findings, "brokers").todo
    assert "kafka-coord serve" in only(findings, "coordinator").todo


def test_an_unreachable_broker_is_reported(healthy: Tree, zk_hosts: str) -> None:
    endpoint = {"endpoints": ["PLAINTEXT://127.0.0.1:1"], "version": 5}
    healthy.put(layout.broker(2), json.dumps(endpoint).encode())
    findings = examined(healthy, zk_hosts)
    assert "broker 2 cannot be reached at PLAINTEXT://127.0.0.1:1: Connection refused" in only(findings, "brokers").what
    assert "no other can take over" in only(findings, "instances").what


def test_an_unreadable_broker_znode_is_reported(healthy: Tree, zk_hosts: str) -> None:
    healthy.put(layout.broker(1), b"\xff")
    assert "/brokers/ids/1 cannot be read" in only(examined(healthy, zk_hosts), "brokers").what


def test_an_unreadable_coordinator_znode_is_reported(healthy: Tree, zk_hosts: str) -> None:
    healthy.store.set(layout.COORDINATOR, b"{}")
    assert "delete /consumers/coordinator" in only(examined(healthy, zk_hosts), "coordinator").todo


def test_an_edited_epoch_is_reported(healthy: Tree, zk_hosts: str) -> None:
    healthy.store.set(layout.COORDINATOR_EPOCH, b"6")
    assert (
        "coordinator_epoch says 6, but broker 1 was elected with epoch 7"
        in only(examined(healthy, zk_hosts), "coordinator").what
    )


def test_a_session_timeout_that_the_server_does_not_grant_is_reported(healthy: Tree, zk_hosts: str) -> None:
    assert "minSessionTimeout" in only(examined(healthy, zk_hosts, timeout_ms=100), "zookeeper limits").todo
    assert "maxSessionTimeout" in only(examined(healthy, zk_hosts, timeout_ms=3_600_000), "zookeeper limits").todo


def test_a_server_that_is_down_and_one_without_four_letter_commands_are_reported(
    healthy: Tree, zk_hosts: str, zookeeper_server_factory: Callable[..., ZooKeeperServer]
) -> None:
    silent = zookeeper_server_factory(settings=ZooKeeperSettings(properties={"4lw.commands.whitelist": "ruok"}))
    findings = list(
        examine(healthy.store, f"127.0.0.1:1,{silent.connect_string},{zk_hosts}", session_timeout_ms=10_000)
    )
    assert "127.0.0.1:1 cannot be reached: Connection refused" in only(findings, "zookeeper servers").what
    (told,) = [one for one in findings if silent.connect_string in one.what and one.severity is Severity.INFO]
    assert "4lw.commands.whitelist=srvr,mntr,conf" in told.todo


def test_another_service_on_zookeepers_port_is_reported(healthy: Tree) -> None:
    with listening() as port:
        (told,) = check_servers(f"127.0.0.1:{port}", tls=False)
    assert told.what == f"127.0.0.1:{port} cannot be reached: timed out"


def test_a_low_limit_of_connections_from_one_host_is_reported(
    zookeeper_server_factory: Callable[..., ZooKeeperServer],
) -> None:
    server = zookeeper_server_factory(settings=ZooKeeperSettings(properties={"maxClientCnxns": "10"}))
    with opened(server.connect_string) as store:
        findings = list(examine(store, server.connect_string, session_timeout_ms=10_000))
    assert "allows 10 connections from one host" in only(findings, "zookeeper limits").what


class Ahead:
    """A clock that is ahead of the real time."""

    def __init__(self, clock: Clock, ahead_s: float) -> None:
        self._clock, self._ahead_s = clock, ahead_s

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def time(self) -> float:
        return self._clock.time() + self._ahead_s


@pytest.mark.parametrize(
    ("ahead_s", "severity"), [(5, Severity.WARNING), (-5, Severity.WARNING), (100, Severity.ERROR)]
)
def test_clocks_that_differ_are_reported(healthy: Tree, ahead_s: float, severity: Severity) -> None:
    healthy.store._clock = Ahead(healthy.store.clock, ahead_s)
    (found,) = check_clock(healthy.store)
    assert found.severity is severity
    assert ("behind" if ahead_s > 0 else "ahead of") in found.what


def test_unreadable_znodes_of_every_kind_are_reported(healthy: Tree, zk_hosts: str) -> None:
    places = {
        layout.group("delays"): "groups settings delays",
        layout.registration("delays", "c9"): "repair or stop that consumer",
        layout.ledger("delays", "c9"): "groups evict delays c9",
        layout.assignment("delays"): "groups rebalance delays",
        f"{layout.channel('delays', 'c1')}/start-0000000001": "kafka-coord groups evict delays c1",
    }
    for path in places:
        healthy.put(path, b"{broken")
    found = {
        one.what.partition(": ")[0]: one for one in examined(healthy, zk_hosts) if one.check == "unreadable znodes"
    }
    assert set(found) == set(places)
    for path, todo in places.items():
        assert todo in found[path].todo


def test_ledgers_and_commands_of_former_consumers_are_reported(healthy: Tree, zk_hosts: str) -> None:
    healthy.group("left")
    healthy.ledger("left", "dead", "0")
    healthy.put(layout.channel("left", "dead"))
    healthy.command("left", "dead", StopFetcher(1, 1, 1, PartitionSet({"flights": [0]}), ""))
    findings = examined(healthy, zk_hosts)
    assert "dead is gone, but still holds flights[0]" in only(findings, "ledgers").what
    assert any("1 command for dead, which is gone" in one.what for one in findings)


def test_a_persistent_registration_that_no_instance_serves_is_reported(healthy: Tree, zk_hosts: str) -> None:
    healthy.value(layout.registration("delays", "p1"), {"version": 1, "subscription": {"flights": 1}})
    served = {"subscription": {"flights": 1}, "session_timeout_ms": 10_000, "gateway": 1}
    healthy.value(layout.registration("delays", "s1"), served | {"version": 1})
    healthy.value(layout.registration("delays", "k1"), served | {"version": 1, "protocol": "consumer"})
    assert "of p1 is persistent" in only(examined(healthy, zk_hosts), "registrations").what


def test_a_forgotten_pause_is_reported(healthy: Tree, zk_hosts: str) -> None:
    now_ms = round(healthy.store.clock.time() * 1000)
    healthy.value(layout.paused("delays"), Pause("alice", "disks", now_ms).to_json())
    found = examined(healthy, zk_hosts)
    assert bad(found) == []
    assert [one.severity for one in found if one.check == "pauses"] == [Severity.INFO]
    healthy.value(layout.paused("delays"), Pause("alice", "disks", now_ms - 7_200_000).to_json())
    forgotten = only(examined(healthy, zk_hosts), "pauses")
    assert forgotten.what.startswith("group delays has been paused by alice (disks) for 2 h (since ")
    assert forgotten.group == "delays"
    assert forgotten.todo == "kafka-coord groups resume delays"


def test_a_pause_of_all_groups_is_reported(healthy: Tree, zk_hosts: str) -> None:
    healthy.put(layout.PAUSED)
    assert only(examined(healthy, zk_hosts), "pauses").todo == "kafka-coord groups resume --all"


def test_unanswered_requests_are_reported(healthy: Tree) -> None:
    request = Request(RequestType.REBALANCE, group="delays", by="alice")
    healthy.store.create(layout.REQUEST_PREFIX, fields.dump(request.to_json()), sequence=True)
    queued, unreadable = read_requests(healthy.store)
    now_ms = round(healthy.store.clock.time() * 1000)
    assert list(check_requests(queued, unreadable, now_ms, elected=True)) == []
    (found,) = check_requests(queued, unreadable, now_ms + 61_000, elected=True)
    assert found.severity is Severity.ERROR
    assert "(rebalance for group delays) by alice has waited for 6" in found.what


def test_a_consumer_that_does_not_carry_out_its_commands_is_reported(world: World) -> None:
    world.instance(1).start_elected()
    world.consumer("stuck", obedient=False).join()
    while not world.outstanding():
        threading.Event().wait(0.02)
    cluster = read_cluster(world.store)
    snapshots = read_groups(world.store, ["delays"], cluster)
    waiting = read_waiting(world.store, snapshots).commands
    now_ms = round(world.store.clock.time() * 1000)
    assert [one for one in check_groups(cluster, snapshots, waiting, now_ms) if one.severity is not Severity.OK] == []
    soon = check_groups(cluster, snapshots, waiting, now_ms + 12_000)
    assert [one for one in soon if one.severity is not Severity.OK] == [], "a slow record, or a micro-batch"
    (found,) = check_groups(cluster, snapshots, waiting, now_ms + 32_000)
    assert "stuck has not acknowledged its command to start flights[0-3] for 3" in found.what
    assert "; the coordinator evicts it in 2" in found.what
    assert found.todo.endswith("kafka-coord groups evict delays stuck")
    (late,) = check_groups(cluster, snapshots, waiting, now_ms + 70_000)
    assert "longer than its rebalance timeout" in late.what
    elected_later = replace(cluster, since_ms=now_ms + 70_000)
    (told,) = check_groups(elected_later, snapshots, waiting, now_ms + 70_000)
    assert told.what.endswith("; the coordinator evicts it in 60 s")
    (told,) = check_groups(replace(cluster, undecided="nobody is elected"), snapshots, waiting, now_ms + 70_000)
    assert told.what.endswith("; it is not evicted while no coordinator makes decisions")


def test_a_server_that_pauses_repeatedly_is_reported_as_slow() -> None:
    """The server answers for 150 ms and then pauses for 400 ms, so a few successive reads may all be fast."""
    began = time.monotonic()

    class Pausing:
        clock = time

        def exists(self, _path: str) -> None:
            since = (time.monotonic() - began) % 0.55
            time.sleep(0.002 if since < 0.15 else 0.55 - since)

    (found,) = check_speed(cast(Store, Pausing()))
    assert found.what.startswith("ZooKeeper is slow: 5 reads took ")


def test_the_remedy_for_a_damaged_offset_has_its_last_known_value(healthy: Tree) -> None:
    sight = LagSight(lambda _wanted: ({}, ""))
    healthy.member("delays", "c9")
    healthy.offset("delays", "flights", 1, 41)
    list(examine_group(healthy.store, "delays", sight))
    healthy.store.set(layout.offset("delays", "flights", 1), b"garbage")
    for _ in range(2):
        (found,) = [one for one in examine_group(healthy.store, "delays", sight) if "garbage" in one.what]
        assert "kafka-coord groups reset-offsets delays --topic flights:1 --to-offset 41 --execute" in found.todo


def test_a_subscription_to_a_topic_that_does_not_exist_is_reported(healthy: Tree, zk_hosts: str) -> None:
    healthy.member("delays", "c2", topic="nowhere")
    told = [one for one in examined(healthy, zk_hosts) if one.check == "subscriptions"]
    assert [one.what for one in told] == ["group delays subscribes to nowhere, which does not exist"]


def test_frequent_elections_are_reported() -> None:
    now_ms = 1_800_000_000_000
    elections = [
        Election(at % 2 + 1, "kafka-1", at, now_ms - (6 - at) * 60_000, now_ms - (5 - at) * 60_000, "lost its session")
        for at in range(6)
    ]
    (found,) = check_elections(ClusterHistory(tuple(elections)), now_ms)
    assert found.what == (
        "the coordinator changed 6 times in the last hour, most recently 60 s ago (07:59:00 UTC)."
        " Elected: broker 1 (3), 2 (3). Reasons: lost its session (6)"
    )
    assert list(check_elections(ClusterHistory(tuple(elections[:3])), now_ms)) == []
    assert list(check_elections(ClusterHistory(tuple(elections)), now_ms + 3_600_000)) == []


def test_a_server_whose_writes_have_become_slow_is_reported() -> None:
    def facts(writes: int, took_ms: int) -> ServerFacts:
        metrics = {"zk_cnt_updatelatency": str(writes), "zk_sum_updatelatency": str(took_ms)}
        return ServerFacts("zk1:2181", (3, 9, 5), "leader", metrics, reached=True)

    assert list(check_writes(facts(100_000, 200_000), None)) == []
    (found,) = check_writes(facts(100_010, 208_000), facts(100_000, 200_000))
    assert found.what == "zk1:2181 took 800 ms for each of the last 10 writes"
    assert list(check_writes(facts(10, 20), facts(100_000, 200_000))) == [], "the server was restarted in between"
