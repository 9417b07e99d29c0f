"""Checks the setup for stock Kafka clients: listeners, instances, groups that the brokers also coordinate, and the
topic that stores client-assigned groups and their offsets."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_coord.classic_groups.errors import named
from kafka_coord.coordinator.plan.reasons import counted, plural
from kafka_coord.errors import BrokerError, MalformedValue
from kafka_coord.frontends.kafka.native import FOR_BROKERS
from kafka_coord.grouplog.term import PARTITIONS, TOPIC
from kafka_coord.groups.cluster import Reading
from kafka_coord.groups.copies import GroupPositions, KafkaOffsetStore
from kafka_coord.groups.directory import GroupDirectory
from kafka_coord.groups.group import duration, iso_time
from kafka_coord.groups.instances import AskedInstances, InstanceDirectory
from kafka_coord.kafka.cluster import metadata_request
from kafka_coord.kafka.connection import CLIENT_ID, RIGHTS
from kafka_coord.kafka.coordinators import Ask
from kafka_coord.model import Broker, Listener, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.json_fields import decimal
from kafka_coord.model.offsets import Retention
from kafka_coord.model.operations import COORDINATED
from kafka_coord.model.partitions import ranges
from kafka_coord.model.sequences import grouped, some
from kafka_coord.monitor.doctor.findings import Finding, error, ok, warning
from kafka_coord.monitor.doctor.groups import unreadable_finding
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import Brokers, read_brokers
from kafka_coord.zk.instance import read_retention
from kafka_coord.zk.kinds import read_kinds
from kafka_coord.zk.root import Source, read_cluster_record
from kafka_coord.zk.store import GetChildren, GetData, Node, Store

_GROUPS_LOG = "groups log"
_DESCRIBE_CONFIGS, _METADATA, _OF_TOPIC = (0, 1), 4, 2
_UNKNOWN_ERROR = -1
"""The code for a response that describes nothing, or more than the topic."""
_MOST_REPLICAS = 3
_MOST_IN_SYNC = (1 << 31) - 1
_SETTINGS = ("cleanup.policy", "compression.type", "min.insync.replicas", "unclean.leader.election.enable")


@dataclass(frozen=True, slots=True)
class Topic:
    """The groups log's topic, as a broker describes it: its settings and, for each partition, how many replicas it has
    and how many of them are in sync. The errors say why the broker told nothing, and are 0 otherwise."""

    settings: Mapping[str, str]
    replicas: Mapping[int, tuple[int, int]]
    settings_error: int = 0
    replicas_error: int = 0


def check_log(
    instances: AskedInstances, directory: InstanceDirectory, brokers: int, listeners: Sequence[Listener]
) -> Iterator[Finding]:
    """Checks the groups log's topic. Does nothing if the topic does not exist yet, since an instance will create it.
    ``listeners`` are the brokers' listeners."""
    if not directory.leaders:
        return
    topics, _ = instances.ask_each(directory.addresses, _read)
    if not topics:
        return  # other findings report that no instance answers
    at = listeners[0].address if listeners else "BROKER:PORT"
    findings = list(check_topic(next(iter(topics.values())), directory, brokers, at))
    yield from findings
    if not findings:
        yield ok(_GROUPS_LOG, f"{TOPIC} has {PARTITIONS} partitions, is compacted, and is replicated correctly")


def check_topic(topic: Topic, directory: InstanceDirectory, brokers: int, address: str) -> Iterator[Finding]:
    """Checks the partitions and settings of the groups log's topic. ``address`` is a broker's address, for the commands
    in the remedies."""
    yield from _check_partitions(topic, directory, address)
    wanted = {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}
    why = {
        "cleanup.policy": "Kafka may delete offsets that are still needed",
        "unclean.leader.election.enable": "a leader that lacks acknowledged commits can be elected",
    }
    yield from _check_told(topic)
    for name, value in wanted.items():
        actual = topic.settings.get(name, value)
        if actual != value:
            yield error(_GROUPS_LOG, f"{TOPIC} has {name}={actual}, so {why[name]}", _set(address, name, value))
    compression = topic.settings.get("compression.type", "producer")
    if compression not in {"producer", "uncompressed"}:
        what = f"{TOPIC} has compression.type={compression}, which no instance can load"
        yield error(_GROUPS_LOG, what, _set(address, "compression.type", "producer"))
    fewest = min((replicas for replicas, _ in topic.replicas.values()), default=0)
    needed = min(_MOST_REPLICAS, brokers)
    if topic.replicas and fewest < needed:
        what = f"{TOPIC} has partitions with only {counted(fewest, 'replica')}; {brokers} brokers can hold {needed}"
        todo = f"give each partition {needed} replicas with kafka-reassign-partitions.sh --bootstrap-server {address}"
        yield warning(_GROUPS_LOG, what, todo)
    in_sync = decimal(topic.settings.get("min.insync.replicas", "1"), _MOST_IN_SYNC)
    if fewest >= _MOST_REPLICAS and in_sync is not None and not 2 <= in_sync < fewest:
        what = f"{TOPIC} has min.insync.replicas={in_sync}, so " + (
            "a commit is acknowledged as soon as one broker has it" if in_sync < 2 else "one dead broker stops commits"
        )
        yield warning(_GROUPS_LOG, what, _set(address, "min.insync.replicas", "2"))


