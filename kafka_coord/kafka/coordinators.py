"""Asks the coordinators of groups, brokers or instances, again while a coordinator moves or loads a group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from kafka_coord.classic_groups.errors import MOVING, Error, named
from kafka_coord.errors import BrokerError
from kafka_coord.kafka.cluster import DESCRIBE, Address, ClusterClient, may
from kafka_coord.kafka.connection import NoCommonVersion, Versions, failure
from kafka_coord.model import TopicPartition
from kafka_coord.wire.messages import message

T = TypeVar("T")

_AGAIN_S = 0.2
_AT_ONCE = 100
"""The maximum number of groups to work on at the same time."""
_FIND = 1
"""The version of FindCoordinator. Every broker from 0.11 to 3.9 supports it."""

_METADATA_WITH_RIGHTS = 8
_FETCH_OF_SEVERAL = 8
"""The first version of OffsetFetch that is about several groups."""

Ask = Callable[[str, int | Versions, Any], Awaitable[Any]]
"""Sends a request (name, version, message) and returns the response's message."""
Find = Callable[[str], Awaitable[tuple[int, Address]]]
"""Returns the broker id and the address of a group's coordinator. Raises :class:`BrokerError`."""


class Moving(BrokerError):
    """The group's coordinator is changing, or is still loading the group, or a transaction of the group is open."""


def unless_moving(code: int, where: str = "") -> int:
    """Returns ``code``, or raises :class:`Moving` if it soon passes."""
    if code in MOVING or code == Error.UNSTABLE_OFFSET_COMMIT:
        raise Moving(f"{where}{named(code)}")
    return code


def require_no_error(code: int, what: str = "") -> None:
    """Raises :class:`BrokerError` if ``code`` is an error: :class:`Moving` if it soon passes, otherwise what
    :func:`~kafka_coord.kafka.connection.failure` returns. ``what`` says what failed."""
    if unless_moving(code, f"{what}: " if what else ""):
        raise failure(what, code) if what else BrokerError(named(code))


def told_by(cluster: ClusterClient) -> Find:
    """Returns a look-up of coordinators that asks the brokers."""

    async def find(group: str) -> tuple[int, Address]:
        found = await cluster.ask_any("FindCoordinator", _FIND, message("FindCoordinatorRequest")(key=group))
        require_no_error(found.error_code)
        return found.node_id, (found.host, found.port)

    return find


async def lists_all_groups(ask: Ask) -> bool:
    """Returns whether ListGroups returns all groups to this client. Without DESCRIBE on the cluster, it leaves out
    those that the client may not describe, and does not say so. A broker before 2.3 does not tell; it counts as one
    that returns all."""
    form = message("MetadataRequest")
    try:
        told = await ask("Metadata", _METADATA_WITH_RIGHTS, form(topics=(), include_cluster_authorized_operations=True))
    except NoCommonVersion:
        return True
    return may(DESCRIBE, told.cluster_authorized_operations)


LISTS_A_PART = "this user may not DESCRIBE the cluster, so groups that it may not DESCRIBE are not listed"


class Coordinators:
    """The coordinators that ``find`` finds. ``answer_s`` is the time limit for each response. If ``is_patient``, a
    coordinator that does not answer is looked up and asked again, like one that moves."""

    def __init__(self, cluster: ClusterClient, find: Find, answer_s: float, *, is_patient: bool = False) -> None:
        self._cluster, self._find, self._answer_s, self._is_patient = cluster, find, answer_s, is_patient

    def at(self, address: Address) -> Ask:
        """Returns what asks the coordinator at an address."""
        connection = self._cluster.to(address)

        async def ask(name: str, version: int | Versions, value: Any) -> Any:
            try:
                return await connection.ask(name, version, value, self._answer_s)
            except BrokerError as error:
                raise (Moving(str(error)) if self._is_patient else error) from error

        return ask

    async def ask(self, group: str, conversation: Callable[[Ask], Awaitable[T]], timeout_s: float) -> tuple[int, T]:
        """Runs ``conversation`` with the group's coordinator. Returns the coordinator's broker id and the result. While
        it raises :class:`Moving`, looks up the coordinator again and repeats it, for up to ``timeout_s``. Raises
        :class:`BrokerError`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                broker_id, address = await self._find(group)
                return broker_id, await conversation(self.at(address))
            except Moving:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def each(
        self, groups: Sequence[str], conversation: Callable[[str, Ask], Awaitable[T]], timeout_s: float
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Runs ``conversation`` for each group. Returns the results and the problems, both by group."""
        places = asyncio.Semaphore(_AT_ONCE)
        found: dict[str, T] = {}
        problems: dict[str, str] = {}
        ends = time.monotonic() + timeout_s

        async def one(group: str) -> None:
            async with places:
                try:
                    left_s = max(0.0, ends - time.monotonic())
                    _, found[group] = await self.ask(group, lambda ask: conversation(group, ask), left_s)
                except BrokerError as error:
                    problems[group] = str(error)

        await asyncio.gather(*map(one, groups))
        return found, problems


async def fetch_offsets(
    ask: Ask, groups: Sequence[str], version: int = _FETCH_OF_SEVERAL, *, require_stable: bool = False
) -> Sequence[Any]:
    """Asks for all committed offsets of the groups, and returns the answer about each. A request before version 8 is
    about one group. With ``require_stable`` (from version 7 on), the coordinator reports an open transaction instead of
    stale offsets."""
    form = message("OffsetFetchRequest")
    if version < _FETCH_OF_SEVERAL:
        (group,) = groups
        return [await ask("OffsetFetch", version, form(group_id=group, topics=None, require_stable=require_stable))]
    wanted = tuple(form.struct("OffsetFetchRequestGroup")(group_id=one, topics=None) for one in groups)
    response = await ask("OffsetFetch", version, form(groups=wanted, require_stable=require_stable))
    return list(response.groups)


def refused_offsets(answer: Any) -> tuple[int, str]:
    """Returns the error with which an OffsetFetch of a group was answered as a whole or for a partition, or 0, and
    ``TOPIC-PARTITION`` if it is a partition's."""
    if answer.error_code:
        return answer.error_code, ""
    refused = ((topic.name, part) for topic in answer.topics for part in topic.partitions if part.error_code)
    return next(((part.error_code, f"{name}-{part.partition_index}") for name, part in refused), (0, ""))


def committed_offsets(answer: Any) -> dict[TopicPartition, Any]:
    """Returns what an OffsetFetch's response says of each partition with a committed offset."""
    return {
        TopicPartition(topic.name, part.partition_index): part
        for topic in answer.topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }


def by_topic(
    name: str, group: str, values: Mapping[TopicPartition, T], fields_of: Callable[[T], dict[str, Any]]
) -> Any:
    """Builds a request of type ``name`` that lists partitions by topic. ``fields_of`` returns a partition's other
    fields."""
    form = message(name)
    of_topic, of_partition = form.struct(f"{name}Topic"), form.struct(f"{name}Partition")
    topics: dict[str, list[Any]] = {}
    for (topic, partition), value in values.items():
        topics.setdefault(topic, []).append(of_partition(partition_index=partition, **fields_of(value)))
    named_topics = tuple(of_topic(name=topic, partitions=tuple(parts)) for topic, parts in topics.items())
    return form(group_id=group, topics=named_topics)
