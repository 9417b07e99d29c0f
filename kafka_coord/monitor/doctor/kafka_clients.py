"""Checks the setup for stock Kafka clients: listeners, instances, and groups that the brokers also coordinate."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kafka_coord.coordinator.plan.reasons import counted, plural
from kafka_coord.errors import BrokerError, MalformedValue
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.groups.cluster import Reading
from kafka_coord.groups.copies import GroupPositions, KafkaOffsetStore
from kafka_coord.groups.directory import GroupDirectory
from kafka_coord.groups.group import duration, iso_time
from kafka_coord.groups.instances import AskedInstances, InstanceDirectory
from kafka_coord.kafka.coordinators import Ask
from kafka_coord.model import Broker, GroupKind, Listener
from kafka_coord.model import json_fields as fields
from kafka_coord.model.retention import Retention
from kafka_coord.model.sequences import grouped, some
from kafka_coord.monitor.doctor.findings import Finding, error, ok, warning
from kafka_coord.monitor.doctor.groups_log import check_log
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import Brokers, read_brokers
from kafka_coord.zk.retention import read_retention
from kafka_coord.zk.store import GetChildren, GetData, Node, Store

CHECK = "kafka clients"
_METADATA = 4
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
    findings = [*_check_listeners(directory, brokers), *_check_instances(instances, directory)]
    findings += _check_managed_groups(store, directory)
    findings += _check_rights(store)
    findings += _check_retention(store)
    yield from findings
    if not findings:
        yield ok(CHECK, f"{len(directory.addresses)} instances serve Kafka clients, and each broker advertises its own")
    yield from check_log(instances, directory, len(brokers), _bootstrap(directory, brokers))
    yield from _check_native_groups(instances, _bootstrap(directory, brokers), properties)


def _check_listeners(directory: InstanceDirectory, brokers: Sequence[Broker]) -> Iterator[Finding]:
    """Checks that every broker advertises its instance, on a listener with the same name everywhere."""
    names: dict[int, set[str]] = {}
    for broker in brokers:
        number = broker.broker_id
        address = directory.addresses.get(number)
        if address is None:
            what = f"no instance beside broker {number} serves Kafka clients, so its groups have no coordinator"
            todo = f"run kafka-coord serve --broker-id {number} --listen-kafka HOST:PORT --broker-listener HOST:PORT"
            yield error(CHECK, what, todo)
            continue
        names[number] = {one.name for one in broker.listeners if _is_same(one.address, address)}
        if not names[number]:
            shown = ", ".join(one.endpoint for one in broker.listeners)
            what = f"no listener of broker {number} advertises its instance at {address}; it advertises {shown}"
            todo = (
                f"give broker {number} a listener with advertised address {address} and restart it, or start the"
                " instance with --listen-kafka at an advertised address"
            )
            yield error(CHECK, what, todo)
    if names and all(names.values()) and not set.intersection(*names.values()):
        shown = ", ".join(f"{number}: {', '.join(sorted(found))}" for number, found in sorted(names.items()))
        what = f"the brokers advertise their instances on listeners of different names ({shown})"
        yield error(CHECK, what, "give that listener the same name on all brokers, and restart the brokers you changed")


def _check_instances(instances: AskedInstances, directory: InstanceDirectory) -> Iterator[Finding]:
    """Checks that every instance answers and sends clients only to instances."""

    async def names(ask: Ask) -> list[tuple[int, str]]:
        response = await ask("Metadata", _METADATA, message("MetadataRequest")(topics=()))
        return [(node.node_id, f"{node.host}:{node.port}") for node in response.brokers]

    nodes_of, silent = instances.ask_each(directory.addresses, names)
    for one in silent:
        todo = "check that it is running, and that this host can reach its --listen-kafka address; see its log"
        yield error(CHECK, f"instance {one.broker_id} does not answer: {one.reason}", todo)
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
            yield error(CHECK, what, todo)


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
        yield warning(CHECK, f"{what} were not compared: {unread[0].reason}", todo)
    if len(set(patterns.values())) > 1:
        shown = ", ".join(f"{broker}: {pattern or 'none'}" for broker, pattern in sorted(patterns.items()))
        what = f"the instances have different serve.managed_groups ({shown}), so a group's kind depends on its instance"
        yield warning(CHECK, what, "give all instances the same setting, and restart those you changed")


def _check_rights(store: Store) -> Iterator[Finding]:
    """Reports the instances that say that their broker denies them a right on the groups log."""
    reading = Reading(store)
    (listing,) = reading.many([GetChildren(layout.MISSING_RIGHTS)])
    paths = [f"{layout.MISSING_RIGHTS}/{number}" for number in sorted(listing if isinstance(listing, tuple) else ())]
    for path, node in zip(paths, reading.many(map(GetData, paths)), strict=True):
        code = reading.decode(path, node, _error_in)
        if code is not None:
            number = path.rpartition("/")[2]
            what = f"broker {number} denies its instance a right on {TOPIC} ({code}), so its groups cannot commit"
            yield error(CHECK, what, f"give the instance's user READ, WRITE and DESCRIBE on the topic {TOPIC}")
    for unread in reading.unreadable:
        what = f"{unread.path} cannot be read, so it is unknown which right a broker denies its instance"
        todo = "see that instance's log; a restart of the instance writes the znode again if a right is missing"
        yield error(CHECK, f"{what}: {unread.reason}", todo)


def _error_in(where: str, node: Node) -> str:
    return fields.text(fields.load_object(node.data, where), "error", where, "")


def _check_retention(store: Store) -> Iterator[Finding]:
    try:
        yield from check_retention(read_retention(store), round(store.clock.time() * 1000))
    except MalformedValue as failed:
        what = f"{layout.RETENTION} cannot be read, so no offsets expire: {failed}"
        yield error(CHECK, what, "delete the znode; the instances write it again")


def check_retention(found: Retention, now_ms: int) -> Iterator[Finding]:
    """Reports brokers that keep offsets for different times or do not say for how long, and a shorter retention before
    it deletes anything."""
    brokers = {number: one for number, one in sorted(found.brokers.items()) if one.is_current(now_ms)}
    silent = [str(number) for number, one in brokers.items() if not one.is_told]
    if silent:
        what = f"no instance may read the settings of {plural('broker', len(silent))} {', '.join(silent)}, so"
        todo = "give the instance's user DESCRIBE_CONFIGS on the cluster"
        yield warning(CHECK, f"{what} Kafka's defaults apply there", todo)
    if len({one.retention_ms for one in brokers.values()}) > 1:
        shown = ", ".join(f"{number}: {duration(one.retention_ms)}" for number, one in brokers.items())
        what = f"the brokers have different offsets.retention.minutes ({shown}); the longest applies"
        yield warning(CHECK, what, "give all brokers the same setting, and restart those you changed")
    ends_ms = found.since_ms + found.in_force_ms
    if found.since_ms and now_ms < ends_ms:
        what = (
            f"the brokers keep the offsets of unused groups for a shorter time than before: for"
            f" {duration(found.in_force_ms)}, so the first ones expire at {iso_time(ends_ms)}"
        )
        yield warning(CHECK, what, "if that is too short, raise offsets.retention.minutes on a broker before then")


def _bootstrap(directory: InstanceDirectory, brokers: Sequence[Broker]) -> tuple[Listener, ...]:
    """Returns the listeners whose addresses lead to brokers instead of instances."""
    instances = set(directory.addresses.values())
    return tuple(
        one for broker in brokers for one in broker.listeners if not any(_is_same(one.address, at) for at in instances)
    )


def _check_native_groups(
    instances: AskedInstances, listeners: Sequence[Listener], properties: Mapping[str, str]
) -> Iterator[Finding]:
    """Checks that no group coordinated by the instances also has members in the brokers' own coordinator."""
    check = "native groups"
    names, _ = GroupDirectory(instances).names()
    kinds = {group: groups.kind for group, groups in names}  # a managed group comes after another of its name
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
    both = {group: len(found.members) for group, found in seen.items() if found.members}
    for group, members in list(both.items())[:20]:
        where = f"has {counted(members, 'member')} in the brokers' own coordinator"
        what = f"group {group} {where}, but is {kinds[group]} here"
        todo = "stop the clients whose bootstrap.servers lists brokers, and restart them with the instances' addresses"
        yield error(check, what, todo)
    if len(both) > 20:
        yield error(check, f"{len(both) - 20} more groups exist in both coordinators", "as above")
    if not both and not trouble:
        counts = Counter(kinds.values())
        count = f"{' and '.join(f'{counts[kind]} {kind}' for kind in GroupKind)} groups"
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
