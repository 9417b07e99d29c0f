"""Finds problems in an installation and gives a remedy for each. The order of the checks matters: an earlier finding
may explain later ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

from kafka_coord.errors import MalformedValue, StoreError
from kafka_coord.groups.client_assigned import ASKED
from kafka_coord.groups.cluster import Cluster, read_cluster, read_cluster_history
from kafka_coord.groups.directory import GroupDirectory
from kafka_coord.groups.group import LogRanges, counted
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.lag import LagService
from kafka_coord.groups.managed import offsets_of, read_actions
from kafka_coord.groups.offsets import read_all_committed
from kafka_coord.groups.requests import read_requests
from kafka_coord.groups.state import GroupSnapshot, read_groups, read_waiting
from kafka_coord.groups.verbs import GroupOffsets
from kafka_coord.model import PartitionSet, Unreadable
from kafka_coord.monitor.doctor import groups as of_groups
from kafka_coord.monitor.doctor import instances, kafka_clients, zookeeper
from kafka_coord.monitor.doctor.findings import Finding, Severity, error, info
from kafka_coord.monitor.doctor.groups import LAG, Lags, check_actions, check_lag
from kafka_coord.monitor.doctor.zookeeper import ServerFacts
from kafka_coord.zk import layout
from kafka_coord.zk.instance import read_restored
from kafka_coord.zk.store import Store

__all__ = ["Finding", "LagSight", "Severity", "examine", "examine_group"]

log = logging.getLogger(__name__)

_MOMENT_S = 1.0
"""A working coordinator releases a departed consumer's partitions within this many seconds."""


@dataclass(frozen=True, slots=True)
class LagSight:
    """The input for the lag checks. ``service`` contains the earlier samples, and the examination adds a new one."""

    log_ranges: LogRanges
    service: LagService = field(default_factory=LagService)


def examine(
    store: Store,
    hosts: str,
    *,
    session_timeout_ms: int,
    tls: bool = False,
    kafka: Mapping[str, str] | None = None,
    groups: Sequence[str] | None = None,
    writes: bool = True,
    lag: LagSight | None = None,
    servers: MutableMapping[str, ServerFacts] | None = None,
    earlier: Cluster | None = None,
    access_findings: Callable[[], Iterator[Finding]] | None = None,
) -> Iterator[Finding]:
    """Yields each finding as soon as it is known. ``store`` was opened with ``hosts`` and ``session_timeout_ms``.
    ``kafka`` holds the librdkafka settings for connections to the brokers.

    Writes and removes one ephemeral znode to check the clock, unless ``writes`` is false. If ``groups`` is given,
    checks only the groups in it. If ``lag`` is ``None``, does not check the lag. ``servers`` holds what
    ZooKeeper's servers reported to the previous examination, and is updated. ``earlier`` is an earlier view of the
    cluster, which saves listing the groups again if the list has not changed. ``access_findings`` replaces the ACL
    check. A check that cannot be completed is also reported as a finding.
    """
    yield from _made("zookeeper servers", lambda: zookeeper.check_servers(hosts, tls=tls, earlier=servers))
    yield from _made("zookeeper speed", lambda: zookeeper.check_speed(store))
    yield from _made("zookeeper limits", lambda: zookeeper.check_session(store, session_timeout_ms))
    if writes:
        yield from _made("clocks", lambda: zookeeper.check_clock(store))
    yield from _made("acls", access_findings or (lambda: zookeeper.check_access(store)))
    answering: set[int] = set()
    yield from _made("brokers", lambda: instances.check_brokers(store, answering))
    lag = lag if answering else None
    asks = bool(answering) and earlier is None  # reading the log again each time would cost too much
    yield from _made("tree", lambda: instances.check_tree(store, (kafka or {}) if asks else None))
    yield from _made("restore", lambda: _check_restored(store))
    try:
        cluster = read_cluster(store, earlier)
    except StoreError as failure:
        if failure.path != layout.CLUSTER:
            raise
        yield error("tree", f"nothing else could be checked: {failure}", "repair that znode first")
        return
    yield from _made("coordinator", lambda: instances.check_coordinator(store, hosts, cluster))
    yield from _made("elections", lambda: _check_elections(store))
    now_ms = round(store.clock.time() * 1000)
    yield from _made("certificates", lambda: instances.check_certificates(cluster, now_ms))
    yield from _check_topics(cluster)
    yield from _made("kafka clients", lambda: kafka_clients.check_kafka_clients(store, kafka or {}))
    yield from _made("kinds", lambda: kafka_clients.check_kinds(store))
    yield from _made("groups", lambda: _check_groups(store, cluster, groups, lag))
    if lag is not None:
        sight = lag
        yield from _made(LAG, lambda: _check_client_groups(AskedInstances(store, kafka or {}), cluster, groups, sight))


def examine_group(
    store: Store, group: str, lag: LagSight | None = None, earlier: Cluster | None = None
) -> Iterator[Finding]:
    """Yields the findings of :func:`examine` about one managed group, or none if the group does not exist. ``earlier``
    is an earlier view of the cluster, which saves listing the groups again if the list has not changed."""
    cluster = read_cluster(store, earlier)
    yield from _check_each(store, cluster, _seen_twice(store, cluster, [group]), lag, round(store.clock.time() * 1000))


