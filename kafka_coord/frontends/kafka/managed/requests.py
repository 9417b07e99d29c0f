"""The requests of stock clients about managed groups, and the answers in Kafka's messages."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Mapping
from typing import Any

from kafka_coord.channel.messages import Register
from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import InvalidPattern
from kafka_coord.frontends.kafka.calls import Caller
from kafka_coord.frontends.kafka.managed.administration import Administration
from kafka_coord.frontends.kafka.managed.members import JOIN, Commit, Heartbeat, HeartbeatAnswer, consumer_name
from kafka_coord.frontends.kafka.managed.terms import PROTOCOL, SESSION_TIMEOUT_S, ManagedTerms
from kafka_coord.frontends.kafka.managed.topic_ids import Assigned
from kafka_coord.frontends.kafka.managed.topics import Topics
from kafka_coord.frontends.members.registering import registration_value, too_large
from kafka_coord.grouplog.manager import Offsets
from kafka_coord.grouplog.records import CommittedOffset
from kafka_coord.model import Member, Subscription, TopicPartition
from kafka_coord.model.names import is_legal
from kafka_coord.wire.messages import message

_ASSIGNORS = {"uniform": "sticky", "range": "range"}
"""Maps Kafka's assignors to the closest ones of the engine."""
_SESSION_TIMEOUT_MS = round(SESSION_TIMEOUT_S * 1000)


class ManagedGroups:
    """``broker_id`` is the instance's."""

    def __init__(self, terms: ManagedTerms, administration: Administration, broker_id: int) -> None:
        self._terms, self._broker_id = terms, broker_id
        self.administration, self.names = administration, terms.names
        self.has, self.knows = terms.has, terms.knows

    async def heartbeat(self, request: Any, client_id: str, client: Caller, *, holds: bool) -> Any:
        """Answers a ConsumerGroupHeartbeat of a client that has the right. ``holds``: the answer may be held back."""
        member_id = request.member_id or (str(uuid.uuid4()) if request.member_epoch == JOIN else "")
        consumer = consumer_name(request.instance_id or member_id)
        if not is_legal(request.group_id):
            return refused(Error.INVALID_GROUP_ID, f"a managed group cannot have the name {request.group_id[:80]!r}")
        if not is_legal(consumer):
            return refused(Error.INVALID_REQUEST, f"a member of a managed group cannot have the id {consumer[:80]!r}")
        try:
            topics, assignor = _topics(request), _assignor(request)
        except InvalidPattern as error:
            return refused(Error.INVALID_REGULAR_EXPRESSION, str(error))
        except ValueError as error:
            return refused(Error.UNSUPPORTED_ASSIGNOR, str(error))
        owned = None
        if request.topic_partitions is not None:
            owned = frozenset((one.topic_id, number) for one in request.topic_partitions for number in one.partitions)
        value = b""
        if topics.is_told:
            try:
                wanted = topics.subscription()
            except InvalidPattern as error:
                return refused(Error.INVALID_REQUEST, str(error))
            value = self._registration(request, consumer, member_id, wanted, assignor, client_id, client)
            refusal = too_large(value)
            if refusal is not None:
                return refused(Error.INVALID_REQUEST, refusal.message)
        key = request.group_id, consumer
        answer, assigned = await self._terms.heartbeat(
            request.group_id,
            member_id,
            lambda token: Heartbeat(
                token,
                key,
                member_id,
                request.member_epoch,
                owned,
                topics,
                value,
                is_static=request.instance_id is not None,
                software=client.software if holds else "",
            ),
            client,
        )
        return _heartbeat_answer(answer, member_id, assigned)

    def _registration(
        self,
        request: Any,
        consumer: str,
        member_id: str,
        wanted: Subscription,
        assignor: str | None,
        client_id: str,
        client: Caller,
    ) -> bytes:
        member = Member(
            consumer,
            0,
            wanted,
            assignor=assignor,
            rack=request.rack_id or None,
            session_timeout_ms=_SESSION_TIMEOUT_MS,
            rejoin_grace_ms=_SESSION_TIMEOUT_MS if request.instance_id is not None else 0,
            client=client_id or None,
            host=client.host,
            protocol=PROTOCOL,
            software=client.software or None,
            rebalance_timeout_ms=max(0, request.rebalance_timeout_ms),
        )
        register = Register(request.group_id, member, auto_commit=False, resume_key=member_id)
        now_ms, nonce = time.time_ns() // 1_000_000, secrets.token_hex(8)
        return registration_value(register, self._broker_id, client.address, now_ms, nonce)

    async def commit(self, request: Any, offsets: Offsets) -> tuple[Error, dict[tuple[str, int], Error]]:
        """Commits for a member or for a tool. Returns an error for all partitions, and errors of single ones."""
        values = {TopicPartition(*where): one.offset for where, one in offsets.items()}
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not request.member_id:
            return await self.administration.set_offsets(request.group_id, values), {}
        key = request.group_id, consumer_name(request.group_instance_id or request.member_id)
        found = await self._terms.commit(
            request.group_id, lambda token: Commit(token, key, request.member_id, epoch, values)
        )
        gone = {where: Error.UNKNOWN_TOPIC_OR_PARTITION for where in offsets if where[0] in found.topics}
        return found.error, gone

    async def fetch(self, asked: Any) -> tuple[Error, Mapping[tuple[str, int], CommittedOffset]]:
        """The offsets that an OffsetFetch asks for; of all partitions if it names no topics."""
        wanted = None
        if asked.topics is not None:
            wanted = [TopicPartition(one.name, number) for one in asked.topics for number in one.partition_indexes]
        member_id, epoch = getattr(asked, "member_id", None), getattr(asked, "member_epoch", -1)
        member = (member_id, epoch) if member_id and epoch >= 0 else None
        error, found = await self._terms.fetch(asked.group_id, wanted, member)
        return error, {where: CommittedOffset(offset) for where, offset in found.items() if offset is not None}


def refused(error: Error, words: str | None = None) -> Any:
    return message("ConsumerGroupHeartbeatResponse")(error_code=error, error_message=words)


def _topics(request: Any) -> Topics:
    """Leaves out names that no topic can have. Raises :class:`InvalidPattern`."""
    names, regex = request.subscribed_topic_names, getattr(request, "subscribed_topic_regex", None)
    if regex:
        Topics(regex=regex).subscription()
    return Topics(None if names is None else frozenset(filter(is_legal, names)), regex)


def _assignor(request: Any) -> str | None:
    """The engine's name. Raises :class:`ValueError`."""
    wanted = request.server_assignor
    if not wanted:
        return None
    if wanted not in _ASSIGNORS:
        raise ValueError(f"assignor {wanted[:80]!r} is not one of {', '.join(sorted(_ASSIGNORS))}")
    return _ASSIGNORS[wanted]


def _heartbeat_answer(answer: HeartbeatAnswer, member_id: str, assigned: Assigned | None) -> Any:
    if answer.error is not Error.NONE:
        return refused(answer.error, answer.message)
    form = message("ConsumerGroupHeartbeatResponse")
    assignment = None
    if assigned is not None:
        one = form.struct("TopicPartitions")
        parts = tuple(one(topic_id=topic_id, partitions=numbers) for topic_id, numbers in assigned)
        assignment = form.struct("Assignment")(topic_partitions=parts)
    return form(
        member_id=member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=max(1, round(answer.interval_s * 1000)),
        assignment=assignment,
    )
