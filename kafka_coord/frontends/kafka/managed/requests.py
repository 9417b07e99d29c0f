"""Handles requests from stock clients about managed groups, and builds the responses as Kafka messages."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.errors import InvalidPattern, StoreError
from kafka_coord.frontends.kafka.calls import Call
from kafka_coord.frontends.kafka.managed.administration import Administration
from kafka_coord.frontends.kafka.managed.classic_requests import ClassicRequests
from kafka_coord.frontends.kafka.managed.heartbeats import (
    JOIN,
    LEAVE_FOR_NOW,
    PROTOCOL,
    ConsumerHeartbeat,
    HeartbeatAnswer,
)
from kafka_coord.frontends.kafka.managed.member import MemberCommit
from kafka_coord.frontends.kafka.managed.members import consumer_name
from kafka_coord.frontends.kafka.managed.registration import registration
from kafka_coord.frontends.kafka.managed.terms import ManagedTerms
from kafka_coord.frontends.kafka.managed.topic_ids import grouped
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.frontends.kafka.managed.views import ASSIGNORS
from kafka_coord.frontends.members.registering import Refusal
from kafka_coord.grouplog.manager import Offsets
from kafka_coord.model import CommittedOffset, Member, TopicPartition
from kafka_coord.model.names import is_legal
from kafka_coord.wire.messages import message

log = logging.getLogger(__name__)

_WITH_IDS_OF_CLIENTS = 1
"""The first version of ConsumerGroupHeartbeat in which clients generate their own member ids."""
_WITH_EPOCHS = 9
"""The first version of OffsetCommit with the errors for KIP-848 members."""


class ManagedGroups:
    """Handles requests about managed groups. ``broker_id`` identifies this instance. ``limits`` apply to classic
    clients."""

    def __init__(
        self, terms: ManagedTerms, administration: Administration, broker_id: int, limits: GroupLimits
    ) -> None:
        self._terms, self._broker_id = terms, broker_id
        self.classic = ClassicRequests(terms, broker_id, limits)
        self.administration, self.groups = administration, terms.groups
        self.knows, self.members = terms.knows, terms.members

    @property
    def _session_timeout_ms(self) -> int:
        return round(self._terms.session_timeout_s * 1000)

    async def heartbeat(self, call: Call, *, holds: bool) -> Any:
        """Answers a valid and authorized ConsumerGroupHeartbeat, which may be held if ``holds`` is set."""
        request, is_static = call.request, call.request.instance_id is not None
        member_id = request.member_id or (str(uuid.uuid4()) if request.member_epoch == JOIN else "")
        consumer = consumer_name(request.instance_id or member_id)
        if not is_legal(request.group_id):
            return refused(Error.INVALID_GROUP_ID, f"{request.group_id[:80]!r} is not a legal name for a managed group")
        if not is_legal(consumer):
            return refused(Error.INVALID_REQUEST, f"{consumer[:80]!r} is not a legal member id in a managed group")
        try:
            topics = _topics(request)
        except InvalidPattern as error:
            return refused(Error.INVALID_REGULAR_EXPRESSION, str(error))
        owned = None
        if request.topic_partitions is not None:
            owned = frozenset((one.topic_id, number) for one in request.topic_partitions for number in one.partitions)
        value = b""
        if topics.is_told:
            try:
                subscription = topics.subscription()
            except InvalidPattern as error:
                return refused(Error.INVALID_REQUEST, str(error))
            member = Member(
                consumer,
                0,
                subscription,
                assignor=None if request.server_assignor is None else ASSIGNORS[request.server_assignor],
                rack=request.rack_id or None,
                session_timeout_ms=self._session_timeout_ms,
                rejoin_grace_ms=self._session_timeout_ms if is_static else 0,
                protocol=PROTOCOL,
                rebalance_timeout_ms=max(0, request.rebalance_timeout_ms),
            )
            written = registration(call, self._broker_id, member, member_id)
            if isinstance(written, Refusal):
                return refused(Error.INVALID_REQUEST, written.message)
            value = written
        group, epoch, software = request.group_id, request.member_epoch, call.client.software if holds else ""
        beat = partial(
            ConsumerHeartbeat,
            key=(group, consumer),
            member_id=member_id,
            epoch=epoch,
            owned=owned,
            topics=topics,
            registration=value,
            is_static=is_static,
            software=software,
        )
        by = call.sender if epoch <= JOIN else ""
        return _heartbeat_answer(await self._terms.take(group, member_id, beat, call.client, by), member_id)

    async def commit(self, call: Call, offsets: Offsets) -> tuple[Error, dict[tuple[str, int], Error]]:
        """Commits ``offsets`` for a member or a tool. Returns an error for the whole commit, and errors for individual
        partitions."""
        request, version, connection = call.request, call.version, call.client.number
        by_partition = {TopicPartition(*where): one for where, one in offsets.items()}
        group, epoch = request.group_id, request.generation_id_or_member_epoch
        if epoch < 0 and not request.member_id:
            return await self._commit_of_tool(group, by_partition, call.sender) if offsets else Error.NONE, {}
        if version < _WITH_EPOCHS:
            protocols = {one.member_id: one.protocol for one in self._terms.heard_of(group)}
            if protocols.get(request.member_id) == PROTOCOL:
                return Error.UNSUPPORTED_VERSION, {}
        key = group, consumer_name(request.group_instance_id or request.member_id)
        values = {tp: one.offset for tp, one in by_partition.items()}
        details = {tp: one for tp, one in by_partition.items() if not one.is_bare}
        committed = await self._terms.commit(
            group, lambda token: MemberCommit(token, key, request.member_id, epoch, connection, values, details)
        )
        gone = {where: Error.UNKNOWN_TOPIC_OR_PARTITION for where in offsets if where[0] in committed.topics}
        return committed.error, gone

    async def _commit_of_tool(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], by: str) -> Error:
        """Commits offsets that no member sent. Refuses them while the group has members, as Kafka does."""
        try:
            members = (await self.administration.registered(group)).protocols
        except StoreError as error:
            log.warning("cannot read the members of group=%s: %s", group, error)
            return Error.COORDINATOR_NOT_AVAILABLE
        if members:
            return Error.UNKNOWN_MEMBER_ID
        before = await self.offsets_before(group)
        return await self.administration.set_offsets(group, offsets, by, before=before)

    async def offsets_before(self, group: str) -> Mapping[TopicPartition, int]:
        """Returns the group's offsets, for the history. Returns none if they cannot be read."""
        _, stored = await self.stored(group)
        return {TopicPartition(*where): one.offset for where, one in stored.items()}

    async def stored(self, group: str) -> tuple[Error, Offsets]:
        """Returns all stored offsets of the group."""
        return await self._terms.fetch(group, None, None)

    async def fetch(self, asked: Any) -> tuple[Error, Offsets]:
        """Returns the offsets that an OffsetFetch requests, or all offsets if it does not name any topics."""
        wanted = None
        if asked.topics is not None:
            wanted = [TopicPartition(one.name, number) for one in asked.topics for number in one.partition_indexes]
        member_id, epoch = getattr(asked, "member_id", None), getattr(asked, "member_epoch", -1)
        member = None if member_id is None and epoch < 0 else (member_id or "", epoch)
        return await self._terms.fetch(asked.group_id, wanted, member)


