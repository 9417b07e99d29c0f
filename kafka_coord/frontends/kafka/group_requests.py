"""Answers the requests of stock Kafka clients about groups, with one handler for each type of request.

A handler checks what the client may do, finds the group, passes the request on to it, and builds the response. It does
not know which kind the group is of.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import Join, Joined, Left, Synced
from kafka_coord.classic_groups.metadata import Protocol
from kafka_coord.errors import BrokerError
from kafka_coord.frontends.kafka import answers
from kafka_coord.frontends.kafka.access import Operation
from kafka_coord.frontends.kafka.calls import (
    Call,
    Caller,
    asking_member,
    beating,
    refuse_invalid_beat,
    who,
)
from kafka_coord.frontends.kafka.client_assigned import ClientAssignedGroups
from kafka_coord.frontends.kafka.clients import Statistics
from kafka_coord.frontends.kafka.conversions import Conversions
from kafka_coord.frontends.kafka.group import (
    BEATS,
    COMMITS,
    DELETES,
    JOINS,
    JOINS_BY_BEAT,
    LOOKS,
    NOTHING_FETCHED,
    TAKES_PART,
    AnyGroup,
    Assignments,
    Commit,
    GroupError,
    KindChanged,
    Loading,
    Partition,
    Who,
    Why,
    at_once,
    expires_at_ms,
    refuse,
)
from kafka_coord.frontends.kafka.groups import Groups
from kafka_coord.frontends.kafka.instances import Instances, Node
from kafka_coord.frontends.kafka.managed.group import ManagedGroups
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN
from kafka_coord.frontends.kafka.managed.members import fresh_member_id
from kafka_coord.frontends.kafka.managed.views import GroupView, described, topics_of
from kafka_coord.frontends.kafka.moving import Moves
from kafka_coord.frontends.kafka.native import KindFinder, Kinds, NativeGroups, PassedOn
from kafka_coord.frontends.kafka.routing import LOCAL
from kafka_coord.grouplog.manager import GroupMetadataManager, Offsets, partition_of
from kafka_coord.kafka.connection import CLIENT_ID
from kafka_coord.model import CommittedOffset
from kafka_coord.model.names import is_legal
from kafka_coord.wire.frames import answer_frame, read_header
from kafka_coord.wire.messages import BadMessage, message

log = logging.getLogger(__name__)

T = TypeVar("T")

_GROUP, _TRANSACTION = 0, 1
"""The key types of FindCoordinator."""
_SYNC_WITH_PROTOCOL = 5
"""The first version of SyncGroup that must name the group's protocol type and protocol."""
_COMMIT_WITH_EPOCHS = 9
"""The first version of OffsetCommit with the errors for KIP-848 members."""
_LIST_WITH_STATES = 4
"""The first version of ListGroups whose responses include the groups' states."""
WRITTEN_WITHIN_S = 2.0
"""How long a planned stop waits for changes that are being written to the groups log, in seconds."""
_WRITTEN_CHECK_S = 0.005


