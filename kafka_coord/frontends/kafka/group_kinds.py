"""Decides whether this instance coordinates a group and whether the group is managed, and converts groups."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.metadata import CONSUMER, ClassicState
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import StoreError
from kafka_coord.frontends.kafka.instances import Instances
from kafka_coord.frontends.kafka.managed.classic import ASSIGNORS, PROTOCOL
from kafka_coord.frontends.kafka.managed.requests import ManagedGroups
from kafka_coord.grouplog.manager import GroupMetadataManager, Offsets, partition_of
from kafka_coord.grouplog.topics import current_offsets
from kafka_coord.model import GroupKind, Request, TopicPartition
from kafka_coord.model.names import is_legal

log = logging.getLogger(__name__)

_OFFSETS_AT_ONCE = 2_000
_LOOKS, _LOOK_AGAIN_S = 50, 0.1
_KNOWN_CHECK_S = 0.02
_CLAIMED_WITHIN_S, _HANDED_OVER_WITHIN_S, _STOP_CHECK_S = 1.0, 3.0, 0.2


class Converted(NamedTuple):
    """The response to an operator. ``result`` is ``done`` or ``refused``."""

    result: str
    message: str


class GroupKinds:
    """Determines the kind of each group, and converts groups. Use only on the event loop. ``manager`` keeps the
    client-assigned groups. ``instances`` knows whether this instance is about to stop: its clients must then find
    another coordinator. ``managed`` handles the managed groups, or is ``None`` if they are not served.
    ``is_managed_by_name`` returns whether a group's name matches the setting ``managed_groups``. ``on_elsewhere`` is
    called when a request names a group that this instance does not coordinate."""

    def __init__(
        self,
        manager: GroupMetadataManager,
        instances: Instances,
        managed: ManagedGroups | None,
        is_managed_by_name: Callable[[str], bool] = lambda _group_id: False,
        on_elsewhere: Callable[[], None] = lambda: None,
    ) -> None:
        self._manager, self._managed, self._on_elsewhere = manager, managed, on_elsewhere
        self._instances = instances
        self._matches: Callable[[str], bool] = lambda group_id: is_legal(group_id) and is_managed_by_name(group_id)
        self._changing: set[str] = set()
        """The groups that are being converted. Requests about them are refused, so that clients retry."""

    def availability(self, group_id: str | None) -> Error:
        """Returns NONE if this instance coordinates the group, else an error. As in Kafka, consumers that assign their
        own partitions may use an empty group id for their offsets."""
        if group_id is None:
            return Error.INVALID_GROUP_ID
        error = Error.NOT_COORDINATOR if self._instances.is_stopping else self._manager.availability(group_id)
        if error is Error.NOT_COORDINATOR:
            self._on_elsewhere()
        is_unknown = self._managed is not None and not self._managed.knows(group_id)
        waits = error is Error.NONE and (is_unknown or group_id in self._changing)
        return Error.COORDINATOR_LOAD_IN_PROGRESS if waits else error

    async def look_again(self, group_id: str) -> None:
        """If this instance does not coordinate the group, waits for what a move will bring: if its broker leads the
        group's partition by now, until the claim has begun; if no other instance has claimed the partition since this
        one, until one has. Before that, nobody could answer the client. Other instances may know of the move earlier or
        later than this one, and name it; each NOT_COORDINATOR is a warning in a client's log, and librdkafka gives up a
        commit after the second."""
        loop, partition = asyncio.get_running_loop(), partition_of(group_id)
        asked_at = loop.time()
        if not self._is_elsewhere(group_id):
            return
        leads = await self._instances.may_lead(partition)
        late = asked_at + (_CLAIMED_WITHIN_S if leads else _HANDED_OVER_WITHIN_S)
        while self._is_elsewhere(group_id) and loop.time() < late:
            if not leads and not await self._instances.claimed_last(partition):
                return
            self._on_elsewhere()
            await asyncio.sleep(_KNOWN_CHECK_S)

    def _is_elsewhere(self, group_id: str) -> bool:
        return not self._instances.is_stopping and self._manager.availability(group_id) is Error.NOT_COORDINATOR

    async def wait_until_loaded(self, group_ids: Iterable[str | None], within_s: float) -> None:
        """Waits up to ``within_s`` seconds until none of the groups' partitions is being loaded, and the managed groups
        among them are known. Waits no longer once the instance stops."""
        loop = asyncio.get_running_loop()
        late, named = loop.time() + within_s, [one for one in group_ids if one is not None]
        for one in named:
            await self.look_again(one)
        while self._is_loading(named) and loop.time() < late:
            await self._manager.wait_until_loaded(named, min(_STOP_CHECK_S, late - loop.time()))
        managed = self._managed
        while managed is not None and loop.time() < late and not self._instances.is_stopping:
            if all(managed.knows(one) or self._manager.availability(one) for one in named):
                return
            await asyncio.sleep(_KNOWN_CHECK_S)

    def _is_loading(self, group_ids: list[str]) -> bool:
        if self._instances.is_stopping:
            return False
        return any(self._manager.availability(one) is Error.COORDINATOR_LOAD_IN_PROGRESS for one in group_ids)

    def managed(self, group_id: str) -> ManagedGroups | None:
        """Returns the handler of managed groups if the group is managed, else ``None``. A group that still has
        client-assigned members is not managed yet (see :meth:`in_both`)."""
        managed = self._managed
        if managed is None or group_id not in managed.groups or self.has_classic_members(group_id):
            return None
        return managed

    def has_classic_members(self, group_id: str) -> bool:
        group = self._manager.group(group_id)
        return group is not None and group.metadata.state not in {ClassicState.EMPTY, ClassicState.DEAD}

    def managed_here(self) -> list[str]:
        """Returns the managed groups that this instance coordinates."""
        names = list(self._managed.groups) if self._managed is not None else []
        return [name for name in names if self.availability(name) is Error.NONE and self.managed(name) is not None]

    async def of_newcomer(
        self, group_id: str, why: str, protocol_type: str | None = None
    ) -> tuple[Error, ManagedGroups | None]:
        """Returns the handler of managed groups if a client that joins the group will be a managed member, else
        ``None``. An empty client-assigned group is taken over first; if that fails, the error says why.
        ``protocol_type`` is the classic client's protocol type, or ``None`` for a KIP-848 client."""
        managed, is_kip_848 = self._managed, protocol_type is None
        if managed is None or self.has_classic_members(group_id):
            return Error.NONE, None
        by_name = protocol_type == CONSUMER and self._matches(group_id)
        if not (is_kip_848 or by_name or group_id in managed.groups):
            return Error.NONE, None
        error = await self.take_over(managed, group_id, why) if self._manager.has(group_id) else Error.NONE
        if error is Error.NONE:
            managed.groups.add(group_id)  # a classic client may join before the newcomer is registered
        return error, managed

    async def in_both(self) -> list[str]:
        """Returns the client-assigned groups that also have members in ZooKeeper. In such a group, every record is read
        twice. Omits groups whose clients use their own assignors, because a managed group would refuse those clients.
        Raises :class:`StoreError`."""
        managed = self._managed
        if managed is None:
            return []
        names = [
            name
            for name, group in self._manager.groups().items()
            if name in managed.groups and self.has_classic_members(name) and group.metadata.protocol_name in ASSIGNORS
        ]
        names = [name for name in names if self.availability(name) is Error.NONE]
        return [name for name in names if (await managed.administration.registered(name)).protocols]

    async def take_over_by_name(self) -> None:
        """Takes over the empty groups whose names match ``managed_groups``, so that consumers that use ZooKeeper find
        their offsets. Ignores groups with other protocol types, such as those of Kafka Connect."""
        if self._managed is None:
            return
        for group_id, group in self._manager.groups().items():
            metadata = group.metadata
            is_empty = metadata.state is ClassicState.EMPTY and metadata.protocol_type in {None, "", CONSUMER}
            if not is_empty or not self._matches(group_id) or self._manager.is_writing(group_id):
                continue
            if self.availability(group_id) is not Error.NONE:
                continue
            error = await self.take_over(self._managed, group_id, "its name matches managed_groups")
            if error is Error.COORDINATOR_NOT_AVAILABLE:
                return

    async def take_over(self, managed: ManagedGroups, group_id: str, why: str) -> Error:
        """Converts an empty client-assigned group to a managed group. The group is removed from the log only after its
        offsets have been written to ZooKeeper, so if the conversion fails halfway, the next join or request completes
        it. If members in ZooKeeper already hold the partitions, the coordinator refuses to set the partitions' offsets,
        so those in the log stay there until they expire."""
        if not is_legal(group_id):
            return Error.INVALID_GROUP_ID
        if group_id in self._changing or self._manager.is_writing(group_id):
            return Error.COORDINATOR_LOAD_IN_PROGRESS
        with self._change(group_id):
            await self._manager.topics.learn({topic for topic, _ in self._manager.offsets(group_id)})
            error = await self._manager.prove(group_id) or await self._manager.store_emptiness(group_id)
            term = self._manager.terms.get(partition_of(group_id))
            if error is not Error.NONE or term is None:
                return error or Error.NOT_COORDINATOR
            stored = current_offsets(self._manager.offsets(group_id), self._manager.topics)
            offsets = {TopicPartition(*where): one for where, one in stored.items() if is_legal(where[0])}
            reason = f"taken over with the offsets of the client-assigned group: {why}"
            error = await managed.administration.adopt(group_id, offsets, reason, term.term)
            log.info(
                "tried to convert a client-assigned group to managed group=%s offsets=%d result=%s reason=%s",
                *(group_id, len(offsets), error.name, why),
                extra={"event": "group_converted", "to": GroupKind.MANAGED},
            )
            if error is Error.UNKNOWN_MEMBER_ID:
                return Error.NONE
            return error or await self._manager.delete_group(group_id)

    @contextmanager
    def _change(self, group_id: str) -> Iterator[None]:
        self._changing.add(group_id)
        try:
            yield
        finally:
            self._changing.discard(group_id)

    # --- conversions by operators ------------------------------------------------------------------------------------

    async def convert(self, asked: Request) -> Converted | None:
        """Converts the group to the kind ``asked.to``. Returns ``None`` if this instance no longer coordinates the
        group, so that another one will carry out the request."""
        group_id, managed = asked.group, self._managed
        if managed is None or self._manager.availability(group_id) is not Error.NONE:
            return None
        is_here, is_managed = self._manager.has(group_id), group_id in managed.groups
        if not (is_here or is_managed):
            return _refused(f"there is no group {group_id}")
        if self.has_classic_members(group_id):
            return _refused(_in_the_way(group_id, self._manager.groups()[group_id].metadata.members))
        if group_id in self._changing or self._manager.is_writing(group_id):
            return _refused(f"group {group_id} is being changed; try again")
        if asked.to is GroupKind.CLIENT_ASSIGNED:
            if not is_managed:
                return _done(f"group {group_id} is already client-assigned")
            if self._matches(group_id):
                return _refused(f"the name {group_id} matches managed_groups, so its next member would convert it back")
            return await self._give_back(managed, asked)
        if not is_here:
            return _done(f"group {group_id} is already managed")
        count = len(self._manager.offsets(group_id))
        error = await self.take_over(managed, group_id, _asked_by(asked))
        if error is Error.NONE:
            return _done(f"group {group_id} is managed now, with {counted(count, 'offset')}")
        return None if error is Error.NOT_COORDINATOR else _unfinished(group_id, error.name)

    async def _give_back(self, managed: ManagedGroups, asked: Request) -> Converted | None:
        """Converts a managed group to a client-assigned group. Evicts its members, which then rejoin. Refuses to
        convert the group if any member is not a classic client.

        The offsets are written to the log before the group is removed from ZooKeeper. The elected coordinator removes
        the group only if it has no members and no offset has changed since the request or, if members were evicted,
        since the eviction. The group stays managed until it is removed. If the conversion fails halfway, the next
        attempt completes it.
        """
        group_id, administration = asked.group, managed.administration
        with self._change(group_id):
            error = await self._manager.prove(group_id)
            if error is not Error.NONE:
                return _unfinished(group_id, error.name)
            try:
                group = await administration.registered(group_id)
                others = [one for one, protocol in group.protocols.items() if protocol != PROTOCOL]
                if others:
                    return _refused(_in_the_way(group_id, others))
                if not group.is_decided:
                    return _unfinished(group_id, "no coordinator is elected")
                why_not = await administration.evict(group_id, group.protocols, asked) if group.protocols else ""
                if why_not or not await self._is_left(managed, group_id):
                    return _unfinished(group_id, why_not or "its members did not leave")
                group = await administration.registered(group_id)
                error, offsets = await managed.stored(group_id)
                exist = await administration.topics_that_exist(group_id, {topic for topic, _ in offsets})
                if error is not Error.NONE or self._manager.availability(group_id) is not Error.NONE:
                    return _unfinished(group_id, error.name)
                offsets = {where: one for where, one in offsets.items() if where[0] in exist}
                error = await self._copy(group_id, offsets)
                if error is not Error.NONE:
                    return _unfinished(group_id, error.name)
                # do not delete the copies if the removal fails: if it was refused, they do no harm; if it was partial,
                # they are the only copies
                why_not = await administration.remove(group_id, asked, max(asked.unchanged_since, group.zxid))
            except StoreError as failure:
                return _unfinished(group_id, str(failure))
            if why_not:
                return _unfinished(group_id, why_not)
            log.info(
                "converted a managed group to client-assigned group=%s offsets=%d reason=%s",
                *(group_id, len(offsets), _asked_by(asked)),
                extra={"event": "group_converted", "to": GroupKind.CLIENT_ASSIGNED},
            )
            return _done(f"group {group_id} is client-assigned now, with {counted(len(offsets), 'offset')}")

    async def _is_left(self, managed: ManagedGroups, group_id: str) -> bool:
        """Waits until no stock client is a member or is joining. Returns false if that takes too long."""
        for _ in range(_LOOKS):
            if await managed.members(group_id) == []:
                return True
            await asyncio.sleep(_LOOK_AGAIN_S)
        return False

    async def _copy(self, group_id: str, offsets: Offsets) -> Error:
        """Writes the offsets to the log and returns the error. Leaves the group's other offsets in the log: if an
        earlier attempt removed part of the group from ZooKeeper, the log has the only copies of those."""
        manager, now_ms = self._manager, self._manager.now_ms()
        await manager.topics.learn({topic for topic, _ in offsets})
        if manager.add_group(group_id) is None:
            return Error.NOT_COORDINATOR
        rest, error = iter(offsets.items()), Error.NONE
        while error is Error.NONE and (part := dict(itertools.islice(rest, _OFFSETS_AT_ONCE))):
            stamped = {
                where: one._replace(committed_at_ms=now_ms, topic_id=manager.topics.identity(where[0]))
                for where, one in part.items()
            }
            error = await manager.store_offsets(group_id, stamped)
        return error


def _done(message: str) -> Converted:
    return Converted("done", message)


def _refused(message: str) -> Converted:
    return Converted("refused", message)


def _unfinished(group_id: str, why: str) -> Converted:
    return _refused(f"group {group_id} was not converted: {why}. No offsets were lost; run the command again")


def _in_the_way(group_id: str, members: Iterable[str]) -> str:
    names = sorted(set(members))
    return f"group {group_id} has members ({', '.join(names[:10])}{', …' if len(names) > 10 else ''}); stop them first"


def _asked_by(asked: Request) -> str:
    who = f"{asked.by} asked" if asked.by else "an operator asked"
    return f"{who}: {asked.reason}" if asked.reason else who