def _check_told(topic: Topic) -> Iterator[Finding]:
    """Reports what the broker does not tell. What is unknown is neither good nor bad."""
    if topic.settings_error:
        what = f"the settings of {TOPIC} are unknown: DescribeConfigs is answered with {named(topic.settings_error)}"
        todo = f"give this command's user (--kafka-property) DESCRIBE_CONFIGS on the topic {TOPIC}"
        yield warning(_GROUPS_LOG, what, todo if topic.settings_error in RIGHTS else _ASK_AGAIN)
    elif silent := [name for name in _SETTINGS if name not in topic.settings]:
        yield warning(_GROUPS_LOG, f"the broker does not tell {', '.join(silent)} of {TOPIC}", _ASK_AGAIN)
    if topic.replicas_error:
        what = f"the replicas of {TOPIC} are unknown: Metadata is answered with {named(topic.replicas_error)}"
        todo = f"give this command's user (--kafka-property) DESCRIBE on the topic {TOPIC}"
        yield warning(_GROUPS_LOG, what, todo if topic.replicas_error in RIGHTS else _ASK_AGAIN)


_ASK_AGAIN = f"ask the brokers: kafka-topics.sh --describe --topic {TOPIC}"


def _check_partitions(topic: Topic, directory: InstanceDirectory, address: str) -> Iterator[Finding]:
    missing = [number for number in range(PARTITIONS) if number not in directory.leaders]
    extra = [number for number in directory.leaders if number >= PARTITIONS]
    if missing:
        what = f"{TOPIC} has no {_named(missing)}, so some groups have no coordinator"
        todo = f"kafka-topics.sh --bootstrap-server {address} --alter --topic {TOPIC} --partitions {PARTITIONS}"
        yield error(_GROUPS_LOG, what, todo)
    if extra:
        what = f"{TOPIC} has {len(directory.leaders)} partitions; only the first {PARTITIONS} are used"
        yield warning(
            _GROUPS_LOG, what, "do nothing: Kafka cannot remove partitions, and the unused partitions stay empty"
        )
    leaderless = [number for number, leader in directory.leaders.items() if leader < 0]
    if leaderless:
        what = f"{TOPIC} has no live leader for {_named(leaderless)}, so some groups have no coordinator"
        yield error(_GROUPS_LOG, what, "start the brokers that hold the replicas")
    behind = [number for number, (replicas, in_sync) in topic.replicas.items() if in_sync < replicas]
    if behind and not leaderless:
        what = f"{TOPIC} has out-of-sync replicas in {_named(behind)}"
        yield warning(_GROUPS_LOG, what, "start the brokers that are down, or wait until they have caught up")


def _named(numbers: Sequence[int]) -> str:
    return f"{plural('partition', len(numbers))} {ranges(numbers)}"


def _set(address: str, name: str, value: str) -> str:
    return (
        f"kafka-configs.sh --bootstrap-server {address} --alter --entity-type topics --entity-name {TOPIC}"
        f" --add-config {name}={value}"
    )


async def _read(ask: Ask) -> Topic:
    form = message("DescribeConfigsRequest")
    resource = form.struct("DescribeConfigsResource")(
        resource_type=_OF_TOPIC, resource_name=TOPIC, configuration_keys=_SETTINGS
    )
    configs = await ask("DescribeConfigs", _DESCRIBE_CONFIGS, form(resources=(resource,)))
    metadata = await ask("Metadata", _METADATA, metadata_request([TOPIC], _METADATA))
    return Topic(
        {one.name: one.value or "" for result in configs.results for one in result.configs},
        {
            part.partition_index: (len(part.replica_nodes), len(part.isr_nodes))
            for found in metadata.topics
            for part in found.partitions
        },
        _error_of(configs.results),
        _error_of(metadata.topics),
    )


