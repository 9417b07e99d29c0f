"""The argument of every handler: a request about groups, with the client that sent it; and what its fields mean."""

from __future__ import annotations

import typing
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.access import Access, described
from kafka_coord.frontends.kafka.group import ConsumerBeat, GroupError, Who
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN, LEAVE_FOR_NOW
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.frontends.kafka.managed.views import ASSIGNORS
from kafka_coord.wire.frames import RequestHeader

_WITH_IDS_OF_CLIENTS = 1
"""The first version of ConsumerGroupHeartbeat in which clients generate their own member ids."""


class Caller(typing.Protocol):
    """The client that sent a request."""

    @property
    def number(self) -> int:
        """The number of the client's connection. A later connection to this instance has a higher number."""

    @property
    def host(self) -> str:
        """The client's IP address."""

    @property
    def address(self) -> str:
        """The client's ``host:port``."""

    @property
    def principal(self) -> str:
        """The client's principal, as in Kafka's ACLs. See :mod:`kafka_coord.frontends.kafka.access`."""

    @property
    def software(self) -> str:
        """The client's software name and version, as sent in ApiVersions, or "" if they are unknown."""

    @property
    def has_closed(self) -> bool:
        """Whether the client itself has closed the connection, or died."""

    @property
    def access(self) -> Access:
        """The client's permissions."""

    def holding(self, release: Callable[[], None] | None) -> None:
        """Reports that the client's request is held. ``release`` is called as soon as the client sends its next
        request, perhaps immediately. If ``release`` is ``None``, reports that the request is no longer held."""

    async def ask_broker(self, name: str, version: int, value: Any) -> Any:
        """Sends the broker a request as the client and returns the response. Raises :class:`OSError`."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, with its header and the client that sent it."""

    header: RequestHeader
    request: Any
    client: Caller

    @property
    def version(self) -> int:
        return self.header.version

    @property
    def client_id(self) -> str:
        return self.header.client_id or ""

    @property
    def sender(self) -> str:
        """Who sent the request: principal, client id and address."""
        return described(self.client.principal, self.header.client_id, self.client.address)


def who(request: Any) -> Who:
    return Who(request.member_id, request.group_instance_id, request.generation_id)


def refuse_invalid_beat(request: Any, version: int) -> None:
    """Raises :class:`GroupError` if a ConsumerGroupHeartbeat is invalid under Kafka's general rules."""
    epoch, assignor = request.member_epoch, request.server_assignor
    names, regex = request.subscribed_topic_names, getattr(request, "subscribed_topic_regex", None)
    joins = epoch == JOIN
    rules = (
        (
            not request.member_id and (version >= _WITH_IDS_OF_CLIENTS or not joins),
            "a heartbeat must contain a member id",
        ),
        (
            not request.group_id or request.instance_id == "" or request.rack_id == "",
            "the group id, the instance id and the rack must not be empty",
        ),
        (epoch < LEAVE_FOR_NOW, f"epoch {epoch} is not valid"),
        (
            epoch == LEAVE_FOR_NOW and request.instance_id is None,
            "only a static member may leave temporarily; send its instance id",
        ),
        (joins and request.rebalance_timeout_ms == -1, "a joining member must send its rebalance timeout"),
        (
            joins and (request.topic_partitions is None or request.topic_partitions),
            "a joining member must send an empty list of owned partitions",
        ),
        (joins and names is None and regex is None, "a joining member must send its subscription"),
    )
    for is_broken, words in rules:
        if is_broken:
            raise GroupError(Error.INVALID_REQUEST, words)
    if assignor is not None and assignor not in ASSIGNORS:
        words = f"assignor {assignor[:80]!r} is not one of {', '.join(sorted(ASSIGNORS))}"
        raise GroupError(Error.UNSUPPORTED_ASSIGNOR, words)


def beating(request: Any, software: str) -> ConsumerBeat:
    member_id = request.member_id or (str(uuid.uuid4()) if request.member_epoch == JOIN else "")
    names, regex = request.subscribed_topic_names, getattr(request, "subscribed_topic_regex", None)
    owned = None
    if request.topic_partitions is not None:
        owned = frozenset((one.topic_id, number) for one in request.topic_partitions for number in one.partitions)
    return ConsumerBeat(
        Who(member_id, request.instance_id, request.member_epoch),
        ManagedTopics(None if names is None else frozenset(names), regex),
        owned,
        request.server_assignor,
        request.rack_id,
        request.rebalance_timeout_ms,
        software,
        not request.member_id,
    )


def asking_member(asked: Any) -> tuple[str, int] | None:
    """Returns the member id and the epoch in an OffsetFetch, if its client has sent them."""
    member_id, epoch = getattr(asked, "member_id", None), getattr(asked, "member_epoch", -1)
    return None if member_id is None and epoch < 0 else (member_id or "", epoch)
