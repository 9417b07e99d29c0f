"""Takes native groups over while they run, and gives them back (ADR 60).

A group that is taken over stays as it is: its members go on with their ids, their generation and their partitions, and
only look up their coordinator again. A member of ours, the *fence*, stays in the brokers' group of the same name, the
*namesake*, so that nobody can become a second owner there.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kafka_coord.classic_groups.errors import Error, named
from kafka_coord.classic_groups.machine import Group as Machine
from kafka_coord.classic_groups.metadata import ClassicState, GroupMetadata, MemberMetadata, Protocol
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import BrokerError, MalformedValue, StoreError
from kafka_coord.frontends.kafka.client_assigned import ClientAssignedGroups
from kafka_coord.frontends.kafka.groups import Groups
from kafka_coord.frontends.kafka.instances import Instances, Node
from kafka_coord.frontends.kafka.native import NativeGroups
from kafka_coord.grouplog.manager import Offsets, partition_of
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.grouplog.topics import assigned_topics, current_offsets
from kafka_coord.kafka.connection import BrokerConnection, of_group
from kafka_coord.kafka.coordinators import (
    Moving,
    by_topic,
    committed_offsets,
    fetch_offsets,
    refused_offsets,
    unless_moving,
)
from kafka_coord.model import CommittedOffset, GroupKind, TopicPartition
from kafka_coord.model.sequences import parts, some
from kafka_coord.wire.consumer_protocol import encoded_subscription
from kafka_coord.wire.messages import message
from kafka_coord.zk.kinds import Seen

log = logging.getLogger(__name__)

FENCE = "kafka-coord"
"""The fence's group.instance.id, protocol type and protocol. Whoever goes on with it joins with the same instance id,
and replaces it."""
BARRIER = "kafka-coord.barrier."
"""Groups of which an offset is committed, to know that all earlier commits in the same partition are durable."""
FREEZE_S = 5.0
"""How long a group is frozen at most, in seconds."""
_SETTLES, _SETTLE_CHECK_S = 100, 0.1
_CHECK_S = 0.01
_BEATS_S = 60.0
_BEGINS_AGAIN_S = 5.0
_RESOLVES_AFTER_S = 2.0
_JOINED_WITHIN_S = 60.0
_OFFSETS_AT_ONCE = 2_000
_DESCRIBE, _LEAVE, _JOIN, _SYNC, _BEAT = (4, 5), (3, 5), (5, 9), (3, 5), (3, 4)
_COMMIT, _COMMIT_AS_MEMBER, _FETCH_STABLE = (2, 3), (7, 8), 7
_SHOWN = 10


class MoveRefused(Exception):
    """The group cannot be moved, or was not: it is as before."""


class Namesake(NamedTuple):
    """The brokers' group, as its coordinator beside the instance at ``node`` describes it."""

    node: Node
    described: Any

    @property
    def members(self) -> Sequence[Any]:
        return [one for one in self.described.members if one.group_instance_id != FENCE]

    @property
    def is_ours_alone(self) -> bool:
        return [one.group_instance_id for one in self.described.members] == [FENCE]


