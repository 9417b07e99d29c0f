"""Finds the groups of stock clients: the only place that knows which kind a group is of."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import MalformedValue, StoreError
from kafka_coord.frontends.kafka.client_assigned import ClientAssignedGroups
from kafka_coord.frontends.kafka.group import (
    LOOKS,
    AnyGroup,
    GroupError,
    KindChanged,
    Listed,
    Loading,
    Why,
    at_once,
    marked,
    refuse,
)
from kafka_coord.frontends.kafka.instances import Instances
from kafka_coord.frontends.kafka.managed.group import ManagedGroups
from kafka_coord.frontends.kafka.native import KindFinder, NativeGroups
from kafka_coord.grouplog.manager import GroupMetadataManager, partition_of
from kafka_coord.grouplog.topics import current_offsets
from kafka_coord.model import GroupKind, TopicPartition
from kafka_coord.model.histories import CONVERSION
from kafka_coord.model.names import is_legal
from kafka_coord.model.sequences import grouped
from kafka_coord.zk.kinds import GroupRecord

log = logging.getLogger(__name__)

LOADED_WITHIN_S = 5.0
"""How long commits and offset fetches may wait while their group is being loaded, in seconds. They do not fail at once
(ADR 11): librdkafka does not retry failed commits in order, so an older offset could replace a newer one."""
_KNOWN_CHECK_S = 0.02
_CLAIMED_WITHIN_S, _HANDED_OVER_WITHIN_S, _STOP_CHECK_S = 1.0, 3.0, 0.2


class Groups:
    """Finds groups. Use only on the event loop. ``instances`` knows whether this instance is about to stop: its clients
    must then find another coordinator. ``finder`` says which kind a group without a record is of. ``on_elsewhere``
    is called when a request names a group that this instance does not coordinate."""

    def __init__(
        self,
        manager: GroupMetadataManager,
        instances: Instances,
        client_assigned: ClientAssignedGroups,
        managed: ManagedGroups,
        native: NativeGroups,
        finder: KindFinder,
        on_elsewhere: Callable[[], None],
    ) -> None:
        self._manager, self._instances, self._on_elsewhere = manager, instances, on_elsewhere
        self._client_assigned, self._managed = client_assigned, managed
        self._kinds, self._finder = native.kinds, finder
        self._of: dict[GroupKind, ClientAssignedGroups | ManagedGroups | NativeGroups] = {
            GroupKind.CLIENT_ASSIGNED: client_assigned,
            GroupKind.MANAGED: managed,
            GroupKind.NATIVE: native,
        }
        self._changing: Counter[str] = Counter()
        """The groups that are being converted. Requests about them are refused, so that clients retry."""
        self._clearing: Counter[str] = Counter()
        """The groups of which the remains of a conversion are being removed. None of them is converted."""
        self._gone: set[str] = set()
        """The groups that have a record, but did not exist at the last look."""

    # --- finding -----------------------------------------------------------------------------------------------------

    async def find(self, name: str, why: Why = LOOKS) -> AnyGroup:
        """Returns the group, as an object of its kind. It need not exist. Converts an empty client-assigned group if
        its newcomer will be a managed member. Raises :class:`GroupError`: :class:`Loading`, NOT_COORDINATOR or
        COORDINATOR_NOT_AVAILABLE if this instance cannot serve the group, and why a conversion failed."""
        if why.waits and self._manager.availability(name) is Error.NOT_COORDINATOR:
            await self.look_again(name)
        if why.vouched:
            refuse(await self._manager.vouch(name))
        self.check_served(name)
        kind = self._kinds.of(name)
        if kind is None:
            kind = await self._finder.first_contact(name, why)
            self.check_served(name)
        if why.newcomer and self._finder.with_newcomer(name, kind, why) is GroupKind.MANAGED:
            refuse(await self.take_over(name, why.newcomer))
            kind = GroupKind.MANAGED
            self._managed.groups.add(name)  # a classic client may join before the newcomer is registered
        return self._of[kind].group(name, partial(self._check, name, kind))

    def _check(self, name: str, kind: GroupKind) -> None:
        self.check_served(name)
        if self._kinds.of(name) not in {None, kind}:
            raise KindChanged

    def check_served(self, name: str) -> None:
        """Raises :class:`GroupError` unless this instance coordinates the group. As in Kafka, consumers that assign
        their own partitions may use an empty name for their offsets."""
        error = Error.NOT_COORDINATOR if self._instances.is_stopping else self._manager.availability(name)
        if error is Error.NONE and (name in self._changing or not self._managed.knows(name)):
            raise Loading
        if error is not Error.NONE:
            if error is Error.NOT_COORDINATOR:
                self._on_elsewhere()
            raise Loading if error is Error.COORDINATOR_LOAD_IN_PROGRESS else GroupError(error)

    def serves(self, name: str) -> bool:
        """Returns whether :meth:`check_served` raises nothing."""
        try:
            self.check_served(name)
        except GroupError:
            return False
        return True

    async def look_again(self, name: str) -> None:
        """If this instance does not coordinate the group, waits for what a move will bring: if its broker leads the
        group's partition by now, until the claim has begun; if no other instance has claimed the partition since this
        one, until one has. Before that, nobody could answer the client. Other instances may know of the move earlier or
        later than this one, and name it; each NOT_COORDINATOR is a warning in a client's log, and librdkafka gives up a
        commit after the second."""
        loop, partition, instances = asyncio.get_running_loop(), partition_of(name), self._instances
        asked_at, leads = loop.time(), None
        while self._manager.availability(name) is Error.NOT_COORDINATOR and not instances.is_stopping:
            if leads is None:
                leads = await instances.may_lead(partition)
                late = asked_at + (_CLAIMED_WITHIN_S if leads else _HANDED_OVER_WITHIN_S)
            elif loop.time() < late and (leads or await instances.claimed_last(partition)):
                self._on_elsewhere()
                await asyncio.sleep(_KNOWN_CHECK_S)
            else:
                break

    async def wait_until_loaded(self, names: Iterable[str], within_s: float = LOADED_WITHIN_S) -> None:
        """Waits up to ``within_s`` seconds until none of the groups' partitions is being loaded, and the managed groups
        among them are known. Waits no longer once the instance stops."""
        named = list(names)
        if all(self._is_loaded(one) for one in named):  # as nearly always
            return
        loop = asyncio.get_running_loop()
        late = loop.time() + within_s
        await at_once(map(self.look_again, {partition_of(one): one for one in named}.values()))
        while self._is_loading(named) and loop.time() < late:
            await self._manager.wait_until_loaded(named, min(_STOP_CHECK_S, late - loop.time()))
        while loop.time() < late and not self._instances.is_stopping:
            if all(self._manager.availability(one) or self._is_loaded(one) for one in named):
                return
            await asyncio.sleep(_KNOWN_CHECK_S)

    def _is_loaded(self, name: str) -> bool:
        is_at_rest = name not in self._changing and self._managed.knows(name)
        return is_at_rest and self._manager.availability(name) is Error.NONE

    def _is_loading(self, names: list[str]) -> bool:
        if self._instances.is_stopping:
            return False
        return any(self._manager.availability(one) is Error.COORDINATOR_LOAD_IN_PROGRESS for one in names)

    # --- listing -----------------------------------------------------------------------------------------------------

    def names(self) -> set[str]:
        """Returns the groups that this instance coordinates."""
        managed = {name for name in list(self._managed.groups) if self.serves(name)}
        return managed.union(self._manager.groups())

    async def listed(self, names: Iterable[str], types: frozenset[str], *, with_states: bool) -> list[Listed]:
        """Returns the groups as ListGroups shows them. Omits those of other types than ``types``, unless it is
        empty."""
        rows: list[Listed] = []
        known = ((name, self._kinds.of(name) or self._finder.stored(name)) for name in names)
        of_kinds = grouped(known, lambda one: one[1])
        for kind, groups in self._of.items():
            if kind in of_kinds and (not types or groups.type in types):
                rows += await groups.listed([name for name, _ in of_kinds[kind]], with_states=with_states)
        return rows

    # --- groups that are gone ----------------------------------------------------------------------------------------

    async def forget_gone(self) -> None:
        """Removes the records of groups that do not exist any more, whoever deleted them, or let them expire: what
        gets the name next is a new group. A record is written before its group, so a group counts as gone if it did not
        exist at the last call either."""
        gone = {name for name, one in self._kinds.of_terms().items() if await self._is_gone(name, one)}
        for name in gone & self._gone:
            if await self._is_gone(name, self._kinds.record_of(name)):
                log.info("the group does not exist any more, so its kind is forgotten group=%s", name)
                await self._kinds.forget(name, in_term=True)
                if not await self._managed.is_gone(name):  # its consumers wait
                    await self._managed.administration.look(name)
        self._gone = gone

    async def _is_gone(self, name: str, record: GroupRecord | None) -> bool:
        if record is None or record.moving or record.fenced or self.is_changing(name):
            return False
        return await self._of[record.kind].is_gone(name)

    # --- conversions -------------------------------------------------------------------------------------------------

    async def take_over(self, name: str, why: str) -> Error:
        """Converts an empty client-assigned group to a managed group: writes its offsets to ZooKeeper, records it as
        managed, and only then removes it from the log. If it fails halfway, the next join or request completes it. If
        members in ZooKeeper already hold the partitions, the coordinator refuses to set the partitions' offsets, so
        those in the log stay there until they expire."""
        if not self._manager.has(name):
            return await self._record_managed(name)
        if self.is_changing(name):
            return Error.COORDINATOR_LOAD_IN_PROGRESS
        with self.change(name):
            error = await self.adopt(name, why)
            is_refused = error is Error.UNKNOWN_MEMBER_ID
            if error is Error.NONE or is_refused:
                error = await self._record_managed(name)
            return error if error or is_refused else await self._manager.delete_group(name)

    async def adopt(self, name: str, why: str) -> Error:
        """Writes the offsets of a client-assigned group to ZooKeeper. Removes what an earlier conversion has left there
        if the group is not recorded as managed."""
        if not is_legal(name):
            return Error.INVALID_GROUP_ID
        await self._manager.topics.learn({topic for topic, _ in self._manager.offsets(name)})
        error = await self._manager.prove(name) or await self._manager.store_emptiness(name)
        term = self._manager.terms.get(partition_of(name))
        if error is not Error.NONE or term is None:
            return error or Error.NOT_COORDINATOR
        stored = current_offsets(self._manager.offsets(name), self._manager.topics)
        offsets = {
            TopicPartition(*where): one for where, one in stored.items() if is_legal(where[0]) and one.offset >= 0
        }
        if await self._manager.topics.unseen(offsets):
            return Error.COORDINATOR_LOAD_IN_PROGRESS  # the coordinator would refuse the offsets
        reason = f"taken over with the offsets of the client-assigned group: {why}"
        keeps, administration = self._kinds.are(GroupKind.MANAGED, name), self._managed.administration
        error = Error.NONE if keeps else await administration.clear(name, why, CONVERSION, term.znode_version)
        if error is Error.NONE:
            error = await administration.adopt(name, offsets, reason, term.znode_version, keeps=keeps)
        log.info(
            "tried to convert a client-assigned group to managed group=%s offsets=%d result=%s reason=%s",
            *(name, len(offsets), error.name, why),
            extra={"event": "group_converted", "to": GroupKind.MANAGED},
        )
        return error

    async def _record_managed(self, name: str) -> Error:
        if self._kinds.are(GroupKind.MANAGED, name):
            return Error.NONE
        try:
            await self._kinds.record(name, GroupKind.MANAGED)
        except (StoreError, MalformedValue) as error:
            log.warning("cannot record that group=%s is managed: %s", name, error)
            return Error.COORDINATOR_NOT_AVAILABLE
        await self._managed.administration.look(name)
        return Error.NONE

    def is_changing(self, name: str, *, or_writing: bool = True) -> bool:
        """Returns whether the group is being converted or, with ``or_writing``, offsets of it are being written."""
        is_ours = name in self._changing or name in self._clearing
        return is_ours or (or_writing and self._manager.is_writing(name))

    @contextmanager
    def clearing(self, name: str) -> Iterator[None]:
        """Keeps the group from being converted, while requests about it go on."""
        with marked(self._clearing, name):
            yield

    @contextmanager
    def change(self, name: str) -> Iterator[None]:
        """Refuses requests about the group while it is converted."""
        with marked(self._changing, name), self._client_assigned.frozen(name):
            yield
