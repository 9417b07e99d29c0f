"""All checks. A fault can explain the findings after it, so the order matters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from kafka_coord.errors import StoreError
from kafka_coord.monitor.channel import read_waiting
from kafka_coord.monitor.cluster import Cluster, read_cluster
from kafka_coord.monitor.doctor import access, brokers, channel, groups, kafka_clients, zookeeper
from kafka_coord.monitor.doctor.findings import Finding, error
from kafka_coord.monitor.history import unreadable_history
from kafka_coord.monitor.offsets import read_all_committed
from kafka_coord.monitor.requests import read_requests
from kafka_coord.monitor.snapshot import GroupSnapshot, read_groups
from kafka_coord.zk.store import Store

_MOMENT_S = 1.0
"""Seconds in which a working coordinator releases the partitions of a departed consumer."""


def examine(
    store: Store, hosts: str, *, session_timeout_ms: int, tls: bool = False, kafka: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """Yields each finding at once. ``hosts`` and ``session_timeout_ms`` are those ``store`` was opened with, ``kafka``
    the properties of librdkafka for connections to the brokers.

    Writes only one ephemeral znode, and removes it. A check that fails is a finding too.
    """
    yield from _made("zookeeper servers", lambda: zookeeper.check_servers(hosts, tls=tls))
    yield from _made("zookeeper limits", lambda: zookeeper.check_session(store, session_timeout_ms))
    yield from _made("clocks", lambda: zookeeper.check_clock(store))
    yield from _made("acls", lambda: access.check_access(store))
    yield from _made("brokers", lambda: brokers.check_brokers(store))
    cluster = read_cluster(store)
    yield from _made("coordinator", lambda: brokers.check_coordinator(store, hosts, cluster))
    yield from _check_topics(cluster)
    yield from _made("kafka clients", lambda: kafka_clients.check_kafka_clients(store, cluster, kafka or {}))
    yield from _made("groups", lambda: _check_groups(store, cluster))


def _check_topics(cluster: Cluster) -> Iterator[Finding]:
    for one in cluster.unreadable:
        if one.path.startswith("/brokers/topics/"):
            todo = "Kafka wrote it: its topic is left alone until it can be read"
            yield error("topics", f"{one.path}: {one.reason}", todo)
        elif not one.path.startswith("/consumers/coordinator"):
            yield groups.unreadable_finding(one)


def _check_groups(store: Store, cluster: Cluster) -> Iterator[Finding]:
    now_ms = round(store.clock.time() * 1000)
    snapshots = _seen_twice(store, cluster)
    waiting = read_waiting(store, snapshots)
    yield from channel.check_channel(cluster, snapshots)
    queued, unreadable = read_requests(store)
    yield from groups.check_pause(cluster, now_ms)
    yield from groups.check_requests(queued, unreadable, now_ms, elected=cluster.coordinator is not None)
    yield from (groups.unreadable_finding(one) for one in waiting.unreadable)
    yield from (groups.unreadable_finding(one) for one in unreadable_history(store, snapshots))
    for committed in read_all_committed(store, snapshots, cluster.topics).values():
        yield from (groups.unreadable_finding(one) for one in committed.unreadable)
    yield from groups.check_groups(cluster, snapshots, waiting.commands, now_ms)


def _seen_twice(store: Store, cluster: Cluster) -> dict[str, GroupSnapshot]:
    """Checks the groups. Looks again a moment later at groups with a departed holder, because a working coordinator
    releases its partitions by then."""
    snapshots = read_groups(store, cluster.groups, cluster)
    again = [group for group, snapshot in snapshots.items() if groups.gone_holders(snapshot)]
    if again:
        time.sleep(_MOMENT_S)
        for group in again:
            snapshots.pop(group)
        snapshots |= read_groups(store, again, cluster)
    return snapshots


def _made(check: str, findings: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from findings()
    except StoreError as failure:
        yield error(check, f"could not be checked: {failure}", "check that ZooKeeper answers, then look again")