def _error_of(described: Sequence[Any]) -> int:
    return int(described[0].error_code) if len(described) == 1 else _UNKNOWN_ERROR


_CLIENTS = "kafka clients"
_ASKING_S = 5.0


def check_kafka_clients(store: Store, properties: Mapping[str, str]) -> Iterator[Finding]:
    """Checks the setup for Kafka clients if an instance has ever served one. ``properties`` are librdkafka settings."""
    instances = AskedInstances(store, properties)
    directory = instances.directory()
    for one in directory.unreadable:
        todo = "restart the instance or broker that wrote it; if that no longer exists, delete the znode"
        yield error("instances", f"{one.path} cannot be read: {one.reason}", todo)
    if not directory.is_used:
        return
    brokers = (read_brokers(store) or Brokers()).live
    record = read_cluster_record(store)
    is_mirrored = record is not None and record.source is Source.BROKERS
    # The mirror has the listeners for instances only if the brokers tell their settings.
    told = not is_mirrored or len(_bootstrap(directory, brokers)) < sum(len(one.listeners) for one in brokers)
    missing = _check_listeners if told else _check_served
    findings = [*missing(directory, brokers), *_check_instances(instances, directory)]
    findings += _check_managed_groups(store, directory)
    findings += _check_rights(store)
    findings += _check_retention(store)
    yield from findings
    if not findings:
        yield ok(
            _CLIENTS, f"{len(directory.addresses)} instances serve Kafka clients, and each broker advertises its own"
        )
    yield from check_log(instances, directory, len(brokers), _bootstrap(directory, brokers))
    yield from _check_native_groups(instances, _bootstrap(directory, brokers), properties)


def check_kinds(store: Store) -> Iterator[Finding]:
    """Checks that the recorded kinds of groups can be read."""
    damaged: list[MalformedValue] = []
    read_kinds(store, unreadable=damaged)
    yield from (unreadable_finding(Unreadable(one.where, one.reason)) for one in damaged)


def _check_served(directory: InstanceDirectory, brokers: Sequence[Broker]) -> Iterator[Finding]:
    """Checks that an instance beside every broker serves Kafka clients."""
    for number in sorted({broker.broker_id for broker in brokers} - directory.addresses.keys()):
        what = f"no instance beside broker {number} serves Kafka clients, so its groups have no coordinator"
        todo = f"run kafka-coord serve --broker-id {number} --listen-kafka HOST:PORT --broker-listener HOST:PORT"
        yield error(_CLIENTS, what, todo)


def _check_listeners(directory: InstanceDirectory, brokers: Sequence[Broker]) -> Iterator[Finding]:
    """Also checks that every broker advertises its instance, on a listener with the same name everywhere."""
    yield from _check_served(directory, brokers)
    names: dict[int, set[str]] = {}
    for broker in brokers:
        number = broker.broker_id
        address = directory.addresses.get(number)
        if address is None:
            continue
        names[number] = {one.name for one in broker.listeners if _is_same(one.address, address)}
        if not names[number]:
            shown = ", ".join(one.endpoint for one in broker.listeners)
            what = f"no listener of broker {number} advertises its instance at {address}; it advertises {shown}"
            todo = (
                f"give broker {number} a listener with advertised address {address} and restart it, or start the"
                " instance with --listen-kafka at an advertised address"
            )
            yield error(_CLIENTS, what, todo)
    if names and all(names.values()) and not set.intersection(*names.values()):
        shown = ", ".join(f"{number}: {', '.join(sorted(found))}" for number, found in sorted(names.items()))
        what = f"the brokers advertise their instances on listeners of different names ({shown})"
        yield error(
            _CLIENTS, what, "give that listener the same name on all brokers, and restart the brokers you changed"
        )


