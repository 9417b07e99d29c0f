"""Checks the brokers, the instances beside them, and the election."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.coordinator.remediation import what_to_do
from kafka_coord.groups.cluster import Cluster
from kafka_coord.groups.group import ago
from kafka_coord.model import Listener
from kafka_coord.model.histories import ClusterHistory
from kafka_coord.model.sequences import some
from kafka_coord.monitor.doctor.findings import Finding, error, info, ok, warning
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import DO_NOT_FINALISE, MIGRATING, Migration, read_brokers, read_migration
from kafka_coord.zk.election import highest_epoch_written
from kafka_coord.zk.store import Store

TIMEOUT_S = 2.0
MOST_ELECTIONS = 3
"""Up to this many elections in an hour are normal. A rolling upgrade causes one election per instance."""
_RECENT_MS = 3_600_000


def check_brokers(store: Store) -> Iterator[Finding]:
    """Checks that brokers are registered, have readable registrations, and accept connections."""
    check = "brokers"
    found = read_brokers(store)
    if found is None:
        todo = "check the chroot in --zookeeper, which must match Kafka's zookeeper.connect"
        yield error(check, f"{layout.BROKER_IDS} does not exist, so Kafka does not keep its metadata here", todo)
        return
    brokers = found.live
    for one in found.unreadable:
        what = f"{one.path} cannot be read: {one.reason}; consumers and commands use the other brokers"
        yield error(check, what, what_to_do(one.path))
    migration = read_migration(store)
    yield from _check_migration(migration, any_broker=bool(brokers))
    if not brokers:
        if not found.unreadable and migration is not Migration.RUNNING:
            yield error(check, "no broker is registered", "start the brokers; consumers need them")
        return
    listeners = [(broker, listener) for broker in brokers for listener in broker.listeners]
    with ThreadPoolExecutor(max_workers=min(16, max(1, len(listeners))), thread_name_prefix="doctor") as pool:
        problems = list(pool.map(lambda pair: _refusal(pair[1]), listeners))
    for (broker, listener), problem in zip(listeners, problems, strict=True):
        if problem:
            what = f"broker {broker.broker_id} cannot be reached at {listener.name}://{listener.address}: {problem}"
            todo = "check advertised.listeners, name resolution and firewalls between this host and the broker"
            # The doctor does not know which listener belongs to which clients, so one reachable listener is enough.
            reachable = any(one is broker and not other for (one, _), other in zip(listeners, problems, strict=True))
            yield info(check, what) if reachable else error(check, what, todo)
    if listeners and not any(problems):
        yield ok(check, f"{counted(len(brokers), 'broker')} registered; all listeners accept connections")


def _check_migration(phase: Migration, *, any_broker: bool) -> Iterator[Finding]:
    check = "migration"
    if phase is Migration.PREPARED:
        what = f"{layout.MIGRATION} exists: a migration to KRaft is prepared, or was rolled back"
        yield info(check, what, "do not finalise it: this version reads Kafka's metadata from ZooKeeper only")
    elif phase is Migration.RUNNING and any_broker:
        yield warning(check, f"Kafka {MIGRATING}", DO_NOT_FINALISE)
    elif phase is Migration.RUNNING:
        what = (
            "no broker is registered, because all of them run in KRaft mode: running consumers go on, but consumers"
            f" and commands that start now find no broker. Kafka {MIGRATING}"
        )
        yield error(check, what, f"restart one broker in ZooKeeper mode; {DO_NOT_FINALISE}")


def _refusal(listener: Listener) -> str:
    """Returns why the connection failed, or "" if it succeeded."""
    host, _, port = listener.address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S):
            return ""
    except (ValueError, OverflowError) as failure:  # a host that no resolver takes, for example
        return str(failure)
    except OSError as failure:
        return failure.strerror or str(failure) or type(failure).__name__


def check_coordinator(store: Store, hosts: str, cluster: Cluster) -> Iterator[Finding]:
    """Checks that an instance is elected and can make decisions, and that another instance could take over. ``store``
    was opened with ``hosts``."""
    check, now_ms = "coordinator", round(store.clock.time() * 1000)
    elected = cluster.coordinator
    unreadable = {one.path: one.reason for one in cluster.unreadable}
    if cluster.undecided:
        written = store.exists(layout.COORDINATOR_EPOCH) if layout.COORDINATOR_EPOCH in cluster.undecided else None
        when = f"; it was written {ago(written.mtime_ms, now_ms)}" if written is not None else ""
        yield error(check, f"NO WORKING COORDINATOR: {cluster.undecided}{when}", _remedy(store, hosts, cluster))
    elif layout.COORDINATOR in unreadable:
        todo = f"delete {layout.COORDINATOR}; the instances will then elect a new coordinator"
        yield error(check, f"{layout.COORDINATOR} cannot be read: {unreadable[layout.COORDINATOR]}", todo)
    elif elected is not None:
        yield ok(check, f"broker {elected.broker_id} coordinates, epoch {elected.epoch}")
    yield from _check_instances(cluster)


def check_elections(history: ClusterHistory, now_ms: int) -> Iterator[Finding]:
    """Warns if the coordinator changes often, and says why it changed."""
    recent = [one for one in history.elections if now_ms - one.elected_ms < _RECENT_MS]
    if len(recent) <= MOST_ELECTIONS:
        return
    by_reason = Counter(one.why or "unknown" for one in history.elections if now_ms - (one.ended_ms or 0) < _RECENT_MS)
    why = "; ".join(f"{reason} ({many})" for reason, many in by_reason.most_common(3))
    instances = ", ".join(f"{one} ({many})" for one, many in Counter(one.broker_id for one in recent).most_common(5))
    last = ago(recent[-1].elected_ms, now_ms)
    what = (
        f"the coordinator changed {len(recent)} times in the last hour, most recently {last}."
        f" Elected: broker {instances}. Reasons: {why}"
    )
    todo = (
        "rebalances are delayed while there is no coordinator. The log of the instance that was elected most often"
        " shows the cause: restarts of the process (supervisor, memory), lost sessions (network, paused host, slow"
        " ZooKeeper), or an operator running kafka-coord coordinator resign"
    )
    yield warning("elections", what, todo)


def _remedy(store: Store, hosts: str, cluster: Cluster) -> str:
    if layout.COORDINATOR_EPOCH in cluster.undecided:
        highest = highest_epoch_written(store)
        return (
            "set it to the highest epoch ever used, never to a lower one; the highest epoch in other znodes is"
            f" {highest}: zkCli.sh -server {hosts} set {layout.COORDINATOR_EPOCH} {highest}"
        )
    if cluster.coordinator is not None:
        return f"zkCli.sh -server {hosts} delete {layout.COORDINATOR}"
    running = len(cluster.instances)
    return f"run 'kafka-coord serve' beside each broker ({running} instances are running; see their logs)"


def _check_instances(cluster: Cluster) -> Iterator[Finding]:
    check = "instances"
    alone = sorted(set(cluster.brokers) - cluster.instances.keys())
    lost = sorted(cluster.instances.keys() - set(cluster.brokers))
    if len(cluster.instances) == 1 and len(cluster.brokers) > 1:
        what = "only one instance is running, so no other can take over"
        yield warning(check, what, "run an instance beside each broker")
    elif alone and cluster.instances:
        yield info(
            check, f"no instance is running beside broker {some(alone, 20)}", "run 'kafka-coord serve' there as well"
        )
    if lost:
        what = f"instance {some(lost, 20)} is running without its broker"
        yield info(check, what, "it can still coordinate; check its --broker-id, and whether the broker is up")
    if cluster.instances and not alone and not lost:
        yield ok(check, f"{len(cluster.instances)} instances are running, one beside each broker")
