"""Reads groups and offsets from group coordinators (brokers or instances), and commits offsets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kafka_coord.classic_groups.errors import Error, named
from kafka_coord.errors import BrokerError
from kafka_coord.kafka.cluster import ClusterClient
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.kafka.errors import of_group
from kafka_coord.model import TopicPartition
from kafka_coord.monitor.client_groups.changes import by_topic
from kafka_coord.wire.messages import message

T = TypeVar("T")

_AT_ONCE = 100
"""The maximum number of groups to work on at the same time."""
_ANSWER_S = 10.0
_AGAIN_S = 0.2
_API_VERSIONS, _LIST, _FIND, _DESCRIBE, _COMMIT = 0, 1, 1, 1, 3
"""Versions that every broker from 0.11 to 3.9 supports."""
_FETCH, _FETCH_STABLE = 3, 7
"""Version 7 can require stable offsets, so that the broker reports an open transaction instead of stale offsets.
Brokers support it from 2.5 on."""
_OFFSET_FETCH = 9
_PASSING = frozenset(
    {
        Error.COORDINATOR_LOAD_IN_PROGRESS,
        Error.COORDINATOR_NOT_AVAILABLE,
        Error.NOT_COORDINATOR,
        Error.UNSTABLE_OFFSET_COMMIT,
    }
)


@dataclass(frozen=True, slots=True)
class CopyPosition:
    """A committed offset with its metadata."""

    offset: int
    metadata: str = ""


Positions = Mapping[TopicPartition, CopyPosition]


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """A group's members and offsets in one store. ``problem`` says why they could not be read; otherwise it is
    empty."""

    members: tuple[str, ...] = ()
    positions: Positions = field(default_factory=dict)
    problem: str = ""


class _Passing(BrokerError):
    """A temporary failure: a coordinator is moving or loading, or a transaction is open."""


class Coordinators:
    """The group coordinators of a cluster. All methods raise :class:`BrokerError`."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._speak_stable: bool | None = None

    async def metadata(self) -> Any:
        """Describes all topics and brokers."""
        return await self._cluster.metadata()

    async def groups(self) -> list[str]:
        """Lists all groups, sorted by name."""

        async def list_at(broker: Any) -> list[str]:
            response = await self._cluster.to((broker.host, broker.port)).ask(
                "ListGroups", _LIST, message("ListGroupsRequest")(), _ANSWER_S
            )
            if response.error_code:
                raise BrokerError(f"cannot list all groups: broker {broker.node_id}: {named(response.error_code)}")
            return [group.group_id for group in response.groups]

        brokers = (await self._cluster.metadata([])).brokers
        listed = await asyncio.gather(*map(list_at, brokers))
        return sorted({group for groups in listed for group in groups})

    async def each(
        self, groups: Sequence[str], work: Callable[[str], Awaitable[T]], timeout_s: float
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Runs ``work`` for each group. Returns the results and the problems, both by group. While a coordinator is
        moving or loading, or does not answer, retries for up to ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        places = asyncio.Semaphore(_AT_ONCE)
        found: dict[str, T] = {}
        problems: dict[str, str] = {}

        async def one(group: str) -> None:
            async with places:
                while True:
                    try:
                        found[group] = await work(group)
                    except BrokerError as error:
                        if isinstance(error, _Passing) and time.monotonic() < deadline:
                            await asyncio.sleep(_AGAIN_S)
                            continue
                        problems[group] = str(error)
                    return

        await asyncio.gather(*map(one, groups))
        return found, problems

    async def read(self, group: str) -> GroupPositions:
        """Reads a group. A group that does not exist has no members and no positions."""
        coordinator = await self._coordinator(group)
        request = message("DescribeGroupsRequest")(groups=(group,))
        groups = (await self._ask(coordinator, "DescribeGroups", _DESCRIBE, request)).groups
        described = of_group(groups, group)
        _check(described.error_code)
        version = _FETCH_STABLE if await self._can_wait(coordinator) else _FETCH
        request = message("OffsetFetchRequest")(group_id=group, topics=None, require_stable=version == _FETCH_STABLE)
        fetched = await self._ask(coordinator, "OffsetFetch", version, request)
        _check(fetched.error_code)
        positions = {}
        for topic in fetched.topics:
            for part in topic.partitions:
                _check(part.error_code, f"{topic.name}-{part.partition_index}: ")
                if part.committed_offset >= 0:
                    at = TopicPartition(topic.name, part.partition_index)
                    positions[at] = CopyPosition(part.committed_offset, part.metadata or "")
        return GroupPositions(tuple(sorted(member.client_id for member in described.members)), positions)

    async def commit(self, group: str, wanted: Positions) -> None:
        """Commits the ``wanted`` offsets. Kafka allows this only for a group without members."""
        request = by_topic(
            "OffsetCommitRequest",
            group,
            wanted,
            lambda one: {"committed_offset": one.offset, "committed_metadata": one.metadata},
        )
        response = await self._ask(await self._coordinator(group), "OffsetCommit", _COMMIT, request)
        for topic in response.topics:
            for part in topic.partitions:
                _check(part.error_code, f"{topic.name}-{part.partition_index}: ")

    async def _coordinator(self, group: str) -> BrokerConnection:
        found = await self._cluster.ask_any("FindCoordinator", _FIND, message("FindCoordinatorRequest")(key=group))
        _check(found.error_code)
        return self._cluster.to((found.host, found.port))

    async def _can_wait(self, coordinator: BrokerConnection) -> bool:
        if self._speak_stable is None:
            request = message("ApiVersionsRequest")()
            supported = (await self._ask(coordinator, "ApiVersions", _API_VERSIONS, request)).api_keys
            self._speak_stable = any(
                one.api_key == _OFFSET_FETCH and one.max_version >= _FETCH_STABLE for one in supported
            )
        return self._speak_stable

    async def _ask(self, coordinator: BrokerConnection, name: str, version: int, request: Any) -> Any:
        try:
            return await coordinator.ask(name, version, request, _ANSWER_S)
        except BrokerError as error:
            raise _Passing(str(error)) from error


def _check(code: int, where: str = "") -> None:
    if code:
        raise (_Passing if code in _PASSING else BrokerError)(f"{where}{named(code)}")
