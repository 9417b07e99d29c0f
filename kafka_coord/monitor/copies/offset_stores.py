"""Reads and writes committed offsets through Kafka's protocol (brokers or instances), and in ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from kafka_coord.errors import BrokerError, RequestRefused, Timeout
from kafka_coord.kafka.cluster import ClusterClient
from kafka_coord.model import Request, RequestType, TopicPartition
from kafka_coord.model.action import offsets_change
from kafka_coord.model.sequences import parts
from kafka_coord.monitor.cluster import read_cluster
from kafka_coord.monitor.copies.coordinators import Coordinators, CopyPosition, GroupPositions, Positions
from kafka_coord.monitor.offsets import read_all_committed
from kafka_coord.monitor.operate import record
from kafka_coord.monitor.requests import ask
from kafka_coord.monitor.resetting import IN_ONE_REQUEST
from kafka_coord.monitor.snapshot import read_groups
from kafka_coord.zk.store import Store

T = TypeVar("T")


class OffsetStore(Protocol):
    """The source or the target of a copy."""

    name: str

    def groups(self) -> list[str]:
        """Lists all groups. Raises :class:`BrokerError` if it cannot list them all."""

    def read(self, groups: Sequence[str]) -> dict[str, GroupPositions]:
        """Reads each of the groups. A group that does not exist has no members and no positions."""

    def write(self, wanted: Mapping[str, Positions]) -> dict[str, str]:
        """Commits the ``wanted`` offsets. Returns the problems by group."""


class KafkaOffsetStore:
    """A store that is accessed over Kafka's protocol. ``bootstrap`` lists addresses of brokers or instances.

    Does not use confluent-kafka, which reads beyond the end of an offset's metadata and writes one byte too many.
    """

    def __init__(self, name: str, bootstrap: str, properties: Mapping[str, str], timeout_s: float) -> None:
        self.name, self._timeout_s = name, timeout_s
        self._bootstrap, self._properties = bootstrap, properties

    def groups(self) -> list[str]:
        return self._run(Coordinators.groups)

    def partitions(self) -> set[TopicPartition]:
        """Returns all partitions of all topics."""
        topics = self._run(Coordinators.metadata).topics
        return {TopicPartition(topic.name, one.partition_index) for topic in topics for one in topic.partitions}

    def addresses(self) -> list[str]:
        """Returns the addresses that the brokers or instances advertise to their clients."""
        return [f"{broker.host}:{broker.port}" for broker in self._run(Coordinators.metadata).brokers]

    def read(self, groups: Sequence[str]) -> dict[str, GroupPositions]:
        async def read(coordinators: Coordinators) -> dict[str, GroupPositions]:
            found, problems = await coordinators.each(groups, coordinators.read, self._timeout_s)
            return found | {group: GroupPositions(problem=problem) for group, problem in problems.items()}

        return self._run(read)

    def write(self, wanted: Mapping[str, Positions]) -> dict[str, str]:
        async def write(coordinators: Coordinators) -> dict[str, str]:
            _, problems = await coordinators.each(
                list(wanted), lambda group: coordinators.commit(group, wanted[group]), self._timeout_s
            )
            return problems

        return self._run(write)

    def _run(self, work: Callable[[Coordinators], Awaitable[T]]) -> T:
        """Runs ``work`` and returns its result. Raises :class:`BrokerError` with the name of this store."""

        async def run() -> T:
            cluster = ClusterClient.of(self._bootstrap, self._properties)
            try:
                return await work(Coordinators(cluster))
            finally:
                cluster.close()

        try:
            return asyncio.run(run())
        except BrokerError as error:
            raise BrokerError(f"{self.name}: {error}") from error


class ZooKeeperOffsetStore:
    """The offsets of managed groups. Writes go through the elected coordinator, as with ``groups reset-offsets``."""

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
                {tp: CopyPosition(offset) for tp, offset in committed[group].offsets.items()},
                "some of its offsets are unreadable" if committed[group].unreadable else "",
            )
            if group in snapshots
            else GroupPositions()
            for group in groups
        }

    def write(self, wanted: Mapping[str, Positions]) -> dict[str, str]:
        problems, before = {}, self.read(list(wanted))
        for group, positions in wanted.items():
            try:
                for part in parts([(tp, one.offset) for tp, one in positions.items()], IN_ONE_REQUEST):
                    request = Request(
                        RequestType.RESET_OFFSETS,
                        group=group,
                        offsets=dict(part),
                        reason=_IMPORT,
                        by=self._by,
                        change=offsets_change(_offsets(before[group].positions), dict(part)),
                    )
                    ask(self._store, request, self._timeout_s, lambda _: None)
            except (RequestRefused, Timeout) as error:
                problems[group] = str(error)
        return problems

    def record(self, group: str, before: Positions, after: Positions) -> None:
        """Has the cluster's history record an import into a client-assigned group."""
        change = offsets_change(_offsets(before), _offsets(after))
        record(self._store, "reset-offsets", group, by=self._by, reason=_IMPORT, change=change)


_IMPORT = "import of the brokers' offsets"


def _offsets(positions: Positions) -> dict[TopicPartition, int]:
    return {tp: one.offset for tp, one in positions.items()}


class OwnOffsetStore:
    """The offsets of all groups that instances coordinate. If a managed and a client-assigned group share a name, uses
    the managed group."""

    name = "the instances"

    def __init__(self, log: KafkaOffsetStore, managed: ZooKeeperOffsetStore) -> None:
        self._log, self._managed = log, managed

    def groups(self) -> list[str]:
        return sorted({*self._log.groups(), *self._managed.groups()})

    def read(self, groups: Sequence[str]) -> dict[str, GroupPositions]:
        managed, others = self._parted(groups)
        return self._managed.read(managed) | self._log.read(others)

    def write(self, wanted: Mapping[str, Positions]) -> dict[str, str]:
        managed, others = self._parted(wanted)
        problems = self._managed.write({group: wanted[group] for group in managed})
        before = self._log.read(others)
        of_log = self._log.write({group: wanted[group] for group in others})
        for group in others:
            if group not in of_log:
                self._managed.record(group, before[group].positions, wanted[group])
        return problems | of_log

    def _parted(self, groups: Iterable[str]) -> tuple[list[str], list[str]]:
        known = set(self._managed.groups())
        named = list(groups)
        return [one for one in named if one in known], [one for one in named if one not in known]