def _check_restored(store: Store) -> Iterator[Finding]:
    read_restored(store)  # if it cannot be read, that is the finding
    return iter(())


def _check_elections(store: Store) -> Iterator[Finding]:
    found = read_cluster_history(store)
    yield from (of_groups.unreadable_finding(one) for one in found.unreadable)
    yield from instances.check_elections(found, round(store.clock.time() * 1000))


def _check_topics(cluster: Cluster) -> Iterator[Finding]:
    for one in cluster.unreadable:
        if one.path.startswith("/brokers/topics/"):
            todo = "Kafka wrote this znode; the coordinator ignores the topic until the znode is readable"
            yield error("topics", f"{one.path}: {one.reason}", todo)
        elif not one.path.startswith("/consumers/coordinator"):
            yield of_groups.unreadable_finding(one)


def _check_groups(
    store: Store, cluster: Cluster, names: Sequence[str] | None, lag: LagSight | None
) -> Iterator[Finding]:
    now_ms = round(store.clock.time() * 1000)
    snapshots = _seen_twice(store, cluster, [name for name in cluster.groups if names is None or name in names])
    yield from instances.check_channel(cluster, snapshots)
    yield from instances.check_source(store, cluster, snapshots)
    queued, unreadable = read_requests(store)
    yield from of_groups.check_pause(cluster, now_ms)
    yield from of_groups.check_requests(queued, unreadable, now_ms, elected=cluster.coordinator is not None)
    yield from _check_each(store, cluster, snapshots, lag, now_ms)


def _check_each(
    store: Store, cluster: Cluster, snapshots: Mapping[str, GroupSnapshot], lag: LagSight | None, now_ms: int
) -> Iterator[Finding]:
    waiting = read_waiting(store, snapshots)
    actions, unreadable = read_actions(store, snapshots)
    yield from (of_groups.unreadable_finding(one) for one in (*waiting.unreadable, *unreadable))
    committed = read_all_committed(store, snapshots, cluster.topics)
    for group, one in committed.items():
        known = lag.service.last_offsets(group) if lag is not None and one.unreadable else {}
        known_at = {layout.offset(group, *tp): offset for tp, offset in known.items()}
        yield from (of_groups.unreadable_finding(unread, known_at.get(unread.path)) for unread in one.unreadable)
    if lag is not None:
        # the brokers are asked only about partitions with a committed offset, because the others have no lag
        partitions = PartitionSet.union(PartitionSet.of(one.offsets) for one in committed.values())
        logs, note = lag.log_ranges(partitions) if partitions else ({}, "")
        if note:
            yield info(LAG, note)
        found = (offsets_of(one, committed[name], logs) for name, one in sorted(snapshots.items()))
        yield from _check_lags(found, lag, now_ms)
    yield from check_actions(actions, now_ms)
    yield from of_groups.check_groups(cluster, snapshots, waiting.commands, now_ms)


def _check_lags(groups: Iterable[GroupOffsets], lag: LagSight, now_ms: int) -> Iterator[Finding]:
    wanted = [replace(one, rows=tuple(counted(one.rows))) for one in groups]
    for found in lag.service.sampled(wanted, now_ms):
        yield from check_lag(Lags.of(found, lag.service.trends(found.group), lag.service.warning_ms), now_ms)


def _check_client_groups(
    instances: AskedInstances, cluster: Cluster, names: Sequence[str] | None, lag: LagSight
) -> Iterator[Finding]:
    """Checks the lag of the groups that are not managed. A managed group hides one of the same name."""
    directory, hidden = GroupDirectory(instances), set(cluster.groups)
    now_ms = round(instances.store.clock.time() * 1000)
    for kind in ASKED:
        clients = directory.of(kind)
        listed, _ = clients.names() if names is None else (names, ())  # others report what cannot be listed
        found, notes = clients.offsets([name for name in listed if name not in hidden], cluster, lag.log_ranges)
        yield from (info(LAG, note) for note in notes)
        yield from _check_lags(found, lag, now_ms)


def _seen_twice(store: Store, cluster: Cluster, names: Sequence[str]) -> dict[str, GroupSnapshot]:
    """Reads the groups. If a departed consumer still holds partitions in a group, reads that group again a moment
    later, by which time a working coordinator will have released them."""
    snapshots = read_groups(store, names, cluster)
    again = [group for group, snapshot in snapshots.items() if of_groups.gone_holders(snapshot)]
    if again:
        time.sleep(_MOMENT_S)
        for group in again:
            snapshots.pop(group)
        snapshots |= read_groups(store, again, cluster)
    return snapshots


def _made(check: str, findings: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Runs one check. Nothing that others wrote may end the examination, so a defect in a check is a finding too."""
    try:
        yield from findings()
    except MalformedValue as damage:
        yield of_groups.unreadable_finding(Unreadable(damage.where, damage.reason))
    except StoreError as failure:
        yield error(check, f"could not be checked: {failure}", "check that ZooKeeper answers, then try again")
    except Exception as failure:
        log.exception("could not run a check check=%s", check)
        what = f"could not be checked: {type(failure).__name__}: {failure}"
        yield error(check, what, "this is a bug in the check: report it with the log. The other checks were made")
