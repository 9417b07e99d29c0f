"""Checks the brokers, the instances beside them, and the election: that consumers without ZooKeeper can find the
coordinator, whichever instance is elected, and what others renew for the instances (certificates, users, passwords), as
the instances' metrics report it."""

from __future__ import annotations

import http.client
import math
import re
import socket
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from kafka_coord.channel.frames import BadFrame
from kafka_coord.channel.link import ask_cluster_metadata
from kafka_coord.channel.messages import ClusterMetadata
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.coordinator.tolerant_reads import what_to_do
from kafka_coord.errors import BrokerError, MalformedValue
from kafka_coord.grouplog.trees import LogTree, read_log_tree
from kafka_coord.groups.cluster import Cluster
from kafka_coord.groups.group import ago, duration
from kafka_coord.groups.instances import read_page
from kafka_coord.groups.state import GroupSnapshot
from kafka_coord.kafka.authentication import knows_all
from kafka_coord.kafka.brokers import bootstrap_servers
from kafka_coord.kafka.client import run_with
from kafka_coord.kafka.cluster import ClusterClient
from kafka_coord.model import Listener
from kafka_coord.model.histories import ClusterHistory
from kafka_coord.model.sequences import some
from kafka_coord.monitor.doctor.findings import Finding, error, info, ok, warning
from kafka_coord.renewed import SOON_S
from kafka_coord.wire.messages import BadMessage
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import (
    DO_NOT_FINALISE,
    MIGRATING,
    Brokers,
    Migration,
    read_brokers,
    read_left_behind,
    read_migration,
)
from kafka_coord.zk.election import highest_epoch_written
from kafka_coord.zk.root import (
    ClusterRecord,
    Source,
    read_asked_listeners,
    read_cluster_record,
    read_kafka_id,
    read_mirror_trouble,
)
from kafka_coord.zk.store import Store

_CERTIFICATES = "certificates"
SOON_MS = SOON_S * 1000
_SAMPLE = re.compile(
    r'^kafka_coord_(certificate_ends_seconds|renewal_unusable)\{of="([^"]{1,100})"\} (\S{1,30})$', re.MULTILINE
)
_CLIENTS = {"brokers": "the brokers", "zookeeper": "ZooKeeper"}
_USERS = {"users": "users", "operators": "operators"}
TIMEOUT_S = 2.0
_CHANNEL = "socket channel"
MOST_ELECTIONS = 3
"""Up to this many elections in an hour are normal. A rolling upgrade causes one election per instance."""
_RECENT_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Reported:
    """What an instance reports about one of the things that others renew. ``ends_s`` is when its certificate ends, in
    seconds since 1970, or None if it has none."""

    of: str
    ends_s: float | None
    unusable: bool

    @property
    def certificate(self) -> str:
        if self.of in _CLIENTS:
            return f"its certificate, or the CA, for {_CLIENTS[self.of]}"
        return f"the certificate, or the clients' CA, of its {self.of} listener"

    @property
    def name(self) -> str:
        if self.of in _CLIENTS:
            return f"its credentials for {_CLIENTS[self.of]}"
        return f"its {_USERS[self.of]} file" if self.of in _USERS else self.certificate


def check_certificates(cluster: Cluster, now_ms: int) -> Iterator[Finding]:
    """Yields a finding for each certificate that has ended or soon will, and for what was renewed with files that an
    instance cannot use. An instance without an HTTP server, or that does not answer, says nothing about them."""
    urls = {number: one.http_url for number, one in sorted(cluster.instances.items()) if one.http_url is not None}
    if not urls:
        return
    with ThreadPoolExecutor(max_workers=min(16, len(urls)), thread_name_prefix="doctor") as pool:
        pages = dict(zip(urls, pool.map(_metrics, urls.values()), strict=True))
    yield from certificate_findings({number: certificates_in(page) for number, page in pages.items()}, now_ms)


