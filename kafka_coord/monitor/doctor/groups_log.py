"""Checks the topic that stores client-assigned groups and their offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_coord.classic_groups.errors import named
from kafka_coord.coordinator.plan.reasons import counted, plural
from kafka_coord.grouplog.term import PARTITIONS, TOPIC
from kafka_coord.groups.instances import AskedInstances, InstanceDirectory
from kafka_coord.kafka.cluster import metadata_request
from kafka_coord.kafka.coordinators import Ask
from kafka_coord.kafka.errors import RIGHTS
from kafka_coord.model import Listener
from kafka_coord.model.json_fields import decimal
from kafka_coord.model.partitions import ranges
from kafka_coord.monitor.doctor.findings import Finding, error, ok, warning
from kafka_coord.wire.messages import message

CHECK = "groups log"
_DESCRIBE_CONFIGS, _METADATA, _OF_TOPIC = 1, 4, 2
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
        yield ok(CHECK, f"{TOPIC} has {PARTITIONS} partitions, is compacted, and is replicated correctly")


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
            yield error(CHECK, f"{TOPIC} has {name}={actual}, so {why[name]}", _set(address, name, value))
    compression = topic.settings.get("compression.type", "producer")
    if compression not in {"producer", "uncompressed"}:
        what = f"{TOPIC} has compression.type={compression}, which no instance can load"
        yield error(CHECK, what, _set(address, "compression.type", "producer"))
    fewest = min((replicas for replicas, _ in topic.replicas.values()), default=0)
    needed = min(_MOST_REPLICAS, brokers)
    if topic.replicas and fewest < needed:
        what = f"{TOPIC} has partitions with only {counted(fewest, 'replica')}; {brokers} brokers can hold {needed}"
        todo = f"give each partition {needed} replicas with kafka-reassign-partitions.sh --bootstrap-server {address}"
        yield warning(CHECK, what, todo)
    in_sync = decimal(topic.settings.get("min.insync.replicas", "1"), _MOST_IN_SYNC)
    if fewest >= _MOST_REPLICAS and in_sync is not None and not 2 <= in_sync < fewest:
        what = f"{TOPIC} has min.insync.replicas={in_sync}, so " + (
            "a commit is acknowledged as soon as one broker has it" if in_sync < 2 else "one dead broker stops commits"
        )
        yield warning(CHECK, what, _set(address, "min.insync.replicas", "2"))


def _check_told(topic: Topic) -> Iterator[Finding]:
    """Reports what the broker does not tell. What is unknown is neither good nor bad."""
    if topic.settings_error:
        what = f"the settings of {TOPIC} are unknown: DescribeConfigs is answered with {named(topic.settings_error)}"
        todo = f"give this command's user (--kafka-property) DESCRIBE_CONFIGS on the topic {TOPIC}"
        yield warning(CHECK, what, todo if topic.settings_error in RIGHTS else _ASK_AGAIN)
    elif silent := [name for name in _SETTINGS if name not in topic.settings]:
        yield warning(CHECK, f"the broker does not tell {', '.join(silent)} of {TOPIC}", _ASK_AGAIN)
    if topic.replicas_error:
        what = f"the replicas of {TOPIC} are unknown: Metadata is answered with {named(topic.replicas_error)}"
        todo = f"give this command's user (--kafka-property) DESCRIBE on the topic {TOPIC}"
        yield warning(CHECK, what, todo if topic.replicas_error in RIGHTS else _ASK_AGAIN)


_ASK_AGAIN = f"ask the brokers: kafka-topics.sh --describe --topic {TOPIC}"


def _check_partitions(topic: Topic, directory: InstanceDirectory, address: str) -> Iterator[Finding]:
    missing = [number for number in range(PARTITIONS) if number not in directory.leaders]
    extra = [number for number in directory.leaders if number >= PARTITIONS]
    if missing:
        what = f"{TOPIC} has no {_named(missing)}, so some groups have no coordinator"
        todo = f"kafka-topics.sh --bootstrap-server {address} --alter --topic {TOPIC} --partitions {PARTITIONS}"
        yield error(CHECK, what, todo)
    if extra:
        what = f"{TOPIC} has {len(directory.leaders)} partitions; only the first {PARTITIONS} are used"
        yield warning(CHECK, what, "do nothing: Kafka cannot remove partitions, and the unused partitions stay empty")
    leaderless = [number for number, leader in directory.leaders.items() if leader < 0]
    if leaderless:
        what = f"{TOPIC} has no live leader for {_named(leaderless)}, so some groups have no coordinator"
        yield error(CHECK, what, "start the brokers that hold the replicas")
    behind = [number for number, (replicas, in_sync) in topic.replicas.items() if in_sync < replicas]
    if behind and not leaderless:
        what = f"{TOPIC} has out-of-sync replicas in {_named(behind)}"
        yield warning(CHECK, what, "start the brokers that are down, or wait until they have caught up")


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