class Fence:
    """Our member in a namesake. ``protocols`` are a consumer's if it is to hold up the brokers' first generation."""

    def __init__(
        self,
        connection: BrokerConnection,
        group: str,
        session_s: float,
        protocol_type: str = FENCE,
        protocols: Mapping[str, bytes] | None = None,
        rebalance_s: float = _JOINED_WITHIN_S,
    ) -> None:
        self._connection, self.group, self._session_ms = connection, group, round(session_s * 1000)
        self._type, self._protocols = protocol_type, protocols or {FENCE: b""}
        self._rebalance_ms = round(rebalance_s * 1000)
        self._who: dict[str, Any] = {}
        self.joining: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Begins to join. The task ends when the generation is durable."""
        self.joining = asyncio.create_task(self._join())
        return self.joining

    async def join(self) -> None:
        """Waits until its generation is durable. Raises :class:`BrokerError`."""
        await (self.joining or self.begin())

    async def _join(self) -> None:
        form = message("JoinGroupRequest")
        of_protocol = form.struct("JoinGroupRequestProtocol")
        protocols = tuple(of_protocol(name=name, metadata=data) for name, data in self._protocols.items())
        fields = {"session_timeout_ms": self._session_ms, "rebalance_timeout_ms": self._rebalance_ms}
        asked = form(
            group_id=self.group, group_instance_id=FENCE, protocol_type=self._type, protocols=protocols, **fields
        )
        joined = await self._connection.ask("JoinGroup", _JOIN, asked, _JOINED_WITHIN_S)
        _check(joined.error_code, "the fence cannot join the brokers' group")
        known = {"group_id": self.group, "group_instance_id": FENCE, "member_id": joined.member_id}
        self._who = known | {"generation_id": joined.generation_id}
        form = message("SyncGroupRequest")
        own = form.struct("SyncGroupRequestAssignment")(member_id=joined.member_id, assignment=b"")
        named_protocol = {"protocol_type": self._type, "protocol_name": joined.protocol_name}
        synced = await self._connection.ask("SyncGroup", _SYNC, form(**self._who, **named_protocol, assignments=(own,)))
        _check(synced.error_code, "the fence cannot join the brokers' group")

    async def beat(self) -> int:
        """Returns the error of a heartbeat. Raises :class:`BrokerError`."""
        answer = await self._connection.ask("Heartbeat", _BEAT, message("HeartbeatRequest")(**self._who))
        return int(answer.error_code)

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commits offsets to the namesake. Raises :class:`BrokerError`."""
        request = by_topic("OffsetCommitRequest", self.group, offsets, _committed)
        request.generation_id_or_member_epoch = self._who["generation_id"]
        request.member_id, request.group_instance_id = self._who["member_id"], FENCE
        for topic in (await self._connection.ask("OffsetCommit", _COMMIT_AS_MEMBER, request)).topics:
            for part in topic.partitions:
                _check(
                    part.error_code, f"{topic.name}-{part.partition_index} cannot be committed to the brokers' group"
                )

    def close(self) -> None:
        if self.joining is not None:
            self.joining.cancel()
        self._connection.close()