def invalid(request: Any, version: int) -> tuple[Error, str] | None:
    """Returns why a ConsumerGroupHeartbeat is invalid under Kafka's general rules, or ``None`` if it is valid."""
    epoch, regex = request.member_epoch, getattr(request, "subscribed_topic_regex", None)
    if not request.member_id and (version >= _WITH_IDS_OF_CLIENTS or epoch != JOIN):
        return Error.INVALID_REQUEST, "a heartbeat must contain a member id"
    if not request.group_id or request.instance_id == "" or request.rack_id == "":
        return Error.INVALID_REQUEST, "the group id, the instance id and the rack must not be empty"
    if epoch < LEAVE_FOR_NOW:
        return Error.INVALID_REQUEST, f"epoch {epoch} is not valid"
    if epoch == LEAVE_FOR_NOW and request.instance_id is None:
        return Error.INVALID_REQUEST, "only a static member may leave temporarily; send its instance id"
    if epoch == JOIN and request.rebalance_timeout_ms == -1:
        return Error.INVALID_REQUEST, "a joining member must send its rebalance timeout"
    if epoch == JOIN and (request.topic_partitions is None or request.topic_partitions):
        return Error.INVALID_REQUEST, "a joining member must send an empty list of owned partitions"
    if epoch == JOIN and request.subscribed_topic_names is None and regex is None:
        return Error.INVALID_REQUEST, "a joining member must send its subscription"
    assignor = request.server_assignor
    if assignor is not None and assignor not in ASSIGNORS:
        return Error.UNSUPPORTED_ASSIGNOR, f"assignor {assignor[:80]!r} is not one of {', '.join(sorted(ASSIGNORS))}"
    return None


def refused(error: Error, words: str | None = None) -> Any:
    return message("ConsumerGroupHeartbeatResponse")(error_code=error, error_message=words)


def _topics(request: Any) -> ManagedTopics:
    """Returns the subscription without illegal topic names. Raises :class:`InvalidPattern`."""
    names, regex = request.subscribed_topic_names, getattr(request, "subscribed_topic_regex", None)
    if regex:
        ManagedTopics(regex=regex).subscription()
    return ManagedTopics(None if names is None else frozenset(filter(is_legal, names)), regex)


def _heartbeat_answer(answer: HeartbeatAnswer, member_id: str) -> Any:
    if answer.error is not Error.NONE:
        return refused(answer.error, answer.message)
    form = message("ConsumerGroupHeartbeatResponse")
    assignment = None
    if answer.assignment is not None:
        of_topic = form.struct("TopicPartitions")
        parts = tuple(of_topic(topic_id=topic_id, partitions=numbers) for topic_id, numbers in grouped(answer.ids))
        assignment = form.struct("Assignment")(topic_partitions=parts)
    return form(
        member_id=member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=max(1, round(answer.interval_s * 1000)),
        assignment=assignment,
    )