class GroupCoordinator:
    """Answers requests about groups. Use only on the event loop.

    ``manager`` keeps the client-assigned groups that this instance coordinates, ``managed`` serves the managed ones,
    and ``instances`` finds the coordinators of all others. If ``holds`` is set, the heartbeats of clients that can wait
    are held (:mod:`~kafka_coord.classic_groups.heartbeat_hold`).
    """

    def __init__(
        self,
        manager: GroupMetadataManager,
        instances: Instances,
        managed: ManagedGroups,
        fresh_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        statistics: Statistics | None = None,
        *,
        holds: bool = True,
        native: NativeGroups | None = None,
        is_managed_by_name: Callable[[str], bool] = lambda _name: False,
        left_to_brokers: Callable[[str], bool] = lambda _name: False,
        on_elsewhere: Callable[[], None] = lambda: None,
    ) -> None:
        self.holds = holds
        self._manager, self._instances, self._fresh_id = manager, instances, fresh_id
        self._statistics = statistics or Statistics()
        self._on_elsewhere = on_elsewhere
        matches: Callable[[str], bool] = lambda name: is_legal(name) and is_managed_by_name(name)  # noqa: E731
        self.client_assigned = ClientAssignedGroups(manager, managed.administration.record)
        self.native = native or NativeGroups(instances, Kinds())
        self.native.kinds.on_deposed = lambda partition: manager.resign(partition, "a newer term was claimed")
        finder = KindFinder(manager, managed.groups, self.native, matches, left_to_brokers)
        self.groups = Groups(manager, instances, self.client_assigned, managed, self.native, finder, on_elsewhere)
        self.moves = Moves(self.groups, self.client_assigned, managed, self.native, instances)
        kinds = self.native.kinds, finder, self.moves
        self.conversions = Conversions(self.groups, self.client_assigned, managed, *kinds, matches)
        self._handlers: dict[str, Callable[[Call], Awaitable[Any]]] = {
            "ConsumerGroupDescribe": self.handle_consumer_group_describe,
            "ConsumerGroupHeartbeat": self.handle_consumer_group_heartbeat,
            "AddOffsetsToTxn": self.handle_add_offsets_to_transaction,
            "DeleteGroups": self.handle_delete_groups,
            "DescribeGroups": self.handle_describe_groups,
            "FindCoordinator": self.handle_find_coordinator,
            "Heartbeat": self.handle_heartbeat,
            "JoinGroup": self.handle_join_group,
            "LeaveGroup": self.handle_leave_group,
            "ListGroups": self.handle_list_groups,
            "OffsetCommit": self.handle_commit_offsets,
            "OffsetDelete": self.handle_delete_offsets,
            "OffsetFetch": self.handle_fetch_offsets,
            "SyncGroup": self.handle_sync_group,
            "TxnOffsetCommit": self.handle_commit_offsets_in_transaction,
        }

    async def answer(self, frame: bytes, client: Caller) -> bytes | PassedOn:
        """Answers a request, or returns a token if the broker is to answer it. Takes and returns whole frames. Raises
        :class:`BadMessage`, and :class:`OSError` if the broker cannot be asked about the client's permissions."""
        name, versions = LOCAL[int.from_bytes(frame[:2], "big")]
        version = int.from_bytes(frame[2:4], "big")
        if version not in versions:
            raise BadMessage(f"{name} version {version} is not supported")
        form = message(f"{name}Request")
        header, at = read_header(frame, flexible=version in form.flexible)
        call = Call(header, form.decode(frame, version, at), client)
        work = self._handlers[name]
        if self.native.may_concern(name, call):
            if (passed := await self.native.passes(name, call, work)) is not None:
                return passed
            work = partial(self.native.answered, name, ours=work)
        self.client_assigned.tool_commits.asked(name, call)
        try:
            response = await work(call)
        except GroupError as refusal:
            response = _REFUSED[name](call, refusal)
        self._statistics.told(name, response)
        return answer_frame(header, message(f"{name}Response"), response)

    # --- groups ------------------------------------------------------------------------------------------------------

    async def _through(self, name: str, why: Why, work: Callable[[AnyGroup], Awaitable[T]]) -> T:
        """Passes a request on to the group, and again if the group is converted meanwhile."""
        while True:
            group = await self.groups.find(name, why)
            try:
                return await work(group)
            except KindChanged:
                log.debug("a group was converted while a request waited group=%s", name)

    async def _allow(self, call: Call, operation: Operation, name: str, *, may_be_empty: bool = True) -> None:
        if await call.client.access.denied_groups(operation, (name,)):
            raise GroupError(Error.GROUP_AUTHORIZATION_FAILED)
        if not (name or may_be_empty):
            raise GroupError(Error.INVALID_GROUP_ID)

    async def handle_find_coordinator(self, call: Call) -> Any:
        request = call.request
        keys = request.coordinator_keys if call.version >= 4 else (request.key,)
        found = await at_once(self._coordinator_of(call, key, request.key_type) for key in keys)
        return answers.coordinators(((key, *one) for key, one in zip(keys, found, strict=True)), call.version)

    async def _coordinator_of(self, call: Call, group_id: str, key_type: int) -> tuple[int, Node]:
        if key_type == _TRANSACTION:
            return await self.native.coordinator_of(call, group_id, _TRANSACTION)
        if key_type != _GROUP:
            return Error.INVALID_REQUEST, answers.NOWHERE
        await self.native.kinds.wait_known(group_id)
        if self.native.is_meant(call, group_id):
            return await self.native.coordinator_of(call, group_id, _GROUP)
        if await call.client.access.denied_groups(Operation.DESCRIBE, (group_id,)):
            return Error.GROUP_AUTHORIZATION_FAILED, answers.NOWHERE
        self._on_elsewhere()  # clients ask when their coordinator fails or moves
        try:
            node = await self._instances.coordinator_of(partition_of(group_id))
        except BrokerError as error:
            log.info("could not find a group's coordinator: %s; the client must retry", error)
            node = None
        return (Error.COORDINATOR_NOT_AVAILABLE, answers.NOWHERE) if node is None else (Error.NONE, node)

    # --- membership: a group does not change its kind as long as it has members --------------------------------------

    async def handle_join_group(self, call: Call) -> Any:
        request, version, instance_id = call.request, call.version, call.request.group_instance_id
        await self._allow(call, Operation.READ, request.group_id, may_be_empty=False)
        group = await self.groups.find(request.group_id, JOINS._replace(protocol_type=request.protocol_type))
        join = Join(
            None,
            request.member_id,
            instance_id,
            call.client_id,
            f"/{call.client.host}",
            request.session_timeout_ms / 1000,
            (request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms) / 1000,
            request.protocol_type,
            tuple(Protocol(one.name, one.metadata) for one in request.protocols),
            fresh_id=fresh_member_id(call.client_id, instance_id, self._fresh_id()),
            must_know_id=version >= 4 and instance_id is None,
            can_skip_assignment=version >= 9,
        )
        return answers.joined(await group.join(join, call), version)

    async def handle_sync_group(self, call: Call) -> Any:
        request = call.request
        if call.version >= _SYNC_WITH_PROTOCOL and None in {request.protocol_type, request.protocol_name}:
            raise GroupError(Error.INCONSISTENT_GROUP_PROTOCOL)
        await self._allow(call, Operation.READ, request.group_id, may_be_empty=False)
        group = await self.groups.find(request.group_id, TAKES_PART)
        of_members = {one.member_id: one.assignment for one in request.assignments}
        assignments = Assignments(request.protocol_type, request.protocol_name, of_members)
        return answers.synced(await group.sync(who(request), assignments, call))

    async def handle_heartbeat(self, call: Call) -> Any:
        await self._allow(call, Operation.READ, call.request.group_id, may_be_empty=False)
        group = await self.groups.find(call.request.group_id, TAKES_PART)
        await group.heartbeat(who(call.request), self._software(call), call)
        return message("HeartbeatResponse")(error_code=Error.NONE)

    def _software(self, call: Call) -> str:
        """Returns the client's software if its heartbeats may be held, else an empty string."""
        return call.client.software if self.holds else ""

    async def handle_leave_group(self, call: Call) -> Any:
        request = call.request
        leaving: tuple[tuple[str, str | None], ...] = ((request.member_id, None),)
        if call.version >= 3:
            leaving = tuple((one.member_id, one.group_instance_id) for one in request.members)
        await self._allow(call, Operation.READ, request.group_id, may_be_empty=False)
        group = await self.groups.find(request.group_id, TAKES_PART)
        errors = await group.leave(leaving, call)
        outcomes = tuple((*who, error) for who, error in zip(leaving, errors, strict=True))
        return answers.left(Left(None, Error.NONE, outcomes), call.version)

    async def handle_consumer_group_heartbeat(self, call: Call) -> Any:
        request, access = call.request, call.client.access
        is_denied = bool(await access.denied_groups(Operation.READ, (request.group_id,)))
        denied = await access.denied_topics(Operation.DESCRIBE, request.subscribed_topic_names or ())
        if is_denied or denied:
            raise GroupError(Error.GROUP_AUTHORIZATION_FAILED if is_denied else Error.TOPIC_AUTHORIZATION_FAILED)
        refuse_invalid_beat(request, call.version)
        why = JOINS_BY_BEAT if request.member_epoch == JOIN else BEATS
        group = await self.groups.find(request.group_id, why)
        beat = beating(request, self._software(call))
        return answers.consumer_heartbeat(await group.consumer_heartbeat(beat, call), beat.who.member_id)

    # --- offsets -----------------------------------------------------------------------------------------------------

    async def handle_commit_offsets(self, call: Call) -> Any:
        """Rejects partitions that do not exist and passes only the others on to the group, as Kafka does. Kafka's
        answer leaves out a topic that exists and of which the request names no partition."""
        request = call.request
        await self.groups.wait_until_loaded([request.group_id])
        await self._allow(call, Operation.READ, request.group_id)
        await self._learn(request.topics)
        denied = await call.client.access.denied_topics(Operation.READ, {topic.name for topic in request.topics})
        offsets, topic_ids, errors = self._committed(request, denied)
        error = Error.NONE
        if offsets:
            who = Who(request.member_id, request.group_instance_id, request.generation_id_or_member_epoch)
            commit = Commit(who, offsets, topic_ids, call.version >= _COMMIT_WITH_EPOCHS)
            try:
                errors |= await self._through(request.group_id, COMMITS, lambda group: group.commit(commit, call))
            except GroupError as refusal:
                error = refusal.error
        topics = [one for one in request.topics if one.partitions or not self._instances.partitions_of(one.name)]
        return answers.per_partition("OffsetCommit", topics, error, errors)

    async def _learn(self, topics: Any) -> None:
        """Asks the broker about topics whose partitions are unknown. Raises :class:`GroupError` if it cannot be
        asked."""
        try:
            await self._instances.learn(
                {topic.name: max([part.partition_index for part in topic.partitions], default=-1) for topic in topics}
            )
        except BrokerError as error:
            log.info("could not find out which partitions exist: %s; the client must retry", error)
            raise GroupError(Error.COORDINATOR_NOT_AVAILABLE) from None

    def _committed(
        self, request: Any, denied: frozenset[str]
    ) -> tuple[Offsets, dict[str, str], dict[Partition, Error]]:
        """Returns the offsets of a commit, the identities of their topics, and the errors of the partitions that do not
        exist or are ``denied``."""
        offsets: Offsets = {}
        topic_ids: dict[str, str] = {}
        errors: dict[Partition, Error] = {}
        now_ms, topics = self._manager.now_ms(), self._manager.topics
        expires_ms = expires_at_ms(now_ms, getattr(request, "retention_time_ms", -1))
        for topic in request.topics:
            name, count, topic_id = topic.name, self._instances.partitions_of(topic.name), topics.identity(topic.name)
            for part in topic.partitions:
                where = name, part.partition_index
                if name in denied:
                    errors[where] = Error.TOPIC_AUTHORIZATION_FAILED
                elif 0 <= part.partition_index < count:
                    metadata, epoch = part.committed_metadata or "", part.committed_leader_epoch
                    topic_ids[name] = topic_id
                    offsets[where] = CommittedOffset(
                        part.committed_offset, epoch, metadata, now_ms, topic_id, expires_ms
                    )
                elif name in self._instances.hidden:  # it is the instance that lacks a right
                    errors[where] = Error.COORDINATOR_NOT_AVAILABLE
                else:
                    errors[where] = Error.UNKNOWN_TOPIC_OR_PARTITION
        return offsets, topic_ids, errors

    async def handle_fetch_offsets(self, call: Call) -> Any:
        asked = call.request.groups if call.version >= 8 else (call.request,)
        names = [one.group_id for one in asked]
        self.client_assigned.tool_commits.asked("OffsetFetch", call, names)
        await self.groups.wait_until_loaded(names)
        denied = await call.client.access.denied_groups(Operation.DESCRIBE, names)
        fetched = await at_once(self._fetched(call, one, is_denied=one.group_id in denied) for one in asked)
        return answers.fetched(fetched, call.version)

    async def _fetched(self, call: Call, asked: Any, *, is_denied: bool) -> answers.FetchedGroup:
        name, topics, denied_topics = asked.group_id, asked.topics, call.client.access.denied_topics
        if is_denied:
            return answers.FetchedGroup(name, topics, Error.GROUP_AUTHORIZATION_FAILED, NOTHING_FETCHED, frozenset())
        wanted, hidden = None, frozenset[str]()
        if topics is not None:
            wanted = [(topic.name, number) for topic in topics for number in topic.partition_indexes]
            hidden = await denied_topics(Operation.DESCRIBE, {topic.name for topic in topics})
        found, error = NOTHING_FETCHED, Error.NONE
        try:
            member = asking_member(asked)
            found = await self._through(name, LOOKS, lambda group: group.fetch_offsets(wanted, member))
        except GroupError as refusal:
            error = refusal.error
        if topics is None:
            named = {topic for topic, _ in (*found.offsets, *found.damaged)}
            hidden = await denied_topics(Operation.DESCRIBE, named)
        is_repeated = topics is not None and answers.repeats_offset_fetch(call.client.software, error)
        return answers.FetchedGroup(name, topics, error, found, hidden, is_repeated)

    async def handle_delete_offsets(self, call: Call) -> Any:
        """Deletes offsets. Rejects partitions that do not exist, and topics that members subscribe to."""
        request, name = call.request, call.request.group_id
        denied = await call.client.access.denied_topics(Operation.READ, {topic.name for topic in request.topics})
        await self._allow(call, Operation.DELETE, name, may_be_empty=False)
        await self._learn(request.topics)
        asked = [(topic.name, part.partition_index) for topic in request.topics for part in topic.partitions]
        errors = {where: error for where in asked if (error := self._undeletable(*where, denied))}
        chosen = [where for where in asked if where not in errors]
        errors |= await self._through(name, DELETES, lambda group: group.delete_offsets(chosen, call))
        return answers.per_partition("OffsetDelete", request.topics, Error.NONE, errors)

    def _undeletable(self, topic: str, partition: int, denied: frozenset[str]) -> Error:
        if topic in denied:
            return Error.TOPIC_AUTHORIZATION_FAILED
        if topic in self._instances.hidden:
            return Error.COORDINATOR_NOT_AVAILABLE
        is_there = 0 <= partition < self._instances.partitions_of(topic)
        return Error.NONE if is_there else Error.UNKNOWN_TOPIC_OR_PARTITION

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

    # --- showing and deleting groups ---------------------------------------------------------------------------------

    async def _each(
        self, call: Call, names: Iterable[str], work: Callable[[AnyGroup], Awaitable[T]]
    ) -> dict[str, T | GroupError]:
        """Asks each group that the client may see, all at the same time."""
        chosen = list(dict.fromkeys(names))
        denied = await call.client.access.denied_groups(Operation.DESCRIBE, chosen)

        async def found_or_not(name: str) -> T | GroupError:
            if name in denied:
                return GroupError(Error.GROUP_AUTHORIZATION_FAILED)
            try:
                return await self._through(name, LOOKS, work)
            except GroupError as refusal:
                return refusal

        found = await asyncio.gather(*map(found_or_not, chosen))
        return dict(zip(chosen, found, strict=True))

    async def handle_describe_groups(self, call: Call) -> Any:
        found = await self._each(call, call.request.groups, lambda group: group.describe())
        of_command = call.client_id == CLIENT_ID
        operations = await _operations(call, found)
        return message("DescribeGroupsResponse")(
            groups=tuple(
                answers.described(name, one.error)
                if isinstance(one, GroupError)
                else answers.described(
                    *(name, Error.NONE, one if of_command else one._replace(once_subscribed=())),
                    operations.get(name, answers.OPERATIONS_NOT_ASKED),
                )
                for name, one in found.items()
            )
        )

    async def handle_consumer_group_describe(self, call: Call) -> Any:
        found = await self._each(call, call.request.group_ids, lambda group: group.describe_consumers())
        operations = await _operations(call, found)
        groups = []
        for name, one in found.items():
            view = GroupView(name, one.error) if isinstance(one, GroupError) else one
            if not name:
                view = GroupView(name, Error.INVALID_GROUP_ID)
            elif (shown := _topics(view)) and await call.client.access.denied_topics(Operation.DESCRIBE, shown):
                view = GroupView(name, Error.TOPIC_AUTHORIZATION_FAILED)
            groups.append(described(view._replace(operations=operations.get(name, view.operations))))
        return message("ConsumerGroupDescribeResponse")(groups=tuple(groups))

    async def handle_list_groups(self, call: Call) -> Any:
        refuse(await self._manager.vouch_for_all())
        loading = Error.COORDINATOR_LOAD_IN_PROGRESS if self._manager.loading else Error.NONE
        names, access = self.groups.names(), call.client.access
        if not await access.may_describe_cluster():
            names -= await access.denied_groups(Operation.DESCRIBE, names)
        types = frozenset(kind.lower() for kind in call.request.types_filter)
        rows = await self.groups.listed(names, types, with_states=call.version >= _LIST_WITH_STATES)
        error, native = await self.native.listed_by_broker(call, names)
        return answers.listed([*rows, *native], call.request, loading or error)

    async def handle_delete_groups(self, call: Call) -> Any:
        form = message("DeleteGroupsResponse")
        one = form.struct("DeletableGroupResult")
        results = [one(group_id=name, error_code=await self._deleted(call, name)) for name in call.request.groups_names]
        return form(results=results)

    async def _deleted(self, call: Call, name: str) -> Error:
        try:
            await self._allow(call, Operation.DELETE, name)
            await self._through(name, DELETES, lambda group: group.delete(call))
        except GroupError as refusal:
            return refusal.error
        await self.native.kinds.forget(name)
        return Error.NONE

    # --- terms -------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stops coordinating, as planned: answers new requests with NOT_COORDINATOR, lets what is being written to the
        groups log finish within :data:`WRITTEN_WITHIN_S`, and then ends all terms, which answers the requests that are
        held or wait for a rebalance."""
        self._instances.is_stopping = True
        late = _now() + WRITTEN_WITHIN_S
        while (self._manager.is_writing() or self.client_assigned.tasks) and _now() < late:
            await asyncio.sleep(_WRITTEN_CHECK_S)
        self._manager.close()

    async def close(self) -> None:
        await self.moves.close()
        self.native.close()
        await self.client_assigned.close()


def _refused_join(call: Call, refusal: GroupError) -> Any:
    return answers.joined(Joined(None, refusal.error, call.request.member_id), call.version)


def _refused_sync(_call: Call, refusal: GroupError) -> Any:
    """As in Kafka, a client rejoins instead of giving up while its group is being loaded."""
    error = Error.REBALANCE_IN_PROGRESS if isinstance(refusal, Loading) else refusal.error
    return answers.synced(Synced(None, error))


def _refused_heartbeat(_call: Call, refusal: GroupError) -> Any:
    """As in Kafka, the members' timers restart when the group is loaded."""
    error = Error.NONE if isinstance(refusal, Loading) else refusal.error
    return message("HeartbeatResponse")(error_code=error)


