"""Whether this instance coordinates a group, and which kind it is: client-assigned or managed."""

from __future__ import annotations

import logging

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.metadata import GroupState
from kafka_coord.frontends.kafka.managed.requests import ManagedGroups
from kafka_coord.grouplog.manager import GroupMetadataManager
from kafka_coord.model import TopicPartition
from kafka_coord.model.names import is_legal

log = logging.getLogger(__name__)


class GroupKinds:
    """``manager`` has the client-assigned groups, ``managed`` the managed ones, if any are served. One event loop."""

    def __init__(self, manager: GroupMetadataManager, managed: ManagedGroups | None) -> None:
        self._manager, self._managed = manager, managed
        self._taken_over: set[str] = set()
        """Client-assigned groups that are being made managed."""

    def availability(self, group_id: str | None) -> Error:
        """Whether this instance coordinates the group. As in Kafka, an empty group id is allowed for the offsets of
        consumers that assign their own partitions."""
        if group_id is None:
            return Error.INVALID_GROUP_ID
        error = self._manager.availability(group_id)
        is_unknown = error is Error.NONE and self._managed is not None and not self._managed.knows(group_id)
        return Error.COORDINATOR_LOAD_IN_PROGRESS if is_unknown else error

    def managed(self, group_id: str) -> ManagedGroups | None:
        """The managed groups, if they serve this group. A client-assigned group stays client-assigned while it has
        members, whatever is in ZooKeeper."""
        managed = self._managed
        if managed is None or not (managed.has(group_id) or group_id in self._taken_over):
            return None
        return None if self.has_classic_members(group_id) else managed

    def has_classic_members(self, group_id: str) -> bool:
        group = self._manager.group(group_id)
        return group is not None and group.metadata.state not in {GroupState.EMPTY, GroupState.DEAD}

    def managed_here(self) -> list[str]:
        """The managed groups that this instance coordinates."""
        names = self._managed.names() if self._managed is not None else []
        return [name for name in names if self.availability(name) is Error.NONE and self.managed(name) is not None]

    async def take_over(self, managed: ManagedGroups, group_id: str) -> Error:
        """Makes a managed group of an empty client-assigned one. If this fails half-way, the next member finishes it:
        the group leaves the log only once its offsets are in ZooKeeper. They stay in the log if members hold the
        partitions already, and expire there."""
        if not is_legal(group_id):
            return Error.INVALID_GROUP_ID
        if group_id in self._taken_over or self._manager.is_writing(group_id):
            return Error.COORDINATOR_LOAD_IN_PROGRESS
        self._taken_over.add(group_id)
        try:
            await self._manager.prove(group_id)
            if self.availability(group_id) is not Error.NONE:
                return Error.NOT_COORDINATOR
            stored = self._manager.offsets_cache.get(group_id, {})
            offsets = {TopicPartition(*where): one.offset for where, one in stored.items() if is_legal(where[0])}
            error = await managed.administration.adopt(group_id, offsets)
            log.info("takes over group=%s offsets=%d result=%s", group_id, len(offsets), error.name)
            if error is Error.UNKNOWN_MEMBER_ID:
                return Error.NONE
            return error or await self._manager.delete_group(group_id)
        finally:
            self._taken_over.discard(group_id)
