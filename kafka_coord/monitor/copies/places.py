"""The places of committed offsets: a Kafka group coordinator (a broker's or an instance's), and ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kafka_coord.errors import BrokerError, RequestRefused, Timeout
from kafka_coord.model import Request, RequestType, TopicPartition
from kafka_coord.monitor.cluster import read_cluster
from kafka_coord.monitor.offsets import read_all_committed
from kafka_coord.monitor.requests import ask
from kafka_coord.monitor.snapshot import read_groups
from kafka_coord.zk.store import Store

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_AT_ONCE = 100
"""The number of groups that are requested at the same time."""
_ANSWER_S = 10.0
_AGAIN_S = 0.2
_IN_ONE_REQUEST = 2_000
"""Partitions in one request for a managed group, because the coordinator writes each request as one multi."""


@dataclass(frozen=True, slots=True)
class Position:
    """A committed offset with its metadata."""

    offset: int
    metadata: str = ""


Positions = Mapping[TopicPartition, Position]


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """A group in one place. ``problem`` says why it could not be read; otherwise it is ""."""

    members: tuple[str, ...] = ()
    positions: Positions = field(default_factory=dict)
    problem: str = ""


class Place(Protocol):
    """One of the two ends of a copy."""

    name: str

    def groups(self) -> list[str]:
        """Lists all groups. Raises :class:`BrokerError` if it cannot list them all."""

    def read(self, groups: Sequence[str]) -> dict[str, GroupPositions]:
        """Reads each of the groups. A group that does not exist has no members and no positions."""

    def write(self, wanted: Mapping[str, Positions]) -> dict[str, str]:
        """Commits these offsets. Returns problems by group."""


class KafkaPlace:
    """A place reached over Kafka's protocol. ``bootstrap`` decides whose groups: the brokers' or the instances'."""

    def __init__(self, name: str, bootstrap: str, properties: Mapping[str, str], timeout_s: float) -> None:
        from confluent_kafka.admin import AdminClient

        self.name, self._timeout_s = name, timeout_s
        config = {"client.id": "kafka-coord", "log_level": 0, **properties, "bootstrap.servers": bootstrap}
        try:
            self._admin: AdminClient = AdminClient(config)
        except Exception as error:
            raise BrokerError(f"librdkafka refuses the settings of the connection to {name}: {error}") from error

    def groups(self) -> list[str]:
        from confluent_kafka import KafkaException

        try:
            listed: Any = self._admin.list_consumer_groups(request_timeout=_ANSWER_S).result(_ANSWER_S * 2)
        except (KafkaException, TimeoutError) as error:
            raise BrokerError(f"{self.name}: groups cannot be listed: {_told(error)}") from error
        if listed.errors:
            raise BrokerError(f"{self.name}: not all groups can be listed: {_told(listed.errors[0])}")
        return sorted(one.group_id for one in listed.valid)

    def partitions(self) -> set[TopicPartition]:
        """All partitions of all topics."""
        topics = self._metadata().topics.values()
        return {TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions}

    def addresses(self) -> list[str]:
        """The addresses to which it sends its clients."""
        return [f"{broker.host}:{broker.port}" for broker in self._metadata().brokers.values()]

    def _metadata(self) -> Any:
        from confluent_kafka import KafkaException

        try:
            return self._admin.list_topics(timeout=_ANSWER_S)
        except KafkaException as error:
            raise BrokerError(f"{self.name}: topics cannot be listed: {_told(error)}") from error

    def read(self, groups: Sequence[str]) -> dict[str, GroupPositions]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        def describe(some: Sequence[str]) -> Mapping[str, Future[Any]]:
            asked: Mapping[str, Future[Any]] = self._admin.describe_consumer_groups(
                list(some), request_timeout=_ANSWER_S
            )
            return asked

        def fetch(some: Sequence[str]) -> Mapping[str, Future[Any]]:
            # librdkafka takes one group per request, but allows many requests at once.
            return {
                group: self._admin.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(group)], require_stable=True, request_timeout=_ANSWER_S
                )[group]
                for group in some
            }

        described, problems = self._each(groups, describe)
        fetched, more = self._each(groups, fetch)
        problems |= more
        return {
            group: GroupPositions(
                tuple(sorted(member.client_id for member in described[group].members)) if group in described else (),
                _positions(fetched[group].topic_partitions) if group in fetched else {},
                problems.get(group, ""),
            )
            for group in groups
        }

    def write(self, wanted: Mapping[str, Positions]) -> dict[str, str]:
        from confluent_kafka import ConsumerGroupTopicPartitions
        from confluent_kafka import TopicPartition as Where

        def alter(some: Sequence[str]) -> Mapping[str, Future[Any]]:
            return {
                group: self._admin.alter_consumer_group_offsets(
                    [
                        ConsumerGroupTopicPartitions(
                            group, [Where(*at, one.offset, one.metadata) for at, one in wanted[group].items()]
                        )
                    ],
                    request_timeout=_ANSWER_S,
                )[group]
                for group in some
            }

        written, problems = self._each(list(wanted), alter)
        for group, answer in written.items():
            refused = [one for one in answer.topic_partitions if one.error is not None]
            if refused:
                problems[group] = f"{refused[0].topic}-{refused[0].partition}: {refused[0].error.str()}"
        return problems

    def _each(
        self, groups: Sequence[str], asking: Callable[[Sequence[str]], Mapping[str, Future[Any]]]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Returns answers and problems by group. Asks again, until the time is over, while a coordinator moves or
        loads."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self._timeout_s
        answers: dict[str, Any] = {}
        problems: dict[str, str] = {}
        for at in range(0, len(groups), _AT_ONCE):
            left: Sequence[str] = groups[at : at + _AT_ONCE]
            while left:
                again = []
                for group, future in asking(left).items():
                    try:
                        answers[group] = future.result(_ANSWER_S * 2)
                    except (KafkaException, TimeoutError) as error:
                        if _passes(error) and time.monotonic() < deadline:
                            again.append(group)
                        else:
                            problems[group] = _told(error)
                left = again
                if left:
                    time.sleep(_AGAIN_S)
        return answers, problems


class ZooKeeperPlace:
    """Managed groups. Writes go through the elected coordinator, as with ``groups reset-offsets``."""

    name = "ZooKeeper"

    def __init__(self, store: Store, timeout_s: float, by: str) -> None:
        self._store, self._timeout_s, self._by = store, timeout_s, by

    def groups(self) -> list[str]:
        return sorted(read_cluster(self._store).groups)

    def read(self, groups: Sequence[str]) -> dict[str, GroupPositions]:
        cluster = read_cluster(self._store)
        snapshots = read_groups(self._store, list(groups), cluster)
        committed = read_all_committed(self._store, snapshots, cluster.topics)
        return {
            group: GroupPositions(
                tuple(sorted(snapshots[group].observation.members)),
                {tp: Position(offset) for tp, offset in committed[group].offsets.items()},
                "some of its offsets are unreadable" if committed[group].unreadable else "",
            )
            if group in snapshots
            else GroupPositions()
            for group in groups
        }

    def write(self, wanted: Mapping[str, Positions]) -> dict[str, str]:
        problems = {}
        for group, positions in wanted.items():
            try:
                self._reset(group, [(tp, one.offset) for tp, one in positions.items()])
            except (RequestRefused, Timeout) as error:
                problems[group] = str(error)
        return problems

    def _reset(self, group: str, offsets: Sequence[tuple[TopicPartition, int]]) -> None:
        for at in range(0, len(offsets), _IN_ONE_REQUEST):
            request = Request(
                RequestType.RESET_OFFSETS,
                group=group,
                offsets=dict(offsets[at : at + _IN_ONE_REQUEST]),
                reason="import of the offsets that the brokers keep",
                by=self._by,
            )
            ask(self._store, request, self._timeout_s, lambda _: None)


class OwnPlace:
    """All groups that instances coordinate. If two have one name, the managed group is used."""

    name = "the instances"

    def __init__(self, log: KafkaPlace, managed: ZooKeeperPlace) -> None:
        self._log, self._managed = log, managed

    def groups(self) -> list[str]:
        return sorted({*self._log.groups(), *self._managed.groups()})

    def read(self, groups: Sequence[str]) -> dict[str, GroupPositions]:
        managed, others = self._parted(groups)
        return self._managed.read(managed) | self._log.read(others)

    def write(self, wanted: Mapping[str, Positions]) -> dict[str, str]:
        managed, others = self._parted(wanted)
        problems = self._managed.write({group: wanted[group] for group in managed})
        return problems | self._log.write({group: wanted[group] for group in others})

    def _parted(self, groups: Iterable[str]) -> tuple[list[str], list[str]]:
        known = set(self._managed.groups())
        named = list(groups)
        return [one for one in named if one in known], [one for one in named if one not in known]


def _positions(found: Iterable[Any]) -> dict[TopicPartition, Position]:
    return {
        TopicPartition(one.topic, one.partition): Position(one.offset, one.metadata or "")
        for one in found
        if one.error is None and one.offset >= 0
    }


def _passes(error: Exception) -> bool:
    """Whether the same request may soon succeed."""
    from confluent_kafka import KafkaError

    if not error.args or not isinstance(error.args[0], KafkaError):
        return True
    return error.args[0].retriable() or error.args[0].code() in {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
    }


def _told(error: Exception) -> str:
    from confluent_kafka import KafkaError

    cause = error.args[0] if error.args else None
    return cause.str() if isinstance(cause, KafkaError) else str(error) or "no answer in time"