_REFUSED: dict[str, Callable[[Call, GroupError], Any]] = {
    "AddOffsetsToTxn": lambda _call, refusal: message("AddOffsetsToTxnResponse")(error_code=refusal.error),
    "ConsumerGroupHeartbeat": lambda _call, refusal: answers.refused_heartbeat(refusal.error, refusal.message),
    "Heartbeat": _refused_heartbeat,
    "JoinGroup": _refused_join,
    "LeaveGroup": lambda call, refusal: answers.left(Left(None, refusal.error), call.version),
    "ListGroups": lambda call, refusal: answers.listed([], call.request, refusal.error),
    "OffsetCommit": lambda call, refusal: answers.per_partition("OffsetCommit", call.request.topics, refusal.error),
    "OffsetDelete": lambda _call, refusal: message("OffsetDeleteResponse")(error_code=refusal.error),
    "SyncGroup": _refused_sync,
    "TxnOffsetCommit": lambda call, refusal: answers.per_partition(
        "TxnOffsetCommit", call.request.topics, refusal.error
    ),
}
"""Builds the response to a request that is refused as a whole."""


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _operations(call: Call, found: Mapping[str, object]) -> dict[str, int]:
    """Returns the operations that the client may perform on each group without an error, if it asks for them."""
    if not getattr(call.request, "include_authorized_operations", False):
        return {}
    return await call.client.access.operations(name for name, one in found.items() if not isinstance(one, GroupError))


def _topics(view: GroupView) -> set[str]:
    """Returns the topics that a description of the group names."""
    if view.seen is None:
        return set()
    return topics_of(view.seen).union(*(one.subscription.topics for one in view.seen.members.values()))
