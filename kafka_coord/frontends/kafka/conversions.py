"""Converts groups: as operators ask, and by name."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec import structs

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.metadata import CONSUMER, ClassicState
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import MalformedValue, StoreError
from kafka_coord.frontends.kafka.client_assigned import ClientAssignedGroups
from kafka_coord.frontends.kafka.group import GroupError
from kafka_coord.frontends.kafka.groups import Groups
from kafka_coord.frontends.kafka.managed.classic import PROTOCOL
from kafka_coord.frontends.kafka.managed.group import ManagedGroups
from kafka_coord.frontends.kafka.moving import MoveRefused, Moves
from kafka_coord.frontends.kafka.native import KindFinder, Kinds
from kafka_coord.grouplog.manager import Offsets, partition_of
from kafka_coord.model import GroupKind, Request

log = logging.getLogger(__name__)

_OFFSETS_AT_ONCE = 2_000
_LOOKS, _LOOK_AGAIN_S = 50, 0.1


class Converted(NamedTuple):
    """The response to an operator. ``result`` is ``done`` or ``refused``."""

    result: str
    message: str


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
        self._kinds, self._finder = kinds, finder
        self._manager, self._matches_managed = client_assigned.manager, matches_managed
        self._converters = {
            (GroupKind.MANAGED, GroupKind.CLIENT_ASSIGNED): self._give_back,
            (GroupKind.CLIENT_ASSIGNED, GroupKind.MANAGED): self._make_managed,
        }
        self._moves_of = {
            (GroupKind.NATIVE, GroupKind.CLIENT_ASSIGNED): moves.take_over,
            (GroupKind.CLIENT_ASSIGNED, GroupKind.NATIVE): moves.give_back,
        }
        """How a group of one kind becomes one of another, without members, and while it runs."""

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
        move = self._moves_of.get((is_now, kind))  # it waits for what is being written
        if self._groups.is_changing(name, or_writing=move is None):
            return _refused(f"group {name} is being changed; try again")
        if is_now is kind:
            return _done(f"group {name} is already {kind}")
        if move is not None:
            try:
                return _done(f"group {name} is {kind} now, with {await move(name)}")
            except MoveRefused as reason:
                return _refused(f"group {name} was not moved: {reason}")
        machine = self._manager.group(name)
        if machine is not None and machine.metadata.has_members:
            return _refused(_in_the_way(name, machine.metadata.members))
        convert = self._converters.get((is_now, kind))
        if convert is None:
            return _refused(f"group {name} is {is_now}; make it {GroupKind.CLIENT_ASSIGNED} first")
        return await convert(asked)

    async def _make_managed(self, asked: Request) -> Converted | None:
        name, count = asked.group, len(self._manager.offsets(asked.group))
        error = await self._groups.take_over(name, _asked_by(asked))
        if error is Error.NONE:
            return _done(f"group {name} is managed now, with {counted(count, 'offset')}")
        return None if error is Error.NOT_COORDINATOR else _unfinished(name, error.name)

    async def _give_back(self, asked: Request) -> Converted | None:
        """Converts a managed group to a client-assigned group. Evicts its members, which then rejoin. Refuses to
        convert the group if any member is not a classic client.

        The offsets are written to the log before the group is removed from ZooKeeper. The elected coordinator removes
        the group only if it has no members and no offset has changed since the request or, if members were evicted,
        since the eviction. The group stays managed until it is removed. If the conversion fails halfway, the next
        attempt completes it.
        """
        name, administration = asked.group, self._managed.administration
        if self._matches_managed(name):
            return _refused(f"the name {name} matches managed_groups, so its next member would convert it back")
        with self._groups.change(name):
            error = await self._manager.prove(name)
            if error is not Error.NONE:
                return _unfinished(name, error.name)
            try:
                group = await administration.registered(name)
                others = [one for one, protocol in group.protocols.items() if protocol != PROTOCOL]
                if others:
                    return _refused(_in_the_way(name, others))
                if not group.is_decided:
                    return _unfinished(name, "no coordinator is elected")
                why_not = await administration.evict(name, group.protocols, asked) if group.protocols else ""
                if why_not or not await self._is_left(name):
                    return _unfinished(name, why_not or "its members did not leave")
                group = await administration.registered(name)
                error, offsets = await self._managed.stored(name)
                exist = await administration.topics_that_exist(name, {topic for topic, _ in offsets})
                if error is not Error.NONE or self._manager.availability(name) is not Error.NONE:
                    return _unfinished(name, error.name)
                offsets = {where: one for where, one in offsets.items() if where[0] in exist}
                error = await self._copy(name, offsets)
                if error is not Error.NONE:
                    return _unfinished(name, error.name)
                # do not delete the copies if the removal fails: if it was refused, they do no harm; if it was partial,
                # they are the only copies
                why_not = await administration.remove(name, asked, max(asked.unchanged_since, group.zxid))
                if not why_not:
                    await self._kinds.record(name, GroupKind.CLIENT_ASSIGNED)
            except (StoreError, MalformedValue) as failure:
                return _unfinished(name, str(failure))
            if why_not:
                return _unfinished(name, why_not)
            log.info(
                "converted a managed group to client-assigned group=%s offsets=%d reason=%s",
                *(name, len(offsets), _asked_by(asked)),
                extra={"event": "group_converted", "to": GroupKind.CLIENT_ASSIGNED},
            )
            return _done(f"group {name} is client-assigned now, with {counted(len(offsets), 'offset')}")

    async def _is_left(self, name: str) -> bool:
        """Waits until no stock client is a member or is joining. Returns false if that takes too long."""
        for _ in range(_LOOKS):
            if await self._managed.members(name) == []:
                return True
            await asyncio.sleep(_LOOK_AGAIN_S)
        return False

    async def _copy(self, name: str, offsets: Offsets) -> Error:
        """Writes the offsets to the log and returns the error. Leaves the group's other offsets in the log: if an
        earlier attempt removed part of the group from ZooKeeper, the log has the only copies of those."""
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


def _done(message: str) -> Converted:
    return Converted("done", message)


def _refused(message: str) -> Converted:
    return Converted("refused", message)


def _unfinished(name: str, why: str) -> Converted:
    return _refused(f"group {name} was not converted: {why}. No offsets were lost; run the command again")


def _in_the_way(name: str, members: Iterable[str]) -> str:
    names = sorted(set(members))
    return f"group {name} has members ({', '.join(names[:10])}{', …' if len(names) > 10 else ''}); stop them first"


def _asked_by(asked: Request) -> str:
    who = f"{asked.by} asked" if asked.by else "an operator asked"
    return f"{who}: {asked.reason}" if asked.reason else who
