"""Converts groups: as operators ask, and by name."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import TopicsReplaced
from kafka_coord.classic_groups.machine import Group as Machine
from kafka_coord.classic_groups.metadata import CONSUMER, ClassicState, GroupMetadata, MemberMetadata, Protocol
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import MalformedValue, StoreError
from kafka_coord.frontends.kafka.client_assigned import ClientAssignedGroups
from kafka_coord.frontends.kafka.group import GroupError
from kafka_coord.frontends.kafka.groups import Groups
from kafka_coord.frontends.kafka.managed.administration import Admitted, RegisteredMembers
from kafka_coord.frontends.kafka.managed.classic import ASSIGNORS, PROTOCOL, Place
from kafka_coord.frontends.kafka.managed.group import CannotBeMember, ManagedGroups
from kafka_coord.frontends.kafka.managed.heartbeats import PROTOCOL as KIP_848
from kafka_coord.frontends.kafka.moving import MoveRefused, Moves, may_freeze_s
from kafka_coord.frontends.kafka.native import KindFinder, Kinds
from kafka_coord.grouplog.manager import Offsets, partition_of
from kafka_coord.model import GroupKind, Request
from kafka_coord.model.histories import CONVERSION
from kafka_coord.model.names import is_legal
from kafka_coord.wire.consumer_protocol import encoded_assignment, encoded_subscription
from kafka_coord.zk.kinds import GroupRecord

log = logging.getLogger(__name__)

T = TypeVar("T")

_OFFSETS_AT_ONCE = 2_000
_CHECK_S, _CLEAR_AGAIN_S = 0.01, 5.0
_RESTS, _REST_CHECK_S = 600, 0.1
_DONE = "done"


class Converted(NamedTuple):
    """The response to an operator. ``result`` is ``done`` or ``refused``."""

    result: str
    message: str


_Way = Callable[[Request], Awaitable[Converted | None]]


class _Unfinished(StoreError):
    """The group was not converted. It is as before."""


class Conversions:
    """Converts groups. Use only on the event loop."""

    def __init__(
        self,
        groups: Groups,
        client_assigned: ClientAssignedGroups,
        managed: ManagedGroups,
        kinds: Kinds,
        finder: KindFinder,
        moves: Moves,
        matches_managed: Callable[[str], bool],
    ) -> None:
        self._groups, self._client_assigned, self._managed = groups, client_assigned, managed
        self._kinds, self._finder, self._moves = kinds, finder, moves
        self._manager, self._matches_managed = client_assigned.manager, matches_managed
        self._ways: Mapping[tuple[GroupKind, GroupKind], _Way] = {
            (GroupKind.MANAGED, GroupKind.CLIENT_ASSIGNED): self._give_back,
            (GroupKind.CLIENT_ASSIGNED, GroupKind.MANAGED): self._make_managed,
            (GroupKind.MANAGED, GroupKind.NATIVE): self._leave_to_brokers,
            (GroupKind.NATIVE, GroupKind.CLIENT_ASSIGNED): partial(_taken_over, moves, False),
            (GroupKind.NATIVE, GroupKind.MANAGED): partial(_taken_over, moves, True),
            (GroupKind.CLIENT_ASSIGNED, GroupKind.NATIVE): partial(_given_back, moves),
        }
        """How a group of one kind becomes one of another. Groups of classic members become client-assigned first."""

    async def take_over_by_name(self) -> None:
        """Takes over the empty groups whose names match ``managed_groups``, so that consumers that use ZooKeeper find
        their offsets. Ignores groups with other protocol types, such as those of Kafka Connect."""
        for name, group in self._manager.groups().items():
            if not self._kinds.are(GroupKind.CLIENT_ASSIGNED, name):
                continue
            metadata = group.metadata
            is_empty = metadata.state is ClassicState.EMPTY and metadata.protocol_type in {None, "", CONSUMER}
            if not is_empty or not self._matches_managed(name) or self._manager.is_writing(name):
                continue
            if not self._groups.serves(name):
                continue
            error = await self._groups.take_over(name, "its name matches managed_groups")
            if error is Error.COORDINATOR_NOT_AVAILABLE:
                return

    # --- by operators ------------------------------------------------------------------------------------------------

    def convert(self, asked: Request) -> None:
        """Starts carrying out an operator's request to convert a group, and answers it when done."""
        self._client_assigned.run(self._convert(asked))

    async def _convert(self, asked: Request) -> None:
        term = self._manager.terms.get(partition_of(asked.group))
        outcome = None if term is None else await self.converted(asked)
        if term is not None and outcome is not None:
            await self._managed.administration.answer_conversion(
                asked, term.znode_version, outcome.result, outcome.message
            )

    async def converted(self, asked: Request) -> Converted | None:
        """Converts the group to the kind ``asked.to``. Returns ``None`` if this instance no longer coordinates the
        group, so that another one will carry out the request."""
        name = asked.group
        if self._manager.availability(name) is not Error.NONE:
            return None
        try:
            is_now = await self._finder.found(name)
        except GroupError as error:
            return _unfinished(name, error.error.name)
        if is_now is None:
            return _refused(f"there is no group {name}")
        kind = asked.to or GroupKind.MANAGED
        if self._groups.is_changing(name, or_writing=False):
            return _refused(f"group {name} is being changed; try again")
        if is_now is kind:
            return _done(f"group {name} is already {kind}")
        first = await self._ways[is_now, kind](asked)
        if first is None or first.result != _DONE or self._kinds.of(name) is kind:
            return first
        for _ in range(_RESTS):
            machine = self._manager.group(name)
            if machine is None or machine.metadata.state in {ClassicState.EMPTY, ClassicState.STABLE}:
                break
            await asyncio.sleep(_REST_CHECK_S)
        is_now = self._kinds.of(name)
        if is_now is None or is_now is kind or self._groups.is_changing(name, or_writing=False):
            return _unfinished(name, "another change came in between")
        second = await self._ways[is_now, kind](asked)
        return second and second._replace(message=f"{first.message}; {second.message}")

    async def _leave_to_brokers(self, asked: Request) -> Converted | None:
        """Makes a managed group native if all its members use KIP-848. Otherwise makes it client-assigned."""
        name = asked.group
        try:
            protocols = set((await self._managed.administration.registered(name)).protocols.values())
        except StoreError as failure:
            return _unfinished(name, str(failure))
        if protocols != {KIP_848}:
            return await self._give_back(asked)
        given = await _moved(self._moves.give_back_consumers(name), asked)
        if given.result == _DONE and await self._complete(name, asked.reason, asked.by) is not Error.NONE:
            self._client_assigned.run(self._completed([name], asked.reason, asked.by))
        return given

    async def _make_managed(self, asked: Request) -> Converted | None:
        name, count = asked.group, len(self._manager.offsets(asked.group))
        machine, members = self._manager.group(name), 0
        if machine is None or not machine.metadata.has_members:
            error = await self._groups.take_over(name, _asked_by(asked))
        else:
            try:
                members = await self._members_made_managed(asked, machine)
            except CannotBeMember as reason:
                return _refused(f"group {name} was not converted: {reason}; stop it first")
            except (StoreError, MalformedValue) as failure:
                return _unfinished(name, str(failure))
            error = Error.NONE
        if error is Error.NONE:
            return _done(f"group {name} is managed now, with {counted(count, 'offset')}{_and_members(members)}")
        return None if error is Error.NOT_COORDINATOR else _unfinished(name, error.name)

    async def _members_made_managed(self, asked: Request, machine: Machine) -> int:
        """Converts a client-assigned group with its members, and returns their number. They keep their ids, their
        generation and their partitions: they are registered with ledgers that say so, but nobody acts on those until
        the group is recorded as managed. Until then, any failure leaves the group as it was."""
        name, group = asked.group, machine.metadata
        record, term = self._kinds.record_of(name), self._manager.terms.get(partition_of(name))
        if record is None or term is None:
            raise _Unfinished("this instance no longer coordinates it")
        with self._groups.change(name):
            sessions = [one.session_timeout_s for one in group.members.values()]
            try:
                members = await _within(sessions, self._admitted(asked, machine, term.znode_version))
                await self._kinds.record_surely(name, GroupKind.MANAGED, record)
            except (Exception, asyncio.CancelledError):
                await asyncio.shield(self._withdrawn(name, term.znode_version))
                raise
            await self._managed.resume(name, members, group.generation_id)
            is_rejoining = any(one.waits for one in group.members.values())
            end = machine.end(Error.NOT_COORDINATOR if is_rejoining else Error.NONE)
            self._client_assigned.carry_out(name, machine, end)
            if await self._manager.remove_group(name) is not Error.NONE:
                self._client_assigned.run(self._completed([name], _asked_by(asked)))
        log.info("converted a client-assigned group with its members group=%s members=%d", name, len(members))
        return len(members)

    async def _admitted(self, asked: Request, machine: Machine, term: int) -> list[Admitted]:
        """Makes the group and its members ready in ZooKeeper, once its last commits are written."""
        name, group, administration = asked.group, machine.metadata, self._managed.administration
        while self._manager.is_writing(name):
            await asyncio.sleep(_CHECK_S)
        if group.state is not ClassicState.STABLE:
            raise _Unfinished("it is rebalancing")
        members = self._managed.admitted(name, group)
        error = await self._groups.adopt(name, _asked_by(asked))
        if error is not Error.NONE:
            raise _Unfinished(error.name)
        await administration.admit(name, members, group.generation_id, group.topic_ids, term)
        return members

    async def _withdrawn(self, name: str, term: int) -> None:
        try:
            await self._managed.administration.withdraw(name, term)
        except StoreError as error:
            log.info("cannot remove what a conversion has left of group=%s: %s", name, error)

    async def _give_back(self, asked: Request) -> Converted | None:
        """Converts a managed group to a client-assigned group, with its members, unless any is not a classic client.

        The offsets and the members are written to the log first. One multi then records the kind and removes the
        members and the target, so no coordinator can act for the group any more; if anybody has registered, or the
        target has changed, it fails, and the group is as before. What is left in ZooKeeper is removed last.
        """
        name, administration = asked.group, self._managed.administration
        if self._matches_managed(name):
            return _refused(f"the name {name} matches managed_groups, so its next member would convert it back")
        try:
            with self._groups.change(name):
                error = await self._manager.prove(name)
                if error is not Error.NONE:
                    return _unfinished(name, error.name)
                group = await administration.registered(name)
                others = [one for one, protocol in group.protocols.items() if protocol != PROTOCOL]
                if others:
                    return _refused(_in_the_way(name, others))
                if not group.is_decided:
                    return _unfinished(name, "the elected coordinator has not assigned its partitions yet")
                places, count = await self._left_to_clients(name, group)
        except (StoreError, MalformedValue) as failure:
            return _unfinished(name, str(failure))
        if await self._complete(name, asked.reason, asked.by) is not Error.NONE:
            self._client_assigned.run(self._completed([name], asked.reason, asked.by))
        log.info(
            "converted a managed group to client-assigned group=%s offsets=%d members=%d reason=%s",
            *(name, count, places, _asked_by(asked)),
            extra={"event": "group_converted", "to": GroupKind.CLIENT_ASSIGNED},
        )
        return _done(f"group {name} is client-assigned now, with {counted(count, 'offset')}{_and_members(places)}")

    def begin(self, partition: int) -> None:
        """Completes what conversions of earlier terms have left undone, now that the partition's term has begun."""
        self._client_assigned.run(self._completed_of(partition))

    async def _completed_of(self, partition: int) -> None:
        while not self._managed.terms.knows_partition(partition):
            if partition not in self._manager.terms:
                return
            await asyncio.sleep(_REST_CHECK_S)
        there = list(self._managed.groups)
        await self._completed(
            sorted(one for one in there if partition_of(one) == partition), "an earlier term began it"
        )

    async def _completed(self, names: Sequence[str], why: str, by: str = CONVERSION) -> None:
        """Completes conversions of groups that are in the log and in ZooKeeper, as long as this term lasts."""
        terms = self._manager.terms
        began = {one: terms.get(partition_of(one)) for one in names}
        while names := [one for one in names if terms.get(partition_of(one)) is began[one] is not None]:
            names = [one for one in names if await self._complete(one, why, by) is not Error.NONE]
            await asyncio.sleep(_CLEAR_AGAIN_S if names else 0)

    async def _complete(self, name: str, why: str, by: str) -> Error:
        """Removes the group where its record says that it is not. Returns whether that has to be tried again."""
        kind, term = self._kinds.of(name), self._manager.terms.get(partition_of(name))
        if term is None or self._groups.is_changing(name, or_writing=False):
            return Error.COORDINATOR_LOAD_IN_PROGRESS
        if kind is GroupKind.MANAGED:
            error = await self._groups.take_over(name, why) if self._manager.has(name) else Error.NONE
            return Error.NONE if error is Error.UNKNOWN_MEMBER_ID else error  # members hold the partitions already
        if kind is None or not is_legal(name):
            return Error.NONE
        with self._groups.clearing(name):
            return await self._managed.administration.clear(name, why, by, term.znode_version)

    async def _places(self, name: str, group: RegisteredMembers) -> list[Place]:
        """Returns what each member holds, while all its requests wait and nothing of it is being written."""
        while (places := await self._managed.terms.places(name)) is None:
            await asyncio.sleep(_CHECK_S)
        if {one.consumer for one in places} != group.protocols.keys():  # nobody is heard while the group is frozen
            raise _Unfinished("its members have not all been heard yet")
        return places

    async def _left_to_clients(self, name: str, group: RegisteredMembers) -> tuple[int, int]:
        """Makes a group client-assigned, and returns the numbers of its members and offsets."""
        manager, record = self._manager, self._kinds.record_of(name)
        term = manager.terms.get(partition_of(name))
        sessions = [one.session_timeout_ms / 1000 for one in group.members.values()]
        if record is None:
            raise _Unfinished("it has no record")
        try:
            places, offsets, machine = await _within(sessions, self._stored_in_log(name, group))
            await self._kinds.record_surely(name, GroupKind.CLIENT_ASSIGNED, record, group.leaving(name))
        except (Exception, asyncio.CancelledError):
            await asyncio.shield(self._forgotten(name, record))
            raise
        self._managed.groups.discard(name)
        if machine is not None and manager.terms.get(partition_of(name)) is term:  # a later one has read the log
            manager.states[partition_of(name)].groups[name] = machine
            is_settled = all(one.is_settled for one in places) and len({one.generation for one in places}) == 1
            news = [] if is_settled else machine.handle(TopicsReplaced(), manager.now(name))
            self._client_assigned.carry_out(name, machine, news)
            self._client_assigned.set_timer(name, machine)
        return len(places), offsets

    async def _stored_in_log(self, name: str, group: RegisteredMembers) -> tuple[Sequence[Place], int, Machine | None]:
        """Writes the group to the log, and returns its members, the number of its offsets, and what is to run it."""
        places, manager = await self._places(name, group), self._manager
        error, offsets = await self._managed.stored(name)
        exist = await self._managed.administration.topics_that_exist(name, {topic for topic, _ in offsets})
        error = error or await manager.remove_group(name)  # what an earlier conversion has left there
        offsets = {where: one for where, one in offsets.items() if where[0] in exist}
        error = error or await self._copy(name, offsets)
        if error is not Error.NONE:
            raise _Unfinished(error.name)
        return places, len(offsets), await self._members_copied(name, group, places) if places else None

    async def _members_copied(self, name: str, group: RegisteredMembers, places: Sequence[Place]) -> Machine:
        """Writes the members to the log. If their generations differ, their clients join again: an eager one may commit
        until then, but a cooperative one has to give its partitions up, because others would not know that it owns
        them."""
        manager, now_ms = self._manager, self._manager.now_ms()
        generation = max(one.generation for one in places)
        made = GroupMetadata(name, ClassicState.STABLE, now_ms, generation)
        for one in places:
            known = group.members[one.consumer]
            told = encoded_subscription(*sorted(known.subscription.topics))
            session_s, rebalance_s = known.session_timeout_ms / 1000, known.rebalance_timeout_ms / 1000
            member = MemberMetadata(
                *(one.member_id, one.instance_id, known.client or "", f"/{known.host}", session_s, rebalance_s),
                one.offers or tuple(Protocol(assignor, told) for assignor in ASSIGNORS),
                encoded_assignment(sorted(one.assignment)),
                expires_at=manager.now(name) + session_s,
                is_new=False,
                former_generation=one.generation if one.gives_up else None,
            )
            made.add(member, CONSUMER)
        if not made.candidates():
            raise _Unfinished("its members have no assignor in common")
        made.protocol_name = made.select_protocol()
        topics = sorted({tp.topic for one in places for tp in one.assignment})
        await manager.topics.learn(topics, follow=True)
        made.topic_ids = {topic: manager.topics.identity(topic) for topic in topics}
        assignments = {one.member_id: one.assignment for one in made.members.values()}
        error = await manager.store_group(made, assignments, made.topic_ids)
        if error is not Error.NONE:
            raise _Unfinished(error.name)
        return Machine(made, manager.limits)

    async def _forgotten(self, name: str, record: GroupRecord) -> None:
        """Removes from the log what a conversion has left there."""
        if self._kinds.record_of(name) == record:
            await self._manager.remove_group(name)

    async def _copy(self, name: str, offsets: Offsets) -> Error:
        """Writes the offsets to the log and returns the error."""
        manager, now_ms = self._manager, self._manager.now_ms()
        await manager.topics.learn({topic for topic, _ in offsets})
        if manager.add_group(name) is None:
            return Error.NOT_COORDINATOR
        rest, error = iter(offsets.items()), Error.NONE
        while error is Error.NONE and (part := dict(itertools.islice(rest, _OFFSETS_AT_ONCE))):
            stamped = {
                where: structs.replace(one, committed_at_ms=now_ms, topic_id=manager.topics.identity(where[0]))
                for where, one in part.items()
            }
            error = await manager.store_offsets(name, stamped)
        return error