def certificate_findings(reported: Mapping[int, tuple[Reported, ...]], now_ms: int) -> Iterator[Finding]:
    good = 0
    for number, these in reported.items():
        for one in these:
            left_ms = math.inf if one.ends_s is None else one.ends_s * 1000 - now_ms
            whose = f"instance {number}: {one.certificate}"
            if left_ms <= 0:
                who = "it cannot connect again" if one.of in _CLIENTS else "clients refuse to connect"
                todo = f"renew it now: {who}. The instance reads renewed files by itself"
                yield error(_CERTIFICATES, f"{whose} ended {duration(round(-left_ms))} ago", todo)
            elif left_ms < SOON_MS:
                todo = "renew it; the instance reads renewed files by itself"
                yield warning(_CERTIFICATES, f"{whose} ends in {duration(round(left_ms))}", todo)
            if one.unusable:
                what = (
                    f"instance {number}: {one.name} has been renewed with files that cannot be used, so the earlier one"
                    " stays"
                )
                todo = "see renewal_unusable in the instance's log for the reason, and correct the files"
                yield warning(_CERTIFICATES, what, todo)
            good += left_ms >= SOON_MS and not one.unusable
    if good and good == sum(map(len, reported.values())):
        yield ok(
            _CERTIFICATES, f"{counted(good, 'renewable file')} in use; no certificate ends within {duration(SOON_MS)}"
        )


def certificates_in(page: str) -> tuple[Reported, ...]:
    """Reads what is renewed from a page of metrics. Leaves out what it cannot read."""
    found: dict[str, dict[str, float]] = {}
    for kind, of, written in _SAMPLE.findall(page):
        try:
            value = float(written)
        except ValueError:
            continue
        if abs(value) < 1e12:  # also leaves out NaN
            found.setdefault(of, {})[kind] = value
    return tuple(
        Reported(of, one.get("certificate_ends_seconds"), one.get("renewal_unusable", 0) > 0)
        for of, one in sorted(found.items())
    )


def unverified() -> ssl.SSLContext:
    """Returns a context that accepts any certificate, because its end is a finding of its own."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _metrics(url: str) -> str:
    """Returns the instance's page of metrics, or "" if it cannot be had."""
    try:
        return read_page(url, "/metrics", unverified()).decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException, MalformedValue):
        return ""


def check_channel(cluster: Cluster, snapshots: Mapping[str, GroupSnapshot]) -> Iterator[Finding]:
    """Checks the instances' socket listeners. Yields nothing if there are none and no consumer needs one."""
    members = sum(
        member.gateway is not None and member.protocol is None
        for one in snapshots.values()
        for member in one.observation.members.values()
    )
    listening = {
        number: instance.endpoints["channel"]
        for number, instance in sorted(cluster.instances.items())
        if "channel" in instance.endpoints
    }
    deaf = sorted(cluster.instances.keys() - listening.keys())
    if members and not listening:
        what = f"{members} consumers without ZooKeeper are registered, but no instance listens for them"
        yield error(
            _CHANNEL, what, "restart the instances with --listen-channel; until then, those consumers stay disconnected"
        )
        return
    if not listening:
        return
    if deaf:
        named = ", ".join(map(str, deaf))
        what = (
            f"instance {named} does not listen for consumers,"
            " so electing it would disconnect consumers without ZooKeeper"
        )
        yield warning(_CHANNEL, what, "give every instance --listen-channel")
    yield from _ask_all(cluster, listening, members)


def _ask_all(cluster: Cluster, listening: Mapping[int, str], members: int) -> Iterator[Finding]:
    with ThreadPoolExecutor(max_workers=min(16, len(listening)), thread_name_prefix="doctor") as pool:
        responses = dict(zip(listening, pool.map(_ask, listening.values()), strict=True))
    answered = 0
    for number, response in responses.items():
        address = listening[number]
        if isinstance(response, str):
            what = f"instance {number} does not answer consumers at {address}: {response}"
            todo = "check --advertise-channel, name resolution and firewalls between this host and the instance's"
            yield warning(_CHANNEL, what, todo)
            continue
        answered += 1
        if response is None:  # only the consumers have the certificates
            continue
        elected = cluster.coordinator
        named = response.coordinator
        if elected is not None and (named is None or named.epoch < elected.epoch):
            what = f"instance {number} sends consumers to {_named(response)}, but broker {elected.broker_id} is elected"
            yield info(_CHANNEL, what, "its response may be outdated; run the doctor again")
    if answered == len(responses):
        yield ok(_CHANNEL, f"{answered} instances answer consumers; {members} socket consumers are registered")