class Moves:
    """Takes groups over and gives them back. Use only on the event loop."""

    def __init__(
        self, groups: Groups, client_assigned: ClientAssignedGroups, native: NativeGroups, instances: Instances
    ) -> None:
        self._groups, self._client_assigned, self._native, self._instances = groups, client_assigned, native, instances
        self._manager, self._kinds = client_assigned.manager, native.kinds
        self._fences: dict[str, asyncio.Task[None]] = {}

    # --- terms -------------------------------------------------------------------------------------------------------

    def begin(self, partition: int) -> None:
        """Goes on with what the earlier terms of a partition have begun: undoes moves, and keeps fences."""
        for name in self._kinds.stuck(partition):
            self._client_assigned.run(self._resolved(name))
        for name in self._kinds.fenced(partition):
            self._keep(name)

    def end(self, partition: int) -> None:
        for name in [one for one in self._fences if partition_of(one) == partition]:
            self._fences.pop(name).cancel()

    async def close(self) -> None:
        for task in self._fences.values():
            task.cancel()
        await asyncio.gather(*self._fences.values(), return_exceptions=True)

    async def _resolved(self, name: str) -> None:
        """Ends a move whose outcome is unknown, or that an earlier term has begun: undoes it or, if it was recorded,
        goes on with the fence."""
        while partition_of(name) in self._manager.terms:
            await asyncio.sleep(_RESOLVES_AFTER_S)  # by then, the record is known
            record = self._kinds.record_of(name)
            try:
                if record is not None and record.moving:
                    log.info("undoing a take-over that did not end group=%s", name)
                    await self._undo(name)
                elif self._is_fenced(name):
                    self._keep(name)
            except (StoreError, MalformedValue, BrokerError) as error:
                log.info("cannot undo a take-over group=%s: %s; trying again", name, error)
            else:
                return

    def _keep(self, name: str, joined: Fence | None = None) -> None:
        if name in self._fences:
            self._fences.pop(name).cancel()
        self._fences[name] = asyncio.create_task(self._kept(name, joined))

    async def _kept(self, name: str, fence: Fence | None) -> None:
        """Keeps the fence in the namesake until the record says that there is none."""
        try:
            while self._is_fenced(name):
                try:
                    fence = fence or await self._new_fence(name)
                    await fence.join()
                    await asyncio.sleep(_BEATS_S)
                    if await fence.beat():
                        fence.close()
                        fence = None
                except BrokerError as error:
                    log.info("cannot keep the fence group=%s: %s; trying again", name, error)
                    if fence is not None:
                        fence.close()
                    fence = None
                    await asyncio.sleep(_BEGINS_AGAIN_S)
            node = await self._instances.native_coordinator(name)
            if node is not None:
                await self._leave(node, name)
        except (BrokerError, StoreError) as error:
            log.info("cannot end the fence group=%s: %s", name, error)
        finally:
            if fence is not None:
                fence.close()

    def _is_fenced(self, name: str) -> bool:
        record = self._kinds.record_of(name)
        return record is not None and record.fenced

    async def _new_fence(self, name: str, *protocols: Any, **more: Any) -> Fence:
        node = await self._instances.native_coordinator(name)
        if node is None:
            raise BrokerError("the brokers coordinate no groups")
        session_s = self._manager.limits.max_session_timeout_s
        return Fence(self._native.connection(node), name, session_s, *protocols, **more)

    # --- taking over -------------------------------------------------------------------------------------------------

    async def take_over(self, name: str) -> str:
        """Makes a native group client-assigned, and returns what was moved. Raises :class:`MoveRefused`."""
        try:
            namesake = await self._settled(name)
            move = secrets.token_hex(8)
            if self._groups.is_changing(name, or_writing=False):
                raise MoveRefused("it is being changed; try again")
            with self._groups.change(name):
                version = await self._kinds.record(name, GroupKind.NATIVE, moving=move)
                try:
                    return await self._taken_over(name, namesake, version)
                except BaseException:
                    try:
                        await asyncio.shield(self._undo(name))
                    except (StoreError, MalformedValue, BrokerError):
                        self._client_assigned.run(self._resolved(name))
                    raise
        except (StoreError, MalformedValue, BrokerError) as error:
            raise MoveRefused(str(error)) from error

    async def _undo(self, name: str) -> None:
        """Leaves the group to the brokers, unless the record says that it was taken over: its members may have
        committed since. If the record cannot be written, changes nothing."""
        if not await self._kinds.undo_move(name):
            if self._is_fenced(name):
                self._keep(name)
            return
        if self._manager.has(name):
            await self._manager.delete_group(name)
        node = await self._instances.native_coordinator(name)
        if node is not None:
            await self._leave(node, name)

    async def _taken_over(self, name: str, before: Namesake, version: int) -> str:
        clock = asyncio.get_running_loop().time
        began = clock()
        known = await self._acknowledged(name, version, began + FREEZE_S)
        namesake = await self._namesake(name)
        if namesake is None or namesake.described != before.described:
            raise MoveRefused("its members have changed; try again")
        strangers = [one for one in namesake.members if one.member_id not in known]
        if strangers:
            shown = some([f"{one.client_id} at {one.client_host.removeprefix('/')}" for one in strangers], _SHOWN)
            raise MoveRefused(f"members do not use the instances ({shown}); set their bootstrap.servers first")
        theirs = {one.member_id: known[one.member_id] for one in namesake.members}
        if len(generations := {one.generation for one in theirs.values()}) > 1:
            raise MoveRefused("its members are not of one generation; try again")
        longest_ms = round(self._manager.limits.max_session_timeout_s * 1000)
        sessions = [one.session_ms or longest_ms for one in theirs.values()]
        late = began + min(FREEZE_S, *(one / 3000 for one in sessions), FREEZE_S)
        fence = await self._fenced(namesake, late)
        try:
            count = await self._copied(name, namesake, theirs, next(iter(generations), 0))
            _refuse_late(clock() - began, late - began)
            await self._kinds.record(name, GroupKind.CLIENT_ASSIGNED, moving="", fenced=True)
        except BaseException:
            fence.close()
            raise
        self._keep(name, fence)
        took_ms = round((clock() - began) * 1000)
        log.info("took over a native group group=%s members=%d took_ms=%d", name, len(theirs), took_ms)
        return f"{counted(count, 'offset')} and {counted(len(theirs), 'member')}, frozen for {took_ms} ms"

    async def _copied(self, name: str, namesake: Namesake, known: Mapping[str, Seen], generation: int) -> int:
        """Copies the group, and returns the number of its offsets."""
        await self._barrier(namesake.node, name)
        offsets = await self._offsets(namesake.node, name)
        await self._store(name, namesake, known, generation, offsets)
        after = await self._namesake(name)
        if after is None or not after.is_ours_alone:
            raise MoveRefused("somebody else has joined the brokers' group meanwhile")
        return len(offsets)

    async def _settled(self, name: str) -> Namesake:
        """Waits, while nothing is frozen, until the namesake is at rest and has no open transaction."""
        why = "it is rebalancing"
        for _ in range(_SETTLES):
            try:
                namesake = await self._namesake(name)
                if namesake is None:
                    raise MoveRefused("the brokers do not coordinate it")
                if namesake.described.protocol_type == FENCE:
                    await self._leave(namesake.node, name)
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
        request = message("DescribeGroupsRequest")(groups=(name,))
        found = of_group((await self._native.ask(node, "DescribeGroups", _DESCRIBE, request)).groups, name)
        _check(found.error_code, "the brokers' group cannot be described")
        if found.group_state != ClassicState.DEAD:
            return Namesake(node, found)
        if not await self._native.exists(name):
            return None
        request = message("ConsumerGroupDescribeRequest")(group_ids=(name,))
        consumers = of_group((await self._native.ask(node, "ConsumerGroupDescribe", 0, request)).groups, name)
        _check(consumers.error_code, "the brokers' group cannot be described")
        if consumers.members:
            raise MoveRefused("its members use KIP-848; stop them, or switch them to group.protocol=classic first")
        empty = message("DescribeGroupsResponse").struct("DescribedGroup")
        return Namesake(node, empty(group_id=name, group_state=ClassicState.EMPTY))

    async def _acknowledged(self, name: str, version: int, late: float) -> dict[str, Seen]:
        """Waits until every registered instance has heard that the group is frozen, and returns the members that any of
        them has seen."""
        partition, running = partition_of(name), self._instances.running()
        while True:
            heard = await self._kinds.acknowledged(partition, running)
            if missing := sorted(one for one in running if one not in heard or heard[one].seen < version):
                if asyncio.get_running_loop().time() >= late:
                    raise MoveRefused(
                        f"instances {', '.join(map(str, missing))} did not acknowledge; look at their logs"
                    )
                await asyncio.sleep(_CHECK_S)
                continue
            seen: dict[str, Seen] = {}
            for one in heard.values():
                for member_id, known in one.members.get(name, {}).items():
                    if member_id not in seen or seen[member_id].generation < known.generation:
                        seen[member_id] = known
            return seen

    async def _fenced(self, namesake: Namesake, late: float) -> Fence:
        """Removes the members from the namesake, and puts the fence there. Returns once nobody else can join or
        commit."""
        name = namesake.described.group_id
        await self._remove(namesake.node, name, [(one.member_id, one.group_instance_id) for one in namesake.members])
        fence = await self._new_fence(name)
        joining = fence.begin()
        joining.add_done_callback(lambda task: task.cancelled() or task.exception())
        while asyncio.get_running_loop().time() < late:
            seen = await self._namesake(name)
            if seen is not None and seen.is_ours_alone:
                return fence
            if joining.done():
                await joining
            await asyncio.sleep(_CHECK_S)
        fence.close()
        raise MoveRefused("the fence could not join the brokers' group in time")

    async def _leave(self, node: Node, name: str) -> None:
        await self._remove(node, name, [("", FENCE)])

    async def _remove(self, node: Node, name: str, leaving: Sequence[tuple[str, str | None]]) -> None:
        form = message("LeaveGroupRequest")
        who = form.struct("MemberIdentity")
        members = tuple(who(member_id=member_id, group_instance_id=instance_id) for member_id, instance_id in leaving)
        if not members:
            return
        answer = await self._native.ask(node, "LeaveGroup", _LEAVE, form(group_id=name, members=members))
        for code in (answer.error_code, *(one.error_code for one in answer.members)):
            if code != Error.UNKNOWN_MEMBER_ID:
                _check(code, "members cannot be removed from the brokers' group")

    async def _barrier(self, node: Node, name: str) -> None:
        """Returns once every commit that the broker has accepted is durable, and seen by whoever asks for offsets: a
        later commit in the same partition is durable."""
        count = self._instances.native_partitions
        numbered = (f"{BARRIER}{number}" for number in itertools.count())
        beside = next(one for one in numbered if partition_of(one, count) == partition_of(name, count))
        request = by_topic("OffsetCommitRequest", beside, {TopicPartition(TOPIC, 0): CommittedOffset(0)}, _committed)
        for topic in (await self._native.ask(node, "OffsetCommit", _COMMIT, request)).topics:
            for part in topic.partitions:
                _check(part.error_code, f"no offset can be committed to {beside}")

    async def _offsets(self, node: Node, name: str) -> dict[TopicPartition, Any]:
        async def ask(request: str, version: Any, value: Any) -> Any:
            return await self._native.ask(node, request, version, value)

        (answer,) = await fetch_offsets(ask, [name], _FETCH_STABLE, require_stable=True)
        code, where = refused_offsets(answer)
        _check(code, f"the brokers' offsets cannot be read {where}".rstrip())
        return committed_offsets(answer)

    async def _store(
        self, name: str, namesake: Namesake, known: Mapping[str, Seen], generation: int, offsets: Mapping[Any, Any]
    ) -> None:
        """Writes the offsets and the members to the log, and reads them back."""
        manager, described = self._manager, namesake.described
        if manager.has(name):
            _refuse(await manager.delete_group(name))
        assignments = {one.member_id: one.member_assignment for one in namesake.members}
        topics = {tp.topic for tp in offsets} | assigned_topics(assignments.values())
        await manager.topics.learn(topics, follow=True)
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
        if manager.add_group(name) is None:
            raise MoveRefused("this instance no longer coordinates its partition")
        for part in parts(list(stored), _OFFSETS_AT_ONCE):
            _refuse(await manager.store_offsets(name, {where: stored[where] for where in part}))
        if dict(manager.offsets(name)) != stored:
            raise MoveRefused("its offsets were not written completely")
        if not known:
            return
        group = GroupMetadata(name, ClassicState.STABLE, now_ms, generation, protocol_name=described.protocol_data)
        group.topic_ids = {topic: manager.topics.identity(topic) for topic in assigned_topics(assignments.values())}
        for one in namesake.members:
            group.add(self._member(name, described, one, known[one.member_id]), described.protocol_type)
        _refuse(await manager.store_group(group, assignments, group.topic_ids))
        machine = manager.states[partition_of(name)].groups[name] = Machine(group, manager.limits)
        self._client_assigned.set_timer(name, machine)

    def _member(self, name: str, described: Any, one: Any, seen: Seen) -> MemberMetadata:
        longest_s = self._manager.limits.max_session_timeout_s
        session_s = seen.session_ms / 1000 or longest_s
        return MemberMetadata(
            *(one.member_id, one.group_instance_id, one.client_id, one.client_host),
            session_s,
            seen.rebalance_ms / 1000 or longest_s,
            (Protocol(described.protocol_data, one.member_metadata),),
            one.member_assignment,
            expires_at=self._manager.now(name) + session_s,
            is_new=False,
        )

    # --- giving back -------------------------------------------------------------------------------------------------

    async def give_back(self, name: str) -> str:
        """Makes a client-assigned group native, and returns what was moved. Its members rejoin once; the brokers' first
        generation waits for all of them. Raises :class:`MoveRefused`."""
        try:
            with self._groups.change(name):
                return await self._given_back(name)
        except (StoreError, MalformedValue, BrokerError) as error:
            raise MoveRefused(str(error)) from error

    async def _given_back(self, name: str) -> str:
        manager = self._manager
        machine = manager.group(name)
        group = machine.metadata if machine is not None else GroupMetadata(name)
        if group.state not in {ClassicState.STABLE, ClassicState.EMPTY}:
            raise MoveRefused("it is rebalancing; try again")
        late = asyncio.get_running_loop().time() + FREEZE_S
        while manager.is_writing(name) and asyncio.get_running_loop().time() < late:
            await asyncio.sleep(_CHECK_S)
        if manager.is_writing(name):
            raise MoveRefused("commits are still being written; try again")
        _refuse(await manager.prove(name))
        offsets = manager.offsets(name)
        await manager.topics.learn({topic for topic, _ in offsets})
        stored = {TopicPartition(*where): one for where, one in current_offsets(offsets, manager.topics).items()}
        if name in self._fences:
            self._fences.pop(name).cancel()
        holder = None
        try:
            await self._fill(name, stored)
            holder = await self._holder(group) if group.members else None
            await self._kinds.record(name, GroupKind.NATIVE, fenced=False)
        except BaseException:
            if holder is not None:
                holder.close()
            await asyncio.shield(self._found_out(partition_of(name)))
            self._client_assigned.run(self._resolved(name))
            raise
        count = len(group.members)
        if holder is not None:
            self._client_assigned.run(self._released(holder, group, count))
        _refuse(await manager.delete_group(name))
        if machine is not None:
            self._client_assigned.carry_out(name, machine, machine.end(Error.NOT_COORDINATOR))
        log.info("gave a group back to the brokers group=%s members=%d", name, count)
        return f"{counted(len(stored), 'offset')}; {counted(count, 'member')} will rejoin"

    async def _found_out(self, partition: int) -> None:
        """Waits until it is known what is recorded. A group that may be native by now must take no commit here."""
        while partition in self._manager.terms:
            try:
                await self._kinds.find_out(partition)
            except (StoreError, MalformedValue) as error:
                log.info("cannot find out the kinds of groups partition=%d: %s; trying again", partition, error)
                await asyncio.sleep(_SETTLE_CHECK_S)
            else:
                return

    async def _fill(self, name: str, stored: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commits the offsets to the namesake, reads them back, and leaves it empty."""
        namesake = await self._namesake(name)
        if namesake is not None and namesake.members:
            raise MoveRefused("the brokers' group of this name has members; stop them first")
        fence = await self._new_fence(name)
        try:
            await fence.join()
            for part in parts(sorted(stored), _OFFSETS_AT_ONCE):
                await fence.commit({tp: stored[tp] for tp in part})
            filled = await self._namesake(name)
            there = await self._offsets(filled.node, name) if filled is not None else {}
            if filled is None or any(
                tp not in there or there[tp].committed_offset != stored[tp].offset for tp in stored
            ):
                raise MoveRefused("its offsets were not written completely")
            await self._leave(filled.node, name)
        finally:
            fence.close()

    async def _holder(self, group: GroupMetadata) -> Fence:
        """Returns our member in the namesake, now of the group's own type, alone in the first generation."""
        protocols = {one: encoded_subscription() for one in group.candidates()}
        kind = group.protocol_type or "consumer"
        holder = await self._new_fence(group.group_id, kind, protocols, rebalance_s=_longest_s(group))
        await holder.join()
        return holder

    async def _released(self, holder: Fence, group: GroupMetadata, count: int) -> None:
        """Ends the holder once all members are seen in the namesake, or once those that are missing have lost their
        sessions: only then may the brokers hand out their partitions."""
        name, clock = group.group_id, asyncio.get_running_loop().time
        late = clock() + _longest_s(group)
        try:
            while clock() < late:
                with suppress(BrokerError, MoveRefused):
                    seen = await self._namesake(name)
                    if seen is not None and len(seen.members) >= count:
                        break
                await asyncio.sleep(_SETTLE_CHECK_S)
            node = await self._instances.native_coordinator(name)
            if node is not None:
                await self._leave(node, name)
        except (BrokerError, MoveRefused) as error:
            log.warning("cannot release the brokers' group=%s: %s; its session ends later", name, error)
        finally:
            holder.close()


def _longest_s(group: GroupMetadata) -> float:
    return max(max(one.session_timeout_s, one.rebalance_timeout_s) for one in group.members.values())


def _committed(one: CommittedOffset) -> dict[str, Any]:
    return {
        "committed_offset": one.offset,
        "committed_leader_epoch": one.leader_epoch,
        "committed_metadata": one.metadata,
    }


def _check(code: int, what: str) -> None:
    if unless_moving(code, f"{what}: "):
        raise BrokerError(f"{what}: {named(code)}")


def _refuse_late(took_s: float, most_s: float) -> None:
    if took_s > most_s:
        raise MoveRefused(f"it took {took_s:.1f} s, and {most_s:.1f} s is the most")


def _refuse(error: Error) -> None:
    if error is not Error.NONE:
        raise MoveRefused(f"its groups log answered {error.name}")