def _check_instances(instances: AskedInstances, directory: InstanceDirectory) -> Iterator[Finding]:
    """Checks that every instance answers and sends clients only to instances."""

    async def names(ask: Ask) -> list[tuple[int, str]]:
        response = await ask("Metadata", _METADATA, message("MetadataRequest")(topics=()))
        return [(node.node_id, f"{node.host}:{node.port}") for node in response.brokers]

    nodes_of, silent = instances.ask_each(directory.addresses, names)
    for one in silent:
        todo = "check that it is running, and that this host can reach its --listen-kafka address; see its log"
        yield error(_CLIENTS, f"instance {one.broker_id} does not answer: {one.reason}", todo)
    for number, nodes in nodes_of.items():
        past = {
            node: address
            for node, address in nodes
            if node in directory.addresses and not _is_same(address, directory.addresses[node])
        }
        if past:
            shown = ", ".join(f"broker {node} at {address}" for node, address in sorted(past.items()))
            what = f"instance {number} sends its clients directly to brokers: {shown}"
            todo = f"restart instance {number} with --broker-listener set to the listener that advertises instances"
            yield error(_CLIENTS, what, todo)


def _check_managed_groups(store: Store, directory: InstanceDirectory) -> Iterator[Finding]:
    """Checks that all instances have the same ``managed_groups``, which each instance records along with its terms."""
    numbers, reading = sorted(directory.leaders), Reading(store)
    nodes = reading.many(GetData(layout.log_partition(number)) for number in numbers)
    patterns: dict[int, str] = {}
    for number, node in zip(numbers, nodes, strict=True):
        leader, where = directory.leaders[number], layout.log_partition(number)
        if not isinstance(node, Node) or not node.data:
            continue  # no instance has claimed the partition yet
        try:
            value = fields.load_object(node.data, where)
            if leader in directory.addresses and value.get("broker") == leader:
                patterns[leader] = fields.text(value, "managed_groups", where, "")
        except MalformedValue as damaged:
            reading.refuse(damaged.where, damaged.reason)
    if unread := reading.unreadable:
        what = f"{some([one.path for one in unread], 3)} cannot be read, so the serve.managed_groups of their instances"
        todo = "the next instance that takes the partition over writes it again; restart the one that holds it"
        yield warning(_CLIENTS, f"{what} were not compared: {unread[0].reason}", todo)
    if len(set(patterns.values())) > 1:
        shown = ", ".join(f"{broker}: {pattern or 'none'}" for broker, pattern in sorted(patterns.items()))
        what = f"the instances have different serve.managed_groups ({shown}), so a group's kind depends on its instance"
        yield warning(_CLIENTS, what, "give all instances the same setting, and restart those you changed")


def _check_rights(store: Store) -> Iterator[Finding]:
    """Reports the instances that say that their broker denies them a right on the groups log."""
    reading = Reading(store)
    (listing,) = reading.many([GetChildren(layout.MISSING_RIGHTS)])
    paths = [f"{layout.MISSING_RIGHTS}/{number}" for number in sorted(listing if isinstance(listing, tuple) else ())]
    for path, node in zip(paths, reading.many(map(GetData, paths)), strict=True):
        told = reading.decode(path, node, _error_in)
        code, topics, group = told if told is not None else ("", "", "")
        number = path.rpartition("/")[2]
        if topics:
            what = f"broker {number} does not let its instance describe {topics} ({code}), so commits for them fail"
            yield error(_CLIENTS, what, "give the instance's user DESCRIBE on all topics")
        elif group:
            what = f"the brokers do not let instance {number} describe group {group} ({code})"
            what = f"{what}, so clients of groups that no instance knows yet wait"
            yield error(_CLIENTS, what, "give the instance's user DESCRIBE on all groups")
        elif told is not None:
            what = f"broker {number} denies its instance a right on {TOPIC} ({code}), so its groups cannot commit"
            rights = "READ, WRITE, DESCRIBE and, for a new log, CREATE"
            yield error(_CLIENTS, what, f"give the instance's user {rights} on the topic {TOPIC}")
    for unread in reading.unreadable:
        what = f"{unread.path} cannot be read, so it is unknown which right a broker denies its instance"
        todo = "see that instance's log; a restart of the instance writes the znode again if a right is missing"
        yield error(_CLIENTS, f"{what}: {unread.reason}", todo)


def _error_in(where: str, node: Node) -> tuple[str, ...]:
    value = fields.load_object(node.data, where)
    return tuple(fields.text(value, name, where, "") for name in ("error", "topics", "group"))


def _check_retention(store: Store) -> Iterator[Finding]:
    try:
        yield from check_retention(read_retention(store), round(store.clock.time() * 1000))
    except MalformedValue as failed:
        what = f"{layout.RETENTION} cannot be read, so no offsets expire: {failed}"
        yield error(_CLIENTS, what, "delete the znode; the instances write it again")


