"""A group as a request finds it: one protocol for every kind of group.

:meth:`~kafka_coord.frontends.kafka.groups.Groups.find` finds a group, and one class for each kind carries requests out.
Requests and their outcomes are values. A request that a group refuses raises :class:`GroupError`; the handler of each
API turns that into its response.
"""

from __future__ import annotations

import asyncio
import typing
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import Join, Joined, Synced
from kafka_coord.frontends.kafka.managed.heartbeats import HeartbeatAnswer
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.grouplog.manager import Offsets

if TYPE_CHECKING:
    from kafka_coord.frontends.kafka.calls import Caller
    from kafka_coord.frontends.kafka.managed.views import GroupView

T = TypeVar("T")
Partition = tuple[str, int]
PartitionErrors = Mapping[Partition, Error]
"""The errors of the partitions that a request could not be carried out for."""


async def at_once(works: Iterable[Coroutine[Any, Any, T]]) -> Sequence[T]:
    """Does all works at the same time, and returns their results in order. One alone needs no task of its own."""
    listed = list(works)
    return [await listed[0]] if len(listed) == 1 else await asyncio.gather(*listed)


@contextmanager
def marked(marks: Counter[str], name: str) -> Iterator[None]:
    """Marks a name until the end of the block. If blocks overlap, it stays marked until the last one ends."""
    marks[name] += 1
    try:
        yield
    finally:
        marks[name] -= 1
        if not marks[name]:
            del marks[name]


class GroupError(Exception):
    """A request is refused with Kafka's ``error``, and with ``message`` if its response has room for one."""

    def __init__(self, error: Error, message: str | None = None) -> None:
        super().__init__(error.name, message)
        self.error, self.message = error, message


class Loading(GroupError):
    """The group, or what it is converted to, is being loaded. Only ``find`` raises it."""

    def __init__(self) -> None:
        super().__init__(Error.COORDINATOR_LOAD_IN_PROGRESS)


class KindChanged(Exception):
    """The group was converted while the request waited: it must be found again."""


def refuse(error: Error) -> None:
    """Raises the error, unless it is NONE."""
    if error is not Error.NONE:
        raise GroupError(error)


class Why(NamedTuple):
    """Why a request looks for a group. If ``waits`` is set, it waits while the group moves; if ``vouched`` is set, it
    may be answered from memory without any other proof; if ``creates`` is set, the group exists from then on. A client
    that joins may convert the group: the history then records ``newcomer``. A classic one says its
    ``protocol_type``."""

    waits: bool = False
    vouched: bool = False
    creates: bool = False
    newcomer: str = ""
    protocol_type: str | None = None
    is_kip_848: bool = False


LOOKS = Why()
COMMITS = Why(creates=True)
DELETES = Why(vouched=True)
TAKES_PART = Why(waits=True, vouched=True)
BEATS = TAKES_PART._replace(is_kip_848=True)
JOINS_BY_BEAT = BEATS._replace(creates=True, newcomer="a KIP-848 client is joining")
JOINS = TAKES_PART._replace(creates=True, newcomer="a classic client is joining")


class By(typing.Protocol):
    """Who sent a request."""

    @property
    def client(self) -> Caller: ...

    @property
    def client_id(self) -> str: ...

    @property
    def sender(self) -> str:
        """Principal, client id and address."""


class Who(NamedTuple):
    """A member, as its client names it."""

    member_id: str
    instance_id: str | None
    generation_id: int = -1
    """In KIP-848, the member epoch."""


class Assignments(NamedTuple):
    """What a SyncGroup says besides the member. ``of_members`` is the leader's assignments by member id."""

    protocol_type: str | None
    protocol_name: str | None
    of_members: Mapping[str, bytes]


class ConsumerBeat(NamedTuple):
    """A KIP-848 heartbeat. The parts of ``topics``, and ``owned``, are ``None`` if they have not changed. ``owned`` is
    by topic id. ``software`` is empty if the heartbeat must not be held. If it ``is_new``, the member id was generated
    for it, which clients of version 0 expect."""

    who: Who
    topics: ManagedTopics
    owned: frozenset[tuple[bytes, int]] | None
    assignor: str | None
    rack: str | None
    rebalance_timeout_ms: int
    software: str
    is_new: bool = False