def _ask(address: str) -> ClusterMetadata | str | None:
    """Returns the instance's answer, or why there is none. Returns ``None`` if it speaks TLS, but closes connections
    without a client's certificate."""
    problem = ""
    for tls in (None, unverified()):
        secured: list[object] = []
        try:
            return ask_cluster_metadata(address, tls=tls, timeout_s=TIMEOUT_S, opened=secured.append)
        except TimeoutError as failure:
            problem = problem or str(failure) or "no answer"
        except (OSError, ValueError, BadFrame, MalformedValue) as failure:
            if tls is not None and secured:
                return None
            problem = problem or str(failure) or type(failure).__name__
            if isinstance(failure, ConnectionRefusedError):
                break
    return problem


def _named(response: ClusterMetadata) -> str:
    named = response.coordinator
    return f"broker {named.instance}, epoch {named.epoch}" if named is not None else "no coordinator"


def check_brokers(store: Store, answering: set[int] | None = None) -> Iterator[Finding]:
    """Checks that brokers are registered, have readable registrations, and accept connections. Adds to ``answering``
    those that accept one."""
    check = "brokers"
    found = read_brokers(store)
    record = read_cluster_record(store)
    is_mirrored = record is not None and record.source is Source.BROKERS
    if found is None and not is_mirrored:
        todo = "check the chroot in --zookeeper; for a cluster without ZooKeeper, give the instances --bootstrap"
        yield error(check, f"{layout.BROKER_IDS} does not exist, so Kafka does not keep its metadata here", todo)
        return
    found = found or Brokers()
    brokers = found.live
    for one in found.unreadable:
        what = f"{one.path} cannot be read: {one.reason}; consumers and commands use the other brokers"
        yield error(check, what, what_to_do(one.path))
    migration = read_migration(store)
    if record is not None and is_mirrored:
        yield from _check_mirrored_migration(migration, record, *read_left_behind(store))
    else:
        yield from _check_migration(migration, any_broker=bool(brokers))
    yield from _check_mirror(store, is_mirrored=is_mirrored)
    if not brokers:
        if not found.unreadable and (is_mirrored or migration is not Migration.RUNNING):
            yield error(check, "no broker is registered", "start the brokers; consumers need them")
        return
    listeners = [(broker, listener) for broker in brokers for listener in broker.listeners]
    with ThreadPoolExecutor(max_workers=min(16, max(1, len(listeners))), thread_name_prefix="doctor") as pool:
        problems = list(pool.map(lambda pair: _refusal(pair[1]), listeners))
    for (broker, listener), problem in zip(listeners, problems, strict=True):
        if not problem and answering is not None:
            answering.add(broker.broker_id)
        if problem:
            what = f"broker {broker.broker_id} cannot be reached at {listener.name}://{listener.address}: {problem}"
            todo = "check advertised.listeners, name resolution and firewalls between this host and the broker"
            # The doctor does not know which listener belongs to which clients, so one reachable listener is enough.
            reachable = any(one is broker and not other for (one, _), other in zip(listeners, problems, strict=True))
            yield info(check, what) if reachable else error(check, what, todo)
    if listeners and not any(problems):
        yield ok(check, f"{counted(len(brokers), 'broker')} registered; all listeners accept connections")