def check_retention(found: Retention, now_ms: int) -> Iterator[Finding]:
    """Reports brokers that keep offsets for different times or do not say for how long, and a shorter retention before
    it deletes anything."""
    brokers = {number: one for number, one in sorted(found.brokers.items()) if one.is_current(now_ms)}
    silent = [str(number) for number, one in brokers.items() if not one.is_told]
    if silent:
        what = f"no instance may read the settings of {plural('broker', len(silent))} {', '.join(silent)}, so"
        todo = "give the instance's user DESCRIBE_CONFIGS on the cluster"
        yield warning(_CLIENTS, f"{what} Kafka's defaults apply there", todo)
    if len({one.retention_ms for one in brokers.values()}) > 1:
        shown = ", ".join(f"{number}: {duration(one.retention_ms)}" for number, one in brokers.items())
        what = f"the brokers have different offsets.retention.minutes ({shown}); the longest applies"
        yield warning(_CLIENTS, what, "give all brokers the same setting, and restart those you changed")
    ends_ms = found.since_ms + found.in_force_ms
    if found.since_ms and now_ms < ends_ms:
        what = (
            f"the brokers keep the offsets of unused groups for a shorter time than before: for"
            f" {duration(found.in_force_ms)}, so the first ones expire at {iso_time(ends_ms)}"
        )
        yield warning(_CLIENTS, what, "if that is too short, raise offsets.retention.minutes on a broker before then")


def _bootstrap(directory: InstanceDirectory, brokers: Sequence[Broker]) -> tuple[Listener, ...]:
    """Returns the listeners whose addresses lead to brokers instead of instances."""
    instances = set(directory.addresses.values())
    return tuple(
        one for broker in brokers for one in broker.listeners if not any(_is_same(one.address, at) for at in instances)
    )


_FENCES = {CLIENT_ID, FOR_BROKERS}
"""The client ids of the members that keep others out of the brokers' groups (ADR 60)."""


def _check_native_groups(
    instances: AskedInstances, listeners: Sequence[Listener], properties: Mapping[str, str]
) -> Iterator[Finding]:
    """Checks that no group coordinated by the instances also has members in the brokers' own coordinator."""
    check = "native groups"
    names, _ = GroupDirectory(instances).names()
    kinds = {group: groups.kind for group, groups in names if groups.kind in COORDINATED}
    seen: dict[str, GroupPositions] = {}
    try:
        native = _own_coordinator(listeners, properties)
        seen = native.read(sorted(kinds.keys() & set(native.groups())))
        problems = grouped(sorted(name for name in seen if seen[name].problem), lambda name: seen[name].problem)
        trouble = "; ".join(
            f"{plural('group', len(names))} {some(names, 20)}: {why}" for why, names in problems.items()
        )
    except BrokerError as failure:
        trouble = str(failure)
    if trouble:
        todo = "give the brokers' security settings: --kafka-property, or [kafka] in the file of --config"
        yield warning(check, f"the groups in the brokers' own coordinator could not be listed: {trouble}", todo)
    strangers = {group: [one for one in found.members if one not in _FENCES] for group, found in seen.items()}
    both = {group: len(them) for group, them in strangers.items() if them}
    for group, members in list(both.items())[:20]:
        where = f"has {counted(members, 'member')} in the brokers' own coordinator"
        what = f"group {group} {where}, but is {kinds[group]} here"
        todo = "stop the clients whose bootstrap.servers lists brokers, and restart them with the instances' addresses"
        yield error(check, what, todo)
    if len(both) > 20:
        yield error(check, f"{len(both) - 20} more groups exist in both coordinators", "as above")
    if not both and not trouble:
        counts = Counter(kinds.values())
        count = f"{' and '.join(f'{counts[kind]} {kind}' for kind in COORDINATED)} groups"
        yield ok(check, f"none of {count} here has members in the brokers' own coordinator")


def _own_coordinator(listeners: Sequence[Listener], properties: Mapping[str, str]) -> KafkaOffsetStore:
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    addresses = [one.address for one in listeners if one.protocol == protocol]
    if not addresses:
        raise BrokerError(f"no {protocol} listener leads directly to a broker")
    return KafkaOffsetStore("the brokers", ",".join(addresses), properties, _ASKING_S)


def _is_same(one: str, other: str) -> bool:
    """Returns whether two ``host:port`` strings resolve to the same address on this host."""
    if one == other:
        return True
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    return port == other_port and bool(_resolved(host) & _resolved(other_host))


def _resolved(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), None)}
    except (OSError, UnicodeError):
        return set()
