"""Coordinates groups of stock Kafka clients, with one handler for each type of request."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import (
    Answered,
    ConnectionLost,
    Event,
    Heartbeat,
    Held,
    Instruction,
    Join,
    Joined,
    Leave,
    Left,
    Released,
    Stored,
    StoreGroup,
    Sync,
    Synced,
    TopicsReplaced,
)
from kafka_coord.classic_groups.machine import Group
from kafka_coord.classic_groups.metadata import CONSUMER, ClassicState, Protocol
from kafka_coord.errors import BrokerError, StoreError
from kafka_coord.frontends.kafka import answers
from kafka_coord.frontends.kafka.access import Operation
from kafka_coord.frontends.kafka.calls import Call, Caller
from kafka_coord.frontends.kafka.group_kinds import GroupKinds
from kafka_coord.frontends.kafka.group_views import GroupViews
from kafka_coord.frontends.kafka.instances import Instances, Node
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN
from kafka_coord.frontends.kafka.managed.members import fresh_member_id
from kafka_coord.frontends.kafka.managed.requests import ManagedGroups, invalid, refused
from kafka_coord.frontends.kafka.routing import LOCAL
from kafka_coord.frontends.kafka.statistics import Statistics
from kafka_coord.frontends.kafka.tool_commits import ToolCommits
from kafka_coord.grouplog.manager import GroupMetadataManager, Offsets, partition_of
from kafka_coord.grouplog.topics import assigned_topics, current_offsets
from kafka_coord.kafka.connection import CLIENT_ID
from kafka_coord.model import CommittedOffset, Request, TopicPartition
from kafka_coord.model.action import offsets_change
from kafka_coord.wire.consumer_protocol import subscribed_topics
from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.frames import answer_frame, read_header
from kafka_coord.wire.messages import message

log = logging.getLogger(__name__)

_GROUP, _TRANSACTION = 0, 1
"""The key types of FindCoordinator."""
_LOADED_WITHIN_S = 5.0
"""How long commits and offset fetches may wait while their group is being loaded, in seconds. They do not fail at once
(ADR 11): librdkafka does not retry failed commits in order, so an older offset could replace a newer one."""
_SYNC_WITH_PROTOCOL = 5
"""The first version of SyncGroup that must name the group's protocol type and protocol."""
WRITTEN_WITHIN_S = 2.0
"""How long a planned stop waits for changes that are being written to the groups log, in seconds."""
_WRITTEN_CHECK_S = 0.005
_FIND_COORDINATOR = 1
"""A version that all brokers since 0.11 support."""