class Commit(NamedTuple):
    """The offsets of a commit. ``topic_ids`` are the present identities of their topics, as far as they are known. If
    ``knows_epochs`` is not set, the request is older than the errors for KIP-848 members."""

    who: Who
    offsets: Offsets
    topic_ids: Mapping[str, str]
    knows_epochs: bool = True

    @property
    def is_members(self) -> bool:
        """Whether a member sends it. A tool, or a consumer that assigns its own partitions, is none."""
        return self.who.generation_id >= 0 or bool(self.who.member_id)


class Fetched(NamedTuple):
    """Stored offsets, and the partitions whose offset cannot be read: nobody may take it for missing."""

    offsets: Offsets
    damaged: frozenset[Partition] = frozenset()


NOTHING_FETCHED = Fetched({})

_MOST_METADATA_BYTES = (1 << 15) - 1
"""The size of the longest string in an OffsetFetch response before version 6, whatever the broker's setting allows."""


def take_out_large(offsets: Offsets, most_chars: int) -> dict[Partition, Error]:
    """Removes the offsets whose metadata is too large and returns their errors."""
    large = [
        where
        for where, one in offsets.items()
        if one.metadata and (len(one.metadata) > most_chars or len(one.metadata.encode()) > _MOST_METADATA_BYTES)
    ]
    for where in large:
        del offsets[where]
    return dict.fromkeys(large, Error.OFFSET_METADATA_TOO_LARGE)


def take_out_negative(offsets: Offsets) -> dict[Partition, Error]:
    """Removes the offsets below 0 and returns their errors. Kafka stores them, but nobody could be told to start
    there."""
    negative = [where for where, one in offsets.items() if one.offset < 0]
    for where in negative:
        del offsets[where]
    return dict.fromkeys(negative, Error.INVALID_REQUEST)


def expires_at_ms(now_ms: int, retention_ms: int) -> int:
    """Returns when an offset expires for which the client asks for a retention, or -1 if it does not ask for one
    (``retention_ms`` < 0). Both are in ms. A time that does not fit in a record becomes the last one that does."""
    return min(now_ms + retention_ms, (1 << 63) - 1) if retention_ms >= 0 else -1


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class Described(NamedTuple):
    """A group, as DescribeGroups shows it. ``once_subscribed`` are the existing topics that the last members of an
    empty group read; only this project's commands are told."""

    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]
    once_subscribed: tuple[str, ...] = ()


class Listed(NamedTuple):
    """One group in the response to ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    type: str


class AnyGroup(typing.Protocol):
    """One group. Each request raises :class:`GroupError`, and :class:`KindChanged` if it has changed nothing and must
    find the group again. ``by`` is who sent it; a request that is held uses its client."""

    name: str

    async def join(self, join: Join, by: By) -> Joined:
        """``join`` has no token."""

    async def sync(self, who: Who, assignments: Assignments, by: By) -> Synced: ...

    async def heartbeat(self, who: Who, software: str, by: By) -> None:
        """``software`` is empty if the heartbeat must not be held."""

    async def leave(self, leaving: Sequence[tuple[str, str | None]], by: By) -> Sequence[Error]:
        """Returns the outcome for each (member id, instance id)."""

    async def consumer_heartbeat(self, beat: ConsumerBeat, by: By) -> HeartbeatAnswer: ...

    async def commit(self, commit: Commit, by: By) -> PartitionErrors: ...

    async def fetch_offsets(self, partitions: Collection[Partition] | None, member: tuple[str, int] | None) -> Fetched:
        """Returns the stored offsets of the partitions, or all of them for ``None``. ``member`` is the member id and
        the epoch, if the client sent them."""

    async def delete_offsets(self, partitions: Sequence[Partition], by: By) -> PartitionErrors: ...

    async def describe(self) -> Described: ...

    async def describe_consumers(self) -> GroupView:
        """Returns the group, as ConsumerGroupDescribe shows it."""

    async def delete(self, by: By) -> None: ...
