"""Takes native groups over while they run, and gives them back (ADR 60).

A group that is taken over stays as it is: its members go on with their ids, their generation and their partitions, and
only look up their coordinator again. A member of ours, the *fence*, stays in the brokers' group of the same name, the
*namesake*, so that nobody can become a second owner there.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from msgspec import structs

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.machine import Group as Machine
from kafka_coord.classic_groups.metadata import ClassicState, GroupMetadata, MemberMetadata, Protocol
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import BrokerError, MalformedValue, StoreError
from kafka_coord.frontends.kafka.client_assigned import ClientAssignedGroups
from kafka_coord.frontends.kafka.groups import Groups
from kafka_coord.frontends.kafka.instances import Instances, Node
from kafka_coord.frontends.kafka.managed.administration import Admitted
from kafka_coord.frontends.kafka.managed.group import ManagedGroups, partitions_of
from kafka_coord.frontends.kafka.managed.heartbeats import PROTOCOL as KIP_848
from kafka_coord.frontends.kafka.managed.members import is_instance
from kafka_coord.frontends.kafka.native import FENCE, UNDOING, NativeGroups, instance_of
from kafka_coord.grouplog.manager import Offsets, partition_of
from kafka_coord.grouplog.topics import assigned_topics, current_offsets
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.kafka.coordinators import (
    Moving,
    by_topic,
    committed_offsets,
    fetch_offsets,
    refused_offsets,
    require_no_error,
)
from kafka_coord.model import CommittedOffset, GroupKind, Member, TopicPartition
from kafka_coord.model.names import is_legal
from kafka_coord.model.sequences import parts, some
from kafka_coord.wire.consumer_protocol import encoded_assignment, encoded_subscription
from kafka_coord.wire.messages import message
from kafka_coord.zk.kinds import AT_REST, GroupRecord, RecordChanged, Seen
from kafka_coord.zk.store import Op

log = logging.getLogger(__name__)

CONSUMER_TYPE = "consumer"
FREEZE_S = 5.0
"""How long a group is frozen at most, in seconds."""
_SETTLES, _SETTLE_CHECK_S = 100, 0.1
_CHECK_S = 0.01
_BEATS_S = 60.0
_BEGINS_AGAIN_S = 5.0
_RESOLVES_AFTER_S = 2.0
_JOINED_WITHIN_S = 60.0
_HELD_UP_S = 60.0
_HEARD_WITHIN_S = 3.0
"""How soon it is told that a member was heard."""
_HOLDS_S = 2 * FREEZE_S
_FENCED_WITHIN_S = 30.0
_OFFSETS_AT_ONCE = 2_000
_DESCRIBE, _FIND, _JOIN, _SYNC, _BEAT = (4, 5), 1, (5, 9), (3, 5), (3, 4)
_COMMIT, _FETCH_STABLE = (7, 8), 7
_NO_OFFSET = CommittedOffset(-1)
"""What a broker tells of a partition without a committed offset. A commit makes it do so, and unlike OffsetDelete, it
is refused once another fence has replaced the one that commits."""
_SHOWN = 10
_CONSUMERS, _WITH_TYPES, _USES_KIP_848 = "ConsumerGroupDescribe", 1, 1
"""The first version of a response that tells the types of members, as brokers since 4.0 do, and one of these types."""
_ASSIGNOR = "range"
"""An assignor that every broker knows."""


class MoveRefused(Exception):
    """The group cannot be moved, or was not: it is as before."""


class Namesake(NamedTuple):
    """The brokers' group, as its coordinator beside the instance at ``node`` describes it."""

    node: Node
    described: Any

    @property
    def has_consumers(self) -> bool:
        """Whether it is a group of KIP-848 members, although classic ones may be among them, as the fence."""
        return not hasattr(self.described, "protocol_data")

    @property
    def protocol(self) -> str:
        return "" if self.has_consumers else self.described.protocol_data or ""

    @property
    def kind(self) -> str:
        """Its protocol type."""
        return CONSUMER_TYPE if self.has_consumers else self.described.protocol_type or ""

    @property
    def members(self) -> Sequence[Any]:
        """Its members, without the fence."""
        return [one for one in self.described.members if instance_of(one) != FENCE]

    @property
    def fence_id(self) -> str:
        """The member id of the fence, or "" if it is not there."""
        return next((one.member_id for one in self.described.members if instance_of(one) == FENCE), "")

    @property
    def is_fenced(self) -> bool:
        return bool(self.fence_id)

    @property
    def is_closed(self) -> bool:
        """Whether the fence is its only member, and nobody can join it."""
        is_alone = self.is_fenced and not self.members
        return bool(is_alone and self.described.group_state == ClassicState.STABLE and self.protocol == FENCE)


