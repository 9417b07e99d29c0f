"""Turns requests from classic clients about managed groups into member requests and returns the responses."""

from __future__ import annotations

import asyncio
import logging
import uuid
from functools import partial
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import NO_MEMBER, Joined, Left, Synced
from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.classic_groups.metadata import CONSUMER
from kafka_coord.frontends.kafka.calls import Call
from kafka_coord.frontends.kafka.managed.classic import (
    ASSIGNORS,
    COOPERATIVE,
    PROTOCOL,
    Beat,
    ClassicJoin,
    ClassicLeave,
    ClassicSync,
)
from kafka_coord.frontends.kafka.managed.members import consumer_name, fresh_member_id
from kafka_coord.frontends.kafka.managed.registration import registration
from kafka_coord.frontends.kafka.managed.terms import ManagedTerms
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.frontends.members.registering import Refusal
from kafka_coord.model import Member, TopicPartition
from kafka_coord.model.names import is_legal
from kafka_coord.wire.consumer_protocol import subscription

log = logging.getLogger(__name__)

_MUST_KNOW_ID = 4
"""The first version of JoinGroup in which a client without a member id is given one and must rejoin with it
(KIP-394)."""


class ClassicRequests:
    """Handles authorized requests from classic clients about managed groups. ``broker_id`` identifies this instance."""

    def __init__(self, terms: ManagedTerms, broker_id: int, limits: GroupLimits) -> None:
        self._terms, self._broker_id, self._limits = terms, broker_id, limits

    async def join(self, call: Call) -> Joined:
        request, limits = call.request, self._limits
        session_ms, instance_id = request.session_timeout_ms, request.group_instance_id
        if not limits.min_session_timeout_s <= session_ms / 1000 <= limits.max_session_timeout_s:
            return Joined(None, Error.INVALID_SESSION_TIMEOUT, request.member_id)
        member_id = request.member_id
        if not member_id:
            member_id = fresh_member_id(call.header.client_id or "", instance_id, str(uuid.uuid4()))
            if call.version >= _MUST_KNOW_ID and instance_id is None:
                return Joined(None, Error.MEMBER_ID_REQUIRED, member_id)
        elif instance_id is None and not is_legal(consumer_name(member_id)):
            return Joined(None, Error.UNKNOWN_MEMBER_ID, NO_MEMBER)  # a broker's longer id: the client asks for another
        join = self._join(call, member_id)
        if isinstance(join, str):
            log.warning(
                "refused a classic client group=%s client=%r address=%s reason=%s",
                *(request.group_id, call.header.client_id, call.client.address, join),
            )
            return Joined(None, Error.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        joined: Joined = await self._terms.take(request.group_id, member_id, join, call.client, call.sender)
        return joined

    def _join(self, call: Call, member_id: str) -> Any:
        """Returns a function that creates a :class:`ClassicJoin` from a token, or the reason why the client cannot
        become a member."""
        request = call.request
        offered = {one.name: one.metadata for one in request.protocols}
        assignor = next((name for name in offered if name in ASSIGNORS), None)
        if request.protocol_type != CONSUMER or assignor is None:
            kind, names = request.protocol_type[:80], ", ".join(sorted(offered))[:200]
            return (
                f"it offers protocols {names!r} of type {kind!r}; a managed group needs type 'consumer' and one of"
                f" {', '.join(ASSIGNORS)}"
            )
        subscribed = subscription(offered[assignor])
        if subscribed is None:
            return f"its subscription for {assignor} cannot be read"
        instance_id = request.group_instance_id
        key = request.group_id, consumer_name(member_id if instance_id is None else instance_id)
        if not is_legal(key[1]):
            return f"{key[1][:80]!r} is not a legal member id in a managed group"
        topics = ManagedTopics(frozenset(filter(is_legal, subscribed.topics)))
        session_ms = request.session_timeout_ms
        rebalance_ms = request.rebalance_timeout_ms if call.version >= 1 else session_ms
        member = Member(
            key[1],
            0,
            topics.subscription(),
            rack=getattr(subscribed, "rack_id", None) or None,
            session_timeout_ms=session_ms,
            rejoin_grace_ms=0 if instance_id is None else session_ms,
            protocol=PROTOCOL,
            rebalance_timeout_ms=max(0, rebalance_ms),
        )
        value = registration(call, self._broker_id, member, member_id)
        if isinstance(value, Refusal):
            return value.message
        owned = frozenset(
            TopicPartition(one.topic, number) for one in subscribed.owned_partitions for number in one.partitions
        )
        return partial(
            ClassicJoin,
            key=key,
            member_id=member_id,
            is_static=instance_id is not None,
            is_new=not request.member_id,
            assignor=assignor,
            topics=topics,
            owned=owned if assignor == COOPERATIVE else frozenset(),
            session_timeout_s=session_ms / 1000,
            rebalance_timeout_s=max(0, rebalance_ms) / 1000,
            registration=value,
            generation=subscribed.generation_id,
        )

    async def sync(self, call: Call) -> Any:
        request = call.request
        if request.protocol_type not in {None, CONSUMER}:
            return Synced(None, Error.INCONSISTENT_GROUP_PROTOCOL)
        who = _who(request.group_id, request.member_id, request.group_instance_id)
        generation, assignor = request.generation_id, request.protocol_name
        return await self._terms.take(
            request.group_id,
            request.member_id,
            lambda token: ClassicSync(token, *who, generation, assignor),
            call.client,
        )

    async def beat(self, call: Call, software: str) -> Error:
        request = call.request
        who = _who(request.group_id, request.member_id, request.group_instance_id)
        answer = await self._terms.take(
            request.group_id,
            request.member_id,
            lambda token: Beat(token, *who, request.generation_id, software),
            call.client,
        )
        error: Error = answer.error
        return error

    async def leave(self, call: Call, leaving: tuple[tuple[str, str | None], ...]) -> Left:
        group = call.request.group_id

        async def leave_one(member_id: str, instance_id: str | None) -> Error:
            who = _who(group, member_id, instance_id)
            if not member_id and instance_id is None:
                return Error.UNKNOWN_MEMBER_ID
            answer = await self._terms.take(
                group, member_id, lambda token: ClassicLeave(token, *who), call.client, call.sender
            )
            error: Error = answer.error
            return error

        errors = await asyncio.gather(*(leave_one(*who) for who in leaving))
        return Left(None, Error.NONE, tuple((*who, error) for who, error in zip(leaving, errors, strict=True)))


def _who(group: str, member_id: str, instance_id: str | None) -> tuple[tuple[str, str], str, bool]:
    """Returns the member's key, its id, and whether it is static."""
    return (group, consumer_name(instance_id or member_id or NO_MEMBER)), member_id, instance_id is not None