class GroupCoordinator:
    """Answers requests about groups. Use only on the event loop.

    ``manager`` keeps the groups that this instance coordinates, and ``instances`` finds the coordinators of all others.
    If ``holds`` is set, the heartbeats of clients that can wait are held
    (:mod:`~kafka_coord.classic_groups.heartbeat_hold`).
    """

    def __init__(
        self,
        manager: GroupMetadataManager,
        instances: Instances,
        fresh_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        statistics: Statistics | None = None,
        managed: ManagedGroups | None = None,
        *,
        holds: bool = True,
        is_managed_by_name: Callable[[str], bool] = lambda _group_id: False,
        on_elsewhere: Callable[[], None] = lambda: None,
    ) -> None:
        self.holds = holds
        self._manager, self._instances, self._fresh_id = manager, instances, fresh_id
        self._statistics, self._managed = statistics or Statistics(), managed
        self._on_elsewhere = on_elsewhere
        self.kinds = GroupKinds(manager, instances, managed, is_managed_by_name, on_elsewhere)
        views = GroupViews(manager, self.kinds)
        self._tool_commits = ToolCommits()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[str, Callable[[Call], Awaitable[Any]]] = {
            "ConsumerGroupDescribe": views.handle_consumer_group_describe,
            "ConsumerGroupHeartbeat": self.handle_consumer_group_heartbeat,
            "AddOffsetsToTxn": self.handle_add_offsets_to_transaction,
            "DeleteGroups": self.handle_delete_groups,
            "DescribeGroups": views.handle_describe_groups,
            "FindCoordinator": self.handle_find_coordinator,
            "Heartbeat": self.handle_heartbeat,
            "JoinGroup": self.handle_join_group,
            "LeaveGroup": self.handle_leave_group,
            "ListGroups": views.handle_list_groups,
            "OffsetCommit": self.handle_commit_offsets,
            "OffsetDelete": self.handle_delete_offsets,
            "OffsetFetch": self.handle_fetch_offsets,
            "SyncGroup": self.handle_sync_group,
            "TxnOffsetCommit": self.handle_commit_offsets_in_transaction,
        }

    async def answer(self, frame: bytes, client: Caller) -> bytes:
        """Answers a request. Takes and returns whole frames. Raises :class:`BadMessage`, and :class:`OSError` if the
        broker cannot be asked about the client's permissions."""
        name, versions = LOCAL[int.from_bytes(frame[:2], "big")]
        version = int.from_bytes(frame[2:4], "big")
        if version not in versions:
            raise BadMessage(f"{name} version {version} is not supported")
        form = message(f"{name}Request")
        header, at = read_header(frame, flexible=version in form.flexible)
        response = await self._handlers[name](Call(header, form.decode(frame, version, at), client))
        self._statistics.told(name, response)
        return answer_frame(header, message(f"{name}Response"), response)

    # --- permissions -------------------------------------------------------------------------------------------------

    async def _denied(self, call: Call, operation: Operation, group_id: str | None) -> Error:
        """Returns NONE if the client has the permission, else GROUP_AUTHORIZATION_FAILED."""
        denied = group_id is not None and await call.client.access.denied_groups(operation, (group_id,))
        return Error.GROUP_AUTHORIZATION_FAILED if denied else Error.NONE

    async def _may_take_part(self, call: Call) -> Error:
        """Returns NONE if the client may use the group and this instance coordinates it, else the error."""
        group_id = call.request.group_id
        error = await self._denied(call, Operation.READ, group_id)
        if error is Error.NONE and group_id:
            await self.kinds.look_again(group_id)
        error = error or self._available(group_id)
        return error or await self._manager.vouch(group_id)

    async def handle_find_coordinator(self, call: Call) -> Any:
        request = call.request
        keys = request.coordinator_keys if call.version >= 4 else (request.key,)
        if request.key_type == _TRANSACTION:
            results = [(key, *await self._transaction_coordinator(call, key)) for key in keys]
        elif request.key_type == _GROUP:
            denied = await call.client.access.denied_groups(Operation.DESCRIBE, keys)
            failed = Error.GROUP_AUTHORIZATION_FAILED, answers.NOWHERE
            results = [(key, *(failed if key in denied else await self._coordinator_of(key))) for key in keys]
        else:
            results = [(key, Error.INVALID_REQUEST, answers.NOWHERE) for key in keys]
        return answers.coordinators(results, call.version)

    async def _transaction_coordinator(self, call: Call, key: str) -> tuple[int, Node]:
        """Asks the broker, as the client, for the coordinator of a transactional id."""
        request = message("FindCoordinatorRequest")(key=key, key_type=_TRANSACTION)
        response = await call.client.ask_broker("FindCoordinator", _FIND_COORDINATOR, request)
        node = self._instances.node(response.node_id, response.host, response.port)
        if response.error_code or node is None:
            return response.error_code or Error.COORDINATOR_NOT_AVAILABLE, answers.NOWHERE
        return Error.NONE, node

    async def _coordinator_of(self, group_id: str) -> tuple[int, Node]:
        self._on_elsewhere()  # clients ask when their coordinator fails or moves
        try:
            node = await self._instances.coordinator_of(partition_of(group_id))
        except BrokerError as error:
            log.info("could not find a group's coordinator: %s; the client must retry", error)
            node = None
        return (Error.COORDINATOR_NOT_AVAILABLE, answers.NOWHERE) if node is None else (Error.NONE, node)

    # --- membership --------------------------------------------------------------------------------------------------

    async def handle_join_group(self, call: Call) -> Any:
        request = call.request
        error = await self._may_take_part(call)
        outcome: Instruction | None = None
        managed = None
        if error is Error.NONE:
            why, kind = "a classic client is joining", request.protocol_type
            error, managed = await self.kinds.of_newcomer(request.group_id, why, kind)
        if error is Error.NONE and managed is not None:
            outcome = await managed.classic.join(call)
        elif error is Error.NONE:
            error, outcome = await self._ask(
                request.group_id, lambda token: _join(token, call, self._fresh_id()), make=not request.member_id
            )
        if not isinstance(outcome, Joined):
            outcome = Joined(None, error, request.member_id)
        return answers.joined(outcome, call.version)

    async def handle_sync_group(self, call: Call) -> Any:
        request = call.request
        if call.version >= _SYNC_WITH_PROTOCOL and None in {request.protocol_type, request.protocol_name}:
            return answers.synced(Synced(None, Error.INCONSISTENT_GROUP_PROTOCOL))
        error, outcome = await self._may_take_part(call), None
        if error is Error.COORDINATOR_LOAD_IN_PROGRESS:
            error = Error.REBALANCE_IN_PROGRESS  # as in Kafka: the client rejoins instead of giving up
        elif error is Error.NONE and (managed := self.kinds.managed(request.group_id)) is not None:
            outcome = await managed.classic.sync(call)
        elif error is Error.NONE:
            assignments = {one.member_id: one.assignment for one in request.assignments}
            who = request.member_id, request.group_instance_id, request.generation_id
            protocol = request.protocol_type, request.protocol_name
            topic_ids = await self._topic_ids(request.group_id, assignments.values())
            error, outcome = await self._ask(
                request.group_id, lambda token: Sync(token, *who, *protocol, assignments, topic_ids)
            )
        return answers.synced(outcome if isinstance(outcome, Synced) else Synced(None, error))

    async def _topic_ids(self, group_id: str, assignments: Iterable[bytes]) -> dict[str, str]:
        """Returns the identities of the topics in the assignments. A topic that is not seen now is not gone: it has the
        identity that the group's earlier generation was given or, failing that, that this instance saw last. The
        identity of a topic that nobody has ever seen is empty."""
        topics, named = self._manager.topics, sorted(assigned_topics(assignments))
        if named:
            await topics.learn(named, follow=True)
        group = self._manager.group(group_id)
        before = group.metadata.topic_ids if group is not None else {}
        return {topic: topics.identity(topic) or before.get(topic) or topics.last_identity(topic) for topic in named}

    async def handle_heartbeat(self, call: Call) -> Any:
        request = call.request
        error = await self._may_take_part(call)
        if error is Error.COORDINATOR_LOAD_IN_PROGRESS:
            error = Error.NONE  # as in Kafka: the members' timers restart when the group is loaded
        elif error is Error.NONE and (managed := self.kinds.managed(request.group_id)) is not None:
            error = await managed.classic.beat(call, self._software(call))
        elif error is Error.NONE:
            who = request.member_id, request.group_instance_id, request.generation_id
            software = self._software(call)
            error, outcome = await self._ask(
                request.group_id, lambda token: Heartbeat(token, *who, software), client=call.client
            )
            error = outcome.error if isinstance(outcome, Answered) else error
        return message("HeartbeatResponse")(error_code=error)

    def _software(self, call: Call) -> str:
        """Returns the client's software if its heartbeats may be held, else an empty string."""
        return call.client.software if self.holds else ""

    async def handle_leave_group(self, call: Call) -> Any:
        request = call.request
        leaving: tuple[tuple[str, str | None], ...] = ((request.member_id, None),)
        if call.version >= 3:
            leaving = tuple((one.member_id, one.group_instance_id) for one in request.members)
        error = await self._may_take_part(call)
        if error is not Error.NONE:
            return answers.left(Left(None, error), call.version)
        managed = self.kinds.managed(request.group_id)
        if managed is not None:
            return answers.left(await managed.classic.leave(call, leaving), call.version)
        client = call.header.client_id or "", f"/{call.client.host}"
        error, outcome = await self._ask(request.group_id, lambda token: Leave(token, leaving, client, call.sender))
        if error is Error.UNKNOWN_MEMBER_ID:
            outcome = Left(None, Error.NONE, tuple((*who, error) for who in leaving))
        return answers.left(outcome if isinstance(outcome, Left) else Left(None, error), call.version)

    async def handle_consumer_group_heartbeat(self, call: Call) -> Any:
        """Answers a KIP-848 heartbeat. Refuses it if the group has client-assigned members, whose offsets are in the
        groups log, where a managed group would not find them."""
        request = call.request
        error = await self._denied(call, Operation.READ, request.group_id)
        denied = await call.client.access.denied_topics(Operation.DESCRIBE, request.subscribed_topic_names or ())
        if error is Error.NONE and denied:
            error = Error.TOPIC_AUTHORIZATION_FAILED
        reason = None if error else invalid(request, call.version)
        if reason is not None:
            return refused(*reason)
        if error is Error.NONE:
            await self.kinds.look_again(request.group_id)
        error = error or self._available(request.group_id)  # a conversion may have begun since
        error = error or await self._manager.vouch(request.group_id)
        if error is not Error.NONE:
            return refused(error)
        if self._managed is None:
            return refused(Error.UNSUPPORTED_VERSION)
        if self.kinds.has_classic_members(request.group_id):
            words = "the group has members that use the classic protocol; stop them first, or use another group"
            return refused(Error.GROUP_ID_NOT_FOUND, words)
        if request.member_epoch == JOIN:
            error, _ = await self.kinds.of_newcomer(request.group_id, "a KIP-848 client is joining")
            if error is not Error.NONE:
                return refused(error)
        return await self._managed.heartbeat(call, holds=self.holds)

    # --- offsets -----------------------------------------------------------------------------------------------------

    async def handle_commit_offsets(self, call: Call) -> Any:
        """Rejects partitions that do not exist and passes only the others on to the group, as Kafka does."""
        request = call.request
        await self.kinds.wait_until_loaded([request.group_id], _LOADED_WITHIN_S)
        error = await self._denied(call, Operation.READ, request.group_id)
        if error is Error.NONE and not await self._learn(request.topics):
            error = Error.COORDINATOR_NOT_AVAILABLE
        if error is not Error.NONE:
            return answers.per_partition("OffsetCommit", request.topics, error)
        denied = await call.client.access.denied_topics(Operation.READ, {topic.name for topic in request.topics})
        await self._learn_ids(request)
        offsets, errors = self._committed(request, denied)
        if not offsets:
            return answers.per_partition("OffsetCommit", request.topics, Error.NONE, errors)
        error = self.kinds.availability(request.group_id)
        managed = self.kinds.managed(request.group_id)  # after that, because another thread may take the group over
        if managed is not None and error is Error.NONE:
            large = _take_out_large(offsets, self._manager.limits.offset_metadata_chars)
            error, gone = await managed.commit(call, offsets)
            errors |= gone if error else gone | large
            return answers.per_partition("OffsetCommit", request.topics, error, errors)
        if error is Error.NONE:
            error = self._may_commit(request, call.client.number)
            if error is not Error.NONE:  # nothing is written, so nothing else proves that the error is still right
                error = await self._manager.vouch(request.group_id) or error
        if error is Error.NONE:
            error = self._of_its_topics(request, offsets)
        if error is Error.NONE:
            errors |= _take_out_large(offsets, self._manager.limits.offset_metadata_chars)
            is_members = request.generation_id_or_member_epoch >= 0 or bool(request.member_id)
            before = {} if is_members else self._stored(request.group_id, offsets)
            error = await self._manager.store_offsets(request.group_id, offsets)
            if error is Error.NONE and not is_members:
                self._record_commit(call, before, offsets)
        return answers.per_partition("OffsetCommit", request.topics, error, errors)

    def _stored(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the stored offsets of those of the partitions that have one."""
        stored = self._manager.offsets(group_id)
        return {TopicPartition(*where): stored[where].offset for where in partitions if where in stored}

    def _record_commit(self, call: Call, before: Mapping[TopicPartition, int], offsets: Offsets) -> None:
        """Has the cluster's history record a commit that no member sent, if it is a tool's."""
        group_id = call.request.group_id
        group, now = self._manager.group(group_id), self._manager.now(group_id)
        after = {TopicPartition(*where): one.offset for where, one in offsets.items()}
        pairs = [(before.get(tp), offset) for tp, offset in after.items()]
        if group is not None and self._tool_commits.is_news(call.client.number, group.metadata, pairs, now):
            self._record(call, "reset-offsets", group_id, offsets_change(before, after))

    def _record(self, call: Call, kind: str, group_id: str, change: str = "") -> None:
        """Has the cluster's history record what a tool has done to a client-assigned group. This project's own commands
        have that done themselves, with the operator's name and reason."""
        if self._managed is not None and call.header.client_id != CLIENT_ID:
            self._run(self._managed.administration.record(kind, group_id, call.sender, change))

    async def _learn(self, topics: Any) -> bool:
        """Asks the broker about topics whose partitions are unknown. Returns false if the broker cannot be asked."""
        try:
            await self._instances.learn(
                {topic.name: max([part.partition_index for part in topic.partitions], default=-1) for topic in topics}
            )
        except BrokerError as error:
            log.info("could not find out which partitions exist: %s; the client must retry", error)
            return False
        return True

    def _may_commit(self, request: Any, connection: int) -> Error:
        group_id, generation = request.group_id, request.generation_id_or_member_epoch
        group = self._manager.add_group(group_id) if generation < 0 else self._manager.group(group_id)
        if group is None:
            return Error.ILLEGAL_GENERATION
        return group.may_commit(
            request.member_id, request.group_instance_id, generation, self._manager.now(group_id), connection
        )

    def _given(self, request: Any) -> Mapping[str, str]:
        """Returns the identities of the topics that the committing member's generation was given."""
        group = self._manager.group(request.group_id)
        is_member = group is not None and request.generation_id_or_member_epoch >= 0
        return group.metadata.topic_ids if group is not None and is_member else {}

    async def _learn_ids(self, request: Any) -> None:
        """Finds out the identities of the topics for which the generation does not say to which topic the offsets
        belong, and of those whose changes are not noticed yet."""
        if self.kinds.managed(request.group_id) is not None:
            return
        given, topics = self._given(request), self._manager.topics
        names = {topic.name for topic in request.topics}
        if unknown := [name for name in names if not given.get(name)]:
            await topics.learn(unknown)
        if unnoticed := [name for name in names if given.get(name) and not topics.is_followed(name)]:
            await topics.learn(unnoticed, follow=True)

    def _of_its_topics(self, request: Any, offsets: Offsets) -> Error:
        """Returns NONE if all offsets are of the topics that the generation was given. If any of those topics was
        deleted and made anew since, or was never seen until now, begins a rebalance, so that all members start on the
        present topic."""
        topics, given, group_id = self._manager.topics, self._given(request), request.group_id
        replaced = sorted({name for name, _ in offsets if name in given and not topics.is_still(name, given[name])})
        group = self._manager.group(group_id)
        if not replaced or group is None:
            return Error.NONE
        log.info("refused a commit for topics that have been made anew group=%s topics=%s", group_id, replaced)
        self._carry_out(group_id, group, group.handle(TopicsReplaced(), self._manager.now(group_id)))
        return Error.REBALANCE_IN_PROGRESS

    def _committed(self, request: Any, denied: frozenset[str]) -> tuple[Offsets, dict[tuple[str, int], Error]]:
        offsets: Offsets = {}
        errors: dict[tuple[str, int], Error] = {}
        now_ms, topics, given = self._manager.now_ms(), self._manager.topics, self._given(request)
        retention_ms = getattr(request, "retention_time_ms", -1)
        expires_at_ms = now_ms + retention_ms if retention_ms >= 0 else -1
        for topic in request.topics:
            name, count = topic.name, self._instances.partitions_of(topic.name)
            topic_id = given.get(name) or topics.identity(name)
            for part in topic.partitions:
                where = name, part.partition_index
                if name in denied:
                    errors[where] = Error.TOPIC_AUTHORIZATION_FAILED
                elif 0 <= part.partition_index < count and not topics.is_gone(name):
                    metadata, epoch = part.committed_metadata or "", part.committed_leader_epoch
                    offsets[where] = CommittedOffset(
                        part.committed_offset, epoch, metadata, now_ms, topic_id, expires_at_ms
                    )
                else:
                    errors[where] = Error.UNKNOWN_TOPIC_OR_PARTITION
        return offsets, errors

    async def handle_fetch_offsets(self, call: Call) -> Any:
        asked = call.request.groups if call.version >= 8 else (call.request,)
        access, offsets_of = call.client.access, self._manager.offsets
        await self.kinds.wait_until_loaded((one.group_id for one in asked), _LOADED_WITHIN_S)
        no_groups = await access.denied_groups(Operation.DESCRIBE, [one.group_id for one in asked])
        visible = []
        for requested in asked:
            group, topics = requested.group_id, requested.topics
            found: tuple[Error, answers.Known] | None = None
            owner, error = self.kinds.managed(group), self.kinds.availability(group)
            if error:  # it remains an error even if the group becomes available, because its offsets are unknown
                found = error, {}
            elif owner is not None and group not in no_groups:
                found = await owner.fetch(requested)
            stored = offsets_of(group) if found is None else found[1]
            names = {topic for topic, _ in stored} if topics is None else {topic.name for topic in topics}
            if found is None and group not in no_groups:
                await self._manager.topics.learn({topic for topic, _ in _requested(stored, topics)})
            hidden = frozenset() if group in no_groups else await access.denied_topics(Operation.DESCRIBE, names)
            visible.append((group, topics, names, hidden, found))
        unproven = await self._manager.prove_all(one.group_id for one in asked)
        fetched = []
        for group, topics, names, hidden, found in visible:
            error = Error.GROUP_AUTHORIZATION_FAILED if group in no_groups else self.kinds.availability(group)
            error = error or unproven.get(group, Error.NONE)
            if found is not None:
                error = error or found[0]
            elif self.kinds.managed(group) is not None:  # it was taken over meanwhile
                error = error or Error.COORDINATOR_LOAD_IN_PROGRESS
            if found is not None:
                stored = found[1]
            else:
                stored = current_offsets(_requested(offsets_of(group), topics), self._manager.topics)
            offsets = {} if error else stored
            if topics is None and hidden:  # topics added since have not been authorized
                offsets = {where: one for where, one in offsets.items() if where[0] in names}
            is_repeated = topics is not None and answers.repeats_offset_fetch(call.client.software, error)
            fetched.append(answers.FetchedGroup(group, topics, error, offsets, hidden, is_repeated))
        return answers.fetched(fetched, call.version)

    async def handle_delete_offsets(self, call: Call) -> Any:
        """Deletes offsets. Rejects partitions that do not exist and topics that members subscribe to."""
        request, group_id = call.request, call.request.group_id
        denied = await call.client.access.denied_topics(Operation.READ, {topic.name for topic in request.topics})
        error, group = await self._may_delete(call, group_id), self._manager.group(group_id)
        if not group_id and error is not Error.GROUP_AUTHORIZATION_FAILED:
            error = Error.INVALID_GROUP_ID
        managed = self.kinds.managed(group_id)
        subscribed: frozenset[str] = frozenset()
        if error is Error.NONE and group is not None and group.metadata.state is not ClassicState.EMPTY:
            metadata = group.metadata
            if metadata.protocol_type != CONSUMER:
                error = Error.NON_EMPTY_GROUP
            subscribed = subscribed_topics(one.metadata(metadata.protocol_name) for one in metadata.members.values())
        if error is Error.NONE and managed is not None:
            try:
                names = {topic.name for topic in request.topics}
                subscribed = await managed.administration.subscribed(group_id, names)
            except StoreError as failed:
                log.warning("cannot read the members of group=%s: %s", group_id, failed)
                error = Error.COORDINATOR_NOT_AVAILABLE
        if error is Error.NONE and not await self._learn(request.topics):
            error = Error.COORDINATOR_NOT_AVAILABLE
        if error is not Error.NONE:
            return message("OffsetDeleteResponse")(error_code=error)
        asked = [(topic.name, part.partition_index) for topic in request.topics for part in topic.partitions]
        errors = {where: error for where in asked if (error := self._undeletable(*where, denied, subscribed))}
        if managed is not None:
            partitions = [TopicPartition(*where) for where in asked if where not in errors]
            error = (
                await managed.administration.delete_offsets(
                    group_id, partitions, call.sender, await managed.offsets_before(group_id)
                )
                if partitions
                else Error.NONE
            )
            return answers.per_partition("OffsetDelete", request.topics, error, errors)
        before = self._stored(group_id, [where for where in asked if where not in errors])
        deleted = await self._manager.delete_offsets(group_id, [where for where in asked if where not in errors])
        if deleted is Error.NONE and before:
            self._record(call, "delete-offsets", group_id, offsets_change(before, dict.fromkeys(before)))
        if deleted is Error.NONE and not self._manager.has_offsets(group_id):
            await self._delete(call, group_id)
        return answers.per_partition("OffsetDelete", request.topics, deleted, errors)

    def _undeletable(self, topic: str, partition: int, denied: frozenset[str], subscribed: frozenset[str]) -> Error:
        if topic in denied:
            return Error.TOPIC_AUTHORIZATION_FAILED
        if not 0 <= partition < self._instances.partitions_of(topic):
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        return Error.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed else Error.NONE

    async def handle_add_offsets_to_transaction(self, call: Call) -> Any:
        """Refuses the request, because offsets in transactions are not supported. At this point, nothing in the
        transaction has taken effect."""
        log.warning(
            "refused to add offsets to a transaction (not supported) group=%s address=%s",
            call.request.group_id,
            call.client.host,
        )
        return message("AddOffsetsToTxnResponse")(error_code=Error.UNSUPPORTED_VERSION)

    async def handle_commit_offsets_in_transaction(self, call: Call) -> Any:
        """Refuses offsets in a transaction, as :meth:`handle_add_offsets_to_transaction` does."""
        return answers.per_partition("TxnOffsetCommit", call.request.topics, Error.UNSUPPORTED_VERSION)

    # --- deleting and converting groups ------------------------------------------------------------------------------

    async def handle_delete_groups(self, call: Call) -> Any:
        groups = call.request.groups_names
        form = message("DeleteGroupsResponse")
        one = form.struct("DeletableGroupResult")
        results = [
            one(group_id=name, error_code=await self._may_delete(call, name) or await self._delete(call, name))
            for name in groups
        ]
        return form(results=results)

    async def _may_delete(self, call: Call, group_id: str) -> Error:
        """Returns NONE if the client may delete the group and the group exists, else the error."""
        error = await self._denied(call, Operation.DELETE, group_id) or await self._manager.vouch(group_id)
        return error or self._existing(group_id)[0]

    async def _delete(self, call: Call, group_id: str) -> Error:
        error, group = self._existing(group_id)
        managed = self.kinds.managed(group_id)
        if error is Error.NONE and managed is not None:
            return await managed.administration.delete(group_id, call.sender)
        if error is not Error.NONE or group is None:
            return error
        if group.metadata.state is not ClassicState.EMPTY:
            return Error.NON_EMPTY_GROUP
        error = await self._manager.delete_group(group_id)
        if error is Error.NONE:
            self._record(call, "delete-group", group_id)
            self._carry_out(group_id, group, group.end(Error.COORDINATOR_NOT_AVAILABLE))
        else:
            self._set_timer(group_id, group)
        return error

    def convert(self, asked: Request) -> None:
        """Starts carrying out an operator's request to convert a group, and answers it when done."""
        self._run(self._convert(asked))

    async def end_in_both(self) -> None:
        """Ends the client-assigned groups that also have members in ZooKeeper. Their clients rejoin and become members
        of the managed group. Raises :class:`StoreError`."""
        for group_id in await self.kinds.in_both():
            group = self._manager.group(group_id)
            members = tuple((name, None) for name in group.metadata.members) if group is not None else ()
            log.warning(
                "moving client-assigned members to the managed group of the same name group=%s members=%d",
                group_id,
                len(members),
            )
            await self._ask(group_id, partial(Leave, leaving=members))

    async def _convert(self, asked: Request) -> None:
        term = self._manager.terms.get(partition_of(asked.group))
        if term is None or self._managed is None:
            return
        outcome = await self.kinds.convert(asked)
        if outcome is not None:
            await self._managed.administration.answer_conversion(asked, term.term, outcome.result, outcome.message)

    # --- group events and timers -------------------------------------------------------------------------------------

    def _available(self, group_id: str | None) -> Error:
        return self.kinds.availability(group_id) if group_id else Error.INVALID_GROUP_ID

    def _existing(self, group_id: str) -> tuple[Error, Group | None]:
        error, group = self.kinds.availability(group_id), self._manager.group(group_id)
        gone = group is None or group.metadata.state is ClassicState.DEAD
        gone = gone and self.kinds.managed(group_id) is None
        return (Error.GROUP_ID_NOT_FOUND if error is Error.NONE and gone else error), group

    async def _ask(
        self, group_id: str, event: Callable[[object], Event], *, make: bool = False, client: Caller | None = None
    ) -> tuple[Error, Instruction | None]:
        """Returns the response to an event. Returns the error UNKNOWN_MEMBER_ID instead if the group does not exist and
        must not be created, and another error if the response cannot be proven to be right. If the request may be held,
        ``client`` is its sender."""
        group = self._manager.add_group(group_id) if make else self._manager.group(group_id)
        if group is None:
            return Error.NOT_COORDINATOR if make else Error.UNKNOWN_MEMBER_ID, None
        answer: asyncio.Future[Instruction] = asyncio.get_running_loop().create_future()
        instructions = group.handle(event(answer), self._manager.now(group_id))
        self._carry_out(group_id, group, instructions)
        held = next((one for one in instructions if isinstance(one, Held)), None)
        if held is not None and client is not None:
            found = await self._held(group_id, group, held, answer, client)
        else:
            found = await answer
        error = await self._manager.vouch(group_id)  # the request may have been held for long
        return error, found if error is Error.NONE else None

    async def _held(
        self, group_id: str, group: Group, held: Held, answer: asyncio.Future[Instruction], client: Caller
    ) -> Instruction:
        def end(event: Event) -> None:
            self._carry_out(group_id, group, group.handle(event, self._manager.now(group_id)))

        released = Released(held.token, held.member_id)
        timer = asyncio.get_running_loop().call_later(held.limit_s, end, released)
        try:
            client.holding(lambda: end(replace(released, by_client=True)))
            return await answer
        except asyncio.CancelledError:
            end(ConnectionLost(frozenset({held.token}), by_client=client.has_closed))
            raise
        finally:
            timer.cancel()
            client.holding(None)

    def _carry_out(self, group_id: str, group: Group, instructions: Sequence[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, StoreGroup):
                self._run(self._store(group_id, group, one))
            elif not isinstance(one, Held) and isinstance(one.token, asyncio.Future) and not one.token.done():
                one.token.set_result(one)
        # on their own, Answered and Held can only postpone the next timer
        if len(instructions) != 1 or not isinstance(instructions[0], Answered | Held):
            self._set_timer(group_id, group)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _store(self, group_id: str, group: Group, store: StoreGroup) -> None:
        group.metadata.state_since_ms = self._manager.now_ms()
        error = await self._manager.store_group(group.metadata, store.assignments, store.topic_ids)
        self._carry_out(group_id, group, group.handle(Stored(store, error), self._manager.now(group_id)))

    def _set_timer(self, group_id: str, group: Group) -> None:
        """Sets the group's timer, unless the current one fires early enough. If it fires too early, it is simply set
        again, which is cheap."""
        before, due = self._timers.get(group_id), self._manager.monotonic(group_id, group.due)
        if (before is not None and before.when() <= due) or self._manager.group(group_id) is not group:
            return
        if before is not None:
            before.cancel()
        if due != math.inf:
            self._timers[group_id] = asyncio.get_running_loop().call_at(due, self._tick, group_id)

    def _tick(self, group_id: str) -> None:
        del self._timers[group_id]
        group = self._manager.group(group_id)
        if group is not None:
            self._carry_out(group_id, group, group.tick(self._manager.now(group_id)))

    def begin_partition(self, partition: int) -> None:
        """Starts the timers of the partition's groups, which must have been loaded."""
        for group_id, group in self._groups_of(partition):
            self._set_timer(group_id, group)

    def end_partition(self, partition: int) -> None:
        """Answers the held requests about the partition's groups, so that the clients find the new coordinator."""
        for group_id, group in self._groups_of(partition):
            self._carry_out(group_id, group, group.end(Error.NOT_COORDINATOR))

    def _groups_of(self, partition: int) -> list[tuple[str, Group]]:
        return list(self._manager.groups_of(partition).items())

    async def stop(self) -> None:
        """Stops coordinating, as planned: answers new requests with NOT_COORDINATOR, lets what is being written to the
        groups log finish within :data:`WRITTEN_WITHIN_S`, and then ends all terms, which answers the requests that are
        held or wait for a rebalance."""
        self._instances.is_stopping = True
        late = _now() + WRITTEN_WITHIN_S
        while (self._manager.is_writing() or self._tasks) and _now() < late:
            await asyncio.sleep(_WRITTEN_CHECK_S)
        self._manager.close()

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _requested(stored: answers.Known, topics: Any) -> answers.Known:
    """Returns the stored offsets that an OffsetFetch requests: those of ``topics``, or all of them if it is
    ``None``."""
    if topics is None:
        return stored
    wanted = ((topic.name, number) for topic in topics for number in topic.partition_indexes)
    return {where: stored[where] for where in wanted if where in stored}


def _take_out_large(offsets: Offsets, most_chars: int) -> dict[tuple[str, int], Error]:
    """Removes the offsets whose metadata is too large and returns their errors."""
    large = [where for where, one in offsets.items() if len(one.metadata) > most_chars]
    for where in large:
        del offsets[where]
    return dict.fromkeys(large, Error.OFFSET_METADATA_TOO_LARGE)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _join(token: object, call: Call, fresh_id: str) -> Join:
    request, version = call.request, call.version
    client_id, instance_id = call.header.client_id or "", request.group_instance_id
    rebalance_ms = request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms
    return Join(
        token,
        request.member_id,
        instance_id,
        client_id,
        f"/{call.client.host}",
        request.session_timeout_ms / 1000,
        rebalance_ms / 1000,
        request.protocol_type,
        tuple(Protocol(one.name, one.metadata) for one in request.protocols),
        fresh_id=fresh_member_id(client_id, instance_id, fresh_id),
        must_know_id=version >= 4 and instance_id is None,
        can_skip_assignment=version >= 9,
    )