async def _taken_over(moves: Moves, may_manage: bool, asked: Request) -> Converted:
    return await _moved(moves.take_over(asked.group, _asked_by(asked), may_manage=may_manage), asked)


async def _given_back(moves: Moves, asked: Request) -> Converted:
    return await _moved(moves.give_back(asked.group), asked)


async def _moved(moving: Awaitable[str], asked: Request) -> Converted:
    name = asked.group
    try:
        return _done(f"group {name} is {asked.to} now, with {await moving}")
    except MoveRefused as reason:
        return _refused(f"group {name} was not moved: {reason}")


async def _within(sessions_s: Iterable[float], work: Coroutine[Any, Any, T]) -> T:
    """Does what a group waits for, unless that takes too long for its members."""
    frozen_s = may_freeze_s(sessions_s)
    try:
        async with asyncio.timeout(frozen_s):
            return await work
    except TimeoutError as error:
        raise _Unfinished(f"it took longer than {frozen_s:.1f} s") from error


def _done(message: str) -> Converted:
    return Converted(_DONE, message)


def _refused(message: str) -> Converted:
    return Converted("refused", message)


def _unfinished(name: str, why: str) -> Converted:
    return _refused(f"group {name} was not converted: {why}. No offsets were lost; run the command again")


def _and_members(count: int) -> str:
    return f" and {counted(count, 'member')}" if count else ""


def _in_the_way(name: str, members: Iterable[str]) -> str:
    names = sorted(set(members))
    shown = f"{', '.join(names[:10])}{', …' if len(names) > 10 else ''}"
    return f"group {name} has members ({shown}); stop them first: only classic members can go on"


def _asked_by(asked: Request) -> str:
    who = f"{asked.by} asked" if asked.by else "an operator asked"
    return f"{who}: {asked.reason}" if asked.reason else who