class Fence:
    """Our member in a namesake. It is of the group's own protocol type, because no group changes that while it has
    members. Its protocol :data:`FENCE` is nobody else's: a fence that joins with that alone closes the namesake."""

    def __init__(self, connection: BrokerConnection, group: str, session_s: float) -> None:
        self._connection, self.group, self._session_ms = connection, group, round(session_s * 1000)
        self._who: dict[str, Any] = {}
        self.joining: asyncio.Task[None] | None = None

    def begin(self, kind: str, protocols: Collection[str] = (), holds_s: float | None = None) -> None:
        """Begins to join, or to join again, with the ``protocols`` of others, too. With ``holds_s``, others may join
        meanwhile, and their generation waits so long for it to join again."""
        self.joining = asyncio.create_task(self._join(kind, protocols, holds_s))
        self.joining.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def join(self, kind: str, protocols: Collection[str] = (), holds_s: float | None = None) -> None:
        """Joins, or joins again. The generation is durable afterwards, and so is everything that the broker has written
        about the group before, except with ``holds_s``. Raises :class:`BrokerError`."""
        self.begin(kind, protocols, holds_s)
        await self.joined()

    async def joined(self) -> None:
        """Waits until it has joined. Raises :class:`BrokerError`."""
        if self.joining is not None:
            await self.joining

    async def hold(self, kind: str, protocol: str, for_s: float) -> str:
        """Returns a member id that nobody joins with: no generation begins before it leaves, or before so many seconds
        have passed (KIP-394). Raises :class:`BrokerError`."""
        asked = self._asked(kind, [protocol], for_s)
        asked.group_instance_id, asked.session_timeout_ms = None, round(for_s * 1000)
        told = await self._connection.ask("JoinGroup", _JOIN, asked)
        if told.error_code != Error.MEMBER_ID_REQUIRED:
            require_no_error(told.error_code, "the brokers' group cannot be held up")
        return str(told.member_id)

    def _asked(self, kind: str, protocols: Collection[str], rebalance_s: float) -> Any:
        form = message("JoinGroupRequest")
        of_protocol = form.struct("JoinGroupRequestProtocol")
        told = encoded_subscription() if kind == CONSUMER_TYPE else b""
        metadata = {**dict.fromkeys(protocols, told), FENCE: b""}
        return form(
            group_id=self.group,
            group_instance_id=FENCE,
            member_id=self._who.get("member_id", ""),
            protocol_type=kind,
            protocols=tuple(of_protocol(name=name, metadata=data) for name, data in metadata.items()),
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=round(rebalance_s * 1000),
        )

    async def _join(self, kind: str, protocols: Collection[str], holds_s: float | None) -> None:
        asked = self._asked(kind, protocols, holds_s or _JOINED_WITHIN_S)
        joined = await self._connection.ask("JoinGroup", _JOIN, asked, _JOINED_WITHIN_S)
        require_no_error(joined.error_code, "the fence cannot join the brokers' group")
        known = {"group_id": self.group, "group_instance_id": FENCE, "member_id": joined.member_id}
        self._who = known | {"generation_id": joined.generation_id}
        form = message("SyncGroupRequest")
        own = form.struct("SyncGroupRequestAssignment")(member_id=joined.member_id, assignment=b"")
        named_protocol = {"protocol_type": kind, "protocol_name": joined.protocol_name}
        synced = await self._connection.ask("SyncGroup", _SYNC, form(**self._who, **named_protocol, assignments=(own,)))
        if holds_s is None or synced.error_code != Error.REBALANCE_IN_PROGRESS:
            require_no_error(synced.error_code, "the fence cannot join the brokers' group")

    @property
    def leaving(self) -> list[tuple[str, str | None]]:
        """It alone, not a fence that has replaced it."""
        return [(self._who["member_id"], FENCE)] if self._who else []

    def begins_anew(self) -> None:
        """Joins as another member from now on: it has left."""
        self._who = {}

    async def beat(self) -> None:
        """Raises :class:`BrokerError`, also if it is no member any more."""
        answer = await self._connection.ask("Heartbeat", _BEAT, message("HeartbeatRequest")(**self._who))
        require_no_error(answer.error_code, "the fence is no member of the brokers' group")

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commits offsets to the namesake. Raises :class:`BrokerError`."""
        request = by_topic("OffsetCommitRequest", self.group, offsets, _committed)
        request.generation_id_or_member_epoch = self._who["generation_id"]
        request.member_id, request.group_instance_id = self._who["member_id"], FENCE
        for topic in (await self._connection.ask("OffsetCommit", _COMMIT, request)).topics:
            for part in topic.partitions:
                where = f"{topic.name}-{part.partition_index}"
                require_no_error(part.error_code, f"{where} cannot be committed to the brokers' group")

    def close(self) -> None:
        if self.joining is not None:
            self.joining.cancel()
        self._connection.close()


class Moves:
    """Takes groups over and gives them back. Use only on the event loop."""

    def __init__(
        self,
        groups: Groups,
        client_assigned: ClientAssignedGroups,
        managed: ManagedGroups,
        native: NativeGroups,
        instances: Instances,
    ) -> None:
        self._managed = managed
        self._groups, self._client_assigned, self._native, self._instances = groups, client_assigned, native, instances
        self._manager, self._kinds = client_assigned.manager, native.kinds
        self._fences: dict[str, asyncio.Task[None]] = {}
        """What goes on in the namesakes that are fenced."""
        self._standing: set[str] = set()
        """The groups whose fences have joined."""
        self._held: dict[str, list[tuple[str, None]]] = {}
        """The member ids that hold up namesakes."""

    # --- terms -------------------------------------------------------------------------------------------------------

    def begin(self, partition: int) -> None:
        """Goes on with what the earlier terms of a partition have begun: undoes take-overs, ends give-backs, and keeps
        fences."""
        for name, record in self._kinds.unsettled(partition).items():
            if record.moving:
                self._client_assigned.run(self._resolved(name, record.moving))
            else:
                self._go_on(name)

    def end(self, partition: int) -> None:
        for name in [one for one in self._fences if partition_of(one) == partition]:
            self._fences.pop(name).cancel()

    async def close(self) -> None:
        tasks = list(self._fences.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _go_on(self, name: str) -> None:
        """Goes on with what the record says of the group's namesake."""
        record = self._kinds.record_of(name)
        if record is not None and record.fenced:
            self._keep(name, self._released(name) if record.is_returning else self._kept(name, None))

    def _keep(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if name in self._fences:
            self._fences.pop(name).cancel()
        if partition_of(name) in self._manager.terms:
            self._fences[name] = asyncio.create_task(work)
        else:
            work.close()  # the next term does it

    async def _kept(self, name: str, fence: Fence | None) -> None:
        """Keeps the fence in the namesake until the term ends. Nobody else can be in there for long: who is, came while
        no instance kept the fence for a whole session, or the brokers lost it."""
        try:
            while True:
                try:
                    fence = fence or await self._entered(name, await self._namesake(name))
                    self._standing.add(name)
                    await asyncio.sleep(_BEATS_S)
                    await fence.beat()
                except (StoreError, MalformedValue, BrokerError, MoveRefused) as error:
                    log.info("cannot keep the fence group=%s: %s; trying again", name, error)
                    self._standing.discard(name)
                    if fence is not None:
                        fence.close()
                    fence = None
                    await asyncio.sleep(_BEGINS_AGAIN_S)
        finally:
            self._standing.discard(name)
            if fence is not None:
                fence.close()

    async def _entered(self, name: str, namesake: Namesake | None) -> Fence:
        """Puts the fence into the namesake, and everybody else out. Returns once it is closed, durably. Whom this
        instance removes it must have seen before it read the record again: it may no longer have to do with the group.
        """
        record = self._kinds.record_of(name) or AT_REST
        if namesake is not None and namesake.has_consumers and namesake.described.members:
            return await self._entered_consumers(name, namesake, record)
        protocol = "" if namesake is None else namesake.protocol or self._group(name).protocol_name or ""
        if namesake is not None and namesake.described.members and protocol and not namesake.is_closed:
            try:
                async with asyncio.timeout(FREEZE_S):
                    return await self._entered_alone(name, namesake, protocol, record)
            except TimeoutError:
                raise BrokerError("closing the brokers' group took too long") from None
        if namesake is not None and namesake.members:
            await self._kinds.require(name, record)
            await self._native.leave(namesake.node, name, _leaving(namesake))
        return await self._joined(name, (namesake is not None and namesake.kind) or CONSUMER_TYPE)

    async def _joined(self, name: str, kind: str, fence: Fence | None = None) -> Fence:
        fence = fence or await self._new_fence(name)
        with _closed_if_it_fails(fence):
            await fence.join(kind)
        return fence

    async def _entered_alone(self, name: str, namesake: Namesake, protocol: str, record: GroupRecord) -> Fence:
        """Lets no generation begin before the fence is alone: it would give whoever comes meanwhile, behind the
        brokers' plain listener, what the others read. A member id that nobody joins with holds it up. A fence is in the
        namesake before the others leave: one without members would wait for the delay of a first generation."""
        first, fence = await self._new_fence(name), await self._new_fence(name)
        with closing(first), _closed_if_it_fails(fence):
            for_s = max(_HOLDS_S, self._manager.limits.min_session_timeout_s)
            held = self._held.setdefault(name, [])
            held.append((await first.hold(namesake.kind, protocol, for_s), None))
            first.begin(namesake.kind, [protocol])
            now = seated = await self._seated(name, first, namesake)
            while True:
                await self._kinds.require(name, record)
                await self._native.leave(seated.node, name, _leaving(now))
                fence.begin(namesake.kind)
                try:
                    await self._seated(name, fence, seated)
                    break
                except BrokerError:  # it is refused while anybody else is there
                    now = await self._still(name, seated)
                    if not now.members:
                        raise
            await self._native.leave(seated.node, name, held)
            self._held.pop(name, None)
            await fence.joined()
        return fence

    async def _seated(self, name: str, fence: Fence, before: Namesake) -> Namesake:
        """Waits until a fence that joins is in the namesake, which is returned, instead of the fence ``before``."""
        while True:
            has_joined = fence.joining is not None and fence.joining.done()
            if has_joined:
                await fence.joined()
            now = await self._namesake(name)
            if now is not None and now.node == before.node and now.fence_id not in {"", before.fence_id}:
                return now
            if has_joined:
                raise BrokerError("the fence is no member of the brokers' group")
            await asyncio.sleep(_CHECK_S)

    async def _still(self, name: str, seated: Namesake) -> Namesake:
        """Returns the namesake again. Another coordinator would know nothing of what holds it up."""
        now = await self._namesake(name)
        if now is None or (now.node, now.fence_id) != (seated.node, seated.fence_id):
            raise BrokerError("the fence is no member of the brokers' group")
        return now

    async def _entered_consumers(self, name: str, namesake: Namesake, record: GroupRecord) -> Fence:
        """The broker makes the group a classic one once the fence is alone, unless that is forbidden."""
        fence = await self._new_fence(name)
        with _closed_if_it_fails(fence):
            await fence.join(CONSUMER_TYPE, [_ASSIGNOR], _JOINED_WITHIN_S)
            now: Namesake | None = namesake
            while now is not None and now.has_consumers and now.members:  # somebody may still come
                await self._kinds.require(name, record)
                await self._native.remove_consumers(namesake.node, name, now.members)
                now = await self._namesake(name)
            if now is not None and now.has_consumers:
                await self._native.leave(namesake.node, name, fence.leaving)
                fence.begins_anew()
        return await self._joined(name, CONSUMER_TYPE, fence)

    async def _new_fence(self, name: str) -> Fence:
        node = await self._instances.native_coordinator(name)
        if node is None:
            find = message("FindCoordinatorRequest")(key=name)
            await self._instances.ask("FindCoordinator", _FIND, find)  # makes the brokers create their topic
            raise BrokerError("the brokers have not coordinated any group yet")
        return Fence(self._native.connection(node), name, self._manager.limits.max_session_timeout_s)

    # --- taking over -------------------------------------------------------------------------------------------------

    async def take_over(self, name: str, why: str = "", *, may_manage: bool = False) -> str:
        """Makes a native group client-assigned or, if its members use KIP-848 and it ``may_manage`` them, managed, and
        returns what was moved. ``why`` says who wants it. Raises :class:`MoveRefused`."""
        try:
            if self._kinds.record_of(name) != AT_REST:
                raise MoveRefused("its last move has not ended; try again")
            namesake = await self._settled(name, may_manage)
            if self._groups.is_changing(name, or_writing=False):
                raise MoveRefused("it is being changed; try again")
            with self._groups.change(name):
                return await self._taken_over(name, namesake, why)
        except (StoreError, MalformedValue, BrokerError) as error:
            raise MoveRefused(str(error)) from error

    async def _taken_over(self, name: str, namesake: Namesake, why: str) -> str:
        frozen = GroupRecord(GroupKind.NATIVE, moving=secrets.token_hex(8))
        is_managed = namesake.has_consumers and bool(namesake.members)
        taken = GroupRecord(GroupKind.MANAGED if is_managed else GroupKind.CLIENT_ASSIGNED, fenced=frozen.moving)
        began, fence, is_copied, admitted = _now(), None, False, list[Admitted]()
        late = began + FREEZE_S
        try:
            version = await self._kinds.record(name, GroupKind.NATIVE, AT_REST, moving=frozen.moving)
            known, late = await self._heard(name, namesake, version, began)
            async with asyncio.timeout_at(late):
                await self._remembered(name, namesake, known)
                fence = await self._entered(name, namesake)
                count = await self._copied(name, namesake)
                if is_managed:
                    admitted = await self._admitted(name, namesake, known, why)
            is_copied = True
            await self._kinds.record(name, taken.kind, frozen, moving="", fenced=taken.fenced)
        except (Exception, asyncio.CancelledError) as error:
            is_undone = await asyncio.shield(self._left_to_brokers(name, frozen.moving, fence))
            if not is_undone and is_copied:
                pass  # it was recorded, although that was not known
            elif isinstance(error, TimeoutError):
                raise MoveRefused(f"it took longer than {late - began:.1f} s") from error
            else:
                raise
        self._keep(name, self._kept(name, fence))
        if is_managed:
            await self._managed_now(name, admitted, namesake.described.group_epoch)
        took_ms = round((_now() - began) * 1000)
        log.info("took over a native group group=%s members=%d took_ms=%d", name, len(known), took_ms)
        return f"{counted(count, 'offset')} and {counted(len(known), 'member')}, frozen for {took_ms} ms"

    async def _admitted(self, name: str, namesake: Namesake, known: Mapping[str, Seen], why: str) -> list[Admitted]:
        """Makes the group and its KIP-848 members ready in ZooKeeper, where nobody acts on that before the record."""
        term = self._manager.terms.get(partition_of(name))
        if term is None:
            raise MoveRefused("this instance no longer coordinates its partition")
        longest_ms = round(self._manager.limits.max_session_timeout_s * 1000)
        members = [
            self._managed.admitted_consumer(name, one, known[one.member_id].rebalance_ms or longest_ms)
            for one in namesake.members
        ]
        _refuse(await self._groups.adopt(name, why))
        topic_ids = self._group(name).topic_ids
        epoch = namesake.described.group_epoch
        await self._managed.administration.admit(name, members, epoch, topic_ids, term.znode_version)
        return members

    async def _managed_now(self, name: str, members: Sequence[Admitted], epoch: int) -> None:
        """Lets the members of a group that was taken over go on, and removes what the log has of it."""
        await self._managed.resume(name, members, epoch)
        machine = self._manager.group(name)
        if machine is not None:
            self._client_assigned.carry_out(name, machine, machine.end(Error.NOT_COORDINATOR))
        try:
            await self._removed(name)
        except MoveRefused as error:
            log.info("cannot remove what a take-over has left in the log group=%s: %s", name, error)

    async def _left_to_brokers(self, name: str, move: str, fence: Fence | None) -> bool:
        """Returns whether a take-over that has failed was undone, or will be."""
        try:
            is_undone = await self._undone(name, move)
            self._go_on(name)
        except (StoreError, MalformedValue, BrokerError, MoveRefused) as error:
            log.info("cannot undo a take-over group=%s: %s; trying again", name, error)
            self._client_assigned.run(self._resolved(name, move))
            is_undone = True
        if is_undone and fence is not None:
            fence.close()
        return is_undone

    async def _resolved(self, name: str, move: str) -> None:
        """Ends a take-over whose outcome is unknown, or that an earlier term has begun."""
        with self._groups.change(name):
            while partition_of(name) in self._manager.terms:
                try:
                    await self._undone(name, move)
                    self._go_on(name)
                except (StoreError, MalformedValue, BrokerError, MoveRefused) as error:
                    log.info("cannot undo a take-over group=%s: %s; trying again", name, error)
                    await asyncio.sleep(_RESOLVES_AFTER_S)
                else:
                    return

    async def _undone(self, name: str, move: str) -> bool:
        """Leaves the group to the brokers, unless the record says that it was taken over: its members may have
        committed since. Returns whether it was undone. If the brokers may have forgotten the members, the group is
        given back to them: the record says so, and :meth:`_go_on` waits for them. Otherwise, the record says last that
        the group is native and at rest: who finds it moving does all of this again."""
        undoing = await self._kinds.claim_undo(name, move)
        if undoing is None:
            found = self._kinds.record_of(name)
            return found is None or not found.is_taken_over or found.fenced != move.removeprefix(UNDOING)
        log.info("undoing a take-over group=%s", name)
        frozen, machine = GroupRecord(GroupKind.NATIVE, moving=undoing), self._manager.group(name)
        await self._cleared(name)
        if machine is not None and machine.metadata.members:
            await self._emptied(name)
            if machine.metadata.protocol_name != KIP_848:
                await self._opened(name, machine.metadata.protocol_type or CONSUMER_TYPE)
            self._client_assigned.carry_out(name, machine, machine.end(Error.NOT_COORDINATOR))
            await self._kinds.record(name, GroupKind.NATIVE, frozen, moving="", fenced=move.removeprefix(UNDOING))
            return True
        await self._removed(name)
        await self._native.remove_fence(name, frozen)
        await self._kinds.record(name, GroupKind.NATIVE, frozen, moving="")
        return True

    async def _cleared(self, name: str) -> None:
        """Removes what a take-over has left in ZooKeeper."""
        term = self._manager.terms.get(partition_of(name))
        if is_legal(name) and term is not None:
            _refuse(
                await self._managed.administration.clear(
                    name, "a take-over failed", "the take-over", term.znode_version
                )
            )

    async def _emptied(self, name: str) -> None:
        """Removes everybody from the namesake. What has been sent to remove them may still be on its way: later, others
        would be given their partitions at once."""
        namesake = await self._namesake(name)
        if namesake is None or not namesake.is_closed:
            (await self._entered(name, namesake)).close()

    async def _heard(self, name: str, before: Namesake, version: int, began: float) -> tuple[dict[str, Seen], float]:
        """Waits until every registered instance has heard that the group is frozen. Returns what they know of its
        members, and when it may be frozen no longer. Raises :class:`MoveRefused` if the group cannot be moved."""
        known = await self._acknowledged(name, version, began + FREEZE_S)
        namesake = await self._namesake(name)
        if namesake is None or namesake.described != before.described:
            raise MoveRefused("its members have changed; try again")
        strangers = [one for one in namesake.members if one.member_id not in known]
        if strangers:
            shown = some([f"{one.client_id} at {one.client_host.removeprefix('/')}" for one in strangers], _SHOWN)
            raise MoveRefused(
                f"the instances have not heard members ({shown}); set their bootstrap.servers first, or try again if an"
                " instance has just started"
            )
        theirs = {one.member_id: known[one.member_id] for one in namesake.members}
        if not (_is_of_one_generation(namesake, theirs) and await self._is_newest(name, namesake, theirs)):
            raise MoveRefused("its members are not of one generation; try again")
        return theirs, began + may_freeze_s(one for seen in theirs.values() for one in seen.timeouts_s)

    async def _is_newest(self, name: str, namesake: Namesake, known: Mapping[str, Seen]) -> bool:
        """Returns whether the broker knows no newer generation. Only an instance without a session may have heard of
        it, and the broker describes the generation of KIP-848 members alone."""
        if namesake.has_consumers or not known:
            return True
        member_id, seen = next(iter(known.items()))
        beat = message("HeartbeatRequest")(group_id=name, generation_id=seen.generation, member_id=member_id)
        return bool((await self._native.ask(namesake.node, "Heartbeat", _BEAT, beat)).error_code == Error.NONE)

    async def _copied(self, name: str, namesake: Namesake) -> int:
        """Copies the offsets, and returns their number. The fence's generation lies after every commit that the broker
        has accepted."""
        offsets = await self._offsets(namesake.node, name)
        await self._store(name, offsets)
        after = await self._namesake(name)
        if after is None or not after.is_closed:
            raise MoveRefused("somebody else has joined the brokers' group meanwhile")
        return len(offsets)

    async def _settled(self, name: str, may_manage: bool) -> Namesake:
        """Waits, while nothing is frozen, until the namesake is at rest and has no open transaction."""
        why = "it is rebalancing"
        for _ in range(_SETTLES):
            try:
                namesake = await self._namesake(name)
                if namesake is None:
                    raise MoveRefused("the brokers do not coordinate it")
                if self._groups.is_changing(name, or_writing=False):
                    raise MoveRefused("it is being changed; try again")
                if namesake.is_fenced:  # by an ended move, or by one that has begun meanwhile
                    await self._native.remove_fence(name, AT_REST)
                elif namesake.has_consumers and any(one.member_type != _USES_KIP_848 for one in namesake.members):
                    raise MoveRefused(
                        "not all of its members use KIP-848; switch all of them first, or none. If none does, the"
                        " brokers' group.consumer.migration.policy forbids the way back: stop all of them once"
                    )
                elif namesake.has_consumers and namesake.members and not may_manage:
                    raise MoveRefused("its members use KIP-848, which only managed groups have here: use --managed")
                elif namesake.described.group_state in {ClassicState.STABLE, ClassicState.EMPTY}:
                    await self._offsets(namesake.node, name)
                    return namesake
            except Moving as moving:
                why = f"its coordinator or a transaction is under way: {moving}"
            await asyncio.sleep(_SETTLE_CHECK_S)
        raise MoveRefused(f"{why}; try again")

    async def _namesake(self, name: str) -> Namesake | None:
        node = await self._instances.native_coordinator(name)
        if node is None:
            return None
        found = await self._native.described(node, name)
        return None if found is None else Namesake(node, found)

    async def _acknowledged(self, name: str, version: int, late: float) -> dict[str, Seen]:
        """Waits until every registered instance has heard that the group is frozen, and returns the members that any of
        them has seen."""
        partition, running = partition_of(name), self._instances.running()
        while True:
            heard = await self._kinds.acknowledged(partition, running)
            missing = sorted(one for one in running if one not in heard or heard[one].seen < version)
            if not missing:
                break
            if _now() >= late:
                raise MoveRefused(f"instances {', '.join(map(str, missing))} did not acknowledge; look at their logs")
            await asyncio.sleep(_CHECK_S)
        if any(name in one.transactional for one in heard.values()):
            raise MoveRefused("its offsets are committed in transactions, which only the brokers can do")
        seen: dict[str, Seen] = {}
        for one in heard.values():
            for member_id, known in one.members.get(name, {}).items():
                before = seen.get(member_id, Seen())  # an instance may have heard its generation, and not its timeouts
                seen[member_id] = Seen(*map(max, structs.astuple(before), structs.astuple(known)))
        return seen

    async def _offsets(self, node: Node, name: str) -> dict[TopicPartition, Any]:
        async def ask(request: str, version: Any, value: Any) -> Any:
            return await self._native.ask(node, request, version, value)

        (answer,) = await fetch_offsets(ask, [name], _FETCH_STABLE, require_stable=True)
        code, where = refused_offsets(answer)
        require_no_error(code, f"the brokers' offsets cannot be read {where}".rstrip())
        return committed_offsets(answer)

    async def _remembered(self, name: str, namesake: Namesake, known: Mapping[str, Seen]) -> None:
        """Writes the members to the log, before the brokers forget them: who undoes the move waits for them."""
        manager, described = self._manager, namesake.described
        await self._removed(name)
        assignments = {one.member_id: _assigned(one) for one in namesake.members}
        topics = assigned_topics(assignments.values())
        await manager.topics.learn(topics, follow=True)
        if manager.add_group(name) is None:
            raise MoveRefused("this instance no longer coordinates its partition")
        if not known:
            return
        protocol = KIP_848 if namesake.has_consumers else described.protocol_data
        generation = described.group_epoch if namesake.has_consumers else next(iter(known.values())).generation
        group = GroupMetadata(name, ClassicState.STABLE, manager.now_ms(), generation, protocol_name=protocol)
        group.topic_ids = {topic: manager.topics.identity(topic) for topic in topics}
        for one in namesake.members:
            group.add(self._member(name, protocol, one, known[one.member_id]), namesake.kind)
        _refuse(await manager.store_group(group, assignments, group.topic_ids))
        machine = manager.states[partition_of(name)].groups[name] = Machine(group, manager.limits)
        self._client_assigned.set_timer(name, machine)

    async def _store(self, name: str, offsets: Mapping[TopicPartition, Any]) -> None:
        """Writes the offsets to the log, and reads them back."""
        manager = self._manager
        await manager.topics.learn({tp.topic for tp in offsets}, follow=True)
        now_ms = manager.now_ms()
        stored: Offsets = {
            (tp.topic, tp.partition): CommittedOffset(
                one.committed_offset,
                one.committed_leader_epoch,
                one.metadata or "",
                now_ms,
                manager.topics.identity(tp.topic),
            )
            for tp, one in offsets.items()
        }
        for part in parts(list(stored), _OFFSETS_AT_ONCE):
            _refuse(await manager.store_offsets(name, {where: stored[where] for where in part}))
        if dict(manager.offsets(name)) != stored:
            raise MoveRefused("its offsets were not written completely")

    def _member(self, name: str, protocol: str, one: Any, seen: Seen) -> MemberMetadata:
        longest_s = self._manager.limits.max_session_timeout_s
        session_s = seen.session_ms / 1000 or longest_s
        if protocol == KIP_848:
            session_s = self._managed.terms.session_timeout_s
        return MemberMetadata(
            *(one.member_id, instance_of(one), one.client_id, one.client_host),
            session_s,
            seen.rebalance_ms / 1000 or longest_s,
            (Protocol(protocol, getattr(one, "member_metadata", b"")),),
            _assigned(one),
            expires_at=self._manager.now(name) + session_s,
            is_new=False,
        )

    # --- giving back -------------------------------------------------------------------------------------------------

    async def give_back(self, name: str) -> str:
        """Makes a client-assigned group native, and returns what was moved. Its members rejoin once; the brokers' first
        generation waits for all of them. Raises :class:`MoveRefused`."""
        try:
            kind = await self._closed(name)
            if self._groups.is_changing(name, or_writing=False):
                raise MoveRefused("it is being changed; try again")
            with self._groups.change(name):
                return await self._given_back(name, kind)
        except (StoreError, MalformedValue, BrokerError) as error:
            raise MoveRefused(str(error)) from error

    def _group(self, name: str) -> GroupMetadata:
        machine = self._manager.group(name)
        return machine.metadata if machine is not None else GroupMetadata(name)

    async def _closed(self, name: str) -> str:
        """Closes the namesake while the group goes on: into one without members, nobody gets for seconds. Returns its
        protocol type."""
        kind = self._group(name).protocol_type or CONSUMER_TYPE
        record = self._kinds.record_of(name)
        if record is None:
            raise MoveRefused("it has no record")
        if not record.fenced:
            namesake = await self._namesake(name)
            if namesake is not None and namesake.members:
                raise MoveRefused("the brokers' group of this name has members; stop them first")
            fenced = structs.replace(record, fenced=secrets.token_hex(8))
            await self._kinds.record(name, record.kind, record, fenced=fenced.fenced)
            record = fenced
            self._go_on(name)
        late = _now() + _FENCED_WITHIN_S
        while _now() < late:
            namesake = await self._namesake(name) if name in self._standing else None
            if namesake is not None and namesake.kind not in {kind, ""}:
                await self._native.remove_fence(name, record)  # an empty group may have another type
                self._keep(name, self._kept(name, await self._joined(name, kind)))
            elif namesake is not None and namesake.is_closed:
                return kind
            await asyncio.sleep(_SETTLE_CHECK_S)
        raise MoveRefused("the brokers' group of this name cannot be closed; look at the instance's log")

    async def _given_back(self, name: str, kind: str) -> str:
        manager, record = self._manager, self._record_of(name, GroupKind.CLIENT_ASSIGNED)
        group = self._group(name)
        if group.state not in {ClassicState.STABLE, ClassicState.EMPTY}:
            raise MoveRefused("it is rebalancing; try again")
        late = _now() + FREEZE_S
        while manager.is_writing(name) and _now() < late:
            await asyncio.sleep(_CHECK_S)
        if manager.is_writing(name):
            raise MoveRefused("commits are still being written; try again")
        _refuse(await manager.prove(name))
        offsets = manager.offsets(name)
        await manager.topics.learn({topic for topic, _ in offsets})
        stored = {TopicPartition(*where): one for where, one in current_offsets(offsets, manager.topics).items()}
        machine, count = manager.group(name), len(group.members)
        if name in self._fences:
            self._fences.pop(name).cancel()
        try:
            async with asyncio.timeout_at(late):
                await self._fill(name, kind, stored)
                if count:
                    await self._opened(name, kind)
            await self._record_return(name, record)
        except TimeoutError as error:
            self._go_on(name)
            raise MoveRefused("writing its offsets to the brokers took too long") from error
        except (Exception, asyncio.CancelledError):
            self._go_on(name)
            raise
        if machine is not None:
            self._client_assigned.carry_out(name, machine, machine.end(Error.NOT_COORDINATOR))
        self._go_on(name)
        log.info("gave a group back to the brokers group=%s members=%d", name, count)
        return f"{counted(len(stored), 'offset')}; {counted(count, 'member')} will rejoin"

    async def give_back_consumers(self, name: str) -> str:
        """Makes a managed group of KIP-848 members native, and returns what was moved. Each member is told that it is
        none any more, and gives its partitions up, while the namesake is closed. Raises :class:`MoveRefused`."""
        try:
            if await self._instances.newest_version(_CONSUMERS, (0, _WITH_TYPES)) < _WITH_TYPES:
                raise MoveRefused(
                    "its members use KIP-848, which the brokers do not support; stop them, or switch them to"
                    " group.protocol=classic first"
                )
            await self._closed(name)
            if self._groups.is_changing(name, or_writing=False):
                raise MoveRefused("it is being changed; try again")
            with self._groups.change(name):
                return await self._consumers_given_back(name)
        except (StoreError, MalformedValue, BrokerError) as error:
            raise MoveRefused(str(error)) from error

    async def _consumers_given_back(self, name: str) -> str:
        managed, record = self._managed, self._record_of(name, GroupKind.MANAGED)
        _refuse(await self._manager.prove(name))
        group = await managed.administration.registered(name)
        if not group.is_decided:
            raise MoveRefused("the elected coordinator has not assigned its partitions yet; try again")
        late = _now() + may_freeze_s(one.session_timeout_ms / 1000 for one in group.members.values())
        if name in self._fences:
            self._fences.pop(name).cancel()
        try:
            async with asyncio.timeout_at(late):
                ids = await self._heard_ids(name, group.protocols)
                error, offsets = await managed.stored(name)
                _refuse(error)
                exist = await managed.administration.topics_that_exist(name, {topic for topic, _ in offsets})
                stored = {TopicPartition(*where): one for where, one in offsets.items() if where[0] in exist}
                await self._fill(name, CONSUMER_TYPE, stored)
                await self._expect(name, group.members, ids)
            await self._record_return(name, record, group.leaving(name))
        except (Exception, asyncio.CancelledError) as error:
            if self._kinds.record_of(name) == record:
                await asyncio.shield(self._removed(name))
            self._go_on(name)
            if isinstance(error, TimeoutError):
                raise MoveRefused("writing its offsets to the brokers took too long") from error
            raise
        managed.groups.discard(name)
        self._go_on(name)
        log.info("gave a group back to the brokers group=%s members=%d", name, len(ids))
        return f"{counted(len(stored), 'offset')}; {counted(len(ids), 'member')} will rejoin"

    def _record_of(self, name: str, kind: GroupKind) -> GroupRecord:
        record = self._kinds.record_of(name)
        if record is None or record.kind is not kind:
            raise MoveRefused(f"it is no longer {kind}")
        return record

    async def _heard_ids(self, name: str, consumers: Collection[str]) -> dict[str, str]:
        """Waits until nothing of the members is being written, and returns their ids."""
        while await self._managed.terms.places(name) is None:
            await asyncio.sleep(_CHECK_S)
        heard = self._managed.terms.heard_of(name)
        ids = {one.key[1]: one.member_id for one in heard}
        if ids.keys() != set(consumers):
            raise MoveRefused("its members have not all been heard yet; try again")
        return ids

    async def _expect(self, name: str, members: Mapping[str, Member], ids: Mapping[str, str]) -> None:
        """Writes to the log for whom the fence waits."""
        manager = self._manager
        await self._removed(name)
        if manager.add_group(name) is None:
            raise MoveRefused("this instance no longer coordinates its partition")
        if not ids:
            return
        group = GroupMetadata(name, ClassicState.STABLE, manager.now_ms(), protocol_name=KIP_848)
        for consumer, member_id in ids.items():
            one = members[consumer]
            session_s = one.session_timeout_ms / 1000
            static = consumer if is_instance((name, consumer), member_id) else None
            who = member_id, static, one.client or "", f"/{one.host}", session_s, one.rebalance_timeout_ms / 1000
            expires_at = manager.now(name) + session_s
            group.add(
                MemberMetadata(*who, (Protocol(KIP_848, b""),), b"", expires_at=expires_at, is_new=False), CONSUMER_TYPE
            )
        _refuse(await manager.store_group(group, dict.fromkeys(group.members, b""), {}))
        manager.states[partition_of(name)].groups[name] = Machine(group, manager.limits)

    async def _record_return(self, name: str, record: GroupRecord, ops: Sequence[Op] = ()) -> None:
        """A group that may be native by now must take no commit here, and its namesake is closed again."""

        def doubts() -> None:
            self._keep(name, self._kept(name, None))

        await self._kinds.record_surely(name, GroupKind.NATIVE, record, ops, doubts)

    async def _fill(self, name: str, kind: str, stored: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Makes the namesake's offsets those that are stored here."""
        fence = await self._new_fence(name)
        try:
            await fence.join(kind)
            node = await self._instances.native_coordinator(name)
            if node is None:
                raise BrokerError("the brokers coordinate no groups")
            wanted = {**dict.fromkeys(await self._offsets(node, name), _NO_OFFSET), **stored}
            for part in parts(sorted(wanted), _OFFSETS_AT_ONCE):
                await fence.commit({tp: wanted[tp] for tp in part})
            there = await self._offsets(node, name)
            if {tp: one.committed_offset for tp, one in there.items()} != {
                tp: one.offset for tp, one in stored.items()
            }:
                raise MoveRefused("its offsets were not written completely")
        finally:
            fence.close()

    async def _released(self, name: str) -> None:
        """Ends a give-back: opens the namesake, and ends the fence once all members are seen there, or once those that
        are missing have lost their sessions: only then may the brokers hand out their partitions. A newcomer may look
        like a member that is missing, so each must also have given its former id up. Who is heard and does not join
        may still be reading what it had: it has as long as in any rebalance. May be repeated."""
        group, record = self._group(name), self._kinds.record_of(name)
        has_consumers = group.protocol_name == KIP_848
        members = dict(group.members)
        expected, began = _who(() if has_consumers else members.values()), _now()
        late = began + _longest_s(group)
        former = {one.member_id for one in members.values() if has_consumers or one.instance_id is None}
        while record is not None and record.is_returning:
            try:
                namesake = await self._namesake(name)
                if namesake is not None and namesake.is_closed and expected:
                    await self._opened(name, namesake.kind)
                while namesake is not None and _now() < late:
                    if namesake.node[0] not in self._instances.running():
                        began = _now()  # nobody can be heard
                    back = await self._kinds.known_of(name)
                    silent = _silent(members.values(), _now() - began) - back.heard
                    gone = (back.left | silent) & members.keys()
                    missing = former - {one.member_id for one in namesake.members} - back.given_up - gone
                    if not missing and not expected - _who(members[one] for one in gone) - _who(namesake.members):
                        break
                    await asyncio.sleep(_SETTLE_CHECK_S)
                    namesake = await self._namesake(name)
                await self._gone(name, record)
                await self._removed(name)
                await self._kinds.record(name, GroupKind.NATIVE, record, fenced="")
            except RecordChanged:
                return
            except (StoreError, MalformedValue, BrokerError, MoveRefused) as error:
                log.info("cannot end giving back group=%s: %s; trying again", name, error)
                await asyncio.sleep(_RESOLVES_AFTER_S)
            else:
                return

    async def _gone(self, name: str, record: GroupRecord) -> None:
        """Ends the fence. Returns once that is durable, with the generation that follows: another broker would have the
        fence back, and its generation would wait for it."""
        while (namesake := await self._namesake(name)) is not None:
            if namesake.is_fenced:
                await self._native.remove_fence(name, record)
            elif namesake.has_consumers or namesake.described.group_state in {ClassicState.STABLE, ClassicState.EMPTY}:
                return
            await asyncio.sleep(_SETTLE_CHECK_S)

    async def _removed(self, name: str) -> None:
        """Removes what the log has of the group. It has no members there any more."""
        _refuse(await self._manager.remove_group(name))

    async def _opened(self, name: str, kind: str) -> None:
        """Lets the members into the namesake. They wait, because the fence does not join again. It is opened before
        they are sent there: librdkafka waits 2 s after a refusal."""
        group = self._group(name)
        fence = await self._new_fence(name)
        try:
            await fence.join(kind, sorted(group.candidates()), max(_longest_s(group), _HELD_UP_S))
        finally:
            fence.close()


def may_freeze_s(timeouts_s: Iterable[float]) -> float:
    """Returns how long a group whose members have these session and rebalance timeouts may be frozen, in seconds."""
    return min([FREEZE_S, *(one / 3 for one in timeouts_s)])


def _silent(members: Iterable[MemberMetadata], for_s: float) -> frozenset[str]:
    """Returns the ids of the members whose sessions have ended if nobody has told for so long that they were heard."""
    return frozenset(one.member_id for one in members if for_s > one.session_timeout_s + _HEARD_WITHIN_S)


def _longest_s(group: GroupMetadata) -> float:
    return max((max(one.session_timeout_s, one.rebalance_timeout_s) for one in group.members.values()), default=0.0)


@contextmanager
def _closed_if_it_fails(fence: Fence) -> Iterator[None]:
    try:
        yield
    except (Exception, asyncio.CancelledError):
        fence.close()
        raise


def _leaving(namesake: Namesake) -> list[tuple[str, str | None]]:
    return [(one.member_id, one.group_instance_id) for one in namesake.members]


def _who(members: Iterable[Any]) -> Counter[tuple[str, str | None]]:
    """Returns what tells members from others, although they join with other ids and by other hosts."""
    return Counter((one.client_id, instance_of(one)) for one in members)


def _assigned(one: Any) -> bytes:
    """Returns what a member is assigned, as classic members are told it."""
    if hasattr(one, "member_assignment"):
        return one.member_assignment  # type: ignore[no-any-return]
    return encoded_assignment(partitions_of(one.assignment))


def _is_of_one_generation(namesake: Namesake, known: Mapping[str, Seen]) -> bool:
    """Returns whether all members are told everything. Of a KIP-848 member, the broker alone knows that."""
    if not namesake.has_consumers:
        return len({one.generation for one in known.values()}) <= 1
    described = namesake.described
    return all(
        one.member_type == _USES_KIP_848
        and one.member_epoch == described.group_epoch
        and partitions_of(one.assignment) == partitions_of(one.target_assignment)
        for one in namesake.members
    )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _committed(one: CommittedOffset) -> dict[str, Any]:
    return {
        "committed_offset": one.offset,
        "committed_leader_epoch": one.leader_epoch,
        "committed_metadata": one.metadata,
    }


def _refuse(error: Error) -> None:
    if error is not Error.NONE:
        raise MoveRefused(f"its groups log answered {error.name}")