def check_tree(store: Store, properties: Mapping[str, str] | None) -> Iterator[Finding]:
    """Checks which tree this is, and whether the groups log belongs to it. ``properties`` are those of connections to
    the brokers, ``None`` if they do not answer."""
    record, found = read_cluster_record(store), None
    if properties is not None and knows_all(properties):
        with suppress(BrokerError, BadMessage):  # other findings tell of brokers that do not answer
            cluster = ClusterClient.of(bootstrap_servers(store, properties, lambda _: None), properties)
            found = run_with(cluster, partial(read_log_tree, partitions={0}))  # each partition tells its generation
    yield from tree_findings(record, found, read_kafka_id(store))


def tree_findings(record: ClusterRecord | None, found: LogTree | None, of_zookeeper: str | None) -> Iterator[Finding]:
    """``found`` is what the groups log tells, and ``of_zookeeper`` the id of Kafka's cluster in Kafka's own znode."""
    check, claim = "tree", found.claim if found is not None else None
    if record is None:
        todo = "correct --zookeeper; or run kafka-coord restore if a tree was lost, or kafka-coord init for a new one"
        yield warning(check, f"{layout.CLUSTER} does not exist, so there is no coordination tree here", todo)
        return
    is_good = True
    if record.making:
        is_good = False
        todo = f"if kafka-coord {record.making} no longer runs, run it again"
        yield error(check, f"{record.name}, is still being made, so no instance serves it", todo)
    newer = claim.of_tree if claim is not None and found is not None and found.refuses(record) else record.superseded_by
    if newer:
        is_good = False
        todo = "give instances and consumers that tree's --zookeeper; if it is lost, kafka-coord init --replace its id"
        yield error(check, f"the groups log belongs to {newer}, so {record.name}, must not be served", todo)
    ids = {"Kafka's znodes": of_zookeeper, "the brokers": found.kafka if found is not None else None}
    for whose, cluster_id in ids.items():
        if None not in {record.kafka, cluster_id} and cluster_id != record.kafka:
            is_good = False
            what = f"{record.name}, belongs to cluster {record.kafka}, but {whose} belong to cluster {cluster_id}"
            yield error(check, what, "its offsets are of another cluster: correct --zookeeper or their addresses")
    if is_good:
        yield ok(check, f"{record.name}, of Kafka cluster {record.kafka or '(unknown)'}")


def _check_mirrored_migration(
    phase: Migration, record: ClusterRecord, in_zookeeper: Sequence[int], lacking: str
) -> Iterator[Finding]:
    """``in_zookeeper`` are the brokers that Kafka's own znodes still name, and ``lacking`` a topic whose partitions
    they lack."""
    check, source = "migration", f"the metadata comes from the brokers ({record.by})"
    if phase is Migration.PREPARED:
        todo = (
            "restart the brokers with zookeeper.metadata.migration.enable, one after another, if not done yet; if it"
            f" was rolled back, delete {layout.MIGRATION}, and {_GO_BACK}"
        )
        yield info(check, f"a migration to KRaft is prepared, or was rolled back; {source}", todo)
    elif phase is Migration.RUNNING and lacking:
        what = f"the migration to KRaft is finalised: Kafka's own znodes do not follow (topic {lacking})"
        yield ok(check, f"{what}; {source}")
    elif phase is Migration.RUNNING and in_zookeeper:
        todo = (
            "restart the brokers in KRaft mode, one after another, with the listener for instances in"
            " server.properties (KRaft knows no dynamic one); then finalise"
        )
        left = f"in ZooKeeper mode: {some(in_zookeeper, 10)}"
        yield info(check, f"Kafka migrates to KRaft; brokers {left}; {source}", todo)
    elif phase is Migration.RUNNING:
        todo = (
            "finalise, if not done yet: restart the controllers without zookeeper.metadata.migration.enable (Kafka's"
            " znodes tell that it is done only once a topic or a partition is new)"
        )
        yield info(check, f"Kafka migrates to KRaft, and every broker is in KRaft mode; {source}", todo)
    elif in_zookeeper and not record.by.startswith("serve.metadata"):
        yield info(check, f"the brokers are in ZooKeeper mode, but {source}", _GO_BACK)
    else:
        yield ok(check, source)


def _check_migration(phase: Migration, *, any_broker: bool) -> Iterator[Finding]:
    """For metadata that does not come from the brokers yet."""
    check = "migration"
    if phase is Migration.PREPARED:
        what = f"{layout.MIGRATION} exists: a migration to KRaft is prepared, or was rolled back"
        yield info(check, what, DO_NOT_FINALISE)
    elif phase is Migration.RUNNING and any_broker:
        yield warning(check, f"Kafka {MIGRATING}", _TAKE_OVER)
    elif phase is Migration.RUNNING:
        what = (
            "no broker is registered, because all of them run in KRaft mode: running consumers go on, but consumers"
            f" and commands that start now find no broker. Kafka {MIGRATING}"
        )
        yield error(check, what, _TAKE_OVER)


_GO_BACK = "to read Kafka's own znodes again, run kafka-coord coordinator metadata zookeeper"
_TAKE_OVER = (
    "the elected instance takes the metadata from the brokers, unless serve.metadata is zookeeper; its log says what"
    f" prevents it. If no broker is registered any more, give all instances --bootstrap; {DO_NOT_FINALISE}"
)


def _check_mirror(store: Store, *, is_mirrored: bool) -> Iterator[Finding]:
    trouble = read_mirror_trouble(store)
    if trouble is None:
        return
    todo = (
        "the mirror stays as it is: check that the elected instance reaches the brokers and may describe all topics"
        " (its log says more)"
    )
    if trouble.held:
        todo += "; if the topics were deleted, let them go with kafka-coord coordinator let-go"
    since = ago(trouble.since_ms, round(store.clock.time() * 1000))
    if not is_mirrored:
        yield warning("metadata", f"{trouble.reason}, first {since}", f"mend this first, and {DO_NOT_FINALISE}")
        return
    yield warning("metadata", f"{trouble.reason}; the mirror was last complete {since}", todo)


def check_source(store: Store, cluster: Cluster, snapshots: Mapping[str, GroupSnapshot]) -> Iterator[Finding]:
    """Checks that everybody reads the metadata at the same place, and that it has the addresses on every listener."""
    check = "metadata"
    record = read_cluster_record(store)
    is_mirrored = record is not None and record.source is Source.BROKERS
    deaf = sorted(
        f"{consumer} (group {group})"
        for group, one in snapshots.items()
        for consumer, member in one.observation.members.items()
        if not member.follows_root and member.gateway is None
    )
    if deaf:
        what = f"{counted(len(deaf), 'consumer')} may look into Kafka's own znodes: {some(deaf, 20)}"
        todo = f"let them follow {layout.CLUSTER} (docs/protocol.md) before the next step of a migration to KRaft"
        migrates = is_mirrored or read_migration(store) is not Migration.NONE
        yield warning(check, what, todo) if migrates else info(check, what, todo)
    settings = {number: one.metadata for number, one in cluster.instances.items()}
    if len(set(settings.values())) > 1:
        shown = ", ".join(f"instance {number}: {one}" for number, one in sorted(settings.items()))
        todo = "give all instances the same; until then, each counts as auto"
        yield warning(check, f"the instances have different settings of serve.metadata ({shown})", todo)
    elif is_mirrored and "zookeeper" in settings.values():
        yield warning(check, "serve.metadata is zookeeper, but the metadata comes from the brokers", _GO_BACK)
    asked, found = read_asked_listeners(store) if is_mirrored else None, read_brokers(store)
    if asked is None or found is None:
        return
    own = {one.endpoints.get("kafka") for one in cluster.instances.values()}
    mute = {one.name for broker in found.live for one in broker.listeners if one.address not in own} - {*asked}
    for name in sorted(mute):
        what = f"no broker tells its address on listener {name}: the addresses there stay as ZooKeeper had them last"
        todo = "give the instances' user DESCRIBE_CONFIGS on the cluster, or --bootstrap"
        yield warning(check, what, f"{todo} …,{name}=HOST:PORT, which they can reach")


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
